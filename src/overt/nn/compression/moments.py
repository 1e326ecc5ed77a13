"""Means and second moments of what layers read or make, added up batch by batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.compression.batches import fitting
from overt.nn.compression.layers import LINEAR, is_a
from overt.nn.compression.tracing import Inputs, observing
from overt.nn.recording.modes import slow_attention

WIDEST = 4096
"""The most features of which the whole second moment is kept; beyond, its diagonal."""


class Moments:
    """Mean and second moments of rows (samples, features) that come in batches."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: Any = 0.0
        self._squares: Any = 0.0
        self._outer: Any = None

    def add(self, x: Tensor) -> None:
        """Add rows."""
        x = x.double()
        self.count += len(x)
        self._sum = self._sum + x.sum(0)
        self._squares = self._squares + (x * x).sum(0)
        if x.shape[1] <= WIDEST:
            outer = x.T @ x
            self._outer = outer if self._outer is None else self._outer + outer

    def mean(self) -> Tensor:
        """E x."""
        return self._sum / self.count

    def squares(self) -> Tensor:
        """E x_i^2."""
        return self._squares / self.count

    def second(self) -> Tensor | None:
        """E x x', None for very wide rows."""
        return None if self._outer is None else self._outer / self.count

    def covariance(self) -> Tensor | None:
        """E (x - E x)(x - E x)', None for very wide rows."""
        second, mean = self.second(), self.mean()
        return None if second is None else second - torch.outer(mean, mean)


def collect(
    model: nn.Module, names: Iterable[str], batches: Iterable[Inputs], *, outputs: bool
) -> dict[str, Moments]:
    """Run batches through the model; return moments of the named layers' inputs or outputs.

    Features are the last axis of linear layers and the channels of the others.
    """
    moments = {name: Moments() for name in names}

    def hook(name: str) -> Any:
        def note(module: nn.Module, args: tuple[Tensor, ...], output: Any = None) -> None:
            axis = -1 if is_a(module, LINEAR) else 1
            x = output if outputs else args[0]
            moments[name].add(x.movedim(axis, -1).flatten(0, -2))

        return note

    handles = []
    for name in moments:
        module = model.get_submodule(name)
        register = module.register_forward_hook if outputs else module.register_forward_pre_hook
        handles.append(register(hook(name)))
    with observing(handles), slow_attention():
        for inputs in batches:
            with fitting("the batches", inputs):
                model(*inputs)
    return moments
