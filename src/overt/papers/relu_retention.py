"""Thesis, Assumption 1: how much of every direction's second moment survives the ReLU.

The law of the inputs is that of weighted points, in coordinates where its second moment is I.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from overt._check import InputError, doubles, generator, whole
from overt._types import Floats, Seed
from overt.papers import relu_plane as plane
from overt.results import Result

TOLERANCE = 1e-6
"""Width of the interval at which the search in three and four dimensions stops."""


@dataclass(frozen=True, repr=False, eq=False)
class Retentivity(Result):
    """lower <= beta <= upper for the law of the given points.

    Attributes
    ----------
    lower
        Proved: Theorem 12 and Corollary 2 are valid with it (up to rounding).
    upper
        Attained by `direction`. It errs on the large side, so a bound computed from it is at
        most too small: use it to refute a claimed retentivity, not to prove one.
    direction
        The v with the smallest share found, in the coordinates of X.
    method
        "exact" (one or two dimensions), "branch and bound" (three and four), or "descent and
        coupling" (more, and symmetric data).
    status
        "exact" where lower and upper agree to 1e-6, else "interval".
    """

    lower: float
    upper: float
    direction: Floats
    method: str
    status: str


def retentivity(
    X: Floats,
    weights: Any = None,
    *,
    starts: int = 64,
    cells: int = 200_000,
    seed: Seed = 0,
) -> Retentivity:
    """beta = min over v of E sigma(v.x)^2 / E(v.x)^2, at most 1/2 (thesis, Assumption 1).

    The expectation is over the rows of X with the given weights (equal ones if None); directions
    in which the law has no second moment are left out. It is the beta of these points: that of a
    law from which they are a sample can only be guessed from it.

    One and two dimensions are exact. In three and four, convexity of E sigma(v.x)^2 gives a lower
    bound on each cap of the sphere, and caps are split until the interval closes or `cells` are
    used up. Beyond, `upper` comes from descent from `starts` directions and `lower` from pairing
    x with -x: in whitened coordinates beta >= (1 - sqrt(top eigenvalue of E (z - z')(z - z')'))/2
    for any joint law of z and z' ~ -z. That is 1/2 for symmetric data, and 0 where it says
    nothing, as it does for most data in many dimensions.
    """
    X, rng = points(X), generator(seed)
    p = probabilities(weights, len(X))
    whole("starts", starts)
    whole("cells", cells)
    Z = whiten(X, p)
    rank = Z.shape[1]
    if rank == 1:
        shares = [float(p @ np.maximum(s * Z[:, 0], 0) ** 2) for s in (1, -1)]
        lower = upper = min(shares)
        v, method = np.array([1.0 if shares[0] <= shares[1] else -1.0]), "exact"
    elif rank == 2:
        upper, v = plane.smallest_share(Z, p)
        lower, method = upper, "exact"
    else:
        upper, v = _descend(Z, p, _starts(X, Z, p, starts, rng))
        lower, method = _coupling(Z, p), "descent and coupling"
        # On symmetric data E sigma(v.z)^2 is flat, so that no cap could be ruled out.
        if rank <= 4 and lower < upper - TOLERANCE:
            split = _branch_and_bound(Z, p, upper, cells)
            lower, method = max(lower, split), "branch and bound"
    upper = min(upper, 0.5)
    lower = min(lower, upper)
    status = "exact" if upper - lower <= TOLERANCE else "interval"
    return Retentivity(lower, upper, _original(v, X, Z), method, status)


def retained_share(X: Floats, v: Floats, weights: Any = None) -> float:
    """E sigma(v.x)^2 / E(v.x)^2 for one direction; NaN where v.x is always 0."""
    X = points(X)
    v = doubles("v", v, ndim=1)
    if len(v) != X.shape[1]:
        raise InputError(
            f"v must have {X.shape[1]} entries, one per column of X, got {len(v)}"
        )
    p, s = probabilities(weights, len(X)), X @ (v / (np.abs(v).max() or 1))
    whole_moment = float(p @ s**2)
    return (
        float(p @ np.maximum(s, 0) ** 2) / whole_moment
        if whole_moment > 0
        else float("nan")
    )


def symmetrize(X: Floats, seed: Seed = None) -> Floats:
    """Return the rows of X with random signs: (zeta_i x_i), P(zeta_i = 1) = 1/2.

    The law of the result is symmetric, so its retentivity is 1/2 (thesis, section 4.3).
    """
    X = doubles("X", X, ndim=2)
    signs = generator(seed).choice((-1.0, 1.0), size=len(X))
    return np.asarray(signs[:, None] * X)


def points(X: Any) -> Floats:
    """Return X in float64, scaled to a largest entry of 1 so that squares stay in range.

    Retentivity and complexity do not depend on the scale of the inputs.
    """
    X = doubles("X", X, ndim=2)
    largest = np.abs(X).max()
    return np.asarray(X / largest if largest > 0 else X)


def probabilities(weights: Any, n: int) -> Floats:
    """Return the probabilities of n points; equal if `weights` is None."""
    if weights is None:
        return np.full(n, 1 / n)
    p = doubles("weights", weights)
    if p.shape != (n,) or not np.isfinite(p).all() or p.min() < 0 or p.sum() <= 0:
        raise InputError(
            f"weights must be {n} numbers (one per row of X), none negative, not all zero, got "
            f"shape {p.shape}"
        )
    return np.asarray(p / p.sum())


def whiten(X: Floats, p: Floats) -> Floats:
    """Return Z = X C^(+/2) on the range of C = sum_i p_i x_i x_i': (points, rank), E[z z'] = I.

    From the SVD of the weighted points; points of weight 0 must lie in the range of the others.
    """
    _, s, Vt = np.linalg.svd(np.sqrt(p)[:, None] * X, full_matrices=False)
    rank = int(np.sum(s > s[0] * max(X.shape) * np.finfo(float).eps)) if s[0] > 0 else 0
    if rank == 0:
        raise InputError("X must have a row that is not zero, of positive weight")
    return np.asarray(X @ (Vt[:rank].T / s[:rank]))


def _original(v: Floats, X: Floats, Z: Floats) -> Floats:
    """Return the unit direction w with X w proportional to Z v."""
    w = np.linalg.lstsq(X, Z @ v, rcond=None)[0]
    return np.asarray(w / np.linalg.norm(w))


def _value(Z: Floats, p: Floats, V: Floats) -> tuple[Floats, Floats]:
    """Return f(v) = E sigma(v.z)^2 and its half gradient E sigma(v.z) z for the rows v of V."""
    S = np.maximum(V @ Z.T, 0) * p
    half = S @ Z
    return np.einsum("ki,ki->k", half, V), half


def _starts(
    X: Floats, Z: Floats, p: Floats, count: int, rng: np.random.Generator
) -> Floats:
    """Return the best of many directions: against points, along the axes, at random.

    One is w = -E x in the coordinates of X, which non-negative inputs never meet: E zz' = I, so
    that v = E[(w.x) z] has v.z = w.x.
    """
    against = -(p * (X @ (p @ X))) @ Z
    chosen = Z[rng.choice(len(Z), min(len(Z), count), replace=False)]
    axes = np.eye(Z.shape[1])
    random = rng.normal(size=(count, Z.shape[1]))
    V = np.concatenate(
        [-chosen, chosen, axes, -axes, -Z.mean(0, keepdims=True), random]
    )
    V = np.concatenate([against[None], V])
    length = np.linalg.norm(V, axis=1)
    V = V[length > 0] / length[length > 0, None]
    f = np.concatenate(
        [_value(Z, p, V[i : i + count])[0] for i in range(0, len(V), count)]
    )
    return np.asarray(V[np.argsort(f, kind="stable")[:count]])


def _descend(
    Z: Floats, p: Floats, V: Floats, steps: int = 4000
) -> tuple[float, Floats]:
    """Minimize f over the sphere from every row of V: v <- (v - f'(v)/2) / |.| never ascends.

    f is convex and |f'(v) - f'(w)| <= 2 |v - w| in whitened coordinates, so the step minimizes a
    function that lies above f and touches it at v. The worse half is given up every 50 steps.
    """
    f, half = _value(Z, p, V)
    for step in range(steps):
        if f.min() <= 0:
            break
        if step % 50 == 49 and len(V) > 4:
            kept = np.argsort(f, kind="stable")[: max(4, len(V) // 2)]
            V, f, half = V[kept], f[kept], half[kept]
        moved = V - half
        length = np.linalg.norm(moved, axis=1, keepdims=True)
        V = np.where(length > 1e-12, moved / np.where(length > 0, length, 1), V)
        before = f
        f, half = _value(Z, p, V)
        if np.max(before - f) < 1e-13:
            break
    k = int(np.argmin(f))
    return max(float(f[k]), 0.0), V[k]


def _branch_and_bound(Z: Floats, p: Floats, upper: float, cells: int) -> float:
    """Return a lower bound on min f over the sphere, within TOLERANCE of `upper` if cells suffice.

    f(v) >= g.v - f(v0), g = f'(v0), for every v; within an angle rho of v0, g.v is at least
    |g| cos(theta + rho), theta the angle of g and v0. Caps come from splitting the cube's faces.
    """
    rank = Z.shape[1]
    corners = np.array(list(product((-1.0, 1.0), repeat=rank - 1)))
    faces = np.array(list(product(range(rank), (-1.0, 1.0))))
    face, middle, half_size = faces, np.zeros((len(faces), rank - 1)), 1.0
    pruned, used = np.inf, 0
    while True:
        v0 = _on_sphere(face, middle)
        reach = np.min(
            [
                np.sum(v0 * _on_sphere(face, middle + half_size * c), axis=1)
                for c in corners
            ],
            axis=0,
        )
        rho = np.arccos(np.clip(reach, -1, 1))
        f, half = _value(Z, p, v0)
        length = np.linalg.norm(2 * half, axis=1)
        theta = np.arccos(np.clip(2 * f / np.where(length > 0, length, 1), -1, 1))
        bound = np.maximum(length * np.cos(np.minimum(theta + rho, np.pi)) - f, 0.0)
        upper, used = min(upper, float(f.min())), used + len(f)
        open_ = bound < upper - TOLERANCE
        pruned = min(pruned, float(bound[~open_].min(initial=np.inf)))
        if not open_.any() or used + open_.sum() * len(corners) > cells:
            return min(pruned, float(bound[open_].min(initial=np.inf)))
        half_size /= 2
        face = np.repeat(face[open_], len(corners), axis=0)
        middle = (middle[open_][:, None] + half_size * corners).reshape(-1, rank - 1)


def _on_sphere(face: Floats, place: Floats) -> Floats:
    """Return the directions of points on the cube's faces; `face` holds (axis, sign)."""
    axis, sign = face[:, 0].astype(int), face[:, 1]
    rank = place.shape[1] + 1
    others = np.arange(rank - 1) + (np.arange(rank - 1) >= axis[:, None])
    v = np.empty((len(place), rank))
    np.put_along_axis(v, others, place, axis=1)
    v[np.arange(len(v)), axis] = sign
    return np.asarray(v / np.linalg.norm(v, axis=1, keepdims=True))


def _coupling(Z: Floats, p: Floats, largest: int = 2000) -> float:
    """Return the lower bound from pairing each point with the reflection of another.

    With s = v.z, E s|s| = E(s|s| - s'|s'|)/2 >= -E(|s| + |s'|)|s - s'|/2 >= -sqrt(E (s - s')^2),
    and beta = (1 + min_v E s|s|)/2. Needs equal weights and at most `largest` points, else 0.
    """
    if len(Z) > largest or not np.allclose(p, p[0]):
        return 0.0
    from scipy.optimize import linear_sum_assignment

    rows, cols = linear_sum_assignment(Z @ Z.T)  # with which sum |z - z'|^2 is least
    D = Z[rows] + Z[cols]
    return max(0.0, (1 - float(np.linalg.norm(D, 2) / np.sqrt(len(Z)))) / 2)
