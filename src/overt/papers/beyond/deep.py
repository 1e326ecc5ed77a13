"""Deep networks with dropout, solved exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._check import Floats
from overt._figures import BLUE, ORANGE, canvas
from overt.linear import DeepLinearNetwork, rank_jump
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, EXACT, STRICT, Evidence, relative
from overt.papers.figures import Finding, Findings, Params, Row, rows_with, values_of
from overt.papers.records import Residuals, Rng, figure, statement

LEFT = 0.4
"""s_2 / s_1 of the map above which a run has left the minimum of rank one."""


@statement()
def deep_exact_optimum(rng: Rng) -> Evidence:
    r"""The optimum of a deep network with dropout.

    The least objective of a deep linear network with dropout is |s|^2 - max_pi sum_p s_p^2
    prod_l pi_lp / (pi_lp + lam_l / d_l), where each layer's shares pi_l sum to one.

    TeX: \[\min_WF(W)=\|s\|^2-\max_{\pi}\sum_ps_p^2\prod_l\frac{\pi_{lp}}{\pi_{lp}+\lambda_l/d_l},
    \qquad \sum_p\pi_{lp}=1\]

    Proof: Let the inputs be whitened, $T$ the target with singular values $s$, $\beta_l =
    \lambda_l/d_l$, all $\lambda_l > 0$, and $H_k(T) = \sup_W 2 \langle T, W_{k+1} \cdots W_1
    \rangle - \mathbb{E} \|W_{k+1} D_k W_k \cdots D_1 W_1\|_F^2$; the claim is that $H_k =
    \max_\pi \sum_p s_p^2 \prod_l \pi_{lp}/(\pi_{lp} + \beta_l)$. $H_0(T) = \|T\|^2$. Let $U =
    W_{k+1}$. Scaling units makes its columns unit vectors; where one is 0, set what enters the
    unit to 0. For any $B$, $\mathbb{E} \|U D_k B\|^2 = \langle K B, B \rangle$ with $K = U^\top U
    + \lambda_k I$, and $\langle T, U W_k \cdots W_1 \rangle = \langle K^{-1/2} U^\top T, (K^{1/2}
    W_k) W_{k-1} \cdots W_1 \rangle$. As $K^{1/2} W_k$ is any matrix, $H_k(T) = \sup_U
    H_{k-1}(K^{-1/2} U^\top T)$. The squared singular values $x$ of $K^{-1/2} U^\top T$ are the
    eigenvalues of $T^\top \Pi T$, $\Pi = F (F + \lambda_k)^{-1}$, $F = U U^\top$, $\mathrm{tr}\,
    F = d_k$. By induction $H_{k-1}$ is a maximum of functions of $x$ that are linear with weights
    at least 0, and symmetric: a convex, increasing, symmetric function, which respects weak
    majorization. By Horn $x$ is weakly majorized by $(\lambda_p(\Pi) s_p^2)_p$, with equality if
    $F$ is diagonal in the left singular basis of $T$. By Schur and Horn the matrices $F = U
    U^\top$ with unit columns are those with $\varphi \ge 0$, $\sum_p \varphi_p = d_k$ and at most
    $d_k$ positive eigenvalues. So $H_k$ is the maximum of $H_{k-1}$ at the values $s_p^2
    \varphi_p/(\varphi_p + \lambda_k)$, and $\varphi = d_k \pi_k$ gives the formula. Directions
    without a share in some layer gain nothing, so that the shares of all layers may be taken on
    the same directions, at most $\min(d_1, \ldots, d_k)$ of them.
    """
    widths = (2, 3)
    probs = (0.3, 0.2)
    found = []
    lost = []
    # The optimum of the first problem has rank two.
    first = oracles.with_spectrum(rng, 2, 3, [1.0, 0.95])
    for trial in range(2):
        M = rng.normal(size=(2, 3)) if trial else first
        C = oracles.second_moment(rng, 3) if trial else np.eye(3)
        best, _ = descent.deep_descent(M, C, widths, probs, 8, rng)
        net = DeepLinearNetwork(M, widths, probs, second_moment=C)
        solved = net.solve()
        E = M - oracles.chain(solved.weights)
        attained = np.sum(E @ C * E) + oracles.deep_added_loss(solved.weights, probs, C)
        # A descent may end at a local minimum above the optimum, never below it.
        beaten = max(0.0, solved.objective / best - 1)
        found.append(max(relative(attained, solved.objective), beaten))
        lost.append(net.solve(rank=1).objective / best - 1)
    detail = (
        "all masks at the solution, and 8 descents that end above it; null: the best "
        "map of rank one"
    )
    return Evidence(max(found), DESCENT, detail, null=max(lost))


@statement(how="enumerated")
def deep_spurious_minimum(rng: Rng) -> Residuals:
    r"""A local minimum that is not global.

    Deep linear networks with dropout have local minima that are not global: with widths (2, 2),
    drop probability 1/3 and the target diag(1, .9), one of rank one has the objective 1.17, the
    optimum less.

    TeX: \[W_1=\begin{pmatrix}.8&0\\.8&0\end{pmatrix},\quad W_2=\tfrac14\mathbf{1}\mathbf{1}^\top,
    \quad W_3=\begin{pmatrix}.8&.8\\0&0\end{pmatrix}:\quad \nabla F(W)=0,\quad
    \nabla^2F(W)\succeq 0,\quad F(W)=1.17>\min F\]

    Proof: Here $\lambda = 1/2$, $\beta = \lambda/2 = 1/4$ and $s = (1, .9)$. The objective is
    $1.81$ less the gain $2 \langle M, W_3 W_2 W_1 \rangle - \mathbb{E} \|W_3 D_2 W_2 D_1
    W_1\|_F^2$, which is $.64$ at the point. Near it no column of $W_3$ vanishes; scaling the
    units makes them unit vectors. With $U = W_3$, $K = U^\top U + \lambda I$ and $T_1 = K^{-1/2}
    U^\top M$, whatever $W_1$ and $W_2$ are, the gain is at most the best of a network with one
    noisy layer and the target $T_1$ (proof of the optimum of a deep network), which is
    $\sigma_1^2/(1 + \beta)$ where its singular values have $\sigma_2 \le \sigma_1 \beta/(1 +
    \beta)$ (Implicit bias of dropout, Theorem 3.6). At the point $T_1$ has rank one, so this
    holds in a neighborhood. And $\sigma_1^2 \le s_1^2 \lambda_1(\Pi) \le s_1^2/(1 + \beta)$,
    since the eigenvalues of $U U^\top$ are at most its trace 2. So the gain is at most $s_1^2/(1
    + \beta)^2 = .64$ in the neighborhood: the point is a local minimum, its gradient is 0 and its
    Hessian positive semi-definite. Equal shares $1/2$ in both layers gain
    $1.81\,(\tfrac12/(\tfrac12 + \tfrac14))^2 > .8$: the optimum is below $1.01$.
    """
    M = np.diag([1.0, 0.9])
    probs = (1 / 3, 1 / 3)
    spurious = np.array([0.8, 0, 0.8, 0, 0.25, 0.25, 0.25, 0.25, 0.8, 0.8, 0, 0])

    def value(theta: Floats) -> float:
        weights = list(theta.reshape(3, 2, 2))
        error = np.sum((M - oracles.chain(weights)) ** 2)
        return float(error + oracles.deep_added_loss(weights, probs, np.eye(2)))

    def objective(theta: Floats) -> tuple[float, Floats]:
        # Quadratic in every entry: central differences are the derivatives.
        moves = 1e-3 * np.eye(12)
        slope = [(value(theta + e) - value(theta - e)) / 2e-3 for e in moves]
        return value(theta), np.array(slope)

    slope, curvature = descent.slope_and_curvature(objective, spurious)
    best, _ = descent.deep_descent(M, np.eye(2), (2, 2), probs, 8, rng)
    yield relative(value(spurious), 1.17)
    yield slope
    yield -curvature - 1e-6  # the error of the differences
    yield STRICT - (value(spurious) / best - 1)
    return EXACT, f"all masks; least curvature {curvature:.1e}, best descent {best:.6f}"


@statement()
def deep_rank_jump(rng: Rng) -> Evidence:
    r"""Where the rank of a deep network jumps.

    With k equal layers the optimum jumps from rank one to two where
    x^(k-1) (x^2 + (1-x)^2 + beta) (1 + beta)^k = (x + beta)^(k+1), beta = lam / d and x the share
    of the first direction.

    TeX: \[x^{k-1}\left(x^2+(1-x)^2+\beta\right)(1+\beta)^k=(x+\beta)^{k+1},\qquad
    \frac{s_2}{s_1}=\left(\frac{x}{1-x}\right)^{\frac{k-1}{2}}
    \left(\frac{1-x+\beta}{x+\beta}\right)^{\frac{k+1}{2}}\]

    Proof: Let $g(t) = t/(t + \beta)$; $\log g$ is concave. By Jensen $\prod_l g(\pi_{lp}) \le
    g(x_p)^k$ with $x_p$ the mean share over the layers, and these means sum to one: the gain is
    $\max \sum_p s_p^2 g(x_p)^k$ over the simplex. With two directions, $s_1 = 1$ and $\rho =
    s_2^2$ it is the maximum of $g(x)^k + \rho\, g(1-x)^k$. At a stationary point $x < 1$, as
    $g'(t) = \beta/(t + \beta)^2$, $\rho = (x/(1-x))^{k-1} ((1-x+\beta)/(x+\beta))^{k+1}$, and the
    gain is $x^{k-1} (x^2 + (1-x)^2 + \beta)/(x+\beta)^{k+1}$. Rank one gains $(1 + \beta)^{-k}$.
    The gain of two directions increases with $\rho$ and that of one does not, so the jump is
    where the two are equal.
    """
    widths = (2, 2)
    prob = 0.4

    def wrong_ranks(ratio: float) -> float:
        wrong = 0
        for factor, rank in ((0.97, 1), (1.03, 2)):
            M = np.diag([1.0, ratio * factor])
            starts = 48
            _, W = descent.deep_descent(M, np.eye(2), widths, (prob, prob), starts, rng)
            s = np.linalg.svd(W, compute_uv=False)
            wrong += int(np.sum(s > 1e-3 * s[0])) != rank
        return float(wrong)

    # With one layer the second direction appears continuously, at beta / (1 + beta).
    beta = prob / (1 - prob) / widths[0]
    detail = (
        "ranks of the best of 48 descents 3% below and above the jump; null: "
        "the threshold of one hidden layer"
    )
    found = wrong_ranks(rank_jump(widths, prob))
    return Evidence(found, EXACT, detail, null=wrong_ranks(beta / (1 + beta)))


def run_phase(params: Params, seed: int) -> dict[str, Any]:
    """Return the rank of the optimum for the target diag(1, .8, .8^2, ...)."""
    widths = (params["width"],) * params["hidden"]
    M = np.diag(0.8 ** np.arange(params["width"]))
    best = DeepLinearNetwork(M, widths, params["drop_prob"]).solve()
    certificate = best.rank_certificate
    return {
        "rank": best.rank,
        "decided": certificate is not None and certificate.least == certificate.most,
        "jump": rank_jump(widths, params["drop_prob"]),
    }


def check_phase(rows: list[Row]) -> Findings:
    """Yield whether ranks are certified and fall with depth, and agree with the closed form."""
    decided = sum(row["decided"] for row in rows)
    yield Finding(
        "the rank of every optimum is certified",
        decided == len(rows),
        f"{decided} of {len(rows)} settings",
    )
    risen = 0
    for prob in values_of(rows, "drop_prob"):
        ranks = [row["rank"] for row in rows_with(rows, drop_prob=prob)]
        risen += int(np.sum(np.diff(ranks) > 0))
    yield Finding("depth never raises the rank", risen == 0, f"raised {risen} times")
    right = [(row["rank"] >= 2) == bool(row["jump"] < 0.8) for row in rows]
    yield Finding(
        "the rank is two or more exactly where s_2 / s_1 is above the jump",
        all(right),
        f"{sum(right)} of {len(right)} settings",
    )


def plot_phase(rows: list[Row]) -> Any:
    """Draw the rank over drop probability and depth, with the jump from rank one."""
    picture, axes = canvas(6, 4)
    probs = values_of(rows, "drop_prob")
    depths = values_of(rows, "hidden")
    shape = (len(probs), len(depths))
    ranks = np.reshape([row["rank"] for row in rows], shape).T
    drawn = axes.pcolormesh(probs, depths, ranks, shading="nearest")
    ticks = [1, 5, 10, 15, 20]
    picture.colorbar(drawn, ax=axes, label="rank of the optimum", ticks=ticks)
    # Infinite where rank one is optimal for every target; rows store that as missing.
    jumps = np.nan_to_num([row["jump"] for row in rows], nan=2.0, posinf=2.0)
    if jumps.min() < 0.8 < jumps.max():
        axes.contour(probs, depths, jumps.reshape(shape).T, [0.8], colors=ORANGE)
        axes.plot([], [], color=ORANGE, label="jump from rank one, closed form")
        axes.legend()
    axes.set(
        xlabel="drop probability",
        ylabel="hidden layers",
        yticks=depths,
    )
    return picture


figure(
    "deep-phase-diagram",
    "The rank by drop probability and depth",
    "deep networks",
    """The rank of deep networks as a phase diagram.

    Each further hidden layer lowers the certified rank of the optimum or leaves it as it is, down
    to rank one. The rank is two or more left of the line, the closed form of the jump.
    """,
    run=run_phase,
    check=check_phase,
    plot=plot_phase,
)


def run_escape(params: Params, seed: int) -> dict[str, Any]:
    """Start SGD with sampled dropout at the spurious minimum; return which runs leave it."""
    net = DeepLinearNetwork(np.diag([1.0, 0.9]), (2, 2), 1 / 3)
    steps = params["steps"]
    trace = net.train(
        steps,
        params["rate"],
        [1000 * seed + i for i in range(params["count"])],
        batch_size=8,
        init=net.landscape().minima[0].weights,
        records=[0, steps],
        n_jobs=1,
    )
    ratios = []
    for weights in zip(*trace.weights, strict=True):
        s = np.linalg.svd(oracles.chain(weights), compute_uv=False)
        ratios.append(float(s[1] / s[0]))
    return {"ratios": ratios, "left": sum(ratio > LEFT for ratio in ratios)}


def check_escape(rows: list[Row]) -> Findings:
    """Yield whether small steps stay and large steps leave."""
    slow = rows[0]
    fast = rows[-1]
    yield Finding(
        "at the smallest step size every run stays at the spurious minimum",
        slow["left"] == 0,
        f"step size {slow['rate']:g}: {slow['left']} of {slow['count']} leave",
    )
    yield Finding(
        "at the largest step size every run leaves it",
        fast["left"] == fast["count"],
        f"step size {fast['rate']:g}: {fast['left']} of {fast['count']} leave",
    )


def plot_escape(rows: list[Row]) -> Any:
    """Draw the share of runs that leave, by step size."""
    picture, axes = canvas(6, 4)
    shares = [row["left"] / row["count"] for row in rows]
    axes.plot([row["rate"] for row in rows], shares, "o-", color=BLUE)
    label = f"share of runs that leave in {rows[0]['steps']:,} steps"
    axes.set(xscale="log", xlabel="step size", ylabel=label, ylim=(-0.05, 1.05))
    return picture


figure(
    "deep-spurious-escape",
    "SGD at the spurious minimum",
    "deep networks",
    """SGD stays at a spurious minimum or leaves it, by step size.

    Started at the spurious minimum of the smallest example, SGD with sampled dropout stays there
    at small step sizes and leaves it at large ones.
    """,
    run=run_escape,
    check=check_escape,
    plot=plot_escape,
)
