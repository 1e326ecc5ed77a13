"""Global optima in closed form, against the best of many descents and convex solves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overt import noise, spectral
from overt._types import Floats
from overt.theorems import _descent as descent
from overt.theorems import _oracles as oracles
from overt.theorems.base import DESCENT, STRICT, Residuals, relative, theorem, worst


@theorem(
    "shallow-optimum",
    source="Implicit bias of dropout, Theorem 3.6",
    claim="The global optimum of width r shrinks the r largest singular values by one common "
    "amount and cuts at zero",
    assumes="E[x x'] = I",
    correction="The whole matrix is shrunk in print, which can leave more than r directions "
    "(diag(2, 1.9), r = 1); only the r largest values take part",
)
def _shallow_optimum(scale: int, rng: np.random.Generator) -> Residuals:
    for width, spectrum in [(3, [3.0, 2.0, 1.0, 0.3]), (2, [2.0, 1.5, 1.0]), (6, [2.0, 1.0, 0.2])]:
        M, lam = oracles.with_spectrum(rng, 4, 5, spectrum), float(rng.uniform(0.2, 1.5))
        yield _shallow_residual(M, _best_map(M, width, lam / width), lam, width, scale, rng)
    M, lam = np.diag([2.0, 1.9]), 0.1
    yield _shallow_residual(M, _best_map(M, 1, lam), lam, 1, scale, rng)
    printed = np.maximum(M - 2.0 * lam / (1 + lam) * np.eye(2), 0)
    detail = f"objective and map of the best of {4 * scale} descents; printed has rank 2 for r = 1"
    return DESCENT, detail, _shallow_residual(M, printed, lam, 1, scale, rng)


@theorem(
    "tied-optimum",
    source="Implicit bias of dropout, Theorem 2.4",
    claim="With tied weights the global optimum shrinks the r largest eigenvalues by one common "
    "amount and cuts at zero",
    assumes="E[x x'] = I; negative eigenvalues of the target count as zero",
    correction="The whole matrix is shrunk in print, which can leave more than r directions; only "
    "the r largest eigenvalues take part",
)
def _tied_optimum(scale: int, rng: np.random.Generator) -> Residuals:
    for width in (4, 2, 1):
        M, lam = _symmetric(rng, [3.0, 2.0, 0.4, -1.0]), float(rng.uniform(0.2, 1.5))
        objective = descent.tied_objective(M, lam, width)
        best, theta = descent.best_descent(objective, 4 * width, 4 * scale, rng)
        U = theta.reshape(4, width)
        A, value = _tied_map(M, lam, width)
        yield relative(value, best)
        yield relative(A, U @ U.T) ** 2
    # The printed map, at the last width: one.
    values, vectors = np.linalg.eigh(M)
    printed = vectors * np.maximum(values - lam * values[-1] / (1 + lam), 0) @ vectors.T
    detail = f"objective and map of the best of {4 * scale} descents; printed has rank 2 for r = 1"
    return DESCENT, detail, relative(printed, U @ U.T) ** 2


@theorem(
    "tied-landscape",
    source="Implicit bias of dropout, Theorem 4.3",
    claim="The tied dropout problem has no spurious local minima: descent from any random start "
    "ends at the global optimum",
    assumes="nothing on the drop probability; the bound printed on lam is not needed",
)
def _tied_landscape(scale: int, rng: np.random.Generator) -> Residuals:
    for lam in (0.1, 1.0, 10.0):
        M, width = _symmetric(rng, [3.0, 2.5, 1.0, 0.2]), 3
        objective, (_, value) = descent.tied_objective(M, lam, width), _tied_map(M, lam, width)
        for _ in range(4 * scale):
            yield relative(descent.descend(objective, rng.normal(size=4 * width))[0], value)
    return DESCENT, f"the worst of {12 * scale} descents, lam from .1 to 10"


@theorem(
    "shrinkage-prefix",
    source="Implicit bias of dropout, Theorem 3.6",
    claim="The ranks j for which s_j exceeds the common shrinkage, s_j (1 + w j) > w h_j, are "
    "1..rho without a hole, so counting them gives the optimal rank",
)
def _shrinkage_prefix(scale: int, rng: np.random.Generator) -> Residuals:
    wrong, trials = 0, 200 * scale
    for _ in range(trials):
        s = np.sort(rng.exponential(size=int(rng.integers(1, 30))) ** rng.uniform(0.2, 3))[::-1]
        w = float(rng.exponential() + 1e-3)
        feasible = [s[j - 1] * (1 + w * j) > w * s[:j].sum() for j in range(1, len(s) + 1)]
        rho = spectral.norms.shrinkage_rank(s, np.cumsum(s), w)
        wrong += feasible != [j < rho for j in range(len(s))]
    yield float(wrong)
    return 0.0, f"exceptions among {trials} random spectra"


@theorem(
    "anisotropic-optimum",
    source="Implicit bias of dropout, Theorem 3.6; thesis, eq. 3.17",
    claim="For correlated inputs the global optimum is found by shrinking M C^(1/2) and mapping "
    "back with C^(-1/2), also where C is singular",
)
def _anisotropic_optimum(scale: int, rng: np.random.Generator) -> Residuals:
    lam, width = 0.6, 2
    few = rng.normal(size=(2, 4))
    for C in (oracles.second_moment(rng, 4), few.T @ few):
        M = rng.normal(size=(3, 4))
        objective = descent.factor_objective(M, lam * np.eye(width), C)
        best, theta = descent.best_descent(objective, 7 * width, 4 * scale, rng)
        U, V = descent.factors(theta, 3, width)
        root = oracles.power(C, 0.5)
        A = _best_map(M @ root, width, lam / width) @ oracles.power(C, -0.5)
        value = np.sum(((M - A) @ root) ** 2) + lam / width * np.linalg.norm(A @ root, "nuc") ** 2
        yield relative(value, best)
        yield relative(A @ root, U @ V.T @ root) ** 2
    return DESCENT, f"regular and singular C, the best of {4 * scale} descents"


@theorem(
    "dropblock-optimum",
    source="Structured dropout, Theorem 2.7",
    claim="DropBlock's convex problem has a closed-form solution: the largest singular values are "
    "scaled, the next ones shrunk by a common amount, the rest cut",
    correction="The split rho is printed to range over 1..b-1; it ranges over 1..b",
)
def _dropblock_optimum(scale: int, rng: np.random.Generator) -> Residuals:
    printed = 0.0
    for _ in range(20 * scale):
        n, beta = int(rng.integers(2, 8)), float(rng.uniform(0.1, 2))
        b, m = int(rng.integers(2, n + 1)), np.sort(rng.uniform(0.1, 3, n))[::-1]
        stated = descent.block_value(m, spectral.KSupport(b).prox(m, beta), b, beta)
        convex = descent.ksupport_prox_value(m, b, beta)
        yield relative(stated, convex)
        yield relative(stated, descent.block_candidates(m, b, beta, range(1, b + 1)))
        printed = max(printed, relative(descent.block_candidates(m, b, beta, range(1, b)), convex))
    return DESCENT, f"{20 * scale} spectra, a convex solver and all (rho, lambda)", printed


@theorem(
    "dropblock-few-blocks",
    source="Structured dropout, Corollary 2.8",
    claim="DropBlock's convex value is reached once there are enough blocks; with too few it is "
    "only a lower bound",
    assumes="the width-adjusted probability of eq. 7; the singular values (2, 1.9, 1.8), blocks of "
    "two and beta = 1/2, where two blocks are too few and three are enough",
)
def _dropblock_few_blocks(scale: int, rng: np.random.Generator) -> Residuals:
    m, b, beta = np.array([2.0, 1.9, 1.8]), 2, 0.5
    bound = descent.block_value(m, spectral.KSupport(b).prox(m, beta), b, beta)
    gaps = {}
    for blocks in (2, 3):
        d = b * blocks
        block = noise.DropBlock(beta / (1 + beta), block_size=b).at_width(d)
        objective = descent.factor_objective(np.diag(m), block.characteristic(d))
        gaps[blocks] = descent.best_descent(objective, 6 * d, 6 * scale, rng)[0] / bound - 1
    yield abs(gaps[3])
    yield STRICT - gaps[2]
    return DESCENT, (
        f"relative gap {gaps[2]:.4f} ({gaps[2] * bound:.3f}) with two blocks, {gaps[3]:.0e} with "
        f"three, the best of {6 * scale} descents"
    )


def _best_map(M: Floats, width: int, weight: float) -> Floats:
    """Return the map of rank <= width with the spectrum of M shrunk as overt does."""
    left, s, right = np.linalg.svd(M, full_matrices=False)
    a = spectral.SquaredNuclear().prox(s[:width], weight)
    return np.asarray(left[:, :width] * a @ right[:width])


def _shallow_residual(
    M: Floats, A: Floats, lam: float, width: int, scale: int, rng: np.random.Generator
) -> float:
    """Return how far A is from the best descent, in the objective and as a map.

    The objective is strongly convex in the map, so squared distances are in its units.
    """
    objective = descent.factor_objective(M, lam * np.eye(width))
    best, theta = descent.best_descent(objective, sum(M.shape) * width, 4 * scale, rng)
    U, V = descent.factors(theta, len(M), width)
    value = np.sum((M - A) ** 2) + lam / width * np.linalg.norm(A, "nuc") ** 2
    return worst(relative(value, best), relative(A, U @ V.T) ** 2)


def _symmetric(rng: np.random.Generator, eigenvalues: Sequence[float]) -> Floats:
    Q = np.linalg.qr(rng.standard_normal((len(eigenvalues), len(eigenvalues))))[0]
    return np.asarray(Q * np.asarray(eigenvalues) @ Q.T)


def _tied_map(M: Floats, lam: float, width: int) -> tuple[Floats, float]:
    """Return the optimal UU' for the target M, and its objective."""
    values, vectors = np.linalg.eigh(M)
    top = np.maximum(values[::-1][:width], 0)
    a = spectral.SquaredNuclear().prox(top, lam / width)
    A = np.asarray(vectors[:, ::-1][:, :width] * a @ vectors[:, ::-1][:, :width].T)
    return A, float(np.sum((M - A) ** 2) + lam / width * np.sum(a) ** 2)
