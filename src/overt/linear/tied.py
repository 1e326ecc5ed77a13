"""Autoencoders with tied weights, x -> U U'x, whose hidden units are masked by noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from overt import _check, equalize, penalty
from overt._check import InputError, InputTypeError
from overt._types import Floats
from overt.linear import kernels, landscape, objective
from overt.linear.bounds import (
    EXACT,
    certificate,
    envelopes,
    numerical_rank,
    shrink,
    spectral_bound,
    status_of,
)
from overt.linear.masks import mask_of
from overt.linear.quadratic import Leading
from overt.linear.runs import Rate, initial_weights, run_seeds
from overt.linear.shallow import LinearNetwork
from overt.linear.solver import closed_form, proposals, refine
from overt.noise import DropBlock, DropConnect, Dropout, Noise
from overt.results import Certificate, Solution, Trace


class TiedAutoencoder:
    """A linear autoencoder x -> U U'x with noise on its hidden layer.

    Parameters
    ----------
    target
        M (inputs x inputs) with y = M x; only its symmetric part can be fitted.
    width
        Number of hidden units.
    noise
        Dropout, DropBlock or CovarianceNoise.
    X
        Data (samples x features) to be reconstructed, instead of a target.
    second_moment
        E[x x'] for a target; the identity if None. The closed form needs the identity; otherwise
        the bound is that of the network with untied weights.
    """

    def __init__(
        self,
        target: Any = None,
        width: int | None = None,
        noise: Noise | None = None,
        *,
        X: Any = None,
        second_moment: Any = None,
    ) -> None:
        if isinstance(noise, DropConnect):
            raise InputTypeError("noise on tied weights must mask units, got DropConnect")
        # The untied network checks the arguments, and bounds this one from below.
        self.untied = LinearNetwork(target, width, noise, X=X, Y=X, second_moment=second_moment)
        self.width, self.noise = self.untied.width, self.untied.noise
        self.problem = self.untied.problem
        quadratic = self.problem.dense("tie weights")
        if quadratic.outputs != quadratic.inputs:
            raise InputError(
                "target must be square for tied weights, got "
                f"{quadratic.outputs} x {quadratic.inputs}"
            )
        self.quadratic = quadratic

    def penalty(self, U: Any) -> float:
        """Return what the noise adds to the expected squared error."""
        U = self._checked(U)
        return float(penalty.shallow(U, self.quadratic.whiten(U), self.noise))

    def objective(self, U: Any) -> float:
        """Return E|y - U diag(z/mu) U'x|^2, exactly."""
        U = self._checked(U)
        return self.quadratic.loss(U, U) + self.penalty(U)

    def certify(self, U: Any) -> Certificate:
        """Return how far U is from the global optimum."""
        U = self._checked(U)
        P = self.quadratic.whiten(U)
        return certificate(
            self.objective(U),
            self._bound,
            self.quadratic.scale,
            self._imbalance(U),
            float(np.linalg.norm(U @ P.T - self._best_map)),
        )

    def solve(self) -> Solution:
        """Return the best U that is known, as a solution with V = U."""
        U = self._factors()
        certified = self.certify(U)
        rank = numerical_rank(np.asarray(np.linalg.svd(U, compute_uv=False)) ** 2)
        return Solution(U, U, certified.objective, rank, status_of(certified), certified)

    def train(
        self,
        steps: int = 20_000,
        learning_rate: Rate = 1e-3,
        seeds: int | Sequence[int] = 1,
        *,
        init: Any = None,
        init_scale: float | None = None,
        checkpoints: int = 40,
        workers: int | None = None,
    ) -> Trace:
        """Run stochastic gradient descent with sampled masks; see `LinearNetwork.train`."""
        n, d = self.quadratic.inputs, self.width
        if init_scale is None:
            init_scale = (np.sum(self.quadratic.T**2) / (n * n * d)) ** 0.25 or 1.0
        begin = initial_weights([(n, d)], init_scale, None if init is None else [init])
        pair, mask = self.problem.sampling(), mask_of(self.noise, d)
        largest = float(self.quadratic.svd[1][0])

        def measure(weights: list[Floats]) -> tuple[float, float, int]:
            (U,) = weights
            s = np.linalg.svd(U, compute_uv=False) ** 2
            return self.objective(U), self._imbalance(U), int(np.sum(s > 0.01 * largest))

        def advance(weights: list[Floats], rates: Floats, rng: np.random.Generator) -> int:
            Ut = np.ascontiguousarray(weights[0].T)
            taken = kernels.tied_steps(Ut, *pair, rates, rng, *mask)
            weights[0][:] = Ut.T
            return int(taken)

        return run_seeds(
            begin, advance, measure, steps=steps, learning_rate=learning_rate, seeds=seeds,
            checkpoints=checkpoints, workers=workers, optimum=self._bound,
        )  # fmt: skip

    def landscape(self, max_points: int = 200) -> landscape.Landscape:
        """Return the equalized critical points, each with its kind and an escape direction."""
        if self.quadratic.L is not None or not isinstance(self.noise, Dropout):
            raise InputError("the landscape is known for Dropout with isotropic inputs")
        if not isinstance(self.noise.drop_prob, float):
            raise InputError("the landscape is known for one drop probability")
        return landscape.landscape(
            self._symmetric, self.width, self.noise.strength, max_points=max_points
        )

    @cached_property
    def _symmetric(self) -> Floats:
        """The symmetric part of the best linear map."""
        inverse = self.quadratic.L_inverse
        M = self.quadratic.T if inverse is None else self.quadratic.T @ inverse
        return (M + M.T) / 2

    @cached_property
    def _leading(self) -> Leading:
        """Leading eigenvalues of the map to fit, clipped at zero, and what cannot be fitted."""
        values, vectors = np.linalg.eigh(self._symmetric)
        m = np.maximum(values[::-1][: self.width], 0.0)
        W = vectors[:, ::-1][:, : self.width]
        return Leading(W, m, W, float(np.sum(self.quadratic.T**2) - np.sum(m**2)))

    @cached_property
    def _bound(self) -> float:
        if self.quadratic.L is not None:
            return self.untied._bound
        top = self._leading
        return max(spectral_bound(top.s, top.rest, e) for e in envelopes(self.noise, self.width))

    @cached_property
    def _best_map(self) -> Floats:
        if self.quadratic.L is not None:
            left, right = self.untied._best_map
            return left @ right.T
        top = self._leading
        return (top.left * shrink(top.s, envelopes(self.noise, self.width)[0])) @ top.right.T

    def _factors(self) -> Floats:
        envelope = envelopes(self.noise, self.width)[0]
        starts = [(U,) for U, _ in proposals(self._leading, envelope, self.noise, self.width)]
        if self.quadratic.L is None and closed_form(self.noise):
            return starts[0][0]
        Cbar = self.noise.characteristic(self.width)
        (U,) = refine(
            lambda U: objective.tied(self.quadratic, Cbar, U),
            starts,
            lambda value: value - self._bound <= EXACT / 10 * self._bound,
        )
        return U

    def _imbalance(self, U: Floats) -> float:
        P = self.quadratic.whiten(U)
        if isinstance(self.noise, DropBlock) and self.noise.placement == "grid":
            return float(equalize.block_imbalance(U, P, self.noise.block_size))
        return float(equalize.imbalance(U, P))

    def _checked(self, U: Any) -> Floats:
        U = np.asarray(_check.matrix("U", U), dtype=float)
        if U.shape != (self.quadratic.inputs, self.width):
            raise InputError(f"U must be {self.quadratic.inputs} x {self.width}, got {U.shape}")
        return U
