"""One forward pass, written down operation by operation as it happens.

Nothing is assumed of the model's code: functions, methods and control flow are seen when they run.
Two questions are answered by walking back from the output: through which affine operations, and
which noise layers among them, does the output depend on what came before (the **tail**), and is
what comes before affine in the inputs, or even the inputs themselves (the **trunk**)?
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from overt.nn.layers.recognized import known_noise
from overt.nn.recording.modes import slow_attention

RESHAPE = frozenset(
    ("flatten", "view", "reshape", "squeeze", "unsqueeze", "contiguous", "clone", "view_as", "to",
     "float", "double", "unflatten", "detach", "alias")
)  # fmt: skip
DROPOUT = frozenset(
    ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
)
LINEAR = frozenset(("linear", "conv1d", "conv2d", "conv3d"))
HOMOGENEOUS = frozenset(("relu", "relu_", "leaky_relu", "leaky_relu_"))
"""Activations with f(t x) = t f(x) for t > 0 and slopes of at most 1."""
ENTRYWISE = HOMOGENEOUS | frozenset(
    ("celu", "elu", "gelu", "hardtanh", "relu6", "selu", "sigmoid", "silu", "softplus", "tanh")
)
_POOLS = frozenset(
    ("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
     "adaptive_avg_pool3d", "mean")
)  # fmt: skip
_CONSTANTS = frozenset(
    ("add", "sub", "mul", "div", "true_divide", "neg", "rsub", "__radd__", "__rsub__", "__rmul__",
     "__mul__", "__add__", "__sub__", "__truediv__", "add_", "sub_", "mul_", "div_")
)  # fmt: skip
_MULTIPLY = frozenset(("mul", "div", "true_divide", "neg", "__rmul__", "__mul__", "__truediv__",
                       "mul_", "div_"))  # fmt: skip
_FIRST = frozenset(("div", "true_divide", "__truediv__", "div_", "matmul", "__matmul__", "mm"))
"""Functions that are linear in their first argument, and in no other."""
_SWITCHED = DROPOUT | {"batch_norm"}
"""Functions that are affine in evaluation mode only."""
_AFFINE = RESHAPE | LINEAR | _POOLS | _CONSTANTS | _SWITCHED | _FIRST


@dataclass(frozen=True, eq=False)
class Operation:
    """A function that was called: `inputs` are those of its tensors that depend on the data.

    `training` is what it was told about its mode, None if nothing.
    """

    name: str
    args: tuple[Any, ...]
    inputs: tuple[Tensor, ...]
    output: Tensor
    noise: str | None = None
    training: bool | None = None

    @property
    def affine(self) -> bool:
        """Whether it maps one tensor that depends on the data affinely, as noise layers do."""
        if self.noise is not None:
            return True
        if len(self.inputs) != 1 or self.name not in _AFFINE:
            return False
        if self.name in _SWITCHED:
            return self.training is False
        return self.name not in _FIRST or self.inputs[0] is self.args[0]

    @property
    def shifts(self) -> bool:
        """Whether it adds a constant."""
        if self.name in LINEAR:
            return len(self.args) > 2 and self.args[2] is not None
        return self.name == "batch_norm" or self.name in _CONSTANTS - _MULTIPLY


@dataclass(frozen=True, eq=False)
class Point:
    """A place in the tail: units that noise multiplies, or that a linear operation takes.

    Attributes
    ----------
    noise
        The name of the noise layer, None if there is none.
    at
        The number of the operation.
    shifted
        Whether a bias is added anywhere behind it.
    narrowest
        The fewest units that anything from here to the output passes through: no smaller than the
        rank of the map.
    """

    noise: str | None
    at: int
    shifted: bool
    narrowest: int


@dataclass(frozen=True, eq=False)
class Tail:
    """What lies between the last features and the output: affine operations, one after another.

    Attributes
    ----------
    noises
        The noise layers in it, the one nearest the output first.
    linear, weight
        The last linear operation and its weight, None if there is none.
    stopped
        The operation in front of the tail, or "the input".
    """

    noises: tuple[Point, ...]
    linear: Point | None
    weight: Tensor | None
    stopped: str


@dataclass(frozen=True, eq=False)
class Trunk:
    """What lies before the features: "fixed" (the inputs themselves), "affine", or "any".

    `shifted` and `narrowest` are as for a Point, of the way from the inputs to the features.
    """

    kind: str
    shifted: bool
    narrowest: int


class Trace:
    """The operations of one forward pass, in the order in which they ran."""

    def __init__(self, operations: list[Operation], x: Tensor, output: Tensor) -> None:
        self.operations, self.x, self.output = operations, x, output

    @property
    def noises(self) -> list[str]:
        """Names of the noise layers in the order in which they were met, each once."""
        return list(dict.fromkeys(op.noise for op in self.operations if op.noise is not None))

    @property
    def names(self) -> set[str]:
        """Names of the functions that acted on the data."""
        return {op.name for op in self.operations if op.inputs and op.noise is None}

    def back(self, tensor: Tensor, before: int) -> Iterator[tuple[int, Operation]]:
        """Yield the operations that lead to `tensor`, nearest first, while there is one path."""
        while tensor is not self.x:
            made = [i for i in range(before) if self.operations[i].output is tensor]
            if not made:
                return
            before = made[-1]
            yield before, self.operations[before]
            if len(self.operations[before].inputs) != 1:
                return
            (tensor,) = self.operations[before].inputs

    def tail(self, *, log_softmax: bool) -> Tail:
        """Walk back from the output through affine operations of one input.

        A final log_softmax is passed over if `log_softmax`, as cross-entropy does not see it.
        """
        noises: list[Point] = []
        linear, weight, stopped = None, None, "the input"
        shifted, narrowest = False, self.units(self.output)
        for at, op in self.back(self.output, len(self.operations)):
            if op.name == "log_softmax" and log_softmax and linear is None and not noises:
                continue
            if not op.affine:
                stopped = op.name
                break
            shifted |= op.shifts
            narrowest = min(narrowest, self.units(op.inputs[0]))
            if op.noise is not None:
                noises.append(Point(op.noise, at, shifted, narrowest))
            elif op.name in LINEAR and linear is None:
                linear, weight = Point(None, at, shifted, narrowest), op.args[1]
        return Tail(tuple(noises), linear, weight, stopped)

    def trunk(self, point: Point) -> Trunk:
        """Say what leads from the inputs to a place in the tail."""
        at = point.at
        (features,) = self.operations[at].inputs
        kind, shifted, narrowest = "fixed", False, self.units(features)
        reached = features is self.x
        for _, before in self.back(features, at):
            if not before.affine:
                return Trunk("any", shifted, narrowest)
            if before.noise is not None or before.name not in RESHAPE | DROPOUT:
                kind = "affine"
            shifted |= before.shifts
            reached = before.inputs[0] is self.x
            narrowest = min(narrowest, self.units(before.inputs[0]))
        return Trunk(kind if reached else "any", shifted, narrowest)

    def is_last(self, point: Point) -> bool:
        """Whether what acts at a place in the tail acts nowhere after it."""
        here = self.operations[point.at]
        return not any(
            op.noise == here.noise
            and (here.noise is not None or (op.name in LINEAR and op.args[1] is here.args[1]))
            for op in self.operations[point.at + 1 :]
        )

    def units(self, tensor: Tensor) -> int:
        """Return the number of entries that a sample has, however they are arranged."""
        return tensor.numel() // len(self.x)

    def stray_dropout(self) -> list[Operation]:
        """Return the calls of functional dropout that no known noise layer made."""
        owned = {id(op.inputs[0]) for op in self.operations if op.noise is not None}
        strays = [op for op in self.operations if op.name in DROPOUT and "alpha" not in op.name]
        return [op for op in strays if id(op.output) not in owned]

    def chain(self) -> list[Operation] | None:
        """Return all operations from input to output if each feeds only the next, else None."""
        found, reached = [], self.output is self.x
        for _, op in self.back(self.output, len(self.operations)):
            if len(op.inputs) != 1:
                return None
            found.append(op)
            reached = op.inputs[0] is self.x
        return found[::-1] if reached else None


def record(model: nn.Module, x: Tensor) -> Trace:
    """Run the model on x, as it is, and return the trace."""
    recorder = _Recorder(x)
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if known_noise(module):
                handle = module.register_forward_hook(recorder.noise_hook(name))
                stack.callback(handle.remove)
        stack.enter_context(slow_attention())
        stack.enter_context(torch.no_grad())
        with recorder:
            output = model(x)
    return Trace(recorder.operations, x, output)


class _Recorder(TorchFunctionMode):  # type: ignore[misc]
    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._dependent = {id(x)}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        output = func(*args, **given)
        name = getattr(func, "__name__", str(func))
        changed = args[0] if name == "__setitem__" else output
        self._write(name, (*args, *given.values()), changed, given.get("training"))
        return output

    def noise_hook(self, name: str) -> Any:
        """Return a hook that marks what a noise layer gives out, in evaluation mode its input."""

        def mark(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
                marked = output.detach()
            self._dependent.add(id(marked))
            self.operations.append(Operation("noise", args, (output,), marked, name))
            return marked

        return mark

    def _write(self, name: str, args: tuple[Any, ...], output: Any, training: Any) -> None:
        inputs = tuple(t for t in _tensors(args) if id(t) in self._dependent)
        for made in _tensors((output,)):
            if inputs:
                self._dependent.add(id(made))
            # Every tensor is kept, so that no two have the same id.
            self.operations.append(Operation(name, args, inputs, made, training=training))


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)
