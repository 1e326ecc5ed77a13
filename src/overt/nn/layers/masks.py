"""Random masks that can be drawn again: a pure function of a key, in eager mode and compiled.

A layer without a seed draws from torch's own generator, as torch.nn.Dropout does. A layer with a
seed draws from a generator of its own, whose state is (seed, number of draws so far): an integer
that lives in the module's state_dict, survives deepcopy, and gives the same masks compiled or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from overt._blocks import Sliding, running_minimum
from overt._check import InputError


class Key(NamedTuple):
    """What a mask is drawn from: the layer's seed and the count of earlier draws (0-dim int64)."""

    seed: int
    draws: Tensor


def keep_mask(
    shape: Sequence[int], drop_prob: float | Tensor, device: torch.device, key: Key | None
) -> Tensor:
    """Return a boolean mask, True with probability 1 - drop_prob independently at each entry."""
    if key is None:
        if torch.compiler.is_compiling():
            return torch.rand(shape, device=device) >= drop_prob
        return torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(1 - float(drop_prob))
    if torch.compiler.is_compiling():
        prob = as_tensor(drop_prob)
        mask: Tensor = torch.ops.overt.keep_mask(key.draws, key.seed, prob, shape)
        return mask
    return _keep_mask(key.draws, key.seed, drop_prob, shape)


def normal(shape: Sequence[int], device: torch.device, key: Key | None) -> Tensor:
    """Return independent standard normal numbers (float32)."""
    if key is None:
        return torch.randn(shape, dtype=torch.float32, device=device)
    if torch.compiler.is_compiling():
        draws: Tensor = torch.ops.overt.normal(key.draws, key.seed, shape)
        return draws
    return _normal(key.draws, key.seed, shape)


def as_tensor(drop_prob: float | Tensor) -> Tensor:
    """Return a probability as what the compiled operators take."""
    if isinstance(drop_prob, Tensor):
        return drop_prob
    return torch.full((), drop_prob, dtype=torch.float64)


def _keep_mask(draws: Tensor, seed: int, drop_prob: float | Tensor, shape: Sequence[int]) -> Tensor:
    mask = torch.empty(shape, dtype=torch.bool, device=draws.device)
    if draws.is_meta:
        return mask
    return mask.bernoulli_(1 - float(drop_prob), generator=_generator(seed, draws))


def _normal(draws: Tensor, seed: int, shape: Sequence[int]) -> Tensor:
    values = torch.empty(shape, dtype=torch.float32, device=draws.device)
    if draws.is_meta:
        return values
    return values.normal_(generator=_generator(seed, draws))


# To a compiler these are opaque functions of their arguments, so that it neither traces the
# generator nor draws a second mask when it recomputes activations in the backward pass.


def _keep_mask_op(
    draws: torch.Tensor, seed: int, drop_prob: torch.Tensor, shape: Sequence[int]
) -> torch.Tensor:
    return _keep_mask(draws, seed, drop_prob, shape)


def _keep_mask_fake(draws: Tensor, seed: int, drop_prob: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=torch.bool, device=draws.device)


def _normal_op(draws: torch.Tensor, seed: int, shape: Sequence[int]) -> torch.Tensor:
    return _normal(draws, seed, shape)


def _normal_fake(draws: Tensor, seed: int, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=draws.device)


def register(name: str, op: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Make a pure function known to compilers as torch.ops.overt.NAME."""
    torch.library.custom_op(f"overt::{name}", op, mutates_args=()).register_fake(fake)


register("keep_mask", _keep_mask_op, _keep_mask_fake)
register("normal", _normal_op, _normal_fake)


def _generator(seed: int, draws: Tensor) -> torch.Generator:
    return torch.Generator(device=draws.device).manual_seed(_mix(seed, int(draws)))


def _mix(seed: int, draws: int) -> int:
    """Return 63 well-mixed bits of (seed, draws): the output function of SplitMix64, twice."""
    z = seed
    for value in (0, draws):
        z = (z + value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        z ^= z >> 31
    return z >> 1


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


def block_mask(keep: Tensor, blocks: tuple[int, ...], *, pad: bool) -> Tensor:
    """Mark the units covered by no dropped start.

    With `pad` the starts are those of blocks inside the map, else those of all blocks that touch
    it.
    """
    for axis in range(len(blocks), 0, -1):
        b = blocks[axis - 1]
        if pad and b > 1:
            keep = functional.pad(keep, [0, 0] * (len(blocks) - axis) + [b - 1, b - 1], value=True)
        keep = running_minimum(keep, keep.ndim - 1 - len(blocks) + axis, b)
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
    return block_mask(starts, blocks, pad=True)


@lru_cache(maxsize=64)
def _scale(
    drop_prob: float,
    sizes: tuple[int, ...],
    blocks: tuple[int, ...],
    double: bool,
    device: torch.device,
) -> Tensor:
    survives = Sliding(drop_prob, sizes, blocks, uniform=False).keep_prob()
    dtype = torch.float64 if double else torch.float32
    if not survives.min() > 1e-30:
        raise InputError(f"drop_prob must let units survive, {drop_prob!r} in blocks does not")
    scale = 1 / survives
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
