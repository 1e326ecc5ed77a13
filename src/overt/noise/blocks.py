"""DropBlock: neighboring units are dropped together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np

from overt import _check
from overt._check import InputError
from overt._types import Floats, Seed
from overt.noise.masks import Noise, Width, shape_of, width_adjusted
from overt.noise.sliding import Sliding, grid_characteristic, running_minimum

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
