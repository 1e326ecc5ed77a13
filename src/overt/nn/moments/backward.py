"""From the deviation of an output back to its sources: variances and covariances.

The deviation of output k is sum_s <g_ks, step_s>, with gradients g by autograd, so that
Cov(k, l) = sum_s g_ks' Cov_s g_ls. Rows of a batch mostly have separate noise. One backward
pass for all rows then serves, if the row that an entry of a source belongs to is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from overt.nn.moments.values import Source

MAX_ENTRIES = 2**24
"""Entries of gradients in memory at once: 128 MB in double precision."""

SHARED = -1
"""In place of an axis: entries of the source belong to several rows."""


class OutputVariances(NamedTuple):
    """The variance of each output and what is known of its parts, in the shape of the output.

    Attributes
    ----------
    total
        The variance.
    rest
        The part of it that is rests: what linear maps leave of non-linear functions.
    doubt
        Second-order effects of softmax and normalization, which `total` does not contain.
    concentration
        sum c^2 / (sum c)^2 over the contributions c of random numbers that are not normal: 1 / n
        if n of them contribute the same.
    """

    total: Tensor
    rest: Tensor
    doubt: Tensor
    concentration: Tensor


def output_variances(
    dev: Tensor, sources: list[Source], *, graph: bool = False
) -> OutputVariances:
    """Return the variance of each output; with `graph` it can be differentiated."""
    y = _by_rows(dev)
    rows, outputs = y.shape
    total = y.new_zeros(outputs, rows)
    rest = doubt = squares = total
    for k, source, g, scaled in _gradient_pairs(y, sources, graph, MAX_ENTRIES):
        parts = g * scaled
        square = parts.sum(2)
        if source.doubt:
            doubt = doubt.index_add(0, k, square)
            continue
        total = total.index_add(0, k, square)
        if source.rest:
            rest = rest.index_add(0, k, square)
        elif not source.normal:
            parts = parts.detach()
            squares = squares.index_add(0, k, (parts * parts).sum(2))
    tiny = torch.finfo(y.dtype).tiny
    concentration = squares / total.detach().square().clamp(min=tiny)
    found = (total, rest, doubt, concentration)
    return OutputVariances(*(part.T.reshape(dev.shape) for part in found))


def output_covariances(
    dev: Tensor, sources: list[Source], *, graph: bool = False
) -> Tensor:
    """Return the covariance matrix of the outputs of each row: (rows, outputs, outputs)."""
    y = _by_rows(dev)
    rows, outputs = y.shape
    total = y.new_zeros((rows, outputs, outputs))
    sources = [source for source in sources if not source.doubt]
    for _, _, g, scaled in _gradient_pairs(y, sources, graph, math.inf):
        total = total + torch.einsum("kri,lri->rkl", g, scaled)
    return total


def variance_along(
    dev: Tensor, sources: list[Source], direction: Tensor, *, graph: bool = False
) -> Tensor:
    """Return Var(sum_k w_k output_k) over the classes k, axis 1; `direction` holds the weights."""
    with torch.enable_grad():
        y = (dev * direction).sum(1)
    return output_variances(y, sources, graph=graph).total


def _by_rows(dev: Tensor) -> Tensor:
    with torch.enable_grad():  # a view that is made without gradients would lose them
        return dev.reshape(len(dev), -1) if dev.ndim else dev.reshape(1, 1)


def _gradient_pairs(
    y: Tensor, sources: list[Source], graph: bool, most: float
) -> Iterator[tuple[Tensor, Source, Tensor, Tensor]]:
    """Yield outputs k, a source, and its g and Cov g of shape (outputs k, rows, entries).

    At most `most` entries of gradients are in memory at once. Which row an entry belongs to is seen
    in the first backward pass.
    """
    if not y.requires_grad or not sources:
        return
    rows, outputs = y.shape
    unit = torch.eye(outputs, dtype=y.dtype, device=y.device)
    entries = sum(source.step.numel() for source in sources)
    axes: list[int | None] = []
    for k in _chunks(torch.arange(outputs, device=y.device), most / entries):
        weights = unit[k][:, None].expand(-1, rows, -1)
        if axes:
            gradients = _gradients(y, sources, weights, graph)
        else:
            weights = torch.cat([_row_weights(y), weights])
            found = _gradients(y, sources, weights, graph)
            pairs = zip(found, sources, strict=True)
            axes = [_row_axis(g.detach(), s.step, rows) for g, s in pairs]
            gradients = [g[2:] for g in found]
        for source, axis, g in zip(sources, axes, gradients, strict=True):
            if axis is None or axis == SHARED:
                continue
            scaled = source.times(g)
            if axis:
                g = g.movedim(1 + axis, 1)
                scaled = scaled.movedim(1 + axis, 1)
            shape = (len(k), rows, -1)
            yield k, source, g.reshape(shape), scaled.reshape(shape)
    known = zip(sources, axes, strict=True)
    shared = [source for source, axis in known if axis == SHARED]
    if not shared:
        return
    entries = rows * sum(source.step.numel() for source in shared)
    each_row = torch.eye(rows, dtype=y.dtype, device=y.device)[None, :, :, None]
    for k in _chunks(torch.arange(outputs, device=y.device), most / entries):
        weights = (each_row * unit[k][:, None, None]).flatten(0, 1)
        gradients = _gradients(y, shared, weights, graph)
        for source, g in zip(shared, gradients, strict=True):
            scaled = source.times(g)
            shape = (len(k), rows, -1)
            yield k, source, g.reshape(shape), scaled.reshape(shape)


def _chunks(k: Tensor, size: float) -> tuple[Tensor, ...]:
    return k.split(int(min(max(1, size), len(k))))


def _gradients(
    y: Tensor, sources: list[Source], weights: Tensor, graph: bool
) -> list[Tensor]:
    """Return gradients of shape (weights, *step) for each source."""
    steps = [source.step for source in sources]
    options: Any = {"retain_graph": True, "create_graph": graph}
    options |= {"allow_unused": True, "materialize_grads": True}
    try:
        return list(
            torch.autograd.grad(y, steps, weights, is_grads_batched=True, **options)
        )
    except RuntimeError:  # an operation that cannot be batched
        found = [torch.autograd.grad(y, steps, one, **options) for one in weights]
        return [torch.stack(g) for g in zip(*found, strict=True)]


def _row_weights(y: Tensor) -> Tensor:
    """Return weights of all outputs, and these times the row's number.

    They differ by row: of outputs centred over the batch, equal weights see nothing.
    """
    rows, outputs = y.shape
    seeded = torch.Generator().manual_seed(0)
    weight = 1 + torch.rand(rows, outputs, generator=seeded).to(y)
    number = torch.arange(1, rows + 1).to(y)[:, None]
    return torch.stack([weight, weight * number])


def _row_axis(gradients: Tensor, step: Tensor, rows: int) -> int | None:
    """Return the axis along which an entry's row changes, SHARED if it belongs to several.

    None if no output depends on it.
    """
    if gradients.ndim == step.ndim:  # zeros by autograd
        return None
    g = gradients[0]
    numbered = gradients[1]
    largest = float(g.abs().amax()) if g.numel() else 0.0
    if largest == 0:
        return None
    for axis, n in enumerate(g.shape):
        if n < rows or n % rows:
            continue
        size = n // rows
        number = torch.arange(size, n + size, dtype=g.dtype, device=g.device)
        number = (number / size).floor_()
        off = numbered - number.reshape(-1, *[1] * (g.ndim - 1 - axis)) * g
        if float(off.abs_().amax()) <= 1e-3 * largest:
            return axis
    return SHARED
