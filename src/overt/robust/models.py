"""The model adapter: logits for inputs of any shape, whatever a model takes and returns.

Batches are read, models called and put into modes by `overt.nn.data`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from overt._check import InputError, InputTypeError, choice, whole
from overt.nn.data.batches import (
    Batches,
    Inputs,
    as_tensor,
    call_model,
    first_weight,
    is_finite,
)
from overt.nn.data.models import is_normalization, modes
from overt.robust.threats import Threat, broadcast

Model = Any
"""A torch module, or any differentiable function from inputs to logits."""

BATCH_SIZE = 1024
"""Points that go through a model together by default."""

FORMATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Number formats of inputs."""

RANDOM_SAMPLES = 8
"""Samples of a random model that logits are averaged over by default.

On four random defenses of an MNIST network 8 samples found 9 to 11 points in a hundred more than
one, at a third of the steps.
"""

CHECKED_POINTS = 64
"""Points at which a model is evaluated twice to see whether it is random."""

SINGLE_POINTS = 8
"""Points that are also evaluated alone, to see whether the others of a batch matter."""

RANDOM_DIFFERENCE = 1e-3
"""Difference of two evaluations, relative to the largest logit, that is no rounding."""

ROUNDING = 32
"""Machine epsilons by which probabilities may be off."""


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

    `x` lies on the model's device, in the number format that attacks compute in, at least single
    precision; the model is given its own. `storage` is the format in which perturbed inputs are
    returned.
    """

    def __init__(
        self,
        model: Model,
        x: Any,
        *,
        output: Callable[[Any], Tensor] | None = None,
        outputs: str = "logits",
        mean: Any = None,
        std: Any = None,
        samples: int | None = None,
    ) -> None:
        if not callable(model) or isinstance(model, type):
            raise InputTypeError(
                "model must be a torch module or a function from inputs to logits, got "
                f"{model!r:.80}"
            )
        if output is not None and not callable(output):
            raise InputTypeError(
                "output must be a function from what the model returns to logits, such as "
                f"lambda o: o.logits, got {output!r}"
            )
        self.model = model
        self.output = output
        self.outputs = choice("outputs", outputs, ("logits", "probabilities"))
        self.samples = 1 if samples is None else whole("samples", samples)
        self.chooses_samples = samples is None
        self.inputs = _read_inputs(x)
        given = floating("x", self.inputs.tensors[0])
        weight = first_weight(model)
        self._format = given.dtype if weight is None else weight.dtype
        self.device = given.device if weight is None else weight.device
        compute = torch.float32 if torch.finfo(self._format).bits < 32 else self._format
        self.x = given.to(self.device, compute)
        self.storage = compute
        if torch.finfo(given.dtype).bits < torch.finfo(compute).bits:
            self.storage = given.dtype
        if any(len(part) != len(given) for part in self.inputs.tensors):
            raise InputError("x must hold inputs with one row for each point each")
        self.scale = _scale(mean, std, self.x)
        self.hard_labels = False
        self._overwrites = False  # whether the model changes its inputs in place
        self._label_count = 0
        self._columns = 0

    def logits(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return logits (points, classes) of perturbed points x, flat or not; f stands for (0, f).

        They are averaged over samples. `rows` say which points these are.
        """
        x = x.view(len(x), *self.x.shape[1:])
        if self.scale is not None:
            x = (x - self.scale[0]) / self.scale[1]
        elif self._overwrites:
            x = x.clone()
        arguments = self._arguments(x.to(self._format), rows)
        samples = []
        for _ in range(self.samples):
            output = call_model(self.model, arguments, self.output)
            samples.append(self._columns_of(output, len(x)))
        result = samples[0]
        if len(samples) > 1:
            result = torch.stack(samples).mean(0)
        result = result.to(self.x.dtype)
        if self.outputs == "probabilities":  # their logarithms are logits
            result = result.clamp(min=torch.finfo(result.dtype).tiny).log()
        return result

    def all_logits(self, x: Tensor, batch_size: int) -> Tensor:
        """Return the logits of all points, moved to x, in batches and without a gradient."""
        rows = torch.arange(len(x), device=self.device)
        parts = rows.split(batch_size)
        with torch.no_grad():
            return torch.cat([self.logits(x[part].to(self.x), part) for part in parts])

    def clean_logits(self, batch_size: int, y: Any = None) -> Tensor:
        """Return the logits of the inputs, which must be finite."""
        if y is not None:
            self._label_count = max([1, *class_numbers("y", y).flatten().tolist()]) + 1
        try:
            result = self.all_logits(self.x, batch_size)
            alone = self.all_logits(self.x[:SINGLE_POINTS], 1)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"model must take inputs shaped {tuple(self.x.shape)}, all and one by one, it "
                f"fails: {type(error).__name__}: {error}"
            ) from error
        bad = ~torch.isfinite(result).all(1)
        if bool(bad.any()):
            raise InputError(
                f"model must return finite logits, got NaN or infinity for {int(bad.sum())} of "
                f"{len(result)} points"
            )
        apart = (alone - result[: len(alone)]).abs().max()
        self.mixes_points = bool(apart > RANDOM_DIFFERENCE * result.abs().max())
        if self._columns > 1 and self.outputs == "logits":
            zeros = (result == 0).sum(1)
            one_hot = (zeros == self._columns - 1) & (result.amax(1) == 1)
            self.hard_labels |= bool(one_hot.all())
        return result

    def looks_like_probabilities(self, logits: Tensor, y: Tensor) -> bool:
        """Return whether outputs that were called logits look like probabilities."""
        if self.outputs != "logits" or self.hard_labels or bool((logits < 0).any()):
            return False
        if self._columns > 1:
            rounding = ROUNDING * torch.finfo(self._format).eps
            return bool(((logits.sum(1) - 1).abs() <= rounding).all())
        single = logits[:, 1]
        # One output in [0, 1]: believe the threshold that fits the classes better.
        fits_better = int(((single > 0.5) == y).sum()) > int(((single > 0) == y).sum())
        return bool((single <= 1).all()) and fits_better

    def find_randomness(self) -> Tensor:
        """Return at which of the first inputs two evaluations differ; choose `samples` by it."""
        first = self.x[:CHECKED_POINTS]
        rows = torch.arange(len(first), device=self.device)
        # A few points need more evaluations to show a difference.
        copies = [first.clone() for _ in range(2 + 8 // len(first))]
        with torch.no_grad():
            values = torch.stack([self.logits(x, rows) for x in copies])
        self._overwrites = copies[0]._version > 0
        scale = max(float(values.abs().amax()), torch.finfo(values.dtype).tiny)
        random = (values.amax(0) - values.amin(0)).amax(1) > RANDOM_DIFFERENCE * scale
        if self.chooses_samples and bool(random.any()):
            self.samples = RANDOM_SAMPLES
        return random

    @property
    def precision(self) -> float:
        """Relative spacing of the numbers that the model computes in."""
        return torch.finfo(self._format).eps

    def _arguments(self, x: Tensor, rows: Tensor) -> Any:
        """Return the model's arguments, the first of them x."""
        given = self.inputs.given
        if len(given) == 1 and not isinstance(given, dict):
            return x
        part = self.inputs.map(lambda v: v[rows.to(v.device)].to(self.device)).given
        if isinstance(part, dict):
            # The first tensor is the one that is perturbed.
            tensors = (name for name in part if isinstance(part[name], Tensor))
            return part | {next(tensors): x}
        return (x, *part[1:])

    def _columns_of(self, output: Any, points: int) -> Tensor:
        """Return what the model gives for a batch as (points, classes)."""
        if not isinstance(output, Tensor):
            raise InputTypeError(
                f"model must return a tensor of logits, got {type(output).__name__}; "
                'output=lambda o: o["logits"] or lambda o: o[0], say, picks it; to be trained, a '
                "model must return logits itself"
            )
        if output.ndim < 2:  # a model that squeezes drops the axis of a single point
            output = output.reshape(1, -1) if points == 1 else output[..., None]
        if output.ndim != 2 or len(output) != points:
            raise InputError(
                f"model must return logits (points, classes), got {tuple(output.shape)} for "
                f"{points} points"
            )
        self._columns = output.shape[1]
        if not output.is_floating_point() and self._columns == 1:
            return self._one_hot(output.squeeze(1))
        probabilities = self.outputs == "probabilities"
        if probabilities:
            _check_probabilities(output.detach())
        if self._columns == 1:
            other = 1 - output if probabilities else torch.zeros_like(output)
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
def evaluation_mode(model: Model) -> Iterator[None]:
    """Put a model in training mode into evaluation mode, and restore every mode afterwards.

    Parts of a model in evaluation mode keep their modes: dropout that is on stays on. Only
    batch normalization always uses its running statistics. Modules inside a function are switched
    when they are called. Gradients exist inside torch.inference_mode, too.
    """
    known: set[nn.Module] = set()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))

        def switch(module: nn.Module, *_: Any) -> None:
            if module not in known:
                known.update(module.modules())
                noise = False if module.training else None
                stack.enter_context(modes(module, noise=noise))

        if isinstance(model, nn.Module):
            switch(model)
        stack.callback(register_module_forward_pre_hook(switch).remove)
        yield


