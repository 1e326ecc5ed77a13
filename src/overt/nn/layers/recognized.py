"""Noise layers that overt recognizes: its own, and torch's dropout of units and of channels."""

from __future__ import annotations

from torch import nn

from overt.nn.layers.base import NoiseLayer, RatedNoise, UnitNoise
from overt.nn.layers.masks import MaskCovariance, Shape

_CHANNEL_DROPOUT = {nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}


def known_noise(module: nn.Module) -> bool:
    """Whether the module multiplies units, or drops weights, by a law whose moments are known."""
    return isinstance(module, NoiseLayer) or type(module) in (
        nn.Dropout,
        *_CHANNEL_DROPOUT,
    )


def is_silent(module: nn.Module) -> bool:
    """Whether a noise module has a drop probability of 0."""
    if isinstance(module, UnitNoise):
        return module.silent
    return bool((module.drop_prob if isinstance(module, NoiseLayer) else module.p) == 0)


def mask_covariance_of(module: nn.Module, shape: Shape) -> MaskCovariance:
    """Return the second moments of the multipliers of a noise on units, for an input's shape."""
    if isinstance(module, UnitNoise):
        return module.mask_covariance(shape)
    shared: Shape = ()
    if type(module) in _CHANNEL_DROPOUT:
        spatial = _CHANNEL_DROPOUT[type(module)]
        # Of fewer axes the first is the channels, but Dropout2d takes it for the batch.
        batched = spatial == 2 or len(shape) > spatial + 1
        shared = tuple(range(int(batched), len(shape) - 1))
    strength = module.p / (1 - module.p)
    return MaskCovariance(shape[1:], strength, shared=shared)


def is_unit_noise(module: nn.Module) -> bool:
    """Whether a module multiplies units by noise whose moments are known."""
    return known_noise(module) and not is_weight_noise(module)


def is_weight_noise(module: nn.Module) -> bool:
    """Whether the noise is on weights, and not a multiplier of units."""
    return isinstance(module, RatedNoise) and not isinstance(module, UnitNoise)
