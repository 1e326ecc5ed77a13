"""Norms, optima, certificates and landscapes of shallow linear networks."""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import block_diag

from overt import noise, penalty
from overt._check import Floats
from overt.linear import LinearNetwork
from overt.linear.shallow import block_factors
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, EXACT, Evidence, relative
from overt.papers.records import Residuals, Rng, statement


@statement()
def dropblock_tight(rng: Rng) -> Residuals:
    r"""A construction that attains the DropBlock bound.

    With as many blocks as a Hadamard matrix of at least the rank has rows, factors attain
    DropBlock's k-support bound.

    Assumes: blocks on a grid.

    TeX: With as many blocks as a Hadamard matrix of at least the rank has rows, factors attain
    DropBlock's k-support bound. \[\frac{d}{b}=h,\ H_h\ \text{Hadamard},\
    h\ge\mathrm{rank}(A)\;\Longrightarrow\;\min_{UV^\top=A}R=\frac{\lambda
    b}{d}\,\|A\|_{(b)}^2\]

    Proof: Let $n = d/b$ and $X_i = U_i V_i^\top$ the map through block $i$, of rank at most $b$,
    so that $R = \lambda \sum_i \|X_i\|_F^2$. \emph{Bound.} $\|A\|_{(b)}$ is the gauge of the hull
    of the maps of rank at most $b$ and Frobenius norm at most 1, so that $\|A\|_{(b)} \le \sum_i
    \|X_i\|_F \le \sqrt{n \sum_i \|X_i\|_F^2}$. \emph{Construction.} Let $a$ be the positive
    singular values of $A$, $r$ in number, $L$ and $Y$ its singular vectors, and $t$ optimal in
    $\|a\|_{(b)}^2 = \min \{\sum_p a_p^2/t_p : 0 < t_p \le 1, \sum_p t_p \le b\}$. If $r \le b$
    put $G = I$. Otherwise $\sum_p t_p = b$, and by Schur and Horn a projection $G$ of rank $b$ on
    $\mathbb{R}^r$ has the diagonal $t$. Let $S_i$ be the diagonal matrix of the first $r$ signs
    in row $i$ of the Hadamard matrix, and $P_i = S_i G S_i$. Different columns of the Hadamard
    matrix are orthogonal, so $\sum_i P_i = n\,\mathrm{diag}(t) =: F$. The maps $X_i = L P_i
    F^{-1} \mathrm{diag}(a) Y^\top$ have rank at most $b$ and the sum $A$, and as $P_i^2 = P_i$,
    $\lambda \sum_i \|X_i\|_F^2 = \lambda\,\mathrm{tr}(\mathrm{diag}(a) F^{-1} \mathrm{diag}(a)) =
    (\lambda/n) \|a\|_{(b)}^2$.
    """
    for b, count in ((2, 4), (3, 8), (2, 16)):
        a = np.sort(rng.exponential(1.0, min(count, 4)))[::-1]
        left, right = np.linalg.qr(rng.normal(size=(2, 12, len(a))))[0]
        U, V = block_factors(left, a, right, b * count, b)
        least = 0.4 / 0.6 / count * descent.ksupport(a, b)
        yield relative(U @ V.T, left * a @ right.T)
        yield relative(penalty.shallow(U, V, noise.DropBlock(0.4, b)), least)
    return EXACT, "penalty of the constructed factors against the norm"


