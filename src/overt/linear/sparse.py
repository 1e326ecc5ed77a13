"""Large targets (scipy sparse matrices, linear operators) with isotropic inputs.

Only as many singular values are computed as the shrinkage threshold lets through.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator, svds

from overt._check import InputError, InputTypeError
from overt._types import Floats
from overt.linear.bounds import Envelope, Leading, UnitShares, shrink
from overt.linear.regression import EPS, DenseRegression
from overt.spectral import KSupport


def is_implicit(target: Any) -> bool:
    """Return whether the target is a scipy sparse matrix or a linear operator."""
    return sparse.issparse(target) or isinstance(target, LinearOperator)


class ImplicitRegression:
    """|M - A|_F^2 for a target M that is only multiplied with."""

    residual = 0.0

    def __init__(self, target: Any) -> None:
        if 0 in target.shape:
            raise InputError(f"target must not be empty, got shape {target.shape}")
        self.T = aslinearoperator(target)
        self.outputs, self.inputs = target.shape
        self.input_variances = np.ones(self.inputs)
        self.given: dict[str, Any] = {}
        self._known: dict[int, tuple[Floats, Floats, Floats]] = {}
        if not sparse.issparse(target):
            self.scale = self._squared_norm()
            return
        if target.dtype.kind != "f":
            raise InputTypeError(
                f"target must hold floating-point numbers, got {target.dtype}; convert it "
                "first, for example with target.astype(float)"
            )
        target = target.tocsr()
        if not np.isfinite(target.data).all():
            raise InputError("target must be finite, got NaN or infinite values")
        self.T = aslinearoperator(target)
        self.scale = float(np.sum(np.square(target.data, dtype=float)))

    def uncorrelated(self) -> bool:
        """Return True: the inputs are isotropic."""
        return True

    def loss(self, U: Floats, V: Floats) -> float:
        """|M|^2 - 2 <M, U V'> + <U'U, V'V>."""
        inner = float(np.sum(U * (self.T @ V)))
        return self.scale - 2 * inner + float(np.sum((U.T @ U) * (V.T @ V)))

    def whiten(self, V: Floats) -> Floats:
        """Return V: the inputs are isotropic."""
        return V

    hidden = unwhiten = whiten

    def rounding(self, bound: float, loss: float, nuclear: float) -> float:
        """Return what cancels in |M|^2 - 2 <M, A> + |A|^2, and in |M|^2 minus squared values."""
        return 64 * EPS * self.scale

    def dense(self, purpose: str) -> DenseRegression:
        """Refuse: the target is not stored as a matrix."""
        raise InputError(
            f"a sparse or implicit target cannot be used to {purpose}; pass a dense array"
        )

    def leading(self, width: int, envelope: Envelope) -> Leading:
        """Return leading singular triplets, in growing batches, until the last is shrunk to 0."""
        limit = min(self.outputs, self.inputs)
        most = min(width, limit)
        norm = None if isinstance(envelope, UnitShares) else envelope[1]
        # A k-support norm must see its k largest values, whatever becomes of them.
        count = min(most, max(8, norm.k + 1) if isinstance(norm, KSupport) else 8)
        while True:
            left, s, right = self._svd(count)
            if count == most or shrink(s, envelope)[-1] == 0:
                return Leading(
                    left, s, right, max(0.0, self.scale - float(np.sum(s**2)))
                )
            count = min(2 * count, most)

    def _squared_norm(self) -> float:
        """|M|_F^2 of an operator, by blocks of columns."""
        units = (np.eye(self.inputs, 64, -first) for first in range(0, self.inputs, 64))
        return sum(float(np.sum(self.T.matmat(block) ** 2)) for block in units)

    def _svd(self, count: int) -> tuple[Floats, Floats, Floats]:
        if count not in self._known:
            self._known[count] = self._leading_triplets(count)
        return self._known[count]

    def _leading_triplets(self, count: int) -> tuple[Floats, Floats, Floats]:
        limit = min(self.outputs, self.inputs)
        if count >= limit - 1:
            left, s, right = np.linalg.svd(
                self.T @ np.eye(self.inputs), full_matrices=False
            )
            return left[:, :count], s[:count], right[:count].T
        # A fixed start makes the result reproducible.
        start = np.random.default_rng(0).standard_normal(limit)
        left, s, right = svds(self.T, k=count, v0=start)
        order = np.argsort(-s)
        return left[:, order], s[order], right[order].T