def mode_changes_outputs(model: Model) -> bool:
    """Return whether `evaluation_mode` switches layers whose outputs depend on the mode."""
    if not isinstance(model, nn.Module):
        return False
    layers = [layer for layer in model.modules() if layer.training]
    if any(is_normalization(layer) for layer in layers):
        return True
    return model.training and any("Drop" in type(layer).__name__ for layer in layers)


def floating(name: str, value: Any) -> Tensor:
    """Return finite inputs (points, ...) as a tensor of floating-point numbers."""
    x = as_tensor(name, value).detach()
    if x.dtype not in FORMATS:
        raise InputTypeError(
            f"{name} must hold floating-point numbers, got {x.dtype}; convert it first, and give "
            "the radius in the same units"
        )
    if x.ndim < 2 or 0 in x.shape:
        raise InputError(
            f"{name} must be (points, ...) and not empty, got shape {tuple(x.shape)}"
        )
    if not is_finite(x):
        bad = int((~torch.isfinite(x)).sum())
        raise InputError(f"{name} must be finite, got {bad} NaN or infinite value(s)")
    return x


def examples(
    x: Any, y: Any, threat: Any = None, *, name: str = "x"
) -> tuple[Any, Any, Any]:
    """Return inputs, classes and threat, from a DataLoader or other batches if there is no y."""
    if isinstance(y, Threat) and threat is None:
        y, threat = None, y
    if y is not None:
        return x, y, threat
    batches = list(Batches(x, None, name=name))
    parts: list[Any] = [batch.inputs.given for batch in batches]
    named = isinstance(parts[0], dict)
    keys = parts[0] if named else range(len(parts[0]))
    inputs: Any = {key: torch.cat([part[key] for part in parts]) for key in keys}
    if not named:
        inputs = tuple(inputs.values())
    y = torch.cat([batch.y for batch in batches])
    return inputs, y, threat


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
    low = int(y.min())
    high = int(y.max())
    if low < 0 or high >= count:
        raise InputError(
            f"y must lie in 0..{count - 1} for a model of {count} classes, got {low}..{high}"
        )
    return y


