"""Random masks that can be sampled again: a pure function of a key, in eager mode and compiled.

A layer without a seed samples from torch's own generator, as torch.nn.Dropout does. A layer with a
seed samples from a private generator, whose state is (seed, number of samples so far): an
integer that is part of the module's state_dict, survives deepcopy, and gives the same masks
compiled or not.

`MaskCovariance` holds the second moments of a mask over the units of one sample:
Gamma_ij = Cov(m_i, m_j), with m the multipliers, whose mean is 1 (structured dropout, eq. 16).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from overt._check import InputError
from overt.noise.blocks import Sliding, running_minimum

Shape = tuple[int, ...]


class Key(NamedTuple):
    """The origin of a mask: the layer's sample count (0-dim int64) and its seed."""

    draws: Tensor
    seed: int


def keep_mask(
    shape: Sequence[int],
    drop_prob: float,
    device: torch.device,
    key: Key | None,
) -> Tensor:
    """Return a boolean mask, True with probability 1 - drop_prob independently at each entry."""
    if key is None:
        return torch.rand(shape, device=device) >= drop_prob
    return _sample(key, shape, normal=False) >= drop_prob


def normal(shape: Sequence[int], device: torch.device, key: Key | None) -> Tensor:
    """Return independent standard normal numbers (float32)."""
    if key is None:
        return torch.randn(shape, dtype=torch.float32, device=device)
    return _sample(key, shape, normal=True)


def _sample(key: Key, shape: Sequence[int], *, normal: bool) -> Tensor:
    if torch.compiler.is_compiling():
        values: Tensor = torch.ops.overt.sample(*key, shape, normal)
        return values
    return _sample_by_key(*key, shape, normal)


def _sample_by_key(
    draws: Tensor, seed: int, shape: Sequence[int], normal: bool
) -> Tensor:
    values = torch.empty(shape, dtype=torch.float32, device=draws.device)
    if values.is_meta:
        return values
    generator = torch.Generator(device=draws.device)
    generator.manual_seed(_mix(seed, int(draws)))
    if normal:
        return values.normal_(generator=generator)
    return values.uniform_(generator=generator)


def _mix(seed: int, draws: int) -> int:
    """Return 63 well-mixed bits of (seed, draws): the output function of SplitMix64, twice."""
    z = seed
    for value in (0, draws):
        z = (z + value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        z ^= z >> 31
    return z >> 1


class Blocks(NamedTuple):
    """Sliding blocks on a map; `uniform` ones may hang over its border."""

    sizes: Shape
    blocks: Shape
    uniform: bool


def sliding_mask(
    x: Tensor,
    key: Key | None,
    drop_prob: float,
    lead: Sequence[int],
    where: Blocks,
) -> Tensor:
    """Return masks (lead, sizes) of sliding blocks, divided by the probability of survival."""
    double = x.dtype == torch.float64
    if not torch.compiler.is_compiling():
        mask = _sliding_mask(x.device, key, drop_prob, lead, where)
    else:
        draws, seed = key or (torch.randint(2**62, (), device=x.device), 0)
        mask = torch.ops.overt.sliding_mask(draws, seed, drop_prob, lead, *where)
    return mask if double else mask.float()


def _sliding_mask(
    device: torch.device,
    key: Key | None,
    drop_prob: float,
    lead: Sequence[int],
    where: Blocks,
) -> Tensor:
    law = Sliding(drop_prob, *where)
    survives = law.keep_prob()
    if survives.size and not survives.min() > 1e-30:
        raise InputError(
            f"drop_prob must let units survive, {drop_prob!r} in blocks does not"
        )
    keep = keep_mask([*lead, *law.starts], law.seed_prob(), device, key)
    for axis in range(len(where.blocks), 0, -1):
        width = where.blocks[axis - 1]
        if not where.uniform and width > 1:  # starts of blocks inside the map
            behind = [0, 0] * (len(where.blocks) - axis)
            widths = [*behind, width - 1, width - 1]
            keep = functional.pad(keep, widths, value=True)
        keep = running_minimum(keep, keep.ndim - 1 - len(where.blocks) + axis, width)
    return keep * torch.from_numpy(1 / survives).to(device)


# To a compiler these are opaque functions of their arguments: it traces neither the generator nor
# the root search for the probability of blocks.


@torch.library.custom_op("overt::sample", mutates_args=())
def _sample_op(
    draws: torch.Tensor, seed: int, shape: Sequence[int], normal: bool
) -> torch.Tensor:
    return _sample_by_key(draws, seed, shape, normal)


@_sample_op.register_fake
def _(draws: Tensor, seed: int, shape: Sequence[int], normal: bool) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=draws.device)


