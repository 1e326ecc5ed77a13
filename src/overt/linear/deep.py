"""Deep linear networks x -> W_(k+1) ... W_1 x with dropout on every hidden layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial, reduce
from itertools import pairwise
from typing import Any, Literal, overload

import numpy as np

from overt import _check, equalize, penalty, spectral
from overt._check import InputError
from overt._types import Floats
from overt.linear import grading
from overt.linear.arguments import regression, target_or_data
from overt.linear.bounds import Relaxation, relax
from overt.linear.descent import refine
from overt.linear.effect import NoiseEffect
from overt.linear.proofs import Proof, prove
from overt.linear.regression import DenseRegression
from overt.linear.sampling import LIMIT, Advance
from overt.linear.training import Rate, train
from overt.noise import Dropout
from overt.results import Certificate, DeepSolution, Trace

RANDOM_STARTS = 4


class DeepLinearNetwork:
    """A deep linear network trained with dropout on its hidden layers.

    The objective is E|y - W_(k+1) D_k W_k ... D_1 W_1 x|^2 with D_i dropout multipliers: the
    squared error plus `penalty.deep`, which is at least nu |W C^(1/2)|_*^2 for the map W.

    Parameters
    ----------
    target
        M (outputs x inputs) with y = M x.
    widths
        Widths of the hidden layers.
    drop_prob
        One probability, or one per hidden layer.
    X, Y
        Data in place of a target, samples x features.
    second_moment
        E[x x'] for a target; the identity if None.

    Examples
    --------
    >>> import numpy as np, overt
    >>> net = overt.DeepLinearNetwork(target=np.diag([4.0, 1.0]), widths=(2, 2), drop_prob=0.5)
    >>> best = net.solve()
    >>> str(best.status), np.round(best.product, 4)[0, 0].item()
    ('optimal', 1.7778)
    """

    @overload
    def __init__(
        self, target: Any, widths: Sequence[int], drop_prob: Any, *, second_moment: Any = None
    ) -> None: ...
    @overload
    def __init__(self, *, X: Any, Y: Any, widths: Sequence[int], drop_prob: Any) -> None: ...
    @target_or_data
    def __init__(
        self,
        target: Any,
        widths: Sequence[int],
        drop_prob: Any,
        *,
        X: Any = None,
        Y: Any = None,
        second_moment: Any = None,
    ) -> None:
        if isinstance(widths, (int, np.integer)):
            widths = (int(widths),)
        self.nu = spectral.nu(widths, drop_prob)
        self.widths = tuple(int(d) for d in widths)
        self.drop_probs = _check.drop_probs(drop_prob, len(self.widths))
        task = regression(target, X, Y, second_moment).dense("train a deep network")
        self.effect = DeepNoise(task, self.widths, self.drop_probs)
        self.shapes = self.effect.shapes

    def penalty(self, weights: Sequence[Any]) -> float:
        """Return what dropout adds to the expected squared error."""
        return self.effect.penalty(*self._checked(weights))

    def objective(self, weights: Sequence[Any]) -> float:
        """Return the expected squared error under dropout, exactly."""
        return grading.objective(self.effect, *self._checked(weights))

    @overload
    def certify(self, weights: Sequence[Any], rigorous: Literal[False] = False) -> Certificate: ...
    @overload
    def certify(self, weights: Sequence[Any], rigorous: Literal[True]) -> Proof: ...
    def certify(self, weights: Sequence[Any], rigorous: bool = False) -> Certificate | Proof:
        """Return how far the weights are from the global optimum; with `rigorous`, as a proof."""
        layers = self._checked(weights)
        if rigorous:
            return prove("deep", Dropout(self.drop_probs), layers, self.effect)
        return grading.certificate(self.effect, *layers)

    @property
    def gap_condition(self) -> bool:
        """s_1 - s_2 >= s_2 / nu: the optimum has rank one and is known (thesis, Theorem 10)."""
        s = self.effect.regression.svd[1]
        second = s[1] if len(s) > 1 else 0.0
        return bool(self.nu * (s[0] - second) >= second)

    def solve(self) -> DeepSolution:
        """Return the best weights that are known, and a certificate.

        Exact under the gap condition, with one hidden layer, and where only one layer is noisy.
        Otherwise the convex envelope gives a lower bound, the weights come from descent, and the
        certificate reports the gap.
        """
        weights = self.effect.best_weights()
        return DeepSolution(tuple(weights), *grading.grade(self.effect, *weights))

    def train(
        self,
        steps: int = 5_000,
        learning_rate: Rate = 1e-2,
        seeds: int | Sequence[int] = 1,
        *,
        batch_size: int = 100,
        gradient: str = "sampled",
        init: Any = None,
        init_scale: float | None = None,
        records: int | Sequence[int] = 40,
        n_jobs: int | None = None,
    ) -> Trace:
        """Run minibatch descent with sampled masks; see `LinearNetwork.train`.

        The trace's imbalance is the equalization gap R / (nu |W C^(1/2)|_*^2) - 1.
        """
        sampled = partial(self.effect.steps, batch_size=_check.whole("batch_size", batch_size))
        if init_scale is None:  # each layer keeps the size of what passes through it
            init_scale = float(1 / np.sqrt(np.mean([inputs for _, inputs in self.shapes])))
        return train(
            self.effect, sampled, steps=steps, learning_rate=learning_rate, seeds=seeds,
            gradient=gradient, init=None if init is None else self._checked(init),
            init_scale=init_scale, records=records, n_jobs=n_jobs,
        )  # fmt: skip

    def _checked(self, weights: Sequence[Any]) -> list[Floats]:
        layers = [np.asarray(W, dtype=float) for W in _check.chain(list(weights))]
        shapes = [W.shape for W in layers]
        if shapes != self.shapes:
            raise InputError(f"weights must have the shapes {self.shapes}, got {shapes}")
        return layers


class DeepNoise(NoiseEffect):
    """Dropout on every hidden layer, each with a probability of its own."""

    def __init__(
        self, regression: DenseRegression, widths: Sequence[int], drop_probs: Sequence[float]
    ) -> None:
        self.regression: DenseRegression = regression
        self.widths, self.drop_probs = widths, drop_probs
        self.nu = spectral.nu(widths, drop_probs)
        sizes = regression.inputs, *widths, regression.outputs
        self.shapes = [(after, before) for before, after in pairwise(sizes)]

    @cached_property
    def relaxation(self) -> Relaxation:
        """The target with nu |W C^(1/2)|_*^2 as penalty, its rank capped by the narrowest layer."""
        leading = partial(self.regression.leading, min(self.widths))
        return relax(leading, [(self.nu, spectral.SquaredNuclear())], self.regression.residual)

    def product(self, *weights: Floats) -> tuple[Floats, Floats]:
        """(W_(k+1) ... W_2, W_1')."""
        return _product(weights[1:]), weights[0].T

    def penalty(self, *weights: Floats) -> float:
        """Return R, by second moments carried from layer to layer."""
        return float(penalty.deep(self._whitened(weights), self.drop_probs))

    def imbalance(self, *weights: Floats) -> float:
        """R / (nu |W C^(1/2)|_*^2) - 1, zero iff the noisy layers are equalized."""
        nuclear = np.linalg.norm(_product(self._whitened(weights)), "nuc")
        least = self.nu * float(nuclear) ** 2
        return self.penalty(*weights) / least - 1 if least > 0 else 0.0

    def value(self, *weights: Floats) -> tuple[float, Sequence[Floats]]:
        """Return the objective and its gradients."""
        objective, (first, *others) = self.whitened_value(*self._whitened(weights))
        return objective, (self.regression.pull_back(first.T).T, *others)

    def whitened_value(self, *layers: Floats) -> tuple[float, Sequence[Floats]]:
        """Return the objective and its gradients in whitened coordinates (W_1 L in place of W_1).

        E|y|^2 - 2 <T, W> + tr S_(k+1), S_i = W_i (S_(i-1) + lam_(i-1) diag(S_(i-1))) W_i'.
        """
        T, lams = self.regression.T, [p / (1 - p) for p in self.drop_probs]
        heads, noisy = [np.eye(layers[0].shape[1])], [np.eye(layers[0].shape[1])]
        for W, lam in zip(layers[:-1], lams, strict=True):
            heads.append(W @ heads[-1])
            S = W @ noisy[-1] @ W.T
            noisy.append(S + lam * np.diag(np.diag(S)))
        last = layers[-1]
        value = self.regression.scale - 2 * np.sum(T * (last @ heads[-1]))
        value += np.sum((last @ noisy[-1]) * last)
        gradients, tail, G = [], np.eye(T.shape[0]), np.eye(T.shape[0])
        for i, W in reversed(list(enumerate(layers))):
            gradients.append(2 * (G @ W @ noisy[i] - tail.T @ T @ heads[i].T))
            if i:
                tail, G = tail @ W, W.T @ G @ W
                G = G + lams[i - 1] * np.diag(np.diag(G))
        return float(value), gradients[::-1]

    def best_weights(self) -> Sequence[Floats]:
        """Return weights of the relaxation's map, refined by descent where they are not exact."""
        left, a, right = self.relaxation.kept
        if len(a) == 0:
            return [np.zeros(shape) for shape in self.shapes]
        if len(a) == 1:
            u, v = left[:, 0] * np.sqrt(a[0]), right[:, 0] * np.sqrt(a[0])
            return self._unwhitened(equalize.rank_one_deep(u, v, self.widths))
        start = _chained(left, a, right, self.widths)
        if sum(p > 0 for p in self.drop_probs) <= 1:
            return self._unwhitened(start)
        return self._unwhitened(self._refined(start))

    def steps(self, rng: np.random.Generator, batch_size: int = 1) -> Advance:
        """Return minibatch steps, one mask per sample."""

        def advance(weights: list[Floats], rates: Floats) -> int:
            for step, rate in enumerate(rates):
                x, y = self.regression.samples.batch(batch_size, rng)
                gradients = self._sampled_gradients(weights, x, y, rng)
                if gradients is None:
                    return step
                for W, gradient in zip(weights, gradients, strict=True):
                    W -= rate * gradient
            return len(rates)

        return advance

    def _sampled_gradients(
        self, weights: list[Floats], x: Floats, y: Floats, rng: np.random.Generator
    ) -> list[Floats] | None:
        """Return the gradients of half the mean squared error under one mask per sample."""
        inputs, masks, a = [x], [], x
        for W, p in zip(weights[:-1], self.drop_probs, strict=True):
            mask = (rng.random((len(x), W.shape[0])) >= p) / (1 - p)
            a = (a @ W.T) * mask
            masks.append(mask)
            inputs.append(a)
        delta = (a @ weights[-1].T - y) / len(x)
        if not np.sum(delta**2) < LIMIT:
            return None
        gradients = []
        for i in range(len(weights) - 1, -1, -1):
            gradients.append(delta.T @ inputs[i])
            if i:
                delta = (delta @ weights[i]) * masks[i - 1]
        return gradients[::-1]

    def _refined(self, start: list[Floats]) -> Sequence[Floats]:
        """Return the best descent from the bound's map, the best rank one, or random weights."""
        left, s, right = self.regression.svd
        root = np.sqrt(s[0] / (1 + self.nu))
        rng, scale = np.random.default_rng(0), [np.sqrt(np.mean(W**2)) for W in start]
        one = equalize.rank_one_deep(left[:, 0] * root, right[:, 0] * root, self.widths)

        def scattered(spread: float) -> list[Floats]:
            sizes = zip(scale, start, strict=True)
            return [spread * size * rng.standard_normal(W.shape) for size, W in sizes]

        # A saddle, such as the best rank one, is left only by a nudge.
        nudged = [W + nudge for W, nudge in zip(one, scattered(0.01), strict=True)]
        starts = [start, nudged, *(scattered(1.0) for _ in range(RANDOM_STARTS))]
        return refine(self.whitened_value, starts, self.relaxation.bound, tries=len(starts))

    def _whitened(self, layers: Sequence[Floats]) -> list[Floats]:
        return [self.regression.whiten(layers[0].T).T, *layers[1:]]

    def _unwhitened(self, layers: Sequence[Floats]) -> list[Floats]:
        return [self.regression.unwhiten(layers[0].T).T, *layers[1:]]


def _product(layers: Sequence[Floats]) -> Floats:
    return reduce(lambda before, W: W @ before, layers)


def _chained(left: Floats, a: Floats, right: Floats, widths: Sequence[int]) -> list[Floats]:
    """Return weights of left diag(a) right' with every single-layer term of the penalty balanced.

    W_1 = Q_1' S^(1/2) Y', W_i = Q_i' Q_(i-1), W_(k+1) = W S^(1/2) Q_k, Q_i equalizing S at width
    d_i. Exact where one layer is noisy; otherwise a start for descent.
    """
    unit, root = np.eye(len(a)), np.sqrt(a)
    frames = [
        np.asarray(equalize.balanced_factors(unit, a, unit, d)[0]) / root[:, None] for d in widths
    ]
    first, last = frames[0].T @ (right * root).T, (left * root) @ frames[-1]
    middle = [after.T @ before for before, after in pairwise(frames)]
    return [first, *middle, last]
