"""What overt adds to the papers on linear networks: steps, certificates, tight constructions."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from overt import equalize, linear, noise, penalty
from overt._types import Floats
from overt.linear import bounds, landscape, sharing
from overt.theorems import _descent as descent
from overt.theorems import _oracles as oracles
from overt.theorems.base import DESCENT, Residuals, relative, theorem


@theorem(
    "dropout-step",
    source="Implicit bias of dropout, Algorithm 1; structured dropout, Algorithm 1",
    claim="The mean step of the second paper's algorithm is minus the gradient of half the "
    "objective; the first paper's is theta times that, a matter of the learning rate's unit",
)
def _step(scale: int, rng: np.random.Generator) -> Residuals:
    from overt.linear import kernels

    m, n, d, keep = 3, 2, 3, 0.6
    M, U, V = (rng.standard_normal(shape) for shape in ((m, n), (m, d), (n, d)))
    # x takes the values +-sqrt(n) e_i, whose second moment is the identity; masks are enumerated.
    inputs = [sign * np.sqrt(n) * e for e in np.eye(n) for sign in (1.0, -1.0)]
    mean, total = np.zeros((d, m)), 0.0
    for x, (z, p) in product(inputs, zip(*oracles.masks(np.full(d, keep)), strict=True)):
        Ut, Vt = U.T.copy(), V.T.copy()
        drawn = (a[None, None] for a in (x, M @ x, z / keep))
        kernels.unit_steps(Ut, Vt, *drawn, np.ones(1), np.zeros(2))
        mean += p / len(inputs) * (U.T - Ut)
        total += p / len(inputs)
    step, half = np.zeros_like(U), 1e-5
    for index in np.ndindex(U.shape):
        values = []
        for sign in (1, -1):
            moved = U.copy()
            moved[index] += sign * half
            drop = noise.Dropout(1 - keep)
            values.append(np.sum((M - moved @ V.T) ** 2) + penalty.shallow(moved, V, drop))
        step[index] = (values[0] - values[1]) / (4 * half)
    yield relative(mean.T, step)
    yield abs(total - 1)
    return 1e-8, "all masks and inputs through the compiled step against finite differences"


@theorem(
    "strict-saddle",
    source="Implicit bias of dropout, Theorem 4.3 (strengthened)",
    claim="Every equalized critical point but the global minimum has negative curvature, for any "
    "dropout strength",
    assumes="tied weights and isotropic inputs; the printed theorem also asks for small lam",
)
def _strict_saddle(scale: int, rng: np.random.Generator) -> Residuals:
    beyond, seen = 0, 0
    for lam in (0.2, 2.0, 20.0):
        m = np.sort(rng.uniform(0.2, 3.0, 3 + scale))[::-1]
        Q = np.linalg.qr(rng.standard_normal((len(m), len(m))))[0]
        view = landscape.landscape(Q * m @ Q.T, 3, lam)
        beyond += lam > view.printed_limit
        objective = descent.tied_objective(view.M, lam, 3)
        for point in view.points:
            slope, lowest = descent.slope_and_curvature(objective, point.U.ravel())
            yield slope / m[0]
            yield abs(point.curvature - lowest) / m[0]
            # The global minimum comes first; every other point must bend down.
            yield 0.0 if point is view.points[0] else 2e-6 + lowest / m[0]
            seen += 1
    return 1e-6, (
        f"slope and curvature of all {seen} points by differences; {beyond} of 3 strengths beyond "
        "the printed bound"
    )


@theorem(
    "dropblock-tight",
    source="overt (new)",
    claim="With as many blocks as a Hadamard matrix of at least the rank has rows, factors attain "
    "DropBlock's k-support bound",
    assumes="blocks on a grid",
)
def _dropblock_tight(scale: int, rng: np.random.Generator) -> Residuals:
    for b, count in ((2, 4), (3, 8), (2, 12)):
        a = np.sort(rng.exponential(1.0, min(count, 3 + scale)))[::-1]
        left, right = (np.linalg.qr(rng.standard_normal((12, len(a))))[0] for _ in range(2))
        U, V = sharing.block_factors(left, a, right, b * count, b)
        least = 0.4 / 0.6 / count * descent.ksupport(a, b)
        yield relative(U @ V.T, left * a @ right.T)
        yield relative(penalty.shallow(U, V, noise.DropBlock(0.4, b)), least)
    return 1e-10, "penalty of the constructed factors against the norm"


@theorem(
    "per-unit-optimum",
    source="overt (new)",
    claim="Units dropped with different probabilities carry shares of the nuclear norm inverse to "
    "their strengths",
    assumes="the spectrum majorizes the shares",
)
def _per_unit(scale: int, rng: np.random.Generator) -> Residuals:
    probs = rng.uniform(0.3, 0.5, 3)
    lam, M = probs / (1 - probs), oracles.with_spectrum(rng, 3 + scale, 4, [5.0, 1.0, 0.5])
    best = linear.LinearNetwork(M, 3, noise.Dropout(probs)).solve()
    objective = descent.factor_objective(M, np.diag(lam))
    lowest = descent.best_descent(objective, 3 * (M.shape[0] + M.shape[1]), 6, rng)[0]
    shares = equalize.importance(best.U, best.V) * lam
    yield relative(best.objective, lowest)
    yield relative(shares, np.full(3, shares.mean()))
    return DESCENT, (
        "closed form against descent, and strength times share is the same for every unit"
    )


@theorem(
    "dropconnect-optimum",
    source="overt (new)",
    claim="DropConnect with correlated inputs has a convex program for its best map, whose "
    "balanced factors are a global optimum",
    assumes="width at least the rank of that map",
)
def _dropconnect_optimum(scale: int, rng: np.random.Generator) -> Residuals:
    M, C = rng.standard_normal((3, 3)), oracles.second_moment(rng, 3)
    net = linear.LinearNetwork(M, 4, noise.DropConnect(0.4), second_moment=C)
    best = net.solve()
    lam, D = 0.4 / 0.6, np.diag(C)

    def objective(theta: Floats) -> tuple[float, Floats]:
        U, V = theta[:12].reshape(3, 4), theta[12:].reshape(3, 4)
        R = (M - U @ V.T) @ C
        u, v = np.sum(U**2, axis=0), np.sum(V**2 * D[:, None], axis=0)
        value = np.sum(R * (M - U @ V.T)) + lam * u @ v
        gradients = lam * U * v - R @ V, lam * V * D[:, None] * u - R.T @ U
        return float(value), 2 * np.concatenate([g.ravel() for g in gradients])

    lowest = descent.best_descent(objective, 24, 6, rng)[0]
    yield relative(best.objective, lowest)
    yield abs(best.certificate.relative_gap)
    return DESCENT, "proximal solution against descent on the factors"


@theorem(
    "certificate",
    source="overt (new)",
    claim="The certificate's lower bound is below the objective of every network, for every noise",
)
def _certificate(scale: int, rng: np.random.Generator) -> Residuals:
    K, lam = rng.standard_normal((4, 4)), 0.4 / 0.6
    probs = np.array([0.1, 0.3, 0.5, 0.7])
    # Units at the border are covered once, the others twice: (x + x^2) / 2 = .6, x = 1 - g.
    g = 1 - (math.sqrt(1 + 8 * 0.6) - 1) / 2
    sliding = oracles.moments(*oracles.sliding_masks((4,), 2, g))[1]
    noises: list[tuple[noise.Noise, Floats]] = [
        (noise.Dropout(0.4), lam * np.eye(4)),
        (noise.Dropout(probs), np.diag(probs / (1 - probs))),
        (noise.DropBlock(0.4, 2), lam * np.eye(2).repeat(2, axis=0).repeat(2, axis=1)),
        (noise.DropBlock(0.4, 2, "sliding"), sliding),
        (noise.CovarianceNoise(np.ones(4), K @ K.T / 4), K @ K.T / 4),
    ]
    for drop, Gamma in noises:
        M = rng.standard_normal((3, 3 + scale))
        s = np.asarray(np.linalg.svd(M, compute_uv=False))
        lower = max(
            bounds.spectral_bound(s[:4], float(np.sum(s[4:] ** 2)), envelope)
            for envelope in bounds.envelopes(drop, 4)
        )
        objective = descent.factor_objective(M, Gamma)
        lowest = descent.best_descent(objective, 4 * (3 + M.shape[1]), 3, rng)[0]
        yield (lower - lowest) / lowest
    return 1e-9, "how far the bound exceeds the lowest descent, if at all"
