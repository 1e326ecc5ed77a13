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
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from overt._check import InputError
from overt._types import Floats
from overt.noise.sliding import Sliding, running_minimum


class Key(NamedTuple):
    """The origin of a mask: the layer's seed and its sample count (0-dim int64)."""

    seed: int
    draws: Tensor


def keep_mask(
    shape: Sequence[int],
    drop_prob: float | Tensor,
    device: torch.device,
    key: Key | None,
) -> Tensor:
    """Return a boolean mask, True with probability 1 - drop_prob independently at each entry."""
    if key is None:
        return torch.rand(shape, device=device) >= drop_prob
    if torch.compiler.is_compiling():
        prob = as_tensor(drop_prob)
        mask: Tensor = torch.ops.overt.keep_mask(key.draws, key.seed, prob, shape)
        return mask
    return _uniform(key, shape) >= drop_prob


def normal(shape: Sequence[int], device: torch.device, key: Key | None) -> Tensor:
    """Return independent standard normal numbers (float32)."""
    if key is None:
        return torch.randn(shape, dtype=torch.float32, device=device)
    if torch.compiler.is_compiling():
        values: Tensor = torch.ops.overt.normal(key.draws, key.seed, shape)
        return values
    return _normal(key, shape)


def as_tensor(drop_prob: float | Tensor) -> Tensor:
    """Return a probability in the form that compiled operators take."""
    if isinstance(drop_prob, Tensor):
        return drop_prob
    return torch.full((), drop_prob, dtype=torch.float64)


def _uniform(key: Key, shape: Sequence[int]) -> Tensor:
    values = torch.empty(shape, dtype=torch.float32, device=key.draws.device)
    return values if values.is_meta else values.uniform_(generator=_generator(key))


def _normal(key: Key, shape: Sequence[int]) -> Tensor:
    values = torch.empty(shape, dtype=torch.float32, device=key.draws.device)
    return values if values.is_meta else values.normal_(generator=_generator(key))


def _generator(key: Key) -> torch.Generator:
    seed = _mix(key.seed, int(key.draws))
    return torch.Generator(device=key.draws.device).manual_seed(seed)


