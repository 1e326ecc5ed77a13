"""The sampling form: rows drawn from the Gaussians that the learned form's equations define.

    Prec_a = (1/sigma^2) sum_b v_b v_b' + P
    u_a ~ N(Prec_a^-1 ((1/sigma^2) sum_b y_ab v_b + P m), Prec_a^-1)

and the same for V, with m, a diagonal P and sigma^2 drawn from their posteriors too (Gibbs
sampling). The chain starts in the basis that makes both learned priors diagonal and alike.

What is kept of a draw is its u_a and the mean of v_b given all u: the same expectation, less noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from overt._types import Array
from overt.completion.engines import Engine
from overt.completion.forms.learned import LearnedForm, balanced
from overt.completion.forms.problem import CompletionProblem
from overt.completion.forms.spread import Prior
from overt.completion.kernels import Drawn, Held, gram

BURN_IN = 8
"""Draws that are not kept: the chain starts at one point."""

SHARE, SMALL = 0.1, 0.05
"""The prior guess of a factor's variance, for values of unit variance, counts like a tenth of the
rows."""

LEAST_NOISE = 1e-12
"""Residual variance that is never gone below."""


@dataclass(eq=False)
class SampledForm:
    """A Markov chain over the factors; `step` draws both sides once.

    Draw t depends on the form before it and on (seed, t) alone, so a chain can be continued.
    `history` goes on from the learned form's, whose last objective is repeated for each draw.
    """

    problem: CompletionProblem
    means: list[Array]
    bias_variances: tuple[float, float]
    noise: float
    seed: int
    history: list[float]
    learned_sweeps: int
    draws: list[tuple[Array, Array]] = field(default_factory=list)
    kind: ClassVar[str] = "sampled"

    def __post_init__(self) -> None:
        self._centers = [np.zeros_like(w) for w in self.means]

    @classmethod
    def start(cls, learned: LearnedForm, seed: int) -> SampledForm:
        """Begin at a converged learned form."""
        k = learned.problem.columns.n_factors
        means = [w.copy() for w in learned.means]
        for w, basis in zip(means, balanced(learned), strict=True):
            w[:, :k] = (w[:, :k].astype(np.float64) @ basis).astype(w.dtype)
        U, V = (float(prior.covariance[-1, -1]) for prior in learned.priors)
        history = list(learned.history)
        return cls(learned.problem, means, (U, V), learned.noise, seed, history, len(history))

    def step(self, engine: Engine) -> float:
        """Draw the priors, both sides and the noise; keep the draw after the burn-in."""
        self.history.append(self.history[-1])
        t, error = len(self.history) - self.learned_sweeps, 0.0
        for side in (0, 1):
            rng = np.random.default_rng([self.seed, t, side])
            error = self._draw(side, self._draw_prior(side, rng), rng, engine)
        rng = np.random.default_rng([self.seed, t, 2])
        self.noise = max(error / rng.chisquare(self.problem.n_ratings), LEAST_NOISE)
        if self.n_kept:
            self.draws.append((self.means[0].copy(), self._centers[1].copy()))
        return self.history[-1]

    @property
    def n_kept(self) -> int:
        """Number of draws after the burn-in."""
        return max(0, len(self.history) - self.learned_sweeps - BURN_IN)

    def settled(self, tol: float) -> bool:
        """Return False: a chain never settles."""
        return False

    def arrays(self) -> dict[str, Array]:
        """Return the noise; draws are kept apart, each once."""
        return {"noise": np.array([self.noise])}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take back the noise."""
        self.noise = float(arrays["noise"][0])

    def _draw_prior(self, side: int, rng: np.random.Generator) -> Prior:
        """P_ii ~ Gamma((N + nu) / 2, (sum (w_i - m_i)^2 + nu c_i) / 2), m ~ N(mean, 1 / (N P)).

        nu = SHARE N; c_i is SMALL for factors, which keeps those alive that a point estimate would
        shrink away and whose average over draws still helps; for biases it is the learned variance.
        """
        columns, group = self.problem.columns, self.problem.grouped(side)
        W = self.means[side][group.counts > 0][:, columns.free(side)].astype(np.float64)
        N, n = W.shape
        mean = W.mean(axis=0)
        expected = np.full(n, SMALL)
        expected[columns.n_factors :] = self.bias_variances[side]
        nu = SHARE * N
        scatter = ((W - mean) ** 2).sum(axis=0) + nu * expected
        precision = rng.gamma((N + nu) / 2, 2 / scatter)
        return Prior(mean + rng.standard_normal(n) / np.sqrt(N * precision), np.diag(precision))

    def _draw(self, side: int, prior: Prior, rng: np.random.Generator, engine: Engine) -> float:
        """Draw one side's rows given the other; return the squared error."""
        columns, group = self.problem.columns, self.problem.grouped(side)
        free, count = columns.free(side), self.problem.shape[side]
        normals = rng.standard_normal((count, len(free)))
        held = Held(self.means[1 - side], np.zeros(columns.width))
        out = Drawn(self.means[side], self._centers[side], np.zeros((count, 2)))
        shared = (held, prior.for_rows(columns, side, self.noise))
        engine.run(gram.draw_rows, group, shared, out, by_row=(normals,))
        unseen = group.counts == 0
        if unseen.any():
            w, _ = columns.filled(side, prior.mean)
            out.centers[unseen] = out.means[unseen] = w
            root = np.linalg.cholesky(prior.covariance)
            out.means[np.ix_(unseen, free)] = prior.mean + normals[unseen] @ root.T
        return float(out.stats[:, 0].sum())