@statement()
def dropconnect_optimum(rng: Rng) -> Residuals:
    r"""DropConnect's optimum.

    DropConnect with correlated inputs has a convex program for its best map, whose balanced
    factors are a global optimum.

    Assumes: width at least the rank of that map.

    TeX: DropConnect with correlated inputs has a convex program for its best map, whose
    balanced factors are a global optimum.
    \[\min_{U,V}F(U,V)=\min_A\|(M-A)C^{1/2}\|_F^2+\frac{\lambda}{d}\,\|A\,\mathrm{diag}(C)^{1/2}\|_*^2\]

    Proof: Let $D = \mathrm{diag}(C)$; inputs with $D_{jj} = 0$ vanish and are left out. By
    Theorem 4.1, corrected, $F(U, V) = \|(M - U V^\top) C^{1/2}\|_F^2 + \lambda \sum_k x_k^2$ with
    $x_k = |u_k| |D^{1/2} v_k|$ (up to a constant). By Cauchy and Schwarz and the triangle
    inequality $\sum_k x_k^2 \ge (\sum_k x_k)^2/d \ge \|U V^\top D^{1/2}\|_*^2/d$. Hence $F(U, V)$
    is at least the convex function of $A = U V^\top$. Its minimizer $A$ has rank at most $d$ by
    assumption, so that $A D^{1/2} = U P^\top$ with $|u_k| |p_k| = \|A D^{1/2}\|_*/d$ for all $k$
    (Implicit bias of dropout, Theorem 3.3): with $V = D^{-1/2} P$ both inequalities are
    equalities.
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
def any_noise_bound(rng: Rng) -> Residuals:
    r"""A bound for any noise.

    For sets S of units with sum_S Z_S <= Gamma + 1 1' and sum_S c_Sp = s_p 1, no network with
    noise Gamma has an objective below |s|^2 - sum_S (the |S| largest c_Sp' Z_S^+ c_Sp).

    TeX: \[F(U,V)\ge\|s\|^2-\sum_S\mathrm{top}_{|S|}\left(c^{S\top}_pZ_S^+c^S_p\right)_p\]

    Proof: Rotations of inputs and outputs change neither $U^\top U$ nor $V^\top V$: let $M =
    \mathrm{diag}(s)$. Let $X_i = u_i v_i^\top$ and $R = \Gamma + 11^\top$. Since $\langle X_i,
    X_j \rangle = u_i^\top u_j\, v_i^\top v_j$, $F = \|s\|^2 - 2 \sum_i \langle M, X_i \rangle +
    \sum_{ij} R_{ij} \langle X_i, X_j \rangle$. The Gram matrix of the $X_i$ is positive
    semi-definite and $R \succeq \sum_S Z_S$, so the last sum is at least that of all $(Z_S)_{ij}
    \langle X_i, X_j \rangle$. Let $C^S_i = \mathrm{diag}_p(c^S_{ip})$; then $M = \sum_{S \ni i}
    C^S_i$ for every $i$, and $F \ge \|s\|^2 - \sum_S h_S$ with $h_S = \sup 2 \sum_{i \in S}
    \langle C^S_i, X_i \rangle - \sum_{i, j \in S} (Z_S)_{ij} \langle X_i, X_j \rangle$. Let $P$
    project on the span of $u_i$, $i \in S$: $P X_i = X_i$, so $C^S_i$ may be replaced by $P
    C^S_i$, whose entries $P_{qp} c^S_{ip}$, as vectors over $i$, lie in the range of $Z_S$.
    Completing the square over all matrices $X_i$, $h_S \le \sum_{ij} (Z_S^+)_{ij} \langle P
    C^S_i, P C^S_j \rangle = \sum_p P_{pp}\, c_p^{S\top} Z_S^+ c_p^S$. As $0 \le P_{pp} \le 1$ and
    $\sum_p P_{pp} \le |S|$, this is at most $\mathrm{top}_{|S|}$.
    """
    lam = 0.4 / 0.6
    noises: list[tuple[noise.Noise, Floats]] = [
        (noise.Dropout(0.4), lam * np.eye(4)),
        (noise.DropBlock(0.4, 2), lam * np.eye(2).repeat(2, axis=0).repeat(2, axis=1)),
    ]
    for _ in range(2):
        A = rng.normal(size=(4, 6))
        covariance = A @ A.T / 6
        noises.append((noise.CovarianceNoise(np.ones(4), covariance), covariance))
    for drop, Gamma in noises:
        M = rng.normal(size=(3, 4))
        bound = LinearNetwork(M, 4, drop).bound()
        lowest, _ = descent.best_descent(descent.factor_objective(M, Gamma), 28, 6, rng)
        ratio = bound / lowest
        yield ratio - 1, 1.1 * ratio - 1
    detail = f"the best descent for {len(noises)} noises; null: 1.1 times the bound"
    return 1e-9, detail


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


@statement()
def shallow_landscape(rng: Rng) -> Evidence:
    r"""Shallow dropout has no spurious minima.

    With one hidden layer, untied weights and any rate per unit, every critical point of
    |M - UV'|^2 + sum_i lam_i |u_i|^2 |v_i|^2 is a global minimum or has negative curvature.

    Assumes: rates above 0; inputs of any second moment.

    TeX: Every critical point of $|M - U V^\top|^2 + \sum_i \lambda_i |u_i|^2 |v_i|^2$, $\lambda_i >
    0$, is a global minimum or has a direction of negative curvature.

    Proof: For $\mathbb{E}[x x^\top] = C$ replace $V$ by $C^{1/2} V$: the map is linear and onto
    its range. Let $G = M - U V^\top$. At a critical point $G v_i = \lambda_i |v_i|^2 u_i$ and
    $G^\top u_i = \lambda_i |u_i|^2 v_i$. If $M = 0$, then $-|U V^\top|^2 = \langle G, U V^\top
    \rangle = \sum_i \lambda_i |u_i|^2 |v_i|^2$, so both are 0: a global minimum. If $M \ne 0$,
    then $G \ne 0$, as $G = 0$ would give $u_i v_i^\top = 0$ for all $i$. Suppose that there is no
    negative curvature. (i) \emph{No unit is zero.} If $u_i = 0$, then $G v_i = 0$, and moving the
    unit by $(a, b)$ changes $F$ by $-2 a^\top G b + (1 + \lambda_i) |a|^2 |v_i|^2$ to second
    order, which is negative at $a = \varepsilon G b \ne 0$. Likewise $v_i \ne 0$. The symmetry
    $(u_i, v_i) \to (c u_i, v_i/c)$ makes $|u_i|^2 = |v_i|^2 = x_i$. So $(u_i, v_i)/\sqrt{x_i}$ is
    a singular pair of $G$ with the value $\alpha_i = \lambda_i x_i$. Group units by $\alpha$. The
    units of a group $g$ lie in one singular space $E_g$ of $G$, with $V_g = T_g U_g$, $T_g$ an
    isometry: $M = \sum_g (\alpha_g + U_g U_g^\top) T_g^\top + \text{rest}$. So an eigenvector
    $e_p$ of $U_g U_g^\top$ with the eigenvalue $\mu_p > 0$ is a singular vector of $M$ with the
    value $s_p = \alpha_g + \mu_p$. (ii) \emph{Order of groups.} Let $e_p$ belong to $g$, $e_q$ to
    $h$, $\Delta = \alpha_h - \alpha_g > 0$, $U_g w = \sqrt{\mu_p} e_p$ and $U_h z = \sqrt{\mu_q}
    e_q$ with unit vectors $w, z$. Move $U$ by $t (a e_q w^\top + b e_p z^\top)$ and $V$ by the
    images under $T$. As $e_q \perp U_g$ and $e_p \perp U_h$, $F$ changes by $2 t^2$ times $(a
    \sqrt{\mu_p} + b \sqrt{\mu_q})^2 - \Delta a^2 + \Delta b^2$, a form of the determinant $\Delta
    (s_p - s_q)$: $s_p \ge s_q$. (iii) \emph{Unused directions.} Let $e$ be orthogonal to all
    units, $G^\top e = \sigma f$. Moving by $t e w^\top$ and $t f w^\top$ changes $F$ by $2 t^2
    (s_p - \sigma)$: $\sigma \le s_p$. If the units of $g$ are dependent, $U_g w = 0$, the same
    move changes $F$ by $2 t^2 (\alpha_g - \sigma)$, and with a vector of $E_h$ for $e$ by $2 t^2
    (\alpha_g - \alpha_h)$: only the last group may be dependent, and then $\sigma \le
    \alpha_{\mathrm{last}}$. (iv) \emph{The point is optimal.} For any weights let $a_p$ be the
    singular values of $U V^\top$, decreasing, and $x_i = |u_i| |v_i|$. By Mirsky $F \ge \sum_p
    (s_p - a_p)^2 + \sum_i \lambda_i x_i^2$. Without the first $k$ units a map of nuclear norm at
    least $\sum_{p > k} a_p$ is left, so $\sum_{i > k} x_i \ge \sum_{p > k} a_p$ for all $k$, in
    any fixed order of the units. So $F$ is at least the minimum of a convex quadratic program.
    Order units and used directions by groups, $\alpha$ increasing, and inside a group $\mu$
    decreasing. By (ii) and (iii) the used directions are those of the largest $s_p$, in order,
    with $a_p = s_p - \alpha$, which decreases. The multipliers are the increments of $2 \alpha_i
    \ge 0$ along the units: $2 \lambda_i x_i = 2 \alpha_i$, $2 (s_p - a_p) = 2 \alpha_p$ where
    $a_p > 0$, and $2 s_p \le 2 \alpha_{\mathrm{last}}$ at further directions, which only a
    dependent last group leaves. They are positive only between groups, where the constraint is
    tight: the units of a group have $\sum x_i = \mathrm{tr}\, U_g U_g^\top = \sum \mu_p$. So the
    point solves the program, and $F$ there is its value.
    """
    wrong = 0
    saddles = 0
    trials = 40
    for _ in range(trials):
        M, strengths, weights = _critical_point(rng)
        objective = descent.factor_objective(M, np.diag(strengths))
        slope, curvature = descent.slope_and_curvature(objective, weights)
        drop = noise.Dropout(strengths / (1 + strengths))
        best = LinearNetwork(M, len(strengths), drop).solve()
        above = objective(weights)[0] / best.objective - 1
        wrong += slope > CURVED or above < -EXACT
        wrong += best.certificate.relative_gap > DESCENT
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


@statement()
def convex_landscape(rng: Rng) -> Evidence:
    r"""Any convex loss, at enough width.

    For a convex loss l, every critical point of l(UV') + lam sum_i |u_i|^2 |v_i|^2 is a global
    minimum or has negative curvature if the width is at least min(outputs, inputs); below it there
    are spurious minima.

    Assumes: l with two continuous derivatives, one rate for all units.

    TeX: For a convex loss $l$ and a width of at least $\min(m, n)$, every critical point of
    $l(U V^\top) + \lambda \sum_i |u_i|^2 |v_i|^2$ is a global minimum or has a direction of
    negative curvature.

    Proof: Let $A = U V^\top$, $G = -\nabla l(A)/2$ and suppose that there is no negative
    curvature. Critical points have $G v_i = \lambda |v_i|^2 u_i$ and $G^\top u_i = \lambda
    |u_i|^2 v_i$. If $G = 0$, then $A = 0$ minimizes $l$, and the penalty is 0. If $G \ne 0$ and
    $u_i = 0$, then $G v_i = 0$, and moving the unit by $(a, b)$ changes the objective by $-2
    a^\top G b + O(|a|^2)$: negative curvature. So no unit is zero, and scaling makes $|u_i|^2 =
    |v_i|^2 = x_i$: $(u_i, v_i)/\sqrt{x_i}$ is a singular pair of $G$ with the value $\alpha_i =
    \lambda x_i$. Units with different $\alpha$ are orthogonal. Rotating two of them by $\varphi$,
    in $U$ and in $V$, leaves $A$ as it is and changes the penalty by $-2 \lambda \varphi^2 (x_i -
    x_j)^2$: all $x_i$ are equal. So $V = T U$ with an isometry $T$ of one singular space,
    $\|A\|_* = \sum_i x_i$ and $\alpha = (\lambda/r) \|A\|_*$ at width $r$. If $U w = 0$, $|w| =
    1$, and $G^\top e = \sigma f$ with $e \perp U$, moving by $t e w^\top$ and $t f w^\top$
    changes the objective by $2 t^2 (\alpha - \sigma)$: no singular value of $G$ exceeds $\alpha$.
    If the columns of $U$ are independent, so are those of $V$, $r = \min(m, n)$, and all singular
    values of $G$ are $\alpha$. In both cases $2 G \in \partial\,(\lambda/r) \|A\|_*^2$: $A$
    minimizes the convex function $l(A) + (\lambda/r) \|A\|_*^2$, which is at most the objective
    by Cauchy and Schwarz, with equality here. \emph{Below this width:} $l(A) = \sum_{ij} w_{ij}
    (Y_{ij} - A_{ij})^2$ with $w = \begin{pmatrix} 1 & 10 \\ 10 & 1 \end{pmatrix}$, $Y =
    \mathrm{diag}(1, .9)$, one unit and $\lambda = .1$. At $u = v = \sqrt{y_k/1.1}\, e_k$ the
    Hessian is positive but for scaling: moving by $\varepsilon_1, \varepsilon_2$ in the other
    coordinates of $u$ and $v$ costs at least $8 (\varepsilon_1^2 + \varepsilon_2^2) - 2
    \varepsilon_1 \varepsilon_2$. The values are $.9009$ and $1.0736$.
    """
    weights = rng.uniform(0.2, 3, (3, 4)) * (rng.random((3, 4)) < 0.7)
    objective = _weighted(weights, rng.normal(size=(3, 4)), 0.3, 3)
    ends = []
    for _ in range(8):
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
        if slope < CURVED and curvature > -CURVED:
            minima.append(narrow(point)[0])
    detail = (
        f"{len(ends)} descents end at one value; null: one unit for two directions, minima at "
        f"{minima[0]:.4f} and {minima[1]:.4f}"
    )
    spread = (max(ends) - min(ends)) / min(ends)
    return Evidence(spread, DESCENT, detail, null=max(minima) / min(minima) - 1)
