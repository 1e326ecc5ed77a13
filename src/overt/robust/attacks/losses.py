"""What an attack ascends: one number for each point, larger meaning closer to being fooled.

With z = f_y - f_j the margin of the true class y over another class j, cross-entropy
log(1 + e^-z) has the slope -sigmoid(-z), which dies where the network is sure of itself. The
reflected loss l_-(z) = -log(1 + e^z) has the slope -sigmoid(z), which dies only once the point is
fooled (thesis, section 6.2). Networks with one output f count as two with logits (0, f).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from overt._check import InputError, InputTypeError, choice, whole

Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""objective(logits, y, aim) -> (points,), to be made large."""

SATURATED = 8
"""Multiple of machine epsilon; wrong classes with less probability leave only rounding noise."""


def reflect(z: Tensor) -> Tensor:
    """Return l_-(z) = -log(1 + e^z)."""
    return -softplus(z)


def reflected_pair(logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
    """Return l_-(f_y - f_rival), what grows as the class rival overtakes the class y."""
    return reflect(_pick(logits, y) - _pick(logits, rival))


def margin_of_best(logits: Tensor, y: Tensor) -> Tensor:
    """Return f_y - max f_j over the other classes, (points,)."""
    rival = logits.detach().scatter(1, y[:, None], -torch.inf).argmax(1)
    return _pick(logits, y) - _pick(logits, rival)


def margin_of_sum(logits: Tensor, y: Tensor) -> Tensor:
    """Return f_y - log sum e^(f_j) over the other classes, (points,)."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    return _pick(logits, y) - others.logsumexp(1)


def margin_over_spread(logits: Tensor, y: Tensor) -> Tensor:
    """Return (f_y - max f_j) / (f_(1) - f_(3)), f_(k) the k-th largest logit, (points,).

    It needs three classes; with two the ratio would be constant, and the margin is returned.
    """
    margin = margin_of_best(logits, y)
    if logits.shape[1] < 3:
        return margin
    top = logits.topk(3, dim=1).values
    return margin / (top[:, 0] - top[:, 2] + 1e-12)


def _pick(logits: Tensor, y: Tensor) -> Tensor:
    return logits.gather(1, y[:, None]).squeeze(1)


@dataclass(frozen=True)
class Plan:
    """How a loss spends the gradients of one run on a point that is not fooled."""

    steps: int  # on the loss itself; 0 if there are only runs against single classes
    rivals: int = 0  # wrong classes that then get a run of their own, nearest first
    each: int = 0  # steps of each of these runs
    measured: int = 0  # likeliest wrong classes whose distance is measured, at a gradient each


class Loss(ABC):
    """A loss of logits (points, classes) and classes (points,), one value for each point."""

    @abstractmethod
    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return what grows as the prediction leaves the class y."""

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return what grows as the prediction approaches the class target: -away(target)."""
        return -self.away(logits, target)

    def plan(self, steps: int, classes: int) -> Plan:
        """Return how to spend so many steps on a point among so many classes."""
        return Plan(steps)

    def saturated(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return for which points the slope is lost to rounding although they are not fooled."""
        return torch.zeros_like(y, dtype=torch.bool)


class CrossEntropy(Loss):
    """-log p_y: the usual loss, blind where p_y is 1 up to rounding."""

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return -log p_y."""
        return cross_entropy(logits, y, reduction="none")

    def saturated(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return where 1 - p_y is below SATURATED machine epsilons."""
        return margin_of_sum(logits, y) > -math.log(SATURATED * torch.finfo(logits.dtype).eps)


class _OfMargin(Loss):
    """h(z) of a margin z, h falling: h(z_y) drives away from y, h(-z_target) toward a target."""

    margin: ClassVar[staticmethod[[Tensor, Tensor], Tensor]] = staticmethod(margin_of_best)
    h: ClassVar[staticmethod[[Tensor], Tensor]] = staticmethod(reflect)

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return h(z_y)."""
        return self.h(self.margin(logits, y))

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return h(-z_target)."""
        return self.h(-self.margin(logits, target))


class Margin(_OfMargin):
    """max f_j - f_y over the wrong classes, without any squashing."""

    h = staticmethod(torch.neg)


class Dlr(_OfMargin):
    """(max f_j - f_y) / (f_(1) - f_(3)), the ratio of logits (Croce and Hein 2020)."""

    margin, h = staticmethod(margin_over_spread), staticmethod(torch.neg)


class ReflectedLse(_OfMargin):
    """l_-(f_y - log sum_j e^(f_j)) over the wrong classes, which is log(1 - p_y)."""

    margin = staticmethod(margin_of_sum)


class ReflectedGreedy(_OfMargin):
    """l_-(f_y - max f_j): the most likely wrong class, and no other (thesis, section 6.5.3)."""


class Reflected(_OfMargin):
    """l_-(f_y - max f_j), then l_-(f_y - f_j) for the nearest classes j in turn.

    The most likely wrong class need not be the nearest. Points that the greedy choice has not
    fooled within a third of the steps spend the rest on the three nearest of the nine likeliest
    classes, by linearized distance. Short runs stay greedy.
    """

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
class ReflectedAll(_OfMargin):
    """l_-(f_y - f_j) in a run of its own for each wrong class j: what greedy can miss.

    With `top` only that many classes are tried, nearest first by linearized distance, out of the
    `among` likeliest ones. Runs are compared by l_-(f_y - max f_j).
    """

    top: int | None = None
    among: int | None = None

    def plan(self, steps: int, classes: int) -> Plan:
        """Return all the steps for each class."""
        rivals = classes - 1 if self.top is None else min(whole("top", self.top), classes - 1)
        among = classes - 1 if self.among is None else whole("among", self.among)
        return Plan(0, rivals, steps, max(min(among, classes - 1), rivals))


class Deviation(Loss):
    """|f - y|^2, for regression."""

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the squared distance of the outputs from y."""
        return (logits - y).square().sum(1)


@dataclass(frozen=True)
class _Own(Loss):
    """A function (logits, y) -> (points,) of the user's."""

    function: Objective | Callable[[Tensor, Tensor], Tensor]

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the function's value, which must be one for each point."""
        value: Tensor = self.function(logits, y)  # type: ignore[call-arg]
        if value.shape != (len(logits),):
            raise InputError(
                f"loss must return one number for each of the {len(logits)} points, got shape "
                f"{tuple(value.shape)}; torch's losses need reduction='none'"
            )
        return value


LOSSES: dict[str, Loss] = {
    "cross_entropy": CrossEntropy(), "dlr": Dlr(), "margin": Margin(), "reflected": Reflected(),
    "reflected_all": ReflectedAll(), "reflected_greedy": ReflectedGreedy(),
    "reflected_lse": ReflectedLse(),
}  # fmt: skip
DEVIATION = Deviation()


def find_loss(loss: Any, *, raw: bool = False) -> Loss:
    """Return the loss of this name, the loss itself, or a function (logits, y) as a loss.

    Outputs that are numbers (`raw`) have one loss only, besides the user's own.
    """
    if isinstance(loss, str):
        found = LOSSES[choice("loss", loss, tuple(LOSSES))]
        return DEVIATION if raw else found
    if isinstance(loss, Loss):
        return loss
    if callable(loss) and not isinstance(loss, type):
        return _Own(loss)
    raise InputTypeError(f"loss must be a name, a Loss or a function, got {type(loss).__name__}")


def objective_of(loss: Loss, *, targeted: bool) -> Objective:
    """Return what is ascended: the loss toward the class aimed at, or away from the own."""
    if targeted:
        return lambda logits, y, aim: loss.toward(logits, aim)
    return lambda logits, y, aim: loss.away(logits, y)
