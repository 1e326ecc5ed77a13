"""DropBlock whose realized drop probability is the nominal one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from overt import _check
from overt._check import InputError
from overt.nn.layers.base import RatedNoise, UnitNoise, check_shape
from overt.nn.layers.dropout import axes_tuple
from overt.nn.layers.masks import Blocks, MaskCovariance, Shape, keep_mask, sliding_mask
from overt.noise.blocks import Sliding, grid_characteristic


class _DropBlock(RatedNoise, UnitNoise):
    """Blocks of neighboring units are dropped together, independently in each channel."""

    _spatial: int

    def __init__(
        self,
        drop_prob: float = 0.1,
        block_size: int | Sequence[int] = 7,
        *,
        placement: Literal["sliding", "grid"] = "sliding",
        uniform: bool = False,
        shared_axes: int | Sequence[int] = (),
        seed: int | None = None,
    ) -> None:
        super().__init__(drop_prob, seed)
        self.block_size = _block_sizes(block_size, self._spatial)
        self.placement = _check.choice("placement", placement, ("sliding", "grid"))
        self.uniform = bool(uniform)
        self.shared_axes = axes_tuple("shared_axes", shared_axes)
        if not set(self.shared_axes) <= {0, 1}:
            raise InputError(
                f"shared_axes must be 0 (the batch), 1 (the channels) or both, got {shared_axes!r}"
            )

    def mask_covariance(self, shape: Shape) -> MaskCovariance:
        """Gamma among the units of a map; channels are independent unless they share a mask."""
        shape = check_shape(shape)
        sizes = self._fitting(shape)
        blocks = self._blocks(sizes)
        p = self.drop_prob
        if self.placement == "grid":
            matrix = grid_characteristic(p / (1 - p), sizes, blocks)
        else:
            matrix = Sliding(p, sizes, blocks, self.uniform).characteristic()
        axes = tuple(range(1, 1 + self._spatial))
        shared = (0,) if 1 in self.shared_axes else ()
        return MaskCovariance(
            shape[1:], matrix=torch.from_numpy(matrix), axes=axes, shared=shared
        )

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        sizes = self.block_size
        block = sizes[0] if len(set(sizes)) == 1 else sizes
        parts = [
            f"{self._rate}",
            f"block_size={block}",
            f"placement={self.placement}",
        ]
        if self.placement == "sliding":
            parts.append(f"uniform={self.uniform}")
        if self.shared_axes:
            parts.append(f"shared_axes={self.shared_axes}")
        return self._describe(*parts)

    def _apply_mask(self, x: Tensor) -> Tensor:
        sizes = self._fitting(tuple(x.shape))
        blocks = self._blocks(sizes)
        key = self._next_key()
        p = self._drop_prob
        lead = [1 if axis in self.shared_axes else x.shape[axis] for axis in (0, 1)]
        if self.placement == "grid":
            cells = [-(-n // b) for n, b in zip(sizes, blocks, strict=True)]
            keep = keep_mask([*lead, *cells], p, x.device, key)
            for axis, (n, b) in enumerate(zip(sizes, blocks, strict=True), 2):
                keep = keep.repeat_interleave(b, axis).narrow(axis, 0, n)
            return x * keep / (1 - p)
        where = Blocks(sizes, blocks, self.uniform)
        mask = sliding_mask(x, key, p, lead, where)
        return (x * mask).to(x.dtype)

    def _blocks(self, sizes: Sequence[int]) -> Shape:
        """Return the block sizes, cut to the size of the map."""
        return tuple(min(b, n) for b, n in zip(self.block_size, sizes, strict=True))

    def _fitting(self, shape: Shape) -> Shape:
        if len(shape) != 2 + self._spatial:
            raise InputError(
                f"x must have {2 + self._spatial} axes (batch, channels and {self._spatial} of the "
                f"map), got shape {tuple(shape)}"
            )
        return tuple(shape[2:])


class DropBlock1d(_DropBlock):
    """DropBlock on (batch, channels, length): see `DropBlock2d`."""

    _spatial = 1


class DropBlock2d(_DropBlock):
    """Square blocks of a map are dropped; what survives is divided by its known keep probability.

    The realized drop probability equals `drop_prob`: averaged over the map's positions where blocks
    stay inside it (units near the border are covered by fewer blocks), at every position with
    `uniform=True` (blocks may hang over the border) or `placement="grid"`. The expected output is
    the input at every position. Implementations that rescale by the batch's random count of
    survivors have neither property.

    Parameters
    ----------
    drop_prob
        Probability in [0, 1).
    block_size
        Units along each side of a block, even or odd, or one number per axis; cut to the map's size
        where the map is smaller.
    placement
        "sliding": a block may start anywhere. "grid": blocks are the cells of a grid from the first
        corner (the last cells are cut off where the size does not divide), as in the theory.
    uniform
        For sliding blocks: let them hang over the border, so that every unit fares alike.
    shared_axes
        1 to drop the same blocks in all channels, 0 in the whole batch.
    seed
        A seed for this layer's own generator; None samples from torch's.

    Examples
    --------
    >>> import torch
    >>> from overt.nn import DropBlock2d
    >>> layer = DropBlock2d(0.25, block_size=4, seed=0)
    >>> y = layer(torch.ones(500, 8, 9, 13))
    >>> round(float((y == 0).double().mean()), 2)
    0.25
    """

    _spatial = 2


class DropBlock3d(_DropBlock):
    """DropBlock on (batch, channels, depth, height, width): see `DropBlock2d`."""

    _spatial = 3


def _block_sizes(value: int | Sequence[int], axes: int) -> Shape:
    values = tuple(value) if isinstance(value, Sequence) else (value,) * axes
    if len(values) != axes:
        raise InputError(f"block_size must be one number or {axes}, got {value!r}")
    return tuple(_check.whole("block_size", b) for b in values)
