"""Thesis, section 4.3: retentive inputs, and the Rademacher complexity of ReLU networks.

The law of the inputs is that of the rows of X, in coordinates z where its second moment is I. For
few points both quantities are exact: the planes v.z = 0 cut the space of v into cones, and on each
cone, and on each face of it, everything is a linear or quadratic form of v.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from math import comb
from typing import Any

import numpy as np

from overt._check import Floats, InputError, Seed, doubles, generator, number, whole
from overt.relu.bounds import rademacher_lower, rademacher_upper
from overt.results import Result

MAX_FACES = 20_000
"""Faces of cones up to which they are listed, which takes about a second."""

NEAR = 1e-6
"""How far from a ray the direction is that stands for a face around it; points have length 1."""

MAX_PAIRED = 2000
"""Rows up to which inputs are paired with reflected ones, which takes a cubic time."""


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
    """

    lower: float
    upper: float
    direction: Floats


def retentivity(X: Floats, *, seed: Seed = 0) -> Retentivity:
    """beta = min over v of E sigma(v.x)^2 / E(v.x)^2, at most 1/2 (thesis, Assumption 1).

    The expectation is over the rows of X; directions in which they have no second moment are left
    out. It is the beta of these points: that of a law from which they are a sample can only be
    guessed from it.

    Few points are exact: any number in one dimension, 3,333 in two, 47 in three. Beyond, `upper`
    comes from descent from some directions and `lower` from pairing x with -x: in whitened
    coordinates
    beta >= (1 - sqrt(top eigenvalue of E (z - z')(z - z')'))/2 for any joint law of z and z' ~ -z.
    That is 1/2 for symmetric data, and 0, which says nothing, for most data in many dimensions.
    """
    X, Z = _whiten(X)
    if _count_faces(Z) <= MAX_FACES:
        # On a face E sigma(v.z)^2 is v'Mv: the least eigenvector that lies in its span.
        M, span, _ = _faces(Z)
        outside = np.eye(Z.shape[1]) - span
        _, vectors = np.linalg.eigh(M + 2 * outside)
        least = vectors[:, :, 0]
        V = np.concatenate([least, -least])
        f = _shares(Z, V)
        v = V[np.argmin(f)]
        lower = upper = float(f.min())
    else:
        starts = _starts(X, Z, generator(seed))
        upper, v = _descend(Z, starts)
        lower = _coupling(Z)
    upper = min(upper, 0.5)
    w, *_ = np.linalg.lstsq(X, Z @ v, rcond=None)
    w /= np.linalg.norm(w)
    return Retentivity(min(lower, upper), upper, w)


def _whiten(X: Floats) -> tuple[Floats, Floats]:
    """Return X with a largest entry of 1, and Z = X C^(+/2) on the range of C = E x x'."""
    X = doubles("X", X, ndim=2)
    largest = np.abs(X).max()
    X = X / (largest or 1.0)
    _, s, Vt = np.linalg.svd(X, full_matrices=False)
    limit = max(X.shape) * np.finfo(float).eps
    kept = s > limit * s[0]
    if not kept.any():
        raise InputError("X must have a row that is not zero")
    whitening = Vt[kept].T / s[kept]
    return X, X @ whitening * np.sqrt(len(X))


def _shares(Z: Floats, V: Floats) -> Floats:
    """E sigma(v.z)^2 for the rows v of V."""
    active = np.maximum(V @ Z.T, 0)
    return np.mean(active**2, axis=1)


def _starts(X: Floats, Z: Floats, rng: np.random.Generator) -> Floats:
    """Return directions: against the mean of X, along and against points, at random.

    Non-negative inputs never meet w = -E x; as E zz' = I, v = E[(w.x) z] has v.z = w.x.
    """
    mean = X.mean(axis=0)
    against = -(X @ mean) @ Z
    chosen = rng.permutation(Z)[:32]
    random = rng.standard_normal(chosen.shape)
    V = np.concatenate([against[None], chosen, -chosen, random])
    length = np.linalg.norm(V, axis=1, keepdims=True)
    return V / np.where(length > 0, length, 1)


def _descend(Z: Floats, V: Floats, steps: int = 1000) -> tuple[float, Floats]:
    """Minimize f(v) = E sigma(v.z)^2 over the sphere: v <- (v - f'(v)/2) / |.| never ascends.

    f is convex and |f'(v) - f'(w)| <= 2 |v - w| in whitened coordinates, so the step minimizes a
    function that lies above f and touches it at v.
    """
    best = np.inf
    for _ in range(steps):
        f = _shares(Z, V)
        if not f.min() < best - 1e-13:
            break
        best = float(f.min())
        where = V[np.argmin(f)]
        slope = np.maximum(V @ Z.T, 0) @ Z
        V = V - slope / len(Z)
        length = np.linalg.norm(V, axis=1, keepdims=True)
        V = V / np.where(length > 1e-12, length, 1)
    return best, where


