"""From the deviation of an output back to its sources: variances and covariances.

The deviation of output k is sum_s <g_ks, step_s>, with gradients g by autograd, so that
Cov(k, l) = sum_s g_ks' Cov_s g_ls. Rows of a batch mostly have separate noise. One backward
pass for all rows then serves, if the row that an entry of a source belongs to is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from overt.nn.moments.values import Source

MAX_ENTRIES = 2**24
"""Entries of gradients in memory at once: 128 MB in double precision."""

SHARED = -1
"""In place of an axis: entries of the source belong to several rows."""


def output_variances(
    dev: Tensor, sources: list[Source], *, graph: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the variance of each output, the part of it that is rests, and what is left out.

    Rests are what linear maps leave of non-linear functions; second-order effects of softmax and
    normalization are left out. All are in the shape of the deviation; with `graph` they can be
    differentiated.
    """
    y = _by_rows(dev)
    rows, outputs = y.shape
    located = _locate_rows(y, sources)
    size = sum(
        source.step.numel() * (rows if axis == SHARED else 1)
        for source, axis in located
    )
    parts = []
    for k in torch.arange(outputs).split(max(1, MAX_ENTRIES // max(size, 1))):
        total = rest = doubt = y.new_zeros(len(k), rows)
        for source, g, scaled in _gradient_pairs(y, located, k, graph):
            square = (g * scaled).sum(2)
            if source.doubt:
                doubt = doubt + square
                continue
            total = total + square
            if source.rest:
                rest = rest + square
        parts.append((total, rest, doubt))
    found = (torch.cat(kind).T.reshape(dev.shape) for kind in zip(*parts, strict=True))
    total, rest, doubt = found
    return total, rest, doubt


def output_covariances(
    dev: Tensor, sources: list[Source], *, graph: bool = False
) -> Tensor:
    """Return the covariance matrix of the outputs of each row: (rows, outputs, outputs)."""
    y = _by_rows(dev)
    rows, outputs = y.shape
    total = y.new_zeros((rows, outputs, outputs))
    located = _locate_rows(y, [source for source in sources if not source.doubt])
    for _, g, scaled in _gradient_pairs(y, located, torch.arange(outputs), graph):
        total = total + torch.einsum("kri,lri->rkl", g, scaled)
    return total


def variance_along(
    dev: Tensor, sources: list[Source], direction: Tensor, *, graph: bool = False
) -> Tensor:
    """Return Var(sum_k w_k output_k) over the classes k, axis 1; `direction` holds the weights."""
    with torch.enable_grad():
        y = (dev * direction).sum(1)
    return output_variances(y, sources, graph=graph)[0]


def _by_rows(dev: Tensor) -> Tensor:
    with torch.enable_grad():  # a view that is made without gradients would lose them
        return dev.reshape(len(dev), -1) if dev.ndim else dev.reshape(1, 1)


Located = list[tuple[Source, int]]
"""Sources, each with the axis that rows lie along, or SHARED."""


def _gradient_pairs(
    y: Tensor, located: Located, k: Tensor, graph: bool
) -> Iterator[Any]:
    """Yield each source with g and Cov g, both of shape (outputs k, rows, entries)."""
    rows, outputs = y.shape
    weights = torch.eye(outputs, dtype=y.dtype, device=y.device)[k.to(y.device)]
    own = [(source, axis) for source, axis in located if axis != SHARED]
    for (source, axis), g in zip(
        own,
        _gradients(y, own, weights[:, None].expand(-1, rows, -1), graph),
        strict=True,
    ):
        for_rows = [t.movedim(1 + axis, 1) for t in (g, source.times(g))]
        yield source, *(t.reshape(len(k), rows, -1) for t in for_rows)
    shared = [(source, axis) for source, axis in located if axis == SHARED]
    eye = torch.eye(rows, dtype=y.dtype, device=y.device)
    each = (eye[None, :, :, None] * weights[:, None, None]).flatten(0, 1)
    for (source, _), g in zip(shared, _gradients(y, shared, each, graph), strict=True):
        yield source, *(t.reshape(len(k), rows, -1) for t in (g, source.times(g)))


def _gradients(
    y: Tensor, located: Located, weights: Tensor, graph: bool = False
) -> list[Tensor]:
    """Return gradients of shape (weights, *step) for each source."""
    if not located:
        return []
    steps = [source.step for source, _ in located]
    options: Any = {"retain_graph": True, "create_graph": graph}
    options |= {"allow_unused": True, "materialize_grads": True}
    try:
        return list(
            torch.autograd.grad(y, steps, weights, is_grads_batched=True, **options)
        )
    except RuntimeError:  # an operation that cannot be batched
        found = [torch.autograd.grad(y, steps, one, **options) for one in weights]
        return [torch.stack(g) for g in zip(*found, strict=True)]


def _locate_rows(y: Tensor, sources: list[Source]) -> Located:
    """Return the sources that y depends on, with the axis of each that belongs to y's rows.

    One pass with weights and one with weights times the row's number show whose an entry is.
    """
    if not y.requires_grad or not sources:
        return []
    rows, outputs = y.shape
    seeded = torch.Generator().manual_seed(0)
    weight = 1 + torch.rand(outputs, generator=seeded).to(y)
    number = torch.arange(1, rows + 1).to(y)[:, None]
    weights = torch.stack([weight.expand(rows, outputs), weight * number])
    everything = [(source, SHARED) for source in sources]
    located = []
    for source, g in zip(sources, _gradients(y, everything, weights), strict=True):
        if bool(g.any()):
            located.append((source, _row_axis(g[0], g[1], rows)))
    return located


def _row_axis(g: Tensor, numbered: Tensor, rows: int) -> int:
    """Return the axis along which an entry's row changes, SHARED if it belongs to several."""
    bound = 1e-3 * float(g.abs().amax())
    for axis, n in enumerate(g.shape):
        if n < rows or n % rows:
            continue
        row = torch.arange(n, device=g.device) // (n // rows)
        number = (1 + row).to(g).reshape(-1, *[1] * (g.ndim - 1 - axis))
        if float((numbered - number * g).abs().amax()) <= bound:
            return axis
    return SHARED
