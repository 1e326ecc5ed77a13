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

import torch
from torch import Tensor

from overt.nn.layers.mask_covariance import MaskCovariance

BUDGET = 2**24
"""The most numbers that the gradients of one batch of backward passes may hold."""


@dataclass(frozen=True, eq=False)
class Source:
    """Deviations of mean 0: the `step` that stands for them in tangents, and their covariance.

    `spread` holds the variances, shaped like the step, or a mask's covariance, or the covariances
    of the flattened entries of each row.
    """

    step: Tensor
    spread: Tensor | MaskCovariance

    def times(self, g: Tensor) -> Tensor:
        """Return Cov @ g, for g of shape (..., *step.shape)."""
        if isinstance(self.spread, MaskCovariance):
            return self.spread.apply(g)
        if self.spread.shape == self.step.shape:
            return self.spread * g
        flat = g.flatten(g.ndim - self.step.ndim + 1)
        return (self.spread @ flat[..., None])[..., 0].reshape(g.shape)


def variances(tangent: Tensor, sources: list[Source], *, create: bool) -> Tensor:
    """Return the variance of each entry of a tangent (rows, ...)."""
    y = tangent.reshape(len(tangent), -1)
    parts = [
        torch.stack([(g * h).sum(2) for g, h in pairs]).sum(0)
        for pairs in _arrivals(y, sources, create, BUDGET)
    ]
    return torch.cat(parts).T.reshape(tangent.shape) if parts else torch.zeros_like(tangent)


def covariances(tangent: Tensor, sources: list[Source], *, create: bool) -> Tensor:
    """Return the covariances of the flattened entries of each row, (rows, K, K)."""
    y = tangent.reshape(len(tangent), -1)
    total = y.new_zeros(*y.shape, y.shape[1])
    for pairs in _arrivals(y, sources, create, 2**62):  # all outputs at once
        for g, h in pairs:
            total = total + torch.einsum("krd,lrd->rkl", g, h)
    return total


def along(tangent: Tensor, sources: list[Source], direction: Tensor, *, create: bool) -> Tensor:
    """Var(w't) for the row w of `direction` that belongs to each row t of a tangent: (rows,)."""
    weighted = (tangent * direction).flatten(1).sum(1, keepdim=True)
    return variances(weighted, sources, create=create)[:, 0]


def _arrivals(
    y: Tensor, sources: list[Source], create: bool, budget: int
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield for some outputs at a time the pairs (g, Cov g), (outputs, rows, entries) each."""
    own, shared = _sorted(y, sources)
    if not own and not shared:
        return
    (R, K), numel = y.shape, sum(source.step.numel() for source, _ in own)
    numel += R * sum(source.step.numel() for source in shared)
    size = max(1, budget // max(1, numel))
    eye = torch.eye(K, dtype=y.dtype, device=y.device)
    for asked in eye.split(size):
        pairs = []
        if own:
            steps = [source.step for source, _ in own]
            gs = _gradients(y, steps, asked[:, None].expand(-1, R, K), create)
            for (source, rows), g in zip(own, gs, strict=True):
                pairs.append((_split(g, rows, R), _split(source.times(g), rows, R)))
        if shared:
            each = torch.eye(R, dtype=y.dtype, device=y.device)[None, :, :, None]
            each = (each * asked[:, None, None]).flatten(0, 1)
            for source, g in zip(
                shared, _gradients(y, [s.step for s in shared], each, create), strict=True
            ):
                shape = (len(asked), R, -1)
                pairs.append((g.reshape(shape), source.times(g).reshape(shape)))
        yield pairs


def _split(g: Tensor, axis: int | None, R: int) -> Tensor:
    """Return g (n, *step) as (n, rows, entries); the axis is None where there is but one row."""
    return g.flatten(1)[:, None] if axis is None else g.movedim(1 + axis, 1).reshape(len(g), R, -1)


def _gradients(y: Tensor, steps: list[Tensor], asked: Tensor, create: bool) -> list[Tensor]:
    """Return the gradients of combinations of outputs (n, *y.shape) at all steps."""
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


def _sorted(
    y: Tensor, sources: list[Source]
) -> tuple[list[tuple[Source, int | None]], list[Source]]:
    """Tell sources that have entries for each row, along which axis, from those that rows share.

    The gradient of a single row says which: it vanishes at the entries of all other rows. Sources
    that do not reach the output are left out.
    """
    if not y.requires_grad or not sources:
        return [], []
    own: list[tuple[Source, int | None]] = []
    shared, open_ = [], list(sources)
    for row in range(min(len(y), 3)):  # a row may happen to have a gradient of 0
        weights = torch.zeros_like(y)
        weights[row] = 1 + torch.arange(y.shape[1], device=y.device).remainder(7) / 7
        steps = [source.step for source in open_]
        grads = torch.autograd.grad(y, steps, weights, retain_graph=True, allow_unused=True)
        last, left = row == min(len(y), 3) - 1, []
        for source, g in zip(open_, grads, strict=True):
            if g is None:
                continue
            axis = _row_axis(g, len(y), row)
            if not last and not bool(g.any()):
                left.append(source)
            elif axis == SHARED:
                shared.append(source)
            else:
                own.append((source, axis))
        open_ = left
        if not open_:
            break
    return own, shared


SHARED = -1


def _row_axis(g: Tensor, R: int, row: int) -> int | None:
    """Return the axis in one of whose R parts all of a row's gradient lies; None if R is 1."""
    if R == 1:
        return None
    axes = [axis for axis, n in enumerate(g.shape) if n == R]
    axes += [axis for axis, n in enumerate(g.shape) if n > R and n % R == 0]
    for axis in axes:
        parts = g.movedim(axis, 0).reshape(R, -1)
        if not bool(parts[:row].any()) and not bool(parts[row + 1 :].any()):
            return axis
    return SHARED
