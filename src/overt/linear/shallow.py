"""Two-layer linear networks x -> U V'x whose hidden units (or weights) are masked by noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from overt import _check
from overt._check import InputError, InputTypeError
from overt._types import Floats
from overt.linear.network import (
    NoiseEffect,
    NoisyNetwork,
    grade,
    regression_of,
    require_consistent,
    target_or_data,
)
from overt.linear.regression import Regression
from overt.linear.units import UnitNoise
from overt.linear.weights import WeightNoise
from overt.noise import DropConnect, Noise
from overt.results import Solution


class LinearNetwork(NoisyNetwork):
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
        Dropout, KeepExactly, DropBlock, DropConnect, CovarianceNoise, or a noise over units of
        your own.
        `noise.at_width(width)` is the width-adjusted form of structured dropout.
    X, Y
        Data in place of a target, samples x features.
    second_moment
        E[x x'] (inputs x inputs) for a dense target; the identity if None.
    input_noise
        A noise on the inputs too, such as Dropout(0.2): it adds Gamma o E[x x'] to their second
        moment, a ridge, and everything stays exact.

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

    kind = "two-layer"
    noise: Noise

    @target_or_data
    def __init__(
        self,
        target: Any,
        width: int,
        noise: Noise,
        *,
        X: Any = None,
        Y: Any = None,
        second_moment: Any = None,
        input_noise: Noise | None = None,
    ) -> None:
        self.width = _check.whole("width", width)
        self.noise = noise
        self.input_noise = input_noise
        task = regression_of(target, X, Y, second_moment, input_noise)
        self.effect = effect_of(noise, self.width, task)

    def __repr__(self) -> str:
        task = self.effect.regression
        return f"LinearNetwork({task.inputs} -> {self.width} -> {task.outputs}, {self.noise!r})"

    def solve(self, rank: int | None = None) -> Solution:
        """Return the best factors that are known, and a certificate.

        With `rank` they are the best whose map has at most that rank.

        The status is "optimal" where they reach the proved lower bound: always for Dropout, with
        one probability or one per unit, and for KeepExactly; for DropConnect unless correlated
        inputs meet too small a width, for DropBlock with enough blocks. Elsewhere it is
        "lower_bound", and the factors come from descent started at the bound's solution. For noises
        whose units are correlated the package Clarabel, if it is installed, raises the bound much
        (up to 32 units).
        """
        effect = self._limited(rank)
        U, V = effect.best_weights()
        return Solution(U, V, *grade(effect, U, V))

    def _start(self, init: Any) -> Sequence[Floats]:
        if not isinstance(init, (tuple, list)):
            raise InputError(f"init must be a pair of weights (U, V), got {init!r:.60}")
        return self._checked(*init)

    def _checked(self, *weights: Any) -> Sequence[Floats]:
        if len(weights) != 2:
            raise InputError(f"weights must be two, U and V, got {len(weights)}")
        U, V = _check.factors(*weights)
        U = _check.doubles("U", U)
        V = _check.doubles("V", V)
        expected = tuple(self.effect.shapes)
        if (U.shape, V.shape) != expected:
            raise InputError(
                f"U must be {expected[0][0]} x {expected[0][1]} and V {expected[1][0]} x "
                f"{expected[1][1]}, got {U.shape} and {V.shape}"
            )
        return U, V


def effect_of(noise: Noise, width: int, task: Regression) -> NoiseEffect:
    """Return what the noise does to a two-layer network: the one place that chooses."""
    if not isinstance(noise, Noise):
        raise InputTypeError(
            f"noise must be a noise such as overt.Dropout(0.5), got {noise!r}"
        )
    if isinstance(noise, DropConnect):
        return WeightNoise(task, width, noise)
    if noise.masks != "units":
        raise InputTypeError(
            f"of the noises over weights only DropConnect is known, got {noise!r}"
        )
    require_consistent(noise, width)
    return UnitNoise(task, width, noise)
