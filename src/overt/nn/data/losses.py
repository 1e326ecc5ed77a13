"""Losses by name or as functions, and the targets that they take.

    "squared"        |y - f|^2, summed over outputs
    "mse"            |y - f|^2, averaged over outputs, as torch.nn.functional.mse_loss
    "cross_entropy"  -sum_k y_k log softmax(f)_k, y a class number or a row of probabilities
    "logistic"       sum_k log(1 + exp(f_k)) - y_k f_k, y in [0, 1]

each averaged over rows. Whole class numbers become one-hot rows where a squared loss needs numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from overt import _check
from overt._check import InputError, InputTypeError

LOSSES = ("squared", "mse", "cross_entropy", "logistic")
Loss = str | Callable[[Any, Tensor], Tensor]
"""A name, or a function (output, target) -> mean loss."""

_TORCH: dict[Any, str] = {
    nn.MSELoss: "mse",
    functional.mse_loss: "mse",
    nn.CrossEntropyLoss: "cross_entropy",
    functional.cross_entropy: "cross_entropy",
}

_DEFAULTS: dict[str, Any] = {
    "reduction": "mean",
    "weight": None,
    "label_smoothing": 0.0,
    "ignore_index": -100,
}
"""Settings of torch's losses with which they have a name here."""


def check_loss(loss: Any, names: tuple[str, ...] = LOSSES) -> Loss:
    """Return a loss by its name where it has one (torch's own with default settings have)."""
    if isinstance(loss, str):
        return _check.choice("loss", loss, names)
    if not callable(loss):
        raise InputTypeError(
            f"loss must be one of {', '.join(map(repr, names))} or a function (output, target) -> "
            f"mean loss, got {type(loss).__name__}"
        )
    known = _TORCH.get(loss if not isinstance(loss, nn.Module) else type(loss))
    return loss if known is None or _other_settings(loss) else known


def _other_settings(loss: Any) -> list[str]:
    """Return the settings of a loss of torch's that are not the defaults, for a message."""
    found = []
    for name, usual in _DEFAULTS.items():
        value = getattr(loss, name, usual)
        if isinstance(value, Tensor):  # class weights, which may be many
            found.append(name)
        elif value != usual:
            found.append(f"{name}={value!r}")
    return found


def loss_name(loss: Any) -> str:
    """Return the name of a loss that must have one."""
    found = check_loss(loss)
    if isinstance(found, str):
        return found
    others = ", ".join(_other_settings(loss) if type(loss) in _TORCH else ())
    settings = f" with {others}" if others else ""
    raise InputError(
        f"loss must be one of {', '.join(map(repr, LOSSES))}, or a torch.nn.MSELoss or "
        f"CrossEntropyLoss with its default settings, got {found!r}{settings}"
    )


def loss_text(loss: Loss) -> str:
    """Return a loss in words, for a report."""
    return loss if isinstance(loss, str) else getattr(loss, "__name__", repr(loss))


def is_squared(loss: Loss) -> bool:
    """Whether the loss is a squared error, for which noise has an exact penalty."""
    return loss in ("squared", "mse")


def unit(loss: Loss, outputs: int) -> float:
    """Return what a sum of squared errors over outputs is multiplied by."""
    return 1 / outputs if loss == "mse" else 1.0


def guess_loss(y: Tensor, output: Tensor) -> str:
    """Return the loss that targets and outputs look made for.

    Whole numbers are classes. Fractions that are all 0 or 1 are classes too: one output is a logit,
    and rows with a single 1 are one-hot. All other fractions are numbers to predict.
    """
    several = output.ndim >= 2 and output.shape[1] > 1
    if not y.is_floating_point():
        return "cross_entropy" if several and y.shape != output.shape else "logistic"
    bits = (y == 0) | (y == 1)
    if y.numel() != output.numel() or not bool(bits.all()):
        return "mse"
    if not several:
        return "logistic"
    ones = y.reshape(output.shape).sum(1)
    return "cross_entropy" if bool((ones == 1).all()) else "logistic"