def _mix(seed: int, draws: int) -> int:
    """Return 63 well-mixed bits of (seed, draws): the output function of SplitMix64, twice."""
    z = seed
    for value in (0, draws):
        z = (z + value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        z ^= z >> 31
    return z >> 1


def sliding_block_mask(
    x: Tensor,
    key: Key | None,
    drop_prob: float | Tensor,
    lead: Sequence[int],
    sizes: tuple[int, ...],
    blocks: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """Return masks (lead, sizes) of blocks inside the map, and 1 / P(i survives) (sizes)."""
    double = x.dtype == torch.float64
    if not torch.compiler.is_compiling():
        p = float(drop_prob)
        mask = _sample_blocks(x.device, key, p, lead, sizes, blocks)
        return mask, _scale(p, sizes, blocks, double, x.device)
    if key is None:
        key = Key(0, torch.randint(2**62, (), device=x.device))
    ops = torch.ops.overt
    prob = as_tensor(drop_prob)
    mask = ops.block_mask(key.draws, key.seed, prob, lead, sizes, blocks)
    return mask, ops.block_scale(key.draws, prob, sizes, blocks, double)


def cover(keep: Tensor, blocks: tuple[int, ...], *, pad: bool) -> Tensor:
    """Return which units no dropped block covers, from which block starts survive.

    With `pad` the starts are of blocks inside the map, otherwise of all blocks that
    touch it.
    """
    for axis in range(len(blocks), 0, -1):
        size = blocks[axis - 1]
        if pad and size > 1:
            widths = [0, 0] * (len(blocks) - axis) + [size - 1, size - 1]
            keep = functional.pad(keep, widths, value=True)
        keep = running_minimum(keep, keep.ndim - 1 - len(blocks) + axis, size)
    return keep


def _sample_blocks(
    device: torch.device,
    key: Key | None,
    drop_prob: float,
    lead: Sequence[int],
    sizes: tuple[int, ...],
    blocks: tuple[int, ...],
) -> Tensor:
    law = Sliding(drop_prob, sizes, blocks, uniform=False)
    starts = keep_mask([*lead, *law.starts], law.seed_prob(), device, key)
    return cover(starts, blocks, pad=True)


def _scale(
    drop_prob: float,
    sizes: tuple[int, ...],
    blocks: tuple[int, ...],
    double: bool,
    device: torch.device,
) -> Tensor:
    dtype = torch.float64 if double else torch.float32
    return torch.tensor(
        _inverse_keep(drop_prob, sizes, blocks), dtype=dtype, device=device
    )


# Stored as an array: a tensor that is made inside a transformation of torch.func belongs to it.
@lru_cache(maxsize=64)
def _inverse_keep(
    drop_prob: float, sizes: tuple[int, ...], blocks: tuple[int, ...]
) -> Floats:
    survives = Sliding(drop_prob, sizes, blocks, uniform=False).keep_prob()
    if survives.size and not survives.min() > 1e-30:
        raise InputError(
            f"drop_prob must let units survive, {drop_prob!r} in blocks does not"
        )
    return 1 / survives


# To a compiler these are opaque functions of their arguments: it neither traces the generator, nor
# the root search for the probability of blocks, nor samples a second mask when it recomputes
# activations in the backward pass.


@torch.library.custom_op("overt::keep_mask", mutates_args=())
def _keep_mask_op(
    draws: torch.Tensor, seed: int, drop_prob: torch.Tensor, shape: Sequence[int]
) -> torch.Tensor:
    return _uniform(Key(seed, draws), shape) >= float(drop_prob)


@_keep_mask_op.register_fake
def _(draws: Tensor, seed: int, drop_prob: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=torch.bool, device=draws.device)


@torch.library.custom_op("overt::normal", mutates_args=())
def _normal_op(draws: torch.Tensor, seed: int, shape: Sequence[int]) -> torch.Tensor:
    return _normal(Key(seed, draws), shape)


@_normal_op.register_fake
def _(draws: Tensor, seed: int, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=draws.device)


@torch.library.custom_op("overt::block_mask", mutates_args=())
def _block_mask_op(
    draws: torch.Tensor,
    seed: int,
    drop_prob: torch.Tensor,
    lead: Sequence[int],
    sizes: Sequence[int],
    blocks: Sequence[int],
) -> torch.Tensor:
    key = Key(seed, draws)
    p = float(drop_prob)
    return _sample_blocks(
        draws.device, key, p, lead, tuple(sizes), tuple(blocks)
    ).contiguous()


@_block_mask_op.register_fake
def _(
    draws: Tensor,
    seed: int,
    drop_prob: Tensor,
    lead: Sequence[int],
    sizes: Sequence[int],
    blocks: Sequence[int],
) -> Tensor:
    return torch.empty([*lead, *sizes], dtype=torch.bool, device=draws.device)


@torch.library.custom_op("overt::block_scale", mutates_args=())
def _block_scale_op(
    draws: torch.Tensor,
    drop_prob: torch.Tensor,
    sizes: Sequence[int],
    blocks: Sequence[int],
    double: bool,
) -> torch.Tensor:
    return _scale(float(drop_prob), tuple(sizes), tuple(blocks), double, draws.device)


@_block_scale_op.register_fake
def _(
    draws: Tensor,
    drop_prob: Tensor,
    sizes: Sequence[int],
    blocks: Sequence[int],
    double: bool,
) -> Tensor:
    dtype = torch.float64 if double else torch.float32
    return torch.empty(list(sizes), dtype=dtype, device=draws.device)


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

    shape: tuple[int, ...]
    strength: float = 0.0
    matrix: Tensor | None = None
    axes: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()

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
        return self.apply(eye.reshape(units, *self.shape)).reshape(units, units)

    def penalty(self, values: Tensor, rows: Tensor) -> Tensor:
        """<Gamma, R'R o mean(h h')> for values h (n, *s) and rows R (outputs, units)."""
        if self.independent:
            return self.strength * (
                (rows * rows).sum(0) @ (values * values).mean(0).flatten()
            )
        r = rows.unflatten(1, self.shape)
        if not self.shared:  # groups of units that may vary together
            r, h = self._grouped(r), self._grouped(values)
            gram = (r.mT @ r) * (h.mT @ h)
            return (gram.sum(0) * self._matrix(h)).sum() / len(values)
        flows = (r * h for h in values)
        return torch.stack([(flow * self.apply(flow)).sum() for flow in flows]).mean()

    def _grouped(self, x: Tensor) -> Tensor:
        """Bring x (n, *s) into groups of units along the matrix's axes: (groups, n, group)."""
        last = list(range(x.ndim - len(self.axes), x.ndim))
        moved = x.movedim([1 + axis for axis in self.axes], last)
        size = math.prod(moved.shape[last[0] :])
        return moved.reshape(len(x), -1, size).transpose(0, 1)

    def _matrix(self, like: Tensor) -> Tensor:
        assert self.matrix is not None  # noqa: S101 (for the type checker)
        return self.matrix.to(like)
