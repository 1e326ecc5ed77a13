"""What attacks need of a model: logits for inputs of any shape, with its state left as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from overt._check import InputError, InputTypeError
from overt.robust.threats.base import tensor

Model = Callable[[Tensor], Tensor]
"""A torch module, or any differentiable function from inputs to logits."""

BATCH_SIZE = 1024
"""Points that go through a model together if not told otherwise."""


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Put every part of a module into evaluation mode, and each back as it was afterwards."""
    modes = [(m, m.training) for m in model.modules()] if isinstance(model, nn.Module) else []
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def logits(model: Model, x: Tensor) -> Tensor:
    """Return the logits (points, classes) of x in its number format; one f stands for (0, f)."""
    output = model(x)
    if not isinstance(output, Tensor):
        raise InputTypeError(f"model must return a tensor of logits, got {type(output).__name__}")
    if output.ndim < 2:  # a model that squeezes also takes the axis of a single point
        output = output.reshape(1, -1) if len(x) == 1 else output[..., None]
    if output.ndim != 2 or len(output) != len(x):
        raise InputError(
            f"model must return logits (points, classes), got {tuple(output.shape)} for "
            f"{len(x)} points"
        )
    if output.shape[1] == 1:
        output = torch.cat([torch.zeros_like(output), output], 1)
    return output.to(x.dtype)


def all_logits(model: Model, x: Tensor, batch_size: int) -> Tensor:
    """Return the logits of all inputs, batch by batch and without a gradient."""
    with torch.no_grad():
        return torch.cat([logits(model, part) for part in x.split(batch_size)]).detach()


def clean_logits(model: Model, x: Tensor, batch_size: int) -> Tensor:
    """Return the logits of all inputs, which must be finite."""
    try:
        result = all_logits(model, x, batch_size)
    except RuntimeError as error:
        raise InputError(
            f"model must take inputs shaped {tuple(x.shape)}, it fails: {error}"
        ) from error
    bad = ~torch.isfinite(result).all(1)
    if bool(bad.any()):
        raise InputError(
            f"model must return finite logits, got NaN or infinity for {int(bad.sum())} of "
            f"{len(x)} points"
        )
    return result


def inputs(model: Model, x: Any) -> Tensor:
    """Return x (points, ...) as a tensor of the model's number format, on its device."""
    if not callable(model) or isinstance(model, type):
        raise InputTypeError(
            f"model must be a torch module or a function from inputs to logits, got {model!r}"
        )
    listed = isinstance(x, (list, tuple))
    x = tensor("x", x)
    if listed and not x.is_complex():
        x = x.double()
    if not x.is_floating_point():
        raise InputTypeError(
            f"x must hold floating-point numbers, got {x.dtype}; convert it first, and give the "
            "radius in the same units"
        )
    if x.ndim < 2 or 0 in x.shape:
        raise InputError(f"x must be (points, ...) and not empty, got shape {tuple(x.shape)}")
    bad = int((~torch.isfinite(x)).sum())
    if bad:
        raise InputError(f"x must be finite, got {bad} NaN or infinite value(s)")
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if weight is not None and weight.is_floating_point():
        x = x.to(weight.device, weight.dtype)
    return x.detach()


def starts(model: Model, start: Any, x: Tensor) -> Tensor | None:
    """Return the inputs to start from, which must be shaped like x, or None."""
    start = None if start is None else inputs(model, start)
    if start is not None and start.shape != x.shape:
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
