"""Autoencoders with tied weights, x -> U U'x, whose hidden units are masked by noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, overload

import numpy as np

from overt import _check
from overt._check import InputError, InputTypeError, bounded
from overt._types import Floats
from overt.linear import landscape
from overt.linear.arguments import regression, require_consistent, target_or_data
from overt.linear.bounds import Leading, Relaxation, relax
from overt.linear.certificate import grade
from overt.linear.descent import attains, descend, settle
from overt.linear.effect import Evaluation, NoiseEffect
from overt.linear.network import NoisyNetwork
from overt.linear.proofs import Proof
from overt.linear.regression import DenseRegression, from_target
from overt.linear.sampling import Advance
from overt.linear.units import UnitNoise
from overt.noise import Dropout, Noise
from overt.results import Certificate, Solution

SMALL = 100
"""Weights up to which correlated inputs are worth more descents, as each costs little."""

THOROUGH, QUICK = (7, 30, 6), (3, 10, 2)
"""Balances between inputs, descents at most, and how many of them must agree."""


class TiedAutoencoder(NoisyNetwork):
    """A linear autoencoder x -> U U'x with noise on its hidden layer.

    Parameters
    ----------
    target
        M (inputs x inputs) with y = M x; only its symmetric part can be fitted.
    width
        Number of hidden units.
    noise
        Dropout, KeepExactly, DropBlock, CovarianceNoise, or a noise over units of your own.
    X
        Data (samples x features) to be reconstructed, in place of a target.
    second_moment
        E[x x'] for a target; the identity if None. The closed form needs the identity; otherwise
        the bound is that of the network with untied weights.
    input_noise, weight_decay
        Noise on the inputs too, as in a denoising autoencoder, and mu |U|^2 in the objective; see
        `LinearNetwork`.
    """

    kind = "tied"
    noise: Noise
    effect: TiedUnitNoise

    @target_or_data
    def __init__(
        self,
        target: Any,
        width: int,
        noise: Noise,
        *,
        X: Any = None,
        second_moment: Any = None,
        input_noise: Noise | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        if not isinstance(noise, Noise) or noise.masks != "units":
            raise InputTypeError(
                f"noise on tied weights must mask units, got {noise!r}"
            )
        self.width = _check.whole("width", width)
        self.noise = noise
        self.input_noise = input_noise
        self.weight_decay = _check.number("weight_decay", weight_decay)
        task = regression(target, X, X, second_moment, input_noise).dense("tie weights")
        if task.outputs != task.inputs:
            raise InputError(
                f"target must be square for tied weights, got {task.outputs} x {task.inputs}"
            )
        require_consistent(noise, self.width)
        self.effect = TiedUnitNoise(
            UnitNoise(task, self.width, noise, self.weight_decay / 2)
        )

    def __repr__(self) -> str:
        task = self.effect.regression
        return f"TiedAutoencoder({task.inputs} -> {self.width} -> {task.outputs}, {self.noise!r})"

    def penalty(self, U: Any) -> float:
        """Return what the noise adds to the expected squared error."""
        return self._penalty(self._checked(U))

    def objective(self, U: Any) -> float:
        """Return E|y - U diag(z/mu) U'x|^2, exactly."""
        return self._objective(self._checked(U))

    @overload
    def certify(self, U: Any, rigorous: Literal[False] = False) -> Certificate: ...
    @overload
    def certify(self, U: Any, rigorous: Literal[True]) -> Proof: ...
    def certify(self, U: Any, rigorous: bool = False) -> Certificate | Proof:
        """Return how far U is from the global optimum; with `rigorous`, as a proof."""
        return self._certify((self._checked(U),), rigorous)

    def solve(self, rank: int | None = None) -> Solution:
        """Return the best U that is known, as a solution with V = U; `rank` limits that of U."""
        effect = self._limited(rank)
        (U,) = effect.best_weights()
        return Solution(U, U, *grade(effect, U))

    def landscape(self, max_points: int = 200) -> landscape.Landscape:
        """Return the equalized critical points, each with its kind and an escape direction."""
        if self.effect.regression.L is not None or not isinstance(self.noise, Dropout):
            raise InputError("the landscape is known for Dropout with isotropic inputs")
        if self.weight_decay:
            raise InputError("the landscape is known without weight decay")
        if not isinstance(self.noise.drop_prob, float):
            raise InputError("the landscape is known for one drop probability")
        M, strength = self.effect.symmetric, self.noise.strength
        return landscape.landscape(M, self.width, strength, max_points=max_points)

    def _start(self, init: Any) -> Sequence[Floats]:
        return (self._checked(init),)

    def _checked(self, U: Any) -> Floats:
        U = _check.doubles("U", U, ndim=2)
        (expected,) = self.effect.shapes
        if U.shape != expected:
            raise InputError(f"U must be {expected[0]} x {expected[1]}, got {U.shape}")
        return U


class TiedUnitNoise(NoiseEffect):
    """Noise on the hidden units where V = U: as for the untied network, but for the closed form."""

    def __init__(self, untied: UnitNoise) -> None:
        self.untied = untied
        self.regression: DenseRegression = untied.regression.dense("tie weights")
        self.shapes, self.least = untied.shapes[:1], untied.least
        self.weight_decay = 2 * untied.weight_decay

    def limited(self, rank: int | None) -> TiedUnitNoise:
        """Return the same problem over maps of at most this rank; inputs must be isotropic."""
        if rank is not None and self.regression.L is not None:
            raise InputError("rank= needs isotropic inputs where weights are tied")
        effect = super().limited(rank)
        effect.untied = self.untied.limited(rank)
        return effect

    @property
    def rank_range(self) -> tuple[int, int] | None:
        """That of the network with the positive eigenvalues as target."""
        if self.regression.L is not None:
            return None
        positive_part = from_target(np.diag(self._leading.s))
        untied = self.untied
        decay = untied.weight_decay
        alike = UnitNoise(positive_part, untied.width, untied.noise, decay)
        return alike.limited(untied.max_rank).rank_range

    @cached_property
    def symmetric(self) -> Floats:
        """The best symmetric map A without noise: A C + C A = E[y x'] + E[x y']."""
        if self.regression.L is None:
            return (self.regression.T + self.regression.T.T) / 2
        cross = self.regression.T @ self.regression.L.T
        W, root, _ = np.linalg.svd(self.regression.L)
        c = np.zeros(len(W))
        c[: len(root)] = root**2
        sums = c[:, None] + c
        B = W.T @ (cross + cross.T) @ W
        return np.asarray(
            W @ np.where(sums > 0, B / np.where(sums > 0, sums, 1.0), 0.0) @ W.T
        )

    @cached_property
    def _leading(self) -> Leading:
        width = self.untied.directions
        values, vectors = np.linalg.eigh(self.symmetric)
        values, W = values[::-1], vectors[:, ::-1][:, :width]
        m = np.maximum(values[:width], 0.0)
        rest = np.sum(np.minimum(values[:width], 0.0) ** 2) + np.sum(
            values[width:] ** 2
        )
        if self.regression.L is None:
            rest += np.sum((self.regression.T - self.symmetric) ** 2)
        return Leading(W, m, W, float(rest))

    @cached_property
    def _by_eigenvalues(self) -> Relaxation:
        """The relaxation with eigenvalues, clipped at zero, in place of singular values."""
        rule = self.untied.sharing
        decay = self.untied.decay
        leading = self._leading
        return relax(
            lambda _: leading, rule.envelopes(), self.regression, decay, rule.refined
        )

    @property
    def relaxation(self) -> Relaxation:
        """That of the eigenvalues; for correlated inputs only the untied network bounds."""
        return (
            self._by_eigenvalues
            if self.regression.L is None
            else self.untied.relaxation
        )

    def best_weights(self) -> Sequence[Floats]:
        """Return a root of the eigenvalues' map, refined by descent if it is not exact."""
        U, _ = self.untied.sharing.factors(*self._by_eigenvalues.kept)
        if self.regression.L is not None:
            balances, tries, needed = THOROUGH if U.size <= SMALL else QUICK
            enough, ends = (
                attains(self.relaxation.bound),
                self._ends(U, balances, tries),
            )
            return settle(self.value, (U,), ends, enough, needed, balances + 2)
        if not self.untied.sharing.exact:
            top, W = self._leading, self._by_eigenvalues
            U = W.left @ self.untied.best_root(
                top.s, W.spectrum, attains(W.bound) - top.rest
            )
        return (U,)

    def _ends(self, U: Floats, balances: int, tries: int) -> Iterator[Sequence[Floats]]:
        """Yield where descents end, each in different coordinates Z, U = R Z.

        Alone, a direction w is best multiplied by w'K w / w'C w, K = E[y x'] and |w| = 1, before
        noise; the directions for which that lowers the error most are eigenvectors of K + K'
        relative to I + t C at t = |w|^2 / w'C w. So R R' = (I + t C)^-1, for t between the inverse
        eigenvalues of C, and 0: first from those eigenvectors, then from random weights.
        """
        L, rng = self.regression.root, np.random.default_rng(0)
        K, (Q, root, _) = self.regression.T @ L.T, np.linalg.svd(L)
        c = np.r_[root**2, np.zeros(len(Q) - len(root))]
        low, high = -2 * np.log(root[[0, -1]])

        yield descend(self.value, (U,))
        for t in np.r_[0.0, np.exp(np.linspace(low, high, balances))]:
            R = Q / np.sqrt(1 + t * c)
            yield self._turned(R, self._directions(K, R))
        for _ in range(tries - balances - 2):
            R = Q / np.sqrt(1 + np.exp(rng.uniform(low, high)) * c)
            Z = rng.standard_normal(U.shape)
            W = R @ Z
            gain, size = (
                np.sum(W * (K @ W)),
                np.sum((W.T @ W) * ((L.T @ W).T @ (L.T @ W))),
            )
            yield self._turned(
                R, Z * np.sqrt(abs(gain) / size) * 10 ** rng.uniform(-1, 1)
            )

    def _directions(self, K: Floats, R: Floats) -> Floats:
        """Return weights along the eigenvectors of K + K' relative to (R R')^-1, as R's Z."""
        L, width = self.regression.root, self.untied.width
        _, vectors = np.linalg.eigh(R.T @ (K + K.T) @ R)
        W = R @ vectors[:, ::-1][:, :width]
        W /= np.linalg.norm(W, axis=0)
        gain, size = np.sum(W * (K @ W), axis=0), np.sum((L.T @ W) ** 2, axis=0)
        kept = gain > 1e-12 * gain.max()
        W, a = W[:, kept], gain[kept] / size[kept]
        order = np.argsort(-a)
        U, _ = self.untied.sharing.factors(W[:, order], a[order], W[:, order])
        return np.asarray(np.linalg.solve(R, U))

    def _turned(self, R: Floats, Z: Floats) -> Sequence[Floats]:
        """Return R Z where descent in Z ends."""

        def value(Z: Floats) -> tuple[float, Sequence[Floats]]:
            found, (gradient,) = self.value(R @ Z)
            return found, (R.T @ gradient,)

        (Z,) = descend(value, (Z,))
        return (R @ Z,)

    def product(self, *weights: Floats) -> tuple[Floats, Floats]:
        """(U, U)."""
        (U,) = weights
        return U, U

    @bounded
    def penalty(self, *weights: Floats) -> float:
        """<Gamma, U'U o U'CU>."""
        return self.untied.penalty(*weights * 2)

    def imbalance(self, found: Evaluation) -> float:
        """Return the variance of the shares of units, or blocks of them."""
        return self.untied.imbalance(found)

    def value(self, *weights: Floats) -> tuple[float, Sequence[Floats]]:
        """Return the objective and its gradient, that in U plus that in V."""
        value, (gradient_U, gradient_V) = self.untied.value(*weights * 2)
        return value, (gradient_U + gradient_V,)

    def steps(self, rng: np.random.Generator, batch_size: int = 1) -> Advance:
        """Return steps of the untied network, which update the same array twice."""
        return self.untied.steps(rng, batch_size, decay=(self.weight_decay, 0.0))
