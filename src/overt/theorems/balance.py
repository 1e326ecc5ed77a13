"""How noise shares a map among the hidden units, and how overt does it directly."""

from __future__ import annotations

import math

import numpy as np

from overt import equalize, noise, penalty
from overt._types import Floats
from overt.theorems import _oracles as oracles
from overt.theorems._descent import descend, tied_objective
from overt.theorems.base import DESCENT, EXACT, STRICT, Residuals, relative, theorem, worst


@theorem(
    "equalizer",
    source="Implicit bias of dropout, Theorem 2.2",
    claim="Every weight matrix has a rotation of its hidden units after which all columns have the "
    "same norm",
)
def _equalizer(scale: int, rng: np.random.Generator) -> Residuals:
    shapes = [(3, 5, 3), (6, 4, 4), (4, 7, 2), (5, 5, 1), (8 * scale, 12 * scale, 5)]
    for rows, width, rank in shapes:
        U = oracles.with_spectrum(rng, rows, width, rng.exponential(size=rank))
        yield _inequality(U, equalize.equalizer(U))
    return EXACT, "orthogonality and spread of the norms, wide, tall, low rank"


@theorem(
    "hadamard-equalizer",
    source="Implicit bias of dropout, Remark 5.2",
    claim="For a width of 2^k the right singular vectors times a scaled Hadamard matrix equalize",
    correction="The scale 2^((1-k)/2) is printed at each doubling, which leaves a matrix that is "
    "not orthogonal from width 4 on; it is 2^(-1/2)",
)
def _hadamard_equalizer(scale: int, rng: np.random.Generator) -> Residuals:
    printed = math.inf
    for doublings in range(2, 4 + scale // 2):
        width = 2**doublings
        U = rng.normal(size=(5, width))
        Z = np.ones((1, 1))
        for k in range(2, doublings + 2):
            Z = 2 ** ((1 - k) / 2) * np.block([[Z, Z], [-Z, Z]])
        right = np.linalg.svd(U)[2].T
        yield _inequality(U, equalize.hadamard_equalizer(U))
        printed = min(printed, _inequality(U, right @ Z))
    return EXACT, "orthogonality and spread of the norms", printed


@theorem(
    "equalized-product",
    source="Implicit bias of dropout, Theorem 3.3",
    claim="Every map A has factors of width r with |u_i|^2 = |v_i|^2 = |A|_*/r for all hidden "
    "units",
    assumes="r is at least the rank of A",
)
def _equalized_product(scale: int, rng: np.random.Generator) -> Residuals:
    for width in (2, 3, 5, 8 * scale):
        A = oracles.with_spectrum(rng, 4, 5, rng.exponential(size=min(width, 3)))
        U, V = equalize.equalize_product(A, width)
        share = np.full(width, np.linalg.norm(A, "nuc") / width)
        yield relative(U @ V.T, A)
        yield relative(np.sum(U**2, axis=0), share)
        yield relative(np.sum(V**2, axis=0), share)
        yield float(equalize.imbalance(U, V)) / share[0] ** 2
    return EXACT, "the product and every column norm"


@theorem(
    "equalized-optimum",
    source="Implicit bias of dropout, Lemma 4.1 and Theorem 2.3",
    claim="Every local minimum of the tied dropout problem has equal column norms, so its penalty "
    "is (lam/r) |U|^4",
)
def _equalized_optimum(scale: int, rng: np.random.Generator) -> Residuals:
    runs = 0
    for width, prob in [(2, 0.2), (3, 0.5), (4, 0.4)]:
        drop = noise.Dropout(prob)
        F = rng.normal(size=(4, 4))
        objective = tied_objective(F @ F.T, drop.strength, width)
        for _ in range(2 * scale):
            U = descend(objective, rng.normal(size=4 * width))[1].reshape(4, width)
            share = drop.strength / width * np.linalg.norm(U) ** 4
            mean = float(np.mean(equalize.importance(U, U)))
            yield relative(penalty.tied(U, drop), share)
            yield float(equalize.imbalance(U, U)) / mean**2
            runs += 1
    return DESCENT, f"all of {runs} descents from random starts"


@theorem(
    "rotation-is-not-enough",
    source="Implicit bias of dropout, section 3",
    claim="Rotating the hidden units of given factors can leave their penalty above the least one "
    "for their product, which factors rebuilt from its SVD reach",
)
def _rotation_is_not_enough(scale: int, rng: np.random.Generator) -> Residuals:
    drop, excess, equalized = noise.Dropout(0.5), math.inf, 0.0
    stretch = np.array([3.0, 1.0])
    for _ in range(2 * scale):
        A = oracles.with_spectrum(rng, 3, 4, [2.0, 1.0])
        left, s, right = np.linalg.svd(A)
        U = left[:, :2] * np.sqrt(s[:2]) * stretch
        V = right[:2].T * np.sqrt(s[:2]) / stretch
        least = drop.strength / 2 * np.linalg.norm(A, "nuc") ** 2
        angles = np.linspace(0, np.pi, 181)
        rotated = [penalty.shallow(U @ Q, V @ Q, drop) / least - 1 for Q in map(_rotation, angles)]
        rebuilt = penalty.shallow(*equalize.equalize_product(A, 2), drop)
        yield relative(U @ V.T, A)
        yield relative(rebuilt, least)
        excess, equalized = min(excess, *rotated), max(equalized, rotated[45])
    yield STRICT - excess
    return EXACT, (
        f"the best of 181 rotations stays {excess:.0%} above the least penalty; the one that "
        f"equalizes |u_i||v_i| lies {equalized:.0%} above it"
    )


@theorem(
    "rescaling-invariance",
    source="Implicit bias of dropout, Remark 3.1",
    claim="Scaling a hidden unit's incoming weights up and its outgoing weights down by the same "
    "factor changes neither the map nor the penalty",
)
def _rescaling_invariance(scale: int, rng: np.random.Generator) -> Residuals:
    prob = 0.3
    for width in range(2, 4 + scale):
        U, V, X = rng.normal(size=(3, width)), rng.normal(size=(4, width)), rng.normal(size=(6, 4))
        D, C = np.exp(rng.normal(size=width)), X.T @ X / len(X)
        drawn = oracles.multipliers(width, prob)
        exact = oracles.added_loss(rng.normal(size=(6, 3)), U, X @ V, *drawn)
        yield relative((U * D) @ (V / D).T, U @ V.T)
        yield relative(penalty.shallow(U * D, V / D, noise.Dropout(prob), C), exact)
        yield relative(equalize.importance(U * D, V / D, C), equalize.importance(U, V, C))
    return EXACT, "after rescaling, against the loss over all masks before"


def _inequality(U: Floats, Q: Floats) -> float:
    """Return how far Q is from orthogonal, or the columns of U Q from equal norms."""
    norms = np.sum((U @ Q) ** 2, axis=0)
    mean = np.sum(U**2) / U.shape[1]
    return worst(np.abs(Q.T @ Q - np.eye(len(Q))).max(), np.abs(norms / mean - 1).max())


def _rotation(angle: float) -> Floats:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
