"""The linearized network at the very draws of a sampled pass: a control for what is sampled.

With g the gradient of an output at a draw's source and z - E z the draw's deviation, the control

    C = sum over draws of g' (z - E z)

has mean 0 and a variance that is known, and follows the sampled output y as far as the network is
linear. So E y is the mean of y - b C, which varies less, and Var y that of b^2 (Var C - C^2) + y^2.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from overt.nn.layers.base import NoiseLayer
from overt.nn.moments.adjoint import BUDGET, SHARED, Arrival, Origin, Sources
from overt.nn.moments.carry import Carried, Output, carry, picked
from overt.nn.moments.noises import masks
from overt.nn.moments.rules import apply
from overt.nn.moments.tape import Tape
from overt.nn.recording import operations
from overt.nn.recording.modes import unwrapped
from overt.nn.recording.watching import Call, called


@dataclass(frozen=True, eq=False)
class Weights:
    """What draws are multiplied by: (outputs, rows, entries), and where the rows lie in a draw."""

    by: Origin
    shape: torch.Size
    axis: int | None
    values: Tensor

    @property
    def rows(self) -> int:
        """How many."""
        return self.values.shape[1]

    def along(self, draw: Tensor, copies: int) -> int:
        """Return the axis that rows lie along; with one row it is the one that copies lengthen."""
        if self.axis is not None:
            return self.axis
        longer = (i for i, n in enumerate(self.shape) if draw.shape[i] == copies * n > n)
        return next(longer, SHARED if copies > 1 else 0)

    def deviation(self, draw: Tensor, copies: int) -> Tensor:
        """Return z - E z for copies of each row: (rows, copies, entries)."""
        away = self.by.value(draw).to(self.values.dtype) - self.by.mean
        axis = self.along(draw, copies)
        if axis == SHARED:
            return away.expand(self.shape).reshape(1, 1, -1).expand(self.rows, copies, -1)
        sizes = [n * copies if i == axis else n for i, n in enumerate(self.shape)]
        return away.expand(sizes).movedim(axis, 0).reshape(self.rows, copies, -1)


class _All(tuple[str]):
    """Every name."""

    def __contains__(self, name: object) -> bool:
        return True


class _Drawing(TorchFunctionMode):  # type: ignore[misc]
    """Keeps what a pass draws, in the order of `carry`, and touches nothing else."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name, inplace = operations.canonical(func)
        values = operations.kind(name).values
        if values not in ("random", "attention"):
            return func(*args, **kwargs)
        inplace = inplace or bool(kwargs.get("inplace"))
        call = Call(name, func, args, kwargs, "", None, inplace, again=self._again)
        if name == "dropout" and (z := masks(call)) is not None:
            self._tape.numbered(z)
            return args[0].mul_(z) if inplace else args[0] * z
        result = apply(self._tape, call)
        return self._tape.forget(result)

    def _again(self, function: Callable[[], Any]) -> Any:
        with self:
            return function()


class Control:
    """The weights of all draws, collected while variances come back, and the variance of C."""

    def __init__(self, one: Carried) -> None:
        self._names, self._found = one.noises, dict[int, list[Weights]]()
        self._variances: list[Tensor] = []
        self._size, self._complete, self._shared = 0, True, False
        self._plain: bool | None = None

    def keep(self, found: list[Arrival]) -> None:
        """Note what comes back for some of the outputs."""
        total = torch.zeros_like(found[0][2][..., 0])
        for source, axis, g, h in found:
            by = source.by
            if by is None:
                self._complete &= source.rest
                continue
            g, h = g.detach(), h.detach()
            if by.scale is not None:
                scale = by.scale.detach()
                if axis is not None and axis != SHARED:
                    scale = scale.movedim(axis, 0).reshape(g.shape[1], -1)
                g = g * scale.reshape(-1, g.shape[2])
                h = by.variance * g
            total = total + (g * h).sum(2)
            self._size += g.numel()
            if self._size <= BUDGET:
                weights = Weights(by._replace(scale=None), source.step.shape, axis, g)
                self._found.setdefault(id(by), []).append(weights)
        self._variances.append(total)

    @property
    def tensors(self) -> list[Tensor]:
        """All that was kept."""
        weights = (part.values for parts in self._found.values() for part in parts)
        return [*weights, *self._variances]

    def filled(self, values: list[Tensor]) -> Control:
        """Return the control for other inputs, of which `tensors` are these."""
        other, left = copy(self), iter(values)
        other._found = {
            key: [replace(part, values=next(left)) for part in parts]
            for key, parts in self._found.items()
        }
        other._variances = [next(left) for _ in self._variances]
        return other

    @property
    def useful(self) -> bool:
        """Whether anything was kept, and all of it."""
        return 0 < self._size <= BUDGET

    @property
    def shared(self) -> bool:
        """Whether rows share a draw, as far as is known."""
        return self._shared or any(w.axis == SHARED for w, *_ in self._found.values())

    @property
    def apart(self) -> bool:
        """Whether no rows share any draw."""
        return self._complete and not self.shared

    @property
    def variance(self) -> Tensor:
        """The variance of C, (rows, outputs)."""
        return torch.cat(self._variances).T.double()

    def sample(self, model: nn.Module, inputs: Any, output: Output, copies: int) -> Any:
        """Return sampled outputs and the control at their draws, both (rows x copies, ...)."""
        if self._plain is None:
            own = (NoiseLayer, torch.jit.ScriptModule)
            self._plain = not any(isinstance(module, own) for module in model.modules())
        if self._plain:
            tape = Tape(None, _All(), False, False, Sources({}))
            with _Drawing(tape):
                y = picked(called(unwrapped(model), inputs), output)
        else:
            run = carry(model, inputs, output=output, drawn=self._names)
            y, tape = run.output.mean, run.tape
        total = y.new_zeros(()).double()
        for parts in self._found.values():
            draw = tape.draws[parts[0].by.number]
            self._shared |= parts[0].along(draw, copies) == SHARED
            away = parts[0].deviation(draw, copies)  # (rows, copies, entries)
            values = torch.cat([part.values for part in parts])  # (outputs, rows, entries)
            total = total + torch.einsum("kre,rce->rck", values, away).double()
        return y, total.reshape(y.shape)
