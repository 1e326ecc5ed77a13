"""ReLU networks: retentivity, typical sub-networks, and attacks that fail."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
from scipy.integrate import quad

from overt._check import Floats
from overt.papers import descent, oracles
from overt.papers.evidence import Evidence
from overt.papers.records import Residuals, Rng, statement


@statement(how="enumerated")
def retentivity_required(rng: Rng) -> Evidence:
    r"""Retentivity cannot be dropped.

    On the circle (1, cos t, sin t)/sqrt 2 with fair coins for labels, n units (cos(t - t_j) -
    cos h)_+/(1 - cos h) fit n points exactly with sum_j |u_j| a_j <= n sqrt(h/pi) and a test loss
    of at least 1 - n h/pi, for every small h.

    TeX: On the circle $(1, \cos t, \sin t)/\sqrt{2}$ with fair coins for labels, $n$ units
    $(\cos(t - t_j) - \cos h)_+/(1 - \cos h)$ fit $n$ points exactly with $\sum_j |u_j| a_j \le n
    \sqrt{h/\pi}$ and a test loss of at least $1 - n h/\pi$, for every small $h$.

    Proof: Each unit is the ReLU of a linear function of the input. It is positive on an arc of
    length $2h$, of measure $h/\pi$, and at most 1, so that $a_j \le \sqrt{h/\pi}$. For $h$ below
    the least gap between the points unit $j$ is 1 at point $j$ and 0 at the others: $\sum_j
    y_j\,\mathrm{unit}_j$ fits all labels with $\sum_j |u_j| a_j \le n \sqrt{h/\pi}$. Off the
    arcs, of measure at most $n h/\pi$ together, the network is 0, and the squared loss is 1.
    """
    n = 20
    angles = 2 * np.pi * (np.arange(n) + rng.uniform(0, 0.5, n)) / n
    y = rng.choice((-1.0, 1.0), n)

    def excess(h: float) -> float:
        def unit(t: Floats) -> Floats:
            return np.maximum(np.cos(t) - math.cos(h), 0) / (1 - math.cos(h))

        fitted = unit(angles[:, None] - angles) @ y
        second = quad(lambda t: unit(t) ** 2, -h, h)[0] / (2 * math.pi)
        # A label is right or wrong with equal chances: E(y - f)^2 = 1 + f^2 off the n points.
        lost = 1 + n * second
        alpha = n * math.sqrt(second) - n * math.sqrt(h / math.pi)
        return float(max(np.abs(fitted - y).max(), alpha, 1 - n * h / math.pi - lost))

    narrow = max(excess(1 / n), excess(0.1 / n))
    detail = (
        f"{n} points, integrals by quadrature; null: units that reach the next point"
    )
    return Evidence(narrow, 1e-9, detail, null=excess(3 * math.pi / n))


def _hard_points(graph: Floats, clique: int) -> Floats:
    """Return points whose retentivity is below 1/4 iff the graph has a clique of this size."""
    d = len(graph)
    Q = (1 - 1 / (clique - 0.5)) * np.ones((d, d)) - graph
    large = 400.0 * d**4
    axes = np.eye(d)
    found = []
    for i, j in combinations(range(d), 2):
        size = math.sqrt(Q[i, j] / 0.75) if Q[i, j] > 0 else -math.sqrt(-Q[i, j] * 4)
        found.append(size * (axes[i] + axes[j]))
    for i, e in enumerate(axes):
        found.append(e * math.sqrt((large / 4 + 2 * Q[i, i] - Q[i].sum()) / 0.75))
        found.append(-e * math.sqrt(large))
    return np.array(found)


def _least_share(X: Floats, rng: Rng) -> float:
    """Return the least of sum (v.x)_+^2 - sum (v.x)^2 / 4 on the sphere that descents find."""

    def objective(v: Floats) -> tuple[float, Floats]:
        z = X @ v
        active = np.maximum(z, 0)
        size = float(v @ v)
        share = float(active @ active - z @ z / 4) / size
        return share, 2 * (X.T @ (active - z / 4) - share * v) / size

    supports = [np.array(bits) for bits in product((0.0, 1.0), repeat=X.shape[1])][1:]
    starts = [s + noise * rng.random(len(s)) for s in supports for noise in (0, 0.02)]
    return min(min(objective(s)[0], descent.descend(objective, s)[0]) for s in starts)


@statement()
def retentivity_hard(rng: Rng) -> Evidence:
    r"""Computing retentivity is NP-hard.

    A graph has a clique of size k iff the retentivity beta of an explicit data set in as many
    dimensions as it has vertices is below 1/4.

    TeX: A graph has a clique of size $k$ iff the retentivity $\beta$ of an explicit data set in as
    many dimensions as it has vertices is below $1/4$.

    Proof: $\beta < 1/4$ iff $F(v) = \sum_j c(v \cdot x_j) < 0$ for some $v$, with $c(z) = \frac34
    z_+^2 - \frac14 z_-^2$. Let $Q = (1 - 1/(k - \frac12)) 11^\top - A$ with the adjacency matrix
    $A$ of a graph on $d \ge k$ vertices. The points are, for $i < j$, $\sqrt{4 Q_{ij}/3}\,(e_i +
    e_j)$ if $Q_{ij} > 0$ and $-\sqrt{-4 Q_{ij}}\,(e_i + e_j)$ otherwise, and for each $i$ the
    points $-B e_i$ and $\sqrt{(B^2/4 + 2 Q_{ii} - \sum_j Q_{ij}) \cdot 4/3}\; e_i$, $B^2 = 400
    d^4$. For $v \ge 0$ they give $\sum_{i<j} Q_{ij} (v_i + v_j)^2 + \sum_i (2 Q_{ii} - \sum_j
    Q_{ij}) v_i^2 = v^\top Q v$. By Motzkin and Straus the maximum of $v^\top A v$ on the simplex
    is $1 - 1/\omega$ with $\omega$ the size of the largest clique: $v^\top Q v$ is negative
    somewhere if $\omega \ge k$, and else at least $(1/(k-1) - 1/(k - \frac12)) |v|_1^2 \ge
    |v|^2/(2 k^2)$. If $v$ has the negative part $n \ne 0$, the points of single vertices give at
    least $(\frac23 B^2 - d) |n|^2$ there, and the pairs change by at most $12 d |v| |n|$, since
    $|c(z) - c(z')| \le \frac34 (|z| + |z'|) |z - z'|$. Without a clique of size $k$, $F(v) \ge
    |v_+|^2/(2 d^2) + (\frac23 B^2 - 13 d) |n|^2 - 12 d |v_+| |n|$, which is positive as $4 \cdot
    (\frac23 400 d^4 - 13 d)/(2 d^2) > 144 d^2$. Square roots are rounded to polynomially many
    digits.
    """
    present = -math.inf
    absent = math.inf
    d = 4
    for _ in range(4):
        upper = np.triu(rng.random((d, d)) < 0.6, 1)
        upper[0, 1] = True
        graph = (upper | upper.T).astype(float)
        subsets = [c for size in range(2, d + 1) for c in combinations(range(d), size)]
        cliques = [
            c for c in subsets if all(upper[pair] for pair in combinations(c, 2))
        ]
        largest = max(map(len, cliques))
        present = max(present, _least_share(_hard_points(graph, largest), rng))
        absent = min(absent, _least_share(_hard_points(graph, largest + 1), rng))
    detail = "4 graphs, descents from all supports; null: a missing clique"
    return Evidence(max(present, -absent), 0.0, detail, null=absent)


@statement(how="bound evaluated")
def polar_complexity(rng: Rng) -> Residuals:
    r"""A complexity bound without retentivity.

    The Rademacher complexity of the networks with sum_i |u_i| a(v_i) <= alpha is at most
    (2 alpha/n) E sup {v . sum_j eps_j x_j : a(v) <= 1}, which is at most Theorem 12's bound.

    TeX: The Rademacher complexity of the networks with $\sum_i |u_i| a(v_i) \le \alpha$ is at most
    $(2 \alpha/n)\, \mathbb{E} \sup \{v \cdot \sum_j \varepsilon_j x_j : a(v) \le 1\}$, which is at
    most Theorem 12's bound.

    Proof: As units are positively homogeneous, the class is $\alpha$ times the hull of $\pm
    \sigma(v \cdot x)$ with $a(v) \le 1$. So the complexity is $(\alpha/n)\, \mathbb{E} \sup_v
    |\sum_j \varepsilon_j \sigma(v \cdot x_j)|$. As $v = 0$ is allowed, $\sup |\cdot| \le \sup
    (\cdot) + \sup (-\,\cdot)$, and both have the same mean. $\sigma$ is 1-Lipschitz with
    $\sigma(0) = 0$: by contraction each is at most $\mathbb{E} \sup_v v \cdot \sum_j
    \varepsilon_j x_j$. For the second bound, $1 \ge a(v)^2 \ge \beta v^\top C v$ gives $v \cdot z
    \le |z|_{C^+}/\sqrt{\beta}$, and by Jensen $\mathbb{E} |\sum_j \varepsilon_j x_j|_{C^+} \le
    (\sum_j |x_j|_{C^+}^2)^{1/2}$.
    """
    n = 8
    signs = np.array(list(product((-1.0, 1.0), repeat=n)))
    angles = np.linspace(0, 2 * np.pi, 1001)
    V = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for _ in range(4):
        half = rng.normal(size=(n // 2, 2))
        X = np.concatenate([half, -half * rng.uniform(0.3, 1, (n // 2, 1))])  # beta > 0
        active = np.maximum(V @ X.T, 0)
        second = np.mean(active**2, axis=1)
        C = X.T @ X / n
        beta = np.min(second / np.sum(V @ C * V, axis=1))
        sizes = np.sqrt(second)[:, None]
        complexity = np.abs(signs @ (active / sizes).T).max(axis=1).mean() / n
        polar = 2 * (signs @ X @ (V / sizes).T).max(axis=1).mean() / n
        theorem = 2 * math.sqrt(np.sum(X @ np.linalg.inv(C) * X) / beta) / n
        yield complexity - polar, complexity - polar / 10
        yield polar - theorem
    detail = f"all {len(signs)} signs, {len(V)} directions of the plane; null: a tenth of the bound"
    return 1e-12, detail


def _errors(rng: Rng, steps: int) -> Iterator[tuple[float, float]]:
    """Yield the errors of the sub-network visited and of a random one, enumerated, at each step."""
    width = 6
    masks, chances = oracles.masks(np.full(width, 0.5))
    W = rng.normal(size=(width, 3))
    a = rng.choice((-1.0, 1.0), width)
    rule = rng.normal(size=3)
    test = rng.normal(size=(40, 3))
    labels = np.sign(test @ rule)
    for _ in range(steps):
        outputs = (np.maximum(test @ W.T, 0) * a) @ masks.T
        errors = np.mean(labels[:, None] * outputs <= 0, axis=0)
        drawn = int(rng.choice(len(masks), p=chances))
        yield float(errors[drawn]), float(chances @ errors)
        x = rng.normal(size=3)
        y = np.sign(x @ rule)
        z = W @ x
        kept = a * masks[drawn]
        margin = y * kept @ np.maximum(z, 0)
        W = W + 0.1 * y / (1 + np.exp(margin)) * np.outer(kept * (z > 0), x)


@statement(how="bound evaluated")
def typical_subnetworks(rng: Rng) -> Evidence:
    r"""Typical sub-networks generalize.

    With probability 1 - delta the errors p_t of newly sampled sub-networks obey sum_t p_t <= 1.43
    sum_t R_t + 2.85 ln(1/delta), where R_t is the error of the sub-network that step t visits.

    TeX: With probability $1 - \delta$ the errors $p_t$ of newly sampled sub-networks obey $\sum_t
    p_t \le 1.43 \sum_t R_t + 2.85 \ln(1/\delta)$, where $R_t$ is the error of the sub-network that
    step $t$ visits.

    Proof: The mask of step $t$ is sampled after the weights, so that given the past $\mathbb{E}
    R_t = p_t$. Let $X_t = p_t - R_t \le 1$; $\mathbb{E} X_t^2 \le \mathbb{E} R_t^2 \le p_t$. As
    $(e^y - 1 - y)/y^2$ increases, $e^{X/2} \le 1 + X/2 + (e^{1/2} - 3/2) X^2$ for $X \le 1$, and
    $\mathbb{E} e^{X_t/2} \le 1 + .1488\, p_t \le e^{.1488 p_t}$. So $\exp \sum_t (X_t/2 - .1488\,
    p_t)$ is a supermartingale, and by Markov $\sum_t (X_t - .2976\, p_t) \le 2 \ln(1/\delta)$
    with probability $1 - \delta$: $.7024 \sum_t p_t \le \sum_t R_t + 2 \ln(1/\delta)$.
    """
    steps = 600
    delta = 1e-6
    visited, fresh = np.array(list(_errors(rng, steps))).sum(axis=0)
    bound = 1.43 * visited + 2.85 * math.log(1 / delta)
    detail = (
        f"{steps} steps, all masks of 6 units, delta = 1e-6: {fresh / steps:.3f} against "
        f"{visited / steps:.3f}; null: a tenth of the bound"
    )
    return Evidence(float(fresh - bound), 0.0, detail, null=float(fresh - bound / 10))


@statement(how="bound evaluated")
def one_sided_drift(rng: Rng) -> Residuals:
    r"""Only units that vote against the label count.

    In Lemma 18 the gradient's drift is at most 2 nu (1 - alpha) kappa sqrt(m_y) |W_y|, where m_y
    units with weights W_y have y a_r < 0; so beta >= 4 nu (1 - alpha) kappa sqrt(m_y) |W_y|/|W|
    suffices, and 0 where y f is convex.

    TeX: In Lemma 18 the gradient's drift is at most $2 \nu (1 - \alpha) \kappa \sqrt{m_y} |W_y|$,
    where $m_y$ units with weights $W_y$ have $y a_r < 0$; so $\beta \ge 4 \nu (1 - \alpha) \kappa
    \sqrt{m_y} |W_y|/|W|$ suffices, and $0$ where $y f$ is convex.

    Proof: The drift is $\sum_r y a_r (\sigma'(z_r) - \sigma'(z^*_r)) z^*_r$, with $z_r$ and
    $z_r^*$ the values of unit $r$ at two points of the ball. The unit is convex: $(\sigma'(z) -
    \sigma'(z^*)) z^* \le 0$, so that units with $y a_r > 0$ only lower it. For the others a term
    is not 0 only if $z_r$ and $z_r^*$ differ in sign, and then $|z_r^*| \le |z_r - z^*_r| \le 2
    \nu |w_r|$. So the drift is at most $2 \nu (1 - \alpha) \kappa \sum_{y a_r < 0} |w_r| \le 2
    \nu (1 - \alpha) \kappa \sqrt{m_y} |W_y|$. Lemma 18 needs $\beta |W|$ to be at least twice the
    drift. If $y a_r > 0$ for all units, $y f$ is convex and $m_y = 0$.
    """
    trials = 2000
    for _ in range(trials):
        m = int(rng.integers(1, 8))
        slope, nu = rng.uniform(0, 1, 2)
        W = rng.normal(size=(m, 3))
        a = rng.choice((-1.0, 1.0), m)
        steps = rng.normal(size=(2, 3))
        steps *= nu / np.linalg.norm(steps, axis=1, keepdims=True)
        ends = rng.normal(size=3) + steps
        slopes = np.where(W @ ends.T > 0, 1.0, slope)
        drift = (a * (slopes[:, 0] - slopes[:, 1])) @ (W @ ends[1])
        sizes = [np.sqrt(np.sum(a == y)) * np.linalg.norm(W[a == y]) for y in (-1, 1)]
        yield drift - 2 * nu * (1 - slope) * np.array(sizes)
    detail = f"{trials} random networks, y = 1; null: the units that vote for the label"
    return 1e-12, detail


@statement(how="enumerated")
def attack_misses(rng: Rng) -> Evidence:
    r"""Some attack exists and none is found.

    Without a condition on beta, projected gradient ascent can fail for ever: for the weights below,
    x = (1, 0) and nu = .5 it keeps y f >= .005, while y f = -.46 in the ball.

    Assumes: two-layer leaky networks of slope .01, Euclidean balls, steps of .24 or less.

    TeX: \[W=\begin{pmatrix}.01&0\\0&.02\\0&-.02\\-.02&1\end{pmatrix},\quad a=(1,1,1,-1),\quad
    x=(1,0),\ \nu=.5:\qquad \min_t y f(d_t)\ge .005,\quad \min_{|d-x|\le\nu}y f(d)<-.46\]

    Proof: In the ball $d_1 \ge .5$. Where $|d_2| < .01$ the last unit is negative, so that $y f =
    .0102\, d_1 + .0198\, |d_2| - .01\, d_2$. In $d_2$ this has the slopes $.0098$ above 0 and
    $-.0298$ below: the attack moves $d_2$ towards 0, by at most $.24 \cdot .0298 < .008$, which
    it may overshoot, but it never leaves $|d_2| < .008$; projection on the ball lowers $|d_2|$.
    So $y f \ge .0102 \cdot .5 > .005$ for ever. At $d = (1, .5)$, $y f = .01 + .0099 - .48 <
    -.46$.
    """
    W = np.array([[0.01, 0], [0, 0.02], [0, -0.02], [-0.02, 1]])
    a = np.array([1.0, 1, 1, -1])
    x = np.array([1.0, 0.0])

    def value(point: Floats) -> Floats:
        z = W @ point
        return np.asarray(a @ np.maximum(z, 0.01 * z))

    def attacked(point: Floats, step: float) -> float:
        """Return the least y f that the attack meets from a start in the ball of radius .5."""
        met = [value(point)]
        for _ in range(2000):
            gradient = (a * np.where(W @ point > 0, 1, 0.01)) @ W
            moved = point - step * gradient / (1 + np.exp(-met[-1])) - x
            point = x + moved * min(1, 0.5 / float(np.linalg.norm(moved)))
            met.append(value(point))
        return float(min(met))

    least = min(attacked(x, 0.24), attacked(x, 0.05))
    angles = np.linspace(0, 2 * np.pi, 1000)
    circle = x[:, None] + 0.5 * np.stack([np.cos(angles), np.sin(angles)])
    exists = float(value(circle).min())
    detail = (
        f"y f stays at {least:.4f}, its minimum is {exists:.3f}; null: another start"
    )
    null = 0.005 - attacked(np.array([1.0, 0.05]), 0.24)
    return Evidence(max(0.005 - least, exists + 0.46), 0.0, detail, null=null)
