"""The model adapter: logits for inputs of any shape, whatever a model takes and returns.

Also the checks of what users pass to attacks, certificates and training: inputs, classes, batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook

from overt._check import InputError, InputTypeError, choice, whole
from overt.robust.threats import Threat, fits, tensor

Model = Any
"""A torch module, any differentiable function from inputs to logits, or a list of them."""

BATCH_SIZE = 1024
"""Points that go through a model together by default."""

RANDOM_SAMPLES = 8
"""Samples of a random model that logits are averaged over by default.

On four random defenses of an MNIST network 8 samples found 9 to 11 points in a hundred more than
one, at a third of the steps.
"""

CHECKED_POINTS = 64
"""Points at which a model is evaluated twice to see whether it is random."""

RANDOM_DIFFERENCE = 1e-3
"""Difference of two evaluations, relative to the largest logit, that counts as randomness."""


class ModelOptions(TypedDict, total=False):
    """How a model is called.

    output
        Function from what the model returns to its logits, such as `lambda o: o.logits`.
    outputs
        "logits", or "probabilities" for a model that ends in a softmax or a sigmoid.
    mean, std
        The model is given (x - mean) / std: numbers, or one for each channel.
    samples
        Samples of a random model that logits, and with them gradients, are averaged over. By
        default 8 where two evaluations of the model differ, and 1 otherwise.
    """

    output: Callable[[Any], Tensor] | None
    outputs: str
    mean: Any
    std: Any
    samples: int | None


class ModelAdapter:
    """A model and the inputs that it is attacked at.

    `x` has the number format that attacks compute in, at least single precision; the model is
    given its own. `storage` is the format in which perturbed inputs are returned. `context` holds
    the model's further inputs, one row for each point.
    """

    def __init__(
        self, model: Model, x: Any, options: Any, *, regression: bool = False
    ) -> None:
        several = isinstance(model, (list, tuple, nn.ModuleList))
        self.models: tuple[Any, ...] = tuple(model) if several else (model,)
        if not self.models or any(
            not callable(m) or isinstance(m, type) for m in self.models
        ):
            raise InputTypeError(
                "model must be a torch module or a function from inputs to logits, or a list of "
                f"them, got {model!r}"
            )
        unknown = set(options) - set(ModelOptions.__annotations__)
        if unknown:
            raise InputTypeError(f"unexpected argument {', '.join(sorted(unknown))}")
        self.output = options.get("output")
        if self.output is not None and not callable(self.output):
            raise InputTypeError(
                "output must be a function from what the model returns to logits, such as "
                f"lambda o: o.logits, got {self.output!r}"
            )
        names = ("logits", "probabilities")
        self._outputs = choice("outputs", options.get("outputs", "logits"), names)
        samples = options.get("samples")
        self.samples = 1 if samples is None else whole("samples", samples)
        self.chooses_samples = samples is None
        self._regression = regression
        self._names = tuple(x) if isinstance(x, Mapping) else None
        parts = _input_parts(x)
        weight = _first_weight(self.models)
        given = floating("x", parts[0])
        self._format = given.dtype if weight is None else weight.dtype
        compute = torch.float32 if torch.finfo(self._format).bits < 32 else self._format
        self.x = given.detach().to(dtype=compute)
        narrower = torch.finfo(given.dtype).bits < torch.finfo(compute).bits
        self.storage = given.dtype if narrower else compute
        self.device = self.x.device if weight is None else weight.device
        self.context = tuple(tensor("x", part) for part in parts[1:])
        if any(part.ndim == 0 or len(part) != len(self.x) for part in self.context):
            raise InputError("x must hold inputs with one row for each point each")
        self.scale = _scale(options.get("mean"), options.get("std"), self.x)
        self.hard_labels = False
        self._label_count = 0
        self._columns = 0

    def logits(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return logits (points, classes) of perturbed points x, flat or not; f stands for (0, f).

        They are averaged over models and samples. `rows` say which points these are.
        """
        x = x.view(len(x), *self.x.shape[1:])
        if self.scale is not None:
            x = (x - self.scale[0]) / self.scale[1]
        x = x.to(self._format)
        context = [part[rows.to(part.device)].to(self.device) for part in self.context]
        outputs = [
            self._call(model, x, context).to(self.x.dtype)
            for model in self.models
            for _ in range(self.samples)
        ]
        result = outputs[0] if len(outputs) == 1 else torch.stack(outputs).mean(0)
        if self._outputs == "probabilities":  # their logarithms are logits
            result = result.clamp(min=torch.finfo(result.dtype).tiny).log()
        return result

    def all_logits(self, x: Tensor, batch_size: int) -> Tensor:
        """Return the logits of all points, moved to x, in batches and without a gradient."""
        rows = torch.arange(len(x), device=x.device)
        with torch.no_grad():
            parts = [
                self.logits(x[part].to(self.x).to(self.device), part)
                .detach()
                .to(x.device)
                for part in rows.split(batch_size)
            ]
        return torch.cat(parts)

    def clean_logits(self, batch_size: int, y: Any = None) -> Tensor:
        """Return the logits of the inputs, which must be finite."""
        if y is not None and not self._regression:
            self._label_count = max(int(class_numbers("y", y).max()) + 1, 2)
        try:
            result = self.all_logits(self.x, batch_size)
        except (InputError, InputTypeError):
            raise
        except Exception as error:
            raise InputError(
                f"model must take inputs shaped {tuple(self.x.shape)}, it fails: "
                f"{type(error).__name__}: {error}"
            ) from error
        bad = ~torch.isfinite(result).all(1)
        if bool(bad.any()):
            raise InputError(
                f"model must return finite logits, got NaN or infinity for {int(bad.sum())} of "
                f"{len(result)} points"
            )
        if not self._regression and self._columns > 1:
            binary = ((result == 0) | (result == 1)).all() & (result.sum(1) == 1).all()
            self.hard_labels = self.hard_labels or (
                self._outputs == "logits" and bool(binary)
            )
        return result

    def looks_like_probabilities(self, logits: Tensor, y: Tensor) -> bool:
        """Return whether outputs that were called logits look like probabilities."""
        declared = self._outputs != "logits" or self._regression or self.hard_labels
        if declared or bool((logits < 0).any()):
            return False
        if self._columns > 1:
            rounding = 32 * torch.finfo(self._format).eps
            return bool(((logits.sum(1) - 1).abs() <= rounding).all())
        single = logits[:, 1]
        # One output in [0, 1]: believe the threshold that fits the classes better.
        fits_better = int(((single > 0.5) == y).sum()) > int(((single > 0) == y).sum())
        return bool((single <= 1).all()) and fits_better

    def find_randomness(self) -> Tensor:
        """Return at which of the first inputs two evaluations differ; choose `samples` by it."""
        count = min(CHECKED_POINTS, len(self.x))
        x = self.x[:count].to(self.device)
        rows = torch.arange(count)
        with torch.no_grad():
            # A few points need more evaluations to show a difference.
            values = torch.stack([self.logits(x, rows) for _ in range(2 + 8 // count)])
        scale = max(float(values.abs().amax()), torch.finfo(x.dtype).tiny)
        random = (values.amax(0) - values.amin(0)).amax(1) > RANDOM_DIFFERENCE * scale
        if self.chooses_samples and bool(random.any()):
            self.samples = RANDOM_SAMPLES
        return random

    @property
    def precision(self) -> float:
        """Relative spacing of the numbers that the model computes in."""
        return torch.finfo(self._format).eps

    @property
    def probabilities(self) -> bool:
        """Whether the model returns probabilities."""
        return self._outputs == "probabilities"

    def _call(self, model: Any, x: Tensor, context: list[Tensor]) -> Tensor:
        """Return what one model gives for a batch, as (points, columns)."""
        if self._names is None:
            output = model(x, *context)
        else:
            output = model(**dict(zip(self._names, (x, *context), strict=True)))
        if self.output is not None:
            output = self.output(output)
        if not isinstance(output, Tensor):
            pick = '["logits"]' if isinstance(output, Mapping) else "[0]"
            raise InputTypeError(
                f"model must return a tensor of logits, got {type(output).__name__}; "
                f"output=lambda o: o{pick}, say, picks it"
            )
        if (
            output.ndim < 2
        ):  # a model that squeezes also drops the axis of a single point
            output = output.reshape(1, -1) if len(x) == 1 else output[..., None]
        if output.ndim != 2 or len(output) != len(x):
            raise InputError(
                f"model must return logits (points, classes), got {tuple(output.shape)} for "
                f"{len(x)} points"
            )
        self._columns = output.shape[1]
        if self._regression:
            return output
        if not output.is_floating_point() and output.shape[1] == 1:
            return self._one_hot(output.squeeze(1))
        if self._outputs == "probabilities":
            _check_probabilities(output)
        if output.shape[1] == 1:
            single = self._outputs == "probabilities"
            other = 1 - output if single else torch.zeros_like(output)
            output = torch.cat([other, output], 1)
        return output

    def _one_hot(self, labels: Tensor) -> Tensor:
        """Return class numbers as rows of 0 and 1; the last column is any class beyond y's."""
        if self._label_count == 0:
            raise InputError("a model that returns class numbers needs the classes y")
        self.hard_labels = True
        known = labels.long().clamp(0, self._label_count)
        return nn.functional.one_hot(known, self._label_count + 1).to(self.x.dtype)


@contextmanager
def evaluation_mode(*models: Model, hidden: bool = True) -> Iterator[None]:
    """Put models in training mode into evaluation mode, and restore every mode afterwards.

    Parts of a model in evaluation mode keep their modes: dropout that is on stays on. Only
    batch normalization always uses its running statistics. With `hidden`, modules inside a function
    are switched when they are called.
    """
    switched: list[nn.Module] = []
    known: set[int] = set()

    def switch(root: nn.Module, *_: Any) -> None:
        if id(root) in known:
            return
        modules = list(root.modules())
        known.update(map(id, modules))
        whole_model = root.training
        for module in modules:
            if module.training and (whole_model or isinstance(module, _BatchNorm)):
                switched.append(module)
                module.training = False

    hook = register_module_forward_pre_hook(switch) if hidden else None
    try:
        for model in models:
            if isinstance(model, nn.Module):
                switch(model)
        yield
    finally:
        if hook is not None:
            hook.remove()
        for module in switched:
            module.training = True


def mode_changes_outputs(model: Model) -> bool:
    """Return whether `evaluation_mode` switches layers whose outputs depend on the mode."""
    if not isinstance(model, nn.Module):
        return False
    layers = [module for module in model.modules() if module.training]
    if not model.training:
        return any(isinstance(layer, _BatchNorm) for layer in layers)
    return any(
        isinstance(layer, (_BatchNorm, _DropoutNd)) or "Drop" in type(layer).__name__
        for layer in layers
    )


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
        raise InputError(
            f"{name} must be (points, ...) and not empty, got shape {tuple(x.shape)}"
        )
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
        raise InputTypeError(
            f"without y, x must give batches (inputs, classes), got {x!r}"
        )
    pairs = [split_labeled(batch) for batch in x]
    if not pairs:
        raise InputError("x must give at least one batch, got none")
    inputs: Any = [part[0] for part in pairs]
    if isinstance(inputs[0], Mapping):
        inputs = {
            name: _concatenate([part[name] for part in inputs]) for name in inputs[0]
        }
    elif isinstance(inputs[0], (tuple, list)):
        inputs = tuple(_concatenate(list(parts)) for parts in zip(*inputs, strict=True))
    else:
        inputs = _concatenate(inputs)
    return inputs, _concatenate([part[1] for part in pairs]), threat


def split_labeled(batch: Any) -> tuple[Any, Any]:
    """Return inputs and classes of a batch: a pair, or a dict with the classes under a usual name.

    A dict with one more entry gives that entry; several are the model's arguments by name.
    """
    # On first use: overt.nn takes longer to load than all of overt.robust.
    from overt.nn.data.batches import LABELS, split_batch

    pair = batch[:2] if isinstance(batch, (tuple, list)) else batch
    inputs, y = split_batch(pair, where="batches of data")
    if y is None:
        raise InputError(
            "data must give batches (inputs, classes), or dicts with the classes under one of "
            + ", ".join(LABELS)
        )
    return inputs, y


def classes(y: Any, x: Any, count: int) -> Tensor:
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
            raise InputTypeError(
                f"{name} must hold class numbers, got {float(broken[0]):g}"
            )
    return given.long()


def _input_parts(x: Any) -> list[Any]:
    """Return the model's inputs, the perturbed one first."""
    if isinstance(x, Mapping):
        return list(x.values())
    if isinstance(x, tuple) and all(hasattr(part, "__array__") for part in x):
        return list(x)
    return [x]


def _first_weight(models: Iterable[Any]) -> Tensor | None:
    """Return the first floating-point parameter, which tells format and device."""
    for model in models:
        for weight in model.parameters() if isinstance(model, nn.Module) else ():
            if weight.is_floating_point():
                return weight
    return None


def _check_probabilities(output: Tensor) -> None:
    values = output.detach()
    rounding = 32 * torch.finfo(values.dtype).eps
    if bool((values < -rounding).any()) or bool((values > 1 + rounding).any()):
        raise InputError(
            'outputs="probabilities" needs values in [0, 1], the model returns values between '
            f'{float(values.min()):.4g} and {float(values.max()):.4g}: pass outputs="logits"'
        )


def _concatenate(parts: list[Any]) -> Tensor:
    return torch.cat([tensor("x", part).detach().cpu() for part in parts])


def _scale(mean: Any, std: Any, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return what is subtracted from the inputs and what they are divided by, fit for one input."""
    if mean is None and std is None:
        return None
    found = []
    for name, value, default in (("mean", mean, 0.0), ("std", std, 1.0)):
        part = tensor(name, default if value is None else value).to(x)
        if (
            part.ndim == 1 and x.ndim > 2 and len(part) == x.shape[1]
        ):  # one for each channel
            part = part.view(-1, *[1] * (x.ndim - 2))
        if not fits(part, x[0]) or (name == "std" and not bool((part > 0).all())):
            raise InputError(
                f"{name} must be a number or fit one input, {tuple(x.shape[1:])}, std positive, "
                f"got shape {tuple(part.shape)}"
            )
        found.append(part)
    return found[0], found[1]
