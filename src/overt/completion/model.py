"""A fitted completion model: everything needed to predict, and nothing of how it was fitted.

The prediction of entry (a, b) is center + scale u_a . v_b over factors and biases. Every array of
rows has one more row at its end: the prior mean, expected of a row never seen.

`FactorModel` is immutable. `overt.completion.averaged.AveragedModel` wraps one with samples to
average over, `overt.completion.implicit.ImplicitModel` one in which what is not observed counts as
zero; all three have `base`, `predict`, `block`, `variance`, `fold` and `of_row`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from overt._check import Array, Bools, Floats, InputError, Ints
from overt.completion.features import (
    GIVEN,
    MISSINGNESS,
    Directions,
    Encoder,
    observed_matrix,
)
from overt.completion.kernels.rows import (
    RowPrior,
    Rows,
    dot_variances,
    dots,
    pack,
    unpack,
    weighted_sum,
)
from overt.completion.prior import Prior, RowNoise, noise_shares
from overt.completion.problem import Columns, CompletionProblem, Grouped
from overt.entries.identifiers import UNKNOWN
from overt.results import Status

MAX_FULL_BYTES = 2 << 30
"""Full row covariances are used where their tables fit into this many bytes."""

FOLD_STEPS = 8
"""Times that a new row and its share in the noise are solved for in turn."""


def zero_tables(problem: CompletionProblem) -> list[Array]:
    """Return a packed covariance of zero for each row of both sides.

    Sweeps store second moments w w' + S there, a fitted model S.
    """
    size = problem.columns.packed_size
    return [np.zeros((count, size), problem.dtype) for count in problem.shape]


def add_squares(table: Array, W: Array, sign: int = 1) -> Array:
    """Add sign w w' in place, column by column, which needs little memory."""
    for t, (i, j) in enumerate(zip(*np.tril_indices(W.shape[1]), strict=True)):
        table[:, t] += sign * (W[:, i] * W[:, j])
    return table


def full_bytes(problem: CompletionProblem) -> int:
    """Return the size of tables of full covariances."""
    return sum(problem.shape) * problem.columns.packed_size * problem.dtype.itemsize


class RowSums(NamedTuple):
    """A row's entries: partners W, standardized values, weights c_b, and sum_b c_b T_b."""

    W: Floats
    values: Floats
    weights: Floats
    second: Floats


@dataclass(frozen=True, eq=False)
class Row:
    """A row that was not fitted: its mean and covariance, and its share in the noise."""

    mean: Floats
    covariance: Floats
    noise: float  # E 1 / alpha
    weight: float = 1.0  # E alpha
    samples: Any = None  # added by a model that averages samples


def _with_row(rows: Array, new: Array) -> Array:
    """Return rows with one more at the end."""
    return np.concatenate([rows, new[None].astype(rows.dtype)])


def _only_row(new: Array, rows: Array) -> Array:
    """Return an array of rows that has the new one, and the last one for a row never seen."""
    return np.stack([new, rows[-1]]).astype(rows.dtype)


