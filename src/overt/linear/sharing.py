"""How hidden units share a map at the least penalty, noise by noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from overt import equalize
from overt._check import Array, Bools, Floats
from overt.linear.bounds import Envelope, NormCost, UnitShares, pairs_below
from overt.linear.descent import least_penalty
from overt.linear.unit_sets import any_noise_bound
from overt.noise import DropBlock, Dropout, Noise
from overt.spectral import KSupport, induced

Pair = tuple[Floats, Floats]


class Sharing(NamedTuple):
    """How hidden units share a map A = left diag(a) right', a > 0, at the least penalty known.

    `envelopes` lists what the noise costs a map at least, `spread(left, a, right)` returns factors
    of a map that is not zero, the best way known; `exact` says that these are a global optimum at
    any width. `refined(s)` is a further lower bound on the objective for a target with singular
    values s, where no envelope is exact. `imbalance(U, P)` is the variance of what the noise makes
    equal.
    """

    width: int
    envelopes: Callable[[], Sequence[Envelope]]
    spread: Callable[[Floats, Floats, Floats], Pair]
    exact: bool = False
    refined: Callable[[Floats], float] | None = None
    imbalance: Callable[[Floats, Floats], Array] = equalize.imbalance

    def factors(self, left: Floats, a: Floats, right: Floats) -> Pair:
        """Return factors of the map."""
        if len(a) == 0:
            return np.zeros((len(left), self.width)), np.zeros((len(right), self.width))
        return self.spread(left, a, right)


def sharing(noise: Noise, width: int) -> Sharing:
    """Return what theory says about a noise over units: the one place that tells them apart."""
    match noise:
        case Dropout():
            units: UnitShares | None = UnitShares(noise.relative_variance(width))
        case DropBlock(placement="grid", block_size=b):
            equal = partial(equalize.block_imbalance, block_size=b)
            induces = [NormCost(*induced(noise, width))]
            spread = partial(block_factors, width=width, block_size=b)
            return Sharing(width, lambda: induces, spread, imbalance=equal)
        case _:
            units = _diagonal_plus_constant(noise, width)
    if units is not None:
        return Sharing(
            width, lambda: [units], partial(_shared_units, units), exact=True
        )
    Gamma = noise.characteristic(width)
    return Sharing(
        width,
        partial(pairs_below, Gamma),
        partial(_unlike_units, Gamma),
        refined=partial(any_noise_bound, Gamma),
    )


def _diagonal_plus_constant(noise: Noise, width: int) -> UnitShares | None:
    """Return the costs of units under Gamma = diag(delta) + gamma 1 1', None if it is not that."""
    if noise.independent or width == 1:
        return UnitShares(noise.relative_variance(width))
    Gamma = noise.characteristic(width)
    others = Gamma[~np.eye(width, dtype=bool)]
    gamma = float(np.mean(others))
    delta = np.diag(Gamma) - gamma
    rounding = 1e-14 * np.abs(Gamma).max()
    if np.ptp(others) > rounding or delta.min() < -rounding:
        return None
    if np.ptp(delta) <= rounding:  # equal up to rounding: all units alike
        delta = np.full(width, delta.mean())
    return UnitShares(np.maximum(delta, 0.0), gamma)


def _shared_units(units: UnitShares, left: Floats, a: Floats, right: Floats) -> Pair:
    """Return factors whose units have their best shares, by Schur and Horn."""
    if np.ptp(units.delta) == 0:
        return equalize.balanced_factors(left, a, right, len(units.delta))
    padded = np.concatenate([a, np.zeros(len(units.delta) - len(a))])
    Q = equalize.schur_horn(padded, units.shares(a))[: len(a)]
    return (left * np.sqrt(a)) @ Q, (right * np.sqrt(a)) @ Q


def _unlike_units(Gamma: Floats, left: Floats, a: Floats, right: Floats) -> Pair:
    """Return factors of the least penalty that descent finds for this map."""
    root = np.sqrt(a)
    balanced = equalize.equalizer(root[:, None] * np.eye(len(a), len(Gamma)))[: len(a)]
    R = least_penalty(Gamma, a, balanced, tries=2)
    return (left * root) @ R, (right * root) @ R


def block_factors(
    left: Floats, a: Floats, right: Floats, width: int, block_size: int
) -> tuple[Floats, Floats]:
    """Return (U, V) with U V' = left diag(a) right', a > 0, distributed over blocks of columns.

    The best product has spectrum a with occupancies t (sum t = b). If F_j (rank x b) have
    orthonormal columns and the average of F_j F_j' over the k blocks is diag(t), then the blocks

        U_j = W diag(a/t)^(1/2) F_j / sqrt(k),   V_j = Y diag(a/t)^(1/2) F_j / sqrt(k)

    multiply to W diag(a) Y' and attain the k-support norm. One such F has t as the diagonal of F F'
    (Schur-Horn); flipping its signs with the rows of a Hadamard matrix of order k >= rank averages
    all other entries to zero. So DropBlock's convex bound is attained whenever such a matrix
    exists; for other numbers of blocks frames are found by descent.
    """
    blocks = width // block_size
    norm = KSupport(block_size)
    t = np.asarray(norm.occupancy(a))
    free = t < 1 - 1e-12
    R = _signed_frame(t, free, width, block_size)
    if not attains_bound(a, blocks, block_size):
        ones = np.ones((block_size, block_size))
        Gamma = np.asarray(np.kron(np.eye(blocks), ones), dtype=float)
        R = least_penalty(Gamma, a, R, float(norm.value(a)) / blocks)
    root = np.sqrt(a)
    return (left * root) @ R, (right * root) @ R


def attains_bound(a: Floats, blocks: int, block_size: int) -> bool:
    """Return whether blocks are known to attain the bound for a map with spectrum a > 0.

    That is so if the occupancies below one are no more than the blocks and there is a Hadamard
    matrix of that order. For other numbers of blocks it is a question of fusion frames.
    """
    if len(a) == 0:
        return True
    t = np.asarray(KSupport(block_size).occupancy(a))
    free = int(np.sum(t < 1 - 1e-12))
    return free == 0 or (free <= blocks and hadamard(blocks) is not None)


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


def _signed_frame(t: Floats, free: Bools, width: int, block_size: int) -> Floats:
    """Return R (rank x width), R R' = I: one frame F for all blocks, with separate signs in each.

    Rows of a Hadamard matrix make the blocks' average diag(t) exactly; random signs nearly.
    """
    n = len(t)
    blocks = width // block_size
    count = int(free.sum())
    H = hadamard(blocks) if count <= blocks else None
    if H is None:
        H = np.random.default_rng(0).choice([-1.0, 1.0], size=(count, blocks))
    signs = np.ones((n, blocks))
    signs[free] = H[:count]
    F = _projection(t, block_size) / np.sqrt(t)[:, None]
    frames = signs[:, :, None] * F[:, None, :]  # (rank, blocks, block_size)
    X, _, Y = np.linalg.svd(frames.reshape(n, width), full_matrices=False)
    return np.asarray(X @ Y)


def _projection(t: Floats, rank: int) -> Floats:
    """Return F with orthonormal (or zero) columns and diag(F F') = t, columns padded to `rank`."""
    n = len(t)
    if n <= rank:
        return np.eye(n, rank)
    eigenvalues = np.zeros(n)
    eigenvalues[:rank] = 1.0
    return equalize.schur_horn(eigenvalues, t * (rank / t.sum())).T[:, :rank]
