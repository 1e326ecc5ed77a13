"""From the deviation of an output back to its sources: variances and covariances.

The deviation of output k is sum_s <g_ks, step_s>, with gradients g by autograd, so that
Cov(k, l) = sum_s g_ks' Cov_s g_ls. Rows of a batch mostly have separate noise. One backward
pass for all rows then serves, if the row that an entry of a source belongs to is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from overt.nn.moments.values import Source

MAX_ENTRIES = 2**24
"""Entries of gradients in memory at once: 128 MB in double precision."""


class RowLayout(NamedTuple):
    """The axis of a source that rows lie along (None: one row), and if they change fastest."""

    axis: int | None
    fastest: bool


def output_variances(
    dev: Tensor, sources: list[Source], *, graph: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the variance of each output, the part of it that is rests, and what is left out.

    Rests are what linear maps leave of non-linear functions; second-order effects of softmax and
    normalization are left out. All are in the shape of the deviation; with `graph` they can be
    differentiated.
    """
    found = _second_moments(_by_rows(dev), sources, graph=graph)
    total, rest, doubt = (part.T.reshape(dev.shape) for part in found)
    return total, rest, doubt


def output_covariances(
    dev: Tensor, sources: list[Source], *, graph: bool = False
) -> Tensor:
    """Return the covariance matrix of the outputs of each row: (rows, outputs, outputs)."""
    y = _by_rows(dev)
    rows, outputs = y.shape
    total = y.new_zeros((rows, outputs, outputs))
    own, shared = _split_by_rows(y, [source for source in sources if not source.doubt])
    weights = torch.eye(outputs, dtype=y.dtype, device=y.device)
    for _, g, scaled in _pairs(y, own, shared, weights, graph):
        total = total + torch.einsum("kri,lri->rkl", g, scaled)
    return total


def variance_along(
    dev: Tensor, sources: list[Source], direction: Tensor, *, graph: bool = False
) -> Tensor:
    """Return Var(sum_k w_k output_k) over the classes k, axis 1; `direction` holds the weights."""
    with torch.enable_grad():
        y = (dev * direction).sum(1)
    total, _, _ = _second_moments(_by_rows(y), sources, graph=graph)
    return total.T.reshape(y.shape)


def _by_rows(dev: Tensor) -> Tensor:
    with torch.enable_grad():  # a view that is made without gradients would lose them
        return dev.reshape(len(dev), -1) if dev.ndim else dev.reshape(1, 1)


def _second_moments(y: Tensor, sources: list[Source], *, graph: bool) -> list[Tensor]:
    """Return variances (outputs, rows) from all sources, from rests alone, and from doubts."""
    rows, outputs = y.shape
    own, shared = _split_by_rows(y, sources)
    size = sum(s.step.numel() for s, _ in own) + rows * sum(
        s.step.numel() for s, _ in shared
    )
    weights = torch.eye(outputs, dtype=y.dtype, device=y.device)
    parts = []
    for part in weights.split(max(1, MAX_ENTRIES // max(size, 1))):
        total = rest = doubt = y.new_zeros(len(part), rows)
        for source, g, scaled in _pairs(y, own, shared, part, graph):
            square = (g * scaled).sum(2)
            if source.doubt:
                doubt = doubt + square
                continue
            total = total + square
            if source.rest:
                rest = rest + square
        parts.append((total, rest, doubt))
    return [torch.cat(kind) for kind in zip(*parts, strict=True)]


Located = list[tuple[Source, RowLayout | None]]


def _pairs(
    y: Tensor, own: Located, shared: Located, weights: Tensor, graph: bool
) -> Iterator[Any]:
    """Yield each source with g and Cov g, both of shape (outputs asked for, rows, entries)."""
    rows = len(y)
    count = len(weights)
    if own:
        each = weights[:, None].expand(count, rows, -1)
        for (source, layout), g in zip(
            own, _gradients(y, own, each, graph=graph), strict=True
        ):
            if g is not None and layout is not None:
                pair = (_entries_by_row(t, layout, rows) for t in (g, source.times(g)))
                yield source, *pair
    if shared:
        eye = torch.eye(rows, dtype=y.dtype, device=y.device)
        each = (eye[None, :, :, None] * weights[:, None, None]).flatten(0, 1)
        for (source, _), g in zip(
            shared, _gradients(y, shared, each, graph=graph), strict=True
        ):
            if g is not None:
                pair = (t.reshape(count, rows, -1) for t in (g, source.times(g)))
                yield source, *pair


def _gradients(
    y: Tensor, sources: Located, weights: Tensor, *, graph: bool = False
) -> list[Tensor | None]:
    """Return gradients of shape (weights, *step) for each source, None if y does not use it."""
    steps = [source.step for source, _ in sources]
    options: Any = {"retain_graph": True, "allow_unused": True, "create_graph": graph}
    try:
        return list(
            torch.autograd.grad(y, steps, weights, is_grads_batched=True, **options)
        )
    except RuntimeError:  # an operation that cannot be batched
        found = [torch.autograd.grad(y, steps, one, **options) for one in weights]
        return [
            None if g[0] is None else torch.stack(g) for g in zip(*found, strict=True)
        ]


def _split_by_rows(y: Tensor, sources: list[Source]) -> tuple[Located, Located]:
    """Return sources whose entries belong to one row each, and those that rows share.

    One pass with weights and one with weights times the row's number show whose an entry is.
    """
    if not y.requires_grad or not sources:
        return [], []
    rows, outputs = y.shape
    seeded = torch.Generator().manual_seed(0)
    weight = 1 + torch.rand(outputs, generator=seeded).to(y)
    number = torch.arange(1, rows + 1).to(y)[:, None]
    weights = torch.stack([weight.expand(rows, outputs), weight * number])
    everything: Located = [(source, None) for source in sources]
    own: Located = []
    shared: Located = []
    for (source, _), g in zip(
        everything, _gradients(y, everything, weights), strict=True
    ):
        if g is None or not bool(g.any()):
            continue
        layout = _row_layout(g[0], g[1], rows)
        (shared if layout is None else own).append((source, layout))
    return own, shared


def _row_layout(g: Tensor, numbered: Tensor, rows: int) -> RowLayout | None:
    """Return where the rows lie, None if an entry belongs to several rows."""
    if rows == 1:
        return RowLayout(None, fastest=False)
    bound = 1e-3 * float(g.abs().amax())
    for axis, n in sorted(enumerate(g.shape), key=lambda pair: pair[1]):
        if n < rows or n % rows:
            continue
        places = torch.arange(n, device=g.device)
        for fastest in (False, True) if n > rows else (False,):
            row = places % rows if fastest else places // (n // rows)
            number = (1 + row).to(g).reshape(-1, *[1] * (g.ndim - 1 - axis))
            if float((numbered - number * g).abs().amax()) <= bound:
                return RowLayout(axis, fastest)
    return None


def _entries_by_row(g: Tensor, layout: RowLayout, rows: int) -> Tensor:
    """Return gradients as (outputs asked for, rows, entries)."""
    axis, fastest = layout
    if axis is not None:
        g = g.movedim(1 + axis, 1)
        if fastest:
            g = g.unflatten(1, (-1, rows)).transpose(1, 2)
    return g.reshape(len(g), rows, -1)
