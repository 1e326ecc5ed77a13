"""The losses an audit knows, per sample, and the targets they are taken against."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from overt import _check
from overt._check import InputError, InputTypeError
from overt.nn.penalties import LOSSES

_MODULES = {nn.MSELoss: "mse", nn.CrossEntropyLoss: "cross_entropy"}


def loss_name(loss: Any) -> str:
    """Return the name of a loss given by name or as a plain torch.nn loss module."""
    if type(loss) in _MODULES:
        plain = (
            loss.reduction == "mean"
            and getattr(loss, "weight", None) is None
            and getattr(loss, "label_smoothing", 0.0) == 0
            and getattr(loss, "ignore_index", -100) == -100
        )
        if plain:
            return _MODULES[type(loss)]
        raise InputError(f"loss must be a torch.nn loss with its default settings, got {loss!r}")
    if not isinstance(loss, str):
        raise InputTypeError(
            f"loss must be one of {', '.join(map(repr, LOSSES))}, a torch.nn.MSELoss or a "
            f"torch.nn.CrossEntropyLoss, got {type(loss).__name__}"
        )
    return _check.choice("loss", loss, LOSSES)


def is_squared(loss: str) -> bool:
    """Whether the loss is a squared error, for which noise has an exact penalty."""
    return loss in ("squared", "mse")


def unit(loss: str, outputs: int) -> float:
    """Return what a sum of squared errors over outputs is multiplied by."""
    return 1 / outputs if loss == "mse" else 1.0


class Targets:
    """Checked targets of a batch: numbers for the loss, and as rows of a matrix.

    Attributes
    ----------
    classes
        Class indices (n,), or None for targets that are numbers.
    rows
        Targets as (n, outputs), one-hot for classes; distributions over classes for cross-entropy.
    """

    def __init__(self, y: Tensor, output: Tensor, loss: str, where: str) -> None:
        n, outputs = len(output), output[0].numel()
        if len(y) != n:
            raise InputError(f"{where} has {n} inputs but {len(y)} targets")
        self.classes: Tensor | None = None
        if loss == "cross_entropy" and (output.ndim != 2 or outputs < 2):
            raise InputError(
                "loss='cross_entropy' needs a model that returns (batch, at least 2 classes), got "
                f"{tuple(output.shape)}; for one logit use loss='logistic'"
            )
        whole = not y.is_floating_point() and y.dtype != torch.bool
        classes = loss == "cross_entropy" or (is_squared(loss) and outputs > 1)
        if classes and whole and y.ndim == 1:
            self._take_classes(y, outputs, where)
        elif loss == "cross_entropy" and y.shape != output.shape:
            raise InputError(
                f"{where}: cross-entropy needs whole class numbers, one per row, or a row of "
                f"{outputs} probabilities, got {y.dtype} of shape {tuple(y.shape)}"
            )
        else:
            self._take_numbers(y, output, loss, where)

    def _take_classes(self, y: Tensor, outputs: int, where: str) -> None:
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= outputs:
            raise InputError(
                f"{where}: classes must lie in 0..{outputs - 1}, the model's outputs, got "
                f"{low if low < 0 else high}"
            )
        self.classes = y.long()
        self.rows = functional.one_hot(self.classes, outputs).double()

    def _take_numbers(self, y: Tensor, output: Tensor, loss: str, where: str) -> None:
        if y.numel() != output.numel():
            raise InputError(
                f"{where}: targets must have as many numbers as the outputs, "
                f"{tuple(output.shape)}, got {tuple(y.shape)}"
            )
        self.rows = y.reshape(len(output), -1).double()
        if not bool(torch.isfinite(self.rows).all()):
            raise InputError(f"{where}: targets must be finite, got NaN or infinity")
        if loss == "logistic" and (self.rows.min() < 0 or self.rows.max() > 1):
            raise InputError(f"{where}: targets of the logistic loss must lie in [0, 1]")
        if loss == "cross_entropy":
            total = self.rows.sum(1, keepdim=True)
            if self.rows.min() < 0 or (total - 1).abs().max() > 1e-2:
                raise InputError(
                    f"{where}: cross-entropy needs whole class numbers, or rows of probabilities, "
                    "got "
                    f"{self.rows[int((total - 1).abs().argmax())].tolist()}"
                )
            self.rows = self.rows / total
        ones = self.rows == 1
        if (
            self.rows.shape[1] > 1
            and torch.equal(self.rows, ones.to(self.rows))
            and bool((ones.sum(1) == 1).all())
        ):
            self.classes = self.rows.argmax(1)

    def first(self, n: int) -> Targets:
        """Return the targets of the first n rows."""
        part = copy.copy(self)
        part.rows = self.rows[:n]
        part.classes = None if self.classes is None else self.classes[:n]
        return part


def per_sample(output: Tensor, targets: Targets, loss: str) -> Tensor:
    """Return the loss of each row in double precision, (n,)."""
    rows = output.double().reshape(len(output), -1)
    if loss == "cross_entropy":
        return functional.cross_entropy(rows, targets.rows, reduction="none")
    if loss == "logistic":
        return functional.binary_cross_entropy_with_logits(
            rows, targets.rows, reduction="none"
        ).sum(1)
    return ((rows - targets.rows) ** 2).sum(1) * unit(loss, rows.shape[1])


def entropies(targets: Targets, loss: str) -> Tensor:
    """Return the least loss that any outputs can have, for each row (n,)."""
    t = targets.rows
    if loss == "cross_entropy":
        return torch.special.entr(t).sum(1)
    if loss == "logistic":
        return (torch.special.entr(t) + torch.special.entr(1 - t)).sum(1)
    return torch.zeros(len(t), dtype=t.dtype)