def mean_loss(output: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """Return a loss averaged over the batch, with gradient."""
    if not isinstance(loss, str):
        return loss(output, y)
    try:
        return _row_losses(output, _fitted(y, output, loss), loss).mean()
    except (RuntimeError, IndexError, ValueError) as error:
        raise InputError(
            f"loss {loss!r} does not fit outputs of shape {tuple(output.shape)} and targets of "
            f"shape {tuple(y.shape)} ({y.dtype}): {str(error).splitlines()[0]}"
        ) from None


def _fitted(y: Tensor, output: Tensor, loss: str) -> Tensor:
    """Return targets in the shape and format that a loss takes beside the outputs."""
    if y.is_floating_point() and not bool(torch.isfinite(y).all()):
        raise InputError("targets must be finite, got NaN or infinity")
    if loss == "cross_entropy":  # classes, or their probabilities
        if y.shape == output.shape:
            return y.to(output.dtype)
        y = y.long()
        _check_classes(y[y != _DEFAULTS["ignore_index"]], output.shape[1])
        return y
    if (
        is_squared(loss)
        and _are_classes(y)
        and output.ndim == 2
        and output.shape[1] > 1
    ):
        _check_classes(y, output.shape[1])
        y = functional.one_hot(y.long(), output.shape[1])
    if y.shape != output.shape:
        y = y.reshape(output.shape)
    return y.to(output.dtype)


def _row_losses(output: Tensor, y: Tensor, loss: str) -> Tensor:
    """Return the loss of each row; for cross-entropy of each token or pixel."""
    if loss == "cross_entropy":
        return functional.cross_entropy(output, y, reduction="none")
    if loss == "logistic":
        losses = functional.binary_cross_entropy_with_logits(
            output, y, reduction="none"
        )
    else:
        losses = (output - y) ** 2
    losses = losses.reshape(len(losses), -1)
    return losses.mean(1) if loss == "mse" else losses.sum(1)


def _are_classes(y: Tensor) -> bool:
    return y.ndim == 1 and not y.is_floating_point() and y.dtype != torch.bool


def _check_classes(y: Tensor, outputs: int, where: str = "") -> None:
    wrong = y[(y < 0) | (y >= outputs)]
    if len(wrong):
        raise InputError(
            f"{where}classes must lie in 0..{outputs - 1}, the model's outputs, got "
            f"{int(wrong[0])}"
        )


class Targets:
    """Checked targets of a batch: as given, and as rows of a matrix.

    `rows` are (n, outputs), one-hot for classes, distributions over classes for cross-entropy.
    `classes` are indices (n,), None where a row is not one-hot.
    """

    def __init__(self, y: Tensor, output: Tensor, loss: Loss, where: str) -> None:
        outputs = output[0].numel()
        self.y = y
        if loss == "cross_entropy" and (output.ndim != 2 or outputs < 2):
            raise InputError(
                "loss='cross_entropy' needs a model that returns (points, at least 2 classes), got "
                f"{tuple(output.shape)}; flatten tokens or pixels to points, and for one logit use "
                "loss='logistic'"
            )
        several = outputs > 1 and loss != "logistic"
        if _are_classes(y) and several:
            _check_classes(y, outputs, f"{where}: ")
            self.rows = functional.one_hot(y.long(), outputs).double()
        elif loss == "cross_entropy" and y.shape != output.shape:
            raise InputError(
                f"{where}: cross-entropy needs whole class numbers, one per row, or a row of "
                f"{outputs} probabilities, got {y.dtype} of shape {tuple(y.shape)}"
            )
        else:
            self.rows = _numbers(y, output, loss, where)
        ones = self.rows == 1
        one_hot = (ones.sum(1) == 1) & ((self.rows != 0).sum(1) == 1)
        self.classes: Tensor | None = None
        if outputs > 1 and bool(one_hot.all()):
            self.classes = self.rows.argmax(1)

    def losses(self, output: Tensor, loss: Loss) -> Tensor:
        """Return the loss of each row, or of the first ones, in double precision, (n,)."""
        if not isinstance(loss, str):
            return _row_by_row(output, self.y[: len(output)], loss).double()
        rows = self.rows[: len(output)]
        return _row_losses(output.double().reshape(len(output), -1), rows, loss)


def _numbers(y: Tensor, output: Tensor, loss: Loss, where: str) -> Tensor:
    """Return targets that are numbers as rows in double precision."""
    if y.numel() != output.numel():
        raise InputError(
            f"{where}: targets must have as many numbers as the outputs, "
            f"{tuple(output.shape)}, got {tuple(y.shape)}"
        )
    rows = y.reshape(len(output), -1).double()
    if not bool(torch.isfinite(rows).all()):
        raise InputError(f"{where}: targets must be finite, got NaN or infinity")
    if loss == "logistic" and (rows.min() < 0 or rows.max() > 1):
        raise InputError(f"{where}: targets of the logistic loss must lie in [0, 1]")
    if loss != "cross_entropy":
        return rows
    total = rows.sum(1, keepdim=True)
    off = (total - 1).abs()
    if rows.min() < 0 or off.max() > 1e-2:
        raise InputError(
            f"{where}: cross-entropy needs whole class numbers, or rows of probabilities, "
            f"got {rows[int(off.argmax())].tolist()}"
        )
    return rows / total


def _row_by_row(
    output: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return a custom loss on batches of one row each, (n,)."""

    def alone(f: Tensor, t: Tensor) -> Tensor:
        return loss(f[None], t[None])

    try:
        found = torch.func.vmap(alone)(output, y)
    except (
        RuntimeError
    ):  # control flow on values, or an operation that cannot be batched
        found = torch.stack([alone(f, t) for f, t in zip(output, y, strict=True)])
    if found.shape != (len(output),):
        raise InputError(
            "loss must be a function (output, target) -> mean loss, one number, got a result of "
            f"shape {tuple(found.shape[1:])}"
        )
    return found
