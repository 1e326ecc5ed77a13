"""Learned noise: the dropout of each factor row is estimated instead of fixed.

Every row has a mean w and a covariance S, each side a Gaussian prior (m + g_a, P), each row and
column a share alpha_a, beta_b in the precision of the noise:

    Prec_a = (alpha_a/sigma^2) sum_b beta_b (v_b v_b' + S_b) + P
    u_a = Prec_a^-1 ((alpha_a/sigma^2) sum_b beta_b y_ab v_b + P (m + g_a)),  S_a = Prec_a^-1,

the same for V; (m, g, P), alpha and beta as in `overt.completion.prior`, and sigma^2 = mean of
alpha_a beta_b times the expected squared residual.

S_b = lam diag(v_b o v_b) and P = 0 would be dropout with a fixed probability. The objective is the
negative evidence bound per rating, minus nu/2 log det P for each side: nu = the number of unknowns
of a row keeps the priors from fitting noise where there are few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from overt._check import Floats, InputError
from overt.completion.engines import Engine, half_sweep
from overt.completion.features import (
    GIVEN,
    MISSINGNESS,
    NO_FEATURES,
    Features,
)
from overt.completion.kernels.rows import FixedSide, pack, unpack
from overt.completion.model import (
    MAX_FULL_BYTES,
    FactorModel,
    add_squares,
    full_bytes,
    zero_tables,
)
from overt.completion.prior import Prior, RowNoise, Sums
from overt.completion.problem import CompletionProblem


@dataclass(frozen=True)
class LearnedOptions:
    """Numbers of the method, tuned on MovieLens 100K (u2 to u5) and 1M, not on u1."""

    tol: float = 7e-4
    """Fall of the objective in one sweep, in nats per rating, below which it has converged. With
    half of it the holdout error is the same to .0003, after 1.4 times the sweeps."""

    start_std: float = 0.1
    """Standard deviation of the column factors at the start, for values of unit variance."""

    bias_precision: float = 5.0
    """Precision of the biases' prior at the start."""

    start_noise: float = 0.1
    """The noise starts at a tenth of the variance of the values, and does not rise in the first
    sweeps: overestimated before the factors have found anything, it stays large, and small data
    lose them for good. From a start at .5, matrices of 50 x 50 (rank 3, .3 observed, noise .1) had
    the error 1.05 instead of .10. MovieLens 100K (random fifths) is better by .001 to .003."""

    start_sweeps: int = 2
    """Sweeps in which the noise does not rise."""

    feature_sweeps: int = 3
    """Sweeps before features are used: factors come first."""

    row_noise_fall: float = 1e-3
    """Row noise is not learned while the objective falls faster than this, in nats per rating and
    sweep: signal that factors have not captured yet would be absorbed as noise for good. With
    1.5e-3 averaged errors of u2 to u5 are larger by .0006, others by .0003."""


OPTIONS = LearnedOptions()

MIN_NOISE = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-6}
"""Residual variance that a storage format can still distinguish from 0."""

EMPTY_ROWS_AT_ONCE = 1024
"""Rows without entries whose prior covariances are computed at once."""


def check_memory(problem: CompletionProblem) -> None:
    """Refuse a problem whose covariances do not fit into memory."""
    tables = full_bytes(problem)
    k = problem.columns.n_factors
    if tables > MAX_FULL_BYTES:
        raise InputError(
            f"{sum(problem.shape):,} rows and columns with {k} factors take {tables >> 20} MiB of "
            f"covariances, {MAX_FULL_BYTES >> 20} are the limit; take fewer factors"
        )
    factors = sum(problem.shape) * problem.dtype.itemsize * problem.columns.width
    needed = 2 * (factors + tables)  # of the fit and of its model
    limit = problem.sides[0].memory_limit
    if limit and needed > limit:
        raise InputError(
            f"memory_limit must be at least {needed / 1e9:.3g} GB for the factors and covariances "
            f"of {sum(problem.shape):,} rows and columns, got {limit / 1e9:.3g} GB"
        )


