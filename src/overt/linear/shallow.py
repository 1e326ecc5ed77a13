"""Two-layer linear networks x -> U V'x whose hidden units (or weights) are masked by noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from overt import _check, equalize, penalty
from overt._check import InputError, InputTypeError
from overt._types import Floats
from overt.linear import dropconnect, kernels, objective
from overt.linear.bounds import (
    EXACT,
    Envelope,
    certificate,
    envelopes,
    numerical_rank,
    shrink,
    spectral_bound,
    status_of,
)
from overt.linear.masks import mask_of
from overt.linear.problem import Problem, problem
from overt.linear.runs import Rate, gradient_descent, initial_weights, run_seeds
from overt.linear.solver import closed_form, proposals, refine
from overt.noise import DropBlock, DropConnect, Noise
from overt.results import Certificate, Solution, Trace
from overt.spectral import induced


class LinearNetwork:
    """A two-layer linear network trained with noise on its hidden layer.

    The objective is E|y - U diag(z/mu) V'x|^2 = E|y - U V'x|^2 + penalty(U, V), without a factor
    1/2; for data the mean over samples.

    Parameters
    ----------
    target
        M (outputs x inputs) with y = M x: an array, a scipy sparse matrix or a LinearOperator.
    width
        Number of hidden units.
    noise
        Dropout, DropBlock, DropConnect or CovarianceNoise. `noise.at_width(width)` is the
        width-adjusted form of structured dropout.
    X, Y
        Data instead of a target, samples x features.
    second_moment
        E[x x'] (inputs x inputs) for a dense target; the identity if None.

    Examples
    --------
    >>> import numpy as np, overt
    >>> net = overt.LinearNetwork(target=np.diag([3.0, 1.0]), width=2, noise=overt.Dropout(0.5))
    >>> best = net.solve()
    >>> best.rank, str(best.status)
    (1, 'optimal')
    >>> np.round(best.product, 6)
    array([[2., 0.],
           [0., 0.]])
    """

    def __init__(
        self,
        target: Any = None,
        width: int | None = None,
        noise: Noise | None = None,
        *,
        X: Any = None,
        Y: Any = None,
        second_moment: Any = None,
    ) -> None:
        if width is None or noise is None:
            raise InputError("width and noise must be given, as in LinearNetwork(M, 20, noise)")
        self.width = _check.whole("width", width)
        if not isinstance(noise, Noise):
            raise InputTypeError(f"noise must be a noise such as overt.Dropout(0.5), got {noise!r}")
        self.noise = noise
        self.problem: Problem = problem(target, X, Y, second_moment)
        if not isinstance(noise, DropConnect):
            noise.mean(self.width)  # the noise must fit the width

    def penalty(self, U: Any, V: Any) -> float:
        """Return what the noise adds to the expected squared error."""
        U, V = self._checked(U, V)
        quadratic = self.problem.quadratic
        if isinstance(self.noise, DropConnect):
            root = np.sqrt(quadratic.input_variances)[:, None]
            return float(penalty.dropconnect(U, root * V, self.noise.drop_prob))
        return float(penalty.shallow(U, quadratic.whiten(V), self.noise))

    def objective(self, U: Any, V: Any) -> float:
        """Return E|y - U diag(z/mu) V'x|^2, exactly."""
        U, V = self._checked(U, V)
        return self.problem.quadratic.loss(U, V) + self.penalty(U, V)

    def certify(self, U: Any, V: Any) -> Certificate:
        """Return how far (U, V) is from the global optimum.

        The objective is recomputed from the data; the lower bound holds for all weights.
        """
        U, V = self._checked(U, V)
        return certificate(
            self.objective(U, V),
            self._bound,
            self.problem.quadratic.scale,
            self._imbalance(U, V),
            self._distance(U, V),
        )

    def solve(self) -> Solution:
        """Return the best factors that are known, and a certificate.

        The status is "optimal" where they reach the proved lower bound: always for Dropout, for
        DropConnect unless correlated inputs meet too small a width, for DropBlock with enough
        blocks. Elsewhere it is "lower_bound", and the factors come from descent started at the
        bound's solution.
        """
        U, V = self._factors()
        certified = self.certify(U, V)
        rank = numerical_rank(_product_spectrum(U, self.problem.quadratic.whiten(V)))
        return Solution(U, V, certified.objective, rank, status_of(certified), certified)

    def train(
        self,
        steps: int = 20_000,
        learning_rate: Rate = 1e-3,
        seeds: int | Sequence[int] = 1,
        *,
        noise: str = "sampled",
        init: Any = None,
        init_scale: float | None = None,
        checkpoints: int = 40,
        workers: int | None = None,
    ) -> Trace:
        """Run stochastic gradient descent with sampled masks from many seeds at once.

        Parameters
        ----------
        steps, learning_rate
            One sample and one mask per step, along the gradient of half the squared error.
            `learning_rate` is a number or a function of an array of step numbers.
        seeds
            How many runs (seeds 0, 1, ...), or the list of seeds.
        noise
            "sampled", or "expected": gradient descent on the exact objective.
        init, init_scale
            (U, V) to start from, or the standard deviation of Gaussian entries; by default that at
            which the initial product is as large as the target.
        checkpoints
            How often the exact objective is recorded, on a logarithmic grid of steps.
        workers
            Threads; the result does not depend on it.
        """
        _check.choice("noise", noise, ("sampled", "expected"))
        quadratic, pair = self.problem.dense("train"), self.problem.sampling()
        m, n, d = quadratic.outputs, quadratic.inputs, self.width
        if init_scale is None:
            init_scale = (np.sum(quadratic.T**2) / (m * n * d)) ** 0.25 or 1.0
        U0V0 = None if init is None else self._checked(*init)
        begin = initial_weights([(m, d), (n, d)], init_scale, U0V0)
        largest = float(quadratic.svd[1][0])

        def measure(weights: list[Floats]) -> tuple[float, float, int]:
            U, V = weights
            s = _product_spectrum(U, quadratic.whiten(V))
            return self.objective(U, V), self._imbalance(U, V), int(np.sum(s > 0.01 * largest))

        def sampled(weights: list[Floats], rates: Floats, rng: np.random.Generator) -> int:
            Ut, Vt = (np.ascontiguousarray(W.T) for W in weights)
            if isinstance(self.noise, DropConnect):
                taken = kernels.weight_steps(Ut, Vt, *pair, rates, rng, self.noise.drop_prob)
            else:
                taken = kernels.unit_steps(Ut, Vt, *pair, rates, rng, *mask_of(self.noise, d))
            weights[0][:], weights[1][:] = Ut.T, Vt.T
            return int(taken)

        return run_seeds(
            begin,
            sampled if noise == "sampled" else gradient_descent(self._value_in_V),
            measure,
            steps=steps,
            learning_rate=learning_rate,
            seeds=seeds,
            checkpoints=checkpoints,
            workers=workers,
            optimum=self._bound,
        )

    @cached_property
    def _tightest(self) -> tuple[float, Envelope]:
        """The highest of the envelopes' bounds, and the envelope that gives it."""
        quadratic, found = self.problem.quadratic, []
        for envelope in envelopes(self.noise, self.width):
            top = quadratic.leading(self.width, envelope)
            found.append((spectral_bound(top.s, top.rest, envelope), envelope))
        return max(found, key=lambda pair: pair[0])

    @cached_property
    def _dropconnect(self) -> tuple[Floats, float] | None:
        """The optimal scaled map and bound where the penalty's geometry is not the loss's."""
        if not isinstance(self.noise, DropConnect) or self.problem.uncorrelated:
            return None
        weight, _ = induced(self.noise, self.width)
        return dropconnect.best_map(self.problem.dense("solve"), weight)

    @cached_property
    def _bound(self) -> float:
        if self._dropconnect is not None:
            return self._dropconnect[1]
        return float(self.problem.quadratic.residual) + self._tightest[0]

    @cached_property
    def _best_map(self) -> tuple[Floats, Floats]:
        """(F, G): the map that attains the bound is F G' in whitened coordinates."""
        quadratic = self.problem.quadratic
        if self._dropconnect is not None:
            D = np.sqrt(quadratic.input_variances)
            return self._dropconnect[0] / np.where(D > 0, D, 1.0), quadratic.L.T
        envelope = self._tightest[1]
        top = quadratic.leading(self.width, envelope)
        return top.left * shrink(top.s, envelope), top.right

    def _factors(self) -> tuple[Floats, Floats]:
        quadratic, noise = self.problem.quadratic, self.noise
        if self._dropconnect is not None and isinstance(noise, DropConnect):
            B = self._dropconnect[0]
            return dropconnect.factors(quadratic, noise.strength, self.width, B)
        envelope = self._tightest[1]
        starts = proposals(quadratic.leading(self.width, envelope), envelope, noise, self.width)
        U, P = starts[0]
        if not closed_form(noise):
            dense, Cbar = self.problem.dense("refine by descent"), noise.characteristic(self.width)
            U, P = refine(
                lambda U, P: objective.unit_noise(dense, Cbar, U, P),
                starts,
                lambda value: value - self._bound <= EXACT / 10 * self._bound,
            )
        return U, quadratic.unwhiten(P)

    def _value_in_V(self, U: Floats, V: Floats) -> tuple[float, Sequence[Floats]]:
        quadratic = self.problem.quadratic
        if isinstance(self.noise, DropConnect):
            lam, D = self.noise.strength, quadratic.input_variances
            return objective.weight_noise(quadratic, lam, D, U, V)
        Cbar = self.noise.characteristic(self.width)
        value, (gU, gP) = objective.unit_noise(quadratic, Cbar, U, quadratic.whiten(V))
        return value, (gU, gP if quadratic.L is None else quadratic.L @ gP)

    def _imbalance(self, U: Floats, V: Floats) -> float:
        quadratic = self.problem.quadratic
        if isinstance(self.noise, DropConnect):
            return float(equalize.imbalance(U, np.sqrt(quadratic.input_variances)[:, None] * V))
        P = quadratic.whiten(V)
        if isinstance(self.noise, DropBlock) and self.noise.placement == "grid":
            return float(equalize.block_imbalance(U, P, self.noise.block_size))
        return float(equalize.imbalance(U, P))

    def _distance(self, U: Floats, V: Floats) -> float:
        """|U P' - best|_F from a QR decomposition of the stacked factors."""
        left, right = self._best_map
        P = self.problem.quadratic.whiten(V)
        R1 = _triangle(np.hstack([U, left]))
        R2 = _triangle(np.hstack([P, -right]))
        return float(np.linalg.norm(R1 @ R2.T))

    def _checked(self, U: Any, V: Any) -> tuple[Floats, Floats]:
        U, V = _check.factors(U, V)
        U, V = np.asarray(U, dtype=float), np.asarray(V, dtype=float)
        expected = (self.problem.outputs, self.width), (self.problem.inputs, self.width)
        if (U.shape, V.shape) != expected:
            raise InputError(
                f"U must be {expected[0][0]} x {expected[0][1]} and V {expected[1][0]} x "
                f"{expected[1][1]}, got {U.shape} and {V.shape}"
            )
        return U, V


def _product_spectrum(U: Floats, P: Floats) -> Floats:
    """Return the singular values of U P' from small triangular factors."""
    R1, R2 = _triangle(U), _triangle(P)
    return np.asarray(np.linalg.svd(R1 @ R2.T, compute_uv=False))


def _triangle(A: Floats) -> Floats:
    """Return R of the decomposition A = Q R."""
    return np.asarray(np.linalg.qr(A, mode="r"))
