"""The second moments of a mask over the units of one sample, in the shape they have in a network.

Gamma_ij = Cov(m_i, m_j), with m the multipliers, whose mean is 1 (structured dropout, eq. 16).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class MaskCovariance:
    """Gamma of a mask over units of shape s (a sample's axes, the batch left out).

    Attributes
    ----------
    shape
        s.
    strength
        Gamma_ii where `matrix` is None.
    matrix, axes
        Gamma among the units along the sample's `axes` (flattened together); units that differ
        along any other axis are independent, unless it is shared.
    shared
        Axes along which all units have the same multiplier.
    """

    shape: tuple[int, ...]
    strength: float = 0.0
    matrix: Tensor | None = None
    axes: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()

    @property
    def independent(self) -> bool:
        """Whether all units are masked independently."""
        return self.matrix is None and all(self.shape[axis] == 1 for axis in self.shared)

    def relative_variance(self, like: Tensor) -> Tensor:
        """Gamma_ii, one entry per unit, in the number format and on the device of `like`."""
        if self.matrix is None:
            return like.new_full(self.shape, self.strength)
        sizes = [n if axis in self.axes else 1 for axis, n in enumerate(self.shape)]
        return self._matrix(like).diagonal().reshape(sizes).expand(self.shape)

    def apply(self, flow: Tensor) -> Tensor:
        """Return Gamma @ flow for flow of shape (..., *s)."""
        lead = flow.ndim - len(self.shape)
        if self.shared:
            flow = flow.sum([lead + axis for axis in self.shared], keepdim=True)
        if self.matrix is None:
            return (self.strength * flow).expand(*flow.shape[:lead], *self.shape)
        source = [lead + axis for axis in self.axes]
        target = range(flow.ndim - len(source), flow.ndim)
        moved = flow.movedim(source, list(target))
        out = (moved.flatten(moved.ndim - len(source)) @ self._matrix(flow)).reshape(moved.shape)
        return out.movedim(list(target), source).expand(*flow.shape[:lead], *self.shape)

    def dense(self, like: Tensor) -> Tensor:
        """Return Gamma over all units, flattened: units x units."""
        units = math.prod(self.shape)
        eye = torch.eye(units, dtype=like.dtype, device=like.device)
        return self.apply(eye.reshape(units, *self.shape)).reshape(units, units)

    def penalty(self, values: Tensor, rows: Tensor) -> Tensor:
        """<Gamma, R'R o mean(h h')> for values h (n, *s) and rows R (outputs, units)."""
        if self.independent:
            return self.strength * ((rows * rows).sum(0) @ (values * values).mean(0).flatten())
        r = rows.unflatten(1, self.shape)
        if not self.shared:  # groups of units that may vary together
            r, h = self._grouped(r), self._grouped(values)
            gram = (r.mT @ r) * (h.mT @ h)
            return (gram.sum(0) * self._matrix(h)).sum() / len(values)
        flows = (r * h for h in values)
        return torch.stack([(flow * self.apply(flow)).sum() for flow in flows]).mean()

    def _grouped(self, x: Tensor) -> Tensor:
        """Bring x (n, *s) into groups of units along the matrix's axes: (groups, n, group)."""
        last = list(range(x.ndim - len(self.axes), x.ndim))
        moved = x.movedim([1 + axis for axis in self.axes], last)
        size = math.prod(moved.shape[last[0] :])
        return moved.reshape(len(x), -1, size).transpose(0, 1)

    def _matrix(self, like: Tensor) -> Tensor:
        assert self.matrix is not None  # noqa: S101 (for the type checker)
        return self.matrix.to(like)
