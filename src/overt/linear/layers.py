"""Deep linear networks with one noise per hidden layer.

Let R_l = Gamma_l + 1 1' be the second moment of layer l's multipliers, and for U (directions x
units) let Pi(U) = U (R_l o U'U)^+ U'. Layer l can attain the spectra of Pi(U). The optimum is

    |s|^2 - max sum_p s_p^2 prod_l lambda^l_p    over attainable spectra lambda^l,

so a layer enters by the best two-layer network with its noise: for a target with singular values v
that network's map has the spectrum lambda o v. Where every layer's noise is exchangeable the
maximum over all layers is certified (`deep_shares`); otherwise layers are optimized in turn, and
the bound is composed from bounds on single layers.

DropConnect on the weights that feed a layer adds lam sum_j w_ij^2 S_jj to unit i, S the second
moment of what they read. If multipliers with second moment R mask that, then w_i'S w_i is at most
rho sum_j w_ij^2 S_jj, rho the largest eigenvalue of R scaled to a unit diagonal (Schur). So Dropout
of the units with variance lam / rho costs no more, and as much where rho = 1 (one unit, or inputs
without correlation).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from overt import equalize
from overt._check import Floats
from overt.linear.bounds import (
    EPS,
    EXACT,
    Relaxation,
    UnitShares,
    positive,
)
from overt.linear.deep_shares import (
    ROUNDING,
    BestShares,
    best_shares,
)
from overt.linear.descent import LIMIT, Advance, attains, refine
from overt.linear.network import Evaluation, NoiseEffect
from overt.linear.regression import Regression, from_target, multipliers
from overt.linear.shallow import UnitNoise, sharing
from overt.noise import DropConnect, Dropout, Noise

MAX_ROUNDS = 300
"""Rounds over all layers, one after the other; they converge linearly."""

MAX_STARTS = 64
"""Numbers of directions from which layers are optimized in turn; with 12, 1 of 100 random networks
ended above the best descent."""


SAME_MAP = 1e-11
"""Distance of two maps, relative to the largest singular value, at which they count as one."""

RANK_TOL = 1e-10
"""Relative difference from the optimum within which a rank's bound does not exclude it."""


