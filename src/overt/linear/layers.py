"""What dropout on every hidden layer does to a deep linear network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial, reduce
from itertools import pairwise

import numpy as np

from overt import equalize, penalty, spectral
from overt._types import Floats
from overt.linear.bounds import Relaxation, relax
from overt.linear.descent import Value, attains, descend, nudged, refine
from overt.linear.effect import NoiseEffect
from overt.linear.regression import DenseRegression
from overt.linear.sampling import LIMIT, Advance

RANDOM_STARTS = 2

ROUGH = 1e-10
"""Accuracy at which numbers of chains are compared."""


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
        return relax(leading, [(self.nu, spectral.SquaredNuclear())], self.regression)

    def product(self, *weights: Floats) -> tuple[Floats, Floats]:
        """(W_(k+1) ... W_2, W_1')."""
        return _product(weights[1:]), weights[0].T

    def penalty(self, *weights: Floats) -> float:
        """Return R, by second moments carried from layer to layer."""
        first, *others = weights
        return float(penalty.deep([self.regression.hidden(first.T).T, *others], self.drop_probs))

    def imbalance(self, *weights: Floats) -> float:
        """R / (nu |W C^(1/2)|_*^2) - 1, zero iff the noisy layers are equalized."""
        nuclear = np.linalg.norm(_product(self._whitened(weights)), "nuc")
        least = self.nu * float(nuclear) ** 2
        return self.penalty(*weights) / least - 1 if least > 0 else 0.0

    def value(self, *weights: Floats) -> tuple[float, Sequence[Floats]]:
        """Return the objective and its gradients."""
        objective, (first, *others) = self.whitened_value(
            self.regression.T, *self._whitened(weights)
        )
        objective += self.regression.residual
        return objective, (self.regression.pull_back(first.T).T, *others)

    def whitened_value(self, T: Floats, *layers: Floats) -> tuple[float, Sequence[Floats]]:
        """Return |T - W|^2 + R and its gradients in whitened coordinates (W_1 L in place of W_1).

        |T|^2 - 2 <T, W> + tr S_(k+1), S_i = W_i (S_(i-1) + lam_(i-1) diag(S_(i-1))) W_i', S_0 = I.
        """
        lams = [p / (1 - p) for p in self.drop_probs]
        first, last = layers[0], layers[-1]
        heads, noisy = [first], [first @ first.T]
        for W, lam in zip(layers[1:], lams, strict=True):
            noisy[-1].flat[:: len(W.T) + 1] *= 1 + lam
            heads.append(W @ heads[-1])
            noisy.append(W @ noisy[-1] @ W.T)
        value = np.sum(T * T) - 2 * np.sum(T * heads[-1]) + np.trace(noisy[-1])
        gradients, back, G = [], T, last.T @ last  # back = W_(i+1)' ... W_(k+1)' T
        gradients.append(2 * (last @ noisy[-2] - T @ heads[-2].T))
        for i in range(len(layers) - 2, -1, -1):
            W, back = layers[i], layers[i + 1].T @ back
            G.flat[:: len(G) + 1] *= 1 + lams[i]
            GW = G @ W
            gradients.append(2 * (GW @ noisy[i - 1] - back @ heads[i - 1].T if i else GW - back))
            G = W.T @ GW
        return float(value), gradients[::-1]

    def best_weights(self) -> Sequence[Floats]:
        """Return weights of the relaxation's map, refined by descent where they are not exact."""
        left, a, right = self.relaxation.kept
        if len(a) == 0:
            return [np.zeros(shape) for shape in self.shapes]
        if len(a) == 1:
            u, v = left[:, 0] * np.sqrt(a[0]), right[:, 0] * np.sqrt(a[0])
            return self._unwhitened(equalize.rank_one_deep(u, v, self.widths))
        if sum(p > 0 for p in self.drop_probs) <= 1:
            return self._unwhitened(_chained(left, a, right, self.widths))
        return self._unwhitened(self._refined())

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

    def _refined(self) -> Sequence[Floats]:
        """Return the best descent from equal chains or from random weights.

        The penalty sees W_1 and W_(k+1) up to rotations of inputs and outputs only, so the best
        weights lie in the leading directions of T, as in a two-layer network.
        """
        left, s, right = self.regression.svd
        q = min(*self.widths, len(s))
        m = np.diag(s[:q]) / s[0]
        value = partial(self.whitened_value, m)
        starts = [self._best_chains(s[:q] / s[0], value)]
        enough = attains(self.relaxation.bound) - self.regression.residual
        enough = (enough - float(np.sum(s[q:] ** 2))) / s[0] / s[0]
        tries = len(starts) + RANDOM_STARTS
        # Each rank has a minimum of its own: agreement says nothing, and all starts are tried.
        found = refine(value, starts, enough, tries, needed=tries)
        first, *middle, last = found
        root = s[0] ** (1 / len(found))
        return [
            root * first @ right[:, :q].T,
            *(root * W for W in middle),
            root * left[:, :q] @ last,
        ]

    def _best_chains(self, m: Floats, value: Value) -> list[Floats]:
        """Return the lowest descent from equal chains, one for each of the leading directions.

        `count` chains have |m|^2 - (m_1^2 + ... + m_count^2) / prod_j (1 + lam_j count / d_j) if
        count divides the widths. Descent keeps their rank, so neighbors are tried while they gain.
        """
        lams = [p / (1 - p) for p in self.drop_probs]
        counts = np.arange(1, len(m) + 1)
        pairs = zip(lams, self.widths, strict=True)
        damping = np.prod([1 + lam * counts / d for lam, d in pairs], axis=0)
        found: dict[int, tuple[float, list[Floats]]] = {}

        def reached(count: int) -> float:
            if not 1 <= count <= len(m):
                return np.inf
            if count not in found:
                chains = _chains(m[:count], len(m), damping[count - 1], self.widths)
                # Chains are saddles where mixing gains, and are left only by a nudge.
                layers = descend(value, nudged(*chains), tol=ROUGH)
                found[count] = value(*layers)[0], layers
            return found[count][0]

        best = int(counts[np.argmax(np.cumsum(m**2) / damping)])
        for step in (1, -1):
            while reached(best + step) < reached(best):
                best += step
        return found[best][1]

    def _whitened(self, layers: Sequence[Floats]) -> list[Floats]:
        return [self.regression.whiten(layers[0].T).T, *layers[1:]]

    def _unwhitened(self, layers: Sequence[Floats]) -> list[Floats]:
        return [self.regression.unwhiten(layers[0].T).T, *layers[1:]]


def _chains(m: Floats, q: int, damping: float, widths: Sequence[int]) -> list[Floats]:
    """Return weights (q inputs, q outputs) of diag(m) / damping, each direction on units alone."""
    root = (m / damping) ** (1 / (len(widths) + 1))
    groups = [np.arange(d) * len(m) // d for d in widths]
    members = [np.arange(len(m))[:, None] == group for group in groups]  # (chains, units)
    frames = [member / np.sqrt(member.sum(axis=1, keepdims=True)) for member in members]
    ends = np.eye(q)[: len(m)]
    chain = [ends, *frames, ends]
    return [after.T @ (root[:, None] * before) for before, after in pairwise(chain)]


def _product(layers: Sequence[Floats]) -> Floats:
    return reduce(lambda before, W: W @ before, layers)


def _chained(left: Floats, a: Floats, right: Floats, widths: Sequence[int]) -> list[Floats]:
    """Return weights of left diag(a) right' with every single-layer term of the penalty balanced.

    W_1 = Q_1' S^(1/2) Y', W_i = Q_i' Q_(i-1), W_(k+1) = W S^(1/2) Q_k, Q_i equalizing S at width
    d_i. Exact where one layer is noisy.
    """
    root, units = np.sqrt(a), [np.eye(len(a), d) for d in widths]
    frames = [np.asarray(equalize.equalizer(root[:, None] * unit))[: len(a)] for unit in units]
    first, last = frames[0].T @ (right * root).T, (left * root) @ frames[-1]
    middle = [after.T @ before for before, after in pairwise(frames)]
    return [first, *middle, last]