def class_numbers(name: str, value: Any) -> Tensor:
    """Return whole numbers, which may be stored as any real type, as a tensor of int64."""
    given = as_tensor(name, value)
    whole = given.long()
    broken = given[given != whole]
    if len(broken):
        raise InputTypeError(
            f"{name} must hold class numbers, got {float(broken[0]):g}"
        )
    return whole


def _read_inputs(x: Any) -> Inputs:
    """Return the model's inputs; a list, or a tuple of numbers, is one array."""
    if isinstance(x, Inputs):
        return x
    several = isinstance(x, tuple) and all(hasattr(part, "__array__") for part in x)
    if isinstance(x, (list, tuple)) and not several:
        x = as_tensor("x", x)
    return Inputs.of(x, "x")


def _check_probabilities(output: Tensor) -> None:
    rounding = ROUNDING * torch.finfo(output.dtype).eps
    low = float(output.min())
    high = float(output.max())
    if low < -rounding or high > 1 + rounding:
        raise InputError(
            'outputs="probabilities" needs values in [0, 1], the model returns values between '
            f'{low:.4g} and {high:.4g}: pass outputs="logits"'
        )


def _scale(mean: Any, std: Any, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return what is subtracted from the inputs and what they are divided by, fit for one input."""
    if mean is None and std is None:
        return None
    found = []
    for name, value in (
        ("mean", 0.0 if mean is None else mean),
        ("std", 1.0 if std is None else std),
    ):
        part = as_tensor(name, value).to(x)
        if part.ndim == 1 and x.ndim > 2 and len(part) == x.shape[1]:  # by channel
            part = part.view(-1, *[1] * (x.ndim - 2))
        found.append(broadcast(name, part, x.shape[1:]))
    if not bool((found[1] > 0).all()):
        raise InputError("std must be positive")
    return found[0], found[1]
