"""Proposals of more digits than float64 has, and fast products of exact matrices, by python-flint.

Proposals are computed in the midpoints of balls and may be wrong: a proof verifies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import flint
import numpy as np

from overt._types import Floats
from overt.linear.checker import Matrix, require

BITS = 112
"""Bits that proposals keep: their square is what a bound loses."""

CLUSTER = 1e-8
"""Relative distance below which eigenvalues count as one when eigenvectors are refined."""


class Exact(Matrix):
    """A matrix of integers times a power of two, multiplied by flint."""

    @cached_property
    def integers(self) -> Any:
        """The integers as a matrix of flint's."""
        return flint.fmpz_mat(*self.shape, [x for row in self.rows for x in row])

    def __matmul__(self, other: Matrix) -> Exact:
        require(self.shape[1] == other.shape[0], "matrices whose shapes do not fit")
        product = self.integers * _exact(other).integers
        rows = [[int(x) for x in row] for row in product.tolist()]
        result = Exact(rows, self.exponent + other.exponent)
        result.integers = product
        return result


def _exact(A: Matrix) -> Exact:
    return A if isinstance(A, Exact) else Exact(A.rows, A.exponent)


def around(A: Matrix) -> Any:
    """Return a matrix of balls around the entries of an exact one."""
    return flint.arb_mat(_exact(A).integers) * flint.arb(2) ** A.exponent


def balls(A: Floats) -> Any:
    """Return a matrix of exact numbers."""
    return flint.arb_mat(A.shape[0], A.shape[1], A.ravel().tolist())


def hexadecimal(x: Any) -> str:
    """Return an exact ball's value as the proof file holds it."""
    mantissa, exponent = map(int, x.man_exp())
    return f"{'-' if mantissa < 0 else ''}0x{abs(mantissa):x}p{exponent}"


def _floats(A: Any) -> Floats:
    """Return the midpoints."""
    return np.array([float(x) for x in A.mid().entries()]).reshape(A.nrows(), A.ncols())


def _identity(n: int) -> Any:
    return flint.arb_mat(n, n, [int(i == j) for i in range(n) for j in range(n)])


def _rounded(A: Any, bits: int) -> Any:
    """Return the midpoints, exact, with this many bits."""
    with flint.ctx.workprec(bits):
        return (A * flint.arb(1)).mid()


def eigenvectors(K: Any, steps: int = 1) -> Any:
    """Propose eigenvectors of the symmetric K to about twice the digits of float64, or more.

    A Newton step on LAPACK's vectors doubles their digits; where eigenvalues come together, the
    block between them is diagonalized after its mean is taken out.
    """
    K = K.mid()
    X = _orthogonal(balls(np.linalg.eigh(_floats(K))[1]))
    for _ in range(steps):
        X = _orthogonal((X * _newton(K, X)).mid())
    return _rounded(X, BITS)


def _newton(K: Any, X: Any) -> Any:
    """Propose what to multiply vectors X with: Q (I + E), E off the blocks of close eigenvalues."""
    S = (X.transpose() * (K * X).mid()).mid()
    Sf, n = _floats(S), S.nrows()
    values = np.diag(Sf)
    near, order = CLUSTER * float(np.abs(values).max()), np.argsort(values)
    Q, group = np.eye(n), np.arange(n)
    for members in np.split(order, np.flatnonzero(np.diff(values[order]) > near) + 1):
        group[members] = members[0]
        Q[np.ix_(members, members)] = _rotation(S, members.tolist())
    F = Q.T @ (Sf - np.diag(values)) @ Q
    gaps = values[None, :] - values[:, None]
    apart = group[:, None] != group[None, :]
    E = np.divide(F, gaps, out=np.zeros_like(F), where=apart)
    return balls(Q) + balls(Q @ E)


def _rotation(S: Any, members: Sequence[int]) -> Floats:
    """Propose the eigenvectors of a block whose eigenvalues are close to each other."""
    center, size = S[members[0], members[0]], len(members)
    entries = [
        float((S[i, j] - (center if i == j else 0)).mid())
        for i in members
        for j in members
    ]
    block = np.array(entries).reshape(size, size)
    scale = float(np.abs(block).max())
    if scale == 0:
        return np.eye(size)
    return np.asarray(np.linalg.eigh(block / scale)[1])


def _orthogonal(X: Any) -> Any:
    """X (3 I - X'X) / 2 in midpoints: squares the distance from orthogonality."""
    half = flint.arb(1) / 2
    correction = (_identity(X.ncols()) * 3 - X.transpose() * X).mid() * half
    return (X * correction.mid()).mid()


def inverse_root(X: Floats, rank: int) -> Any:
    """Propose R (features x rank) with (X R)'X R = I, for X of exactly this rank."""
    scale = np.exp2(np.round(np.log2(np.maximum(np.linalg.norm(X, axis=0), 1e-300))))
    _, sigma, right = np.linalg.svd(X / scale, full_matrices=False)
    R = balls((right[:rank] / sigma[:rank, None]).T / scale[:, None])
    Xb = balls(X)
    for _ in range(7):
        XR = (Xb * R).mid()
        E = (XR.transpose() * XR - _identity(rank)).mid()
        error = float(sum((x * x for x in E.entries()), flint.arb(0)).mid())
        if not error < 1 or error < 1e-56:
            break
        R = (R - R * E * (flint.arb(1) / 2)).mid()
    return _rounded(R, BITS + 48)


def relations(X: Floats) -> list[list[int]]:
    """Return integer vectors z with X z = 0 exactly, a basis of them in echelon form."""
    exponent = int(np.frexp(X)[1].min()) - 53
    rows = [
        [int(Fraction(x) * Fraction(2) ** -exponent) for x in row] for row in X.tolist()
    ]
    kernel, count = flint.fmpz_mat(rows).nullspace()
    vectors = flint.fmpz_mat(
        [[int(kernel[i, j]) for i in range(X.shape[1])] for j in range(count)]
    )
    echelon = vectors.rref()[0] if count else vectors
    return [[int(x) for x in row] for row in echelon.tolist()]
