"""Retentivity is required, hard to compute and replaceable; typical sub-networks generalize."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
from scipy.integrate import quad

from overt._types import Floats
from overt.papers import descent, oracles
from overt.papers.evidence import Evidence
from overt.papers.records import statement


@statement(how="enumerated")
def retentivity_required(scale: int, rng: np.random.Generator) -> Evidence:
    r"""Retentivity cannot be dropped.

    On the circle (1, cos t, sin t)/sqrt 2 with fair coins for labels, n units (cos(t - t_j) -
    cos h)_+/(1 - cos h) fit n points exactly with sum_j |u_j| a_j <= n sqrt(h/pi) and a test loss
    of at least 1 - n h/pi, for every small h.

    TeX: On the circle $(1, \cos t, \sin t)/\sqrt{2}$ with fair coins for labels, $n$ units
    $(\cos(t - t_j) - \cos h)_+/(1 - \cos h)$ fit $n$ points exactly with $\sum_j |u_j| a_j \le n
    \sqrt{h/\pi}$ and a test loss of at least $1 - n h/\pi$, for every small $h$.
    """
    n = 20 * scale
    angles = 2 * np.pi * (np.arange(n) + rng.uniform(0, 0.5, n)) / n
    y = rng.choice((-1.0, 1.0), n)
    x = np.stack([np.ones(n), np.cos(angles), np.sin(angles)], axis=1) / math.sqrt(2)

    def excess(h: float) -> float:
        centers = np.stack([np.full(n, -math.cos(h)), np.cos(angles), np.sin(angles)])
        fitted = np.maximum(x @ (math.sqrt(2) * centers / (1 - math.cos(h))), 0) @ y

        def unit(t: float) -> float:
            return max(math.cos(t) - math.cos(h), 0.0) / (1 - math.cos(h))

        second = quad(lambda t: unit(t) ** 2, -h, h)[0] / (2 * math.pi)
        # A label is right or wrong with equal chances: E(y - f)^2 = 1 + f^2 off the n points.
        lost = 1 + n * second
        alpha = n * math.sqrt(second) - n * math.sqrt(h / math.pi)
        return float(max(np.abs(fitted - y).max(), alpha, 1 - n * h / math.pi - lost))

    narrow = [excess(h) for h in (1 / n, 0.1 / n)]
    detail = (
        f"{n} points, integrals by quadrature; null: units that reach the next point"
    )
    return Evidence(max(narrow), 1e-9, detail, null=excess(3 * math.pi / n))


def _hard_points(graph: Floats, clique: int) -> Floats:
    """Return points whose retentivity is below 1/4 iff the graph has a clique of this size."""
    d, t = len(graph), 0.25
    Q = (1 - 1 / (clique - 0.5)) * np.ones((d, d)) - graph
    large = 400.0 * d**4
    found = []
    for i, j in combinations(range(d), 2):
        size = math.sqrt(Q[i, j] / (1 - t)) if Q[i, j] > 0 else -math.sqrt(-Q[i, j] / t)
        found.append(size * (np.eye(d)[i] + np.eye(d)[j]))
    for i, e in enumerate(np.eye(d)):
        found.append(e * math.sqrt((t * large + 2 * Q[i, i] - Q[i].sum()) / (1 - t)))
        found.append(-e * math.sqrt(large))
    return np.array(found)


def _least_share(X: Floats, rng: np.random.Generator) -> float:
    """Return the least of sum (v.x)_+^2 - sum (v.x)^2 / 4 on the sphere that descents find."""

    def objective(v: Floats) -> tuple[float, Floats]:
        z = X @ v
        share = float(np.sum(np.maximum(z, 0) ** 2) - np.sum(z**2) / 4)
        slope = 2 * X.T @ (np.maximum(z, 0) - z / 4)
        size = float(v @ v)
        return share / size, np.asarray(slope / size - 2 * share * v / size**2)

    d = X.shape[1]
    supports = [np.array(bits) for bits in product((0.0, 1.0), repeat=d) if any(bits)]
    starts = [*supports, *(s + 0.02 * rng.random(d) for s in supports)]
    return min(min(objective(s)[0], descent.descend(objective, s)[0]) for s in starts)


@statement(how="sampled")
def retentivity_hard(scale: int, rng: np.random.Generator) -> Evidence:
    r"""Computing retentivity is NP-hard.

    A graph has a clique of size k iff the retentivity beta of an explicit data set in as many
    dimensions as it has vertices is below 1/4.

    TeX: A graph has a clique of size $k$ iff the retentivity $\beta$ of an explicit data set in as
    many dimensions as it has vertices is below $1/4$.
    """
    least = {True: -math.inf, False: math.inf}
    graphs = 4 * scale
    for _ in range(graphs):
        d = 4
        upper = np.triu(rng.random((d, d)) < 0.6, 1)
        graph = (upper | upper.T).astype(float)
        graph[0, 1] = graph[1, 0] = 1.0
        largest = max(
            len(chosen)
            for size in range(1, d + 1)
            for chosen in combinations(range(d), size)
            if all(graph[i, j] for i, j in combinations(chosen, 2))
        )
        least[True] = max(least[True], _least_share(_hard_points(graph, largest), rng))
        absent = _least_share(_hard_points(graph, largest + 1), rng)
        least[False] = min(least[False], absent)
    residual = max(least[True], -least[False])
    detail = f"{graphs} graphs, cliques counted, descents from all supports; null: a missing clique"
    return Evidence(residual, 0.0, detail, null=least[False])


@statement(how="bound evaluated")
def polar_complexity(scale: int, rng: np.random.Generator) -> Evidence:
    r"""A complexity bound without retentivity.

    The Rademacher complexity of the networks with sum_i |u_i| a(v_i) <= alpha is at most
    (2 alpha/n) E sup {v . sum_j eps_j x_j : a(v) <= 1}, which is at most Theorem 12's bound.

    TeX: The Rademacher complexity of the networks with $\sum_i |u_i| a(v_i) \le \alpha$ is at most
    $(2 \alpha/n)\, \mathbb{E} \sup \{v \cdot \sum_j \varepsilon_j x_j : a(v) \le 1\}$, which is at
    most Theorem 12's bound.
    """
    n, over, tenth = 8, -math.inf, -math.inf
    signs = np.array(list(product((-1.0, 1.0), repeat=n)))
    angles = np.linspace(0, 2 * np.pi, 1001)
    V = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for _ in range(4 * scale):
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
        over = max(over, complexity - polar, polar - theorem)
        tenth = max(tenth, complexity - polar / 10)
    detail = f"all {len(signs)} signs, {len(V)} directions of the plane; null: a tenth of the bound"
    return Evidence(float(over), 1e-12, detail, null=float(tenth))


def _errors(rng: np.random.Generator, steps: int) -> Iterator[tuple[float, float]]:
    """Yield the errors of the sub-network visited and of a random one, enumerated, at each step."""
    width, keep = 6, 0.5
    masks, chances = oracles.masks(np.full(width, keep))
    W, a, rule = (
        rng.normal(size=(width, 3)),
        rng.choice((-1.0, 1.0), width),
        rng.normal(size=3),
    )
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
        margin = y * (a * masks[drawn]) @ np.maximum(z, 0)
        W = W + 0.1 * y / (1 + np.exp(margin)) * np.outer(a * masks[drawn] * (z > 0), x)


@statement(how="bound evaluated")
def typical_subnetworks(scale: int, rng: np.random.Generator) -> Evidence:
    r"""Typical sub-networks generalize.

    With probability 1 - delta the errors p_t of newly sampled sub-networks obey sum_t p_t <= 1.43
    sum_t R_t + 2.85 ln(1/delta), where R_t is the error of the sub-network that step t visits.

    TeX: With probability $1 - \delta$ the errors $p_t$ of newly sampled sub-networks obey $\sum_t
    p_t \le 1.43 \sum_t R_t + 2.85 \ln(1/\delta)$, where $R_t$ is the error of the sub-network that
    step $t$ visits.
    """
    steps, delta = 600 * scale, 1e-6
    visited, fresh = np.array(list(_errors(rng, steps))).sum(axis=0)
    bound = 1.43 * visited + 2.85 * math.log(1 / delta)
    detail = (
        f"{steps} steps, all masks of 6 units, delta = 1e-6: {fresh / steps:.3f} against "
        f"{visited / steps:.3f}; null: a tenth of the bound"
    )
    return Evidence(float(fresh - bound), 0.0, detail, null=float(fresh - bound / 10))
