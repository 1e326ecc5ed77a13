"""What an attack ascends: one number for each point, larger meaning closer to being fooled.

With z = f_y - f_j the margin of the true class y over another class j, cross-entropy
log(1 + e^-z) has the slope -sigmoid(-z), which dies where the network is sure of itself. The
reflected loss l_-(z) = -log(1 + e^z) has the slope -sigmoid(z), which dies only once the point is
fooled (thesis, section 6.2). Networks with one output f count as two with logits (0, f).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from overt._check import InputTypeError, choice, whole

SATURATED = 8
"""Multiple of machine epsilon; wrong classes with less probability leave only rounding noise."""


@dataclass(frozen=True)
class Plan:
    """How a loss spends the gradients of one run on a point that is not fooled.

    Attributes
    ----------
    steps
        Steps on the loss itself; 0 if there are only runs against single classes.
    rivals
        Number of wrong classes that then get a run of their own, nearest first.
    each
        Steps of each of these runs.
    measured
        Number of the likeliest wrong classes whose distance is measured, at one gradient each.
    """

    steps: int
    rivals: int = 0
    each: int = 0
    measured: int = 0


class Loss(ABC):
    """A loss of logits (points, classes) and classes (points,), one value for each point."""

    name: ClassVar[str]

    @abstractmethod
    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return what grows as the prediction leaves the class y."""

    @abstractmethod
    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return what grows as the prediction approaches the class target."""

    def plan(self, steps: int, classes: int) -> Plan:
        """Return how to spend so many steps on a point among so many classes."""
        return Plan(steps)

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

    def saturated(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return where 1 - p_y is below SATURATED machine epsilons."""
        return margin_of_sum(logits, y) > -math.log(SATURATED * torch.finfo(logits.dtype).eps)


class _Pairwise(Loss):
    """l_-(z) = -log(1 + e^z) of the margin z over the most likely wrong class."""

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return l_-(f_y - max f_j)."""
        return -softplus(margin_of_best(logits, y))

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return l_-(max f_j - f_target)."""
        return -softplus(-margin_of_best(logits, target))


class ReflectedGreedy(_Pairwise):
    """l_-(f_y - max f_j): the most likely wrong class, and no other (thesis, section 6.5.3)."""

    name: ClassVar[str] = "reflected_greedy"


class Reflected(_Pairwise):
    """l_-(f_y - max f_j), then l_-(f_y - f_j) for the nearest classes j in turn.

    The most likely wrong class need not be the nearest. Points that the greedy choice has not
    fooled within a third of the steps spend the rest on the three nearest of the nine likeliest
    classes, by linearized distance. Short runs stay greedy.
    """

    name: ClassVar[str] = "reflected"

    def plan(self, steps: int, classes: int) -> Plan:
        """Return a third of the steps for the greedy choice, and runs of at least 5 steps."""
        measured = min(classes - 1, steps // 5, 9)
        rest = steps - steps // 3 - measured
        rivals = min(measured, rest // 5, 3)
        if rivals < 2:
            return Plan(steps)
        each = rest // rivals
        return Plan(steps - measured - rivals * each, rivals, each, measured)


@dataclass(frozen=True)
class ReflectedAll(_Pairwise):
    """l_-(f_y - f_j) in a run of its own for each wrong class j: what greedy can miss.

    With `top` only that many classes are tried, nearest first by linearized distance, out of the
    `among` likeliest ones. Runs are compared by l_-(f_y - max f_j).
    """

    name: ClassVar[str] = "reflected_all"
    top: int | None = None
    among: int | None = None

    def plan(self, steps: int, classes: int) -> Plan:
        """Return all the steps for each class."""
        rivals = classes - 1 if self.top is None else min(whole("top", self.top), classes - 1)
        among = classes - 1 if self.among is None else whole("among", self.among)
        return Plan(0, rivals, steps, max(min(among, classes - 1), rivals))


class ReflectedLse(Loss):
    """l_-(f_y - log sum_j e^(f_j)) over the wrong classes, which is log(1 - p_y)."""

    name: ClassVar[str] = "reflected_lse"

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return log(1 - p_y)."""
        return -softplus(margin_of_sum(logits, y))

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return log p_target."""
        return -softplus(-margin_of_sum(logits, target))


class Margin(Loss):
    """max f_j - f_y over the wrong classes, without any squashing."""

    name: ClassVar[str] = "margin"

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return max f_j - f_y."""
        return -margin_of_best(logits, y)

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return f_target - max f_j."""
        return margin_of_best(logits, target)


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


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        CrossEntropy(),
        Dlr(),
        Margin(),
        Reflected(),
        ReflectedAll(),
        ReflectedGreedy(),
        ReflectedLse(),
    )
}


def find_loss(loss: str | Loss) -> Loss:
    """Return the loss of this name, or the loss itself."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str):
        raise InputTypeError(f"loss must be a name or a Loss, got {type(loss).__name__}")
    return LOSSES[choice("loss", loss, tuple(LOSSES))]


def reflected_pair(logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
    """Return l_-(f_y - f_rival), what grows as the class rival overtakes the class y."""
    return -softplus(_pick(logits, y) - _pick(logits, rival))


def margin_of_best(logits: Tensor, y: Tensor) -> Tensor:
    """Return f_y - max f_j over the other classes, (points,)."""
    rival = logits.detach().scatter(1, y[:, None], -torch.inf).argmax(1)
    return _pick(logits, y) - _pick(logits, rival)


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
