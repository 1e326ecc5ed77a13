"""What attacks need of a model: logits for inputs of any shape, with its state left as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from overt._check import InputError, InputTypeError, whole
from overt.robust.threats.base import Threat, fits, tensor

Model = Any
"""A torch module, any differentiable function from inputs to logits, or a list of them."""

BATCH_SIZE = 1024
"""Points that go through a model together if not told otherwise."""

PROBED, RANDOM = 64, 1e-3
"""Points at which a model is evaluated twice, and the relative difference that is randomness."""


class Door(TypedDict, total=False):
    """How a model is to be called.

    `output` is a function from what the model returns to its logits, `mean` and `std` are taken
    from the inputs before the model sees them (numbers, or one for each channel), `samples` is the
    number of draws that the logits of a random model are averaged over.
    """

    output: Callable[[Any], Tensor] | None
    mean: Any
    std: Any
    samples: int


@contextmanager
def evaluating(*models: Model) -> Iterator[None]:
    """Put every module that runs into evaluation mode, and each back as it was afterwards.

    A module inside a function is met when it is called.
    """
    switched: list[nn.Module] = []

    def switch(module: nn.Module, *_: Any) -> None:
        if module.training:
            switched.append(module)
            module.training = False

    known = [model for model in models if isinstance(model, nn.Module)]
    with ExitStack() as hooks:
        if len(known) < len(models):
            hooks.callback(register_module_forward_pre_hook(switch).remove)
        try:
            for model in known:
                for module in model.modules():
                    switch(module)
            yield
        finally:
            for module in switched:
                module.training = True


class Subject:
    """A model and the inputs that it is attacked at.

    x is held in the number format that attacks compute in, at least single precision; the model is
    given its own. `context` is what goes along with each point: the model's further inputs.
    """

    def __init__(self, model: Model, x: Any, door: Door, *, raw: bool = False) -> None:
        self.models: tuple[Any, ...] = (
            tuple(model) if isinstance(model, (list, tuple, nn.ModuleList)) else (model,)
        )
        if not self.models or any(not callable(m) or isinstance(m, type) for m in self.models):
            raise InputTypeError(
                "model must be a torch module or a function from inputs to logits, or a list of "
                f"them, got {model!r}"
            )
        unknown = set(door) - set(Door.__annotations__)
        if unknown:
            raise InputTypeError(f"unexpected argument {', '.join(sorted(unknown))}")
        self._output, self._raw = door.get("output"), raw
        self.samples = whole("samples", door.get("samples") or 1)
        named = isinstance(x, Mapping)
        several = named or (isinstance(x, tuple) and all(hasattr(p, "__array__") for p in x))
        parts = list(x.values()) if named else list(x) if several else [x]
        self._names = tuple(x) if named else None
        weights = (p for m in self.models if isinstance(m, nn.Module) for p in m.parameters())
        weight = next((p for p in weights if p.is_floating_point()), None)
        given = floating("x", parts[0])
        self._format = given.dtype if weight is None else weight.dtype
        wide = torch.float32 if torch.finfo(self._format).bits < 32 else self._format
        self.x = given.detach().to(dtype=wide)
        self.device = self.x.device if weight is None else weight.device
        self.context = tuple(tensor("x", part) for part in parts[1:])
        if any(part.ndim == 0 or len(part) != len(self.x) for part in self.context):
            raise InputError("x must hold inputs with one row for each point each")
        self.scale = _scale(door.get("mean"), door.get("std"), self.x)
        self.probabilities = False

    def logits(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return the logits (points, classes) of moved points x, flat or not; f stands for (0, f).

        They are averaged over models and draws.
        """
        x = x.view(len(x), *self.x.shape[1:])
        if self.scale is not None:
            x = (x - self.scale[0]) / self.scale[1]
        context = [part[rows.to(part.device)].to(self.device) for part in self.context]
        parts = [
            self._one(model, x.to(self._format), context).to(self.x.dtype)
            for model in self.models
            for _ in range(self.samples)
        ]
        result = parts[0] if len(parts) == 1 else torch.stack(parts).mean(0)
        if self.probabilities:  # their logarithms are logits
            result = result.clamp(min=torch.finfo(result.dtype).tiny).log()
        return result

    def all_logits(self, x: Tensor, batch_size: int) -> Tensor:
        """Return the logits of all points, moved to x, batch by batch and without a gradient."""
        rows = torch.arange(len(x), device=x.device)
        with torch.no_grad():
            parts = [
                self.logits(x[part].to(self.device), part).detach().to(x.device)
                for part in rows.split(batch_size)
            ]
        return torch.cat(parts)

    def clean_logits(self, batch_size: int) -> Tensor:
        """Return the logits of the inputs, which must be finite; learn whether they sum to one."""
        try:
            result = self.all_logits(self.x, batch_size)
        except RuntimeError as error:
            shape = tuple(self.x.shape)
            raise InputError(f"model must take inputs shaped {shape}, it fails: {error}") from error
        bad = ~torch.isfinite(result).all(1)
        if bool(bad.any()):
            raise InputError(
                f"model must return finite logits, got NaN or infinity for {int(bad.sum())} of "
                f"{len(result)} points"
            )
        if not self._raw and bool((result >= 0).all()):
            near = 32 * torch.finfo(self._format).eps
            self.probabilities = bool(((result.sum(1) - 1).abs() <= near).all())
            if self.probabilities:
                return self.all_logits(self.x, batch_size)
        return result

    def random(self) -> Tensor:
        """Return at which of the first inputs two evaluations differ."""
        x, rows = self.x[:PROBED].to(self.device), torch.arange(min(PROBED, len(self.x)))
        with torch.no_grad():
            first, second = (self.logits(x, rows).detach() for _ in range(2))
        scale = max(float(first.abs().amax()), torch.finfo(x.dtype).tiny)
        return (first - second).abs().amax(1) > RANDOM * scale

    def _one(self, model: Any, x: Tensor, context: list[Tensor]) -> Tensor:
        if self._names is None:
            output = model(x, *context)
        else:
            output = model(**dict(zip(self._names, (x, *context), strict=True)))
        output = self._output(output) if self._output is not None else output
        if not isinstance(output, Tensor):
            raise InputTypeError(
                f"model must return a tensor of logits, got {type(output).__name__}; "
                "output=lambda o: o[0], say, picks it"
            )
        if output.ndim < 2:  # a model that squeezes also takes the axis of a single point
            output = output.reshape(1, -1) if len(x) == 1 else output[..., None]
        if output.ndim != 2 or len(output) != len(x):
            raise InputError(
                f"model must return logits (points, classes), got {tuple(output.shape)} for "
                f"{len(x)} points"
            )
        if output.shape[1] == 1 and not self._raw:
            output = torch.cat([torch.zeros_like(output), output], 1)
        return output


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
    bad = int((~torch.isfinite(x)).sum())
    if bad:
        raise InputError(f"{name} must be finite, got {bad} NaN or infinite value(s)")
    return x


