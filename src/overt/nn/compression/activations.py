"""Moments of the inputs or outputs of layers, over data or an example."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.compression.layers import weights_of
from overt.nn.data.batches import Batch, name_failing_inputs
from overt.nn.data.models import disable_fast_attention, hook_modules

WIDEST = 4096
"""The most features of which the whole second moment is stored; beyond, its diagonal."""
ROWS = 8192
"""The most rows of a batch (positions of a convolution count) on which moments are measured."""
SHRINKAGE = 0.01
"""Ridge of a prediction, in units of the mean variance times units / examples."""


class Moments:
    """Mean and second moments of rows (samples, features) that come in batches."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: Any = 0.0
        self._squares: Any = 0.0  # of very wide rows, else products of all pairs

    def add(self, x: Tensor) -> None:
        """Add rows; of very many, some at equal distances."""
        if len(x) > ROWS:
            places = torch.linspace(0, len(x) - 1, ROWS, device=x.device)
            x = x[places.long()]
        wide = x.double()
        self.count += len(x)
        self._sum = self._sum + wide.sum(0)
        squares = wide.T @ wide if x.shape[1] <= WIDEST else wide.square().sum(0)
        self._squares = self._squares + squares

    def mean(self) -> Tensor:
        """E x."""
        return self._sum / self.count

    def squares(self) -> Tensor:
        """E x_i^2."""
        squares = self._squares
        return (squares.diagonal() if squares.ndim == 2 else squares) / self.count

    def covariance(self) -> Tensor | None:
        """E (x - E x)(x - E x)', None for very wide rows."""
        if self._squares.ndim == 1:
            return None
        mean = self.mean()
        return self._squares / self.count - torch.outer(mean, mean)

    def prediction(self, S: Tensor, R: Tensor, *, centered: bool) -> Tensor:
        """Return B in x_R ~ B x_S, shrunk where rows are few, 0 for very wide rows.

        With M the second moments, or covariances if `centered`, B = M_RS (M_SS + t I)^-1.
        """
        M = self.covariance() if centered else self._squares / self.count
        if M is None or M.ndim == 1 or not len(S):
            return self._sum.new_zeros(len(R), len(S))
        inner = M[S][:, S]
        scale = max(1e-6, SHRINKAGE * len(S) / self.count)
        inner.diagonal().add_(inner.diagonal().mean() * scale + 1e-300)
        return torch.linalg.solve(inner, M[S][:, R]).T


def collect(
    model: nn.Module,
    names: Iterable[str],
    batches: Iterable[Batch],
    *,
    outputs: bool,
) -> dict[str, Moments]:
    """Run batches through the model; return moments of the named layers' inputs or outputs.

    Features are the last axis of linear layers and the channels of the others.
    """
    moments = {model.get_submodule(name): Moments() for name in names}

    def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        kind = weights_of(module)
        x = output if outputs else args[0]
        x = x.movedim(-1 if kind is None else kind.axis, -1)
        moments[module].add(x.flatten(0, -2))

    with (
        torch.no_grad(),
        disable_fast_attention(),
        hook_modules(moments, after=note),
    ):
        for where, inputs, _ in batches:
            with name_failing_inputs(inputs, where):
                inputs.run(model)
    return {name: moments[model.get_submodule(name)] for name in names}
