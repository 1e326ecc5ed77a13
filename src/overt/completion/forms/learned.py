"""Learned noise: the dropout of each factor row estimated instead of fixed.

Every row carries a mean w and a covariance S, each side a Gaussian prior (m + g_a, P), each row and
column a share alpha_a, beta_b in the precision of the noise:

    Prec_a = (alpha_a/sigma^2) sum_b beta_b (v_b v_b' + S_b) + P
    u_a = Prec_a^-1 ((alpha_a/sigma^2) sum_b beta_b y_ab v_b + P (m + g_a)),  S_a = Prec_a^-1,

the same for V; (m, g, P) as `prior` says, alpha and beta as `noise` does, and
sigma^2 = mean of alpha_a beta_b times the expected squared residual.

S_b = lam diag(v_b o v_b) and P = 0 would be dropout with a fixed probability. The objective is the
negative evidence bound per rating, minus nu/2 log det P for each side: nu = the number of unknowns
of a row keeps the priors from fitting noise where there are few rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from overt._check import InputError
from overt._types import Array, Floats
from overt.completion.engines import Engine
from overt.completion.forms.features import NOTHING, Features, of_sides
from overt.completion.forms.noise import RowNoise
from overt.completion.forms.prior import Prior, Sums
from overt.completion.forms.problem import CompletionProblem
from overt.completion.forms.spread import LearnedSpread, learned_spread
from overt.completion.kernels import Held, Learned

TOL = 7e-4
"""Fall of the objective in one sweep, in nats per rating, below which it has converged. MovieLens
100K and 1M: with half of it the held-out error is the same to .0003, after 1.4 times the sweeps."""

START = 0.1
"""Standard deviation of the column factors at the start, for values of unit variance."""

BIAS_PRECISION = 5.0
"""Precision of the biases' prior at the start."""

HELD_SWEEPS = 2
HELD_NOISE = 0.5
"""The noise starts at half the variance of the values and does not rise in the first sweeps: it
would be overestimated before the factors have found anything, and sparse data would lose them."""

LEAST_NOISE = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-6}
"""Residual variance that a storage format can still tell from 0."""

COLD = 1024
"""Rows without entries that are given their prior at once."""

ROWS = 1 << 16
"""Rows whose tables are brought to double precision at once."""

FIRST = 3
"""Sweeps before features are looked at: factors come first."""

WAIT = 1.5e-3
"""Row noise is not learned while the objective falls faster than this, in nats per rating and
sweep: signal that factors have not captured yet would be absorbed as noise for good."""


