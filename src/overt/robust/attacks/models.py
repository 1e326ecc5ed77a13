"""What attacks need of a model: logits for inputs of any shape, with its state left as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any, Self, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook

from overt._check import InputError, InputTypeError, choice, whole
from overt.robust.attacks.inputs import floating
from overt.robust.threats import fits, tensor

Model = Any
"""A torch module, any differentiable function from inputs to logits, or a list of them."""

BATCH_SIZE = 1024
"""Points that go through a model together if not told otherwise."""

RANDOM_SAMPLES = 8
"""Samples of a random model that its logits are averaged over by default."""

PROBED, RANDOM = 64, 1e-3
"""Points at which a model is evaluated twice, and the relative difference that is randomness."""


class Door(TypedDict, total=False):
    """How a model is to be called.

    `output` is a function from what the model returns to its logits, `mean` and `std` are taken
    from the inputs before the model sees them (numbers, or one for each channel), `samples` is the
    number of samples that the logits of a random model are averaged over, by default 8 where two
    evaluations differ and 1 otherwise. `outputs` is "logits" or "probabilities".
    """

    output: Callable[[Any], Tensor] | None
    outputs: str
    mean: Any
    std: Any
    samples: int | None


@contextmanager
def evaluating(*models: Model, hidden: bool = True) -> Iterator[None]:
    """Put models in training mode into evaluation mode, and back as they were afterwards.

    Parts of a model in evaluation mode keep their modes: dropout that was kept on stays on. Only
    batch normalization is always evaluated by its running statistics. A module inside a function,
    or hidden in another, is met when it is called, if `hidden`.
    """
    switched: list[nn.Module] = []
    known: set[int] = set()

    def switch(root: nn.Module, *_: Any) -> None:
        if id(root) in known:
            return
        found = list(root.modules())
        known.update(map(id, found))
        whole_model = root.training
        for module in found:
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


def modes_change_outputs(model: Model) -> bool:
    """Return whether `evaluating` switches layers of the model whose outputs depend on the mode."""
    if not isinstance(model, nn.Module):
        return False
    layers = [module for module in model.modules() if module.training]
    if model.training:
        return any(
            isinstance(m, (_BatchNorm, _DropoutNd)) or "Drop" in type(m).__name__ for m in layers
        )
    return any(isinstance(m, _BatchNorm) for m in layers)


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
        if self._output is not None and not callable(self._output):
            raise InputTypeError(
                "output must be a function from what the model returns to logits, such as "
                f"lambda o: o.logits, got {self._output!r}"
            )
        kinds = ("logits", "probabilities")
        self.probabilities = choice("outputs", door.get("outputs", "logits"), kinds) == kinds[1]
        samples = door.get("samples")
        self.samples = 1 if samples is None else whole("samples", samples)
        self.chooses_samples = samples is None
        named = isinstance(x, Mapping)
        several = isinstance(x, tuple) and all(hasattr(p, "__array__") for p in x)
        parts = list(x.values()) if named else list(x) if several else [x]
        self._names = tuple(x) if named else None
        weights = (p for m in self.models if isinstance(m, nn.Module) for p in m.parameters())
        weight = next((p for p in weights if p.is_floating_point()), None)
        given = floating("x", parts[0])
        self._format = given.dtype if weight is None else weight.dtype
        wide = torch.float32 if torch.finfo(self._format).bits < 32 else self._format
        self.x = given.detach().to(dtype=wide)
        narrower = torch.finfo(given.dtype).bits < torch.finfo(wide).bits
        self.storage = given.dtype if narrower else wide
        self.device = self.x.device if weight is None else weight.device
        self.context = tuple(tensor("x", part) for part in parts[1:])
        if any(part.ndim == 0 or len(part) != len(self.x) for part in self.context):
            raise InputError("x must hold inputs with one row for each point each")
        self.scale = _scale(door.get("mean"), door.get("std"), self.x)
        self._columns = 0

    @property
    def precision(self) -> float:
        """Relative spacing of the numbers that the model computes in."""
        return torch.finfo(self._format).eps

    @property
    def transforms_outputs(self) -> bool:
        """Whether something is made of the model's outputs before they count as logits."""
        return self._output is not None or self.probabilities

    def at(self, x: Tensor, context: tuple[Tensor, ...]) -> Self:
        """Return the same model at other inputs."""
        other = copy(self)
        other.x, other.context = x, context
        return other

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
        """Return the logits of the inputs, which must be finite."""
        try:
            result = self.all_logits(self.x, batch_size)
        except InputError:
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
        return result

    def hard_labels(self, logits: Tensor) -> bool:
        """Return whether outputs are one 1 among zeros: classes, and neither of the two kinds."""
        if self._raw or self.probabilities or self._columns < 2:
            return False
        return bool(((logits == 0) | (logits == 1)).all()) and bool((logits.sum(1) == 1).all())

    def looks_like_probabilities(self, logits: Tensor, y: Tensor) -> bool:
        """Return whether outputs that were called logits look like probabilities."""
        if self._raw or self.probabilities or bool((logits < 0).any()) or self.hard_labels(logits):
            return False
        if self._columns > 1:
            rounding = 32 * torch.finfo(self._format).eps
            return bool(((logits.sum(1) - 1).abs() <= rounding).all())
        f = logits[:, 1]
        # One output in [0, 1]: believe the threshold that fits the classes better.
        fits_better = int(((f > 0.5) == y).sum()) > int(((f > 0) == y).sum())
        return bool((f <= 1).all()) and fits_better

    def random(self) -> Tensor:
        """Return at which of the first inputs evaluations differ, more of them for few inputs."""
        x, rows = self.x[:PROBED].to(self.device), torch.arange(min(PROBED, len(self.x)))
        with torch.no_grad():
            drawn = torch.stack([self.logits(x, rows) for _ in range(2 + 8 // len(rows))])
        scale = max(float(drawn.abs().amax()), torch.finfo(x.dtype).tiny)
        found: Tensor = (drawn.amax(0) - drawn.amin(0)).amax(1) > RANDOM * scale
        if self.chooses_samples and bool(found.any()):
            self.samples = RANDOM_SAMPLES
        return found

    def _one(self, model: Any, x: Tensor, context: list[Tensor]) -> Tensor:
        if self._names is None:
            output = model(x, *context)
        else:
            output = model(**dict(zip(self._names, (x, *context), strict=True)))
        output = self._output(output) if self._output is not None else output
        if not isinstance(output, Tensor):
            pick = '["logits"]' if isinstance(output, Mapping) else "[0]"
            raise InputTypeError(
                f"model must return a tensor of logits, got {type(output).__name__}; "
                f"output=lambda o: o{pick}, say, picks it"
            )
        if output.ndim < 2:  # a model that squeezes also takes the axis of a single point
            output = output.reshape(1, -1) if len(x) == 1 else output[..., None]
        if output.ndim != 2 or len(output) != len(x):
            raise InputError(
                f"model must return logits (points, classes), got {tuple(output.shape)} for "
                f"{len(x)} points"
            )
        self._columns = output.shape[1]
        if self.probabilities:
            low, high = (float(limit) for limit in output.detach().aminmax())
            # Rounding may take a sum of shares a little beyond 1.
            if low < 0 or high > 1 + 32 * torch.finfo(output.dtype).eps:
                raise InputError(
                    'outputs="probabilities" needs values in [0, 1], the model returns '
                    f"values between {low:.4g} and {high:.4g}"
                )
        if self._columns == 1 and not self._raw:
            other = 1 - output if self.probabilities else torch.zeros_like(output)
            output = torch.cat([other, output], 1)
        return output


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