class Layer:
    """A hidden layer with noise, and the spectra that a two-layer network with it attains.

    `before` is the second moment of the multipliers of what its weights read. DropConnect is
    represented by Dropout that costs no more; `weight_noise` is its variance where it costs more,
    and `own_R` the second moment of the multipliers that units really have.
    """

    def __init__(self, noise: Noise, width: int, before: Floats) -> None:
        self.sampled = noise
        self.weight_noise = 0.0
        if isinstance(noise, DropConnect):
            size = np.sqrt(np.diag(before))
            rho = float(np.linalg.eigvalsh(before / np.outer(size, size))[-1])
            self.weight_noise = noise.strength if rho > 1 else 0.0
            p = noise.drop_prob
            noise = Dropout(p / (p + rho * (1 - p)))
        self.noise = noise
        self.width = width
        self.sharing = sharing(noise, width)
        self.Gamma = np.asarray(noise.characteristic(width), dtype=float)
        self.R = 1 + self.Gamma  # which has lost the last digits of weak noise
        self.own_R = np.ones_like(self.R) if self.weight_noise else self.R

    @cached_property
    def costs(self) -> UnitShares | None:
        """The costs of units where Gamma = diag(delta) + gamma 1 1', else None."""
        (costs,) = self.sharing.envelopes() if self.sharing.exact else (None,)
        return costs if isinstance(costs, UnitShares) else None

    @property
    def exchangeable(self) -> bool:
        """Whether all units are alike, and more than one direction can pass."""
        return (
            self.costs is not None
            and bool(np.ptp(self.costs.delta) == 0)
            and not self.narrow
        )

    @property
    def narrow(self) -> bool:
        """Whether noise lets one direction pass at a time, as when a single unit survives."""
        return self.costs is not None and self.costs.gamma <= -1 + 1e-12

    @cached_property
    def minorant(self) -> tuple[float, float]:
        """(beta, factor) of an exchangeable noise that costs no map more than this one does.

        diag(delta) lets pass at most what independent noise with the same sum of 1 / delta does;
        any other Gamma is at least its smallest eigenvalue times I.
        """
        if self.costs is not None:
            factor = 1 / (1 + self.costs.gamma)
            if self.costs.delta.min() <= 0:
                return 0.0, factor
            return factor / float(np.sum(1 / self.costs.delta)), factor
        eigenvalues = np.linalg.eigvalsh(self.Gamma)
        return max(0.0, eigenvalues[0] - 1e-13 * eigenvalues[-1]) / self.width, 1.0

    @cached_property
    def excess(self) -> float:
        """1 / (1'R^+ 1) - 1: what the noise adds to a map of rank one, relative to it."""
        if self.costs is not None:
            return max(0.0, self.costs.gamma + self.costs.together)
        eigenvalues, vectors = np.linalg.eigh(self.R)
        kept = eigenvalues > 1e-12 * eigenvalues[-1]
        ones = np.sum(vectors[:, kept], axis=0) ** 2
        return max(0.0, 1 / float(np.sum(ones / eigenvalues[kept])) - 1)

    @property
    def capacity(self) -> float:
        """1'R^+ 1, the largest entry of an attainable spectrum."""
        return 1 / (1 + self.excess)

    def passed(self, values: Floats) -> Floats:
        """Return lambda, the best spectrum for a target with these decreasing singular values.

        It is that of the envelope, which is not attained by every noise.
        """
        found = np.zeros(len(values))
        count = min(int(np.sum(positive(values))), self.width) if values[0] > 0 else 0
        if count:
            found[:count] = self._best_map(values[:count]) / values[:count]
        return found

    def factor(self, values: Floats) -> tuple[Floats, Floats, Floats]:
        """Return (U, lambda, J): U K^+ U' = diag(lambda), J = K^+ U' diag(lambda)^(-1/2).

        K = R o U'U; U is the outer factor of the envelope's map for these values.
        """
        a = self._best_map(values)
        kept = positive(a)
        unit = np.eye(len(values))[:, kept]
        U = self.sharing.factors(unit, a[kept], unit)[0]
        K = self.R * (U.T @ U)
        X = np.linalg.lstsq(K, U.T, rcond=None)[0]
        attained, Q = np.linalg.eigh(U @ X)
        attained = np.maximum(attained[::-1], 0.0)
        Q = Q[:, ::-1]
        J = X @ Q / np.sqrt(np.where(attained > 0, attained, 1.0))
        return Q.T @ U, attained, J

    def _best_map(self, values: Floats) -> Floats:
        """Return the spectrum that minimizes squared error and envelope."""
        envelopes = self.sharing.envelopes()
        return max(envelopes, key=lambda cost: cost.bound(values)).shrink(values)

    def balanced(self, pi: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the same three for an exchangeable noise and shares pi, in closed form.

        With O (directions x units) of orthonormal rows such that O' diag(d pi) O has ones on its
        diagonal, K = (1 + gamma) U'U + delta I.
        """
        beta, factor = self.minorant
        phi = self.width * pi
        unit = np.eye(len(pi))
        U = np.asarray(equalize.balanced_factors(unit, phi, unit, self.width)[0])
        damping = (phi + beta * self.width) / factor
        J = U / np.sqrt(phi * damping)[:, None]
        return U, phi / damping, J.T

    def gain_bound(self, s: Floats) -> float:
        """Return at least |s|^2 less the objective of every two-layer network with this noise."""
        two_layer = UnitNoise(from_target(np.diag(s)), self.width, self.noise)
        return float(np.sum(s**2)) - two_layer.relaxation.bound


class DeepNoise(NoiseEffect):
    """Noise on every hidden layer of a deep network."""

    def __init__(
        self,
        regression: Regression,
        widths: Sequence[int],
        noises: Sequence[Noise],
    ) -> None:
        self.regression = regression
        self.widths = widths
        self.layers: list[Layer] = []
        before = np.eye(1)  # inputs without correlation
        for noise, width in zip(noises, widths, strict=True):
            self.layers.append(Layer(noise, width, before))
            before = self.layers[-1].R
        # One for each weight matrix; the last one is not masked.
        self.weight_noises = [*(layer.weight_noise for layer in self.layers), 0.0]
        sizes = regression.inputs, *widths, regression.outputs
        self.shapes = [(after, before) for before, after in pairwise(sizes)]
        if any(layer.Gamma.min() < 0 for layer in self.layers):
            # Terms of the penalty cancel; the remainder is known up to the rounding of Gamma.
            self.least = max(32 * EPS / EXACT, self.least)

    @cached_property
    def nu(self) -> float:
        """prod_l 1 / (1'R_l^+ 1) - 1: what noise adds to a map of rank one, relative to it."""
        return float(np.expm1(sum(np.log1p(layer.excess) for layer in self.layers)))

    @property
    def exchangeable(self) -> bool:
        """Whether the layers' minorants are independent or exchangeable noise."""
        return all(layer.exchangeable for layer in self.layers)

    @property
    def exact(self) -> bool:
        """Whether the optimum is certified: the layers have no other noise than that."""
        return self.exchangeable and not any(self.weight_noises)

    @cached_property
    def values(self) -> Floats:
        """The singular values of the target that the network may use."""
        s = self.regression.svd[1]
        limit = min(*self.widths, len(s) if self.max_rank is None else self.max_rank)
        return np.asarray(s[positive(s)][:limit]) if s[0] > 0 else s[:0]

    @cached_property
    def noisy(self) -> list[int]:
        """Numbers of the layers whose minorant has noise."""
        return [i for i, layer in enumerate(self.layers) if layer.minorant[0] > 0]

    @cached_property
    def best(self) -> BestShares:
        """The best shares under the layers' minorants; exact if all are exchangeable."""
        return best_shares(self.values, self.beta, self.factor)

    @property
    def rank_range(self) -> tuple[int, int] | None:
        """The ranks whose bound does not exceed the optimum.

        An optimum's map has as many directions as its shares: in the proof of the formula above
        equality forces each layer's shares to be optimal for what the layers after it leave.
        """
        if len(self.values) == 0:
            return 0, 0
        if not self.exact or len(self.noisy) == 0:
            return None
        best = self.best
        possible = np.flatnonzero(best.bounds <= best.objective * (1 + RANK_TOL))
        return int(possible[0]), int(possible[-1])

    @property
    def beta(self) -> Floats:
        """beta of every layer with noise."""
        return np.array([self.layers[i].minorant[0] for i in self.noisy])

    @property
    def factor(self) -> float:
        """The product of the layers' factors."""
        return float(np.prod([layer.minorant[1] for layer in self.layers]))

    @cached_property
    def relaxation(self) -> Relaxation:
        """A lower bound on the objective of all weights, and the best map."""
        if len(self.layers) == 1 and not self.exact:
            return self._two_layer.relaxation
        left, s, right = self.regression.svd
        count = len(self.values)
        a = np.zeros(len(s))
        if count:
            a[:count] = self.values * np.prod(self.spectra, axis=0)
        bound = self.regression.residual + self._least() + float(np.sum(s[count:] ** 2))
        loss = float(np.sum((s - a) ** 2))
        bound -= self.regression.rounding(bound, loss, float(np.sum(a)))
        rank = int(np.sum(positive(a))) if self.exact or not a.any() else None
        return Relaxation(max(bound, 0.0), left, a, right, rank)

    def _least(self) -> float:
        """Return a lower bound on |s|^2 - sum_p s_p^2 prod_l lambda^l_p over attainable spectra."""
        s = self.values
        if len(s) == 0:
            return 0.0
        capacities = np.array([layer.capacity for layer in self.layers])
        total = float(np.sum(s**2))
        if any(layer.narrow for layer in self.layers):
            # That layer's spectrum sums to its capacity at most, so the first direction is best.
            return total - float(s[0] ** 2 * np.prod(capacities) * (1 + ROUNDING))
        if self.exchangeable:
            return self.best.bound
        # No entry of the other layers' spectra exceeds their capacities.
        gains = [
            layer.gain_bound(s) * float(np.prod(np.delete(capacities, i)))
            for i, layer in enumerate(self.layers)
        ]
        return max(self.best.bound, total - min(gains) * (1 + ROUNDING))

    @cached_property
    def spectra(self) -> Floats:
        """The layers' best spectra that are known, layers x directions."""
        if not self.exchangeable:
            return self._in_turn[0]
        shares = self.layer_shares()
        minorants = np.array([layer.minorant for layer in self.layers])
        beta = minorants[:, :1]
        factor = minorants[:, 1:]
        return np.asarray(factor * shares / np.where(shares > 0, shares + beta, 1.0))

    def layer_shares(self) -> Floats:
        """Return each hidden layer's share of units per direction, layers x directions."""
        shares = self.best.shares
        active = shares[0] > 0
        found = np.tile(active / active.sum(), (len(self.layers), 1))
        if self.noisy:
            found[self.noisy] = shares
        return found

    @cached_property
    def _in_turn(self) -> list[Floats]:
        """Layers' spectra, optimized in turn from several numbers of directions; the best first."""
        s = self.values
        count = len(s)
        ends: dict[int, tuple[float, Floats]] = {}  # by number of directions
        for rank in np.unique(np.geomspace(1, count, MAX_STARTS).astype(int))[::-1]:
            active = np.arange(count) < rank
            found = np.tile(active.astype(float), (len(self.layers), 1))
            reached = 0.0
            for _ in range(MAX_ROUNDS):
                for i, layer in enumerate(self.layers):
                    others = np.prod(np.delete(found, i, axis=0), axis=0)
                    found[i] = layer.passed(s * np.sqrt(others))
                carried = np.prod(found, axis=0)
                gain = float(np.sum(s**2 * carried))
                if gain <= reached * (1 + 1e-15):
                    break
                reached = gain
            directions = int(np.sum(carried > 0))
            if reached > ends.get(directions, (0.0, found))[0]:
                ends[directions] = reached, found
        ordered = sorted(ends.values(), key=lambda end: -end[0])
        return [spectra for _, spectra in ordered] or [np.zeros_like(found)]

    def best_weights(self) -> Sequence[Floats]:
        """Return the best weights that are known.

        Without closed forms they come from descent on all weights, started at those of the layers'
        envelopes; networks with one hidden layer have a search of their own.
        """
        if len(self.values) == 0:
            return [np.zeros(shape) for shape in self.shapes]
        if self.exact:
            return self.weights_of(self.layer_shares())
        if len(self.layers) == 1:
            U, V = self._two_layer.best_weights()
            return V.T, U
        closed = all(layer.sharing.exact for layer in self.layers)
        if closed and not any(self.weight_noises):
            return self._weights_with(self.spectra)
        return self._refined([self._weights_with(found) for found in self._in_turn])

    def _weights_with(self, spectra: Floats) -> Sequence[Floats]:
        """Return weights whose layers come near these spectra."""
        carried = np.prod(spectra, axis=0)
        count = int(np.sum(carried > 0))
        parts = []
        for i, layer in enumerate(self.layers):
            others = np.prod(np.delete(spectra, i, axis=0), axis=0)[:count]
            parts.append(layer.factor(self.values[:count] * np.sqrt(others)))
        return self._joined(parts)

    def _refined(self, starts: Sequence[Sequence[Floats]]) -> Sequence[Floats]:
        """Return where descent on the whitened weights ends, in the target's leading directions."""
        left, s, right = self.regression.svd
        d = len(self.values)
        inner = []
        for weights in starts:
            first, *middle, last = self._whitened(weights)
            inner.append((first @ right[:, :d], *middle, left[:, :d].T @ last))
        rest = self.regression.residual + float(np.sum(s[d:] ** 2))
        first, *middle, last = refine(
            partial(self.whitened_value, np.diag(self.values)),
            inner,
            attains(self.relaxation.bound) - rest,
        )
        found = first @ right[:, :d].T, *middle, left[:, :d] @ last
        return self._unwhitened(found)

    @cached_property
    def _two_layer(self) -> UnitNoise:
        """The only hidden layer as a two-layer network."""
        (layer,) = self.layers
        effect = UnitNoise(self.regression, layer.width, layer.noise)
        return effect.limited(self.max_rank)

    def weights_of(self, shares: Floats) -> Sequence[Floats]:
        """Return weights whose layers' units have these shares (layers x directions)."""
        count = int(np.sum(shares[0] > 0))
        pairs = zip(self.layers, shares, strict=True)
        parts = [layer.balanced(pi[:count]) for layer, pi in pairs]
        return self._joined(parts)

    def _joined(
        self, parts: Sequence[tuple[Floats, Floats, Floats]]
    ) -> Sequence[Floats]:
        """Return weights made of each layer's (U, lambda, J).

        W_(k+1) = left U_k, W_l = J_l U_(l-1), W_1 = J_1 diag(s_p prod_l lambda^l_p^(1/2)) right'.
        """
        left, s, right = self.regression.svd
        count = len(parts[0][1])
        passed = s[:count] * np.sqrt(
            np.prod([attained for _, attained, _ in parts], axis=0)
        )
        weights = [(parts[0][2] * passed) @ right[:, :count].T]
        for (U, _, _), (_, _, J) in pairwise(parts):
            weights.append(J @ U)
        weights.append(left[:, :count] @ parts[-1][0])
        return self._unwhitened(weights)

    def evaluate(self, *weights: Floats) -> tuple[Floats, Floats, float]:
        """(W_(k+1) ... W_2, W_1', sum_l <Gamma_l, S_l o B_l'B_l>).

        S_l is the second moment of layer l, with the noise before it, and B_l the map after it.
        DropConnect adds to the diagonal of S_l.
        """
        H = self.regression.hidden(weights[0].T)
        S = H.T @ H
        tails = [weights[-1]]  # the maps after layers k, k - 1, ..., 1
        for W in weights[-2:0:-1]:
            tails.append(tails[-1] @ W)
        total = 0.0
        masked = S  # the second moment of what the next weights read
        for i, (layer, B) in enumerate(zip(self.layers, tails[::-1], strict=True)):
            if layer.weight_noise:
                added = layer.weight_noise * weights[i] ** 2 @ np.diag(masked)
                total += float(added @ np.sum(B**2, axis=0))
                S = S + np.diag(added)
            elif layer.noise.independent:  # Gamma is diagonal
                variances = np.diag(layer.Gamma)
                total += float(np.sum(variances * np.diag(S) * np.sum(B**2, axis=0)))
            else:
                total += float(np.sum(layer.Gamma * S * (B.T @ B)))
            if i + 1 < len(self.layers):
                masked = layer.own_R * S
                S = weights[i + 1] @ masked @ weights[i + 1].T
        return tails[-1], weights[0].T, total

    def imbalance(self, found: Evaluation) -> float:
        """Return the equalization gap R / (nu |W C^(1/2)|_*^2) - 1; 0 for a map that is zero."""
        best = self.relaxation.spectrum
        # Singular values differ by no more than the distance of the maps.
        near = found.distance <= SAME_MAP * best[0]
        least = self.nu * float(np.sum(best if near else found.spectrum) ** 2)
        return found.penalty / least - 1 if least > 0 else 0.0

    def value(self, *weights: Floats) -> tuple[float, Sequence[Floats]]:
        """Return the objective and its gradients."""
        objective, (first, *others) = self.whitened_value(
            self.regression.T, *self._whitened(weights)
        )
        objective += self.regression.residual
        return objective, (self.regression.pull_back(first.T).T, *others)

    def whitened_value(
        self, T: Floats, *weights: Floats
    ) -> tuple[float, Sequence[Floats]]:
        """Return |T - W|^2 + penalty and its gradients in whitened coordinates (W_1 L for W_1).

        |T|^2 - 2 <T, W> + tr S_(k+1), S_1 = W_1 W_1', S_(l+1) = W_(l+1) (R_l o S_l) W_(l+1)', and
        lam sum_j w_ij^2 (R_l o S_l)_jj more on the diagonal where W_(l+1) is masked by DropConnect.
        """
        first = weights[0]
        last = weights[-1]
        maps = [first]  # W_l ... W_1
        moments = [first @ first.T]  # S_l, then R_l o S_l
        noises = self.weight_noises[1:]
        for W, layer, lam in zip(weights[1:], self.layers, noises, strict=True):
            masked = layer.own_R * moments[-1]
            moments[-1] = masked
            maps.append(W @ maps[-1])
            moments.append(W @ masked @ W.T)
            if lam:
                moments[-1] += np.diag(lam * W**2 @ np.diag(masked))
        value = np.sum(T * T) - 2 * np.sum(T * maps[-1]) + np.trace(moments[-1])
        gradients = [2 * (last @ moments[-2] - T @ maps[-2].T)]
        back = T  # W_(l+1)' ... W_(k+1)' T
        K = last.T @ last
        for i in range(len(weights) - 2, -1, -1):
            W = weights[i]
            back = weights[i + 1].T @ back
            K = self.layers[i].own_R * K
            KW = K @ W
            if i == 0:
                gradients.append(2 * (KW - back))
                break
            gradient = KW @ moments[i - 1] - back @ maps[i - 1].T
            added = self.weight_noises[i] * np.diag(K)[:, None] * W
            gradients.append(2 * (gradient + added * np.diag(moments[i - 1])))
            K = W.T @ KW + np.diag(np.sum(added * W, axis=0))
        return float(value), gradients[::-1]

    def witness(self, s: Floats) -> dict[str, Any]:
        """Return dual points for the shares of the layers; thresholds for one noisy layer."""
        if len(self.noisy) < 2:
            costs = UnitShares(np.full(min(self.widths), self.nu * min(self.widths)))
            return {"thresholds": costs.multipliers(s)}
        values = np.maximum(s, 1e-9 * s[0]) if s[0] > 0 else np.ones(1)
        duals = best_shares(values, self.beta, self.factor).duals
        points = [
            {"multipliers": dual.mu, "points": dual.inside(self.beta).pi}
            for dual in duals
        ]
        return {"shares": points}

    def steps(self, rng: np.random.Generator, batch_size: int = 1) -> Advance:
        """Return minibatch steps, one mask per sample."""

        def advance(weights: list[Floats], rates: Floats) -> int:
            for step, rate in enumerate(rates):
                x, y = self.regression.samples.batch(batch_size, rng)
                gradients = self.sampled_gradients(weights, x, y, rng)
                if gradients is None:
                    return step
                for W, gradient in zip(weights, gradients, strict=True):
                    W -= rate * gradient
            return len(rates)

        return advance

    def sampled_gradients(
        self, weights: list[Floats], x: Floats, y: Floats, rng: np.random.Generator
    ) -> list[Floats] | None:
        """Return the gradients of half the mean squared error under one mask per sample."""
        inputs = [x]
        masks = []
        for W, layer in zip(weights[:-1], self.layers, strict=True):
            on_weights = layer.sampled.masks == "weights"
            count = W.size if on_weights else layer.width
            mask = multipliers(layer.sampled, count, len(x), rng)
            if on_weights:
                mask = mask.reshape(len(x), *W.shape)
                inputs.append(np.einsum("noi,oi,ni->no", mask, W, inputs[-1]))
            else:
                inputs.append((inputs[-1] @ W.T) * mask)
            masks.append(mask)
        delta = (inputs[-1] @ weights[-1].T - y) / len(x)
        if not np.sum(delta**2) < LIMIT:
            return None
        gradients = [delta.T @ inputs[-1]]
        delta = delta @ weights[-1]
        for i in range(len(masks) - 1, -1, -1):
            mask = masks[i]
            if mask.ndim == 3:
                gradients.append(np.einsum("no,noi,ni->oi", delta, mask, inputs[i]))
                delta = np.einsum("no,noi,oi->ni", delta, mask, weights[i])
            else:
                delta = delta * mask
                gradients.append(delta.T @ inputs[i])
                delta = delta @ weights[i]
        return gradients[::-1]

    def _whitened(self, weights: Sequence[Floats]) -> list[Floats]:
        return [self.regression.whiten(weights[0].T).T, *weights[1:]]

    def _unwhitened(self, weights: Sequence[Floats]) -> list[Floats]:
        return [self.regression.unwhiten(weights[0].T).T, *weights[1:]]
