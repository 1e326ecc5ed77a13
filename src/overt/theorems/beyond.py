"""Results beyond the papers: deep dropout solved exactly, and a bound for every noise."""

from __future__ import annotations

import numpy as np

from overt.linear import DeepLinearNetwork, LinearNetwork, rank_jump
from overt.noise import CovarianceNoise
from overt.theorems import _descent as descent
from overt.theorems import _oracles as oracles
from overt.theorems.base import DESCENT, EXACT, STRICT, Residuals, relative, theorem, worst


@theorem(
    "deep-exact-optimum",
    source="overt (new)",
    claim="The least objective of a deep linear network with dropout is |s|^2 - max_pi sum_p "
    "s_p^2 prod_l pi_lp / (pi_lp + lam_l / d_l), where each layer's shares pi_l sum to one",
)
def _deep_exact_optimum(scale: int, rng: np.random.Generator) -> Residuals:
    widths, probs = (2, 3), (0.3, 0.2)
    for _ in range(1 + scale):
        M, C = rng.standard_normal((2, 3)), oracles.second_moment(rng, 3)
        best, _ = descent.deep_descent(M, C, widths, probs, 8 * scale, rng)
        yield relative(DeepLinearNetwork(M, widths, probs, second_moment=C).solve().objective, best)
    return DESCENT, f"the best of {8 * scale} descents over all masks"


@theorem(
    "deep-spurious-minimum",
    source="overt (new)",
    claim="Deep linear networks with dropout have local minima that are not global",
    assumes="widths (2, 2), drop probability 1/3, target diag(1, .9): rank one has the objective "
    "1.17, the optimum less",
)
def _deep_spurious_minimum(scale: int, rng: np.random.Generator) -> Residuals:
    M, C, probs = np.diag([1.0, 0.9]), np.eye(2), (1 / 3, 1 / 3)
    spurious = np.array([0.8, 0, 0.8, 0, 0.25, 0.25, 0.25, 0.25, 0.8, 0.8, 0, 0])

    def objective(theta: np.ndarray) -> float:
        weights = list(theta.reshape(3, 2, 2))
        W = oracles.chain(weights)
        return float(np.sum((M - W) ** 2)) + oracles.deep_added_loss(weights, probs, C)

    value = objective(spurious)
    yield relative(value, 1.17)
    steps = 1e-3 * np.eye(12)
    # The objective is quadratic in every entry: central differences are its derivatives.
    yield worst(*(abs(objective(spurious + e) - objective(spurious - e)) for e in steps))
    hessian = np.array(
        [
            [
                objective(spurious + e + f)
                - objective(spurious + e - f)
                - objective(spurious - e + f)
                + objective(spurious - e - f)
                for f in steps
            ]
            for e in steps
        ]
    ) / (4 * 1e-3**2)
    curvature = float(np.linalg.eigvalsh(hessian)[0])
    best, _ = descent.deep_descent(M, C, (2, 2), probs, 8 * scale, rng)
    yield worst(0.0, -curvature * 1e-5)  # differences of step 1e-3 leave an error of 1e-6
    yield worst(0.0, STRICT - (value / best - 1))
    return EXACT, f"all masks; least curvature {curvature:.1e}, best descent {best:.6f}"


@theorem(
    "deep-rank-jump",
    source="overt (new)",
    claim="With k equal layers the optimum jumps from rank one to two where "
    "x^(k-1) (x^2 + (1-x)^2 + beta) (1 + beta)^k = (x + beta)^(k+1)",
    assumes="beta = lam / d, x the share of the first direction",
)
def _deep_rank_jump(scale: int, rng: np.random.Generator) -> Residuals:
    widths, prob = (2, 2), 0.4
    ratio = rank_jump(widths, prob)
    for factor, rank in ((0.97, 1), (1.03, 2)):
        M = np.diag([1.0, ratio * factor])
        _, W = descent.deep_descent(M, np.eye(2), widths, (prob, prob), 24 * scale, rng)
        s = np.linalg.svd(W, compute_uv=False)
        yield float(int(np.sum(s > 1e-3 * s[0])) != rank)
    return EXACT, f"ranks of the best of {24 * scale} descents 3 per cent below and above the jump"


@theorem(
    "any-noise-bound",
    source="overt (new)",
    claim="For sets S of units, sum_S Z_S <= Gamma + 1 1' and sum_S c_Sp = s_p 1, no network with "
    "noise Gamma has an objective below |s|^2 - sum_S (the |S| largest c_Sp' Z_S^+ c_Sp)",
)
def _any_noise_bound(scale: int, rng: np.random.Generator) -> Residuals:
    for _ in range(2 * scale):
        A = rng.standard_normal((4, 6))
        Gamma, M = A @ A.T / 6, rng.standard_normal((3, 3))
        net = LinearNetwork(M, 4, CovarianceNoise(np.ones(4), Gamma))
        bound = net.bound()

        def value(theta: np.ndarray, M: np.ndarray = M, Gamma: np.ndarray = Gamma) -> float:
            U, V = theta[:12].reshape(3, 4), theta[12:].reshape(3, 4)
            return float(np.sum((M - U @ V.T) ** 2) + np.sum(Gamma * (U.T @ U) * (V.T @ V)))

        starts = rng.standard_normal((500, 24)) * 10 ** rng.uniform(-2, 0.3, (500, 1))
        best = net.solve()
        near = np.concatenate([best.U.ravel(), best.V.ravel()]) + 0.05 * starts
        yield worst(0.0, *(bound / value(theta) - 1 for theta in (*starts, *near)))
    return EXACT, "1,000 networks, random ones and ones near the best that is known"
