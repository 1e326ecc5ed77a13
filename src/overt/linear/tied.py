"""Autoencoders with tied weights, x -> U U'x, whose hidden units are masked by noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np

from overt import _check
from overt._check import Floats, InputError, InputTypeError
from overt.linear import landscape
from overt.linear.bounds import Leading
from overt.linear.descent import SAME, Value, attains, descend, refine, scaled
from overt.linear.network import (
    NoisyNetwork,
    grade,
    regression_of,
    require_consistent,
    target_or_data,
)
from overt.linear.regression import Regression
from overt.linear.shallow import UnitNoise
from overt.noise import Dropout, Noise
from overt.results import Solution

TRIES = 12
"""Descents at most for correlated inputs, where no closed form is known."""

AGREEING = 3
"""Descents from random weights that must end at the lowest value: most problems have several."""

RIDGE = 1e-13
"""Share of the inputs' variances that is added where their second moment may be singular."""

RESCALINGS = 4
"""Descents from one start, each in coordinates in which the last one ended well-conditioned."""


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
    input_noise
        Noise on the inputs too, as in a denoising autoencoder.
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
    ) -> None:
        if not isinstance(noise, Noise) or noise.masks != "units":
            raise InputTypeError(
                f"noise on tied weights must mask units, got {noise!r}"
            )
        self.width = _check.whole("width", width)
        self.noise = noise
        self.input_noise = input_noise
        task = regression_of(target, X, X, second_moment, input_noise)
        if task.outputs != task.inputs:
            raise InputError(
                f"target must be square for tied weights, got {task.outputs} x {task.inputs}"
            )
        require_consistent(noise, self.width)
        self.effect = TiedUnitNoise(task, self.width, noise)

    def __repr__(self) -> str:
        task = self.effect.regression
        return f"TiedAutoencoder({task.inputs} -> {self.width} -> {task.outputs}, {self.noise!r})"

    def solve(self, rank: int | None = None) -> Solution:
        """Return the best U that is known, as a solution with V = U; `rank` limits that of U."""
        effect = self._limited(rank)
        (U,) = effect.best_weights()
        return Solution(U, U, *grade(effect, U))

    def landscape(self, max_points: int = 200) -> landscape.Landscape:
        """Return the equalized critical points, each with its kind and an escape direction."""
        p = self.noise.drop_prob if isinstance(self.noise, Dropout) else None
        if self.effect.regression.L is not None or not isinstance(p, float):
            raise InputError(
                "the landscape is known for Dropout with one drop probability and isotropic inputs"
            )
        M = self.effect.symmetric
        return landscape.landscape(M, self.width, p / (1 - p), max_points=max_points)


