"""Answers by enumeration: of masks, of pivots, of paths. None of overt's own formulas."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np

from overt._check import Floats
from overt.papers.evidence import Rng


def second_moment(rng: Rng, n: int) -> Floats:
    """Return C = E[x x'] of correlated inputs with non-zero means, well conditioned."""
    X = rng.standard_normal((3 * n, n))
    X += rng.uniform(0.5, 1.5, n)
    C = X.T @ X / len(X)
    return C + 0.2 * np.eye(n)


def with_spectrum(rng: Rng, m: int, n: int, s: Sequence[float] | Floats) -> Floats:
    """Return an m x n matrix with the singular values s and random singular vectors."""
    left, _ = np.linalg.qr(rng.standard_normal((m, len(s))))
    right, _ = np.linalg.qr(rng.standard_normal((n, len(s))))
    return left * s @ right.T


def power(C: Floats, exponent: float) -> Floats:
    """Return C^exponent of a symmetric matrix, with the pseudo-inverse where it is singular."""
    values, vectors = np.linalg.eigh(C)
    kept = values > 1e-12 * values[-1]
    values = values[kept]
    vectors = vectors[:, kept]
    return vectors * values**exponent @ vectors.T


def two_layers(
    rng: Rng, d: int, inputs: int = 4
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return U, V, inputs X (samples x inputs) with correlations, and noisy targets Y."""
    U = rng.standard_normal((3, d))
    V = rng.standard_normal((inputs, d))
    X = rng.standard_normal((8, inputs))
    X = X @ rng.standard_normal((inputs, inputs))
    X += 0.5
    Y = rng.standard_normal((8, 3))
    return U, V, X, Y


def relu_layer(rng: Rng, d: int) -> Floats:
    """Return the last hidden activations of a random tanh-ReLU network, 12 samples x d."""
    x = rng.standard_normal((12, 3))
    V = rng.standard_normal((3, 5))
    hidden = np.tanh(x @ V)
    z = hidden @ rng.standard_normal((5, d))
    return np.maximum(z + 0.5, 0)


def deep_layers(rng: Rng, widths: tuple[int, ...]) -> list[Floats]:
    """Return random weights of a deep linear network, 3 inputs to 2 outputs."""
    sizes = [3, *widths, 2]
    return [rng.standard_normal((after, before)) for before, after in pairwise(sizes)]


def masks(keep: Floats) -> tuple[Floats, Floats]:
    """Return all 0/1 masks over independent units and their probabilities."""
    bits = product((0.0, 1.0), repeat=len(keep))
    z = np.array(list(bits))
    chances = np.where(z == 1, keep, 1 - keep)
    return z, chances.prod(axis=1)


def multipliers(units: int, prob: Any, block: int = 1) -> tuple[Floats, Floats]:
    """Return z / (1 - prob) under all masks that drop blocks on a grid, and their probabilities."""
    keep = 1 - prob
    probs = np.full(units // block, keep)
    z, p = masks(probs)
    z = np.repeat(z, block, axis=1)
    return z / keep, p


def sliding_masks(shape: tuple[int, ...], b: int, g: Any) -> tuple[Floats, Floats]:
    """Return the masks of all sets of seeds, each seed dropping the block that starts there."""
    blocks = []
    counts = [n - b + 1 for n in shape]
    for start in np.ndindex(*counts):
        block = np.zeros(shape)
        place = [slice(first, first + b) for first in start]
        block[tuple(place)] = 1
        blocks.append(block.ravel())
    probs = np.full(len(blocks), g)
    seeds, p = masks(probs)
    kept = seeds @ blocks == 0
    return kept.astype(float), p


def moments(z: Floats, p: Floats) -> tuple[Floats, Floats]:
    """Return the mean mu and the characteristic matrix K_ij / (mu_i mu_j) of enumerated masks."""
    mu = p @ z
    centered = z - mu
    K = centered.T * p @ centered
    return mu, K / np.outer(mu, mu)


def added_loss(Y: Floats, U: Floats, A: Floats, multipliers: Floats, p: Floats) -> Any:
    """mean_n (E|y_n - U diag(m) a_n|^2 - |y_n - U a_n|^2), A samples x width."""
    dropped = multipliers[:, None, :] * A
    noisy = (Y - dropped @ U.T) ** 2
    plain = (Y - A @ U.T) ** 2
    expected = p @ noisy.sum(-1).mean(-1)
    return expected - plain.sum(-1).mean()


def sensing_added_loss(y: Floats, U: Floats, V: Floats, A: Floats, prob: Any) -> Any:
    """E mean_j (y_j - <U D V', A_j>)^2 - mean_j (y_j - <U V', A_j>)^2, D over all masks."""

    def loss(U: Floats) -> Any:
        products = U @ V.T * A
        measured = products.sum(axis=(1, 2))
        return np.mean((y - measured) ** 2)

    z, p = multipliers(U.shape[1], prob)
    noisy = np.array([loss(U * m) for m in z])
    return p @ noisy - loss(U)


def deep_added_loss(
    weights: Sequence[Floats], drop_probs: Sequence[Any], C: Floats
) -> Any:
    """E|W_m x|^2 - E|W x|^2 over all masks m of a deep linear network."""
    widths = [len(W) for W in weights[:-1]]
    layers, p = layer_multipliers(widths, drop_probs)
    maps = weights[0][None]
    for W, m in zip(weights[1:], layers, strict=True):
        dropped = m[:, :, None] * maps
        maps = W @ dropped
    W = chain(weights)
    squares = maps @ C * maps
    noisy = squares.sum(axis=(1, 2))
    return p @ noisy - np.sum(W @ C * W)


def chain(weights: Sequence[Floats]) -> Floats:
    """W_(k+1) ... W_1."""
    W = np.eye(weights[0].shape[1])
    for layer in weights:
        W = layer @ W
    return W


def pivot_terms(weights: Sequence[Floats], C: Floats) -> list[Any]:
    """[R_1, ..., R_k] summed over all choices of pivot layers and units, in the paper's form."""
    k = len(weights) - 1
    terms: list[Any] = [0.0] * k
    for count in range(1, k + 1):
        for layers in combinations(range(1, k + 1), count):
            head = chain(weights[: layers[0]])
            tail = chain(weights[layers[-1] :])
            between = [chain(weights[i:j]) for i, j in pairwise(layers)]
            sizes = [len(weights[j - 1]) for j in layers]
            for units in np.ndindex(*sizes):
                alpha = head[units[0]]
                gamma = tail[:, units[-1]]
                path = (alpha @ C @ alpha) * (gamma @ gamma)
                for beta, (before, after) in zip(between, pairwise(units), strict=True):
                    path *= beta[after, before] ** 2
                terms[count - 1] += path
    return terms


def path_sum(weights: Sequence[Floats], order: float = 2.0) -> float:
    """Sum over all input-output paths of prod |w|^order, one path at a time."""
    total = 0.0
    inputs = weights[0].shape[1]
    sizes = [inputs, *map(len, weights)]
    for units in np.ndindex(*sizes):
        path = 1.0
        for W, (before, after) in zip(weights, pairwise(units), strict=True):
            path *= abs(W[after, before]) ** order
        total += path
    return total


def layer_multipliers(
    widths: Sequence[int], drop_probs: Sequence[Any]
) -> tuple[list[Floats], Floats]:
    """Return each layer's multipliers z / mu under all masks, and the masks' probabilities."""
    keep = np.repeat(1 - np.asarray(drop_probs), widths)
    z, p = masks(keep)
    last = np.cumsum(widths)
    layers = np.split(z / keep, last[:-1], axis=1)
    return layers, p


def envelope(s: Floats, a: Floats, weight: float) -> float:
    """|s - a|^2 + weight (sum a)^2, the convex problem of dropout at the singular values a."""
    error = np.sum((s - a) ** 2)
    return float(error + weight * a.sum() ** 2)
