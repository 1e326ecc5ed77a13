"""Covariances of a batch of random tensors, each kept in the smallest form that is exact.

A spread is over the units of one sample, shape s with D units in all; it can be read as variances,
as a matrix, or along given directions (`rows`, shape (batch or 1, R, D), 1 where all samples share
them).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from overt.nn.layers.mask_covariance import MaskCovariance


class Spread(ABC):
    """The covariance of the units of each sample."""

    shape: tuple[int, ...]

    @abstractmethod
    def variance(self) -> Tensor:
        """Return the variance of each unit, (batch, *s)."""

    @abstractmethod
    def matrix(self) -> Tensor:
        """Return the covariances of the flattened units, (batch, D, D)."""

    @abstractmethod
    def along(self, rows: Tensor) -> Tensor:
        """Var(r'x) for each row r: (batch, R)."""

    @abstractmethod
    def between(self, rows: Tensor) -> Tensor:
        """Cov(r'x, q'x) for each pair of rows: (batch, R, R)."""

    @abstractmethod
    def total(self, rows: Tensor) -> Tensor:
        """Return the sum over rows of Var(r'x), averaged over the batch."""

    @property
    def units(self) -> int:
        """D."""
        return math.prod(self.shape)


class Independent(Spread):
    """Units that vary independently: diag(v)."""

    def __init__(self, variance: Tensor) -> None:
        self._v, self.shape = variance, tuple(variance.shape[1:])

    def variance(self) -> Tensor:
        """Return v."""
        return self._v

    def matrix(self) -> Tensor:
        """diag(v)."""
        return torch.diag_embed(self._v.flatten(1))

    def along(self, rows: Tensor) -> Tensor:
        """sum_j r_j^2 v_j."""
        v, squares = self._v.flatten(1), rows * rows
        if len(rows) == 1:
            return v @ squares[0].T
        return (squares @ v[:, :, None])[..., 0]

    def between(self, rows: Tensor) -> Tensor:
        """sum_j r_j q_j v_j."""
        return (rows * self._v.flatten(1)[:, None]) @ rows.mT

    def total(self, rows: Tensor) -> Tensor:
        """sum_j |column j of the rows|^2 mean(v_j)."""
        if len(rows) > 1:
            return self.along(rows).sum(1).mean()
        return self._v.flatten(1).mean(0) @ (rows[0] * rows[0]).sum(0)


class Masked(Spread):
    """Known values times correlated multipliers: Cbar o h h'."""

    def __init__(self, values: Tensor, law: MaskCovariance) -> None:
        self._h, self._law, self.shape = values, law, law.shape

    def variance(self) -> Tensor:
        """Cbar_ii h_i^2."""
        return self._law.relative_variance(self._h) * self._h * self._h

    def matrix(self) -> Tensor:
        """Cbar o h h'."""
        h = self._h.flatten(1)
        return self._law.dense(h) * h[:, :, None] * h[:, None, :]

    def along(self, rows: Tensor) -> Tensor:
        """(r o h)' Cbar (r o h)."""
        flow = self._flow(rows)
        return (flow * self._law.apply(flow)).flatten(2).sum(2)

    def between(self, rows: Tensor) -> Tensor:
        """(r o h)' Cbar (q o h)."""
        flow = self._flow(rows)
        return flow.flatten(2) @ self._law.apply(flow).flatten(2).mT

    def total(self, rows: Tensor) -> Tensor:
        """<Cbar, R'R o mean(h h')>, group by group of units that vary together."""
        if len(rows) > 1 or self._law.shared:
            return self.along(rows).sum(1).mean()
        h, r = self._law.grouped(self._h), self._law.grouped(rows[0].unflatten(1, self.shape))
        gram = (r.mT @ r) * (h.mT @ h) / len(self._h)
        return (gram.sum(0) * self._law.group_matrix(h)).sum()

    def _flow(self, rows: Tensor) -> Tensor:
        return rows.unflatten(2, self.shape) * self._h[:, None]


class KernelNoise(Spread):
    """A convolution with dropped weights: y_op = sum_k W_ok x_kp m_ok, the m_ok independent.

    `patches` are x_kp (batch, groups, K, P), `weight_variance` lam W_ok^2 (groups, O / groups, K);
    `shape` is (O, *map).
    """

    def __init__(self, patches: Tensor, weight_variance: Tensor, shape: tuple[int, ...]) -> None:
        self._x, self._w, self.shape = patches, weight_variance, shape

    def variance(self) -> Tensor:
        """Return sum_k w_ok x_kp^2."""
        return (self._w @ (self._x * self._x)).flatten(1).unflatten(1, self.shape)

    def matrix(self) -> Tensor:
        """Return sum_k w_ok x_kp x_kq among the positions of a channel, 0 among channels."""
        blocks = torch.einsum("gok,bgkp,bgkq->bgopq", self._w, self._x, self._x).flatten(1, 2)
        channels = torch.eye(blocks.shape[1], dtype=blocks.dtype, device=blocks.device)
        full = torch.einsum("bopq,oc->bopcq", blocks, channels)
        return full.reshape(len(full), self.units, self.units)

    def along(self, rows: Tensor) -> Tensor:
        """Return sum_ok w_ok (sum_p r_op x_kp)^2."""
        flow = self._flow(rows)
        return (flow * flow * self._w.flatten()).sum(2)

    def between(self, rows: Tensor) -> Tensor:
        """Return sum_ok w_ok (sum_p r_op x_kp) (sum_p q_op x_kp)."""
        flow = self._flow(rows)
        return (flow * self._w.flatten()) @ flow.mT

    def total(self, rows: Tensor) -> Tensor:
        """Return the sum over rows of what `along` gives, averaged over the batch."""
        return self.along(rows).sum(1).mean()

    def _flow(self, rows: Tensor) -> Tensor:
        groups, outputs = self._w.shape[:2]
        parts = rows.reshape(*rows.shape[:2], groups, outputs, -1)
        parts = parts.expand(len(self._x), *parts.shape[1:])
        return torch.einsum("brgop,bgkp->brgok", parts, self._x).flatten(2)


class Dense(Spread):
    """Any covariance, given as a matrix for each sample."""

    def __init__(self, matrix: Tensor, shape: tuple[int, ...]) -> None:
        self._S, self.shape = matrix, shape

    def variance(self) -> Tensor:
        """S_ii."""
        return self._S.diagonal(dim1=1, dim2=2).unflatten(1, self.shape)

    def matrix(self) -> Tensor:
        """S."""
        return self._S

    def along(self, rows: Tensor) -> Tensor:
        """Return r'S r."""
        return ((rows @ self._S) * rows).sum(2)

    def between(self, rows: Tensor) -> Tensor:
        """Return r'S q."""
        return rows @ self._S @ rows.mT

    def total(self, rows: Tensor) -> Tensor:
        """Return the sum over rows of r'S r, averaged over the batch."""
        if len(rows) > 1:
            return self.along(rows).sum(1).mean()
        return (self._S.mean(0) * (rows[0].T @ rows[0])).sum()


def summed(first: Spread | None, second: Spread | None) -> Spread | None:
    """Return the covariance of the sum of two independent random tensors."""
    if first is None or second is None:
        return first or second
    if isinstance(first, Independent) and isinstance(second, Independent):
        return Independent(first.variance() + second.variance())
    return Dense(first.matrix() + second.matrix(), first.shape)


def masked(mean: Tensor, spread: Spread | None, law: MaskCovariance) -> Spread:
    """Return the covariance of x o m: S o (1 + Cbar) + Cbar o E[x] E[x]', m independent of x."""
    if spread is None:
        if law.independent:
            return Independent(law.relative_variance(mean) * mean * mean)
        return Masked(mean, law)
    if law.independent:
        v = spread.variance()
        added = law.relative_variance(mean) * (v + mean * mean)
        if isinstance(spread, Independent):
            return Independent(v + added)
        return Dense(spread.matrix() + torch.diag_embed(added.flatten(1)), spread.shape)
    m, Cbar, S = mean.flatten(1), law.dense(mean), spread.matrix()
    return Dense(S + Cbar * (S + m[:, :, None] * m[:, None, :]), spread.shape)
