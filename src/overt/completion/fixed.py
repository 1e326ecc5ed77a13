"""Dropout with a fixed probability: its objective, lowered by alternating exact solves.

    mean over entries of (y - u_a . v_b)^2 + lam sum_i U_ai^2 V_bi^2        (thesis, Proposition 3)

With V fixed, row a of U solves (sum_b v_b v_b' + lam diag(sum_b v_b o v_b)) u_a = sum_b y_ab v_b
over its entries, and the same for V: the objective never rises, nothing is sampled, and there is no
learning rate; the end may be a local minimum. Biases are columns that are never dropped. `ridge`
adds ridge (|U|^2 + |V|^2) to the sum over entries.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from overt._check import Floats
from overt.completion.engines import Engine, half_sweep
from overt.completion.features import NO_FEATURES
from overt.completion.kernels.rows import FixedSide
from overt.completion.model import FactorModel
from overt.completion.prior import Prior, RowNoise
from overt.completion.problem import CompletionProblem

TOL = 1e-5
"""Relative fall of the objective in one sweep below which it has converged."""


class FixedFit:
    """Factors that descend the objective; `step` is one sweep over both sides."""

    kind: ClassVar[str] = "fixed"
    state: ClassVar[tuple[str, ...]] = ("means", "history")
    features = (NO_FEATURES, NO_FEATURES)
    tables = None

    def __init__(
        self,
        problem: CompletionProblem,
        drop_prob: float | Floats,
        ridge: float,
        seed: int,
    ) -> None:
        self.problem = problem
        # lam = drop_prob / (1 - drop_prob) of factors, 0 of biases.
        self.strength = np.zeros(problem.columns.width)
        probs = np.asarray(drop_prob, dtype=float)
        self.strength[: problem.columns.n_factors] = probs / (1 - probs)
        self.ridge = ridge
        square = float(np.mean(problem.sides[0].values.astype(np.float64) ** 2))
        std = np.sqrt((np.sqrt(square) or 1.0) / problem.columns.n_factors)
        self.means = problem.start(np.random.default_rng([seed, 0]), std)
        self.history: list[float] = []
        n = len(problem.columns.free(0))
        # The ridge, for residuals of variance 1.
        prior = Prior(np.zeros(n), ridge * np.eye(n))
        self.priors = (prior, prior)
        self.noises = [RowNoise.equal(count) for count in problem.shape]

    @property
    def noise(self) -> float:
        """Mean squared residual."""
        return self.problem.sides[0].misfit(self.means) / self.problem.n_ratings

    def step(self, engine: Engine) -> None:
        """Solve for every row, then for every column; record the objective per rating."""
        self._update(0, engine)
        error = self._update(1, engine)
        size = 0.0
        for side, w in enumerate(self.means):
            size += float(
                np.sum(w[:, self.problem.columns.free(side)].astype(np.float64) ** 2)
            )
        self.history.append((error + self.ridge * size) / self.problem.n_ratings)

    def settled(self, tol: float) -> bool:
        """Return whether the last sweep lowered the objective by at most `tol` of itself."""
        if len(self.history) < 2:
            return False
        return self.history[-2] - self.history[-1] <= tol * self.history[-1]

    def _update(self, side: int, engine: Engine) -> float:
        """Solve for one side; return the summed squared error plus dropout penalty."""
        count = self.problem.shape[side]
        weights = np.ones(self.problem.shape[1 - side])
        other = self.means[1 - side]
        fixed = FixedSide(other, other[:, :0], weights, self.strength)
        prior = self.priors[side].for_rows(self.problem.columns, side)
        means = self.means[side]
        shifts = np.zeros((count, len(prior.free)))
        layout = self.problem.sides[side].layout
        shared = (fixed, prior)
        own = (means, means[:, :0])
        out, _ = half_sweep(engine, layout, shared, shifts, np.ones(count), *own)
        return float(out.stats[:, 0].sum())

    def model(self, limits: tuple[float, float]) -> FactorModel:
        """Return the fitted model: empty rows get zeros, both sides of a factor equal norms."""
        k = self.problem.columns.n_factors
        norms = []
        for side, w in enumerate(self.means):
            empty = self.problem.sides[side].counts == 0
            w[np.ix_(empty, self.problem.columns.free(side))] = 0
            factors = w[:, :k].astype(np.float64)
            norms.append(np.linalg.norm(factors, axis=0))
        left, right = norms
        alive = (left > 0) & (right > 0)
        balance = np.zeros(k)
        inverse = np.zeros(k)
        balance[alive] = np.sqrt(right[alive] / left[alive])
        inverse[alive] = 1 / balance[alive]
        U, V = self.means
        U[:, :k] *= balance.astype(U.dtype)
        V[:, :k] *= inverse.astype(V.dtype)
        return FactorModel.of_fit(self, limits)
