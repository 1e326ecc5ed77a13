"""Deep networks with dropout solved exactly, and a bound for every noise."""

from __future__ import annotations

import numpy as np

from overt.linear import DeepLinearNetwork, LinearNetwork, rank_jump
from overt.noise import CovarianceNoise
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, EXACT, STRICT, Evidence, relative, worst
from overt.papers.records import Residuals, statement


@statement(how="sampled")
def deep_exact_optimum(scale: int, rng: np.random.Generator) -> Evidence:
    r"""The optimum of a deep network with dropout.

    The least objective of a deep linear network with dropout is |s|^2 - max_pi sum_p s_p^2
    prod_l pi_lp / (pi_lp + lam_l / d_l), where each layer's shares pi_l sum to one.

    TeX: \[\min_WF(W)=\|s\|^2-\max_{\pi}\sum_ps_p^2\prod_l\frac{\pi_{lp}}{\pi_{lp}+\lambda_l/d_l},
    \qquad \sum_p\pi_{lp}=1\]
    """
    widths, probs = (2, 3), (0.3, 0.2)
    found, lost = [], []
    two = oracles.with_spectrum(rng, 2, 3, [1.0, 0.95]), np.eye(3)  # its optimum has rank two
    others = [(rng.standard_normal((2, 3)), oracles.second_moment(rng, 3)) for _ in range(scale)]
    for M, C in (two, *others):
        best, _ = descent.deep_descent(M, C, widths, probs, 8 * scale, rng)
        net = DeepLinearNetwork(M, widths, probs, second_moment=C)
        solved = net.solve()
        E = M - oracles.chain(solved.weights)
        attained = np.sum(E @ C * E) + oracles.deep_added_loss(solved.weights, probs, C)
        # A descent may end at a local minimum above the optimum, never below it.
        beaten = max(0.0, solved.objective / best - 1)
        found.append(max(relative(attained, solved.objective), beaten))
        lost.append(net.solve(rank=1).objective / best - 1)
    detail = (
        f"all masks at the solution, and {8 * scale} descents that end above it; null: the best "
        "map of rank one"
    )
    return Evidence(max(found), DESCENT, detail, null=max(lost))


@statement(how="enumerated")
def deep_spurious_minimum(scale: int, rng: np.random.Generator) -> Residuals:
    r"""A local minimum that is not global.

    Deep linear networks with dropout have local minima that are not global: with widths (2, 2),
    drop probability 1/3 and the target diag(1, .9), one of rank one has the objective 1.17, the
    optimum less.

    TeX: \[W_1=\begin{pmatrix}.8&0\\.8&0\end{pmatrix},\quad W_2=\tfrac14\mathbf{1}\mathbf{1}^\top,
    \quad W_3=\begin{pmatrix}.8&.8\\0&0\end{pmatrix}:\quad \nabla F(W)=0,\quad
    \nabla^2F(W)\succeq 0,\quad F(W)=1.17>\min F\]
    """
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


@statement(how="sampled")
def deep_rank_jump(scale: int, rng: np.random.Generator) -> Evidence:
    r"""Where the rank of a deep network jumps.

    With k equal layers the optimum jumps from rank one to two where
    x^(k-1) (x^2 + (1-x)^2 + beta) (1 + beta)^k = (x + beta)^(k+1), beta = lam / d and x the share
    of the first direction.

    TeX: \[x^{k-1}\left(x^2+(1-x)^2+\beta\right)(1+\beta)^k=(x+\beta)^{k+1},\qquad
    \frac{s_2}{s_1}=\left(\frac{x}{1-x}\right)^{\frac{k-1}{2}}
    \left(\frac{1-x+\beta}{x+\beta}\right)^{\frac{k+1}{2}}\]
    """
    widths, prob = (2, 2), 0.4

    def wrong_ranks(ratio: float) -> float:
        wrong = 0
        for factor, rank in ((0.97, 1), (1.03, 2)):
            M = np.diag([1.0, ratio * factor])
            _, W = descent.deep_descent(M, np.eye(2), widths, (prob, prob), 24 * scale, rng)
            s = np.linalg.svd(W, compute_uv=False)
            wrong += int(np.sum(s > 1e-3 * s[0])) != rank
        return float(wrong)

    # With one layer the second direction appears continuously, at beta / (1 + beta).
    beta = prob / (1 - prob) / widths[0]
    detail = (
        f"ranks of the best of {24 * scale} descents 3% below and above the jump; null: "
        "the threshold of one hidden layer"
    )
    return Evidence(
        wrong_ranks(rank_jump(widths, prob)), EXACT, detail, null=wrong_ranks(beta / (1 + beta))
    )


@statement(how="bound evaluated")
def any_noise_bound(scale: int, rng: np.random.Generator) -> Evidence:
    r"""A bound for any noise.

    For sets S of units with sum_S Z_S <= Gamma + 1 1' and sum_S c_Sp = s_p 1, no network with
    noise Gamma has an objective below |s|^2 - sum_S (the |S| largest c_Sp' Z_S^+ c_Sp).

    TeX: \[F(U,V)\ge\|s\|^2-\sum_S\mathrm{top}_{|S|}\left(c^{S\top}_pZ_S^+c^S_p\right)_p\]
    """
    over, too_high = [], []
    for _ in range(2 * scale):
        A = rng.standard_normal((4, 6))
        Gamma, M = A @ A.T / 6, rng.standard_normal((3, 3))
        net = LinearNetwork(M, 4, CovarianceNoise(np.ones(4), Gamma))
        bound, best = net.bound(), net.solve()

        def value(theta: np.ndarray, M: np.ndarray = M, Gamma: np.ndarray = Gamma) -> float:
            U, V = theta[:12].reshape(3, 4), theta[12:].reshape(3, 4)
            return float(np.sum((M - U @ V.T) ** 2) + np.sum(Gamma * (U.T @ U) * (V.T @ V)))

        starts = rng.standard_normal((500, 24)) * 10 ** rng.uniform(-2, 0.3, (500, 1))
        near = np.concatenate([best.U.ravel(), best.V.ravel()]) + 0.05 * starts
        least = min(value(theta) for theta in (*starts, *near))
        over.append(worst(0.0, bound / least - 1))
        too_high.append(worst(0.0, 1.2 * bound / least - 1))
    detail = "1,000 networks, random ones and ones near the best that is known; null: 1.2 times it"
    return Evidence(max(over), EXACT, detail, null=max(too_high))
