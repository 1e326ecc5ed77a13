"""What users hand over, checked: inputs, classes, batches of both, and where to start."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from overt._check import InputError, InputTypeError
from overt.robust.threats import Threat, tensor

LABELS = ("labels", "label", "targets", "target", "y")
"""Names that classes go by where a batch is a dict."""


def floating(name: str, value: Any) -> Tensor:
    """Return finite inputs (points, ...) as a tensor of floating-point numbers."""
    listed = isinstance(value, (list, tuple))
    x = tensor(name, value)
    if listed and not x.is_complex():
        x = x.double()
    if not x.is_floating_point():
        raise InputTypeError(
            f"{name} must hold floating-point numbers, got {x.dtype}; convert it first, and give "
            "the radius in the same units"
        )
    if x.ndim < 2 or 0 in x.shape:
        raise InputError(f"{name} must be (points, ...) and not empty, got shape {tuple(x.shape)}")
    low, high = torch.aminmax(x)  # NaN if there is any
    if not (math.isfinite(low) and math.isfinite(high)):
        bad = int((~torch.isfinite(x)).sum())
        raise InputError(f"{name} must be finite, got {bad} NaN or infinite value(s)")
    return x


def examples(x: Any, y: Any, threat: Any = None) -> tuple[Any, Any, Any]:
    """Return inputs, classes and threat, from a DataLoader or other batches if there is no y."""
    if isinstance(y, Threat) and threat is None:
        y, threat = None, y
    if y is not None or isinstance(x, (Tensor, Mapping)) or hasattr(x, "__array__"):
        return x, y, threat
    if not isinstance(x, Iterable):
        raise InputTypeError(f"without y, x must give batches (inputs, classes), got {x!r}")
    pairs = [pair(batch) for batch in x]
    if not pairs:
        raise InputError("x must give at least one batch, got none")
    inputs: Any = [pair[0] for pair in pairs]
    if isinstance(inputs[0], Mapping):
        inputs = {name: _together([part[name] for part in inputs]) for name in inputs[0]}
    elif isinstance(inputs[0], (tuple, list)):
        inputs = tuple(_together(list(parts)) for parts in zip(*inputs, strict=True))
    else:
        inputs = _together(inputs)
    return inputs, _together([pair[1] for pair in pairs]), threat


def pair(batch: Any) -> tuple[Any, Any]:
    """Return inputs and classes of a batch: a pair, or a dict with the classes under a usual name.

    A dict with one more entry gives that; with several they are the model's arguments by name.
    """
    if isinstance(batch, Mapping):
        name = next((n for n in LABELS if n in batch), None)
        if name is None:
            known, seen = ", ".join(LABELS), ", ".join(map(str, batch))
            raise InputError(f"data must give classes under one of {known}, got {seen}")
        rest = {key: value for key, value in batch.items() if key != name}
        return (next(iter(rest.values())) if len(rest) == 1 else rest), batch[name]
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise InputError("data must give batches (inputs, classes)")
    return batch[0], batch[1]


def starts(start: Any, x: Tensor) -> Tensor | None:
    """Return the inputs to start from, which must be shaped like x, or None."""
    if start is None:
        return None
    start = floating("start", start).to(x)
    if start.shape != x.shape:
        raise InputError(f"start must be shaped like x, {tuple(x.shape)}, got {tuple(start.shape)}")
    return start


def classes(y: Any, x: Tensor, count: int) -> Tensor:
    """Return true classes (points,) in 0..count - 1; -1 and 1 are accepted for two classes."""
    y = class_numbers("y", y).to(x.device)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.shape != (len(x),):
        raise InputError(
            f"y must hold one class for each of the {len(x)} points, got shape {tuple(y.shape)}"
        )
    if count == 2 and bool((y < 0).any()) and bool((y.abs() == 1).all()):
        y = (y + 1) // 2
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= count:
        raise InputError(
            f"y must lie in 0..{count - 1} for a model of {count} classes, got {low}..{high}"
        )
    return y


def class_numbers(name: str, value: Any) -> Tensor:
    """Return whole numbers, which may be stored as any real type, as a tensor of int64."""
    given = tensor(name, value)
    if given.is_complex():
        raise InputTypeError(f"{name} must hold class numbers, got {given.dtype}")
    if given.is_floating_point():
        broken = given[given != given.round()]
        if len(broken):
            raise InputTypeError(f"{name} must hold class numbers, got {float(broken[0]):g}")
    return given.long()


def _together(parts: list[Any]) -> Tensor:
    return torch.cat([tensor("x", part).detach().cpu() for part in parts])
