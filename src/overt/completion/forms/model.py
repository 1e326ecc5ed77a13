"""A fitted completion model: what is needed to predict, and nothing of how it was fitted.

The prediction of entry (a, b) is center + u_a . v_b over factors and biases. Every array of rows
has one more row at its end: what is expected of a row never seen (its prior mean).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from overt._check import InputError
from overt._types import Array, Floats
from overt.completion.forms.averaged import Draws, Row
from overt.completion.forms.encoding import Encoder
from overt.completion.forms.features import FEATURES, NO_DIRECTIONS, NOTHING, SIGNALS, Directions
from overt.completion.forms.implicit import WEIGHT, AllPairs
from overt.completion.forms.noise import RowNoise, expected
from overt.completion.forms.prior import Prior
from overt.completion.forms.problem import Columns
from overt.completion.forms.spread import RowSpread, append
from overt.completion.kernels import dots
from overt.entries.identifiers import UNKNOWN
from overt.results import Status

if TYPE_CHECKING:
    from overt.completion.forms import PointForm
    from overt.completion.forms.implicit import NegativeForm
    from overt.completion.forms.learned import LearnedForm

FOLDS = 8
"""Times that a new row and its share in the noise are solved for in turn."""


@dataclass(frozen=True, eq=False)
class FactorModel:
    """Rows of both sides with their covariances; predictions are clipped to [low, high]."""

    columns: Columns
    center: float
    noise: float
    means: tuple[Array, Array]  # (row side, column side), each (count + 1, width)
    spread: RowSpread  # how far rows may be from their means
    priors: tuple[Prior, Prior]  # of both sides, over the unknown columns of a row
    noises: tuple[RowNoise, RowNoise]  # of both sides, each with count + 1 rows
    low: float
    high: float
    draws: Draws | None = None  # to be averaged over
    directions: tuple[Directions, Directions] = (NO_DIRECTIONS, NO_DIRECTIONS)
    given: tuple[Array, Array] = (NOTHING.given, NOTHING.given)  # known rows' features' scores
    encoders: tuple[Encoder | None, Encoder | None] = (None, None)  # of new rows' features
    pairs: AllPairs | None = None  # where what is not observed counts as zero

    @classmethod
    def from_form(
        cls,
        form: PointForm | LearnedForm | NegativeForm,
        limits: tuple[float, float],
        draws: Sequence[Mapping[str, Array]] = (),
    ) -> FactorModel:
        """Bring a finished form, and samples of its factors, back to the units of the values."""
        problem = form.problem
        columns = form.problem.columns
        means = []
        priors = []
        covariances = []
        for side, units in enumerate(columns.units(problem.scale)):
            prior = form.priors[side].scaled(units[columns.free(side)])
            priors.append(prior)
            scores = form.features[side].directions.scores({})
            covariance = prior.covariances(scores)[0] if form.spread.learned else 0.0
            unseen, S = columns.filled(side, prior.means(scores)[0], covariance)
            means.append(append(form.means[side] * units.astype(problem.dtype), unseen))
            covariances.append(S)
        (left, right), (U, V) = (noise.with_unseen() for noise in form.noises), form.features
        return cls(
            columns,
            problem.center,
            form.noise * problem.scale**2,
            (means[0], means[1]),
            form.spread.packaged(columns, problem.scale, covariances),
            (priors[0], priors[1]),
            (left, right),
            *limits,
            Draws.stacked(draws, problem, form.means) if draws else None,
            (U.directions, V.directions),
            (U.given, V.given),
        )

    def after(self, last: FactorModel) -> FactorModel:
        """Return this model, whose features were the scores of `last`, for the features of that."""
        pairs = zip(self.directions, last.directions, strict=True)
        found = []
        for mine, theirs in pairs:
            parts = dict(mine.parts)
            if FEATURES in parts:
                parts[FEATURES] = theirs.parts[FEATURES] @ parts[FEATURES]
            found.append(replace(mine, parts=parts))
        return replace(self, directions=(found[0], found[1]), encoders=last.encoders)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the completed matrix."""
        return len(self.means[0]) - 1, len(self.means[1]) - 1

    def shown(self) -> dict[str, Any]:
        """Return what an estimator shows of a model, by name."""
        (U, V), k, (m, n) = (w[:-1] for w in self.means), self.columns.n_factors, self.shape
        biases = self.columns.biases
        return {
            "U": U[:, :k],
            "V": V[:, :k],
            "mean": self.center,
            "noise_variance": self.noise,
            "row_bias": U[:, k] if biases else np.zeros(m),
            "col_bias": V[:, k + 1] if biases else np.zeros(n),
            "row_noise": self.noises[0].variances[:-1],
            "col_noise": self.noises[1].variances[:-1],
            "covariance": self.spread.name,
            "n_features_in": n,
            "average": 0 if self.draws is None else len(self.draws.U),
        }

    def factors(self, side: int) -> Floats:
        """Return the factors of one side's known rows, without biases."""
        return self.means[side][:-1, : self.columns.n_factors].astype(np.float64)

    def predict(self, rows: Array, cols: Array) -> Floats:
        """center + u_a . v_b, within the scale's ends."""
        total = np.zeros(len(rows))
        one = np.empty(len(rows))
        for U, V, weight in self._terms():
            dots(rows, cols, U, V, one)
            total += weight * one
        return np.clip(self.center + total, self.low, self.high)

    def variance(self, rows: Array, cols: Array) -> Floats:
        """Predictive variance: the noise of row and column, and Var(u.v)."""
        self._need_std()
        noises = self.noises[0].variances[rows] * self.noises[1].variances[cols]
        variance = np.empty(len(rows))
        sampled = np.zeros(len(rows), dtype=bool)
        if self.draws is not None:
            sampled = self.draws.rows[rows] & self.draws.cols[cols]
            variance[sampled] = self._scatter(rows[sampled], cols[sampled])
            variance[sampled] += self.draws.noise.mean() * noises[sampled]
        rest = ~sampled
        factors = self.spread.product_variance(self.means, rows[rest], cols[rest])
        variance[rest] = np.maximum(factors, 0) + self.noise * noises[rest]
        return np.asarray(variance)

    @property
    def has_std(self) -> bool:
        """Whether predictions have standard deviations that hold for new entries."""
        return self.spread.learned and self.pairs is None

    def _need_std(self) -> None:
        if self.pairs is not None:
            raise InputError(
                'return_std needs missing="unknown": with "negative" predictions rank columns, and '
                "no observed value is expected to be near them"
            )
        if not self.spread.learned:
            raise InputError(
                'return_std needs drop_prob="learn": with a number or "auto" nothing is learned of '
                "how far predictions are from new entries"
            )

    def _scatter(self, rows: Array, cols: Array) -> Floats:
        """Return the mean squared distance of the samples' products from the prediction."""
        if self.draws is None:
            raise TypeError("no draws were kept")
        center = np.zeros(len(rows))
        one = np.empty(len(rows))
        for U, V, weight in self._terms():
            dots(rows, cols, U, V, one)
            center += weight * one
        total = np.zeros(len(rows))
        for W, V in zip(self.draws.W, self.draws.V, strict=True):
            dots(rows, cols, W, V, one)
            total += (one - center) ** 2
        return total / len(self.draws.V)

    def block(self, rows: Array, *, clip: bool = True) -> Floats:
        """Return the dense predictions of some rows for all known columns."""
        total = np.zeros((len(rows), self.shape[1]))
        for U, V, weight in self._terms():
            total += weight * (U[rows] @ V[:-1].T)
        total += self.center
        return np.clip(total, self.low, self.high, out=total) if clip else total

    def _terms(self) -> list[tuple[Array, Array, float]]:
        """Factors and weights of what is averaged: the learned means and all samples.

        The means have no sampling noise and the samples have more factors; their errors differ, so
        that the two together do better than either.
        """
        if self.draws is None:
            return [(*self.means, 1.0)]
        U = self.draws.U
        V = self.draws.V
        share = self.draws.share
        return [(*self.means, 1 - share.sum()), *zip(U, V, share, strict=True)]

    def products(self, row: Row, cols: Array) -> Floats:
        """center + u . v for a row that was not fitted, as `predict` has it before clipping."""
        total = self.means[1][cols].astype(np.float64) @ row.mean
        if self.draws is not None:
            V = self.draws.V[:, cols].astype(np.float64)
            share = self.draws.share
            total += np.einsum("d,dw,dcw->c", share, row.drawn, V) - share.sum() * total
        return self.center + total

    def scores(self, partners: Array, features: Any = None, row: int = UNKNOWN) -> Array:
        """Return the scores of a row with entries at `partners`, known or with these features."""
        directions = self.directions[0]
        known = {}
        if len(partners) and SIGNALS in directions.parts:
            found = np.unique(partners)
            known[SIGNALS] = directions.parts[SIGNALS][found].sum(axis=0)[None] / len(found) ** 0.5
        if FEATURES in directions.parts and (features is not None or row != UNKNOWN):
            given = self.given[0][[row]] if features is None else features
            known[FEATURES] = given if features is None else given @ directions.parts[FEATURES]
        return directions.scores(known)

    def fold(self, partners: Array, values: Array, features: Any = None) -> Row:
        """Return a row with these entries and features, everything else fixed.

        The row and its share in the noise are solved for in turn.
        """
        prior = self.priors[0]
        scores = self.scores(partners, features)
        nu = self.noises[0].nu
        learned = self.spread.learned
        W, values, weights, second = self._sums(partners, values)
        alpha = 1.0
        variance = self.noises[0].unseen
        count = float(len(partners))
        center = prior.means(scores)[0]
        spread = prior.covariances(scores)[0] if learned else 0.0
        mean, S = self.columns.filled(0, center, spread)
        for _ in range(FOLDS if np.isfinite(nu) else 1) if len(partners) else ():
            precision = alpha / self.noise if learned else 1.0
            shift = prior.precision @ center
            w, P = self._solve(W, values, weights, second, precision, prior.precision, shift)
            mean, S = self.columns.filled(0, w, np.linalg.inv(P) if learned else 0.0)
            error = weights @ values**2 - 2 * mean @ (W.T @ (weights * values))
            error += np.sum((np.outer(mean, mean) + S) * second)
            alpha, variance = expected(nu, count, max(float(error), 0.0) / self.noise)
        drawn = self._drawn(partners, values, weights, alpha, scores)
        return Row(mean, S, variance, *drawn, len(partners))

    def row_variance(self, row: Row, cols: Array) -> Floats:
        """Return the predictive variance of a row that was not fitted."""
        self._need_std()
        V = self.means[1][cols].astype(np.float64)
        # Var(u.v) = v'S_u v + tr(S_v (S_u + u u'))
        second = row.covariance + np.outer(row.mean, row.mean)
        factors = np.einsum("ei,ei->e", V @ row.covariance, V)
        factors += self.spread.traces(self.means, 1, cols, second)
        noises = row.variance * self.noises[1].variances[cols]
        variance = np.maximum(factors, 0) + self.noise * noises
        if self.draws is not None and row.count:
            sampled = self.draws.cols[cols]
            variance[sampled] = self._row_scatter(row, cols[sampled])
            variance[sampled] += self.draws.noise.mean() * noises[sampled]
        return np.asarray(variance)

    def _row_scatter(self, row: Row, cols: Array) -> Floats:
        """Return what `_scatter` does for a row that was not fitted, whose covariance is known."""
        if self.draws is None:
            raise TypeError("no draws were kept")
        drawn = self.draws.V[:, cols].astype(np.float64)
        share = self.draws.share
        products = np.einsum("dw,dcw->dc", row.drawn, drawn)
        learned = self.means[1][cols].astype(np.float64) @ row.mean
        center = share @ products + (1 - share.sum()) * learned
        variance = ((products - center) ** 2).mean(axis=0)
        return variance + np.einsum("dcw,dwx,dcx->c", drawn, row.spreads, drawn) / len(drawn)

    def _sums(self, partners: Array, values: Array) -> tuple[Floats, Floats, Floats, Floats]:
        """Return W, values less the center, weights c_b and sum_b c_b T_b of a row's entries."""
        W = self.means[1][partners].astype(np.float64)
        values = np.asarray(values, dtype=float)
        if self.pairs is None:
            weights = self.noises[1].weights[partners]
            return W, values - self.center, weights, self._weighted(partners, weights)
        values = self.pairs.strengths(values)
        r = float(self.pairs.rows(np.asarray(np.sum(values**2))))
        c = self.pairs.partners[partners]
        second = r * (self._everyone + self._weighted(partners, (WEIGHT - 1) * c))
        return W, values - self.center, r * WEIGHT * c, second

    @cached_property
    def _everyone(self) -> Floats:
        """sum_b c_b T_b over all known columns, where every pair counts."""
        partners = np.zeros(0) if self.pairs is None else self.pairs.partners
        return self._weighted(np.arange(len(partners)), partners)

    def _weighted(self, partners: Array, weights: Floats) -> Floats:
        """sum_b c_b T_b, T_b = w_b w_b' + S_b."""
        W = self.means[1][partners].astype(np.float64)
        return (W.T * weights) @ W + self.spread.total(self.means, 1, partners, weights)

    def _solve(
        self,
        W: Floats,
        values: Floats,
        weights: Floats,
        second: Floats,
        precision: float,
        P: Floats,
        shift: Floats,
    ) -> tuple[Floats, Floats]:
        """Prec = precision sum c_b T_b + P; w = Prec^-1 (its sum (y_b v_b - T_b[:, pinned]))."""
        free = self.columns.free(0)
        right = W.T @ (weights * values)
        if self.columns.biases:
            right = right - second[:, self.columns.pinned(0)]
        P = P + precision * second[np.ix_(free, free)]
        return np.asarray(np.linalg.lstsq(P, precision * right[free] + shift)[0]), P

    def _drawn(
        self, partners: Array, values: Floats, weights: Floats, alpha: float, scores: Array
    ) -> tuple[Floats, Floats]:
        """Return mean and covariance of a row given each sample of V, as in the chain."""
        width = self.columns.width
        if self.draws is None:
            return np.zeros((0, width)), np.zeros((0, width, width))
        free, (_, V, _, m, p, noise, H, *_) = self.columns.free(0), self.draws
        W = V[:, partners].astype(np.float64)  # (samples, entries, width)
        weighted = W * weights[:, None]
        precision = (alpha / noise)[:, None]
        right = np.einsum("dew,e->dw", weighted, values)
        second = weighted.transpose(0, 2, 1) @ W
        if self.columns.biases:
            right -= second[:, :, self.columns.pinned(0)]
        P = precision[..., None] * second[:, free[:, None], free] + p[:, :, None] * np.eye(
            len(free)
        )
        shift = p * (m + (scores[0] @ H if H.shape[1] else 0.0))
        drawn = np.ones((len(V), width))
        spreads = np.zeros((len(V), width, width))
        drawn[:, free] = np.linalg.solve(P, (precision * right[:, free] + shift)[..., None])[..., 0]
        spreads[:, free[:, None], free] = np.linalg.inv(P)
        return drawn, spreads

    def parts(self, row: int, partners: Array, values: Array, col: int) -> dict[str, Any]:
        """Return what entries, signals and features of a row add to its prediction for `col`.

        A row's mean is linear in its values and its prior mean:
        u = Prec^-1 (precision sum_b c_b v_b (y_b - bias_b) + P (m + g)), so entry b adds
        precision c_b v_col' Prec^-1 v_b (y_b - center - bias_b), and a block g_j
        v_col' Prec^-1 P g_j.
        """
        free = self.columns.free(0)
        prior = self.priors[0]
        W, residual, weights, second = self._sums(partners, values)
        precision = self.noises[0].weights[row] / self.noise if self.spread.learned else 1.0
        if self.columns.biases:
            residual = residual - W[:, self.columns.pinned(0)]
        P = prior.precision + precision * second[np.ix_(free, free)]
        target = np.linalg.lstsq(P, self.means[1][col].astype(np.float64)[free])[0]
        added = {"entries": precision * weights * (W[:, free] @ target) * residual}
        return added | self._blocks(row, partners, prior.precision @ target)

    def _blocks(self, row: int, partners: Array, target: Floats) -> dict[str, float]:
        """Return target'g_j of each block j of a row's features."""
        effects = self.priors[0].effects
        directions = self.directions[0]
        added = dict.fromkeys((SIGNALS, FEATURES), 0.0)
        if effects is None:
            return added
        scores = self.scores(partners, row=row)
        H = effects.H @ target
        for member, name in zip(directions.members, directions.parts, strict=True):
            added[name] = float((scores[0] * member) @ H)
        return added


@dataclass(frozen=True, eq=False)
class Fit:
    """A model and how it was reached."""

    model: FactorModel
    objective: list[float]
    status: Status
    drop_prob: Any
    learned_drop_prob: Floats | None = None
    path: Floats | None = None
    fitted: int | None = None  # entries of the last full fit, all of them if None
    faults: tuple[str, ...] = ()  # what a cluster lost, and was done again
