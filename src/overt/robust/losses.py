"""What an attack ascends: one number for each point, larger meaning closer to being fooled.

With z = f_y - f_j the margin of the true class y over another class j, cross-entropy
log(1 + e^-z) has the slope -sigmoid(-z), which dies where the network is sure of itself. The
reflected loss l_-(z) = -log(1 + e^z) has the slope -sigmoid(z), which dies only once the point is
fooled (thesis, section 6.2). Networks with one output f count as two with logits (0, f).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from overt._check import InputTypeError, choice, whole

SATURATED = 1e-6
"""Probability left to the wrong classes below which cross-entropy's slope is rounding noise."""


class Loss(ABC):
    """A loss of logits (points, classes) and classes (points,), one value for each point.

    `rivals` asks the attack for a run of its own against each of that many wrong classes.
    """

    name: ClassVar[str]

    @property
    def rivals(self) -> int:
        """Number of wrong classes to run against one by one; 0 for a single run."""
        return 0

    @property
    def candidates(self) -> int:
        """Number of wrong classes whose distance is measured, at one gradient each."""
        return 0

    @abstractmethod
    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return what grows as the prediction leaves the class y."""

    @abstractmethod
    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return what grows as the prediction approaches the class target."""

    @abstractmethod
    def against(self, logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
        """Return what grows as the class rival overtakes the class y."""

    def saturated(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return for which points the slope is lost to rounding although they are not fooled."""
        return torch.zeros_like(y, dtype=torch.bool)


class CrossEntropy(Loss):
    """-log p_y: the usual loss, blind where p_y is 1 up to rounding."""

    name: ClassVar[str] = "cross_entropy"

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return -log p_y."""
        return cross_entropy(logits, y, reduction="none")

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return log p_target."""
        return -cross_entropy(logits, target, reduction="none")

    def against(self, logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
        """Return log(1 + e^-z), z = f_y - f_rival."""
        return softplus(_pick(logits, rival) - _pick(logits, y))

    def saturated(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return where 1 - p_y is below SATURATED."""
        return margin_of_sum(logits, y) > -torch.logit(torch.tensor(SATURATED))


class Reflected(Loss):
    """l_-(z) = -log(1 + e^z) of the margin z over the most likely wrong class (greedy)."""

    name: ClassVar[str] = "reflected"

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return l_-(f_y - max f_j)."""
        return -softplus(margin_of_best(logits, y))

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return l_-(max f_j - f_target)."""
        return -softplus(-margin_of_best(logits, target))

    def against(self, logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
        """Return l_-(f_y - f_rival)."""
        return -softplus(_pick(logits, y) - _pick(logits, rival))


@dataclass(frozen=True)
class ReflectedAll(Loss):
    """l_-(f_y - f_j) in a run of its own for each wrong class j: what greedy can miss.

    With `top` only that many classes are tried, nearest first by linearised distance, out of the
    `among` likeliest ones.
    """

    name: ClassVar[str] = "reflected_all"
    top: int | None = None
    among: int | None = None

    @property
    def rivals(self) -> int:
        """Number of wrong classes to run against one by one."""
        return sys.maxsize if self.top is None else whole("top", self.top)

    @property
    def candidates(self) -> int:
        """Number of wrong classes whose distance is measured, at one gradient each."""
        return sys.maxsize if self.among is None else max(whole("among", self.among), self.rivals)

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return l_-(f_y - max f_j), by which the runs are compared."""
        return -softplus(margin_of_best(logits, y))

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return l_-(max f_j - f_target)."""
        return -softplus(-margin_of_best(logits, target))

    def against(self, logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
        """Return l_-(f_y - f_rival)."""
        return -softplus(_pick(logits, y) - _pick(logits, rival))


class ReflectedLse(Loss):
    """l_-(f_y - log sum_j e^(f_j)) over the wrong classes, which is log(1 - p_y)."""

    name: ClassVar[str] = "reflected_lse"

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return log(1 - p_y)."""
        return -softplus(margin_of_sum(logits, y))

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return log p_target."""
        return -softplus(-margin_of_sum(logits, target))

    def against(self, logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
        """Return l_-(f_y - f_rival)."""
        return -softplus(_pick(logits, y) - _pick(logits, rival))


class Margin(Loss):
    """max f_j - f_y over the wrong classes, without any squashing."""

    name: ClassVar[str] = "margin"

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return max f_j - f_y."""
        return -margin_of_best(logits, y)

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return f_target - max f_j."""
        return margin_of_best(logits, target)

    def against(self, logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
        """Return f_rival - f_y."""
        return _pick(logits, rival) - _pick(logits, y)


class Dlr(Loss):
    """(max f_j - f_y) / (f_(1) - f_(3)), f_(k) the k-th largest logit (Croce and Hein 2020).

    It needs three classes; with two the ratio would be constant, and the margin is used.
    """

    name: ClassVar[str] = "dlr"

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return (max f_j - f_y) / (f_(1) - f_(3))."""
        return -margin_of_best(logits, y) / _spread(logits)

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return (f_target - max f_j) / (f_(1) - f_(3))."""
        return margin_of_best(logits, target) / _spread(logits)

    def against(self, logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
        """Return (f_rival - f_y) / (f_(1) - f_(3))."""
        return (_pick(logits, rival) - _pick(logits, y)) / _spread(logits)


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (CrossEntropy(), Dlr(), Margin(), Reflected(), ReflectedAll(), ReflectedLse())
}


def find_loss(loss: str | Loss) -> Loss:
    """Return the loss of this name, or the loss itself."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str):
        raise InputTypeError(f"loss must be a name or a Loss, got {type(loss).__name__}")
    return LOSSES[choice("loss", loss, tuple(LOSSES))]


def margin_of_best(logits: Tensor, y: Tensor) -> Tensor:
    """Return f_y - max f_j over the other classes, (points,)."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    return _pick(logits, y) - others.amax(1)


def margin_of_sum(logits: Tensor, y: Tensor) -> Tensor:
    """Return f_y - log sum e^(f_j) over the other classes, (points,)."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    return _pick(logits, y) - others.logsumexp(1)


def _pick(logits: Tensor, y: Tensor) -> Tensor:
    return logits.gather(1, y[:, None]).squeeze(1)


def _spread(logits: Tensor) -> Tensor | float:
    if logits.shape[1] < 3:
        return 1.0
    top = logits.topk(3, dim=1).values
    return top[:, 0] - top[:, 2] + 1e-12