@torch.library.custom_op("overt::sliding_mask", mutates_args=())
def _sliding_mask_op(
    draws: torch.Tensor,
    seed: int,
    drop_prob: float,
    lead: Sequence[int],
    sizes: Sequence[int],
    blocks: Sequence[int],
    uniform: bool,
) -> torch.Tensor:
    where = Blocks(tuple(sizes), tuple(blocks), uniform)
    key = Key(draws, seed)
    return _sliding_mask(draws.device, key, drop_prob, lead, where)


@_sliding_mask_op.register_fake
def _(
    draws: Tensor,
    seed: int,
    drop_prob: float,
    lead: Sequence[int],
    sizes: Sequence[int],
    blocks: Sequence[int],
    uniform: bool,
) -> Tensor:
    return draws.new_empty([*lead, *sizes], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class MaskCovariance:
    """Gamma of a mask over units of shape s (a sample's axes, the batch left out).

    Attributes
    ----------
    shape
        s.
    strength
        Gamma_ii where `matrix` is None.
    matrix, axes
        Gamma among the units along the sample's `axes` (flattened together); units that differ
        along any other axis are independent, unless it is shared.
    shared
        Axes along which all units have the same multiplier.
    """

    shape: Shape
    strength: float = 0.0
    matrix: Tensor | None = None
    axes: Shape = ()
    shared: Shape = ()

    @property
    def independent(self) -> bool:
        """Whether all units are masked independently."""
        return self.matrix is None and all(
            self.shape[axis] == 1 for axis in self.shared
        )

    def relative_variance(self, like: Tensor) -> Tensor:
        """Gamma_ii, one entry per unit, in the number format and on the device of `like`."""
        if self.matrix is None:
            return like.new_full(self.shape, self.strength)
        sizes = [n if axis in self.axes else 1 for axis, n in enumerate(self.shape)]
        return self._matrix(like).diagonal().reshape(sizes).expand(self.shape)

    def apply(self, flow: Tensor) -> Tensor:
        """Return Gamma @ flow for flow of shape (..., *s)."""
        lead = flow.ndim - len(self.shape)
        if self.shared:
            flow = flow.sum([lead + axis for axis in self.shared], keepdim=True)
        if self.matrix is None:
            return (self.strength * flow).expand(*flow.shape[:lead], *self.shape)
        source = [lead + axis for axis in self.axes]
        target = range(flow.ndim - len(source), flow.ndim)
        moved = flow.movedim(source, list(target))
        out = (moved.flatten(moved.ndim - len(source)) @ self._matrix(flow)).reshape(
            moved.shape
        )
        return out.movedim(list(target), source).expand(*flow.shape[:lead], *self.shape)

    def dense(self, like: Tensor) -> Tensor:
        """Return Gamma over all units, flattened: units x units."""
        units = math.prod(self.shape)
        eye = torch.eye(units, dtype=like.dtype, device=like.device)
        rows = self.apply(eye.reshape(units, *self.shape))
        return rows.reshape(units, units)

    def penalty(self, values: Tensor, rows: Tensor) -> Tensor:
        """<Gamma, R'R o mean(h h')> for values h (n, *s) and rows R (outputs, units)."""
        if self.independent:
            return self.strength * (
                (rows * rows).sum(0) @ (values * values).mean(0).flatten()
            )
        flows = (values * row for row in rows.unflatten(1, self.shape))
        total = torch.stack([(flow * self.apply(flow)).sum() for flow in flows]).sum()
        return total / len(values)

    def _matrix(self, like: Tensor) -> Tensor:
        assert self.matrix is not None  # noqa: S101 (for the type checker)
        return self.matrix.to(like)
