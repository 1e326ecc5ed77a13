"""Large targets (scipy sparse matrices, linear operators) with isotropic inputs.

Only as many singular values are computed as the shrinkage threshold lets through.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator, svds

from overt._check import InputError, InputTypeError
from overt._types import Floats
from overt.linear.bounds import Envelope, shrink
from overt.linear.quadratic import Leading
from overt.spectral import KSupport


def is_implicit(target: Any) -> bool:
    """Return whether the target is a scipy sparse matrix or a linear operator."""
    return sparse.issparse(target) or isinstance(target, LinearOperator)


class ImplicitQuadratic:
    """|M - A|_F^2 for a target M that is only multiplied with."""

    L = L_inverse = None
    residual = 0.0

    def __init__(self, target: Any) -> None:
        if 0 in target.shape:
            raise InputError(f"target must not be empty, got shape {target.shape}")
        if sparse.issparse(target):
            if target.dtype.kind != "f":
                raise InputTypeError(
                    f"target must hold floating-point numbers, got {target.dtype}; convert it "
                    "first, for example with target.astype(float)"
                )
            target = target.tocsr()
            if not np.isfinite(target.data).all():
                raise InputError("target must be finite, got NaN or infinite values")
        self._matrix = target
        self._known: dict[tuple[int, Envelope], Leading] = {}
        self.T = aslinearoperator(target)
        self.outputs, self.inputs = target.shape

    @cached_property
    def scale(self) -> float:
        """|M|_F^2, by blocks of columns where M is an operator."""
        if sparse.issparse(self._matrix):
            return float(np.sum(np.square(self._matrix.data, dtype=float)))
        total = 0.0
        for start in range(0, self.inputs, 64):
            stop = min(start + 64, self.inputs)
            block = np.zeros((self.inputs, stop - start))
            block[np.arange(start, stop), np.arange(stop - start)] = 1.0
            total += float(np.sum(self.T.matmat(block) ** 2))
        return total

    @cached_property
    def input_variances(self) -> Floats:
        """diag(C) = 1."""
        return np.ones(self.inputs)

    def loss(self, U: Floats, V: Floats) -> float:
        """|M|^2 - 2 <M, U V'> + <U'U, V'V>."""
        inner = float(np.sum(U * (self.T @ V)))
        return self.scale - 2 * inner + float(np.sum((U.T @ U) * (V.T @ V)))

    def whiten(self, V: Floats) -> Floats:
        """Return V: the inputs are isotropic."""
        return V

    def unwhiten(self, P: Floats) -> Floats:
        """Return P: the inputs are isotropic."""
        return P

    def leading(self, width: int, envelope: Envelope) -> Leading:
        """Return leading singular triplets, in growing batches, until the last is shrunk to 0.

        They are computed once: solving and certifying ask for the same ones.
        """
        if (width, envelope) not in self._known:
            self._known[width, envelope] = self._search(width, envelope)
        return self._known[width, envelope]

    def _search(self, width: int, envelope: Envelope) -> Leading:
        limit = min(self.outputs, self.inputs)
        most = min(width, limit)
        k = envelope[1].k if isinstance(envelope[1], KSupport) else 1
        # A k-support norm must see its k largest values, whatever becomes of them.
        count = min(most, max(8, k + 1))
        while True:
            left, s, right = self._svd(count)
            if count == most or shrink(s, envelope)[-1] == 0:
                return Leading(left, s, right, max(0.0, self.scale - float(np.sum(s**2))))
            count = min(2 * count, most)

    def _svd(self, count: int) -> tuple[Floats, Floats, Floats]:
        limit = min(self.outputs, self.inputs)
        if count >= limit - 1:
            left, s, right = np.linalg.svd(self.T @ np.eye(self.inputs), full_matrices=False)
            return left[:, :count], s[:count], right[:count].T
        # A fixed start makes the result reproducible.
        start = np.random.default_rng(0).standard_normal(limit)
        left, s, right = svds(self.T, k=count, v0=start)
        order = np.argsort(-s)
        return left[:, order], s[order], right[order].T
