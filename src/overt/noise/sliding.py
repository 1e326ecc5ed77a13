"""Where blocks can lie on a map, and the exact probabilities that follow, for NumPy and PyTorch.

Sliding blocks: a block of b units along each axis starts at each allowed position with the seed
probability g. With c_i the number of positions whose block covers unit i, and o_ij that cover both,

    P(i survives) = (1 - g)^(c_i),   Gamma_ij = (1 - g)^(-o_ij) - 1,

both counts being products over the axes. g solves mean_i (1 - g)^(c_i) = 1 - drop_prob; section
5.3 of structured dropout prints another formula, which does not. With `uniform` blocks may hang
over the border, so that c_i = b for every unit and g = 1 - (1 - drop_prob)^(1 / b).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from overt._types import Floats


@dataclass(frozen=True)
class Sliding:
    """Blocks that may start anywhere.

    Attributes
    ----------
    drop_prob
        Probability that a unit is dropped, averaged over the map.
    sizes, blocks
        Size of the map and of a block along each axis.
    uniform
        Whether blocks may hang over the border, so that all units fare alike.
    """

    drop_prob: float
    sizes: tuple[int, ...]
    blocks: tuple[int, ...]
    uniform: bool

    @property
    def starts(self) -> tuple[int, ...]:
        """The number of positions at which a block may start, along each axis."""
        step = 1 if self.uniform else -1
        return tuple(
            n + step * (b - 1) for n, b in zip(self.sizes, self.blocks, strict=True)
        )

    def rate(self) -> float:
        """-log(1 - g), at which the mean over units of exp(-rate c_i) is 1 - drop_prob."""
        return _rate(self)

    def seed_prob(self) -> float:
        """g, the probability that a block starts at a position."""
        return -math.expm1(-self.rate())

    def keep_prob(self) -> Floats:
        """P(i survives) = (1 - g)^(c_i), shaped like the map."""
        return np.exp(-self.rate() * self._coverage())

    def characteristic(self) -> Floats:
        """Gamma_ij = (1 - g)^(-o_ij) - 1 among the flattened units."""
        overlap: Floats = np.ones((1, 1))
        for n, b in zip(self.sizes, self.blocks, strict=True):
            overlap = np.asarray(np.kron(overlap, _joint_cover(n, b, self.uniform)))
        return np.expm1(self.rate() * overlap)

    def _coverage(self) -> Floats:
        cover = np.ones(())
        for n, b in zip(self.sizes, self.blocks, strict=True):
            cover = cover[..., None] * np.diag(_joint_cover(n, b, self.uniform))
        return cover


@lru_cache(maxsize=256)
def _rate(blocks: Sliding) -> float:
    target = -math.log1p(-blocks.drop_prob)
    if blocks.uniform or blocks.drop_prob == 0:
        return target / math.prod(blocks.blocks)
    counts, repeats = np.unique(blocks._coverage(), return_counts=True)
    weights = repeats / repeats.sum()
    # The mean survival is decreasing and convex in the rate, so Newton's iteration started from
    # the left (every unit covered as the most covered one) never overshoots.
    x = target / float(counts.max())
    for _ in range(100):
        survival = weights * np.exp(-x * counts)
        step = (survival.sum() - (1 - blocks.drop_prob)) / (survival * counts).sum()
        x += float(step)
        if abs(step) <= 1e-16 * x:
            break
    return x


def _joint_cover(n: int, b: int, uniform: bool) -> Floats:
    """o_ij along one axis: the number of starts whose block covers both i and j."""
    i = np.arange(n)
    if uniform:
        both = b - np.abs(i[:, None] - i[None, :])
    else:
        first, last = np.maximum(i - b + 1, 0), np.minimum(i, n - b)
        both = np.minimum.outer(last, last) - np.maximum.outer(first, first) + 1
    return np.maximum(both, 0).astype(float)


def grid_characteristic(
    strength: float, sizes: tuple[int, ...], blocks: tuple[int, ...]
) -> Floats:
    """lam among units of the same cell of a grid, 0 among others; the last cells may be cut off."""
    same = np.ones((1, 1))
    for n, b in zip(sizes, blocks, strict=True):
        cell = np.arange(n) // b
        same = np.kron(same, cell[:, None] == cell[None, :])
    return strength * same


def running_minimum(keep: Any, axis: int, block: int) -> Any:
    """Return the logical and of each `block` neighbors along an axis, which shortens it.

    `keep` is an array or tensor of truth values; the and is taken by doubling, in about
    log2(block) passes.
    """
    width = 1
    while width < block:
        step = min(width, block - width)
        length = keep.shape[axis] - step
        lead = (slice(None),) * axis
        keep = (
            keep[(*lead, slice(0, length))] & keep[(*lead, slice(step, step + length))]
        )
        width += step
    return keep
