"""How hidden units share a map at the least penalty, noise by noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from overt import equalize
from overt._types import Array, Bools, Floats
from overt.linear.bounds import Envelope, envelopes, pairs_below
from overt.linear.descent import STARTS, least_penalty
from overt.linear.shares import UnitShares
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
            induces = [induced(noise, width)]
            spread = partial(block_factors, width=width, block_size=b)
            return Sharing(width, lambda: induces, spread, imbalance=equal)
        case _:
            units = _diagonal_plus_constant(noise, width)
    if units is not None:
        return Sharing(
            width, lambda: [units], partial(_shared_units, units), exact=True
        )
    Gamma = noise.characteristic(width)
    below = partial(_below, noise, Gamma)
    refined = partial(any_noise_bound, Gamma)
    return Sharing(width, below, partial(_unlike_units, Gamma), refined=refined)


def _below(noise: Noise, Gamma: Floats) -> list[Envelope]:
    return [*envelopes(noise, len(Gamma)), *pairs_below(Gamma)]


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
    R = least_penalty(Gamma, a, [balanced], tries=2)
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
    exists; for other numbers of blocks frames are found by descent, and `attained` says where that
    cannot succeed.
    """
    blocks, norm = width // block_size, KSupport(block_size)
    t = np.asarray(norm.occupancy(a))
    free = t < 1 - 1e-12
    if not free.any() or (blocks >= free.sum() and hadamard(blocks) is not None):
        R = _signed_frame(t, free, width, block_size, 0)
    else:
        tries = 1 if attained(t[free], blocks) is False else STARTS
        starts = [
            _signed_frame(t, free, width, block_size, seed) for seed in range(tries)
        ]
        Gamma = np.asarray(
            np.kron(np.eye(blocks), np.ones((block_size, block_size))), dtype=float
        )
        R = least_penalty(Gamma, a, starts, float(norm.value(a)) / blocks)
    root = np.sqrt(a)
    return (left * root) @ R, (right * root) @ R


def attains_bound(a: Floats, blocks: int, block_size: int) -> bool:
    """Return whether the blocks are known to attain the bound for a map with spectrum a > 0."""
    if len(a) == 0:
        return True
    t = np.asarray(KSupport(block_size).occupancy(a))
    free = t[t < 1 - 1e-12]
    return len(free) == 0 or bool(attained(free, blocks))


def attained(t: Floats, blocks: int) -> bool | None:
    """Return whether k diag(t) is a sum of k projections of rank b = sum t, None if not known.

    That decides whether k blocks attain the bound, t being the occupancies below one: equality
    makes each block a multiple of a projection on them. One block is one projection. Two
    projections have eigenvalues in pairs 1 + c, 1 - c. For b = 1, and by complements for b = n - 1,
    it is a question of majorization, k >= n. Equal t make a tight fusion frame (Casazza, Fickus,
    Mixon, Wang and Zhou, 2011).
    """
    n, b = len(t), round(float(np.sum(t)))
    if blocks == 1 or n > blocks * min(b, n - b):
        return False
    if blocks == 2:
        return bool(np.abs(np.sort(t) + np.sort(t)[::-1] - 1).max() < 1e-9)
    if b in (1, n - 1):
        return n <= blocks
    if blocks >= n and hadamard(blocks) is not None:
        return True
    return _tight_fusion_frame(blocks, b, n) if np.ptp(t) < 1e-9 else None


def _tight_fusion_frame(k: int, b: int, n: int) -> bool:
    """Return whether k projections of rank b can sum to a multiple of the identity of order n.

    Complements turn b into n - b, and n into k b - n (Naimark); one or the other decides.
    """
    b = min(b, n - b)
    if b <= 0:
        return b == 0
    if n % b == 0:
        return k >= n // b
    least = -(-n // b) + 1
    return k > least or (k == least and _tight_fusion_frame(k, b, k * b - n))


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


def _signed_frame(
    t: Floats, free: Bools, width: int, block_size: int, seed: int
) -> Floats:
    """Return R (rank x width), R R' = I: one frame F for all blocks, with separate signs in each.

    Rows of a Hadamard matrix make the blocks' average diag(t) exactly; other signs nearly.
    """
    n, blocks = len(t), width // block_size
    F = _projection(t, block_size)
    signs = np.ones((n, blocks))
    signs[free] = _signs(int(free.sum()), blocks, seed)
    frames = (
        signs.T[:, :, None] * F[None] / np.sqrt(t)[:, None]
    )  # (blocks, rank, block_size)
    X, _, Y = np.linalg.svd(
        frames.transpose(1, 0, 2).reshape(n, width), full_matrices=False
    )
    return np.asarray(X @ Y)


def _projection(t: Floats, rank: int) -> Floats:
    """Return F with orthonormal (or zero) columns and diag(F F') = t, columns padded to `rank`."""
    n = len(t)
    if n <= rank:
        return np.eye(n, rank)
    eigenvalues = np.zeros(n)
    eigenvalues[:rank] = 1.0
    return equalize.schur_horn(eigenvalues, t * (rank / t.sum())).T[:, :rank]


def _signs(count: int, blocks: int, seed: int) -> Floats:
    """Return a count x blocks sign matrix, with orthogonal rows where that is known how."""
    H = hadamard(blocks) if count <= blocks else None
    if H is not None:
        return H[:count]
    return np.random.default_rng(seed).choice([-1.0, 1.0], size=(count, blocks))