@dataclass(eq=False)
class LearnedForm:
    """The learned form; `step` is one sweep over both sides.

    `history` is the objective after each sweep; it says when to stop.
    """

    problem: CompletionProblem
    means: list[Array]
    spread: LearnedSpread
    priors: list[Prior]
    noise: float
    noises: list[RowNoise]
    features: tuple[Features, Features]
    certain: bool = True
    history: list[float] = field(default_factory=list)
    kind: ClassVar[str] = "learned"

    @classmethod
    def start(
        cls,
        problem: CompletionProblem,
        seed: int,
        spread: type[LearnedSpread] | None = None,
        features: tuple[Features, Features] | None = None,
        certain: bool = True,
    ) -> LearnedForm:
        """Return the form before the first sweep, with the covariances that memory allows if None.

        Signals that are not `certain` must raise the evidence to be used.
        """
        means = problem.start(np.random.default_rng([seed, 0]), START)
        tables = (spread or learned_spread(problem)).start(problem)
        tables.add_means(1, means[1])
        n = len(problem.columns.free(0))
        precision = np.eye(n)
        narrow = np.eye(n) / START**2
        if problem.columns.biases:
            precision[-1, -1] = narrow[-1, -1] = BIAS_PRECISION
        priors = [Prior(np.zeros(n), precision), Prior(np.zeros(n), narrow)]
        noises = [RowNoise.start(count) for count in problem.shape]
        if features is None:
            features = of_sides((problem.by_row, problem.by_col), (None, None), False, float, seed)
        return cls(problem, means, tables, priors, HELD_NOISE, noises, features, certain)

    def step(self, engine: Engine) -> float:
        """Sweep both sides, the priors and the noise; return the objective per rating."""
        cost = 0.0
        pseudo = 0.0
        error = np.zeros(0)
        for side in (0, 1):
            sums, error = self.update(side, engine)
            cost += self._learn_prior(side, sums)
            pseudo += self.priors[side].pseudo_cost
            if len(self.history) >= self.waited:
                counts = self.problem.grouped(side).counts
                self.noises[side] = self.noises[side].learn(counts, error / self.noise)
        ratings = self.problem.n_ratings
        misfit = float(self.noises[1].weights @ error) / ratings
        self.noise = max(misfit, LEAST_NOISE[self.problem.dtype])
        if len(self.history) < HELD_SWEEPS:
            self.noise = min(self.noise, HELD_NOISE)
        cost += self.noises[0].fixed + self.noises[1].fixed
        fit = (np.log(2 * np.pi * self.noise) + misfit / self.noise) / 2
        self.history.append(float(fit + (cost + pseudo) / ratings))
        return self.history[-1]

    def settled(self, tol: float) -> bool:
        """Return whether the last sweep changed the objective by at most `tol` nats per rating."""
        done = len(self.history)
        least = self.waited if tol < WAIT else FIRST + 1
        return done > least and abs(self.history[-2] - self.history[-1]) <= tol

    @property
    def waited(self) -> float:
        """Sweeps made before the noise of rows is learned, infinite where that is not known yet."""
        falls = -np.diff(self.history[FIRST:])
        found = np.flatnonzero(falls <= WAIT)
        return float(FIRST + 2 + found[0]) if len(found) else np.inf

    def update(self, side: int, engine: Engine) -> tuple[Sums, Floats]:
        """Update one side; return sums over its rows, and the rows' expected errors."""
        problem = self.problem
        tables = self.spread.tables
        columns = self.problem.columns
        group = problem.grouped(side)
        prior = self.priors[side]
        features = self.features[side]
        held = Held(self.means[1 - side], tables[1 - side], self.noises[1 - side].weights)
        shifts = prior.means(features.scores) @ prior.precision
        precisions = self.noises[side].weights / self.noise
        out = Learned(self.means[side], tables[side], np.zeros((problem.shape[side], 2)))
        shared = (held, prior.for_rows(columns, side))
        moment = self.spread.sweep(engine, group, shared, (shifts, precisions), out)
        free = columns.free(side)
        W = self.means[side][:, free].astype(np.float64)
        W[group.counts == 0] = 0
        second = W.T @ W
        S = moment[np.ix_(free, free)] - second
        AW = features.scores.T @ W
        sums = Sums(len(group.rows), W.sum(axis=0), second, S, AW, float(out.stats[:, 1].sum()))
        return sums, out.stats[:, 0]

    def _learn_prior(self, side: int, sums: Sums) -> float:
        """Update the prior of a side; return its part of the negative evidence bound."""
        features = self.features[side]
        prior = self.priors[side]
        if len(self.history) < FIRST:
            features = NOTHING
        self.priors[side] = prior.learn(sums, features, self.certain)
        return self.priors[side].cost(sums, features)

    def finish(self) -> None:
        """Leave covariances in the tables; give rows without entries their prior."""
        for side, (w, table) in enumerate(zip(self.means, self.spread.tables, strict=True)):
            self.spread.add_means(side, w, -1)
            prior = self.priors[side]
            features = self.features[side]
            empty = np.flatnonzero(self.problem.grouped(side).counts == 0)
            for some in np.array_split(empty, -(-len(empty) // COLD)) if len(empty) else ():
                scores = features.scores[some]
                given = prior.means(scores), prior.covariances(scores)
                for r, mean, covariance in zip(some, *given, strict=True):
                    w[r], S = self.problem.columns.filled(side, mean, covariance)
                    table[r] = self.spread.to_row(S)

    def arrays(self) -> dict[str, Array]:
        """Return tables, priors, noise."""
        kept = self.spread.arrays()
        for side in (0, 1):
            kept |= self.priors[side].arrays(side) | self.noises[side].arrays(side)
            kept[f"features_{side}"] = self.features[side].sizes
        return kept | {"noise": np.array([self.noise])}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take back tables, priors, noise, found with the same features."""
        for side, known in enumerate(self.features):
            if not np.allclose(known.sizes, arrays[f"features_{side}"], rtol=1e-3):
                raise InputError(
                    "the checkpoint holds a run with other features; give the same ones, or start "
                    "anew without resuming"
                )
        self.spread = self.spread.from_arrays(arrays)
        self.noise = float(arrays["noise"][0])
        self.priors[:] = [Prior.from_arrays(arrays, side) for side in (0, 1)]
        self.noises[:] = [RowNoise.from_arrays(arrays, side) for side in (0, 1)]


def balanced(form: LearnedForm) -> tuple[Floats, Floats]:
    """Return bases B_0, B_1 with (U B_0)(V B_1)' = U V' and both priors diagonal and equal.

    Factors come out in order of importance.
    """
    k = form.problem.columns.n_factors
    L = np.linalg.cholesky(form.priors[0].covariance[:k, :k])
    values, Q = np.linalg.eigh(L.T @ form.priors[1].covariance[:k, :k] @ L)
    order = np.argsort(-values)
    basis = np.linalg.solve(L.T, Q[:, order] * np.maximum(values[order], 1e-300) ** 0.25)
    return basis, np.linalg.inv(basis).T


def equivalent_drop_prob(form: LearnedForm) -> tuple[float, Floats]:
    """Return the drop probability whose noise is as large as the learned one, and per factor.

    Fixed dropout gives the product of factor i a relative variance lam; the learned noise gives it
    (1 + a_i)(1 + b_i) - 1 with a_i and b_i the two sides' variance over squared mean, averaged over
    ratings, in the basis that makes both priors diagonal. The form is finished.
    """
    k = form.problem.columns.n_factors
    ratio = np.ones(k)
    size = np.ones(k)
    for side, basis in enumerate(balanced(form)):
        counts = form.problem.grouped(side).counts.astype(float)
        squares = np.zeros(k)
        packed = np.zeros(form.spread.tables[side].shape[1])
        for start in range(0, len(counts), ROWS):
            some = slice(start, start + ROWS)
            W = form.means[side][some, :k].astype(np.float64) @ basis
            squares += counts[some] @ (W**2)
            packed += counts[some] @ form.spread.tables[side][some]
        S = form.spread.to_square(packed)
        noise = np.diag(basis.T @ S[:k, :k] @ basis)
        ratio *= 1 + np.minimum(noise / np.maximum(squares, 1e-100), 1e12)
        size *= squares
    lam = np.maximum(ratio - 1, 0)
    overall = float(lam @ size / size.sum()) if size.sum() else 0.0
    return overall / (1 + overall), lam / (1 + lam)
