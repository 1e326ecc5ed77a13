"""Every pair counts: what was not observed is a zero, which turns completion into ranking.

    y_ab ~ N(u_a . v_b, sigma^2 / (w_ab r_a c_b)),  w = 1 and y = 0 where unobserved,
    w = WEIGHT and y = strength where observed,  u_a ~ N(m, P^-1) and the same for v_b
    S_a^-1 = r_a / sigma^2 (sum_all c_b T_b + (WEIGHT - 1) sum_observed c_b T_b) + P,
    u_a = S_a (r_a WEIGHT / sigma^2 sum_observed c_b y_ab v_b + P m),  T_b = v_b v_b' + S_b
    m = mean of rows,  P^-1 = (sum_a ((u_a - m)(u_a - m)' + S_a) + nu eps 1) / (N + nu)

The first sum is one matrix for all rows, so that a sweep costs what the observed entries cost.
What descends is, per observed entry,

    1/2 sum over pairs of (log 2 pi sigma^2 + E error / sigma^2) + KL of both sides
    + nu/2 (eps tr P - log det P) of both sides,  nu = number of factors, eps = LEAST_VARIANCE.

The precisions r_a and c_b fall like the square root of how much a row or column has chosen, since
its errors are larger. They are taken from the data once, so that every step is an exact block
minimization and the objective never rises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from overt._check import InputError
from overt._types import Array, Floats
from overt.completion.engines import Engine
from overt.completion.forms.features import NOTHING
from overt.completion.forms.noise import Plain
from overt.completion.forms.pairs import WEIGHT, AllPairs, Precisions
from overt.completion.forms.prior import Prior, Sums
from overt.completion.forms.problem import CompletionProblem
from overt.completion.forms.spread import FULL_BYTES, FullSpread, full_bytes
from overt.completion.kernels import Held, Learned
from overt.completion.kernels.full import Everyone, learn_pairs, pack, unpack, weighted_sum

TOL = 5e-3
"""Fall of the objective in one sweep, in nats per observed entry, below which it has settled."""

SMALL = 1 << 20
"""Pairs up to which singular vectors come from the dense matrix."""

LEAST_NOISE = 1e-9
"""Residual variance that is never gone below."""


@dataclass(eq=False)
class NegativeForm(Plain):
    """All pairs of rows and columns that have entries; `step` is one sweep over both sides.

    `history` is the objective after each sweep; it says when to stop.
    """

    problem: CompletionProblem
    means: list[Array]
    spread: FullSpread
    priors: list[Prior]
    noise: float
    rules: tuple[Precisions, Precisions]
    history: list[float] = field(default_factory=list)
    popular: float = 0.0
    recent: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    kind: ClassVar[str] = "negative"

    def __post_init__(self) -> None:
        self.precisions = [
            rule(sums) for rule, sums in zip(self.rules, _sums(self.problem), strict=True)
        ]
        # Of all entries, also while only some rows are solved again.
        self.active = [self.problem.grouped(side).counts > 0 for side in (0, 1)]

    @classmethod
    def start(cls, problem: CompletionProblem, seed: int) -> NegativeForm:
        """Return the form before the first sweep, near the leading singular vectors."""
        k = problem.columns.n_factors
        pairs = float(np.prod(problem.shape))
        size = full_bytes(problem)
        if size > FULL_BYTES:
            raise InputError(
                f"{sum(problem.shape):,} rows and columns with {k} factors take {size >> 20} MiB "
                f"of covariances, {FULL_BYTES >> 20} are the limit; take fewer factors"
            )
        mean = float(problem.by_row.values.sum(dtype=float)) / pairs
        rules = [Precisions.of(sums) for sums in _sums(problem)]
        priors = [Prior(np.zeros(k), np.eye(k)), Prior(np.zeros(k), 100 * np.eye(k))]
        means = [np.zeros((count, k), problem.dtype) for count in problem.shape]
        form = cls(problem, means, FullSpread.start(problem), priors, mean, (rules[0], rules[1]))
        V = form._leading(seed)
        rng = np.random.default_rng([seed, 0])
        means[1][:] = rng.normal(0, 0.1 * mean**0.25, means[1].shape)
        means[1][:, : V.shape[1]] = V
        form.spread.add_means(1, means[1])
        return form

    def over(self, problem: CompletionProblem, popular: float) -> NegativeForm:
        """Return the form of a problem with more entries, to go on from here."""
        rows, cols = (Precisions.of(sums) for sums in _sums(problem))
        given = self.means, self.spread, self.priors, self.noise, (rows, cols)
        return NegativeForm(problem, *given, popular=popular)

    def _leading(self, seed: int) -> Floats:
        """Return V of the U V' nearest to the strengths, errors weighted by r_a c_b."""
        from scipy import sparse

        (m, n), side, (r, c) = self.problem.shape, self.problem.by_row, self.precisions
        values = side.values * np.sqrt(r[side.keys] * c[side.others])
        X = sparse.csr_array((values, (side.keys, side.others)), (m, n))
        if m * n <= SMALL:
            _, s, R = np.linalg.svd(X.toarray(), full_matrices=False)
        else:
            from sklearn.utils.extmath import randomized_svd

            _, s, R = randomized_svd(X, self.means[0].shape[1], n_iter=2, random_state=seed)
        s = s[: self.means[0].shape[1]]
        R = R[: self.means[0].shape[1]]
        return np.asarray((R.T * np.sqrt(s)) * (n / m) ** 0.25 / np.sqrt(c)[:, None])

    def step(self, engine: Engine) -> float:
        """Sweep both sides, the priors and the noise; return the objective per entry."""
        cost = 0.0
        error = 0.0
        for side in (0, 1):
            moment, error, logdets = self.update(side, engine)
            rows = self.problem.grouped(side).rows
            n = self.problem.columns.n_factors
            N = len(rows)
            first = self.means[side][rows].sum(axis=0, dtype=float)
            sums = Sums(N, first, moment, np.zeros((n, n)), np.zeros((0, n)), logdets)
            prior = self.priors[side] = self.priors[side].learn(sums, NOTHING)
            cost += prior.cost(sums, NOTHING) + prior.pseudo_cost
        pairs = float(np.prod([len(self.problem.grouped(side).rows) for side in (0, 1)]))
        self.noise = max(error / pairs, LEAST_NOISE)
        misfit = pairs * (np.log(2 * np.pi * self.noise) + error / pairs / self.noise) / 2
        self.history.append(float((misfit + cost) / self.problem.n_ratings))
        return self.history[-1]

    def settled(self, tol: float) -> bool:
        """Return whether the last sweep changed the objective by at most `tol` nats per entry."""
        return len(self.history) > 1 and abs(self.history[-2] - self.history[-1]) <= tol

    def update(self, side: int, engine: Engine) -> tuple[Floats, float, float]:
        """Update one side; return its summed second moment, expected error and log dets."""
        problem = self.problem
        tables = self.spread.tables
        other = 1 - side
        group = problem.grouped(side)
        prior = self.priors[side]
        c = np.where(self.active[other], self.precisions[other], 0)
        shift = prior.precision @ prior.mean
        everyone = weighted_sum(c, tables[other])
        shared = Everyone(everyone, WEIGHT, prior.precision, shift, self.noise)
        held = Held(self.means[other], tables[other], c.astype(problem.dtype))
        out = Learned(self.means[side], tables[side], np.zeros((problem.shape[side], 2)))
        moments = np.zeros((group.blocked.n_chunks, tables[side].shape[1]))
        own = (self.precisions[side],)
        engine.run(learn_pairs, group.blocked, (held, shared), own, out, moments)
        error, logdets = out.stats.sum(axis=0)
        return unpack(moments.sum(axis=0)), float(error), float(logdets)

    def finish(self) -> None:
        """Leave covariances in the tables; a row without entries gets its prior.

        A column without entries gets what a column that nobody chose is: zeros everywhere.
        """
        for side, (w, table) in enumerate(zip(self.means, self.spread.tables, strict=True)):
            empty = self.problem.grouped(side).counts == 0
            prior = self.priors[side]
            mean = prior.mean
            S = prior.covariance
            if side == 1:
                U = self.means[0].astype(np.float64)
                r = self.precisions[0]
                everyone = (U.T * r) @ U + unpack(weighted_sum(r, self.spread.tables[0]))
                scale = self.precisions[1].max() / self.noise
                S = np.linalg.inv(prior.precision + scale * everyone)
                mean = S @ prior.precision @ prior.mean
            self.spread.add_means(side, w, -1)
            w[empty] = mean
            table[empty] = pack(S)

    @property
    def pairs(self) -> AllPairs:
        """What a model needs to solve for a row."""
        partners = np.where(self.active[1], self.precisions[1], 0.0)
        counts = self.problem.by_col.counts
        return AllPairs(*self.rules, partners, counts / counts.sum(), self.popular, self.recent)

    def arrays(self) -> dict[str, Array]:
        """Return tables, priors, and noise."""
        kept = self.spread.arrays() | {"noise": np.array([self.noise])}
        for side, prior in enumerate(self.priors):
            kept |= prior.arrays(side)
        return kept

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take back tables, priors, and noise."""
        self.spread = self.spread.from_arrays(arrays)
        self.noise = float(arrays["noise"][0])
        self.priors[:] = [Prior.from_arrays(arrays, side) for side in (0, 1)]


def _sums(problem: CompletionProblem) -> list[Floats]:
    """Return the sum of squared values of each row, and of each column."""
    sides = (problem.by_row, problem.by_col)
    squares = [s.values.astype(float) ** 2 for s in sides]
    pairs = zip(sides, squares, strict=True)
    return [np.bincount(s.keys, y, len(s.counts)).astype(float) for s, y in pairs]
