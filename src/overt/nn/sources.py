"""Finding the noise in a model: overt's layers and torch's own dropout modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from overt._check import InputError, InputTypeError
from overt.nn.layers.base import NoiseLayer
from overt.nn.layers.recognized import known_noise
from overt.nn.recording.modes import slow_attention

_REFUSED = (nn.AlphaDropout, nn.FeatureAlphaDropout)


def noise_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the noisy modules by name, after checking that the model hides no other dropout."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    found = {}
    for name, module in model.named_modules():
        if known_noise(module):
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
            module.training = (
                noise if known_noise(module) else training if others is None else others
            )
        with slow_attention():
            yield
    finally:
        for module, training in before:
            module.training = training
        for module, buffers in borrowed:
            module._buffers.update(buffers)
