"""Which rule is used for which ATen operation, which may be called exact, and what has no rule.

A model with another operation that torch cannot take apart is sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from overt.nn.graph.record import UnsupportedError, aten, op_info
from overt.nn.moments.values import Propagation, RandomTensor, Value

Rule = Callable[..., Any]
"""Called with the pass, the operation and its arguments."""

RULES: dict[Any, Rule] = {}

_EXACT = """
    _to_copy _unsafe_view abs add addmm avg_pool2d baddbmm bernoulli bmm cat
    celu clamp clone col2im constant_pad_nd convolution copy cos cumsum detach diag_embed diagonal
    div dot elu embedding erf exp expand fill flip gather ge gelu gt hardsigmoid hardswish hardtanh
    im2col index index_add index_copy index_put index_select le leaky_relu log1p lt mask masked_fill
    masked_scatter mean mish mm mul mv native_batch_norm neg permute
    pixel_shuffle pixel_unshuffle pow rand rand_like randn randn_like reflection_pad1d
    reflection_pad2d relu repeat replication_pad2d roll rsub scatter scatter_add select
    select_scatter sigmoid silu sin slice slice_scatter softplus split split_with_sizes sqrt squeeze
    stack sub sum t tanh to trace transpose tril triu unbind unfold unsqueeze upsample_nearest2d
    view where zero
"""
EXACT_OPERATIONS = frozenset(_EXACT.split())
"""Operations whose results may be called exact; for others the label is withdrawn.

The test of this table enumerates all masks for each of them, and fails for a name without a row.
"""


def register(names: str, function: Rule) -> None:
    """Use a function as the rule of these operations; not every version of torch has all."""
    for name in names.split():
        if hasattr(aten, name):
            RULES[getattr(aten, name)] = function


def rule(names: str) -> Callable[[Rule], Rule]:
    """Use a function as the rule of these operations where their first argument is random."""

    def decorate(function: Rule) -> Rule:
        def guarded(run: Propagation, func: Any, *args: Any, **kwargs: Any) -> Any:
            chosen = function if isinstance(args[0], Value) else refuse
            return chosen(run, func, *args, **kwargs)

        register(names, guarded)
        return function

    return decorate


def refuse(run: Propagation, func: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Stand in for the rule of an operation that has none: the model is sampled."""
    raise UnsupportedError(f"{op_info(func).name} has no rule")


def find_values(tree: Any) -> list[Value]:
    """Return the random arguments among nested ones; lists of sizes hold none."""
    found: list[Value] = []
    for item in tree:
        if isinstance(item, Value):
            found.append(item)
        elif isinstance(item, (list, tuple)) and item and type(item[0]) is not int:
            found += find_values(item)
    return found


def broadcast_shape(args: Any, kwargs: Any) -> Any:
    """Return the shape of an entrywise function of flat arguments."""
    shapes = {t.shape for t in (*args, *kwargs.values()) if hasattr(t, "shape")}
    # torch is slow to find out that all agree.
    return shapes.pop() if len(shapes) == 1 else torch.broadcast_shapes(*shapes)


def combined_flags(given: list[RandomTensor]) -> dict[str, Any]:
    """Return the flags of an affine function of several random tensors.

    Sources that are functions of the same noise count as uncorrelated, which they need not be; a
    product of independent deviations is uncorrelated with whatever is affine in the noise.
    """
    if len(given) == 1:  # most calls
        names = ("noises", "exact", "known", "independent", "derived")
        return {name: getattr(given[0], name) for name in names}
    noises = frozenset().union(*(one.noises for one in given))
    disjoint = len(noises) == sum(len(one.noises) for one in given)
    derived = max(one.derived for one in given)
    simple = derived < 2 and sum(one.derived for one in given) < 2
    return {
        "noises": noises,
        "exact": all(one.exact for one in given) and (disjoint or simple),
        "known": all(one.known for one in given) and disjoint,
        "independent": all(one.independent for one in given) and disjoint,
        "derived": derived,
    }
