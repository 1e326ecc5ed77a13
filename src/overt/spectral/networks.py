"""What networks make of a map: the norm that a noise induces, and the cost of weight decay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from overt import _check
from overt._check import InputError, InputTypeError, bounded, namespace
from overt._types import Array
from overt.noise.blocks import DropBlock
from overt.noise.masks import DropConnect, Dropout, Noise
from overt.spectral.norms import KSupport, SpectralNorm, SquaredNuclear


class WeightedTrace:
    """|diag(sqrt p) A diag(sqrt q)|_*^2, which completion under a product law induces.

    Parameters
    ----------
    row_weights, col_weights
        p and q, the probabilities (or any positive weights) of the rows and columns.

    Notes
    -----
    Thesis, Proposition 4: dropout with entries drawn from p(i) q(j) induces (lam/d) times this.
    `matrix_prox` is taken in the geometry of the sampling law,
    argmin_B sum_ij p_i q_j (A_ij - B_ij)^2 + weight * matrix_value(B).
    """

    def __init__(self, row_weights: Array, col_weights: Array) -> None:
        self.row_weights = _positive("row_weights", row_weights)
        self.col_weights = _positive("col_weights", col_weights)

    def __repr__(self) -> str:
        return f"WeightedTrace({self.row_weights!r}, {self.col_weights!r})"

    @bounded
    def weigh(self, A: Array) -> Array:
        """diag(sqrt p) A diag(sqrt q)."""
        A = self._fitting(A)
        return self.row_weights[:, None] ** 0.5 * A * self.col_weights[None, :] ** 0.5

    @bounded
    def unweigh(self, B: Array) -> Array:
        """diag(p)^(-1/2) B diag(q)^(-1/2)."""
        B = self._fitting(B)
        return B / (self.row_weights[:, None] ** 0.5 * self.col_weights[None, :] ** 0.5)

    @bounded
    def matrix_value(self, A: Array) -> Array:
        """|diag(sqrt p) A diag(sqrt q)|_*^2."""
        return SquaredNuclear().matrix_value(self.weigh(A))

    @bounded
    def matrix_dual(self, A: Array) -> Array:
        """Return the largest squared singular value of diag(p)^(-1/2) A diag(q)^(-1/2)."""
        return SquaredNuclear().matrix_dual(self.unweigh(A))

    @bounded
    def matrix_prox(self, A: Array, weight: float) -> Array:
        """argmin_B sum_ij p_i q_j (A_ij - B_ij)^2 + weight * matrix_value(B)."""
        return self.unweigh(SquaredNuclear().matrix_prox(self.weigh(A), weight))

    def _fitting(self, A: Array) -> Array:
        A = _check.matrix("A", A)
        _check.same_library(
            A=A, row_weights=self.row_weights, col_weights=self.col_weights
        )
        expected = (self.row_weights.shape[0], self.col_weights.shape[0])
        if tuple(A.shape) != expected:
            raise InputError(
                f"A must be {expected[0]} x {expected[1]}, got {tuple(A.shape)}"
            )
        return A


def nu(widths: Sequence[int], drop_prob: Any) -> float:
    """prod_j (1 + lam_j / d_j) - 1 over the hidden widths d_j.

    The effective regularization parameter of deep dropout (thesis, Definition 4, whose sum over
    choices of layers this product equals). `drop_prob` is one number or one per hidden layer.

    Examples
    --------
    >>> import overt
    >>> round(overt.spectral.nu([2, 4], drop_prob=0.5), 6)  # (1 + 1/2)(1 + 1/4) - 1
    0.875
    """
    d = _check.widths(widths)
    probs = _check.drop_probs(drop_prob, len(d))
    return math.expm1(
        sum(math.log1p(p / (1 - p) / width) for p, width in zip(probs, d, strict=True))
    )


@bounded
def factorization_cost(s: Array, depth: int) -> Array:
    """L sum_i s_i^(2/L) = min |theta|^2 over L-layer linear factorizations (one-way jumps, 2.2)."""
    s, L = _check.floating("s", s, ndim=1), _check.whole("depth", depth)
    xp = namespace(s)
    return L * xp.sum(xp.abs(s) ** (2 / L))


def induced(noise: Noise, width: int) -> tuple[float, SpectralNorm]:
    """Return (weight, norm): the noise at this width costs at least weight * norm.value(s).

    s is the spectrum of A C^(1/2) for a network map A. Dropout and DropConnect: (lam/d) times the
    squared nuclear norm (DropConnect with diag(C) in place of C). DropBlock on a grid of blocks of
    b: (lam b/d) times the squared k-support norm with k = b. The bound is attained by balanced
    factors for Dropout and DropConnect with d >= rank, and for DropBlock with enough blocks.
    """
    d = _check.whole("width", width)
    match noise:
        case Dropout(drop_prob=float()) | DropConnect():
            return noise.strength / d, SquaredNuclear()
        case DropBlock(placement="grid", block_size=b):
            noise.mean(d)  # the grid must fit
            return noise.strength * b / d, KSupport(b)
    raise InputTypeError(
        "an induced norm is known for Dropout with one drop_prob, DropConnect, and DropBlock with "
        f"placement='grid', got {noise!r}"
    )


def _positive(name: str, value: Any) -> Array:
    value = _check.floating(name, value, ndim=1)
    if not bool(namespace(value).all(value > 0)):
        raise InputError(f"{name} must be positive, got {value!r}")
    return value
