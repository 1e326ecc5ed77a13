"""Examples and batches at the door: what a model is run on, and what it is judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from overt._check import InputError, InputTypeError, choice
from overt.nn.compression.tracing import Inputs
from overt.nn.penalties import LOSSES, plain_loss

Loss = str | Callable[[Tensor, Tensor], Tensor]


def example_inputs(model: nn.Module, example: Any) -> Inputs:
    """Return the example as the model's arguments, after running it once."""
    inputs = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    if not inputs or not all(isinstance(x, Tensor) for x in inputs):
        kinds = ", ".join(type(x).__name__ for x in inputs) or "nothing"
        raise InputTypeError(f"example must be a tensor or a tuple of tensors, got {kinds}")
    if any(x.ndim == 0 or len(x) == 0 for x in inputs):
        raise InputError(f"example must be a batch of at least one, got {_shapes(inputs)}")
    with torch.no_grad(), fitting("the example", inputs):
        model(*inputs)
    return inputs


@contextmanager
def fitting(what: str, inputs: Inputs) -> Iterator[None]:
    """Say on which inputs a model does not run."""
    try:
        yield
    except Exception as error:  # whatever the model's code raises on inputs it does not fit
        raise InputError(
            f"model must run on {what}, got {type(error).__name__} on inputs of shape "
            f"{_shapes(inputs)}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        ) from None


def _shapes(inputs: Inputs) -> str:
    return ", ".join(str(tuple(x.shape)) for x in inputs)


class Batches:
    """A loader that can be run through many times, as (inputs, target or None).

    `arity` is the number of the model's inputs; one tensor more is the target.
    """

    def __init__(self, name: str, loader: Iterable[Any], model: nn.Module, arity: int) -> None:
        self._name, self._loader, self._arity = name, loader, arity
        if not isinstance(loader, Iterable) or isinstance(loader, (Tensor, str, bytes, dict)):
            raise InputTypeError(
                f"{name} must give batches (inputs, targets), such as a DataLoader or a list of "
                f"pairs of tensors, got {type(loader).__name__}"
            )
        if isinstance(loader, Iterator):
            raise InputTypeError(
                f"{name} is run through more than once and must not be an iterator; pass the "
                "DataLoader itself or list(...)"
            )
        self._like = next((p for p in model.parameters() if p.is_floating_point()), None)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor | None]]:
        empty = True
        for batch in self._loader:
            empty = False
            parts = batch if isinstance(batch, (tuple, list)) else (batch,)
            if not all(isinstance(part, Tensor) for part in parts):
                kinds = ", ".join(type(part).__name__ for part in parts)
                raise InputTypeError(f"{self._name} must give tensors, got {kinds}")
            if not self._arity <= len(parts) <= self._arity + 1:
                raise InputError(
                    f"{self._name} must give the model's {self._arity} input(s) and maybe a "
                    f"target, got {len(parts)} tensors"
                )
            for x in parts[: self._arity]:
                if x.is_floating_point() and not bool(torch.isfinite(x).all()):
                    raise InputError(f"inputs of {self._name} must be finite, got NaN or infinity")
            target = parts[-1] if len(parts) > self._arity else None
            yield tuple(map(self._fitted, parts[: self._arity])), self._placed(target)
        if empty:
            raise InputError(f"{self._name} must give at least one batch, got none")

    def _fitted(self, x: Tensor) -> Tensor:
        if self._like is None:
            return x
        return x.to(self._like) if x.is_floating_point() else x.to(self._like.device)

    def _placed(self, y: Tensor | None) -> Tensor | None:
        return y if y is None or self._like is None else y.to(self._like.device)


@dataclass(frozen=True)
class Score:
    """Mean loss over all examples, and the share of right classes where targets are classes."""

    loss: float
    accuracy: float | None


def checked_loss(loss: Loss) -> Loss:
    """Return the loss if it is a function or a known name."""
    return loss if callable(loss) else choice("loss", loss, ("auto", *LOSSES))


def mean_loss(loss: Loss, output: Tensor, y: Tensor) -> Tensor:
    """Return a loss averaged over the batch; "auto" goes by the kind of targets."""
    if callable(loss):
        return loss(output, y)
    if loss == "auto":
        classes = not y.is_floating_point()
        several = output.ndim >= 2 and output.shape[1] > 1
        loss = "cross_entropy" if classes and several else "logistic" if classes else "mse"
    if loss == "cross_entropy":  # classes, or their probabilities
        y = y.to(output.dtype) if y.shape == output.shape else y.long()
    elif y.shape != output.shape and y.numel() == output.numel():
        y = y.reshape(output.shape)
    if loss != "cross_entropy":
        y = y.to(output.dtype)
    try:
        return plain_loss(output, y, loss)
    except (RuntimeError, IndexError, ValueError) as error:
        raise InputError(
            f"loss {loss!r} does not fit outputs of shape {tuple(output.shape)} and targets of "
            f"shape {tuple(y.shape)} ({y.dtype}): {str(error).splitlines()[0]}"
        ) from None


def score(model: nn.Module, batches: Batches, loss: Loss) -> Score | None:
    """Return how a model does on all batches, None without targets or outputs to judge."""
    total, right, count, places, classes = 0.0, 0, 0, 1, True
    with torch.no_grad():
        for inputs, y in batches:
            with fitting("the batches", inputs):
                output = model(*inputs)
            judged = callable(loss) or isinstance(output, Tensor)
            if y is None or not judged:
                return None
            total += float(mean_loss(loss, output, y)) * len(y)
            count += len(y)
            guesses = _guesses(output) if isinstance(output, Tensor) else None
            if loss == "cross_entropy" and guesses is not None and y.shape == output.shape:
                y = y.argmax(1)
            classes = classes and not y.is_floating_point()
            classes = classes and guesses is not None and guesses.shape == y.shape
            if classes and guesses is not None:
                right += int((guesses == y).sum())
                places = y.numel() // len(y)
    return Score(total / count, right / (count * places) if classes else None)


def _guesses(output: Tensor) -> Tensor:
    if output.ndim >= 2 and output.shape[1] > 1:
        return output.argmax(1)
    return (output.flatten() > 0).long()
