"""Samples of the posterior that predictions are averaged over (Gibbs sampling).

    Prec_a = (1/sigma^2) sum_b v_b v_b' + P
    u_a ~ N(Prec_a^-1 ((1/sigma^2) sum_b y_ab v_b + P m), Prec_a^-1)

and the same for V, with m, g, a diagonal P and sigma^2 sampled from their posteriors too; the
shares of rows and columns in the noise stay as learned. The chain starts at a learned fit, in the
basis that makes both learned priors diagonal and alike.

Of each sample V is stored, the mean of u_a given V (the same expectation, less noise), and the law
of that mean, by which a row that was not fitted is folded in the same way.

A model averages the products of these samples with the products of the learned means. The scatter
of the samples is the uncertainty of a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from overt._check import Array, Bools, Floats
from overt.completion.engines import Engine, half_sweep
from overt.completion.kernels.rows import FixedSide, Rows, dots
from overt.completion.learned import LearnedFit, balanced_bases
from overt.completion.model import FactorModel, Row, RowSums
from overt.completion.prior import Prior, sample_effects


@dataclass(frozen=True)
class SamplingOptions:
    """Numbers of the method, tuned on MovieLens 100K (u2 to u5)."""

    burn_in: int = 20
    """Samples that are discarded: the chain starts at one point, where many factors are pruned."""

    prior_rows: float = 0.1
    """The prior guess of a factor's variance counts like this share of the rows."""

    prior_variance: float = 0.05
    """That guess at most, for values of unit variance."""

    regrowth: float = 10.0
    """The guess is at most this many times the variance that the fit learned. Where factors shrank
    to nothing, guesses of .05 let the samples fit the noise with them: simulated matrices of rank 1
    to 5 lost up to a quarter in RMSE, and 90 % intervals of entries they had seen covered 64 to
    86 %. On MovieLens 100K factors keep so much variance that this limit does not bind; parts
    of it with 40 or 100 users lose .004 (RMSE), their gain by averaging."""

    means_weight: float = 12.0
    """The learned means count like this many samples. Between 7 and 25 the errors of MovieLens 100K
    differ by .0001."""


OPTIONS = SamplingOptions()

MIN_NOISE = 1e-12
"""Smallest residual variance."""


class RowSamples(NamedTuple):
    """A row that was not fitted, given each sample: its means, samples, number of entries."""

    means: Floats  # (samples, width)
    rows: Floats
    n_entries: int


