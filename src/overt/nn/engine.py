"""One door to the two ways of finding a model's moments: carrying them through, or linearizing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from torch import Tensor, nn

from overt import _check
from overt._check import InputError, InputTypeError
from overt.nn.delta import Linearized, linearize
from overt.nn.layers.recognized import is_silent, known_noise
from overt.nn.noisy import Noisy
from overt.nn.program import program_of
from overt.nn.rules import TooManySamples, Unsupported
from overt.nn.sources import noise_modules

METHODS = ("auto", "gaussian", "delta")
BUDGET = 2**24
"""The most entries of one layer's covariance matrices that are held at a time."""

Outcome: TypeAlias = "Tensor | Noisy | Linearized"
"""A model's output: certain, with moments carried through, or with linearized noise."""


def active_noises(model: nn.Module) -> list[str]:
    """Return the names of the noise modules that are on, in the order in which they are met."""
    modules = noise_modules(model)
    on = [name for name, module in modules.items() if not is_silent(module)]
    try:
        met = program_of(model).noises(model)
    except Unsupported:
        return on
    return list(dict.fromkeys(met))


def outcomes(
    model: nn.Module,
    x: Tensor,
    active: Collection[str],
    method: str,
    *,
    split: bool = True,
) -> Iterator[Outcome]:
    """Yield the outcome for the batch, in several parts where its covariances are too large."""
    _check.choice("method", method, METHODS)
    if method != "delta":
        try:
            yield from _carried(model, x, active, split=split)
            return
        except Unsupported as reason:
            if method == "gaussian":
                raise InputError(
                    f"moments cannot be carried through the model: {reason}; use method='delta'"
                ) from None
    yield linearize(model, x, active)


def _carried(
    model: nn.Module, x: Tensor, active: Collection[str], *, split: bool
) -> Iterator[Outcome]:
    program = program_of(model)
    budget = BUDGET if split else 2**62
    try:
        yield program.run(model, x, active, budget)
    except TooManySamples as error:
        size = max(1, BUDGET // error.units**2)
        for part in x.split(size):
            yield program.run(model, part, active, budget)


def checked(model: nn.Module, x: Tensor) -> nn.Module:
    """Return the model, as a container if it is a bare noise layer, after checking its input."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InputTypeError(f"x must be a floating-point tensor, got {kind}")
    if x.ndim < 2 or len(x) == 0:
        raise InputError(f"x must have a batch axis and at least one row, got {tuple(x.shape)}")
    return nn.Sequential(model) if known_noise(model) else model
