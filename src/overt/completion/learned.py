"""Learned noise: the dropout of each factor row estimated instead of fixed.

Every row carries a mean w and a covariance S, each side a Gaussian prior (m, P):

    Prec_a = (1/sigma^2) sum_b (v_b v_b' + S_b) + P
    u_a = Prec_a^-1 ((1/sigma^2) sum_b y_ab v_b + P m),  S_a = Prec_a^-1, same for V,
    m = mean of rows,  P^-1 = sum_a ((u_a - m)(u_a - m)' + S_a) / (N + nu),
    sigma^2 = mean expected squared residual.

S_b = lam diag(v_b o v_b) and P = 0 would be dropout with a fixed probability. What descends is the
negative evidence bound per rating, minus nu/2 log det P for each side: nu = the number of unknowns
of a row keeps the priors from fitting noise where there are few rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from overt._types import Array, Floats
from overt.completion import kernels
from overt.completion.engine import Engine, empty
from overt.completion.problem import Problem
from overt.completion.reference import pack, unpack

FULL_BYTES = 2 << 30
"""Full row covariances are kept where their tables fit into this many bytes."""

START = 0.1
"""Standard deviation of the column factors at the start, for values of unit variance."""

HELD_SWEEPS, HELD_NOISE = 2, 0.5
"""The noise starts at half the variance of the values and does not rise in the first sweeps: it
would be overestimated before the factors have found anything, and sparse data would lose them."""


@dataclass(frozen=True)
class Prior:
    """N(mean, precision^-1) over the unknowns of a row."""

    mean: Floats
    precision: Floats

    @property
    def covariance(self) -> Floats:
        """precision^-1."""
        return np.asarray(np.linalg.inv(self.precision), dtype=np.float64)


def full_covariances(problem: Problem) -> bool:
    """Return whether full row covariances fit into FULL_BYTES."""
    size = problem.width * (problem.width + 1) // 2
    return sum(problem.shape) * size * problem.dtype.itemsize <= FULL_BYTES


def balanced(form: Learned) -> tuple[Floats, Floats]:
    """Return bases B_0, B_1 with (U B_0)(V B_1)' = U V' and both priors diagonal and equal.

    Factors come out in order of importance.
    """
    k = form.problem.n_factors
    L = np.linalg.cholesky(form.priors[0].covariance[:k, :k])
    values, Q = np.linalg.eigh(L.T @ form.priors[1].covariance[:k, :k] @ L)
    order = np.argsort(-values)
    basis = np.linalg.solve(L.T, Q[:, order] * np.maximum(values[order], 1e-300) ** 0.25)
    return basis, np.linalg.inv(basis).T


@dataclass
class Learned:
    """The learned form's state; `step` is one sweep over both sides.

    `means` are the two sides' rows. `tables` are packed second moments w w' + S while sweeping with
    full covariances, variances (one per column) with diagonal ones. `history` is the objective
    after each sweep and never rises; `evidence`, the same without nu's part, says when to stop: the
    prior of a factor that is not needed narrows for ever, which changes only the first.
    """

    problem: Problem
    means: list[Array]
    tables: list[Array]
    priors: list[Prior]
    noise: float
    full: bool
    history: list[float] = field(default_factory=list)
    evidence: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, problem: Problem, seed: int, *, full: bool | None = None) -> Learned:
        """Return the state before the first sweep."""
        rng = np.random.default_rng([seed, 0])
        full = full_covariances(problem) if full is None else full
        means = list(problem.start(rng, START))
        n = len(problem.free(0))
        precision = np.eye(n)
        narrow = np.eye(n) / START**2
        if problem.biases:
            precision[-1, -1] = narrow[-1, -1] = 5.0
        if full:
            size = problem.width * (problem.width + 1) // 2
            tables = [np.zeros((count, size), problem.dtype) for count in problem.shape]
            i, j = np.tril_indices(problem.width)
            for t in range(size):
                tables[1][:, t] = means[1][:, i[t]] * means[1][:, j[t]]
        else:
            tables = [np.zeros_like(w) for w in means]
        priors = [Prior(np.zeros(n), precision), Prior(np.zeros(n), narrow)]
        return cls(problem, means, tables, priors, HELD_NOISE, full)

    def step(self, engine: Engine) -> float:
        """Sweep both sides, the priors and the noise; return the objective per rating."""
        complexity, narrow, error = 0.0, 0.0, 0.0
        for side in (0, 1):
            moment, error, logdets = self.update(side, engine)
            prior = self._prior(side, moment)
            self.priors[side] = prior
            N, n = self.problem.grouped(side).n_active, len(prior.mean)
            nu = n
            logdet = np.linalg.slogdet(prior.precision)[1]
            complexity += (nu * n - N * logdet - logdets) / 2
            narrow += nu * logdet / 2
        ratings = self.problem.n_ratings
        floor = 1e-12 if self.problem.dtype == np.float64 else 1e-6
        self.noise = max(error / ratings, floor)
        if len(self.history) < HELD_SWEEPS:
            self.noise = min(self.noise, HELD_NOISE)
        misfit = (np.log(2 * np.pi * self.noise) + error / ratings / self.noise) / 2
        self.evidence.append(float(misfit + complexity / ratings))
        self.history.append(self.evidence[-1] - narrow / ratings)
        return self.history[-1]

    def settled(self, tol: float) -> bool:
        """Return whether the last sweep changed the evidence by at most `tol` nats per rating."""
        return len(self.evidence) > 1 and self.evidence[-2] - self.evidence[-1] <= tol

    def update(self, side: int, engine: Engine) -> tuple[Floats, float, float]:
        """Update one side; return its summed second moment, expected error and log dets."""
        problem, other = self.problem, 1 - side
        group, free, prior = problem.grouped(side), problem.free(side), self.priors[side]
        shift = prior.precision @ prior.mean
        stats = np.zeros((problem.shape[side], 2))
        given = (prior.precision, shift, self.noise, free)
        held, updated = (self.tables[other], self.means[other]), self.means[side]
        if self.full:
            moments = np.zeros((len(group.chunks), self.tables[side].shape[1]))
            learned = (self.tables[side], updated, stats)
            engine.run(kernels.learn_rows, group, (*held, *given), learned, totals=moments)
            moment = unpack(moments.sum(axis=0))
        else:
            none = empty(problem.width)
            shared = (*reversed(held), np.zeros(problem.width), *given)
            solved = (updated, none, self.tables[side], stats)
            engine.run(kernels.solve_rows, group, shared, solved, by_row=(none,))
            active = group.counts > 0
            W = self.means[side][active].astype(np.float64)
            moment = W.T @ W + np.diag(self.tables[side][active].sum(axis=0, dtype=np.float64))
        error, logdets = stats.sum(axis=0)
        return moment, float(error), float(logdets)

    def _prior(self, side: int, moment: Floats) -> Prior:
        """Return m = mean of rows, P^-1 = (sum of second moments about it) / (N + nu)."""
        problem = self.problem
        N, free = problem.grouped(side).n_active, problem.free(side)
        if problem.biases:
            pinned = problem.n_factors + 1 - side
            mean = moment[free, pinned] / N
        else:
            mean = self.means[side][problem.grouped(side).counts > 0].mean(axis=0, dtype=float)
        about = moment[np.ix_(free, free)] - N * np.outer(mean, mean)
        covariance = about / (N + len(free))
        # A factor that is not needed shrinks without end; this keeps the numbers representable.
        covariance += 1e-9 * np.diag(covariance).max() * np.eye(len(free))
        return Prior(mean, np.linalg.inv(covariance))

    def finish(self) -> None:
        """Give rows without entries their prior; turn second moments into covariances."""
        for side in (0, 1):
            self._fill(side)
            if self.full:
                w, table = self.means[side], self.tables[side]
                i, j = np.tril_indices(self.problem.width)
                for t in range(table.shape[1]):
                    exact = w[:, i[t]].astype(np.float64) * w[:, j[t]]
                    table[:, t] -= exact.astype(table.dtype)

    def _fill(self, side: int) -> None:
        problem, prior = self.problem, self.priors[side]
        empty, free = problem.grouped(side).counts == 0, problem.free(side)
        if not empty.any():
            return
        w, S = np.ones(problem.width), np.zeros((problem.width, problem.width))
        w[free], S[np.ix_(free, free)] = prior.mean, prior.covariance
        self.means[side][empty] = w
        self.tables[side][empty] = pack(np.outer(w, w) + S) if self.full else np.diag(S)
