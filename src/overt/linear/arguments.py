"""Validate the arguments of a network: the regression, and the effect of a noise on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from overt._check import InputError, InputTypeError, bounded
from overt.linear.effect import NoiseEffect, Regression
from overt.linear.regression import from_data, from_target
from overt.linear.units import UnitNoise
from overt.linear.weights import WeightNoise
from overt.noise import DropConnect, Noise, check
from overt.noise.checking import is_built_in

R = TypeVar("R")

SMALLEST = 1e-150
"""Size of the largest entry of a target, below which its square has lost digits."""


@bounded
def regression(
    target: Any, X: Any, Y: Any, second_moment: Any, input_noise: Noise | None = None
) -> Regression:
    """Return what the arguments of a network ask it to fit."""
    if (target is None) == (X is None and Y is None):
        raise InputError("give either target, or both X and Y (samples x features)")
    if target is None:
        if X is None or Y is None:
            raise InputError("X and Y (samples x features) must be given together")
        if second_moment is not None:
            raise InputError("second_moment belongs to a target; data have their own")
        task, given = from_data(X, Y, input_noise), {"X": X, "Y": Y}
    else:
        if not isinstance(target, (np.ndarray, list, tuple)):
            from overt.linear.sparse import (
                ImplicitRegression,
                is_implicit,
            )  # loads scipy

            if is_implicit(target):
                if second_moment is not None or input_noise is not None:
                    raise InputError(
                        "second_moment and input_noise need a dense target"
                    )
                return ImplicitRegression(target)
        task = from_target(target, second_moment, input_noise)
        given = {"target": target, "C": second_moment}
    if 0 < np.abs(task.T).max() < SMALLEST:
        raise InputError(
            f"the target must be 0 or have entries above {SMALLEST:g}, as squares of smaller "
            f"numbers vanish, got at most {np.abs(task.T).max():.3g}; multiply it by a constant"
        )
    if input_noise is None:  # a proof is about the numbers as they were given
        task.given = {name: value for name, value in given.items() if value is not None}
    return task


def target_or_data(function: Callable[..., R]) -> Callable[..., R]:
    """Let a function of (target, width, ...) be called on data, X= and Y=, without a target."""
    position = list(inspect.signature(function).parameters).index("target")

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> R:
        if len(args) <= position:
            kwargs.setdefault("target", None)
        return function(*args, **kwargs)

    return call


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


def require_consistent(noise: Noise, width: int) -> None:
    """Check a noise that is not one of overt's own, before anything is claimed about it."""
    if not is_built_in(noise):
        check(noise, width)
