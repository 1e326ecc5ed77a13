"""What a network is asked to fit: a target with random inputs, or data."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from overt import _check
from overt._check import InputError
from overt._types import Floats
from overt.linear.quadratic import Quadratic, from_data, from_target

NOTHING: Floats = np.empty((0, 0))


class Problem:
    """The squared loss and how to draw samples for it."""

    def __init__(self, quadratic: Any, pair: tuple[Floats, Floats, Floats, Floats]) -> None:
        self.quadratic, self._pair = quadratic, pair
        self.outputs, self.inputs = quadratic.outputs, quadratic.inputs

    @cached_property
    def uncorrelated(self) -> bool:
        """Whether the inputs' second moment is diagonal."""
        L = self.quadratic.L
        if L is None:
            return True
        C = L @ L.T
        return bool(np.abs(C - np.diag(np.diag(C))).max() <= 1e-14 * np.abs(C).max())

    def dense(self, purpose: str) -> Quadratic:
        """Return the loss if it holds dense matrices, which this purpose needs."""
        if not isinstance(self.quadratic, Quadratic):
            raise InputError(
                f"a sparse or implicit target cannot be used to {purpose}; pass a dense array"
            )
        return self.quadratic

    def sampling(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return (M, L, X, Y) as the training kernels take them; absent ones are empty."""
        self.dense("train")
        return self._pair


def problem(target: Any, X: Any, Y: Any, second_moment: Any) -> Problem:
    """Return the problem that the arguments of a network describe."""
    if (target is None) == (X is None and Y is None):
        raise InputError("give either target, or both X and Y (samples x features)")
    if target is None:
        if X is None or Y is None:
            raise InputError("X and Y (samples x features) must be given together")
        if second_moment is not None:
            raise InputError("second_moment belongs to a target; data have their own")
        quadratic = from_data(X, Y)
        x, y = np.ascontiguousarray(X, dtype=float), np.ascontiguousarray(Y, dtype=float)
        return Problem(quadratic, (NOTHING, NOTHING, x, y))
    if not isinstance(target, (np.ndarray, list, tuple)):
        from overt.linear.sparse import ImplicitQuadratic, is_implicit

        if is_implicit(target):
            if second_moment is not None:
                raise InputError("second_moment needs a dense target")
            return Problem(ImplicitQuadratic(target), (NOTHING,) * 4)
    quadratic = from_target(_as_numpy(target), second_moment)
    M = np.ascontiguousarray(_as_numpy(target), dtype=float)
    L = NOTHING if quadratic.L is None else np.ascontiguousarray(quadratic.L)
    return Problem(quadratic, (M, L, NOTHING, NOTHING))


def _as_numpy(target: Any) -> Any:
    target = _check.matrix("target", target)
    return target if isinstance(target, np.ndarray) else np.asarray(target.detach().cpu())
