"""Dropout with a private seed, a probability that may be set and shared masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.nn import functional

from overt import _check
from overt._check import InputError
from overt.nn.layers.base import RatedNoise, UnitNoise, check_shape
from overt.nn.layers.masks import MaskCovariance, Shape, keep_mask


class Dropout(RatedNoise, UnitNoise):
    """Each unit is dropped with probability `drop_prob`, survivors scaled by 1 / (1 - drop_prob).

    Gamma = lam I, lam = drop_prob / (1 - drop_prob); lam 1 1' among units that share a mask.

    Parameters
    ----------
    drop_prob
        Probability in [0, 1).
    shared_axes
        Axes of the input along which one mask is used: 1 for all time steps of (batch, time,
        features), (2, 3) for whole channels of (batch, channels, height, width), 0 for the batch.
    seed
        A seed for this layer's own generator; None samples from torch's.

    Examples
    --------
    >>> import torch
    >>> from overt.nn import Dropout
    >>> layer = Dropout(0.5, shared_axes=1, seed=0)
    >>> y = layer(torch.ones(2, 3, 4))
    >>> bool((y == y[:, :1]).all())
    True
    """

    def __init__(
        self,
        drop_prob: float = 0.5,
        *,
        shared_axes: int | Sequence[int] = (),
        seed: int | None = None,
    ) -> None:
        super().__init__(drop_prob, seed)
        self.shared_axes = axes_tuple("shared_axes", shared_axes)

    def mask_covariance(self, shape: Shape) -> MaskCovariance:
        """lam I, with lam 1 1' along the shared axes."""
        shape = check_shape(shape)
        axes = self._fitting(len(shape))
        shared = {axis % len(shape) for axis in axes} - {0}
        lam = self.drop_prob / (1 - self.drop_prob)
        return MaskCovariance(
            shape[1:], lam, shared=tuple(sorted(axis - 1 for axis in shared))
        )

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        shared = [f"shared_axes={self.shared_axes}"] if self.shared_axes else []
        return self._describe(self._rate, *shared)

    def _apply_mask(self, x: Tensor) -> Tensor:
        key = self._next_key()
        p = self._drop_prob
        if key is None and not self.shared_axes:
            return functional.dropout(x, p)
        sizes = list(x.shape)
        for axis in self._fitting(x.ndim):
            sizes[axis] = 1
        keep = keep_mask(sizes, p, x.device, key)
        return x * keep / (1 - p)

    def _fitting(self, ndim: int) -> Shape:
        for axis in self.shared_axes:
            if not -ndim <= axis < ndim:
                raise InputError(
                    f"shared_axes must name axes of the input, which has {ndim}, got {axis}"
                )
        return self.shared_axes


def axes_tuple(name: str, value: int | Sequence[int]) -> Shape:
    """Return axes as a tuple of whole numbers."""
    values = tuple(value) if isinstance(value, Iterable) else (value,)
    return tuple(_check.whole(name, v, minimum=-8) for v in values)
