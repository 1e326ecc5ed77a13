"""Moments of the inputs or outputs of layers, over data or an example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.compression.layers import LINEAR, is_a
from overt.nn.data.batches import Batch, name_failing_inputs
from overt.nn.data.models import disable_fast_attention

WIDEST = 4096
"""The most features of which the whole second moment is stored; beyond, its diagonal."""
ROWS = 8192
"""The most rows of a batch (positions of a convolution count) on which moments are measured."""
SHRINKAGE = 0.01
"""Ridge of a prediction, in units of the mean variance times units / examples."""


class Moments:
    """Mean and second moments of rows (samples, features) that come in batches.

    The rows themselves are stored while there are fewer than features: that is less to compute.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum: Any = 0.0
        self._squares: Any = 0.0
        self._outer: Any = None
        self._rows: list[Tensor] = []

    def add(self, x: Tensor) -> None:
        """Add rows; of very many, some at equal distances."""
        if len(x) > ROWS:
            x = x[torch.linspace(0, len(x) - 1, ROWS, device=x.device).long()]
        wide, width = x.double(), x.shape[1]
        self.count += len(x)
        self._sum = self._sum + wide.sum(0)
        if width > WIDEST:
            self._squares = self._squares + (wide * wide).sum(0)
        elif self.count < width:
            self._rows.append(wide)
        else:
            wide, self._rows = torch.cat([*self._rows, wide]), []
            # Sums of products of the given format are dear in a wider one, and round little.
            few = len(wide) * width**2 < 2**26
            outer = wide.T @ wide if few else (wide.to(x).T @ wide.to(x)).double()
            self._outer = outer if self._outer is None else self._outer + outer

    def mean(self) -> Tensor:
        """E x."""
        return self._sum / self.count

    def squares(self) -> Tensor:
        """E x_i^2."""
        if self._rows:
            return torch.cat(self._rows).square().sum(0) / self.count
        squares = self._squares if self._outer is None else self._outer.diagonal()
        return squares / self.count

    def covariance(self) -> Tensor | None:
        """E (x - E x)(x - E x)', None for very wide rows."""
        if self._rows:
            rows = torch.cat(self._rows) - self.mean()
            return rows.T @ rows / self.count
        if self._outer is None:
            return None
        return self._outer / self.count - torch.outer(self.mean(), self.mean())

    def prediction(self, S: Tensor, R: Tensor, *, centered: bool) -> tuple[Tensor, ...]:
        """Return the factors of B in x_R ~ B x_S, shrunk where rows are few; () if there is none.

        With M the second moments, or covariances if `centered`, B = M_RS (M_SS + t I)^-1; and
        B = A_R' (A_S A_S' + n t I)^-1 A_S from fewer rows A than units.
        """
        shift, n = (
            (self.mean() if centered else torch.zeros_like(self._sum)),
            self.count,
        )
        if not len(S) or (self._outer is None and not self._rows):
            return ()
        if self._rows:
            A = torch.cat(self._rows) - shift
            left, right = A.index_select(1, R).T / n, A.index_select(1, S)
            inner, trace = right @ right.T / n, float(right.square().sum()) / n
        else:
            rows = self._outer.index_select(0, S)
            inner = rows.index_select(1, S) / n - torch.outer(shift[S], shift[S])
            right = rows.index_select(1, R) / n - torch.outer(shift[S], shift[R])
            trace = float(inner.trace())
        ridge = trace / len(S) * max(1e-6, SHRINKAGE * len(S) / n)
        if ridge <= 0:
            return ()
        inner.diagonal().add_(ridge)
        solved = torch.linalg.solve(inner, right)
        return (left, solved) if self._rows else (solved.T,)


def collect(
    model: nn.Module,
    names: Mapping[str, int] | Iterable[str],
    batches: Iterable[Batch],
    *,
    outputs: bool,
) -> dict[str, Moments]:
    """Run batches through the model; return moments of the named layers' inputs or outputs.

    Features are the last axis of linear layers and the channels of the others; with a number n
    for a layer, n of them in turn are one feature at n places.
    """
    moments = {name: Moments() for name in names}
    places = names if isinstance(names, Mapping) else {}

    def hook(name: str) -> Any:
        def note(
            module: nn.Module, args: tuple[Tensor, ...], output: Any = None
        ) -> None:
            axis = -1 if is_a(module, LINEAR) else 1
            x = output if outputs else args[0]
            x, n = x.movedim(axis, -1).flatten(0, -2), places.get(name, 1)
            moments[name].add(
                x if n == 1 else x.unflatten(-1, (-1, n)).mT.flatten(0, -2)
            )

        return note

    with ExitStack() as stack:
        for name in moments:
            part = model.get_submodule(name)
            register = (
                part.register_forward_hook
                if outputs
                else part.register_forward_pre_hook
            )
            stack.callback(register(hook(name)).remove)
        for context in (torch.no_grad(), disable_fast_attention()):
            stack.enter_context(context)
        for where, inputs, _ in batches:
            with name_failing_inputs(inputs, where):
                inputs.run(model)
    return moments
