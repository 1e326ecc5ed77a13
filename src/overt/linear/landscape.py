"""Critical points of the tied problem f(U) = |M - U U'|^2 + lam sum_i |u_i|^4.

U is critical iff (M - U U') U = lam U diag(|u_i|^2). The equalized ones are indexed by the sets E
of eigen-directions that they keep: U U' has the eigenvalues m_i - alpha_E for i in E, with
alpha_E = lam h_E / (r + lam |E|), where all of them must be positive. The top rho directions give
the global minimum; every other one has a direction of negative curvature, for every lam > 0 (the
printed Theorem 4.3 asks for a small lam).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from overt import equalize
from overt._check import InputError, whole
from overt._types import Floats
from overt.results import Result
from overt.spectral.norms import shrinkage_rank


@dataclass(frozen=True, repr=False, eq=False)
class CriticalPoint(Result):
    """An equalized critical point.

    Attributes
    ----------
    directions
        Indices of the kept eigenvectors of M, by decreasing eigenvalue.
    U, objective
        The point and its value.
    kind
        "minimum" or "strict saddle".
    curvature
        The most negative eigenvalue of the Hessian; zero for a minimum, up to rounding, where
        rotations of U leave the objective nearly unchanged.
    escape
        The unit direction of that curvature.
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
    printed_limit: float

    @property
    def strict_saddle(self) -> bool:
        """Whether every point that is not a global minimum has negative curvature."""
        lowest = self.points[0].objective
        above = lowest + 1e-9 * max(1.0, abs(lowest))
        return all(p.kind == "strict saddle" for p in self.points if p.objective > above)

    def slice(
        self, center: Floats, first: Floats, second: Floats, extent: float, points: int = 81
    ) -> tuple[Floats, Floats]:
        """Return (axis, values): f on the plane center + a first + b second, |a|, |b| <= extent."""
        axis = np.linspace(-extent, extent, whole("points", points, minimum=2))
        U = center + axis[:, None, None, None] * first + axis[None, :, None, None] * second
        residual = self.M - U @ U.swapaxes(-1, -2)
        loss = np.sum(residual**2, axis=(-1, -2))
        return axis, loss + self.strength * np.sum(np.sum(U**2, axis=-2) ** 2, axis=-1)


def landscape(M: Floats, width: int, strength: float, *, max_points: int = 200) -> Landscape:
    """Enumerate the equalized critical points, at most `max_points` of them."""
    values, vectors = np.linalg.eigh(M)
    values, vectors = values[::-1], vectors[:, ::-1]
    most = min(width, int(np.sum(values > 0)))
    if most == 0:
        raise InputError("target must have a positive eigenvalue, or zero is the only minimum")
    # The global minimum keeps the top directions; it comes first whatever is cut off.
    best = tuple(range(shrinkage_rank(values[:most], np.cumsum(values[:most]), strength / width)))
    sets = islice(
        feasible_sets(values[values > 0], width, strength), whole("max_points", max_points)
    )
    found = [best, *(kept for kept in sets if kept != best)]
    points = [_point(M, values, vectors, width, strength, kept) for kept in found]
    points.sort(key=lambda p: p.objective)
    top = np.maximum(values[:width], 0.0)
    spread = float(top.sum() - width * top[-1])
    limit = float(width * top[-1] / spread) if spread > 0 else np.inf
    return Landscape(M, width, strength, tuple(points), limit)


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
    M: Floats, values: Floats, vectors: Floats, r: int, lam: float, kept: tuple[int, ...]
) -> CriticalPoint:
    m = values[list(kept)]
    a = m - lam * m.sum() / (r + lam * len(m))
    W = vectors[:, list(kept)]
    U = equalize.balanced_factors(W, a, W, r)[0] if kept else np.zeros((len(values), r))
    objective = float(np.sum((M - U @ U.T) ** 2) + lam * np.sum(np.sum(U**2, axis=0) ** 2))
    curvature, escape = _most_negative(M, U, lam)
    scale = 1e-7 * max(abs(values[0]), 1e-300)
    kind = "strict saddle" if curvature < -scale else "minimum"
    return CriticalPoint(kept, U, objective, kind, curvature, escape)


def hessian_product(M: Floats, U: Floats, lam: float, D: Floats) -> Floats:
    """Return the Hessian of f at U applied to D (same shape as U).

    4 (U D' + D U') U - 4 (M - U U') D + 4 lam (D diag(|u_i|^2) + 2 U diag(u_i'd_i)).
    """
    outer = U @ D.T
    spread = np.sum(U**2, axis=0) * D + 2 * np.sum(U * D, axis=0) * U
    return 4 * ((outer + outer.T) @ U - (M - U @ U.T) @ D + lam * spread)


def _most_negative(M: Floats, U: Floats, lam: float) -> tuple[float, Floats]:
    from scipy.sparse.linalg import LinearOperator, eigsh

    n = U.size

    def apply(flat: Floats) -> Floats:
        return hessian_product(M, U, lam, flat.reshape(U.shape)).ravel()

    if n <= 100:
        H = np.stack([apply(e) for e in np.eye(n)])
        values, vectors = np.linalg.eigh((H + H.T) / 2)
        return float(values[0]), vectors[:, 0].reshape(U.shape)
    start = np.random.default_rng(0).standard_normal(n)
    values, vectors = eigsh(
        LinearOperator((n, n), matvec=apply, dtype=float), k=1, which="SA", v0=start, tol=1e-8
    )
    return float(values[0]), vectors[:, 0].reshape(U.shape)
