"""Critical points of the tied problem f(U) = |M - U U'|^2 + lam sum_i |u_i|^4.

U is critical iff (M - U U') U = lam U diag(|u_i|^2). The equalized ones are indexed by the sets E
of eigen-directions that they keep: U U' has the eigenvalues m_i - alpha_E for i in E, with
alpha_E = lam h_E / (r + lam |E|), where all of them must be positive. The top rho directions give
the global minimum; every other one has a direction of negative curvature, for every lam > 0 (the
printed Theorem 4.3 asks for a small lam).

It is known. The Hessian keeps apart D = w_j y', w_j an eigenvector outside E, where it is
4 (U'U - (m_j - alpha_E) I) on y, and D within the span of U, where it is 2 |S + S'|^2 + 8 lam
sum_i (u_i'd_i)^2 >= 0, S = D U'. So the most negative curvature is that of the largest m_j left
out, along the unit y with the least |U y|.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from overt import equalize
from overt._check import Floats, InputError, whole
from overt.results import Result
from overt.spectral import shrinkage_rank


@dataclass(frozen=True, repr=False, eq=False)
class CriticalPoint(Result):
    """An equalized critical point.

    Attributes
    ----------
    directions
        Indices of the selected eigenvectors of M, by decreasing eigenvalue.
    U, objective
        The point and its value.
    kind
        "minimum" or "strict saddle".
    curvature
        The most negative eigenvalue of the Hessian; zero if there is none.
    escape
        The unit direction of that curvature, or zeros.
    """

    directions: tuple[int, ...]
    U: Floats
    objective: float
    kind: str
    curvature: float
    escape: Floats


@dataclass(frozen=True, repr=False, eq=False)
class Landscape(Result):
    """The equalized critical points of a tied autoencoder, lowest first."""

    M: Floats
    width: int
    strength: float
    points: tuple[CriticalPoint, ...]

    @property
    def strict_saddle(self) -> bool:
        """Whether every point that is not a global minimum has negative curvature."""
        lowest = self.points[0].objective
        above = lowest + 1e-9 * float(np.sum(self.M**2))
        return all(
            p.kind == "strict saddle" for p in self.points if p.objective > above
        )


def landscape(
    M: Floats, width: int, strength: float, *, max_points: int = 200
) -> Landscape:
    """Enumerate the equalized critical points, at most `max_points` of them."""
    values, vectors = np.linalg.eigh(M)
    values = values[::-1]
    vectors = vectors[:, ::-1]
    most = min(width, int(np.sum(values > 0)))
    if most == 0:
        raise InputError(
            "target must have a positive eigenvalue, or zero is the only minimum"
        )
    # The global minimum keeps the top directions; it comes first whatever is cut off.
    best = tuple(
        range(shrinkage_rank(values[:most], np.cumsum(values[:most]), strength / width))
    )
    sets = islice(
        feasible_sets(values[values > 0], width, strength),
        whole("max_points", max_points),
    )
    found = [best, *(kept for kept in sets if kept != best)]
    points = [_point(M, values, vectors, width, strength, kept) for kept in found]
    points.sort(key=lambda p: p.objective)
    return Landscape(M, width, strength, tuple(points))


def feasible_sets(m: Floats, width: int, lam: float) -> Iterator[tuple[int, ...]]:
    """Yield the sets E with m_i > alpha_E for all i in E, the smaller ones first.

    A set stays feasible when its smallest member is removed, so each is reached from a smaller
    one by adding a smaller value, and what is tried is what is found: m decreases, and j may join
    a set of sum h and size k iff m_j (width + lam k) > lam h.
    """
    level: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for size in range(width + 1):
        yield from (kept for kept, _ in level)
        larger = []
        for kept, h in level:
            first = kept[-1] + 1 if kept else 0
            joining = np.searchsorted(-m, -lam * h / (width + lam * size))
            larger += [((*kept, j), h + m[j]) for j in range(first, int(joining))]
        level = larger


def _point(
    M: Floats,
    values: Floats,
    vectors: Floats,
    r: int,
    lam: float,
    kept: tuple[int, ...],
) -> CriticalPoint:
    m = values[list(kept)]
    a = m - lam * m.sum() / (r + lam * len(m))
    W = vectors[:, list(kept)]
    U = np.zeros((len(values), r))
    if kept:
        U, _ = equalize.balanced_factors(W, a, W, r)
    objective = float(
        np.sum((M - U @ U.T) ** 2) + lam * np.sum(np.sum(U**2, axis=0) ** 2)
    )
    curvature, escape = _escape(values, vectors, U, lam, kept)
    saddle = curvature < -1e-7 * abs(values[0])
    kind = "strict saddle" if saddle else "minimum"
    return CriticalPoint(kept, U, objective, kind, curvature, escape)


def _escape(
    values: Floats, vectors: Floats, U: Floats, lam: float, kept: tuple[int, ...]
) -> tuple[float, Floats]:
    """Return the most negative curvature and its direction; zeros if there is none."""
    left_out = [i for i in range(len(values)) if i not in kept]
    if left_out:
        # The last singular value is zero if U has more columns than rows.
        _, sigma, right = np.linalg.svd(U)
        alpha = lam * float(np.sum(U**2)) / U.shape[1]
        curvature = float(4 * (sigma[-1] ** 2 + alpha - values[left_out[0]]))
        if curvature < 0:
            return curvature, np.outer(vectors[:, left_out[0]], right[-1])
    return 0.0, np.zeros_like(U)
