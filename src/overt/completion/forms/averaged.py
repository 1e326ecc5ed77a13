"""The sampling form: rows sampled from the Gaussians that the learned form's equations define.

    Prec_a = (1/sigma^2) sum_b v_b v_b' + P
    u_a ~ N(Prec_a^-1 ((1/sigma^2) sum_b y_ab v_b + P m), Prec_a^-1)

and the same for V, with m, g, a diagonal P and sigma^2 sampled from their posteriors too (Gibbs
sampling); the shares of rows and columns in the noise stay as learned. The chain starts in the
basis that makes both learned priors diagonal and alike.

Of each sample V is stored, the mean of u_a given V (the same expectation, less noise), and the law
of that mean, by which a row that was not fitted is folded in the same way.

A model averages the products of these samples with those of the learned means; how far the samples
scatter is how uncertain a prediction is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from overt._types import Array, Bools, Floats
from overt.completion.engines import Engine
from overt.completion.forms.features import Features
from overt.completion.forms.learned import LearnedForm, balanced
from overt.completion.forms.prior import Prior, draw_effects
from overt.completion.forms.problem import CompletionProblem
from overt.completion.kernels import Drawn, Held, dots, gram

PAIRS = 4000
BATCHES = 10
"""Pairs on which samples are compared with the learned means, and batches of samples compared."""


class Draws(NamedTuple):
    """Samples of V, means of U given them, and the laws (m, P, sigma^2, H) of these means.

    W are samples of U: how far the products W V' scatter is how uncertain a prediction is.
    """

    U: Array  # (samples, count + 1, width)
    V: Array
    W: Array
    mean: Floats  # (samples, unknowns)
    precision: Floats
    noise: Floats
    H: Floats  # (samples, scores, unknowns)
    share: Floats  # what each counts; the learned means count the rest of 1
    rows: (
        Bools  # whether a row has entries, (count + 1); otherwise its variance is that of the prior
    )
    cols: Bools

    @classmethod
    def stacked(
        cls,
        draws: Sequence[Mapping[str, Array]],
        problem: CompletionProblem,
        means: Sequence[Array],
    ) -> Draws:
        """Bring samples back to the units of the values; a row never seen is at its prior mean."""
        columns, U, V = problem.columns, *problem.columns.units(problem.scale)
        share = np.full(len(draws), together(draws, problem, means) / len(draws))
        u = U[columns.free(0)]
        stack = {name: np.stack([draw[name] for draw in draws]) for name in draws[0]}
        unseen = [columns.filled(0, mean)[0] for mean in stack["mean"]]
        left = np.concatenate([stack.pop("U"), np.array(unseen)[:, None]], axis=1)
        drawn = np.concatenate([stack.pop("W"), np.array(unseen)[:, None]], axis=1)
        seen = problem.by_col.counts > 0
        unseen = [draw[seen].mean(axis=0, dtype=np.float64) for draw in stack["V"]]
        right = np.concatenate([stack.pop("V"), np.array(unseen)[:, None]], axis=1)
        noise = stack["noise"][:, 0] * problem.scale**2
        return cls(
            (left * U).astype(problem.dtype),
            (right * V).astype(problem.dtype),
            (drawn * U).astype(problem.dtype),
            stack["mean"] * u,
            stack["precision"] / u**2,
            noise,
            stack["H"] * u,
            share,
            *(np.append(group.counts > 0, False) for group in (problem.by_row, problem.by_col)),
        )


def together(
    draws: Sequence[Mapping[str, Array]], problem: CompletionProblem, means: Sequence[Array]
) -> float:
    """Return the weight of all samples beside the learned means: d^2 / (d^2 + e^2).

    Their average is off by e for want of samples, as batches of it show, and the means by d, which
    is what more than e lies between the two; of both, this weight is the closest to the limit of
    many samples. Rows and columns count as often as they have entries. One sample does not show
    its e.
    """
    rows, partners = problem.by_row.sample(PAIRS)
    cols = np.roll(partners, PAIRS // 2)
    found = np.empty((len(draws) + 1, PAIRS))
    for (U, V), out in zip([means, *((d["U"], d["V"]) for d in draws)], found, strict=True):
        dots(rows, cols, U, V, out)
    batches = np.array_split(found[1:], min(BATCHES, len(draws)))
    each = np.array([batch.mean(axis=0) for batch in batches])
    apart = float(np.mean((found[1:].mean(axis=0) - found[0]) ** 2))
    if len(each) < 2 or not apart:
        return 0.0
    return max(0.0, 1 - float(each.var(axis=0, ddof=1).mean()) / len(each) / apart)


@dataclass(frozen=True, eq=False)
class Row:
    """A row that was not fitted: mean and covariance, its noise, and its mean for each sample."""

    mean: Floats
    covariance: Floats
    variance: float
    drawn: Floats  # (samples, width)
    spreads: Floats  # its covariance for each sample, (samples, width, width)
    count: int  # entries it was solved from


BURN_IN = 20
"""Samples that are discarded: the chain starts at one point, where many factors are pruned."""

SHARE = 0.1
SMALL = 0.05
"""The prior guess of a factor's variance, for values of unit variance, counts like a tenth of the
rows."""

LEAST_NOISE = 1e-12
"""Residual variance that is never gone below."""


@dataclass(eq=False)
class SampledForm:
    """A Markov chain over the factors; `step` samples both sides once.

    Sample t depends on the form before it and on (seed, t) alone, so a chain can be continued.
    `history` continues the learned form's, whose last objective is repeated for each sample.
    """

    problem: CompletionProblem
    means: list[Array]
    bias_variances: tuple[float, float]
    noise: float
    weights: tuple[Floats, Floats]
    features: tuple[Features, Features]
    seed: int
    history: list[float]
    learned_sweeps: int
    draws: list[dict[str, Array]] = field(default_factory=list)
    kind: ClassVar[str] = "sampled"

    def __post_init__(self) -> None:
        self._priors: list[Prior | None] = [None, None]
        self._shown = self.means[1].copy()

    @classmethod
    def start(cls, learned: LearnedForm, seed: int) -> SampledForm:
        """Begin at a converged learned form."""
        k = learned.problem.columns.n_factors
        means = [w.copy() for w in learned.means]
        for w, basis in zip(means, balanced(learned), strict=True):
            w[:, :k] = (w[:, :k].astype(np.float64) @ basis).astype(w.dtype)
        U, V = (float(prior.covariance[-1, -1]) for prior in learned.priors)
        weights = learned.noises[0].weights, learned.noises[1].weights
        used = zip(learned.features, learned.priors, strict=True)
        left, right = (f if prior.effects is not None else f.without() for f, prior in used)
        history = list(learned.history)
        return cls(
            learned.problem,
            means,
            (U, V),
            learned.noise,
            weights,
            (left, right),
            seed,
            history,
            len(history),
        )

    def step(self, engine: Engine) -> float:
        """Sample the priors, both sides and the noise; store the sample after the burn-in."""
        self.history.append(self.history[-1])
        t = len(self.history) - self.learned_sweeps
        kept = {"V": self._shown}
        for side in (0, 1):
            rng = np.random.default_rng([self.seed, t, side])
            prior = self._priors[side] = self._draw_prior(side, rng)
            out = self._draw(side, prior, rng, engine)
            if side == 0:
                kept |= {"U": out.centers, "W": out.means.copy(), **_law(prior, self.noise)}
        self._shown = np.where((self.problem.by_col.counts > 0)[:, None], out.means, out.centers)
        rng = np.random.default_rng([self.seed, t, 2])
        error = float(self.weights[1] @ out.stats[:, 0])
        self.noise = max(error / rng.chisquare(self.problem.n_ratings), LEAST_NOISE)
        if self.n_kept:
            self.draws.append(kept)
        return self.history[-1]

    @property
    def n_kept(self) -> int:
        """Number of samples after the burn-in."""
        return max(0, len(self.history) - self.learned_sweeps - BURN_IN)

    def settled(self, tol: float) -> bool:
        """Return False: a chain never settles."""
        return False

    def arrays(self) -> dict[str, Array]:
        """Return noise and priors; each sample is stored separately, once."""
        kept = {"noise": np.array([self.noise]), "shown": self._shown}
        for side, prior in enumerate(self._priors):
            kept |= {} if prior is None else prior.arrays(side)
        return kept

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take back noise and priors."""
        self.noise = float(arrays["noise"][0])
        self._shown = arrays["shown"]
        self._priors = [Prior.from_arrays(arrays, side) for side in (0, 1)]

    def _draw_prior(self, side: int, rng: np.random.Generator) -> Prior:
        """P_ii ~ Gamma((N + nu) / 2, (sum (w_i - g_i - m_i)^2 + nu c_i) / 2), m ~ N(., 1 / (N P)).

        nu = SHARE N; c_i is SMALL for factors: it preserves factors that a point estimate would
        shrink away and whose average over samples still helps; for biases it is the learned
        variance. The first P is 1 / c: learned means are not samples, and scatter too little.
        """
        columns = self.problem.columns
        group = self.problem.grouped(side)
        W = self.means[side][:, columns.free(side)].astype(np.float64)[group.counts > 0]
        N, n = W.shape
        expected = np.full(n, SMALL)
        expected[columns.n_factors :] = self.bias_variances[side]
        last = self._priors[side]
        effects = None
        features = self.features[side]
        if len(features.K):
            mean = W.mean(axis=0)
            variances = expected
            scales = np.zeros((len(features.directions.parts), n))
            if last is not None:
                mean = last.mean
                variances = 1 / np.diag(last.precision)
                scales = scales if last.effects is None else last.effects.scales
            A = features.scores[features.active]
            effects = draw_effects(mean, variances, A.T @ W, features, scales, rng)
            W = W - A @ effects.H
        mean = W.mean(axis=0)
        nu = SHARE * N
        scatter = ((W - mean) ** 2).sum(axis=0) + nu * expected
        precision = rng.gamma((N + nu) / 2, 2 / scatter) if last is not None else 1 / expected
        mean = mean + rng.standard_normal(n) / np.sqrt(N * precision)
        return Prior(mean, np.diag(precision), effects)

    def _draw(self, side: int, prior: Prior, rng: np.random.Generator, engine: Engine) -> Drawn:
        """Draw one side's rows given the other."""
        columns = self.problem.columns
        group = self.problem.grouped(side)
        free = columns.free(side)
        count = self.problem.shape[side]
        normals = rng.standard_normal((count, len(free)))
        expected = prior.means(self.features[side].scores)
        held = Held(self.means[1 - side], np.zeros(columns.width), self.weights[1 - side])
        out = Drawn(self.means[side], np.ones_like(self.means[side]), np.zeros((count, 2)))
        shared = (held, prior.for_rows(columns, side))
        by_row = expected @ prior.precision, self.weights[side] / self.noise, normals
        engine.run(gram.draw_rows, group.gathered, shared, by_row, out)
        unseen = group.counts == 0
        if unseen.any():
            out.centers[np.ix_(unseen, free)] = expected[unseen]
            drawn = expected + normals / np.sqrt(np.diag(prior.precision))
            out.means[np.ix_(unseen, free)] = drawn[unseen]
        return out


def _law(prior: Prior, noise: float) -> dict[str, Array]:
    """Return m, the diagonal of P, sigma^2 and H: the law of a sample's rows."""
    H = np.zeros((0, len(prior.mean))) if prior.effects is None else prior.effects.H
    return {
        "mean": prior.mean,
        "precision": np.diag(prior.precision),
        "noise": np.array([noise]),
        "H": H,
    }
