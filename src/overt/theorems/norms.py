"""The norm that a noise puts on the network's map, once factors are chosen best."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np

from overt import equalize, noise, spectral
from overt._types import Floats
from overt.theorems import _descent as descent
from overt.theorems import _oracles as oracles
from overt.theorems.base import DESCENT, EXACT, Residuals, relative, theorem


@theorem(
    "dropout-norm",
    source="Structured dropout, Proposition 3.3; Implicit bias of dropout, Theorem 3.4",
    claim="The least dropout penalty among all width-d factors of a map A is (lam/d) |A "
    "C^(1/2)|_*^2",
    assumes="a fixed drop probability and a width of at least the rank of A",
    correction="The factor 1/d is missing in print; it cancels only for the width-adjusted "
    "probability of eq. 7",
)
def _dropout_norm(scale: int, rng: np.random.Generator) -> Residuals:
    printed = math.inf
    for width in range(2, 4 + scale // 2):
        A, C = rng.normal(size=(2, 3)), oracles.second_moment(rng, 3)
        drop = noise.Dropout(0.4)
        best = drop.strength * descent.cheapest_factors(A, np.eye(2), C, width, 3, rng)
        weight, norm = spectral.induced(drop, width)
        whitened = A @ oracles.power(C, 0.5)
        yield relative(weight * norm.matrix_value(whitened), best)
        nuclear = np.linalg.norm(whitened, "nuc")
        printed = min(printed, relative(drop.strength * nuclear**2, best))
    return DESCENT, "descent over all factors of A", printed


@theorem(
    "dropconnect-norm",
    source="overt (new)",
    claim="The least DropConnect penalty among all width-d factors of a map A is "
    "(lam/d) |A D^(1/2)|_*^2 with D the diagonal part of E[x x']",
    assumes="a width of at least the rank of A",
)
def _dropconnect_norm(scale: int, rng: np.random.Generator) -> Residuals:
    for width in range(2, 4 + scale // 2):
        A, C = rng.normal(size=(2, 3)), oracles.second_moment(rng, 3)
        D = np.diag(np.diag(C))
        drop = noise.DropConnect(0.4)
        best = drop.strength * descent.cheapest_factors(A, np.eye(2), D, width, 3, rng)
        weight, norm = spectral.induced(drop, width)
        yield relative(weight * norm.matrix_value(A @ np.sqrt(D)), best)
    return DESCENT, "descent over all factors of A"


@theorem(
    "ksupport-value",
    source="Structured dropout, Theorem 2.3",
    claim="The k-support norm of a spectrum has a closed form: the largest values count by their "
    "squares, the rest by the square of their sum",
    correction="The split rho is printed as the one that maximizes the expression, which is always "
    "rho = b; it is the largest rho with (b-rho+1) s_(rho-1) >= the sum of the rest",
)
def _ksupport_value(scale: int, rng: np.random.Generator) -> Residuals:
    printed = 0.0
    for _ in range(30 * scale):
        n = int(rng.integers(2, 9))
        k, s = int(rng.integers(1, n + 1)), rng.exponential(size=n) ** rng.uniform(0.2, 3)
        exact, ordered = descent.ksupport(s, k), np.sort(s)[::-1]
        largest = float(ordered[: k - 1] @ ordered[: k - 1] + ordered[k - 1 :].sum() ** 2)
        yield relative(spectral.KSupport(k).value(s), exact)
        printed = max(printed, relative(largest, exact))
    return EXACT, f"{30 * scale} spectra, the variational form's dual", printed


@theorem(
    "ksupport-limits",
    source="Structured dropout, section 2.3",
    claim="DropBlock's norm runs from the squared nuclear norm for blocks of one unit to the "
    "squared Frobenius norm for blocks as large as the rank",
)
def _ksupport_limits(scale: int, rng: np.random.Generator) -> Residuals:
    for _ in range(5 * scale):
        rank = int(rng.integers(1, 5))
        A = oracles.with_spectrum(rng, 5, 6, rng.exponential(size=rank))
        values = [float(spectral.KSupport(k).matrix_value(A)) for k in range(1, 7)]
        yield float(np.max(np.diff(values))) / values[0]
        yield relative(values[0], np.linalg.norm(A, "nuc") ** 2)
        yield relative(values[rank - 1 :], np.full(7 - rank, np.linalg.norm(A) ** 2))
    return EXACT, "random matrices; the norm never grows with the block size"


@theorem(
    "dropblock-lower-bound",
    source="Structured dropout, Theorem 2.3",
    claim="No factors of a map cost less under DropBlock than (lam b/d) times its squared "
    "k-support norm with k = b, and factors with enough blocks can reach it",
    assumes="a fixed drop probability; the block size b divides the width d",
)
def _dropblock_lower_bound(scale: int, rng: np.random.Generator) -> Residuals:
    prob = 0.4
    for trial in range(10 * scale):
        b, tight = int(rng.integers(1, 4)), trial % 2 == 0
        blocks = math.comb(4, b) if tight else int(rng.integers(1, 5))
        U, V = rng.normal(size=(2, 4, b * blocks))
        if tight:
            # Equal singular values, shared by one block for each b of the four directions.
            chosen = [i for subset in combinations(range(4), b) for i in subset]
            U, V = (np.linalg.qr(W)[0][:, chosen] for W in rng.normal(size=(2, 4, 4)))
        # Inputs are the four unit vectors, so that the mean over samples is |.|^2 / 4.
        drawn = oracles.multipliers(b * blocks, prob, b)
        exact = 4 * oracles.added_loss(np.zeros((4, 4)), U, V, *drawn)
        weight, norm = spectral.induced(noise.DropBlock(prob, block_size=b), b * blocks)
        bound = float(weight * norm.matrix_value(U @ V.T))
        yield relative(bound, exact) if tight else bound / exact - 1
    return EXACT, "violation by random factors, distance for factors that share directions"


@theorem(
    "weighted-trace",
    source="Thesis, Proposition 4",
    claim="When entries (i, j) are observed with probability p_i q_j, the least completion penalty "
    "of a matrix M is (lam/d) |diag(sqrt p) M diag(sqrt q)|_*^2",
    assumes="a width d of at least the rank of M, all p_i and q_j positive",
)
def _weighted_trace(scale: int, rng: np.random.Generator) -> Residuals:
    lam = 0.7
    for width in range(2, 4 + scale // 2):
        M = rng.normal(size=(2, 4))
        p, q = rng.dirichlet(np.full(2, 3.0)), rng.dirichlet(np.full(4, 3.0))
        U, V = equalize.equalize_weighted(M, p, q, width)
        reached = lam * float((p @ U**2) @ (q @ V**2))
        best = lam * descent.cheapest_factors(M, np.diag(p), np.diag(q), width, 3, rng)
        stated = lam / width * spectral.WeightedTrace(p, q).matrix_value(M)
        yield relative(U @ V.T, M)
        yield relative(reached, stated)
        yield relative(stated, best)
    return DESCENT, "overt's factors, and descent over all factors"


@theorem(
    "representation-cost",
    source="One-way jumps, section 2.2",
    claim="The least sum of squared weights of an L-layer linear network with a given map is "
    "L sum_i s_i^(2/L) over its singular values",
    assumes="hidden layers at least as wide as the rank",
)
def _factorization_cost(scale: int, rng: np.random.Generator) -> Residuals:
    for n in range(2, 4 + scale // 2):
        s = rng.uniform(0.3, 3, n)
        best = descent.cheapest_chain(oracles.with_spectrum(rng, n, n, s), rng)
        yield relative(spectral.factorization_cost(s, 3), best)
    return DESCENT, "descent over the factors of square maps, depth 3"


@theorem(
    "spectral-duality",
    source="overt (new)",
    claim="Each norm here and its dual bound inner products, <A, B>^2 <= value(A) dual(B), and "
    "some A reaches the bound for every B",
)
def _spectral_duality(scale: int, rng: np.random.Generator) -> Residuals:
    for _ in range(5 * scale):
        A, B = rng.normal(size=(2, 4, 5))
        left, s, right = np.linalg.svd(B, full_matrices=False)
        p = float(rng.uniform(1.2, 4))
        cases: list[tuple[spectral.SpectralNorm, Floats]] = [
            (spectral.SquaredNuclear(), np.where(np.arange(4) < 1, 1.0, 0.0)),
            *((spectral.KSupport(k), np.where(np.arange(4) < k, s, 0.0)) for k in (1, 2, 3, 4)),
            (spectral.Schatten(p), s ** (1 / (p - 1))),
        ]
        for norm, aligned in cases:
            best, dual = left * aligned @ right, float(norm.matrix_dual(B))
            yield float(np.sum(A * B) ** 2 / (norm.matrix_value(A) * dual)) - 1
            yield relative(dual, np.sum(best * B) ** 2 / float(norm.matrix_value(best)))
    return EXACT, "random pairs, and for each B the A aligned with it"
