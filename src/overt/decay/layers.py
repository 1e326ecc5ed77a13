"""Weights of a deep linear network A = W_L ... W_1, and what their product costs.

C(A) = (1 / 2N) sum_n (A[rows[n], cols[n]] - values[n])^2 over the N observed entries, and the loss
of the weights theta is C(W_L ... W_1) + lam |theta|^2 ([One-way jumps] 2.1).
"""

from __future__ import annotations

import math
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
from overt.entries.entries import Entries

Layers = Sequence[Floats]
"""[W_1, ..., W_L], each outputs x inputs."""

MAX_DEPTH = 10_000
"""Most layers of a network."""

TINY = 1e-30
"""An imaginary step: its square is lost in rounding."""


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
    depth = whole("depth", depth, 2, MAX_DEPTH)
    A = doubles("A", A, ndim=2)
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    width = len(s) if width is None else whole("width", width)
    n = min(width, len(s)) if rank is None else rank
    root = s[:n] ** (1 / depth)
    weights = [np.zeros(size) for size in shapes(A.shape, depth, width)]
    weights[0][:n] = root[:, None] * Vt[:n]
    weights[-1][:, :n] = U[:, :n] * root
    for middle in weights[1:-1]:
        np.fill_diagonal(middle[:n, :n], root)
    return weights


def imbalance(weights: Layers) -> float:
    """max_l |W_l W_l' - W_(l+1)' W_(l+1)| (Frobenius); 0 at every critical point."""
    gaps = []
    for W, after in pairwise(weights):
        gaps.append(float(np.linalg.norm(W @ W.T - after.T @ after)))
    return max(gaps)


def cost(entries: Entries, A: Floats) -> float:
    """C(A) = (1 / 2N) sum of squared residuals."""
    return 0.5 * train_error(entries, A)


def cost_gradient(entries: Entries, A: Floats) -> Floats:
    """Return the derivative of C by the matrix."""
    at = (entries.rows, entries.cols)
    D = np.zeros_like(A)
    np.add.at(D, at, (A[at] - entries.values) / len(entries))
    return D


def train_error(entries: Entries, A: Any) -> float:
    """Mean squared residual over the observed entries, 2 C(A)."""
    A = _whole_matrix(entries, A)
    residuals = A[entries.rows, entries.cols] - entries.values
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
        error = np.sum((A[rows, cols] - expected) ** 2)
        return float(error / np.sum(expected**2))


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
    below = [np.eye(weights[0].shape[1])]  # W_(l-1) ... W_1 for each l
    for W in weights:
        below.append(W @ below[-1])
    D = cost_gradient(entries, below.pop())
    slopes = []
    for W, P in zip(weights[::-1], below[::-1], strict=True):
        slopes.append(D @ P.T + 2 * weight_decay * W)
        D = W.T @ D
    return slopes[::-1]


def hessian(entries: Entries, weights: Layers, weight_decay: float) -> Floats:
    """Return the second derivative of L by all weights, (parameters, parameters).

    L is a polynomial, so imaginary steps give the derivative of its gradient to the last digit.
    """
    sizes = [W.shape for W in weights]
    theta = flatten(weights).astype(complex)
    columns = []
    for k in range(len(theta)):
        theta[k] += 1j * TINY
        slopes = gradient(entries, unflatten(theta, sizes), weight_decay)
        columns.append(flatten(slopes).imag / TINY)
        theta[k] = theta[k].real
    return np.stack(columns)


def product_change(weights: Layers, direction: Floats) -> Floats:
    """Return the derivative of W_L ... W_1 along a direction of all weights, as a vector."""
    sizes = [W.shape for W in weights]
    moved = unflatten(flatten(weights) + 1j * TINY * direction, sizes)
    return product(moved).imag.ravel() / TINY


def flatten(weights: Layers) -> Floats:
    """Return all weights as one vector."""
    return np.concatenate([W.ravel() for W in weights])


def unflatten(theta: Floats, shapes: Sequence[tuple[int, ...]]) -> list[Floats]:
    """Return the layers of these shapes that `theta` holds."""
    layers = []
    start = 0
    for shape in shapes:
        end = start + math.prod(shape)
        layers.append(theta[start:end].reshape(shape))
        start = end
    return layers


def shapes(shape: tuple[int, int], depth: int, width: int) -> list[tuple[int, int]]:
    """Return the layers' shapes (outputs, inputs) for a matrix of this shape."""
    hidden = [width] * (depth - 1)
    outputs = [*hidden, shape[0]]
    inputs = [shape[1], *hidden]
    return list(zip(outputs, inputs, strict=True))
