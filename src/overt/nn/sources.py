"""Finding the noise in a model: overt's layers and torch's own dropout modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from overt._check import InputError, InputTypeError
from overt.nn.base import NoiseLayer, UnitNoise
from overt.nn.dropconnect import DropConnectConv2d, DropConnectLinear
from overt.nn.dropout import Dropout
from overt.nn.laws import Law

_CHANNEL_DROPOUT = {nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
_REFUSED = (nn.AlphaDropout, nn.FeatureAlphaDropout)


def is_noise(module: nn.Module) -> bool:
    """Whether the module is random in training mode and overt knows its moments."""
    return isinstance(module, NoiseLayer) or type(module) in (nn.Dropout, *_CHANNEL_DROPOUT)


def is_silent(module: nn.Module) -> bool:
    """Whether a noise module has a drop probability of 0."""
    if isinstance(module, UnitNoise):
        return module.silent
    return bool((module.drop_prob if isinstance(module, NoiseLayer) else module.p) == 0)


def unit_law(module: nn.Module, shape: tuple[int, ...]) -> Law:
    """Return the second moments of the multipliers of a noise on units, for an input's shape."""
    if isinstance(module, UnitNoise):
        return module.law(shape)
    if not module.p < 1:
        raise InputError(f"the probability of {module} must be below 1")
    shared: tuple[int, ...] = ()
    if type(module) in _CHANNEL_DROPOUT:
        spatial = _CHANNEL_DROPOUT[type(module)]
        if len(shape) != spatial + 2:
            raise InputError(f"{module} needs an input with {spatial + 2} axes, got shape {shape}")
        shared = tuple(range(1, 1 + spatial))
    return Law(shape[1:], module.p / (1 - module.p), shared=shared)


def plain_dropout(module: nn.Module) -> float | None:
    """Return the drop probability if the module drops units independently, else None."""
    if isinstance(module, Dropout) and not module.shared_axes:
        return module.drop_prob
    return float(module.p) if type(module) is nn.Dropout else None


def noise_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the noisy modules by name, after checking that the model hides no other dropout."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    found = {}
    for name, module in model.named_modules():
        if is_noise(module):
            found[name] = module
        elif isinstance(module, _REFUSED):
            raise InputError(
                f"{name}: {type(module).__name__} is not supported: its mean is not its input; use "
                "overt.nn.Dropout or torch.nn.Dropout"
            )
        elif isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) and module.dropout > 0:
            raise InputError(
                f"{name}: the dropout inside {type(module).__name__} cannot be seen from outside; "
                "set it to 0 and add a dropout layer after the module"
            )
    return found


def is_weight_noise(module: nn.Module) -> bool:
    """Whether the noise is on weights, and not a multiplier of units."""
    return isinstance(module, (DropConnectLinear, DropConnectConv2d))


@contextmanager
def slow_attention() -> Iterator[None]:
    """Make torch's transformer layers call their parts; their fast path skips dropout modules."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def modes(
    model: nn.Module, *, noise: bool, others: bool | None, statistics: bool = False
) -> Iterator[None]:
    """Put noise modules and all others into training (True) or evaluation mode for a while.

    None leaves the other modules as they are. Counters of draws are restored afterwards, and so
    are running statistics unless `statistics` may move on.
    """
    before = [(module, module.training) for module in model.modules()]
    borrowed = [
        (module, dict(module._buffers))
        for module, training in before
        if (isinstance(module, nn.modules.batchnorm._BatchNorm) and training and not statistics)
        or (isinstance(module, NoiseLayer) and module.seed is not None)
    ]
    try:
        for module, buffers in borrowed:  # copies, so that nothing saved for a gradient changes
            module._buffers.update({k: b if b is None else b.clone() for k, b in buffers.items()})
        for module, training in before:
            module.training = noise if is_noise(module) else training if others is None else others
        with slow_attention():
            yield
    finally:
        for module, training in before:
            module.training = training
        for module, buffers in borrowed:
            module._buffers.update(buffers)
