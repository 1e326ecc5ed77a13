"""Answers by descent and root finding, with gradients written by hand. None of overt's formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq, minimize

from overt._check import Floats
from overt.papers.oracles import chain, layer_multipliers

Objective = Callable[[Floats], tuple[float, Floats]]


def descend(objective: Objective, start: Floats) -> tuple[float, Floats]:
    """Return the local minimum that L-BFGS finds from `start`, and where it is."""
    options = {
        "maxiter": 10_000,
        "maxfun": 20_000,
        "ftol": 1e-16,
        "gtol": 1e-10,
        "maxcor": 20,
    }
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return float(found.fun), np.asarray(found.x)


def best_descent(
    objective: Objective, size: int, restarts: int, rng: np.random.Generator
) -> tuple[float, Floats]:
    """Return the best of several descents from random starts."""
    runs = [descend(objective, rng.standard_normal(size)) for _ in range(restarts)]
    return min(runs, key=lambda run: run[0])


def slope_and_curvature(objective: Objective, theta: Floats) -> tuple[float, float]:
    """Return |gradient| and the lowest eigenvalue of the Hessian, by central differences of it."""
    half = 1e-5 * np.eye(len(theta))
    H = (
        np.stack([objective(theta + e)[1] - objective(theta - e)[1] for e in half])
        / 2e-5
    )
    slope = float(np.linalg.norm(objective(theta)[1]))
    return slope, float(np.linalg.eigvalsh((H + H.T) / 2)[0])


def factors(theta: Floats, rows: int, width: int) -> tuple[Floats, Floats]:
    """Return (U, V), stacked in theta, of which U has `rows` rows."""
    U = theta[: rows * width]
    V = theta[rows * width :]
    return U.reshape(rows, width), V.reshape(-1, width)


def factor_objective(
    M: Floats, Gamma: Floats, C: Floats | None = None, D: Floats | None = None
) -> Objective:
    """Return tr((M - UV') C (M - UV')') + <Gamma, U'U o V'DV>, D = C if None, with its gradient."""
    C = np.eye(M.shape[1]) if C is None else C
    D = C if D is None else D

    def objective(theta: Floats) -> tuple[float, Floats]:
        U, V = factors(theta, len(M), len(Gamma))
        E = (M - U @ V.T) @ C
        outer = Gamma * (U.T @ U)
        inner = Gamma * (V.T @ D @ V)
        value = np.sum(E * (M - U @ V.T)) + np.sum(U.T @ U * inner)
        gradient = [(U @ inner - E @ V).ravel(), (D @ V @ outer - E.T @ U).ravel()]
        return float(value), 2 * np.concatenate(gradient)

    return objective


def tied_objective(M: Floats, lam: float, width: int) -> Objective:
    """Return f(U) = |M - UU'|^2 + lam sum_i |u_i|^4 with its gradient, M symmetric."""

    def objective(theta: Floats) -> tuple[float, Floats]:
        U = theta.reshape(-1, width)
        E = M - U @ U.T
        n = np.sum(U * U, axis=0)
        return float(np.sum(E * E) + lam * n @ n), 4 * (U * (lam * n) - E @ U).ravel()

    return objective


def split(theta: Floats, sizes: Sequence[int]) -> list[Floats]:
    """Return the weights [W_1, ..., W_(k+1)], stacked in theta, of layers of the given sizes."""
    shapes = list(zip(sizes[1:], sizes, strict=False))
    parts = np.split(theta, np.cumsum([m * n for m, n in shapes])[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def count(sizes: Sequence[int]) -> int:
    """Return how many weights layers of the given sizes have."""
    return sum(m * n for m, n in pairwise(sizes))


def deep_descent(
    M: Floats,
    C: Floats,
    widths: Sequence[int],
    drop_probs: Sequence[float],
    restarts: int,
    rng: np.random.Generator,
) -> tuple[float, Floats]:
    """Minimize f(W_1, ..., W_(k+1)) = E tr((M - W_m) C (M - W_m)') over all masks m.

    Return the best objective, and the map W_(k+1) ... W_1 that reaches it.
    """
    sizes = [M.shape[1], *widths, M.shape[0]]
    layers, p = layer_multipliers(widths, drop_probs)
    scales = [m[:, :, None] for m in layers]

    def objective(theta: Floats) -> tuple[float, Floats]:
        weights = split(theta, sizes)
        inputs: list[Floats] = []
        maps = np.broadcast_to(weights[0], (len(p), *weights[0].shape))
        for W, scale in zip(weights[1:], scales, strict=True):
            inputs.append(scale * maps)
            maps = W @ inputs[-1]
        E = maps - M
        back = 2 * p[:, None, None] * (E @ C)
        value = 0.5 * np.sum(back * E)
        gradient: list[Floats] = []
        for W, into, scale in zip(
            weights[:0:-1], inputs[::-1], scales[::-1], strict=True
        ):
            gradient.append(np.einsum("mij,mkj->ik", back, into))
            back = scale * (W.T @ back)
        gradient.append(back.sum(axis=0))
        return float(value), np.concatenate([g.ravel() for g in gradient[::-1]])

    best, theta = best_descent(objective, count(sizes), restarts, rng)
    return best, chain(split(theta, sizes))


def cheapest_factors(
    A: Floats,
    rows: Floats,
    cols: Floats,
    width: int,
    restarts: int,
    rng: np.random.Generator,
) -> float:
    """Return min sum_i (u_i'R u_i)(v_i'C v_i) over all U V' = A, by descent over U.

    R (`rows`) and C (`cols`) are the second moments of the two sides; A has full row rank. With
    w_i = u_i / sqrt(u_i'R u_i), the best V for given U is the least-norm solution of W V' = A,
    V' = W'(WW')^-1 A, which costs tr(ACA'(WW')^-1).
    """
    target = A @ cols @ A.T

    def objective(theta: Floats) -> tuple[float, Floats]:
        U = theta.reshape(-1, width)
        norms = np.sqrt(np.sum(U * (rows @ U), axis=0))
        W = U / norms
        inverse = np.linalg.inv(W @ W.T)
        slope = -2 * inverse @ target @ inverse @ W
        gradient = (slope - rows @ W * np.sum(W * slope, axis=0)) / norms
        return float(np.sum(target * inverse)), gradient.ravel()

    _, theta = best_descent(objective, len(A) * width, restarts, rng)
    U = theta.reshape(-1, width)
    U /= np.sqrt(np.sum(U * (rows @ U), axis=0))
    V = np.linalg.lstsq(U, A, rcond=None)[0].T
    return float(np.sum(U * (rows @ U), axis=0) @ np.sum(V * (cols @ V), axis=0))


def cheapest_chain(A: Floats, rng: np.random.Generator) -> float:
    """Return min |W_1|^2 + |W_2|^2 + |W_3|^2 over W_3 W_2 W_1 = A, A square and invertible."""
    n = len(A)

    def objective(theta: Floats) -> tuple[float, Floats]:
        W1, W2 = theta.reshape(2, n, n)
        inverse = np.linalg.inv(W2 @ W1)
        W3 = A @ inverse
        G = -2 * W3.T @ W3 @ inverse.T
        gradient = np.stack([2 * W1 + W2.T @ G, 2 * W2 + G @ W1.T])
        return float(np.sum(W1**2) + np.sum(W2**2) + np.sum(W3**2)), gradient.ravel()

    start = np.stack([np.eye(n), np.eye(n)]) + 0.3 * rng.standard_normal((2, n, n))
    return descend(objective, start.ravel())[0]


def ksupport(s: Floats, k: int) -> float:
    """Minimize sum_i s_i^2 / t_i, 0 <= t_i <= 1, sum_i t_i <= k, by root finding on its dual."""
    s = np.sort(np.abs(s))[::-1]
    if np.count_nonzero(s) <= k:
        return float(s @ s)

    def spare(mu: float) -> float:
        return float(np.minimum(1, s / mu).sum() - k)

    mu = brentq(spare, s[s > 0].min() / 2, 2 * s.sum(), xtol=1e-300, rtol=1e-15)
    t = np.minimum(1, s / mu)
    return float(np.sum(s[s > 0] ** 2 / t[s > 0]))


def ksupport_prox_value(m: Floats, b: int, beta: float) -> float:
    """min_a |m - a|^2 + beta ksupport(a, b), by a generic convex solver on its form in t.

    For given t the best a_i = m_i t_i / (t_i + beta) leaves sum_i beta m_i^2 / (t_i + beta).
    """

    def objective(t: Floats) -> tuple[float, Floats]:
        share = beta * m**2 / (t + beta)
        return float(share.sum()), -share / (t + beta)

    n = len(m)
    room = {"type": "ineq", "fun": lambda t: b - t.sum(), "jac": lambda t: -np.ones(n)}
    found = minimize(
        objective,
        np.full(n, b / n),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * n,
        constraints=[room],
        options={"maxiter": 500, "ftol": 1e-15},
    )
    return float(found.fun)


def block_value(m: Floats, a: Floats, b: int, beta: float) -> float:
    """|m - a|^2 + beta ksupport(a, b)."""
    return float(np.sum((m - a) ** 2) + beta * ksupport(a, b))


def block_candidates(m: Floats, b: int, beta: float, splits: range) -> float:
    """Return the least objective among the candidates of Theorem 2.7."""
    best = math.inf
    for rho in splits:
        for last in range(1, len(m) + 1):
            a = np.where(np.arange(len(m)) < last, m / (1 + beta), 0)
            if last >= rho:
                total = m[rho - 1 : last].sum()
                c = b + beta * last + (beta + 1) * (1 - rho)
                a[rho - 1 : last] = m[rho - 1 : last] - beta / c * total
            best = min(best, block_value(m, a, b, beta))
    return best