@dataclass(frozen=True, eq=False)
class FactorModel:
    """Rows of both sides with their covariances; predictions are clipped to [low, high]."""

    columns: Columns
    center: float
    scale: float
    noise: float  # like factors and biases, in units of `scale`
    means: tuple[Array, Array]  # (row side, column side), each (count + 1, width)
    # Packed covariances of both sides' rows; None: dropout is fixed, and none are learned.
    tables: list[Array] | None
    priors: tuple[Prior, Prior]  # of both sides, over the unknown columns of a row
    noises: tuple[RowNoise, RowNoise]  # of both sides, each with count + 1 rows
    directions: tuple[Directions, Directions]
    given: tuple[Array, Array]  # scores of rows' given features, NaN for rows without
    low: float = -np.inf
    high: float = np.inf
    encoders: tuple[Encoder | None, Encoder | None] = (
        None,
        None,
    )  # of new rows' features

    @classmethod
    def of_fit(cls, fit: Any, limits: tuple[float, float]) -> FactorModel:
        """Return the model of a finished fit; every array gets a row never seen."""
        problem = fit.problem
        means = []
        tables = []
        for side, prior in enumerate(fit.priors):
            directions = fit.features[side].directions
            scores = directions.mean[None]
            S: Any = 0.0
            if fit.tables is not None:
                S = prior.covariances(scores, directions.covariance)[0]
            w, S = problem.columns.fill(side, prior.means(scores)[0], S)
            means.append(_with_row(fit.means[side], w))
            if fit.tables is not None:
                tables.append(_with_row(fit.tables[side], pack(S)))
        return cls(
            columns=problem.columns,
            center=problem.center,
            scale=problem.scale,
            noise=fit.noise,
            means=(means[0], means[1]),
            tables=tables or None,
            priors=(fit.priors[0], fit.priors[1]),
            noises=(fit.noises[0].with_unseen(), fit.noises[1].with_unseen()),
            directions=(fit.features[0].directions, fit.features[1].directions),
            given=(fit.features[0].given, fit.features[1].given),
            low=limits[0],
            high=limits[1],
        )

    @property
    def base(self) -> FactorModel:
        """The model without wrappers: itself."""
        return self

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the completed matrix."""
        return len(self.means[0]) - 1, len(self.means[1]) - 1

    @property
    def has_std(self) -> bool:
        """Whether predictions have standard deviations that hold for new entries."""
        return self.tables is not None

    @property
    def covariances(self) -> list[Array]:
        """The covariances of rows; refused where dropout is fixed."""
        if self.tables is None:
            raise InputError(
                'return_std, fold_in, explain and partial_fit need drop_prob="learn": with a '
                'number or "auto" nothing is learned of how far predictions are from new entries'
            )
        return self.tables

    def clip(self, values: Floats) -> Floats:
        """Return predictions within the range of the values."""
        return np.clip(values, self.low, self.high)

    def predict(self, rows: Array, cols: Array) -> Floats:
        """center + scale u_a . v_b, clipped."""
        out = np.empty(len(rows))
        dots(rows, cols, *self.means, out)
        return self.clip(self.center + self.scale * out)

    def block(self, rows: Array) -> Floats:
        """Return the predictions of some rows for all columns and an unseen one, not clipped."""
        U, V = self.means
        return self.center + self.scale * (U[rows] @ V.T).astype(np.float64)

    def variance(self, rows: Array, cols: Array) -> Floats:
        """Predictive variance: the noise of row and column, and Var(u.v)."""
        factors = np.empty(len(rows))
        dot_variances(rows, cols, *self.means, *self.covariances, factors)
        noises = self.noises[0].variances[rows] * self.noises[1].variances[cols]
        variance = np.maximum(factors, 0) + self.noise * noises
        return np.asarray(self.scale**2 * variance)

    def standardized(self, values: Any) -> Floats:
        """(values - center) / scale."""
        return np.asarray((np.asarray(values, dtype=float) - self.center) / self.scale)

    def scores(self, partners: Array, features: Any = None) -> tuple[Floats, Floats]:
        """Return mean and covariance of the scores of a row with entries at `partners`.

        Its given features are `features`, NaN where not known. With
        F = A R', scores have the error G e where only features u are unknown: G = R_u'R_u, and e
        has the covariance of scores.
        """
        directions = self.directions[0]
        mean = directions.mean.copy()
        unknown = np.eye(len(mean))
        if len(partners) and MISSINGNESS in directions.parts:
            R = directions.parts[MISSINGNESS]
            at = directions.block(MISSINGNESS)
            seen = partners[partners < len(R)]  # later partners have no direction
            mean[at] = R[seen].sum(axis=0) / len(partners) ** 0.5
            unknown[at] = 0
        if GIVEN in directions.parts and features is not None:
            R = directions.parts[GIVEN]
            at = directions.block(GIVEN)
            f = np.asarray(features)[0]
            missing = np.isnan(f)
            mean[at] = np.where(missing, 0.0, f) @ R
            unknown[at, at] = R[missing].T @ R[missing]
        return mean, unknown @ directions.covariance @ unknown.T

    def row_sums(self, partners: Array, values: Array) -> RowSums:
        """Return the sums of a row's entries that determine its mean."""
        W = self.means[1][partners].astype(np.float64)
        weights = self.noises[1].weights[partners]
        second = self.weighted_moment(1, partners, weights)
        return RowSums(W, self.standardized(values), weights, second)

    def weighted_moment(self, side: int, rows: Array, weights: Floats) -> Floats:
        """sum_b c_b T_b, T_b = w_b w_b' + S_b, over some rows of a side."""
        W = self.means[side][rows].astype(np.float64)
        return (W.T * weights) @ W + self.total_covariance(side, rows, weights)

    def total_covariance(self, side: int, rows: Any, weights: Floats) -> Floats:
        """sum_b c_b S_b over some rows of a side."""
        return unpack(weighted_sum(weights, self.covariances[side][rows]))

    def second_moments(self, side: int, rows: Array) -> Array:
        """Return w w' + S of some rows, packed."""
        return add_squares(self.covariances[side][rows], self.means[side][rows])

    def fold(
        self,
        partners: Array,
        values: Array,
        features: Any = None,
        sums: RowSums | None = None,
    ) -> Row:
        """Return a new row with these entries and features, everything else fixed.

        The row and its share in the noise are solved for in turn.
        """
        tables = self.covariances[1]
        nu = self.noises[0].nu
        prior = self.priors[0]
        scores, unknown = self.scores(partners, features)
        center = prior.means(scores[None])[0]
        S = prior.covariances(scores[None], unknown)[0]
        prior_precision = np.linalg.inv(S)
        mean, S = self.columns.fill(0, center, S)
        found = Row(mean, S, self.noises[0].unseen)
        if not len(partners):
            return found
        counts_pairs = sums is not None
        sums = sums or self.row_sums(partners, values)
        W, y, c, second = sums
        for _ in range(FOLD_STEPS if np.isfinite(nu) else 1):
            precision = found.weight / self.noise
            w, S = self.solve_row(sums, precision, center, prior_precision)
            mean, S = self.columns.fill(0, w, S)
            error = c @ y**2 - 2 * mean @ (W.T @ (c * y))
            error += np.sum((np.outer(mean, mean) + S) * second)
            misfit = max(float(error), 0.0) / self.noise
            weight, noise = noise_shares(nu, float(len(partners)), misfit)
            found = Row(mean, S, noise, weight)
        if counts_pairs:
            return found
        # Sweeps add the errors S_b of the partners to the precision of a row, which shrinks its
        # mean as it should; few entries say less, as these errors add to their noise.
        free = self.columns.free(0)
        M = np.outer(mean, mean) + S
        errors = tables[partners] @ pack(2 * M - np.diag(np.diag(M)))  # tr(M S_b)
        precisions = 1 / (self.noise / (found.weight * c) + errors)
        P = prior_precision + (W[:, free].T * precisions) @ W[:, free]
        _, S = self.columns.fill(0, w, np.linalg.inv(P))
        return replace(found, covariance=S)

    def equations(self, side: int) -> tuple[Floats, Floats, RowPrior]:
        """Return precisions of a side's rows, weights of their partners, and what rows share."""
        weights = self.noises[side].weights / self.noise
        prior = self.priors[side].for_rows(self.columns, side)
        return weights, self.noises[1 - side].weights, prior

    def has_given(self, side: int) -> Bools:
        """Return which rows have the features that were given, all where none were given."""
        return ~np.isnan(self.given[side]).any(axis=1)

    def priors_of(
        self, side: int, rows: Ints, group: Grouped, partners: Ints
    ) -> tuple[Floats, Floats]:
        """Return the prior means of rows, and the precision that they share.

        `group` has their entries, with numbers of `partners`. Either all of the rows have features
        or none has.
        """
        directions = self.directions[side]
        prior = self.priors[side]
        scores = np.tile(directions.mean, (len(rows), 1))
        if MISSINGNESS in directions.parts:
            R = directions.parts[MISSINGNESS]
            known = np.zeros((len(partners), R.shape[1]))
            old = partners < len(R)  # later partners have no direction
            known[old] = R[partners[old]]
            F = observed_matrix(group, np.float64)
            scores[:, directions.block(MISSINGNESS)] = F @ known
        at = directions.block(GIVEN)
        if self.has_given(side)[rows].all():
            scores[:, at] = self.given[side][rows]
            return prior.means(scores), prior.precision
        unknown = directions.unknown((GIVEN,))
        H = (
            prior.effects.H
            if prior.effects is not None
            else np.zeros((len(unknown), 1))
        )
        wider = prior.covariance + H.T @ unknown @ H
        return prior.means(scores), np.asarray(np.linalg.inv(wider))

    def forget(self, side: int, rows: Ints) -> None:
        """Make rows those of a row never seen, in place; only for a copy that nobody else has."""
        self.means[side][rows] = self.means[side][-1]
        self.noises[side].weights[rows] = self.noises[side].weights[-1]
        self.noises[side].variances[rows] = self.noises[side].variances[-1]
        table = self.covariances[side]
        table[rows] = table[-1]

    def write(self, side: int, rows: Ints, found: Rows, counts: Ints) -> None:
        """Replace rows in place; only for a copy that nobody else has."""
        self.means[side][rows] = found.means
        add_squares(found.tables, found.means, -1)
        self.covariances[side][rows] = found.tables
        noise = self.noises[side]
        misfits = np.maximum(found.stats[:, 0], 0) / (self.noise or 1.0)
        weights, variances = noise_shares(noise.nu, counts.astype(float), misfits)
        noise.weights[rows] = weights
        noise.variances[rows] = variances

    def solve_row(
        self, sums: RowSums, precision: float, center: Floats, P: Floats
    ) -> tuple[Floats, Floats]:
        """S = (precision sum T_b + P)^-1, w = S (precision sum (y_b v_b - pinned) + P center)."""
        free = self.columns.free(0)
        right = sums.W.T @ (sums.weights * sums.values)
        if self.columns.biases:
            right = right - sums.second[:, self.columns.pinned(0)]
        right = precision * right[free] + P @ center
        P = P + precision * sums.second[np.ix_(free, free)]
        S = np.asarray(np.linalg.inv(P))
        return S @ right, S

    def of_row(self, row: Row) -> FactorModel:
        """Return the model of a row that was not fitted alone, at position 0."""
        unseen = self.noises[0].unseen
        tables = self.covariances
        own = _only_row(pack(row.covariance), tables[0])
        noise = replace(
            self.noises[0],
            weights=np.array([row.weight, 1.0]),
            variances=np.array([row.noise, unseen]),
        )
        return replace(
            self,
            means=(_only_row(row.mean, self.means[0]), self.means[1]),
            tables=[own, tables[1]],
            noises=(noise, self.noises[1]),
        )

    def contributions(self, row: int, col: int, sums: RowSums) -> Floats:
        """Return what each of a row's entries adds to its prediction for `col`.

        A row's mean is linear in its values and its prior mean:
        u = Prec^-1 (precision sum_b c_b v_b (y_b - bias_b) + P (m + g)), so entry b adds
        precision c_b v_col' Prec^-1 v_b (y_b - center - bias_b).
        """
        free = self.columns.free(0)
        prior = self.priors[0]
        precision = self.noises[0].weights[row] / self.noise
        residual = sums.values
        if self.columns.biases:
            residual = residual - sums.W[:, self.columns.pinned(0)]
        P = prior.precision + precision * sums.second[np.ix_(free, free)]
        v = self.means[1][col].astype(np.float64)
        target = np.linalg.solve(P, v[free])
        target = self.scale * target
        return precision * sums.weights * (sums.W[:, free] @ target) * residual

    def resized(self, shape: tuple[int, int]) -> FactorModel:
        """Return a copy with rows and columns added, which start as one that was never seen."""
        picks = []
        given = []
        means = []
        noises = []
        for side, (known, count) in enumerate(zip(self.shape, shape, strict=True)):
            scores = self.given[side]
            new = np.full(count - known, UNKNOWN)
            pick = np.concatenate([np.arange(known), new, [UNKNOWN]])
            more = np.full((count - len(scores), scores.shape[1]), np.nan)
            picks.append(pick)
            given.append(np.concatenate([scores, more.astype(scores.dtype)]))
            means.append(self.means[side][pick])
            noises.append(self.noises[side].take(pick))
        return replace(
            self,
            means=(means[0], means[1]),
            noises=(noises[0], noises[1]),
            tables=[t[at] for t, at in zip(self.covariances, picks, strict=True)],
            given=(given[0], given[1]),
        )

    def with_features_of(self, last: FactorModel) -> FactorModel:
        """Return this model, whose features were scores of `last`, for the features of `last`."""
        found = []
        for mine, theirs in zip(self.directions, last.directions, strict=True):
            parts = dict(mine.parts)
            if GIVEN in parts:
                parts[GIVEN] = theirs.parts[GIVEN] @ parts[GIVEN]
            found.append(replace(mine, parts=parts))
        return replace(self, directions=(found[0], found[1]), encoders=last.encoders)


@dataclass(frozen=True, eq=False)
class Fit:
    """A model and how it was reached."""

    model: Any  # FactorModel or a wrapper of one
    objective: list[float]
    status: Status
    drop_prob: Any
    learned_drop_prob: Floats | None = None
    path: Floats | None = None
    fitted: int = 0  # entries of the last full fit