def examples(x: Any, y: Any, threat: Any = None) -> tuple[Any, Any, Any]:
    """Return inputs, classes and threat, from a DataLoader or other batches if there is no y."""
    if isinstance(y, Threat) and threat is None:
        y, threat = None, y
    if y is not None or isinstance(x, (Tensor, Mapping)) or hasattr(x, "__array__"):
        return x, y, threat
    try:
        pairs = [(batch[0], batch[1]) for batch in x]
    except (TypeError, KeyError, IndexError):
        raise InputTypeError("without y, x must give batches (inputs, classes)") from None
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


def _scale(mean: Any, std: Any, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return what is taken from the inputs and what they are divided by, fit for one input."""
    if mean is None and std is None:
        return None
    found = []
    for name, value, usual in (("mean", mean, 0.0), ("std", std, 1.0)):
        part = tensor(name, usual if value is None else value).to(x)
        if part.ndim == 1 and x.ndim > 2 and len(part) == x.shape[1]:  # one for each channel
            part = part.view(-1, *[1] * (x.ndim - 2))
        if not fits(part, x[0]) or (name == "std" and not bool((part > 0).all())):
            raise InputError(
                f"{name} must be a number or fit one input, {tuple(x.shape[1:])}, std positive, "
                f"got shape {tuple(part.shape)}"
            )
        found.append(part)
    return found[0], found[1]