@dataclass(frozen=True, eq=False)
class AveragedModel:
    """A learned model, wrapped with samples: predictions average both.

    The means have no sampling noise and the samples have more factors; their errors differ, so
    that the two together do better than either.
    """

    has_std: ClassVar[bool] = True
    base: FactorModel
    U: Array  # means of U given each sample of V, (samples, count + 1, width)
    V: Array
    W: Array  # samples of U: the scatter of W V' is the uncertainty of a prediction
    mean: Floats  # (samples, unknowns)
    precision: Floats
    noise: Floats
    H: Floats  # (samples, scores, unknowns)
    share: float  # weight of each sample; the learned means have the rest of 1
    # Rows with entries and features. The others have the learned mean and variance: samples take
    # the average for features that a row does not have.
    seen: tuple[Bools, Bools]

    @classmethod
    def of_chain(cls, base: FactorModel, chain: SampledFit) -> AveragedModel:
        """Stack samples; a row never seen is at its prior mean."""
        problem = chain.problem
        columns = problem.columns
        samples = chain.samples
        stack = {
            name: np.stack([sample[name] for sample in samples]) for name in samples[0]
        }
        new_row = np.array([columns.fill(0, mean)[0] for mean in stack["mean"]])[
            :, None
        ]
        by_row, by_col = (side.counts > 0 for side in problem.sides)
        new_col = stack["V"][:, by_col].mean(axis=1, dtype=np.float64)[:, None]

        def extended(name: str, more: Floats) -> Array:
            both = np.concatenate([stack[name], more], axis=1)
            return both.astype(problem.dtype)

        return cls(
            base,
            extended("U", new_row),
            extended("V", new_col),
            extended("W", new_row),
            stack["mean"],
            stack["precision"],
            stack["noise"][:, 0],
            stack["H"],
            1 / (len(samples) + OPTIONS.means_weight),
            (
                np.append(by_row & base.has_given(0), False),
                np.append(by_col & base.has_given(1), False),
            ),
        )

    def _products(self, rows: Array, cols: Array) -> Floats:
        """Return the average of u_a . v_b over learned means and samples."""
        learned = np.empty(len(rows))
        dots(rows, cols, *self.base.means, learned)
        one = np.empty(len(rows))
        total = np.zeros(len(rows))
        for U, V in zip(self.U, self.V, strict=True):
            dots(rows, cols, U, V, one)
            total += one - learned
        sampled = self.seen[0][rows] & self.seen[1][cols]
        return learned + self.share * np.where(sampled, total, 0)

    def predict(self, rows: Array, cols: Array) -> Floats:
        """Return the averaged prediction, clipped."""
        base = self.base
        return base.clip(base.center + base.scale * self._products(rows, cols))

    def block(self, rows: Array) -> Floats:
        """Return the predictions of some rows for all columns and an unseen one, not clipped."""
        base = self.base
        learned = base.standardized(base.block(rows))
        total = np.zeros_like(learned)
        for U, V in zip(self.U, self.V, strict=True):
            total += U[rows] @ V.T - learned
        sampled = self.seen[0][rows][:, None] & self.seen[1]
        products = learned + self.share * np.where(sampled, total, 0)
        return base.center + base.scale * products

    def variance(self, rows: Array, cols: Array) -> Floats:
        """Predictive variance: the scatter of the samples about the prediction, and the noise."""
        variance = self.base.variance(rows, cols)
        sampled = self.seen[0][rows] & self.seen[1][cols]
        a = rows[sampled]
        b = cols[sampled]
        center = self._products(a, b)
        scatter = np.zeros(len(a))
        one = np.empty(len(a))
        for W, V in zip(self.W, self.V, strict=True):
            dots(a, b, W, V, one)
            scatter += (one - center) ** 2
        noises = self.base.noises[0].variances[a] * self.base.noises[1].variances[b]
        own = scatter / len(self.V) + self.noise.mean() * noises
        variance[sampled] = self.base.scale**2 * own
        return variance

    def fold(self, partners: Array, values: Array, features: Any = None) -> Row:
        """Return a row with these entries and features, also given each sample."""
        base = self.base
        row = base.fold(partners, values, features)
        free = base.columns.free(0)
        scores, unknown = base.scores(partners, features)
        _, y, weights, _ = base.row_sums(partners, values)
        normals = np.random.default_rng(0).standard_normal((len(self.V), len(free)))
        means = np.ones((len(self.V), base.columns.width))
        rows = means.copy()
        for d, H in enumerate(self.H):
            W = self.V[d, partners].astype(np.float64)
            sums = RowSums(W, y, weights, (W.T * weights) @ W)
            center = self.mean[d]
            covariance = np.diag(1 / self.precision[d])
            if len(H):
                center = center + scores @ H
                covariance = covariance + H.T @ unknown @ H
            prior_precision = np.linalg.inv(covariance)
            precision = row.weight / self.noise[d]
            w, S = base.solve_row(sums, precision, center, prior_precision)
            means[d, free] = w
            rows[d, free] = w + np.linalg.cholesky(S) @ normals[d]
        return replace(row, samples=RowSamples(means, rows, len(partners)))

    def of_row(self, row: Row) -> AveragedModel:
        """Return the model of a row that was not fitted alone, at position 0."""
        has_entries = row.samples.n_entries > 0
        U, W = (
            np.stack([new, rows[:, -1]], axis=1).astype(rows.dtype)
            for new, rows in ((row.samples.means, self.U), (row.samples.rows, self.W))
        )
        seen = (np.array([has_entries, False]), self.seen[1])
        return replace(self, base=self.base.of_row(row), U=U, W=W, seen=seen)


