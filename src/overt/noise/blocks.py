"""DropBlock: neighboring units are dropped together, in NumPy and PyTorch.

Sliding blocks: a block of b units along each axis starts at each allowed position with the seed
probability g. With c_i the number of positions whose block covers unit i, and o_ij that cover both,

    P(i survives) = (1 - g)^(c_i),   Gamma_ij = (1 - g)^(-o_ij) - 1,

both counts being products over the axes. g solves mean_i (1 - g)^(c_i) = 1 - drop_prob; section
5.3 of structured dropout prints another formula, which does not. With `uniform` blocks may hang
over the border, so that c_i = b for every unit and g = 1 - (1 - drop_prob)^(1 / b).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np

from overt import _check
from overt._check import Floats, InputError, Seed
from overt.noise.masks import Noise, Width, shape_of, width_adjusted

Placement = Literal["grid", "sliding"]


@dataclass(frozen=True)
class DropBlock(Noise):
    """Neighboring units are dropped together, in blocks.

    Parameters
    ----------
    drop_prob
        Probability that a unit is dropped; for sliding blocks, averaged over all units (those near
        the border are covered by fewer blocks and survive more often).
    block_size
        Units per block, along each axis.
    placement
        "grid": blocks partition the units, as in the theory, and the block size divides the width.
        "sliding": a block starts at each valid position with the seed probability that yields
        `drop_prob`, as in practice.

    Examples
    --------
    >>> import overt
    >>> overt.DropBlock(0.5, block_size=2).characteristic(4)
    array([[1., 1., 0., 0.],
           [1., 1., 0., 0.],
           [0., 0., 1., 1.],
           [0., 0., 1., 1.]])
    """

    drop_prob: float = 0.5
    block_size: int = field(default=2)
    placement: Placement = "grid"

    def __post_init__(self) -> None:
        object.__setattr__(self, "drop_prob", _check.drop_prob(self.drop_prob))
        object.__setattr__(
            self, "block_size", _check.whole("block_size", self.block_size)
        )
        _check.choice("placement", self.placement, ("grid", "sliding"))

    @property
    def strength(self) -> float:
        """lam = drop_prob / (1 - drop_prob)."""
        return self.drop_prob / (1 - self.drop_prob)

    @property
    def independent(self) -> bool:
        """Whether blocks hold a single unit."""
        return self.block_size == 1

    def mean(self, width: Width) -> Floats:
        """Exact probability that each unit survives."""
        shape = self._fitting(width)
        if self.placement == "grid":
            return np.full(math.prod(shape), 1 - self.drop_prob)
        return self._sliding(shape).keep_prob().ravel()

    def characteristic(self, width: Width) -> Floats:
        """lam 1 1' on each block of the grid; (1 - g)^(-o_ij) - 1 for sliding blocks.

        g is the seed probability and o_ij the number of block positions that cover both i and j.
        """
        shape = self._fitting(width)
        if self.placement == "grid":
            blocks = (self.block_size,) * len(shape)
            return grid_characteristic(self.strength, shape, blocks)
        return self._sliding(shape).characteristic()

    def sample(self, width: Width, size: int = 1, seed: Seed = None) -> Floats:
        """Draw masks of whole blocks, shape (size, *width)."""
        shape, rng = self._fitting(width), _check.generator(seed)
        size, b = _check.whole("size", size), self.block_size
        if self.placement == "grid":
            keep = rng.random((size, *(n // b for n in shape))) >= self.drop_prob
            for axis in range(1, keep.ndim):
                keep = np.repeat(keep, b, axis=axis)
            return keep.astype(float)
        starts = self._sliding(shape).starts
        kept = rng.random((size, *starts)) >= self.seed_probability(width)
        pad = [(0, 0)] + [(b - 1, b - 1)] * len(shape)
        keep = np.pad(kept, pad, constant_values=True)
        for axis in range(1, keep.ndim):
            keep = running_minimum(keep, axis, b)
        return keep.astype(float)

    def seed_probability(self, width: Width) -> float:
        """Return g, the probability that a block starts at a position: mean_i (1-g)^(c_i) = keep.

        c_i counts the block positions that cover unit i; on a grid g is the drop probability.
        """
        shape = self._fitting(width)
        if self.placement == "grid":
            return self.drop_prob
        return self._sliding(shape).seed_prob()

    def at_width(self, width: int) -> Self:
        """Width-adjusted noise, theta(d) = tb b / (tb b + (1 - tb) d) (structured dropout, eq. 7).

        `drop_prob` of this object is then the value for a single block, 1 - tb.
        """
        return replace(
            self, drop_prob=width_adjusted(self.drop_prob, width, self.block_size)
        )

    def _fitting(self, width: Width) -> tuple[int, ...]:
        shape, b = shape_of(width), self.block_size
        if self.placement == "grid" and any(n % b for n in shape):
            raise InputError(
                f"block_size must divide the width on a grid, got block_size {b} and width "
                f"{width}; use a multiple of {b}, or placement='sliding'"
            )
        if any(n < b for n in shape):
            raise InputError(f"block_size must be at most the width {width}, got {b}")
        return shape

    def _sliding(self, shape: tuple[int, ...]) -> Sliding:
        return Sliding(
            self.drop_prob, shape, (self.block_size,) * len(shape), uniform=False
        )


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