class TiedUnitNoise(UnitNoise):
    """Noise on the hidden units where V = U: as for the untied network, but for the closed form."""

    def __init__(self, regression: Regression, width: int, noise: Noise) -> None:
        super().__init__(regression, width, noise)
        self.shapes = self.shapes[:1]

    def limited(self, rank: int | None) -> Self:
        """Return the same problem over maps of at most this rank; inputs must be isotropic."""
        if rank is not None and self.regression.L is not None:
            raise InputError("rank= needs isotropic inputs where weights are tied")
        return super().limited(rank)

    @property
    def rank_range(self) -> tuple[int, int] | None:
        """That of the positive eigenvalues' best map, for isotropic inputs."""
        return None if self.regression.L is not None else super().rank_range

    @property
    def symmetric(self) -> Floats:
        """The symmetric part of the target, which is all that can be fitted."""
        return (self.regression.T + self.regression.T.T) / 2

    @cached_property
    def _positive(self) -> Leading:
        """The leading eigenvalues, clipped at zero, as singular values."""
        width = self.directions
        values, vectors = np.linalg.eigh(self.symmetric)
        values = values[::-1]
        W = vectors[:, ::-1][:, :width]
        m = np.maximum(values[:width], 0.0)
        rest = np.sum(np.minimum(values[:width], 0.0) ** 2)
        rest += np.sum(values[width:] ** 2)
        rest += np.sum((self.regression.T - self.symmetric) ** 2)
        return Leading(W, m, W, float(rest))

    @property
    def leading(self) -> Leading:
        """Eigenvectors; for correlated inputs only the untied network bounds."""
        if self.regression.L is None:
            return self._positive
        return super().leading

    def best_weights(self) -> Sequence[Floats]:
        """Return a root of the eigenvalues' map, refined by descent if it is not exact."""
        if self.regression.L is not None:
            return self._searched()
        best = self.relaxation
        if self.sharing.exact:
            return self.sharing.factors(*best.kept)[:1]
        top = self._positive
        enough = attains(best.bound) - top.rest
        return (best.left @ self.best_root(top.s, best.spectrum, enough),)

    def _searched(self) -> Sequence[Floats]:
        """Return where descents end that start at maps which are optimal in another sense.

        Descents are in coordinates along the axes of C in which the Hessian's rows have one size:
        inputs may have very different units.
        """
        axes = self._principal[0]
        starts = [axes.T @ U for U in self._starts()]
        size = self._curvature(starts[1])
        enough = attains(self.relaxation.bound)

        def along_axes(Y: Floats) -> tuple[float, Sequence[Floats]]:
            objective, (gradient,) = self.value(axes @ Y)
            return objective, (axes.T @ gradient,)

        def search(value: Value, start: Sequence[Floats]) -> list[Floats]:
            """Descend, and again with the curvatures of where the last descent ended."""
            (Z,) = start
            lowest = np.inf
            for _ in range(RESCALINGS):
                scale = self._curvature(Z / size) / size
                (X,) = descend(scaled(value, scale), [Z * scale])
                Z = X / scale
                reached = value(Z)[0]
                if not reached < lowest * (1 - SAME):
                    break
                lowest = reached
            return [Z]

        conditioned = scaled(along_axes, size)
        (Z,) = refine(
            conditioned, [(Y * size,) for Y in starts], enough, TRIES, search, AGREEING
        )
        return (axes @ (Z / size),)

    def _starts(self) -> list[Floats]:
        """Return roots of the best symmetric map, the best untied one and a whitened one.

        Without noise the best symmetric A solves A C + C A = E[y x'] + E[x y'].
        """
        from scipy.linalg import solve_continuous_lyapunov  # slow to import

        task = self.regression
        C = task.root @ task.root.T
        cross = task.T @ task.root.T
        ridge = RIDGE * np.diag(np.diag(C))
        symmetric = solve_continuous_lyapunov(C + ridge, cross + cross.T)
        values, vectors = np.linalg.eigh(symmetric)
        d = self.width
        left, a, right = self.relaxation.kept
        # The untied map, a left right' L^+, along its outputs' directions.
        inward = np.sum(task.unwhiten(right) * left, axis=0)
        T = task.root.T @ task.T
        whitened_values, whitened = np.linalg.eigh(T + T.T)
        found = []
        for W, m in (
            (vectors, values),
            (left, a * inward),
            (task.unwhiten(whitened), whitened_values / 2),
        ):
            order = np.argsort(-m)[: min(d, int(np.sum(m > 0)))]
            U, _ = self.sharing.factors(W[:, order], m[order], W[:, order])
            found.append(U)
        return found

    @cached_property
    def _principal(self) -> tuple[Floats, Floats]:
        """Orthonormal eigenvectors of C and its eigenvalues."""
        vectors, root, _ = np.linalg.svd(self.regression.root)
        values = np.zeros(len(vectors))
        values[: len(root)] = root**2
        return vectors, values

    def _curvature(self, Y: Floats) -> Floats:
        """Return roots of the sizes of the Hessian's rows at U = axes Y.

        Row i has a Hessian near R o U'CU, as outputs, plus c_i R o U'U, as inputs.
        """
        values = self._principal[1]
        moments = 1 + np.diag(self.noise.characteristic(self.width))
        as_outputs = values @ Y**2 @ moments
        as_inputs = np.sum(Y**2, axis=0) @ moments
        size = np.sqrt(as_outputs + values * as_inputs)
        return np.where(size > 0, size, 1.0)[:, None]

    def evaluate(self, *weights: Floats) -> tuple[Floats, Floats, float]:
        """(U, U) and <Gamma, U'U o U'CU>."""
        return super().evaluate(*weights * 2)

    def value(self, *weights: Floats) -> tuple[float, Sequence[Floats]]:
        """Return the objective and its gradient, that in U plus that in V."""
        value, (gradient_U, gradient_V) = super().value(*weights * 2)
        return value, (gradient_U + gradient_V,)
