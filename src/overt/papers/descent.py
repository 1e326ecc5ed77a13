"""Answers by descent and root finding, with gradients written by hand. None of overt's formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq, minimize

from overt._check import Floats
from overt.papers.evidence import Rng
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
    objective: Objective, size: int, restarts: int, rng: Rng
) -> tuple[float, Floats]:
    """Return the best of several descents from random starts."""
    best = math.inf, np.zeros(size)
    for _ in range(restarts):
        found = descend(objective, rng.standard_normal(size))
        if found[0] < best[0]:
            best = found
    return best


def slope_and_curvature(objective: Objective, theta: Floats) -> tuple[float, float]:
    """Return |gradient| and the lowest eigenvalue of the Hessian, by central differences of it."""
    n = len(theta)
    H = np.empty((n, n))
    for i, step in enumerate(1e-5 * np.eye(n)):
        _, ahead = objective(theta + step)
        _, behind = objective(theta - step)
        H[i] = (ahead - behind) / 2e-5
    _, gradient = objective(theta)
    H = (H + H.T) / 2
    values = np.linalg.eigvalsh(H)
    slope = float(np.linalg.norm(gradient))
    lowest = float(values[0])
    return slope, lowest


def factors(theta: Floats, rows: int, width: int) -> tuple[Floats, Floats]:
    """Return (U, V), stacked in theta, of which U has `rows` rows."""
    U = theta[: rows * width]
    V = theta[rows * width :]
    U = U.reshape(rows, width)
    V = V.reshape(-1, width)
    return U, V


def factor_objective(
    M: Floats, Gamma: Floats, C: Floats | None = None, D: Floats | None = None
) -> Objective:
    """Return tr((M - UV') C (M - UV')') + <Gamma, U'U o V'DV>, D = C if None, with its gradient."""
    if C is None:
        C = np.eye(M.shape[1])
    if D is None:
        D = C

    def objective(theta: Floats) -> tuple[float, Floats]:
        width = len(Gamma)
        U, V = factors(theta, len(M), width)
        error = M - U @ V.T
        E = error @ C
        outer = Gamma * (U.T @ U)
        inner = Gamma * (V.T @ D @ V)
        value = np.sum(E * error)
        value += np.sum(U.T @ U * inner)
        by_U = U @ inner - E @ V
        by_V = D @ V @ outer - E.T @ U
        gradient = np.append(by_U, by_V)
        return float(value), 2 * gradient

    return objective


def tied_objective(M: Floats, lam: float, width: int) -> Objective:
    """Return f(U) = |M - UU'|^2 + lam sum_i |u_i|^4 with its gradient, M symmetric."""

    def objective(theta: Floats) -> tuple[float, Floats]:
        U = theta.reshape(-1, width)
        E = M - U @ U.T
        n = np.sum(U * U, axis=0)
        value = np.sum(E * E)
        value += lam * n @ n
        gradient = U * (lam * n) - E @ U
        return float(value), 4 * gradient.ravel()

    return objective


def split(theta: Floats, sizes: Sequence[int]) -> list[Floats]:
    """Return the weights [W_1, ..., W_(k+1)], stacked in theta, of layers of the given sizes."""
    weights = []
    first = 0
    for n, m in pairwise(sizes):
        last = first + m * n
        W = theta[first:last]
        weights.append(W.reshape(m, n))
        first = last
    return weights


def count(sizes: Sequence[int]) -> int:
    """Return how many weights layers of the given sizes have."""
    return sum(m * n for m, n in pairwise(sizes))


def deep_descent(
    M: Floats,
    C: Floats,
    widths: Sequence[int],
    drop_probs: Sequence[float],
    restarts: int,
    rng: Rng,
) -> tuple[float, Floats]:
    """Minimize f(W_1, ..., W_(k+1)) = E tr((M - W_m) C (M - W_m)') over all masks m.

    Return the best objective, and the map W_(k+1) ... W_1 that reaches it.
    """
    outputs, inputs = M.shape
    sizes = [inputs, *widths, outputs]
    layers, p = layer_multipliers(widths, drop_probs)
    scales = [m[:, :, None] for m in layers]

    def objective(theta: Floats) -> tuple[float, Floats]:
        first, *others = split(theta, sizes)
        shape = (len(p), *first.shape)
        maps = np.broadcast_to(first, shape)
        inputs: list[Floats] = []
        for W, scale in zip(others, scales, strict=True):
            inputs.append(scale * maps)
            maps = W @ inputs[-1]
        E = maps - M
        back = E @ C
        back *= 2 * p[:, None, None]
        value = 0.5 * np.sum(back * E)
        gradient = np.empty(0)
        for i in reversed(range(len(others))):
            slope = np.einsum("mij,mkj->ik", back, inputs[i])
            gradient = np.append(slope, gradient)
            back = others[i].T @ back
            back *= scales[i]
        first_slope = back.sum(axis=0)
        gradient = np.append(first_slope, gradient)
        return float(value), gradient

    size = count(sizes)
    best, theta = best_descent(objective, size, restarts, rng)
    return best, chain(split(theta, sizes))


def cheapest_factors(
    A: Floats,
    rows: Floats,
    cols: Floats,
    width: int,
    restarts: int,
    rng: Rng,
) -> float:
    """Return min sum_i (u_i'R u_i)(v_i'C v_i) over all U V' = A, by descent over U.

    R (`rows`) and C (`cols`) are the second moments of the two sides; A has full row rank. With
    w_i = u_i / sqrt(u_i'R u_i), the best V for given U is the least-norm solution of W V' = A,
    V' = W'(WW')^-1 A, which costs tr(ACA'(WW')^-1).
    """
    target = A @ cols @ A.T

    def objective(theta: Floats) -> tuple[float, Floats]:
        U = theta.reshape(-1, width)
        weighed = rows @ U
        squares = np.sum(U * weighed, axis=0)
        norms = np.sqrt(squares)
        W = U / norms
        inverse = np.linalg.inv(W @ W.T)
        slope = -2 * inverse @ target @ inverse @ W
        radial = np.sum(W * slope, axis=0)
        along = rows @ W * radial
        gradient = (slope - along) / norms
        value = np.sum(target * inverse)
        return float(value), gradient.ravel()

    size = len(A) * width
    best, _ = best_descent(objective, size, restarts, rng)
    return best


def cheapest_chain(A: Floats, rng: Rng) -> float:
    """Return min |W_1|^2 + |W_2|^2 + |W_3|^2 over W_3 W_2 W_1 = A, A square and invertible."""
    n = len(A)

    def objective(theta: Floats) -> tuple[float, Floats]:
        W1, W2 = theta.reshape(2, n, n)
        inverse = np.linalg.inv(W2 @ W1)
        W3 = A @ inverse
        value = theta @ theta + np.sum(W3**2)
        G = -2 * W3.T @ W3 @ inverse.T
        by_W1 = 2 * W1 + W2.T @ G
        by_W2 = 2 * W2 + G @ W1.T
        return float(value), np.append(by_W1, by_W2)

    start = 0.3 * rng.standard_normal((2, n, n))
    start += np.eye(n)
    best, _ = descend(objective, start.ravel())
    return best


def ksupport(s: Floats, k: int) -> float:
    """Minimize sum_i s_i^2 / t_i, 0 <= t_i <= 1, sum_i t_i <= k, by root finding on its dual."""
    s = np.abs(s[s != 0])
    if len(s) <= k:
        return float(s @ s)

    def spare(mu: float) -> float:
        t = np.minimum(1, s / mu)
        return float(t.sum() - k)

    bounds = s.min() / 2, 2 * s.sum()
    mu = brentq(spare, *bounds, xtol=1e-300, rtol=1e-15)
    t = np.minimum(1, s / mu)
    return float(np.sum(s**2 / t))


def ksupport_prox_value(m: Floats, b: int, beta: float) -> float:
    """min_a |m - a|^2 + beta ksupport(a, b), by a generic convex solver on its form in t.

    For given t the best a_i = m_i t_i / (t_i + beta) leaves sum_i beta m_i^2 / (t_i + beta).
    """

    def objective(t: Floats) -> tuple[float, Floats]:
        share = beta * m**2 / (t + beta)
        slope = -share / (t + beta)
        return float(share.sum()), slope

    n = len(m)
    room = {
        "type": "ineq",
        "fun": lambda t: b - t.sum(),
        "jac": lambda t: -np.ones(n),
    }
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
    error = np.sum((m - a) ** 2)
    return float(error + beta * ksupport(a, b))


def block_candidates(m: Floats, b: int, beta: float, splits: range) -> float:
    """Return the least objective among the candidates of Theorem 2.7."""
    best = math.inf
    for rho in splits:
        for last in range(1, len(m) + 1):
            a = np.zeros(len(m))
            a[:last] = m[:last]
            a /= 1 + beta
            if last >= rho:
                tail = m[rho - 1 : last]
                c = b + beta * last
                c -= (beta + 1) * (rho - 1)
                shrunk = beta / c * tail.sum()
                a[rho - 1 : last] = tail - shrunk
            value = block_value(m, a, b, beta)
            best = min(best, value)
    return best
