"""Examples at the door: what a model is run on and judged by, batch by batch.

`data` is a pair (inputs, targets) of arrays or tensors with a row for each example, a DataLoader,
or anything else that gives batches (inputs, targets). Inputs are one array or tensor, a tuple of
them (the model's arguments) or a dict (its arguments by name). What a model is given is moved to
its device, and numbers with a fraction take its format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError, InputTypeError, plain_array
from overt.nn.recording.modes import unwrapped

ROWS, SHORT = 256, 256
"""Rows to a batch where data is a pair of whole arrays."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arguments of a model for some rows: `given` is a tuple, or a dict by name.

    `output` says which of the model's outputs counts.
    """

    given: tuple[Any, ...] | dict[str, Any]
    output: Callable[[Any], Any] | None = None

    @classmethod
    def of(cls, value: Any, name: str, output: Callable[[Any], Any] | None = None) -> Inputs:
        """Return an array, a tensor, a tuple of them or a dict as a model's arguments."""
        if isinstance(value, Mapping):
            found = cls(
                {k: _tensor(v, name) if is_array(v) else v for k, v in value.items()}, output
            )
        else:
            parts = tuple(value) if isinstance(value, (tuple, list)) else (value,)
            if not all(map(is_array, parts)):
                kinds = ", ".join(type(part).__name__ for part in parts) or "nothing"
                raise InputTypeError(
                    f"{name} must be a tensor, a tuple of tensors or a dict of them, got {kinds}"
                )
            found = cls(tuple(_tensor(part, name) for part in parts), output)
        if not found.tensors or any(x.ndim == 0 or len(x) == 0 for x in found.tensors):
            raise InputError(f"{name} must hold at least one row, got {found.shapes or 'nothing'}")
        return found

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among the arguments."""
        parts = self.given.values() if isinstance(self.given, dict) else self.given
        return tuple(x for x in parts if isinstance(x, Tensor))

    @property
    def only(self) -> Tensor | None:
        """The input where it is a single tensor of numbers with a fraction, else None."""
        first = self.tensors[0]
        return first if len(self.tensors) == 1 and first.is_floating_point() else None

    @property
    def shapes(self) -> str:
        """The tensors' shapes, for a message."""
        return ", ".join(str(tuple(x.shape)) for x in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """Return the arguments with every tensor changed."""
        if not isinstance(self.given, dict):
            return Inputs(tuple(change(x) for x in self.given), self.output)
        items = self.given.items()
        changed = {k: change(x) if isinstance(x, Tensor) else x for k, x in items}
        return Inputs(changed, self.output)

    def first(self, n: int) -> Inputs:
        """Return the first n rows."""
        return self.map(lambda x: x[:n])

    def like(self, model: nn.Module) -> Inputs:
        """Return the arguments on the model's device, fractions in its format."""
        weight = next((t for t in _tensors(model) if t.is_floating_point()), None)
        if weight is None:
            return self
        return self.map(lambda x: x.to(weight if x.is_floating_point() else weight.device))

    def run(self, model: nn.Module) -> Any:
        """Return what the model makes of them."""
        found = model(**self.given) if isinstance(self.given, dict) else model(*self.given)
        return found if self.output is None else self.output(found)


class Batch(NamedTuple):
    """Some examples, and how to call them in a message."""

    where: str
    inputs: Inputs
    y: Tensor | None


class Batches:
    """Data as batches that fit a model, checked one by one as they come.

    `arity` is the number of inputs in a batch that is one flat tuple, `again` says that the data is
    run through more than once. Batches without targets are refused unless `alone`; whole arrays are
    split into batches of ROWS rows, or of more with `large` where rows are short.
    """

    def __init__(
        self, data: Any, model: nn.Module, *, name: str = "data", arity: int = 1,
        again: bool = False, alone: bool = False, output: Callable[[Any], Any] | None = None,
        large: bool = False,
    ) -> None:  # fmt: skip
        self.name, self._model, self._arity, self._alone = name, model, arity, alone
        self._output = output
        self._data = _split(data, name, large) if _is_pair(data) else data
        if not isinstance(self._data, Iterable) or is_array(data) or isinstance(data, (str, dict)):
            raise InputTypeError(
                f"{name} must be a pair of arrays or give batches (inputs, targets), got "
                f"{type(data).__name__}; a data set needs a torch.utils.data.DataLoader"
            )
        if again and isinstance(data, Iterator):
            raise InputTypeError(
                f"{name} is run through more than once and must not be an iterator; pass the "
                "DataLoader itself or list(...)"
            )

    def __iter__(self) -> Iterator[Batch]:
        number = 0
        device = next((t.device for t in _tensors(self._model)), None)
        for number, given in enumerate(self._data, 1):
            where = f"batch {number} of {self.name}"
            inputs, y = self._parts(given, where)
            if any(x.is_floating_point() and not x.isfinite().all() for x in inputs.tensors):
                raise InputError(f"{where}: inputs must be finite, got NaN or infinity")
            if y is not None:
                y = _tensor(y, where).detach()
                if y.ndim == 0 or len(y) != len(inputs):
                    count = len(y) if y.ndim else "single"
                    raise InputError(f"{where} has {len(inputs)} inputs but {count} targets")
                y = y if device is None else y.to(device)
            yield Batch(where, inputs.like(self._model), y)
        if not number:
            raise InputError(f"{self.name} must give at least one batch, got none")

    @property
    def count(self) -> int:
        """The number of batches, 0 if it is not known."""
        try:
            return len(self._data)
        except TypeError:
            return 0

    def _parts(self, given: Any, where: str) -> tuple[Inputs, Any]:
        """Return the inputs and the targets, or None, in a batch."""
        parts = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        nested = len(parts) == 2 and isinstance(parts[0], (tuple, list, Mapping))
        flat = all(map(is_array, parts)) and self._arity <= len(parts) <= self._arity + 1
        inputs, y = given, None
        if nested:
            inputs, y = parts
        elif flat and len(parts) > self._arity:
            inputs, y = parts[:-1], parts[-1]
        elif not flat and not isinstance(given, Mapping):
            raise InputTypeError(
                f"{where} must be (inputs, targets), {self._arity} tensor(s) and the target, it is "
                f"{_described(given)}"
            )
        if y is None and not self._alone:
            raise InputTypeError(
                f"{where} must be a pair of tensors (inputs, targets), it is {_described(given)}"
            )
        if y is not None and not is_array(y):
            raise InputTypeError(f"{where}: targets must be a tensor, got {type(y).__name__}")
        return Inputs.of(inputs, where, self._output), y


@contextmanager
def running(inputs: Inputs, where: str) -> Iterator[None]:
    """Say on which inputs a model cannot be run."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever the model's code raises on inputs that do not fit it
        reason = reason_of(error)
        advice = "; give inputs as floating-point numbers of the type of the model's weights"
        kinds = ", ".join(dict.fromkeys(str(x.dtype) for x in inputs.tensors))
        raise InputError(
            f"{where}: the model cannot be run on inputs of shape {inputs.shapes} and type "
            f"{kinds}: {reason}{advice if 'type' in reason else ''}"
        ) from error


def reason_of(error: Exception) -> str:
    """Return the first line of what an error says, or its name where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def checked_model(model: Any) -> nn.Module:
    """Return the model without wrappers around it; refuse what is none, or has no numbers yet."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    model = unwrapped(model)
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(weight) or weight.is_meta:
            raise InputError(
                f"model must have its weights: {name} has no values yet; run a lazy module on a "
                "batch, and load weights of a model on the meta device"
            )
    return model


def is_array(value: Any) -> bool:
    """Whether a value is a tensor, or can be taken as a NumPy array."""
    return hasattr(value, "__array__")


def _is_rows(value: Any) -> bool:
    return is_array(value) and len(getattr(value, "shape", (0,))) > 0


def _tensor(value: Any, name: str) -> Tensor:
    """Return a tensor; whole numbers of an array become int64, as torch wants them."""
    if isinstance(value, Tensor):
        _dense(value, name)
        return value
    array = plain_array(name, value)
    if array.dtype.kind not in "biuf":
        raise InputTypeError(f"{name} must hold numbers, got an array of {array.dtype}")
    return torch.tensor(np.array(array, array.dtype if array.dtype.kind == "f" else np.int64))


def _dense(value: Any, name: str) -> None:
    """Refuse a tensor that has no numbers, or none that are real."""
    if isinstance(value, Tensor) and (
        value.layout != torch.strided or value.is_meta or value.is_nested or value.is_complex()
    ):
        kind = f"{value.dtype} in layout {value.layout} on {value.device}"
        raise InputTypeError(f"{name} must be dense, of real numbers, got {kind}")


def _is_pair(data: Any) -> bool:
    """Whether data is (inputs, targets) as a whole: a tuple, where a list is of batches."""
    if not isinstance(data, tuple) or len(data) != 2 or not _is_rows(data[1]):
        return False
    x = data[0]
    several = isinstance(x, (tuple, list)) and all(map(_is_rows, x))
    return _is_rows(x) or isinstance(x, Mapping) or several


def _split(pair: tuple[Any, Any], name: str, large: bool) -> list[tuple[Any, Any]]:
    """Return whole arrays as batches."""
    inputs, y = pair
    short = large and all(x.ndim == 2 and x.shape[1] <= SHORT for x in _arrays(inputs))
    n = 4 * ROWS if short else ROWS
    for part in (*_arrays(inputs), y):
        _dense(part, name)
    rows = {len(x) for x in _arrays(inputs)}
    if rows != {len(y)}:
        raise InputError(
            f"{name} must have a target for each row, got {', '.join(map(str, sorted(rows)))} "
            f"inputs but {len(y)} targets"
        )
    return [(_cut(inputs, slice(i, i + n)), y[i : i + n]) for i in range(0, max(len(y), 1), n)]


def _arrays(inputs: Any) -> list[Any]:
    parts = inputs.values() if isinstance(inputs, Mapping) else inputs
    return [inputs] if is_array(inputs) else [part for part in parts if is_array(part)]


def _cut(inputs: Any, rows: slice) -> Any:
    if isinstance(inputs, Mapping):
        return {key: x[rows] if is_array(x) else x for key, x in inputs.items()}
    return inputs[rows] if is_array(inputs) else tuple(x[rows] for x in inputs)


def _described(batch: Any) -> str:
    """Return in words what came instead of a pair of tensors."""
    kind = type(batch).__name__
    if isinstance(batch, (tuple, list)):
        return f"a {kind} of {', '.join(type(part).__name__ for part in batch) or 'nothing'}"
    if isinstance(batch, Mapping):
        keys = ", ".join(map(repr, batch))
        return f"a {kind} with {keys}; give (({{...}}, b[targets]) for b in data)"
    return f"a {kind}"


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
