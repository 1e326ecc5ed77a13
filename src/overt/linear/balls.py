"""Ball arithmetic for proofs: matrices of enclosures, and verified bounds on eigenvalues.

Whatever is called a proposal here is computed in float64 or in midpoints of balls and may be wrong;
what follows from it is enclosed. Needs python-flint.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import flint
import numpy as np

from overt._types import Floats

BITS = 112
"""Bits that proposals keep: their square is what a bound loses."""

CLUSTER = 1e-8
"""Relative distance below which eigenvalues count as one when eigenvectors are refined."""


def balls(A: Floats) -> Any:
    """Return a matrix of exact numbers."""
    return flint.arb_mat(A.shape[0], A.shape[1], A.ravel().tolist())


def floats(A: Any) -> Floats:
    """Return the midpoints."""
    return np.array([float(x) for x in A.mid().entries()]).reshape(A.nrows(), A.ncols())


def identity(n: int) -> Any:
    """Return the identity."""
    return flint.arb_mat(n, n, [int(i == j) for i in range(n) for j in range(n)])


def dot(A: Any, B: Any) -> Any:
    """Return the sum of the products of entries."""
    pairs = zip(A.entries(), B.entries(), strict=True)
    return sum((x * y for x, y in pairs), flint.arb(0))


def diagonal(A: Any) -> list[Any]:
    """Return the diagonal."""
    return [A[i, i] for i in range(A.nrows())]


def ratio(x: Fraction) -> Any:
    """Return a ball around a fraction."""
    return flint.arb(flint.fmpq(x.numerator, x.denominator))


def fraction(x: Any) -> Fraction:
    """Return an exact ball's value."""
    mantissa, exponent = x.man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


def rounded(A: Any, bits: int = BITS) -> Any:
    """Return the midpoints, exact, with this many bits."""
    with flint.ctx.workprec(bits):
        return (A * flint.arb(1)).mid()


def positive(x: Any) -> Any:
    """Return the upper end of a ball, or 0 if it is negative; what is not a number stays so."""
    end = x.upper()
    return flint.arb(0) if end <= 0 else end


def distance_from_identity(G: Any) -> Any:
    """Return |G - I|_F, from above."""
    E = G - identity(G.nrows())
    return dot(E, E).upper().sqrt().upper()


def eigenvalues_below(K: Any, X: Any) -> list[Any]:
    """Return, decreasing, upper bounds on the positive eigenvalues of the symmetric K.

    With S = X'K X and |X'X - I|_F <= delta < 1, Ostrowski and Weyl give
    lambda_i(K) <= (S_ii + |off(S)|_F) / (1 - delta), S_ii sorted. X is any proposal.
    """
    S = X.transpose() * (K * X)
    n, entries = S.nrows(), S.entries()
    off = sum((x * x for i, x in enumerate(entries) if i % (n + 1)), flint.arb(0)).upper().sqrt()
    left = 1 - distance_from_identity(X.transpose() * X)
    if not left > 0:
        raise ArithmeticError("the proposed basis is too far from orthogonal")
    bounds = [positive((x + off) / left) for x in diagonal(S)]
    return sorted(bounds, key=fraction, reverse=True)


def eigenvectors(K: Any, steps: int = 1) -> Any:
    """Propose eigenvectors of the symmetric K to about twice the digits of float64, or more.

    A Newton step on LAPACK's vectors doubles their digits; where eigenvalues come together, the
    block between them is diagonalized after its mean is taken out.
    """
    K = K.mid()
    approximate = floats(K)
    X = orthogonal(balls(np.linalg.eigh((approximate + approximate.T) / 2)[1]))
    for _ in range(steps):
        X = orthogonal((X * _newton(K, X)).mid())
    return rounded(X)


def _newton(K: Any, X: Any) -> Any:
    """Propose what to multiply vectors X with: Q (I + E), E off the blocks of close eigenvalues."""
    S = (X.transpose() * (K * X).mid()).mid()
    Sf, n = floats(S), S.nrows()
    values = np.diag(Sf)
    near = max(CLUSTER * float(np.abs(values).max()), 1e-300)
    Q, group, start = np.eye(n), np.arange(n), 0
    order = np.argsort(values)
    for end in range(1, n + 1):
        if end < n and values[order[end]] - values[order[end - 1]] <= near:
            continue
        members = order[start:end].tolist()
        group[members], start = start, end
        if len(members) > 1:
            Q[np.ix_(members, members)] = _rotation(S, members)
    F = Q.T @ (Sf - np.diag(values)) @ Q
    gaps = values[None, :] - values[:, None]
    apart = group[:, None] != group[None, :]
    E = np.where(apart, F / np.where(apart, gaps, 1.0), 0.0)
    return balls(Q) + balls(Q @ E)


def _rotation(S: Any, members: Sequence[int]) -> Floats:
    """Propose the eigenvectors of a block whose eigenvalues are close to each other."""
    center, size = S[members[0], members[0]], len(members)
    entries = [float((S[i, j] - (center if i == j else 0)).mid()) for i in members for j in members]
    block = np.array(entries).reshape(size, size)
    scale = float(np.abs(block).max())
    if scale == 0:
        return np.eye(size)
    return np.asarray(np.linalg.eigh((block + block.T) / (2 * scale))[1])


def orthogonal(X: Any) -> Any:
    """X (3 I - X'X) / 2 in midpoints: squares the distance from orthogonality."""
    half = flint.arb(1) / 2
    correction = (identity(X.ncols()) * 3 - X.transpose() * X).mid() * half
    return (X * correction.mid()).mid()


def inverse_root(X: Floats, rank: int) -> Any:
    """Propose R (features x rank) with (X R)'X R = I, for X of exactly this rank."""
    scale = np.exp2(np.round(np.log2(np.maximum(np.linalg.norm(X, axis=0), 1e-300))))
    _, sigma, right = np.linalg.svd(X / scale, full_matrices=False)
    R = balls((right[:rank] / sigma[:rank, None]).T / scale[:, None])
    Xb = balls(X)
    for _ in range(7):
        XR = (Xb * R).mid()
        E = XR.transpose() * XR - identity(rank)
        error = float(dot(E.mid(), E.mid()).mid())
        if not error < 1 or error < 1e-56:
            break
        R = (R - R * E.mid() * (flint.arb(1) / 2)).mid()
    return rounded(R, BITS + 48)


def relations(X: Floats) -> list[list[int]]:
    """Return integer vectors z with X z = 0 exactly, a basis of them in echelon form."""
    exponent = int(np.frexp(X)[1].min()) - 53
    rows = [[int(Fraction(x) * Fraction(2) ** -exponent) for x in row] for row in X.tolist()]
    kernel, count = flint.fmpz_mat(rows).nullspace()
    vectors = flint.fmpz_mat([[int(kernel[i, j]) for i in range(X.shape[1])] for j in range(count)])
    echelon = vectors.rref()[0] if count else vectors
    return [[int(x) for x in row] for row in echelon.tolist()]


def dominating(D: Floats) -> Floats:
    """Propose Z with Z'D Z = I."""
    values, vectors = np.linalg.eigh((D + D.T) / 2)
    return np.asarray(vectors / np.sqrt(np.maximum(values, 1e-300)))


def dominated(D: Any, Z: Floats) -> bool:
    """Return whether Z'D Z is dominated by its positive diagonal: D is then positive definite."""
    if not np.isfinite(Z).all():
        return False
    S = (balls(Z).transpose() * (D * balls(Z))).tolist()
    rows = [2 * row[i] - sum((abs(x) for x in row), flint.arb(0)) for i, row in enumerate(S)]
    return all(x > 0 for x in rows)
