"""Norms, optima, certificates and landscapes of shallow linear networks."""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import block_diag

from overt import equalize, noise, penalty
from overt._types import Floats
from overt.linear import LinearNetwork, sharing
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, EXACT, Evidence, relative
from overt.papers.records import Residuals, Rng, statement
from overt.papers.structured.networks import least_penalty


@statement(how="sampled")
def dropconnect_norm(scale: int, rng: Rng) -> Residuals:
    r"""DropConnect's norm.

    The least DropConnect penalty among all width-d factors of a map A is (lam/d) |A
    D^(1/2)|_*^2 with D the diagonal part of E[x x'].

    Assumes: a width of at least the rank of A.

    TeX: The least DropConnect penalty among all width-d factors of a map $A$ is $(\lambda/d) |A
    D^{1/2}|_*^2$ with $D$ the diagonal part of $\mathbb{E}[x x^\top ]$.
    """
    for width in range(2, 4 + scale // 2):
        D = np.diag(np.diag(oracles.second_moment(rng, 3)))
        yield least_penalty(noise.DropConnect(0.4), width, D, rng)[0]
    return DESCENT, "descent over all factors of A"


@statement(how="sampled")
def dropblock_tight(scale: int, rng: Rng) -> Residuals:
    r"""A construction that attains the DropBlock bound.

    With as many blocks as a Hadamard matrix of at least the rank has rows, factors attain
    DropBlock's k-support bound.

    Assumes: blocks on a grid.

    TeX: With as many blocks as a Hadamard matrix of at least the rank has rows, factors attain
    DropBlock's k-support bound. \[\frac{d}{b}=h,\ H_h\ \text{Hadamard},\
    h\ge\mathrm{rank}(A)\;\Longrightarrow\;\min_{UV^\top=A}R=\frac{\lambda
    b}{d}\,\|A\|_{(b)}^2\]
    """
    for b, count in ((2, 4), (3, 8), (2, 12)):
        a = np.sort(rng.exponential(1.0, min(count, 3 + scale)))[::-1]
        left, right = np.linalg.qr(rng.normal(size=(2, 12, len(a))))[0]
        U, V = sharing.block_factors(left, a, right, b * count, b)
        least = 0.4 / 0.6 / count * descent.ksupport(a, b)
        yield relative(U @ V.T, left * a @ right.T)
        yield relative(penalty.shallow(U, V, noise.DropBlock(0.4, b)), least)
    return EXACT, "penalty of the constructed factors against the norm"


@statement(how="sampled")
def per_unit_optimum(scale: int, rng: Rng) -> Residuals:
    r"""One drop probability per unit.

    Units dropped with different probabilities have shares of the nuclear norm inverse to their
    strengths.

    Assumes: the spectrum majorizes the shares.

    TeX: Units dropped with different probabilities have shares of the nuclear norm inverse to
    their strengths.
    \[\|u_i\|\,\|v_i\|=\frac{\lambda_i^{-1}}{\sum_j\lambda_j^{-1}}\,\|A\|_*,\qquad
    R=\frac{\|A\|_*^2}{\sum_j\lambda_j^{-1}}\]
    """
    probs = rng.uniform(0.3, 0.5, 3)
    lam = probs / (1 - probs)
    M = oracles.with_spectrum(rng, 3 + scale, 4, [5.0, 1.0, 0.5])
    best = LinearNetwork(M, 3, noise.Dropout(probs)).solve()
    objective = descent.factor_objective(M, np.diag(lam))
    lowest, _ = descent.best_descent(objective, 3 * sum(M.shape), 6, rng)
    shares = equalize.importance(best.U, best.V) * lam
    yield relative(best.objective, lowest)
    yield relative(shares, np.full(3, shares.mean()))
    return DESCENT, "against descent; strength times share is the same for every unit"


@statement(how="sampled")
def dropconnect_optimum(scale: int, rng: Rng) -> Residuals:
    r"""DropConnect's optimum.

    DropConnect with correlated inputs has a convex program for its best map, whose balanced
    factors are a global optimum.

    Assumes: width at least the rank of that map.

    TeX: DropConnect with correlated inputs has a convex program for its best map, whose
    balanced factors are a global optimum.
    \[\min_{U,V}F(U,V)=\min_A\|(M-A)C^{1/2}\|_F^2+\frac{\lambda}{d}\,\|A\,\mathrm{diag}(C)^{1/2}\|_*^2\]
    """
    M = rng.normal(size=(3, 3))
    C = oracles.second_moment(rng, 3)
    best = LinearNetwork(M, 4, noise.DropConnect(0.4), second_moment=C).solve()
    lam = 0.4 / 0.6
    objective = descent.factor_objective(M, lam * np.eye(4), C, np.diag(np.diag(C)))
    yield relative(best.objective, descent.best_descent(objective, 24, 6, rng)[0])
    yield abs(best.certificate.relative_gap)
    return DESCENT, "proximal solution against descent on the factors"


@statement(how="bound evaluated")
def any_noise_bound(scale: int, rng: Rng) -> Residuals:
    r"""A bound for any noise.

    For sets S of units with sum_S Z_S <= Gamma + 1 1' and sum_S c_Sp = s_p 1, no network with
    noise Gamma has an objective below |s|^2 - sum_S (the |S| largest c_Sp' Z_S^+ c_Sp).

    TeX: \[F(U,V)\ge\|s\|^2-\sum_S\mathrm{top}_{|S|}\left(c^{S\top}_pZ_S^+c^S_p\right)_p\]
    """
    lam = 0.4 / 0.6
    probs = np.array([0.1, 0.3, 0.5, 0.7])
    # Units at the border are covered once, the others twice: (x + x^2) / 2 = .6, x = 1 - g.
    g = 1 - (math.sqrt(1 + 8 * 0.6) - 1) / 2
    sliding = oracles.moments(*oracles.sliding_masks((4,), 2, g))[1]
    noises: list[tuple[noise.Noise, Floats]] = [
        (noise.Dropout(0.4), lam * np.eye(4)),
        (noise.Dropout(probs), np.diag(probs / (1 - probs))),
        (noise.DropBlock(0.4, 2), lam * np.eye(2).repeat(2, axis=0).repeat(2, axis=1)),
        (noise.DropBlock(0.4, 2, "sliding"), sliding),
    ]
    for _ in range(2 * scale):
        A = rng.normal(size=(4, 6))
        covariance = A @ A.T / 6
        noises.append((noise.CovarianceNoise(np.ones(4), covariance), covariance))
    null = -math.inf
    for drop, Gamma in noises:
        M = rng.normal(size=(3, 4))
        bound = LinearNetwork(M, 4, drop).bound()
        lowest, _ = descent.best_descent(descent.factor_objective(M, Gamma), 28, 6, rng)
        yield bound / lowest - 1
        null = max(null, 1.1 * bound / lowest - 1)
    detail = f"the best descent for {len(noises)} noises; null: 1.1 times the bound"
    return 1e-9, detail, None, null


CURVED = 1e-6
"""Curvatures below minus this are negative; differences of gradients err by about 1e-9."""


def _critical_point(rng: Rng) -> tuple[Floats, Floats, Floats]:
    """Return a target, the strengths of the units, and weights with gradient 0.

    Units of one group have the same strength times size, alpha. They span singular directions of
    the target that no other group uses, with singular values alpha + (the group map's).
    """
    blocks = []
    cores = []
    strengths: list[float] = []
    for alpha in rng.uniform(0.2, 2, int(rng.integers(1, 4))):
        units = int(rng.integers(1, 4))
        columns = rng.normal(size=(units, units)) * rng.uniform(0.3, 1.5, (units, 1))
        blocks.append(columns)
        cores.append(alpha * np.eye(units) + columns @ columns.T)
        strengths += list(alpha / np.sum(columns**2, axis=0))
    # The last direction is one that no unit uses.
    U = block_diag(*blocks, np.zeros((1, 0)))
    core = block_diag(*cores, rng.uniform(0, 2.5))
    left, right = np.linalg.qr(rng.normal(size=(2, *core.shape)))[0]
    weights = np.concatenate([(left @ U).ravel(), (right @ U).ravel()])
    return left @ core @ right.T, np.array(strengths), weights


@statement(how="sampled")
def shallow_landscape(scale: int, rng: Rng) -> Evidence:
    r"""Shallow dropout has no spurious minima.

    With one hidden layer, untied weights and any rate per unit, every critical point of
    |M - UV'|^2 + sum_i lam_i |u_i|^2 |v_i|^2 is a global minimum or has negative curvature.

    Assumes: rates above 0; inputs of any second moment.

    TeX: Every critical point of $|M - U V^\top|^2 + \sum_i \lambda_i |u_i|^2 |v_i|^2$, $\lambda_i >
    0$, is a global minimum or has a direction of negative curvature.
    """
    wrong = 0
    saddles = 0
    trials = 40 * scale
    for _ in range(trials):
        M, strengths, weights = _critical_point(rng)
        objective = descent.factor_objective(M, np.diag(strengths))
        slope, curvature = descent.slope_and_curvature(objective, weights)
        drop = noise.Dropout(strengths / (1 + strengths))
        best = LinearNetwork(M, len(strengths), drop).solve().objective
        above = objective(weights)[0] / best - 1
        wrong += slope > CURVED or above < -EXACT
        if above > DESCENT:
            saddles += 1
            wrong += curvature > -CURVED
        elif above < EXACT:
            wrong += curvature < -CURVED
    detail = (
        f"{trials} critical points, {saddles} of them above the optimum: all bend down, the others "
        "nowhere; null: every critical point is a minimum"
    )
    return Evidence(float(wrong), 0.0, detail, null=float(saddles))


def _weighted(weights: Floats, Y: Floats, lam: float, width: int) -> descent.Objective:
    """Return sum w (Y - UV')^2 + lam sum_i |u_i|^2 |v_i|^2 and its gradient."""

    def objective(theta: Floats) -> tuple[float, Floats]:
        U, V = descent.factors(theta, len(Y), width)
        E = weights * (Y - U @ V.T)
        u = np.sum(U**2, axis=0)
        v = np.sum(V**2, axis=0)
        value = np.sum(E * (Y - U @ V.T)) + lam * u @ v
        gradient = [(lam * U * v - E @ V).ravel(), (lam * V * u - E.T @ U).ravel()]
        return float(value), 2 * np.concatenate(gradient)

    return objective


@statement(how="sampled")
def convex_landscape(scale: int, rng: Rng) -> Evidence:
    r"""Any convex loss, at enough width.

    For a convex loss l, every critical point of l(UV') + lam sum_i |u_i|^2 |v_i|^2 is a global
    minimum or has negative curvature if the width is at least min(outputs, inputs); below it there
    are spurious minima.

    Assumes: l with two continuous derivatives, one rate for all units.

    TeX: For a convex loss $l$ and a width of at least $\min(m, n)$, every critical point of
    $l(U V^\top) + \lambda \sum_i |u_i|^2 |v_i|^2$ is a global minimum or has a direction of
    negative curvature.
    """
    weights = rng.uniform(0.2, 3, (3, 4)) * (rng.random((3, 4)) < 0.7)
    objective = _weighted(weights, rng.normal(size=(3, 4)), 0.3, 3)
    ends = []
    for _ in range(8 * scale):
        theta = rng.normal(size=21)
        for _ in range(4):
            value, theta = descent.descend(objective, theta)
            # Equal norms |u_i| = |v_i| undo the drift along the symmetry that slows descent down.
            U, V = descent.factors(theta, 3, 3)
            norms = [np.linalg.norm(W, axis=0) + 1e-9 for W in (U, V)]
            ratio = np.sqrt(norms[1] / norms[0])
            theta = np.concatenate([(U * ratio).ravel(), (V / ratio).ravel()])
            theta += 1e-6 * rng.normal(size=21)
        ends.append(value)
    # One unit for two directions: each of the two fits of rank one is a minimum.
    narrow = _weighted(np.array([[1.0, 10], [10, 1]]), np.diag([1.0, 0.9]), 0.1, 1)
    minima = []
    for k, y in enumerate((1.0, 0.9)):
        point = np.zeros(4)
        point[[k, 2 + k]] = math.sqrt(y / 1.1)
        slope, curvature = descent.slope_and_curvature(narrow, point)
        critical = slope < CURVED and curvature > -CURVED
        minima.append(narrow(point)[0] if critical else math.nan)
    detail = (
        f"{len(ends)} descents end at one value; null: one unit for two directions, minima at "
        f"{minima[0]:.4f} and {minima[1]:.4f}"
    )
    spread = (max(ends) - min(ends)) / min(ends)
    return Evidence(spread, DESCENT, detail, null=max(minima) / min(minima) - 1)
