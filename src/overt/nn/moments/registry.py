"""Which rule is used for which ATen operation, and which operations may be called exact."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from overt.nn.moments.values import Propagation, RandomTensor, Value

aten = torch.ops.aten
Rule = Callable[[Propagation, Any, Any, Any], Any]

RULES: dict[Any, Rule] = {}

_EXACT = """
    _adaptive_avg_pool2d _to_copy _unsafe_view abs add addmm avg_pool2d baddbmm bernoulli bmm cat
    celu clamp clone col2im constant_pad_nd convolution copy cos cumsum detach diag_embed diagonal
    div dot elu embedding erf exp expand fill flip gather ge gelu gt hardsigmoid hardswish hardtanh
    im2col index index_add index_copy index_put index_select le leaky_relu log1p lt mask masked_fill
    masked_scatter max_pool2d_with_indices mean mish mm mul mv native_batch_norm neg permute
    pixel_shuffle pixel_unshuffle pow rand rand_like randn randn_like reflection_pad1d
    reflection_pad2d relu repeat replication_pad2d roll rsub scatter scatter_add select
    select_scatter sigmoid silu sin slice slice_scatter softplus split split_with_sizes sqrt squeeze
    stack sub sum t tanh trace transpose tril triu unbind unfold unsqueeze upsample_nearest2d view
    where zero
"""
EXACT_OPERATIONS = frozenset(_EXACT.split())
"""Operations whose results may be called exact; for others the label is withdrawn.

The test of this table enumerates all masks for each of them, and fails for a name without a row.
"""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Use a function as the rule of these operations."""

    def register(function: Rule) -> Rule:
        for name in names:
            packet = getattr(aten, name, None)
            if packet is not None:  # not every version of torch has all of them
                RULES[packet] = function
        return function

    return register


def find_values(tree: Any) -> list[Value]:
    """Return the random arguments."""
    found: list[Value] = []
    for item in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(item, Value):
            found.append(item)
        elif isinstance(item, (list, tuple, dict)) and item:
            found += find_values(item)
    return found


def broadcast_shape(args: Any, kwargs: Any) -> Any:
    """Return the shape of an entrywise function of flat arguments."""
    shapes = [t.shape for t in (*args, *kwargs.values()) if isinstance(t, (Tensor, Value))]
    if all(shape == shapes[0] for shape in shapes):  # which torch is slow to find out
        return shapes[0]
    return torch.broadcast_shapes(*shapes)


def combined_flags(given: list[RandomTensor]) -> dict[str, Any]:
    """Return the flags of an affine function of several random tensors."""
    noises = frozenset().union(*(one.noises for one in given))
    exact = all(one.exact for one in given)
    disjoint = len(noises) == sum(len(one.noises) for one in given)
    return {
        "noises": noises,
        "exact": exact and (disjoint or not _correlated_sources(given)),
        "known": all(one.known for one in given) and disjoint,
        "independent": all(one.independent for one in given) and disjoint,
        "derived": frozenset().union(*(one.derived for one in given)),
    }


def _correlated_sources(given: list[RandomTensor]) -> bool:
    """Whether sources that count as uncorrelated may be correlated, as made of the same noise."""
    for one, other in itertools.permutations(given, 2):
        for a in one.derived:
            if not a.factors and a.noises & other.noises and a not in other.derived:
                return True
            if any(a is not b and a.may_correlate_with(b) for b in other.derived):
                return True
    return False
