"""Examples that a model runs on and is judged by, batch by batch.

`data` is a pair (inputs, targets) of arrays or tensors with a row for each example, a dict of
arrays with the targets among them, a DataLoader, or any iterable of batches. A batch is a pair
(inputs, targets) or a mapping with the targets under "labels", "label", "targets", "target" or "y".
Inputs are one array or tensor, a tuple of them (the model's arguments), or a mapping (its arguments
by name). Inputs are moved to the model's device, and floating-point numbers take its format.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError, InputTypeError, plain_array

LABELS = ("labels", "label", "targets", "target", "y")
"""Names that targets have in a batch that is a mapping, as in the loaders of Hugging Face."""

ROWS = 256
"""Rows in a batch where data is one pair of arrays."""

Output = Callable[[Any], Any] | None
"""Which output of a model counts, such as `lambda o: o.logits`; None: the result itself."""


def call_model(model: Any, inputs: Any, output: Output = None) -> Any:
    """Call the model on a tensor, a tuple or a mapping of inputs; return the output that counts.

    Other objects among the inputs are copied first, because a pass may change them: a cache of keys
    and values grows with every call.
    """
    if isinstance(inputs, Mapping):
        result = model(**{name: _fresh(value) for name, value in inputs.items()})
    elif isinstance(inputs, (tuple, list)):
        result = model(*map(_fresh, inputs))
    else:
        result = model(inputs)
    return result if output is None else output(result)


def _fresh(value: Any) -> Any:
    unchangeable = (Tensor, int, float, str, bytes, bool, type(None))
    return value if isinstance(value, unchangeable) else copy.deepcopy(value)


def split_batch(
    batch: Any, model: Any = None, *, where: str = "data"
) -> tuple[Any, Any]:
    """Return the inputs and the targets of a batch; the targets are None if there are none.

    A mapping whose only entry besides the targets is no argument of `model` gives that entry.
    """
    if isinstance(batch, Mapping):
        name = next((label for label in LABELS if label in batch), None)
        inputs = {key: value for key, value in batch.items() if key != name}
        targets = None if name is None else batch[name]
        if len(inputs) == 1 and not _takes(model, next(iter(inputs))):
            return next(iter(inputs.values())), targets
        return inputs, targets
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    if isinstance(batch, (tuple, list)) and len(batch) == 1:
        return batch[0], None
    if is_array(batch):
        return batch, None
    raise InputTypeError(f"{where} must be (inputs, targets), got {_describe(batch)}")


def _takes(model: Any, name: str) -> bool:
    """Return whether the model has an argument of this name."""
    try:
        return name in inspect.signature(getattr(model, "forward", model)).parameters
    except (TypeError, ValueError):  # no model, or one without a signature
        return False


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arguments of a model for some rows: `given` is a tuple, or a dict by name.

    `output` selects the output that counts.
    """

    given: tuple[Any, ...] | dict[str, Any]
    output: Output = None

    @classmethod
    def of(cls, value: Any, name: str, output: Output = None) -> Inputs:
        """Return an array, a tensor, a tuple of them or a mapping as a model's arguments."""
        if not isinstance(value, Mapping):
            value = tuple(value) if isinstance(value, (tuple, list)) else (value,)
            if not all(map(is_array, value)):
                kinds = ", ".join(type(part).__name__ for part in value) or "nothing"
                raise InputTypeError(
                    f"{name} must be a tensor, a tuple of tensors or a dict of them, got {kinds}"
                )
        given = _map_arrays(value, lambda x: as_tensor(name, x))
        inputs = cls(given, output)
        if not inputs.tensors or any(
            x.ndim == 0 or len(x) == 0 for x in inputs.tensors
        ):
            raise InputError(
                f"{name} must hold at least one row, got {inputs.shapes or 'nothing'}"
            )
        return inputs

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among the arguments."""
        return tuple(_arrays_in(self.given))

    @property
    def shapes(self) -> str:
        """The tensors' shapes, for a message."""
        return ", ".join(str(tuple(x.shape)) for x in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """Return the arguments with every tensor changed."""
        return Inputs(_map_arrays(self.given, change), self.output)

    def first(self, n: int) -> Inputs:
        """Return the first n rows."""
        return self.map(lambda x: x[:n])

    def like(self, model: nn.Module) -> Inputs:
        """Return the arguments on the model's device, floating-point ones in its format."""
        weight = first_weight(model)
        if weight is None:
            return self
        return self.map(
            lambda x: x.to(weight if x.is_floating_point() else weight.device)
        )

    def run(self, model: nn.Module) -> Any:
        """Return the model's output on copies of them: a forward pass may write into its input."""
        copies = self.map(Tensor.clone)
        return call_model(model, copies.given, self.output)


class Batch(NamedTuple):
    """Some examples, and how a message names them."""

    where: str
    inputs: Inputs
    y: Tensor | None


class Batches:
    """Data as batches that fit a model, checked one by one as they come.

    `repeated` says that the data is iterated more than once. Batches without targets are refused
    unless `unlabeled`.
    """

    def __init__(
        self,
        data: Any,
        model: nn.Module,
        *,
        name: str = "data",
        repeated: bool = False,
        unlabeled: bool = False,
        output: Output = None,
    ) -> None:
        self.name = name
        self._model = model
        self._unlabeled = unlabeled
        self._output = output
        whole = split_batch(data, model) if isinstance(data, Mapping) else data
        self._data = _split_rows(whole, name) if is_pair(whole) else data
        bad = is_array(data) or isinstance(self._data, (str, Mapping))
        if bad or not isinstance(self._data, Iterable):
            raise InputTypeError(
                f"{name} must be a pair of arrays or give batches (inputs, targets), got "
                f"{type(data).__name__}; a data set needs a torch.utils.data.DataLoader"
            )
        if repeated and isinstance(data, Iterator):
            raise InputTypeError(
                f"{name} is iterated more than once and must not be an iterator; pass the "
                "DataLoader itself or list(...)"
            )

    def __iter__(self) -> Iterator[Batch]:
        number = 0
        weight = first_weight(self._model)
        for number, given in enumerate(self._data, 1):
            where = f"batch {number} of {self.name}"
            inputs, y = self._parts(given, where)
            if not all(is_finite(x) for x in inputs.tensors):
                raise InputError(f"{where}: inputs must be finite, got NaN or infinity")
            if y is not None:
                y = as_tensor(where, y).detach()
                if y.ndim == 0 or len(y) != len(inputs):
                    count = len(y) if y.ndim else "single"
                    raise InputError(
                        f"{where} has {len(inputs)} inputs but {count} targets"
                    )
                y = y if weight is None else y.to(weight.device)
            yield Batch(where, inputs.like(self._model), y)
        if not number:
            raise InputError(f"{self.name} must give at least one batch, got none")

    def seed(self, seed: int) -> None:
        """Seed a DataLoader's own generator, if it has one."""
        generator = getattr(self._data, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)

    @property
    def count(self) -> int:
        """The number of batches, 0 if it is not known."""
        try:
            return len(self._data)
        except TypeError:
            return 0

    def _parts(self, given: Any, where: str) -> tuple[Inputs, Any]:
        """Return the inputs and the targets, or None, in a batch."""
        inputs, y = split_batch(given, self._model, where=where)
        if y is None and not self._unlabeled:
            raise InputTypeError(
                f"{where} must be a pair (inputs, targets), or a dict with the targets under one "
                f"of {', '.join(LABELS)}; it is {_describe(given)}"
            )
        if y is not None and not is_array(y):
            raise InputTypeError(
                f"{where}: targets must be a tensor, got {type(y).__name__}"
            )
        return Inputs.of(inputs, where, self._output), y


@contextmanager
def name_failing_inputs(inputs: Inputs, where: str) -> Iterator[None]:
    """Raise an InputError that names the inputs if the model fails on them."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # the model's own code, on inputs that do not fit it
        reason = first_line(error)
        kinds = ", ".join(dict.fromkeys(str(x.dtype) for x in inputs.tensors))
        advice = ""
        if "type" in reason:
            advice = "; give floating-point numbers of the type of the model's weights"
        raise InputError(
            f"{where}: the model cannot be run on inputs of shape {inputs.shapes} and type "
            f"{kinds}: {reason}{advice}"
        ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its name where it has none."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:200]


def is_array(value: Any) -> bool:
    """Return whether a value is a tensor, or can be read as a NumPy array."""
    return hasattr(value, "__array__")


def is_finite(x: Tensor) -> bool:
    """Return whether no number is NaN or infinite; isfinite itself takes ten times as long."""
    return not x.is_floating_point() or bool((0 * x).sum() == 0)


def _has_rows(value: Any) -> bool:
    return is_array(value) and len(getattr(value, "shape", (0,))) > 0


def as_tensor(name: str, value: Any) -> Tensor:
    """Return a tensor, an array, a data frame or a list of numbers as a dense tensor.

    Whole numbers of an array become int64, as torch wants them.
    """
    if isinstance(value, Tensor):
        _check_dense(value, name)
        return value
    array = plain_array(name, value)
    if array.dtype.kind not in "biuf":
        raise InputTypeError(f"{name} must hold numbers, got an array of {array.dtype}")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise InputError(f"{name} must hold numbers below 2^63, got {int(array.max())}")
    dtype = np.dtype(np.int64)
    if array.dtype.kind == "f":  # torch has neither foreign byte orders nor 16 bytes
        dtype = np.dtype(f"f{min(array.dtype.itemsize, 8)}")
    with np.errstate(over="ignore"):
        return torch.tensor(array.astype(dtype))


def _check_dense(value: Any, name: str) -> None:
    """Refuse a tensor without numbers, or with numbers that are not real."""
    if not isinstance(value, Tensor):
        return
    hollow = value.layout != torch.strided or value.is_meta or value.is_nested
    if hollow or value.is_complex():
        kind = f"{value.dtype} in layout {value.layout} on {value.device}"
        raise InputTypeError(f"{name} must be dense, of real numbers, got {kind}")


def is_pair(data: Any) -> bool:
    """Return whether data is (inputs, targets) as a whole: a tuple, where a list is of batches."""
    if not isinstance(data, tuple) or len(data) != 2 or not _has_rows(data[1]):
        return False
    x = data[0]
    several = isinstance(x, (tuple, list)) and all(map(_has_rows, x))
    return _has_rows(x) or isinstance(x, Mapping) or several


def _split_rows(pair: tuple[Any, Any], name: str) -> list[tuple[Any, Any]]:
    """Return whole arrays as batches."""
    inputs, y = pair
    for part in (*_arrays_in(inputs), y):
        _check_dense(part, name)
    rows = {len(x) for x in _arrays_in(inputs)}
    if rows != {len(y)}:
        counts = ", ".join(map(str, sorted(rows)))
        raise InputError(
            f"{name} must have a target for each row, got {counts} inputs but {len(y)} targets"
        )
    starts = range(0, max(len(y), 1), ROWS)
    slices = [slice(i, i + ROWS) for i in starts]
    return [(_map_arrays(inputs, itemgetter(rows)), y[rows]) for rows in slices]


def _arrays_in(inputs: Any) -> list[Any]:
    found: list[Any] = []
    _map_arrays(inputs, found.append)
    return found


def _map_arrays(inputs: Any, change: Callable[[Any], Any]) -> Any:
    """Return an array, a tuple of them or a mapping with every array changed."""
    if isinstance(inputs, Mapping):
        return {k: change(x) if is_array(x) else x for k, x in inputs.items()}
    return change(inputs) if is_array(inputs) else tuple(map(change, inputs))


def _describe(batch: Any) -> str:
    """Return in words what came instead of a pair of tensors."""
    kind = type(batch).__name__
    if isinstance(batch, (tuple, list)):
        parts = ", ".join(type(part).__name__ for part in batch)
        return f"a {kind} of {parts or 'nothing'}"
    if isinstance(batch, Mapping):
        return f"a {kind} with {', '.join(map(repr, batch))}"
    return f"a {kind}"


def first_weight(model: Any) -> Tensor | None:
    """Return a model's first floating-point parameter or buffer: its format and device."""
    if not isinstance(model, nn.Module):
        return None
    weights = chain(model.parameters(), model.buffers())
    return next((weight for weight in weights if weight.is_floating_point()), None)
