"""Masks of sliding blocks, drawn by eroding a mask of kept starting positions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from overt.nn.geometry import Sliding
from overt.nn.sampling import Key, as_tensor, keep_mask, register


def inside_mask(
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
        scale = _scale(p, sizes, blocks, double, x.device)
        return _draw(x.device, key, p, lead, sizes, blocks), scale
    if key is None:
        key = Key(0, torch.randint(2**62, (), device=x.device))
    ops, prob = torch.ops.overt, as_tensor(drop_prob)
    mask = ops.block_mask(key.draws, key.seed, prob, lead, sizes, blocks)
    return mask, ops.block_scale(key.draws, prob, sizes, blocks, double)


def erode(keep: Tensor, blocks: tuple[int, ...], *, pad: bool) -> Tensor:
    """Mark the units covered by no dropped start: a running minimum over each block's extent.

    It is taken by doubling, about log2(b) passes of a logical and along each axis. With `pad` the
    starts are those of blocks inside the map, else those of all blocks that touch it.
    """
    for axis in range(len(blocks), 0, -1):
        b = blocks[axis - 1]
        if b == 1:
            continue
        if pad:
            keep = functional.pad(keep, [0, 0] * (len(blocks) - axis) + [b - 1, b - 1], value=True)
        dim, width = keep.ndim - 1 - len(blocks) + axis, 1
        while width < b:
            step = min(width, b - width)
            length = keep.shape[dim] - step
            keep = keep.narrow(dim, 0, length) & keep.narrow(dim, step, length)
            width += step
    return keep


def _draw(
    device: torch.device,
    key: Key | None,
    drop_prob: float,
    lead: Sequence[int],
    sizes: tuple[int, ...],
    blocks: tuple[int, ...],
) -> Tensor:
    law = Sliding(drop_prob, sizes, blocks, uniform=False)
    starts = keep_mask([*lead, *law.starts], law.seed_prob(), device, key)
    return erode(starts, blocks, pad=True)


@lru_cache(maxsize=64)
def _scale(
    drop_prob: float,
    sizes: tuple[int, ...],
    blocks: tuple[int, ...],
    double: bool,
    device: torch.device,
) -> Tensor:
    scale = 1 / Sliding(drop_prob, sizes, blocks, uniform=False).keep_prob()
    dtype = torch.float64 if double else torch.float32
    return torch.from_numpy(scale).to(device=device, dtype=dtype)


# The probabilities of blocks inside the map come from a root search that a compiler cannot trace.


def _block_mask_op(
    draws: torch.Tensor,
    seed: int,
    drop_prob: torch.Tensor,
    lead: Sequence[int],
    sizes: Sequence[int],
    blocks: Sequence[int],
) -> torch.Tensor:
    key = Key(seed, draws)
    return _draw(
        draws.device, key, float(drop_prob), lead, tuple(sizes), tuple(blocks)
    ).contiguous()


def _block_mask_fake(
    draws: Tensor,
    seed: int,
    drop_prob: Tensor,
    lead: Sequence[int],
    sizes: Sequence[int],
    blocks: Sequence[int],
) -> Tensor:
    return torch.empty([*lead, *sizes], dtype=torch.bool, device=draws.device)


def _block_scale_op(
    draws: torch.Tensor,
    drop_prob: torch.Tensor,
    sizes: Sequence[int],
    blocks: Sequence[int],
    double: bool,
) -> torch.Tensor:
    return _scale(float(drop_prob), tuple(sizes), tuple(blocks), double, draws.device).clone()


def _block_scale_fake(
    draws: Tensor, drop_prob: Tensor, sizes: Sequence[int], blocks: Sequence[int], double: bool
) -> Tensor:
    dtype = torch.float64 if double else torch.float32
    return torch.empty(list(sizes), dtype=dtype, device=draws.device)


register("block_mask", _block_mask_op, _block_mask_fake)
register("block_scale", _block_scale_op, _block_scale_fake)
