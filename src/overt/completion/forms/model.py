"""A fitted completion model: what is needed to predict, and nothing of how it was fitted.

The prediction of entry (a, b) is center + u_a . v_b over factors and biases. Every array of rows
has one more row at its end: what is expected of a row never seen (its prior mean).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from overt._types import Array, Floats
from overt.completion.forms.pairs import WEIGHT, AllPairs
from overt.completion.forms.problem import Columns
from overt.completion.forms.spread import FullSpread, Prior, RowSpread, append
from overt.completion.forms.units import SAME, Units
from overt.completion.kernels import dots
from overt.results import Status

if TYPE_CHECKING:
    from overt.completion.forms import PointForm
    from overt.completion.forms.learned import LearnedForm
    from overt.completion.forms.negative import NegativeForm

UNKNOWN = -1
"""Index of rows and columns never seen: that of the last row of every array."""


@dataclass(frozen=True, eq=False)
class FactorModel:
    """Rows of both sides with their spread; predictions are clipped to the scale's low and high."""

    columns: Columns
    center: float
    noise: float
    means: tuple[Array, Array]  # (row side, column side), each (count + 1, width)
    spread: RowSpread  # how far rows may be from their means
    priors: tuple[Prior, Prior]  # of both sides, over the unknown columns of a row
    low: float
    high: float
    draws: tuple[Array, Array] | None = None  # (draws, count + 1, width), to be averaged over
    units: Units = SAME  # in which values enter and predictions leave; low and high are outside
    pairs: AllPairs | None = None  # where what is not observed counts as zero

    @classmethod
    def from_form(
        cls,
        form: PointForm | LearnedForm | NegativeForm,
        limits: tuple[float, float],
        draws: Sequence[tuple[Array, Array]] = (),
    ) -> FactorModel:
        """Bring a finished form, and draws of its factors, back to the units of the values."""
        problem, columns = form.problem, form.problem.columns
        means, priors, stacks = [], [], []
        for side, units in enumerate(columns.units(problem.scale)):
            c = units.astype(problem.dtype)
            prior = form.priors[side].scaled(units[columns.free(side)])
            unseen, _ = columns.filled(side, prior.mean)
            priors.append(prior)
            means.append(append(form.means[side] * c, unseen))
            stacks.append(np.empty((len(draws), *means[side].shape), problem.dtype))
            for stacked, draw in zip(stacks[side], draws, strict=True):
                stacked[:-1], stacked[-1] = draw[side] * c, unseen
        return cls(
            columns, problem.center, form.noise * problem.scale**2, (means[0], means[1]),
            form.spread.packaged(columns, problem.scale, priors), (priors[0], priors[1]), *limits,
            (stacks[0], stacks[1]) if draws else None,
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the completed matrix."""
        return len(self.means[0]) - 1, len(self.means[1]) - 1

    def factors(self, side: int) -> Floats:
        """Return the factors of one side's known rows, without biases."""
        return self.means[side][:-1, : self.columns.n_factors].astype(np.float64)

    def predict(self, rows: Array, cols: Array) -> Floats:
        """center + u_a . v_b, within the scale's ends."""
        total, one = np.zeros(len(rows)), np.empty(len(rows))
        for U, V, weight in self._terms():
            dots(rows, cols, U, V, one)
            total += weight * one
        return np.clip(self.units.outward(cols, self.center + total), self.low, self.high)

    def variance(self, rows: Array, cols: Array) -> Floats:
        """Predictive variance: noise + Var(u.v) under the rows' spread."""
        variance = np.maximum(self.spread.product_variance(self.means, rows, cols), 0) + self.noise
        return np.asarray(variance * self.units.spread(cols) ** 2)

    def block(self, rows: Array, *, clip: bool = True) -> Floats:
        """Return the dense predictions of some rows for all known columns."""
        total = np.zeros((len(rows), self.shape[1]))
        for U, V, weight in self._terms():
            total += weight * (U[rows] @ V[:-1].T)
        total += self.center
        total = self.units.outward(np.arange(self.shape[1]), total)
        return np.clip(total, self.low, self.high, out=total) if clip else total

    def _terms(self) -> list[tuple[Array, Array, float]]:
        """Factors and weights of what is averaged: the learned means and all draws, half each.

        The means have no sampling noise and the draws have more factors; their errors differ, so
        that the two halves together do better than either.
        """
        if self.draws is None:
            return [(*self.means, 1.0)]
        U, V = self.draws
        return [(*self.means, 0.5), *((u, v, 0.5 / len(U)) for u, v in zip(U, V, strict=True))]

    def fold(self, partners: Array, values: Array) -> tuple[Floats, Floats]:
        """Return mean and covariance of a row with these entries, everything else held."""
        free, prior, pinned = self.columns.free(0), self.priors[0], self.columns.pinned(0)
        values = self.units.inward(partners, values)
        W, weights, second, P, noise = self._equations(partners, values)
        right = W.T @ (weights * (values - self.center))
        if self.columns.biases:
            right = right - second[:, pinned]
        mean = np.linalg.lstsq(P, right[free] / noise + prior.precision @ prior.mean)[0]
        return self.columns.filled(0, mean, np.linalg.inv(P) if self.spread.learned else 0.0)

    def influence(self, partners: Array, values: Array, col: int) -> Floats:
        """Return what each of a row's entries adds to its prediction for `col`.

        A row's mean is linear in its values: u = Prec^-1 (sum_b v_b (y_b - bias_b) / noise + ...),
        so entry b adds v_col' Prec^-1 v_b (y_b - center - bias_b) / noise.
        """
        free = self.columns.free(0)
        values = self.units.inward(partners, values)
        W, weights, _, P, noise = self._equations(partners, values)
        residual = weights * (values - self.center)
        if self.columns.biases:
            residual = residual - W[:, self.columns.pinned(0)]
        target = self.means[1][col].astype(np.float64)[free]
        added = (W[:, free] @ np.linalg.lstsq(P, target)[0]) * residual / noise
        return np.asarray(added * self.units.spread(np.array([col])))

    def _equations(
        self, partners: Array, values: Floats
    ) -> tuple[Floats, Floats, Floats, Floats, float]:
        """Return W, weights, sum_b (v_b v_b' + S_b), Prec and its noise, for a row's partners.

        Dropout's objective has squared residuals as they are, as if their variance were 1.
        """
        free = self.columns.free(0)
        W = self.means[1][partners].astype(np.float64)
        if self.pairs is None:
            weights = np.ones(len(partners))
            second = W.T @ W + self.spread.total(self.means, 1, partners)
        else:
            r = float(self.pairs.rows(np.asarray(np.sum(values**2))))
            weights = r * WEIGHT * self.pairs.partners[partners]
            extra = (WEIGHT - 1) * self.pairs.partners[partners]
            second = r * (self._everyone + self._weighted(partners, extra))
        noise = self.noise if self.spread.learned else 1.0
        P = self.priors[0].precision + second[np.ix_(free, free)] / noise
        return W, weights, second, P, noise

    @cached_property
    def _everyone(self) -> Floats:
        """sum_b c_b (v_b v_b' + S_b) over all known columns."""
        assert self.pairs is not None  # noqa: S101
        return self._weighted(np.arange(self.shape[1]), self.pairs.partners)

    def _weighted(self, partners: Array, weights: Floats) -> Floats:
        assert isinstance(self.spread, FullSpread)  # noqa: S101
        W = self.means[1][partners].astype(np.float64)
        return (W.T * weights) @ W + self.spread.to_square(
            weights @ self.spread.tables[1][partners]
        )


@dataclass(frozen=True, eq=False)
class Fit:
    """A model and how it was reached."""

    model: FactorModel
    objective: list[float]
    status: Status
    drop_prob: Any
    learned_drop_prob: Floats | None = None
    path: Floats | None = None