class LearnedFit:
    """The state of a fit with learned noise; `step` is one sweep over both sides."""

    kind: ClassVar[str] = "learned"
    state: ClassVar[tuple[str, ...]] = (
        "means",
        "history",
        "tables",
        "priors",
        "noise",
        "noises",
    )

    def __init__(
        self,
        problem: CompletionProblem,
        features: tuple[Features, Features],
        certain: bool,
        seed: int,
    ) -> None:
        check_memory(problem)
        self.problem = problem
        self.features = features
        # False: missingness features must raise the evidence to be used.
        self.certain = certain
        rng = np.random.default_rng([seed, 0])
        self.means = problem.start(rng, OPTIONS.start_std)
        self.tables = zero_tables(problem)
        add_squares(self.tables[1], self.means[1])
        n = len(problem.columns.free(0))
        row_precision = np.eye(n)
        col_precision = np.eye(n) / OPTIONS.start_std**2
        if problem.columns.biases:
            row_precision[-1, -1] = OPTIONS.bias_precision
            col_precision[-1, -1] = OPTIONS.bias_precision
        self.priors = [Prior(np.zeros(n), P) for P in (row_precision, col_precision)]
        self.noises = [RowNoise.equal(count) for count in problem.shape]
        self.noise = OPTIONS.start_noise
        self.history: list[float] = []

    def step(self, engine: Engine) -> None:
        """Sweep both sides, the priors and the noise; record the objective per rating."""
        cost = 0.0
        errors = np.zeros(0)
        learn_row_noise = len(self.history) >= self.sweeps_before_row_noise
        for side in (0, 1):
            sums, errors = self._update_rows(side, engine)
            cost += self._learn_prior(side, sums)
            if learn_row_noise:
                counts = self.problem.sides[side].counts
                self.noises[side] = self.noises[side].learn(counts, errors / self.noise)
        ratings = self.problem.n_ratings
        misfit = float(self.noises[1].weights @ errors) / ratings
        self.noise = max(misfit, MIN_NOISE[self.problem.dtype])
        if len(self.history) < OPTIONS.start_sweeps:
            self.noise = min(self.noise, OPTIONS.start_noise)
        cost += self.noises[0].fixed + self.noises[1].fixed
        fit = (np.log(2 * np.pi * self.noise) + misfit / self.noise) / 2
        self.history.append(float(fit + cost / ratings))

    def settled(self, tol: float) -> bool:
        """Return whether the last sweep changed the objective by at most `tol` nats per rating."""
        least: float = OPTIONS.feature_sweeps + 1
        if tol < OPTIONS.row_noise_fall:
            least = self.sweeps_before_row_noise
        done = len(self.history)
        return done > least and abs(self.history[-2] - self.history[-1]) <= tol

    @property
    def sweeps_before_row_noise(self) -> float:
        """Sweeps before the noise of rows is learned, infinite where that is not known yet."""
        first = OPTIONS.feature_sweeps
        falls = -np.diff(self.history[first:])
        slow = np.flatnonzero(falls <= OPTIONS.row_noise_fall)
        return float(first + 2 + slow[0]) if len(slow) else np.inf

    def _update_rows(self, side: int, engine: Engine) -> tuple[Sums, Floats]:
        """Update one side; return sums over its rows, and the rows' expected errors."""
        problem = self.problem
        tables = self.tables
        columns = problem.columns
        group = problem.sides[side]
        prior = self.priors[side]
        features = self.features[side]
        weights = self.noises[1 - side].weights
        no_dropout = np.zeros(columns.width)
        fixed = FixedSide(self.means[1 - side], tables[1 - side], weights, no_dropout)
        shifts = prior.means(features.scores) @ prior.precision
        precisions = self.noises[side].weights / self.noise
        shared = (fixed, prior.for_rows(columns, side))
        own = (self.means[side], tables[side])
        out, total = half_sweep(engine, group.layout, shared, shifts, precisions, *own)
        moment = unpack(total)
        free = columns.free(side)
        W = self.means[side][:, free].astype(np.float64)
        W[group.counts == 0] = 0
        second = W.T @ W
        S = moment[np.ix_(free, free)] - second
        AW = features.scores.T @ W
        logdets = float(out.stats[:, 1].sum())
        sums = Sums(len(group.rows), W.sum(axis=0), second, S, AW, logdets)
        return sums, out.stats[:, 0]

    def _learn_prior(self, side: int, sums: Sums) -> float:
        """Update the prior of a side; return its part of the objective."""
        features = self.features[side]
        if len(self.history) < OPTIONS.feature_sweeps:
            features = NO_FEATURES
        prior = self.priors[side].learn(sums, features, self.certain)
        self.priors[side] = prior
        return prior.cost(sums, features) + prior.pseudo_cost

    def model(self, limits: tuple[float, float]) -> FactorModel:
        """Return the fitted model; rows without entries get their prior."""
        self._finish()
        return FactorModel.of_fit(self, limits)

    def _finish(self) -> None:
        """Turn second moments into covariances; give rows without entries their prior."""
        for side, w in enumerate(self.means):
            table = self.tables[side]
            add_squares(self.tables[side], w, -1)
            prior = self.priors[side]
            features = self.features[side]
            empty = self.problem.sides[side].counts == 0
            for known in (True, False):
                names = (MISSINGNESS,) if known else (MISSINGNESS, GIVEN)
                unknown = features.directions.unknown(names)
                rows = np.flatnonzero(empty & (features.has_given == known))
                for start in range(0, len(rows), EMPTY_ROWS_AT_ONCE):
                    some = rows[start : start + EMPTY_ROWS_AT_ONCE]
                    scores = features.scores[some]
                    means = prior.means(scores)
                    covariances = prior.covariances(scores, unknown)
                    for row, mean, S in zip(some, means, covariances, strict=True):
                        w[row], filled = self.problem.columns.fill(side, mean, S)
                        table[row] = pack(filled)


