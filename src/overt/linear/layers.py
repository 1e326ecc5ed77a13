"""What dropout on every hidden layer does to a deep linear network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from itertools import pairwise

import numpy as np

from overt import equalize, penalty, spectral
from overt._types import Floats
from overt.linear.bounds import Relaxation, positive
from overt.linear.deep_shares import BestShares, best_shares, noise_cost
from overt.linear.effect import NoiseEffect
from overt.linear.regression import DenseRegression
from overt.linear.sampling import LIMIT, Advance


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
    def noisy(self) -> list[int]:
        """Numbers of the layers with noise."""
        return [layer for layer, p in enumerate(self.drop_probs) if p > 0]

    @cached_property
    def best(self) -> BestShares | None:
        """The best shares of all layers with noise, for the leading values of the target."""
        s = self.regression.svd[1]
        s = s[positive(s)][: min(self.widths)]
        if s[:1].sum() <= 0:
            return None
        lams = [p / (1 - p) for p in self.drop_probs]
        return best_shares(s, np.array([lams[i] / self.widths[i] for i in self.noisy]))

    @cached_property
    def relaxation(self) -> Relaxation:
        """The exact optimum over all weights, with its certified bound."""
        left, s, right = self.regression.svd
        best = self.best
        if best is None:
            return Relaxation(self.regression.residual, left, 0 * s, right, 0)
        count = best.shares.shape[1]
        rest = float(np.sum(s[count:] ** 2))
        a = np.zeros(len(s))
        a[:count] = s[:count] * (1 - self._costs(best))
        bound = self.regression.residual + best.bound + rest
        loss = float(np.sum((s - a) ** 2))
        bound -= self.regression.rounding(bound, loss, float(np.sum(a)))
        return Relaxation(max(bound, 0.0), left, a, right, int(np.sum(positive(a))))

    def _costs(self, best: BestShares) -> Floats:
        """Return 1 - F at the best shares, per direction."""
        if not self.noisy:
            return np.zeros(best.shares.shape[1])
        lams = [p / (1 - p) for p in self.drop_probs]
        beta = np.array([lams[i] / self.widths[i] for i in self.noisy])
        return noise_cost(best.shares.T, beta)

    def layer_shares(self, best: BestShares) -> list[Floats]:
        """Return the share of each hidden layer's units per active direction."""
        shares = best.shares
        active = shares[0] > 0
        count = int(active.sum())
        found = [np.full(count, 1 / count) for _ in self.widths]
        for row, layer in enumerate(self.noisy):
            found[layer] = shares[row, active]
        return found

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
        """Return weights that attain the optimum, by Schur and Horn.

        With O_l (directions x units) of orthonormal rows such that O_l' diag(d_l pi^l) O_l has ones
        on its diagonal, W_(k+1) = left diag(d_k pi^k)^(1/2) O_k, and
        W_l = O_l' diag(d_l pi^l + lam_l)^(-1/2) diag(d_(l-1) pi^(l-1))^(1/2) O_(l-1).
        """
        if self.best is None:
            return [np.zeros(shape) for shape in self.shapes]
        left, s, right = self.regression.svd
        phi = [d * pi for d, pi in zip(self.widths, self.layer_shares(self.best), strict=True)]
        lams = [p / (1 - p) for p in self.drop_probs]
        count = len(phi[0])
        unit = np.eye(count)
        loads = [
            equalize.balanced_factors(unit, x, unit, d)[0]
            for x, d in zip(phi, self.widths, strict=True)
        ]
        frames = [load / np.sqrt(x)[:, None] for load, x in zip(loads, phi, strict=True)]
        damping = [np.sqrt(x + lam) for x, lam in zip(phi, lams, strict=True)]
        weights = [
            (frames[layer] / damping[layer][:, None]).T @ loads[layer - 1]
            for layer in range(1, len(phi))
        ]
        weights.append(left[:, :count] @ loads[-1])
        passed = s[:count].copy()
        for x, root in zip(phi, damping, strict=True):
            passed = passed * np.sqrt(x) / root
        first = (frames[0] * (passed / damping[0])[:, None]).T @ right[:, :count].T
        return self._unwhitened([first, *weights])

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

    def _whitened(self, layers: Sequence[Floats]) -> list[Floats]:
        return [self.regression.whiten(layers[0].T).T, *layers[1:]]

    def _unwhitened(self, layers: Sequence[Floats]) -> list[Floats]:
        return [self.regression.unwhiten(layers[0].T).T, *layers[1:]]


def _product(layers: Sequence[Floats]) -> Floats:
    return reduce(lambda before, W: W @ before, layers)
