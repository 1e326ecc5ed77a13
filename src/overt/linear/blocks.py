"""Balanced factors for DropBlock on a grid: every block carries the same share of the map.

The best product has spectrum a with occupancies t (sum t = b). If F_j (rank x b) have orthonormal
columns and the average of F_j F_j' over the k blocks is diag(t), then the blocks

    U_j = W diag(a/t)^(1/2) F_j / sqrt(k),   V_j = Y diag(a/t)^(1/2) F_j / sqrt(k)

multiply to W diag(a) Y' and attain the k-support norm. One such F has t as the diagonal of F F'
(Schur-Horn); flipping its signs with the rows of a Hadamard matrix of order k >= rank averages all
other entries to zero. So DropBlock's convex bound is attained whenever such a matrix exists; for
other numbers of blocks the factors here are a start for descent.
"""

from __future__ import annotations

import numpy as np

from overt._types import Floats
from overt.equalize import schur_horn
from overt.spectral import KSupport


def block_factors(
    left: Floats, a: Floats, right: Floats, width: int, block_size: int, seed: int = 0
) -> tuple[Floats, Floats]:
    """Return (U, V) with U V' = left diag(a) right', a > 0, spread over blocks of columns."""
    n, blocks = len(a), width // block_size
    t = np.asarray(KSupport(block_size).occupancy(a))
    F = _projection(t, block_size)
    free = t < 1 - 1e-12
    signs = np.ones((n, blocks))
    signs[free] = _signs(int(free.sum()), blocks, seed)
    frames = signs.T[:, :, None] * F[None] / np.sqrt(t)[:, None]  # (blocks, rank, block_size)
    R = frames.transpose(1, 0, 2).reshape(n, width) / np.sqrt(blocks)
    # R R' is the identity where the signs are orthogonal; otherwise this makes it so.
    values, vectors = np.linalg.eigh(R @ R.T)
    values = np.maximum(values, 1e-6)
    R = vectors / np.sqrt(values) @ vectors.T @ R
    root = np.sqrt(a)
    return (left * root) @ R, (right * root) @ R


def hadamard(order: int) -> Floats | None:
    """Return a matrix of +-1 with orthogonal rows, or None where no simple construction applies.

    Sylvester's doubling, and Paley's matrix of order p + 1 for a prime p with p = 3 modulo 4.
    """
    if order == 1:
        return np.ones((1, 1))
    half = hadamard(order // 2) if order % 2 == 0 else None
    if half is not None:
        return np.block([[half, half], [half, -half]])
    p = order - 1
    if p % 4 != 3 or any(p % q == 0 for q in range(2, int(p**0.5) + 1)):
        return None
    squares = {i * i % p for i in range(1, p)}
    character = np.array([0.0] + [1.0 if i in squares else -1.0 for i in range(1, p)])
    index = np.arange(p)
    H = np.ones((order, order))
    H[1:, 1:] = character[(index[:, None] - index[None, :]) % p] + np.eye(p)
    H[1:, 0] = -1.0
    return H


def _projection(t: Floats, rank: int) -> Floats:
    """Return F with orthonormal (or zero) columns and diag(F F') = t, columns padded to `rank`."""
    n = len(t)
    if n <= rank:
        return np.eye(n, rank)
    eigenvalues = np.zeros(n)
    eigenvalues[:rank] = 1.0
    return schur_horn(eigenvalues, t * (rank / t.sum())).T[:, :rank]


def _signs(count: int, blocks: int, seed: int) -> Floats:
    """Return a count x blocks sign matrix, with orthogonal rows where that is known how."""
    H = hadamard(blocks) if count <= blocks else None
    if H is not None:
        return H[:count]
    return np.random.default_rng(seed).choice([-1.0, 1.0], size=(count, blocks))
