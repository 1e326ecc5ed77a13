"""From the outputs back to the sources: variances and covariances of a linearized network.

With g the gradient of output k's tangent with respect to a source's step,

    Var_k = sum over sources of g' Cov g,

paths being summed before anything is squared; g_k' Cov g_l gives covariances. Rows of a batch do
not meet, so that one backward pass serves the k-th output of all rows; a source that several rows
share (noise on weights, say) is asked for each row apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from overt.nn.layers.mask_covariance import MaskCovariance
from overt.nn.moments.plans import unrecorded

BUDGET = 2**24
"""The most numbers that the gradients of one batch of backward passes may hold."""

SHARED, APART = -1, -2
"""In the place of an axis of rows: all rows share the source; it does not reach the output."""

FEW = 3
"""Rows that are asked for their gradient before it is asked who has one."""

Layouts = dict[Any, list[int | None]]
"""For the shapes of some sources, the axis of each that the rows of the batch lie along."""


@dataclass(frozen=True, eq=False)
class Source:
    """Deviations of mean 0: the `step` that stands for them in tangents, and their covariance.

    `spread` holds the variances, shaped like the step, or a mask's covariance, or the covariances
    of the flattened entries of each row. A `rest` is what a linear map leaves out.
    """

    step: Tensor
    spread: Tensor | MaskCovariance
    rest: bool = False

    def times(self, g: Tensor) -> Tensor:
        """Return Cov @ g, for g of shape (..., *step.shape)."""
        if isinstance(self.spread, MaskCovariance):
            return self.spread.apply(g)
        if self.spread.shape == self.step.shape:
            return self.spread * g
        flat = g.flatten(g.ndim - self.step.ndim + 1)
        return (self.spread @ flat[..., None])[..., 0].reshape(g.shape)


Arrival = tuple[Source, Tensor, Tensor]
"""A source, g and Cov g, (outputs, rows, entries) each."""


class Sources:
    """The sources of one pass, and what comes back from a tangent (rows, ...) to them.

    `layouts` keeps from pass to pass, for the shapes of the sources' steps, the axis of each that
    the rows of the batch lie along. Results have gradients where gradients are enabled.
    """

    def __init__(self, layouts: Layouts) -> None:
        self._all: list[Source] = []
        self._layouts = layouts

    def add(self, source: Source) -> Tensor:
        """Note a new source; return its step."""
        self._all.append(source)
        return source.step

    def variances(self, tangent: Tensor) -> Tensor:
        """Return the variance of each entry."""
        return self.parts(tangent)[0]

    def parts(self, tangent: Tensor) -> tuple[Tensor, Tensor]:
        """Return the variance of each entry, and how much of it comes from rests."""
        totals, rests = [], []
        for found in self._arrivals(_flat(tangent), BUDGET):
            sums = [(g * h).sum(2) for _, g, h in found]
            totals.append(torch.stack(sums).sum(0))
            left = [part for part, (source, *_) in zip(sums, found, strict=True) if source.rest]
            rests.append(torch.stack(left).sum(0) if left else torch.zeros_like(sums[0]))
        if not totals:
            return torch.zeros_like(tangent), torch.zeros_like(tangent)
        total, rest = (torch.cat(parts).T.reshape(tangent.shape) for parts in (totals, rests))
        return total, rest

    def covariances(self, tangent: Tensor) -> Tensor:
        """Return the covariances of the flattened entries of each row, (rows, K, K)."""
        y = _flat(tangent)
        total = y.new_zeros(*y.shape, y.shape[1])
        for pairs in self._arrivals(y, 2**62):  # all outputs at once
            for _, g, h in pairs:
                total = total + torch.einsum("krd,lrd->rkl", g, h)
        return total

    def along(self, tangent: Tensor, direction: Tensor) -> Tensor:
        """Var(w't) for the row w of `direction` that belongs to each row t: (rows,)."""
        with torch.enable_grad():
            combined = _flat(tangent * direction).sum(1, keepdim=True)
        return self.variances(combined)[:, 0]

    def _arrivals(self, y: Tensor, budget: int) -> Iterator[list[Arrival]]:
        """Yield for some outputs at a time (source, g, Cov g), for all sources."""
        if not y.requires_grad or not self._all:
            return
        key = (len(y), *(source.step.shape for source in self._all))
        if key not in self._layouts:
            with unrecorded():
                axes, sure = _row_axes(y, self._all)
            if sure:
                self._layouts[key] = axes
        else:
            axes = self._layouts[key]
        found = list(zip(self._all, axes, strict=True))
        own = [(source, axis) for source, axis in found if axis not in (SHARED, APART)]
        shared = [source for source, axis in found if axis == SHARED]
        (R, K), numel = y.shape, sum(source.step.numel() for source, _ in own)
        numel += R * sum(source.step.numel() for source in shared)
        for asked in torch.eye(K, dtype=y.dtype, device=y.device).split(
            max(1, budget // (numel or 1))
        ):
            pairs: list[Arrival] = []
            gs = _gradients(y, [s.step for s, _ in own], asked[:, None].expand(-1, R, K))
            for (source, axis), g in zip(own, gs, strict=True):
                pairs.append((source, _split(g, axis, R), _split(source.times(g), axis, R)))
            each = torch.eye(R, dtype=y.dtype, device=y.device)[None, :, :, None]
            each = (each * asked[:, None, None]).flatten(0, 1) if shared else each
            gs = _gradients(y, [s.step for s in shared], each)
            for source, g in zip(shared, gs, strict=True):
                shape = (len(asked), R, -1)
                pairs.append((source, g.reshape(shape), source.times(g).reshape(shape)))
            if pairs:
                yield pairs


def _flat(tangent: Tensor) -> Tensor:
    with torch.enable_grad():  # a view that is made without gradients would lose them
        return tangent.reshape(len(tangent), -1)


def _split(g: Tensor, axis: int | None, R: int) -> Tensor:
    """Return g (n, *step) as (n, rows, entries); the axis is None where there is but one row."""
    return g.flatten(1)[:, None] if axis is None else g.movedim(1 + axis, 1).reshape(len(g), R, -1)


def _gradients(y: Tensor, steps: list[Tensor], asked: Tensor) -> list[Tensor]:
    """Return the gradients of combinations of outputs (n, *y.shape) at all steps."""
    if not steps:
        return []
    create = torch.is_grad_enabled()
    if len(asked) > 1:
        try:
            with warnings.catch_warnings():  # about operations that are batched by a loop
                warnings.simplefilter("ignore")
                return list(torch.autograd.grad(
                    y, steps, asked, retain_graph=True, create_graph=create, is_grads_batched=True
                ))  # fmt: skip
        except RuntimeError:  # an operation that cannot be batched
            pass
    each = [
        torch.autograd.grad(y, steps, one, retain_graph=True, create_graph=create) for one in asked
    ]
    return [torch.stack(parts) for parts in zip(*each, strict=True)]


def _row_axes(y: Tensor, sources: list[Source]) -> tuple[list[int | None], bool]:
    """Return for each source the axis along which the rows of the output lie, and if that is sure.

    The gradient of a single row says which: it vanishes at the entries of all other rows. One row
    may have a gradient of 0, or one that fits along several axes: then others are asked.
    """
    R, open_, sure = len(y), list(range(len(sources))), True
    axes: list[int | None] = [APART] * len(sources)
    fits = [_axes(source.step.shape, R) for source in sources]

    def asked(rows: slice) -> list[tuple[int, Tensor]]:
        weights = torch.zeros_like(y)
        weights[rows] = 1 + torch.arange(y.shape[1], device=y.device).remainder(7) / 7
        steps = [sources[i].step for i in open_]
        grads = torch.autograd.grad(y, steps, weights, retain_graph=True, allow_unused=True)
        return [(i, g) for i, g in zip(open_, grads, strict=True) if g is not None]

    for row in range(R):
        if row == FEW and open_:  # what no row tells need not be asked of all
            reached = [i for i, g in asked(slice(None)) if bool(g.any())]
            sure, open_ = reached == open_, reached
        if not open_:
            break
        found = asked(slice(row, row + 1))
        for i, g in found:
            fits[i] = [axis for axis in fits[i] if axis is None or _lies(g, axis, R, row)]
            axes[i] = fits[i][0] if fits[i] else SHARED
        open_ = [i for i, g in found if len(fits[i]) > 1 or not bool(g.any())]
    return axes, sure and not open_


def _axes(shape: Any, R: int) -> list[int | None]:
    """Return the axes that R rows may lie along, those of R entries first; None if R is 1."""
    if R == 1:
        return [None]
    found = [axis for axis, n in enumerate(shape) if n >= R and n % R == 0]
    return sorted(found, key=lambda axis: shape[axis])


def _lies(g: Tensor, axis: int, R: int, row: int) -> bool:
    """Return whether a gradient lies in one of the R parts of an axis."""
    parts = g.movedim(axis, 0).reshape(R, -1)
    return not bool(parts[:row].any()) and not bool(parts[row + 1 :].any())