class SampledFit:
    """A Markov chain over the factors; `step` samples both sides once.

    Sample t depends on the state before it and on (seed, t) alone.
    """

    def __init__(self, learned: LearnedFit, seed: int) -> None:
        k = learned.problem.columns.n_factors
        self.problem = learned.problem
        self.means = [w.copy() for w in learned.means]
        self.expected_variances: list[Floats] = []
        bases = balanced_bases(learned)
        for w, basis, prior in zip(self.means, bases, learned.priors, strict=True):
            turned = w[:, :k].astype(np.float64) @ basis
            w[:, :k] = turned
            covariance = prior.covariance
            kept = np.diag(basis.T @ covariance[:k, :k] @ basis)
            factors = np.minimum(OPTIONS.prior_variance, OPTIONS.regrowth * kept)
            biases = np.diag(covariance)[k:]
            self.expected_variances.append(np.append(factors, biases))
        self.noise = learned.noise
        self.weights = [noise.weights for noise in learned.noises]
        self.features = [
            known if prior.effects is not None else known.without()
            for known, prior in zip(learned.features, learned.priors, strict=True)
        ]
        self.seed = seed
        self.steps = 0
        self.samples: list[Mapping[str, Array]] = []
        self.priors: list[Prior | None] = [None, None]
        self.conditional_V = self.means[1].copy()

    def step(self, engine: Engine) -> None:
        """Sample the priors, both sides and the noise; store the sample after the burn-in."""
        self.steps += 1
        sample: dict[str, Array] = {"V": self.conditional_V}
        for side in (0, 1):
            rng = np.random.default_rng([self.seed, self.steps, side])
            prior = self._sample_prior(side, rng)
            self.priors[side] = prior
            out = self._sample_rows(side, prior, rng, engine)
            if side == 0:
                law = _law(prior, self.noise)
                sample |= {"U": out.centers, "W": out.means.copy()} | law
        seen = (self.problem.sides[1].counts > 0)[:, None]
        self.conditional_V = np.where(seen, out.means, out.centers)
        rng = np.random.default_rng([self.seed, self.steps, 2])
        error = float(self.weights[1] @ out.stats[:, 0])
        self.noise = max(error / rng.chisquare(self.problem.n_ratings), MIN_NOISE)
        if self.steps > OPTIONS.burn_in:
            self.samples.append(sample)

    def _sample_prior(self, side: int, rng: np.random.Generator) -> Prior:
        """P_ii ~ Gamma((N + nu) / 2, (sum (w_i - g_i - m_i)^2 + nu c_i) / 2), m ~ N(., 1 / (N P)).

        nu = `prior_rows` N; c_i is `prior_variance` for factors: it preserves factors that a point
        estimate shrinks and whose average over samples still helps, but at most `regrowth` times
        the learned variance, so that factors of which nothing was left stay out; for biases it is
        the learned variance. The first P is 1 / c: learned means are not samples, and scatter too
        little.
        """
        free = self.problem.columns.free(side)
        active = self.problem.sides[side].counts > 0
        W = self.means[side][:, free].astype(np.float64)[active]
        N, n = W.shape
        expected = self.expected_variances[side]
        last = self.priors[side]
        effects = None
        features = self.features[side]
        if len(features.K):
            mean = W.mean(axis=0)
            variances = expected
            scales = np.zeros((len(features.directions.parts), n))
            if last is not None:
                mean = last.mean
                variances = 1 / np.diag(last.precision)
                if last.effects is not None:
                    scales = last.effects.scales
            A = features.scores[features.active]
            effects = sample_effects(mean, variances, A.T @ W, features, scales, rng)
            W = W - A @ effects.H
        mean = W.mean(axis=0)
        nu = OPTIONS.prior_rows * N
        scatter = ((W - mean) ** 2).sum(axis=0) + nu * expected
        precision = 1 / expected
        if last is not None:
            precision = rng.gamma((N + nu) / 2, 2 / scatter)
        mean = mean + rng.standard_normal(n) / np.sqrt(N * precision)
        return Prior(mean, np.diag(precision), effects)

    def _sample_rows(
        self, side: int, prior: Prior, rng: np.random.Generator, engine: Engine
    ) -> Rows:
        """Sample one side's rows given the other."""
        columns = self.problem.columns
        group = self.problem.sides[side]
        free = columns.free(side)
        count = self.problem.shape[side]
        normals = rng.standard_normal((count, len(free)))
        expected = prior.means(self.features[side].scores)
        other = self.means[1 - side]
        fixed = FixedSide(
            other, other[:, :0], self.weights[1 - side], np.zeros(columns.width)
        )
        means = self.means[side]
        shifts = expected @ prior.precision
        precisions = self.weights[side] / self.noise
        shared = (fixed, prior.for_rows(columns, side))
        own = (means, means[:, :0], normals)
        out, _ = half_sweep(engine, group.layout, shared, shifts, precisions, *own)
        unseen = group.counts == 0
        if unseen.any():
            samples = expected + normals / np.sqrt(np.diag(prior.precision))
            out.centers[np.ix_(unseen, free)] = expected[unseen]
            out.means[np.ix_(unseen, free)] = samples[unseen]
        return out


def _law(prior: Prior, noise: float) -> dict[str, Array]:
    """Return m, the diagonal of P, sigma^2 and H: the law of a sample's rows."""
    n = len(prior.mean)
    return {
        "mean": prior.mean,
        "precision": np.diag(prior.precision),
        "noise": np.array([noise]),
        "H": np.zeros((0, n)) if prior.effects is None else prior.effects.H,
    }
