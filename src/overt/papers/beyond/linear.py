"""Norms, optima and certificates of linear networks."""

from __future__ import annotations

import math

import numpy as np

from overt import equalize, linear, noise, penalty, spectral
from overt._types import Floats
from overt.linear import bounds, sharing
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, EXACT, relative
from overt.papers.records import Residuals, statement


@statement(how="sampled")
def dropconnect_norm(scale: int, rng: np.random.Generator) -> Residuals:
    r"""DropConnect's norm.

    The least DropConnect penalty among all width-d factors of a map A is (lam/d) |A
    D^(1/2)|_*^2 with D the diagonal part of E[x x'].

    Assumes: a width of at least the rank of A.

    TeX: The least DropConnect penalty among all width-d factors of a map $A$ is $(\lambda/d) |A
    D^{1/2}|_*^2$ with $D$ the diagonal part of $\mathbb{E}[x x^\top ]$.
    """
    for width in range(2, 4 + scale // 2):
        A, C = rng.normal(size=(2, 3)), oracles.second_moment(rng, 3)
        D = np.diag(np.diag(C))
        drop = noise.DropConnect(0.4)
        best = drop.strength * descent.cheapest_factors(A, np.eye(2), D, width, 3, rng)
        weight, norm = spectral.induced(drop, width)
        yield relative(weight * norm.matrix_value(A @ np.sqrt(D)), best)
    return DESCENT, "descent over all factors of A"


@statement(how="sampled")
def spectral_duality(scale: int, rng: np.random.Generator) -> Residuals:
    r"""Norms and their duals.

    Each norm here and its dual bound inner products, <A, B>^2 <= value(A) dual(B), and some A
    reaches the bound for every B.

    TeX: Each norm here and its dual bound inner products, $\langle A, B\rangle ^2 \le
    \operatorname{value}(A) \operatorname{dual}(B)$, and some $A$ reaches the bound for every
    $B$.
    """
    for _ in range(5 * scale):
        A, B = rng.normal(size=(2, 4, 5))
        left, s, right = np.linalg.svd(B, full_matrices=False)
        p = float(rng.uniform(1.2, 4))
        cases: list[tuple[spectral.SpectralNorm, Floats]] = [
            (spectral.SquaredNuclear(), np.where(np.arange(4) < 1, 1.0, 0.0)),
            *(
                (spectral.KSupport(k), np.where(np.arange(4) < k, s, 0.0))
                for k in (1, 2, 3, 4)
            ),
            (spectral.Schatten(p), s ** (1 / (p - 1))),
        ]
        for norm, aligned in cases:
            best, dual = left * aligned @ right, float(norm.matrix_dual(B))
            yield float(np.sum(A * B) ** 2 / (norm.matrix_value(A) * dual)) - 1
            yield relative(dual, np.sum(best * B) ** 2 / float(norm.matrix_value(best)))
    return EXACT, "random pairs, and for each B the A aligned with it"


@statement(how="sampled")
def dropblock_tight(scale: int, rng: np.random.Generator) -> Residuals:
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
        left, right = (
            np.linalg.qr(rng.standard_normal((12, len(a))))[0] for _ in range(2)
        )
        U, V = sharing.block_factors(left, a, right, b * count, b)
        least = 0.4 / 0.6 / count * descent.ksupport(a, b)
        yield relative(U @ V.T, left * a @ right.T)
        yield relative(penalty.shallow(U, V, noise.DropBlock(0.4, b)), least)
    return 1e-10, "penalty of the constructed factors against the norm"


@statement(how="sampled")
def per_unit_optimum(scale: int, rng: np.random.Generator) -> Residuals:
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
    lam, M = (
        probs / (1 - probs),
        oracles.with_spectrum(rng, 3 + scale, 4, [5.0, 1.0, 0.5]),
    )
    best = linear.LinearNetwork(M, 3, noise.Dropout(probs)).solve()
    objective = descent.factor_objective(M, np.diag(lam))
    lowest = descent.best_descent(objective, 3 * (M.shape[0] + M.shape[1]), 6, rng)[0]
    shares = equalize.importance(best.U, best.V) * lam
    yield relative(best.objective, lowest)
    yield relative(shares, np.full(3, shares.mean()))
    return DESCENT, (
        "closed form against descent, and strength times share is the same for every unit"
    )


@statement(how="sampled")
def dropconnect_optimum(scale: int, rng: np.random.Generator) -> Residuals:
    r"""DropConnect's optimum.

    DropConnect with correlated inputs has a convex program for its best map, whose balanced
    factors are a global optimum.

    Assumes: width at least the rank of that map.

    TeX: DropConnect with correlated inputs has a convex program for its best map, whose
    balanced factors are a global optimum.
    \[\min_{U,V}F(U,V)=\min_A\|(M-A)C^{1/2}\|_F^2+\frac{\lambda}{d}\,\|A\,\mathrm{diag}(C)^{1/2}\|_*^2\]
    """
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


@statement(how="bound evaluated")
def certificate(scale: int, rng: np.random.Generator) -> Residuals:
    r"""Certificates are lower bounds.

    The certificate's lower bound is below the objective of every network, for every noise.

    TeX: The certificate's lower bound is below the objective of every network, for every noise.
    \[F(U,V)\ge\underline{F}\quad\text{for all }(U,V)\]
    """
    K, lam = rng.standard_normal((4, 4)), 0.4 / 0.6
    null = -math.inf
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
        null = max(null, (1.1 * lower - lowest) / lowest)
    detail = "how far the bound exceeds the lowest descent, if at all; null: 1.1 times the bound"
    return 1e-9, detail, None, null
