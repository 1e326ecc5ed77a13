"""Weights of a deep linear network A = W_L ... W_1, and what their product costs.

C(A) = (1 / 2N) sum_n (A[rows[n], cols[n]] - values[n])^2 over the N observed entries, and the loss
of the weights theta is C(W_L ... W_1) + lam |theta|^2 ([One-way jumps] 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from overt._check import (
    Floats,
    InputError,
    InputTypeError,
    bounded,
    doubles,
    plain_array,
    whole,
)
from overt.entries import Entries

Layers = Sequence[Floats]
"""[W_1, ..., W_L], each outputs x inputs."""

MAX_DEPTH = 10_000
"""Most layers of a network."""


def check_entries(problem: object) -> None:
    """Refuse what is not a matrix completion problem."""
    if not isinstance(problem, Entries):
        raise InputTypeError(
            f"problem must be overt.Entries, got {type(problem).__name__}"
        )


def product(weights: Layers) -> Floats:
    """Return A = W_L ... W_1."""
    A = weights[0]
    for W in weights[1:]:
        A = W @ A
    return A


@bounded
def balanced(
    A: Floats, depth: int, width: int | None = None, rank: int | None = None
) -> list[Floats]:
    """Return W_1, ..., W_L of the least norm with product A: W_l = U_l S^(1/L) U_(l-1)'.

    Singular values beyond `rank` are dropped: the root would turn their rounding into weights.
    """
    depth, A = whole("depth", depth, 2, MAX_DEPTH), doubles("A", A, ndim=2)
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    width = len(s) if width is None else whole("width", width)
    n = min(width, len(s)) if rank is None else rank
    root = s[:n] ** (1 / depth)
    weights = [np.zeros(size) for size in shapes(A.shape, depth, width)]
    weights[0][:n], weights[-1][:, :n] = root[:, None] * Vt[:n], U[:, :n] * root
    for middle in weights[1:-1]:
        middle[range(n), range(n)] = root
    return weights


def imbalance(weights: Layers) -> float:
    """max_l |W_l W_l' - W_(l+1)' W_(l+1)| (Frobenius); 0 at every critical point."""
    gaps = (W @ W.T - after.T @ after for W, after in pairwise(weights))
    return max(float(np.linalg.norm(gap)) for gap in gaps)


def cost(entries: Entries, A: Floats) -> float:
    """C(A) = (1 / 2N) sum of squared residuals."""
    return 0.5 * train_error(entries, A)


def cost_gradient(entries: Entries, A: Floats) -> Floats:
    """Return the derivative of C by the matrix."""
    flat = entries.rows * entries.shape[1] + entries.cols
    residuals = A[entries.rows, entries.cols] - entries.values
    size = entries.shape[0] * entries.shape[1]
    sums = np.bincount(flat, residuals / len(entries), minlength=size)
    return np.asarray(sums.reshape(entries.shape), dtype=np.float64)


def train_error(entries: Entries, A: Any) -> float:
    """Mean squared residual over the observed entries, 2 C(A)."""
    residuals = _whole_matrix(entries, A)[entries.rows, entries.cols] - entries.values
    with np.errstate(over="ignore"):
        return float(np.mean(residuals**2))


def test_error(entries: Entries, A: Any) -> float:
    """Squared error on the missing entries divided by that of putting zeros there.

    NaN if the truth is not known or nothing is missing.
    """
    A = _whole_matrix(entries, A)
    rows, cols = entries.missing
    if entries.truth is None or len(rows) == 0:
        return float("nan")
    expected = entries.truth[rows, cols]
    with np.errstate(over="ignore"):
        return float(np.sum((A[rows, cols] - expected) ** 2) / np.sum(expected**2))


def _whole_matrix(entries: Entries, A: Any) -> Floats:
    """Return A as an array of the entries' shape; where training diverged, it is not finite."""
    check_entries(entries)
    A = plain_array("A", A)
    if A.shape != entries.shape or A.dtype.kind not in "fiu":
        raise InputError(
            f"A must be {entries.shape} numbers, got {A.shape} of type {A.dtype}"
        )
    with np.errstate(over="ignore"):
        return np.asarray(A, dtype=np.float64)


def loss(entries: Entries, weights: Layers, weight_decay: float) -> float:
    """L(theta) = C(W_L ... W_1) + lam |theta|^2."""
    penalty = sum(float(np.sum(W * W)) for W in weights)
    return cost(entries, product(weights)) + weight_decay * penalty


def gradient(entries: Entries, weights: Layers, weight_decay: float) -> list[Floats]:
    """dL/dW_l = (W_L ... W_(l+1))' C'(A) (W_(l-1) ... W_1)' + 2 lam W_l."""
    below, above = _partial_products(weights)
    D = cost_gradient(entries, weights[-1] @ below[-1])
    return [
        P.T @ D @ Q.T + 2 * weight_decay * W
        for W, P, Q in zip(weights, above, below, strict=True)
    ]


def hessian(entries: Entries, weights: Layers, weight_decay: float) -> Floats:
    """Return the second derivative of L by all weights, (parameters, parameters).

    H[l, m] = J_l' J_m / N + (the derivative of J_l' C'(A) by W_m) + 2 lam [l = m], where J_l is
    the derivative of the observed entries of A by W_l.
    """
    L = len(weights)
    below, above = _partial_products(weights)
    D = cost_gradient(entries, product(weights))
    seen = [
        np.einsum("na,nb->nab", P[entries.rows], Q[:, entries.cols].T)
        for P, Q in zip(above, below, strict=True)
    ]
    J = np.concatenate([part.reshape(len(entries), -1) for part in seen], axis=1)
    H = J.T @ J / len(entries) + 2 * weight_decay * np.eye(J.shape[1])
    ends = np.cumsum([0, *(W.size for W in weights)])
    for low in range(L):
        for high in range(low + 1, L):
            # d2 <D, W_L..dW_high..dW_low..W_1>: entries (p, q) of dW_high and (a, b) of dW_low.
            between = np.eye(weights[low].shape[0])
            for W in weights[low + 1 : high]:
                between = W @ between
            outer = above[high].T @ D @ below[low].T  # (p, b)
            block = np.einsum("pb,qa->abpq", outer, between)
            block = block.reshape(weights[low].size, weights[high].size)
            H[ends[low] : ends[low + 1], ends[high] : ends[high + 1]] += block
            H[ends[high] : ends[high + 1], ends[low] : ends[low + 1]] += block.T
    return H


def flatten(weights: Layers) -> Floats:
    """Return all weights as one vector."""
    return np.concatenate([W.ravel() for W in weights])


def unflatten(theta: Floats, shapes: Sequence[tuple[int, int]]) -> list[Floats]:
    """Return the layers of these shapes that `theta` holds."""
    ends = np.cumsum([m * n for m, n in shapes])
    parts = np.split(theta, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def shapes(shape: tuple[int, int], depth: int, width: int) -> list[tuple[int, int]]:
    """Return the layers' shapes (outputs, inputs) for a matrix of this shape."""
    sizes = [shape[1], *[width] * (depth - 1), shape[0]]
    return list(zip(sizes[1:], sizes, strict=False))


def _partial_products(weights: Layers) -> tuple[list[Floats], list[Floats]]:
    """Return (W_(l-1) ... W_1 for each l, W_L ... W_(l+1) for each l)."""
    below = [np.eye(weights[0].shape[1])]
    for W in weights[:-1]:
        below.append(W @ below[-1])
    above = [np.eye(weights[-1].shape[0])]
    for W in weights[:0:-1]:
        above.append(above[-1] @ W)
    return below, above[::-1]
