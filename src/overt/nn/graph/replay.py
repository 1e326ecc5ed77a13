"""Run a recording again: the certain part is as recorded, the noise is sampled anew.

`torch.func.vmap` runs many samples at once. Each has separate noise because all noise is
recorded in terms of the three operations that vmap repeats for each sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from overt.nn.data.models import Statistics
from overt.nn.graph.record import (
    BASIC_DRAWS,
    LayerNoise,
    Recording,
    UnsupportedError,
    aten,
    op_info,
    tensors,
)
from overt.nn.graph.state import Output, SavedState

MAX_ENTRIES = 2**22
"""Entries of all random tensors of the samples that run at once: 16 MB in single precision."""

PLAIN_PASSES = 16
"""Ordinary passes that are handed out together."""


def _expand_source(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(x.dtype).expand(x.shape)


def _batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any
) -> Any:
    # The operation writes to its running statistics, which must stay as recorded.
    mean, var = (None if t is None else t.clone() for t in (mean, var))
    return aten.native_batch_norm.default(x, weight, bias, mean, var, *rest)


def _fill(x: Tensor, value: Any) -> Tensor:
    # Batched gradients of the operation itself print a warning from C++.
    return torch.zeros_like(x) + value


RERUN_AS = {
    aten.fill.Scalar: _fill,
    aten.fill.Tensor: _fill,
    aten.zero.default: torch.zeros_like,
    aten.native_batch_norm.default: _batch_norm,
    aten._embedding_bag_forward_only.default: aten._embedding_bag.default,  # has a gradient
    aten.view.default: torch.reshape,
    aten._unsafe_view.default: torch.reshape,
    aten.copy.default: _expand_source,
    # A detach would cut the gradient of a deviation; noise passes through it all the same.
    aten.detach.default: torch.clone,
    aten.lift_fresh.default: torch.clone,
}
"""Functions in place of operations that need the memory layout of the recorded pass."""


def map_tree(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to all leaves of nested arguments."""
    if isinstance(tree, dict):
        return {name: map_tree(item, function) for name, item in tree.items()}
    if not isinstance(tree, (list, tuple)):
        return function(tree)
    # Most arguments are flat: a call for each leaf would double the time.
    return type(tree)(
        [
            map_tree(item, function)
            if isinstance(item, (list, tuple, dict))
            else function(item)
            for item in tree
        ]
    )


def store_results(made: dict[int, Any], recorded: Any, out: Any) -> None:
    """Note new values of a call's results; results without one are None."""
    before = tensors((recorded,))
    after = list(out) if isinstance(out, (list, tuple)) else [out]
    after += [None] * (len(before) - len(after))
    made.update(zip(map(id, before), after, strict=True))


def replay(recording: Recording) -> Tensor:
    """Return the output with new noise."""
    made: dict[int, Any] = {}

    def now(leaf: Any) -> Any:
        return made.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf

    for call in recording.calls:
        if call.noisy:
            function = RERUN_AS.get(call.func, call.func)
            kwargs = map_tree(call.kwargs, now)
            if "generator" in kwargs:  # the model's own, which must not move
                kwargs["generator"] = None
            out = function(*map_tree(tuple(call.args), now), **kwargs)
            store_results(made, call.out, out)
    output: Tensor = now(recording.output)
    return output


def sample(
    saved: SavedState,
    recording: Recording | None,
    x: Any,
    output: Output,
    count: int,
    statistics: Statistics = "running",
) -> Iterator[Tensor]:
    """Yield `count` sampled outputs in parts of shape (samples, *output), in double precision.

    Many at once over a recording, else one ordinary pass after the other.
    """
    done = 0
    if recording is not None and all(
        _differs_by_sample(call.func) for call in recording.calls
    ):
        saved.prepare(statistics=statistics)
        entries = sum(
            t.numel() for c in recording.calls if c.noisy for t in tensors((c.out,))
        )
        chunk = max(1, MAX_ENTRIES // max(entries, 1))
        while done < count and not saved.interrupts.pending:
            size = min(chunk, count - done)
            try:
                part = _replay_many(recording, size)
            except UnsupportedError:
                break
            done += size
            yield part
    while done < count and not saved.interrupts.pending:
        size = min(PLAIN_PASSES, count - done)
        passes = [
            saved.plain_pass(x, output, statistics=statistics) for _ in range(size)
        ]
        if len({part.shape for part in passes}) > 1:
            raise UnsupportedError("the shape of the output is random")
        done += size
        yield torch.stack(passes).double()


def _differs_by_sample(func: Any) -> bool:
    """Whether vmap samples anew each time: not the mask of a layer with a seed."""
    if isinstance(func, LayerNoise):
        return getattr(func.layer, "seed", None) is None
    info = op_info(func)
    return not info.draws or info.name in BASIC_DRAWS


def _replay_many(recording: Recording, count: int) -> Tensor:
    def one(_: Tensor) -> Tensor:
        return replay(recording)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operations that vmap runs one by one
        try:
            found = torch.func.vmap(one, randomness="different")(torch.zeros(count))
        except (RuntimeError, NotImplementedError, ValueError) as error:
            raise UnsupportedError(str(error).splitlines()[0][:100]) from error
    return found.double()
