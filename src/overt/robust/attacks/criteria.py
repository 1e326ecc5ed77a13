"""When an attack has succeeded at a point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from overt._check import InputError, number
from overt.results import Result
from overt.robust.attacks.inputs import class_numbers, classes
from overt.robust.attacks.losses import margin_of_best
from overt.robust.threats import tensor


class Criterion(ABC):
    """Decides from logits (points, classes) and true classes (points,) who is fooled."""

    raw: ClassVar[bool] = False  # whether outputs are numbers and not logits of classes

    def truth(self, y: Any, x: Tensor, count: int) -> Tensor:
        """Return what is true of each point, checked: its class among so many."""
        return classes(y, x, count)

    def aims(self, y: Tensor, classes: int) -> Tensor | None:
        """Return the class to reach for each point, or None if any wrong one will do."""
        return None

    @abstractmethod
    def met(self, logits: Tensor, y: Tensor, aim: Tensor) -> Tensor:
        """Return which points are fooled, (points,)."""


@dataclass(frozen=True)
class Misclassified(Criterion):
    """The predicted class is not the true one."""

    def met(self, logits: Tensor, y: Tensor, aim: Tensor) -> Tensor:
        """Return argmax f != y."""
        return logits.argmax(1) != y


@dataclass(frozen=True, eq=False)
class Targeted(Criterion):
    """The predicted class is the target: one class for all points, or one for each."""

    target: Any
    __eq__ = Result.__eq__  # by value, arrays included

    def __hash__(self) -> int:
        return hash(type(self))

    def aims(self, y: Tensor, classes: int) -> Tensor:
        """Return the target of each point."""
        target = class_numbers("target", self.target).to(y.device)
        if target.ndim == 0:
            target = target.expand_as(y)
        if target.shape != y.shape:
            raise InputError(
                f"target must be one class or {len(y)} (one per point), got shape "
                f"{tuple(target.shape)}"
            )
        if bool(((target < 0) | (target >= classes)).any()):
            raise InputError(
                f"target must lie in 0..{classes - 1}, got values between {int(target.min())} "
                f"and {int(target.max())}"
            )
        return target

    def met(self, logits: Tensor, y: Tensor, aim: Tensor) -> Tensor:
        """Return argmax f == target."""
        return logits.argmax(1) == aim


@dataclass(frozen=True)
class Effective(Criterion):
    """A wrong class leads by at least beta (thesis, Definition 7: y f(x) <= -beta).

    The thesis measures f with its hidden weights scaled to Frobenius norm 1; give beta times that
    norm for weights as they are.
    """

    beta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", number("beta", self.beta))

    def met(self, logits: Tensor, y: Tensor, aim: Tensor) -> Tensor:
        """Return f_y - max f_j <= -beta."""
        return margin_of_best(logits, y) <= -self.beta


@dataclass(frozen=True)
class Deviates(Criterion):
    """For regression: some output is off from y (points, outputs) by more than `by`."""

    by: float
    raw: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", number("by", self.by))

    def truth(self, y: Any, x: Tensor, count: int) -> Tensor:
        """Return the true numbers, (points, outputs)."""
        given = tensor("y", y).to(x)
        given = given[:, None] if given.ndim == 1 else given
        if given.shape != (len(x), count):
            raise InputError(
                f"y must hold {count} number(s) for each of the {len(x)} points, got shape "
                f"{tuple(given.shape)}"
            )
        return given

    def met(self, logits: Tensor, y: Tensor, aim: Tensor) -> Tensor:
        """Return max_k |f_k - y_k| > by."""
        return (logits - y).abs().amax(1) > self.by