def balanced_bases(fit: Any) -> tuple[Floats, Floats]:
    """Return bases B_0, B_1 with (U B_0)(V B_1)' = U V' and both priors diagonal and equal.

    Factors come out in order of importance.
    """
    k = fit.problem.columns.n_factors
    left, right = (prior.covariance[:k, :k] for prior in fit.priors)
    L = np.linalg.cholesky(left)
    values, Q = np.linalg.eigh(L.T @ right @ L)
    order = np.argsort(-values)
    scales = np.maximum(values[order], 1e-300) ** 0.25
    basis = np.linalg.solve(L.T, Q[:, order] * scales)
    return basis, np.linalg.inv(basis).T


def equivalent_drop_prob(model: FactorModel, fit: Any) -> tuple[float, Floats]:
    """Return the drop probability whose noise is as large as the learned one, and per factor.

    Fixed dropout gives the product of factor i a relative variance lam; the learned noise gives it
    (1 + a_i)(1 + b_i) - 1 with a_i and b_i the two sides' variance over squared mean, averaged over
    ratings, in the basis that makes both priors diagonal.
    """
    k = model.columns.n_factors
    ratio = np.ones(k)
    size = np.ones(k)
    for side, basis in enumerate(balanced_bases(fit)):
        counts = fit.problem.sides[side].counts.astype(float)
        W = model.means[side][:-1, :k] @ basis.astype(fit.problem.dtype)
        squares = counts @ W**2
        known = slice(None, -1)
        S = model.total_covariance(side, known, counts)[:k, :k]
        noise = np.diag(basis.T @ S @ basis)
        ratio *= 1 + np.minimum(noise / np.maximum(squares, 1e-100), 1e12)
        size *= squares
    lam = np.maximum(ratio - 1, 0)
    overall = float(lam @ size / size.sum()) if size.sum() else 0.0
    return overall / (1 + overall), lam / (1 + lam)