def _coupling(Z: Floats) -> float:
    """Return the lower bound from pairing each point with the reflection of another.

    With s = v.z, E s|s| = E(s|s| - s'|s'|)/2 >= -E(|s| + |s'|)|s - s'|/2 >= -sqrt(E (s - s')^2),
    and beta = (1 + min_v E s|s|)/2.
    """
    if len(Z) > MAX_PAIRED:
        return 0.0
    from scipy.optimize import linear_sum_assignment

    rows, cols = linear_sum_assignment(Z @ Z.T)  # with which sum |z - z'|^2 is least
    D = Z[rows] + Z[cols]
    largest = np.linalg.norm(D, 2)
    distance = float(largest / np.sqrt(len(Z)))
    return max(0.0, (1 - distance) / 2)


def _count_faces(Z: Floats) -> int:
    n, d = Z.shape
    rays = 2 * comb(n, d - 1)
    return rays * 3 ** (d - 1)


def _faces(Z: Floats) -> tuple[Floats, Floats, Floats]:
    """Return for each face of the cones the forms M = E z z' of the points with v.z > 0 on it.

    They are restricted to the span of the face, onto which the second array projects; the third
    says which points these are. Around every ray, where d - 1 of the v.z vanish, there is a face
    for each choice of their signs.
    """
    d = Z.shape[1]
    nonzero = np.any(Z != 0, axis=1)
    points = Z[nonzero]
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    points = points / lengths
    choices = product((-1.0, 0.0, 1.0), repeat=d - 1)
    signs = np.array(list(choices))
    signs = signs.reshape(3 ** (d - 1), d - 1)
    directions = []
    spans = []
    for chosen in combinations(points, d - 1):
        T = np.reshape(chosen, (d - 1, d))
        _, s, Vt = np.linalg.svd(T)
        if d > 1 and s[-1] < 1e-9:
            continue
        around = NEAR * signs @ np.linalg.pinv(T).T
        ray = Vt[-1]
        directions += [ray + around, -ray - around]
        zero = (signs == 0)[:, :, None] * T
        inverses = np.linalg.pinv(zero)
        projections = np.eye(d) - inverses @ zero
        spans += 2 * [projections]
    V = np.concatenate(directions)
    span = np.concatenate(spans)
    lengths = np.linalg.norm(Z, axis=1)
    limits = NEAR / 1e3 * lengths
    active = np.where(limits < V @ Z.T, 1.0, 0.0)
    active /= len(Z)
    M = np.einsum("an,ni,nj->aij", active, Z, Z, optimize=True)
    return span @ M @ span, span, active


@dataclass(frozen=True, repr=False, eq=False)
class Complexity(Result):
    """R_S(F_alpha) = E sup_f (1/n) sum_i zeta_i f(x_i), estimated and bounded.

    Attributes
    ----------
    value, standard_error
        Mean over sampled signs zeta of the largest correlation, which is exact, and its error.
    lower, upper
        Theorem 13 and Theorem 12, the latter with the retentivity; infinite where that is 0.
    """

    value: float
    standard_error: float
    lower: float
    upper: float


def rademacher(
    X: Floats,
    alpha: float = 1.0,
    *,
    sample: Any = None,
    draws: int = 200,
    seed: Seed = 0,
) -> Complexity:
    """R_S(F_alpha) = (alpha/n) E max_v |sum_i zeta_i sigma(v.x_i)| / sqrt(E sigma(v.x)^2).

    The supremum over networks of any width is attained by a single unit, since a network is a
    combination of units whose flows sum to at most alpha. It is found among the faces of the cones
    on which the active inputs stay the same, which takes few points.

    Parameters
    ----------
    X
        Points of the inputs' law.
    sample
        Which rows of X the sample S holds; each once if None.
    draws
        Number of sign vectors zeta.
    """
    alpha = number("alpha", alpha)
    rng = generator(seed)
    X, Z = _whiten(X)
    faces = _count_faces(Z)
    if faces > MAX_FACES:
        raise InputError(
            f"X has too many points for its rank: {faces:,} faces, at most {MAX_FACES:,}"
        )
    chosen = np.arange(len(X))
    if sample is not None:
        chosen = np.asarray(sample)
    M, _, active = _faces(Z)
    inverse = np.linalg.pinv(M, rcond=1e-10, hermitian=True)
    n = len(chosen)
    suprema = []
    for _ in range(whole("draws", draws, 2)):
        signs = rng.choice((-1.0, 1.0), n)
        counts = np.bincount(chosen, signs, minlength=len(X))
        # On a face the ratio is b.v / sqrt(v'Mv), largest at v = M^+ b.
        b = active @ (counts[:, None] * Z)
        V = np.einsum("aij,aj->ai", inverse, b)
        V = np.concatenate([V, -V])
        along = np.maximum(V @ Z.T, 0)
        squares = np.mean(along**2, axis=1)
        size = np.sqrt(squares)
        size[size <= 1e-9] = np.inf
        ratios = np.abs(along @ counts) / size
        suprema.append(ratios.max())
    norm = float(np.linalg.norm(Z[chosen]))
    value = alpha / n * np.mean(suprema)
    deviation = np.std(suprema, ddof=1)
    error = alpha / n * deviation / np.sqrt(draws)
    return Complexity(
        float(value),
        float(error),
        rademacher_lower(alpha, norm, n),
        rademacher_upper(alpha, norm, n, retentivity(X).lower),
    )
