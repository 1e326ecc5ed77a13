"""The sampling form: rows drawn from the Gaussians that the learned form's equations define.

    Prec_a = (1/sigma^2) sum_b v_b v_b' + P
    u_a ~ N(Prec_a^-1 ((1/sigma^2) sum_b y_ab v_b + P m), Prec_a^-1)

and the same for V, with m, a diagonal P and sigma^2 drawn from their posteriors too (Gibbs
sampling). The chain starts in the basis that makes both learned priors diagonal and alike.

What is kept of a draw is its u_a and the mean of v_b given all u: the same expectation, less noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from overt._types import Array
from overt.completion import kernels
from overt.completion.engine import Engine, empty
from overt.completion.learned import Learned, Prior, balanced
from overt.completion.problem import Problem

SHARE, SMALL = 0.1, 0.05
"""The prior guess of a factor's variance, for values of unit variance, counts like a tenth of the
rows."""


@dataclass
class Sampled:
    """A Markov chain over the factors; `step` draws both sides once.

    Draw t depends on the state before it and on (seed, t) alone, so a chain can be continued.
    """

    problem: Problem
    means: list[Array]
    bias_variances: tuple[float, float]
    noise: float
    seed: int
    steps: int = 0
    burn_in: int = 8
    draws: list[tuple[Array, Array]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.centers = (np.zeros((0, self.problem.width)), np.zeros_like(self.means[1]))

    @classmethod
    def start(cls, learned: Learned, seed: int, burn_in: int = 8) -> Sampled:
        """Begin at a converged learned form."""
        problem, k = learned.problem, learned.problem.n_factors
        means = [w.copy() for w in learned.means]
        for w, basis in zip(means, balanced(learned), strict=True):
            w[:, :k] = (w[:, :k].astype(np.float64) @ basis).astype(w.dtype)
        U, V = (float(prior.covariance[-1, -1]) for prior in learned.priors)
        return cls(problem, means, (U, V), learned.noise, seed, 0, burn_in)

    def step(self, engine: Engine) -> None:
        """Draw the priors, both sides and the noise; keep the draw after the burn-in."""
        self.steps += 1
        error = 0.0
        for side in (0, 1):
            rng = np.random.default_rng([self.seed, self.steps, side])
            error = self._draw(side, self._draw_prior(side, rng), rng, engine)
        rng = np.random.default_rng([self.seed, self.steps, 2])
        self.noise = max(error / rng.chisquare(self.problem.n_ratings), 1e-12)
        if self.steps > self.burn_in:
            self.draws.append((self.means[0].copy(), self.centers[1].copy()))

    def _draw_prior(self, side: int, rng: np.random.Generator) -> Prior:
        """P_ii ~ Gamma((N + nu) / 2, (sum (w_i - m_i)^2 + nu c_i) / 2), m ~ N(mean, 1 / (N P)).

        nu = SHARE N; c_i is SMALL for factors, which keeps those alive that a point estimate would
        shrink away and whose average over draws still helps; for biases it is the learned variance.
        """
        problem, group = self.problem, self.problem.grouped(side)
        free, k = problem.free(side), problem.n_factors
        W = self.means[side][group.counts > 0][:, free].astype(np.float64)
        N, n = W.shape
        mean = W.mean(axis=0)
        expected = np.full(n, SMALL)
        expected[k:] = self.bias_variances[side]
        nu = SHARE * N
        scatter = ((W - mean) ** 2).sum(axis=0) + nu * expected
        precision = rng.gamma((N + nu) / 2, 2 / scatter)
        return Prior(mean + rng.standard_normal(n) / np.sqrt(N * precision), np.diag(precision))

    def _draw(self, side: int, prior: Prior, rng: np.random.Generator, engine: Engine) -> float:
        """Draw one side's rows given the other; return the squared error."""
        problem, group = self.problem, self.problem.grouped(side)
        free, width = problem.free(side), problem.width
        normals = rng.standard_normal((problem.shape[side], len(free)))
        stats = np.zeros((problem.shape[side], 2))
        given = (prior.precision, prior.precision @ prior.mean, self.noise, free)
        none = empty(width)
        shared = (self.means[1 - side], none, np.zeros(width), *given)
        outputs = (self.means[side], self.centers[side], none, stats)
        engine.run(kernels.solve_rows, group, shared, outputs, by_row=(normals,))
        unseen = group.counts == 0
        if unseen.any():
            w = np.ones((int(unseen.sum()), width))
            root = np.linalg.cholesky(prior.covariance)
            w[:, free] = prior.mean + normals[unseen] @ root.T
            self.means[side][unseen] = w
            if len(self.centers[side]):
                w[:, free] = prior.mean
                self.centers[side][unseen] = w
        return float(stats[:, 0].sum())
