"""Every local minimum under weight decay in closed form, if each entry is observed once.

With all m n entries of M observed, m n times the loss of L >= 3 layers is, for mu = lam m n,

    f(A) = 1/2 |M - A|^2 + mu L sum_p a_p^(2/L),   a_p the singular values of A.

Let M have singular values s_1 > s_2 > ..., with vectors u_p and v_p. The local minima are exactly

    A_q = sum_(p <= q) a_+(s_p) u_p v_p',   q = 0, ..., number of s_p > s_exists,

one per rank, where a_+(s) is the larger root of a + 2 mu a^(2/L - 1) = s. It exists for s above

    s_exists = a_exists (2L - 2) / (L - 2),   a_exists = (2 mu (L - 2) / L)^(L / (2L - 2)).

The global minimum has rank equal to the number of s_p above

    s_optimal = a_optimal (L - 1) / (L - 2),   a_optimal = (2 mu (L - 2))^(L / (2L - 2)).

Proof. On matrices of rank q the derivative vanishes iff U'MV = diag(a_p + 2 mu a_p^(2/L - 1)) and M
has no part between the space of A and its complement. So A has singular vectors of M, and each a_p
is a root. At the smaller root, and where both meet, f falls or has an inflection along u_p v_p'. If
s_r > s_p for an unused r and a used p, turning p towards r lowers f. This leaves A_q. There the
second derivative is positive: 1 - 2 mu (1 - 2/L) a_p^(2/L - 2) for the sizes, the difference
quotients of the increasing branch for pairs of used directions, and the matrix [[s_p, -s_r],
[-s_r, s_p]] for turning a used p towards an unused r. A small new singular value t costs
mu L t^(2/L), more than anything of order t gains. For the global minimum, |M - A|^2 is at least
sum_p (s_p - a_p)^2 (von Neumann), so each p is decided alone: f(a_+) = f(0) at a_optimal.

With equal s_p the minima that use only some of them form continua. With L = 2 the problem is convex
and has one minimum: all s_p lowered by 2 mu, or 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overt._check import Floats, InputError, whole
from overt.decay import layers
from overt.entries.entries import Entries
from overt.results import Result

EQUAL = 1e-12
"""Singular values that differ by less than this share of the largest count as equal."""

NEWTON_STEPS = 200
"""Convergence is quadratic, but linear where both roots meet: there each step halves the error."""


@dataclass(frozen=True, repr=False, eq=False)
class RankThresholds(Result):
    """Weight decays between which ranks exist and are optimal, if each entry is observed once.

    Attributes
    ----------
    singular_values
        Of the matrix, (min(shape),).
    exists
        `exists[q - 1]` is the weight decay below which there is a local minimum of rank q.
    optimal
        `optimal[q - 1]` is the weight decay below which the global minimum has rank at least q.
    """

    singular_values: Floats
    exists: Floats
    optimal: Floats


def rank_thresholds(problem: Entries, depth: int = 3) -> RankThresholds:
    """Return the weight decays at which minima of each rank vanish and cease to be optimal.

    Every entry of the matrix must be observed, once.
    """
    layers.check_entries(problem)
    L = whole("depth", depth, 2, layers.MAX_DEPTH)
    M = observed_matrix(problem)
    if M is None:
        raise InputError(
            "problem must observe every entry of the matrix once, got "
            f"{len(problem)} observations of {problem.shape[0]} x {problem.shape[1]} entries; "
            "`minima` finds what exists at a given weight decay otherwise"
        )
    s = np.asarray(np.linalg.svd(M, compute_uv=False), dtype=np.float64)
    exists, optimal = spectral_thresholds(s, M.size, L)
    return RankThresholds(s, exists, optimal)


def spectral_thresholds(s: Floats, size: int, depth: int) -> tuple[Floats, Floats]:
    """Return the weight decays below which a singular value can be used, and is in the optimum."""
    if depth == 2:
        return s / 2 / size, s / 2 / size
    power = (2 * depth - 2) / depth
    exists = depth / (2 * depth - 4) * (s * (depth - 2) / (2 * depth - 2)) ** power
    optimal = (s * (depth - 2) / (depth - 1)) ** power / (2 * depth - 4)
    return exists / size, optimal / size


def observed_matrix(problem: Entries) -> Floats | None:
    """Return the matrix if each of its entries is observed once, otherwise None."""
    m, n = problem.shape
    if len(problem) != m * n:
        return None
    M = np.full((m, n), np.nan)
    M[problem.rows, problem.cols] = problem.values
    return None if np.isnan(M).any() else M


@dataclass(frozen=True)
class Rung:
    """The minimum of one rank, and the dimension of the continuum of minima around it."""

    rank: int
    matrix: Floats
    dimension: int


def ladder(M: Floats, depth: int, weight_decay: float) -> list[Rung]:
    """Return the local minimum of each rank that has one, by rank, for the observed matrix M."""
    U, s, Vt = np.linalg.svd(M, full_matrices=False)
    mu = weight_decay * M.size
    if depth == 2:
        a = np.maximum(s - 2 * mu, 0)
        return [Rung(int(np.count_nonzero(a)), U * a @ Vt, 0)]
    exists, _ = spectral_thresholds(s, M.size, depth)
    a = larger_root(s[exists > weight_decay], mu, depth)
    rungs = []
    for q in range(len(a) + 1):
        # The used ones of equal singular values span any subspace of their space.
        last = s[q - 1] if q else np.inf
        tied = np.abs(s - last) <= EQUAL * s[0]
        used = int(np.count_nonzero(tied[:q]))
        unused = int(np.count_nonzero(tied[q:]))
        matrix = U[:, :q] * a[:q] @ Vt[:q]
        rungs.append(Rung(q, matrix, used * unused))
    return rungs


def larger_root(s: Floats, mu: float, depth: int) -> Floats:
    """Return the larger root a of a + 2 mu a^(2/L - 1) = s, for s above s_exists.

    The left side is convex, so Newton steps from a = s fall to the larger root.
    """
    p = 2 / depth
    a = s.copy()
    for _ in range(NEWTON_STEPS):
        slope = 1 - 2 * mu * (1 - p) * a ** (p - 2)
        step = (a + 2 * mu * a ** (p - 1) - s) / slope
        lower = np.where(slope > 0, a - np.maximum(step, 0), a)
        if np.array_equal(lower, a):
            break
        a = lower
    return a
