"""A forward pass, seen operation by operation as it runs.

Nothing is assumed of the model's code: functions, methods, operators and control flow are seen when
they run, whatever the inputs (a tensor, a tuple or a dictionary of them) and outputs are.

    recording = record(model, inputs, output=lambda o: o.logits)

gives a `Recording`: its `operations` in order, the `inputs` and `outputs` as `Value`s. A `Value` is
a tensor as it was at one moment (one changed in place has several): it knows its `shape`, the
`maker` (an `Operation`, or None for inputs, parameters and constants), whether it `depends` on the
inputs, and its `tensor` (always for parameters and inputs; for others with `keep=True`, so that
`keep=False` is light). An `Operation` has

    name        the table's name (see `operations`); `kind` is its row
    function    what was called; for a whole module, the module
    args, kwargs    as they were given, a `Value` in the place of each tensor; `argument(place,
                name, default)` finds one however it was given
    inputs, outputs, output     the `Value`s among the arguments and results, and the first result
    module      the path of the module in whose forward pass it ran ("" for the model itself)
    leaf        the module, if a call of a whole module was recorded as one operation (`leaves`)
    random      whether it drew from torch's generator
    noise       the name of the noise that it belongs to, in evaluation mode too: the path of a
                noise module, or path:name (#2 the second time) for a function such as dropout
    training    what it was told about its mode, None if nothing
    inplace     whether it changed its first argument
    frames      the forward passes of modules that it ran in, the model's own first

With `extents=True` sizes that the model reads from shapes are of the type `Extent`, a whole number
that remembers that it was read, so that a size written into the code can be told from one that was
asked for. `watching.watch` is the mechanism: it hands each `Call` to a function that decides what
comes out of it, which is how moments are carried through a model in place of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from overt._check import InputError, InputTypeError
from overt.nn.data.rng import torch_rng_bytes
from overt.nn.recording import operations
from overt.nn.recording.operations import Kind
from overt.nn.recording.watching import (
    Call,
    Frame,
    Leaves,
    NoiseNames,
    argument,
    mapped,
    tensors,
    watch,
)


@dataclass(eq=False)
class Value:
    """A tensor as it was at one moment of a pass; see the module's docstring."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    tensor: Tensor | None
    maker: Operation | None = None
    depends: bool = False


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a recorded pass; see the module's docstring."""

    at: int
    name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    module: str
    leaf: nn.Module | None = None
    random: bool = False
    noise: str | None = None
    training: bool | None = None
    inplace: bool = False
    frames: tuple[Frame, ...] = ()

    @property
    def kind(self) -> Kind:
        """The table's row."""
        return operations.kind(self.name)

    @property
    def output(self) -> Value:
        """The first result."""
        return self.outputs[0]

    @property
    def given(self) -> tuple[Value, ...]:
        """The inputs that depend on the model's inputs."""
        return tuple(value for value in self.inputs if value.depends)

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument, given by place or by name."""
        return argument(self.args, self.kwargs, place, name, default)


@dataclass(frozen=True, eq=False)
class Recording:
    """The operations of one forward pass, in the order in which they ran."""

    operations: tuple[Operation, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def output(self) -> Value:
        """The output, if there is one."""
        if len(self.outputs) != 1:
            raise InputError(
                f"the model returns {len(self.outputs)} tensors; say which counts, such as "
                "output=lambda o: o[0]"
            )
        return self.outputs[0]

    @property
    def noises(self) -> list[str]:
        """Names of the noises in the order in which they were met, each once."""
        return list(dict.fromkeys(op.noise for op in self.operations if op.noise is not None))

    def readers(self, value: Value) -> list[Operation]:
        """Return the operations that take a value."""
        return [op for op in self.operations if any(v is value for v in op.inputs)]

    def back(self, value: Value) -> Iterator[Operation]:
        """Yield the operations that lead to a value, nearest first, while there is one path."""
        while value.maker is not None:
            yield value.maker
            given = value.maker.given
            if len(given) != 1:
                return
            (value,) = given


def record(
    model: nn.Module,
    inputs: Any,
    *,
    output: Callable[[Any], Any] | None = None,
    leaves: Leaves | None = None,
    keep: bool = True,
    extents: bool = False,
) -> Recording:
    """Run the model as it is, without gradients, and write down what it does.

    `leaves(path, module)` says which modules' calls are written down as one operation.
    """
    writer = _Writer(inputs, keep)
    with torch.no_grad():
        result = watch(model, inputs, writer.write, output=output, leaves=leaves, extents=extents)
    outputs = tuple(writer.value(tensor) for tensor in tensors(result))
    return Recording(tuple(writer.operations), writer.inputs, outputs)


class _Writer:
    """Writes down calls as operations on values."""

    def __init__(self, inputs: Any, keep: bool) -> None:
        given = list(tensors(inputs))
        if not given:
            raise InputTypeError(
                f"inputs must be a tensor, a tuple or a dictionary of them, got {inputs!r}"
            )
        self._keep = keep
        self._values: Any = WeakTensorKeyDictionary()
        self._names = NoiseNames()
        self.operations: list[Operation] = []
        self.inputs = tuple(self._note(tensor, True, held=tensor) for tensor in given)

    def write(self, call: Call) -> Any:
        """Run the call and write it down."""
        inside = torch._C._functorch.peek_interpreter_stack() is not None
        if inside and (call.leaf is not None or call.kind.values in ("linear", "random")):
            raise InputError(
                f"the model must not use torch.func's transforms here, got {call.name} inside one "
                "such as vmap: what becomes of rows there is not seen; write it on whole batches"
            )
        args, kwargs = mapped(call.args, self.value), mapped(call.kwargs, self.value)
        inputs = tuple(_values((args, kwargs)))
        before = torch_rng_bytes() if call.leaf is None else b""
        result = call.run()
        random = call.drew if call.leaf is not None else torch_rng_bytes() != before
        if (
            isinstance(result, Tensor)
            and not call.inplace
            and any(result is given for given in tensors(call.args))
        ):  # as dropout does where it is off: what goes in and what comes out are told apart
            result = result.view_as(result)
        made = [call.args[0]] if call.name == "setitem" else list(tensors(result))
        depends = any(value.depends for value in inputs)
        outputs = tuple(self._note(tensor, depends) for tensor in made)
        operation = Operation(
            len(self.operations), call.name, call.function, args, kwargs, inputs, outputs,
            call.module, call.leaf, random, self._names.of(call, random), call.training,
            call.inplace, call.frames,
        )  # fmt: skip
        for value in outputs:
            value.maker = operation
        self.operations.append(operation)
        return result

    def value(self, tensor: Tensor) -> Value:
        """Return what a tensor is now."""
        known = self._values.get(tensor)
        return self._note(tensor, False, held=tensor) if known is None else known

    def _note(self, tensor: Tensor, depends: bool, held: Tensor | None = None) -> Value:
        held = tensor if self._keep else held
        value = Value(tuple(tensor.shape), tensor.dtype, held, None, depends)
        self._values[tensor] = value
        return value


def _values(tree: Any) -> Iterator[Value]:
    match tree:
        case Value():
            yield tree
        case dict():
            for part in tree.values():
                yield from _values(part)
        case tuple() | list():
            for part in tree:
                yield from _values(part)
        case slice():
            yield from _values((tree.start, tree.stop, tree.step))
