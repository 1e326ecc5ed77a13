"""Losses that attacks ascend, and when an attack has succeeded.

A loss gives one number for each point, larger meaning closer to being fooled. With z = f_y - f_j
the margin of the true class y over another class j, cross-entropy log(1 + e^-z) has the slope
-sigmoid(-z), which vanishes where the network is sure of itself. The reflected loss
l_-(z) = -log(1 + e^z) has the slope -sigmoid(z), which vanishes only once the point is fooled
(thesis, section 6.2). Networks with one output f count as two with logits (0, f).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from overt._check import InputError, InputTypeError, choice, optional_whole
from overt.robust.models import class_numbers
from overt.robust.threats import broadcast

Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""objective(logits, y, target) -> (points,), to be made large."""

SATURATED_EPS = 8
"""Multiple of machine epsilon; wrong classes with less probability leave only rounding noise."""


def reflect(z: Tensor) -> Tensor:
    """Return l_-(z) = -log(1 + e^z)."""
    return -softplus(z)


def reflected_pair(logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
    """Return l_-(f_y - f_rival), which grows as the class rival overtakes the class y."""
    lead = lead_of_rival(logits, y, rival)
    return reflect(-lead)


def lead_of_rival(logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
    """Return f_rival - f_y."""
    return _pick(logits, rival) - _pick(logits, y)


def margin_of_best(logits: Tensor, y: Tensor) -> Tensor:
    """Return f_y - max f_j over the other classes, (points,)."""
    others = logits.detach().scatter(1, y[:, None], -torch.inf)
    return -lead_of_rival(logits, y, others.argmax(1))


def margin_of_sum(logits: Tensor, y: Tensor) -> Tensor:
    """Return f_y - log sum e^(f_j) over the other classes, (points,)."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    return _pick(logits, y) - others.logsumexp(1)


def margin_over_range(logits: Tensor, y: Tensor) -> Tensor:
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
    rivals: int = 0  # wrong classes that then get a separate run, likeliest first
    each: int = 0  # steps of each of these runs


class Loss(ABC):
    """A loss of logits (points, classes) and classes (points,), one value for each point."""

    @abstractmethod
    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return what grows as the prediction leaves the class y."""

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return what grows as the prediction approaches the class target: -away(target)."""
        return -self.away(logits, target)

    def plan(self, steps: int, classes: int) -> Plan:
        """Return how to spend `steps` gradients on a point among `classes` classes."""
        return Plan(steps)


class CrossEntropy(Loss):
    """-log p_y: the usual loss, blind where p_y is 1 up to rounding."""

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return -log p_y."""
        return cross_entropy(logits, y, reduction="none")


def saturated(logits: Tensor, y: Tensor) -> Tensor:
    """Return where 1 - p_y is below SATURATED_EPS machine epsilons."""
    lost = SATURATED_EPS * torch.finfo(logits.dtype).eps
    return margin_of_sum(logits, y) > -math.log(lost)


@dataclass(frozen=True)
class MarginLoss(Loss):
    """h(z) of a margin z, h falling: h(z_y) drives away from y, h(-z_target) toward a target."""

    margin: Callable[[Tensor, Tensor], Tensor] = field(
        default=margin_of_best, repr=False
    )
    h: Callable[[Tensor], Tensor] = field(default=reflect, repr=False)

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return h(z_y)."""
        return self.h(self.margin(logits, y))

    def toward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return h(-z_target)."""
        return self.h(-self.margin(logits, target))


@dataclass(frozen=True)
class Reflected(MarginLoss):
    """l_-(f_y - max f_j), then l_-(f_y - f_j) for the likeliest classes j in turn.

    The most likely wrong class need not be the nearest. Points that the greedy choice has not
    fooled within a third of the steps spend the rest on the three likeliest classes. Short runs
    stay greedy.
    """

    def plan(self, steps: int, classes: int) -> Plan:
        """Return a third of the steps for the greedy choice, and runs of at least 5 steps."""
        rest = steps - steps // 3
        rivals = min(classes - 1, rest // 5, 3)
        if rivals < 2:
            return Plan(steps)
        each = rest // rivals
        return Plan(steps - rivals * each, rivals, each)


@dataclass(frozen=True)
class ReflectedAll(MarginLoss):
    """l_-(f_y - f_j) in a separate run for each wrong class j, which greedy can miss.

    With `top` only that many classes are tried, likeliest first. Runs are compared by
    l_-(f_y - max f_j).
    """

    _: KW_ONLY
    top: int | None = None

    def __post_init__(self) -> None:
        optional_whole("top", self.top)

    def plan(self, steps: int, classes: int) -> Plan:
        """Return all the steps for each class."""
        rivals = min(self.top or classes - 1, classes - 1)
        return Plan(0, rivals, steps)


@dataclass(frozen=True)
class CustomLoss(Loss):
    """A user's function (logits, y) -> (points,)."""

    function: Callable[[Tensor, Tensor], Tensor]

    def away(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the function's value, which must be one for each point."""
        value = self.function(logits, y)
        if value.shape != (len(logits),):
            raise InputError(
                f"loss must return one number for each of the {len(logits)} points, got shape "
                f"{tuple(value.shape)}; torch's losses need reduction='none'"
            )
        return value


LOSSES: dict[str, Loss] = {
    "cross_entropy": CrossEntropy(),
    "dlr": MarginLoss(margin_over_range, torch.neg),
    "margin": MarginLoss(h=torch.neg),
    "reflected": Reflected(),
    "reflected_all": ReflectedAll(),
    "reflected_greedy": MarginLoss(),
    "reflected_lse": MarginLoss(margin_of_sum),
}
"""Losses by name.

"dlr" is the ratio of logits (Croce and Hein 2020), "reflected_lse" is log(1 - p_y), and
"reflected_greedy" the most likely wrong class and no other (thesis, section 6.5.3).
"""


def find_loss(loss: Any) -> Loss:
    """Return the loss of this name, the loss itself, or a function (logits, y) as a loss."""
    if isinstance(loss, str):
        return LOSSES[choice("loss", loss, tuple(LOSSES))]
    if isinstance(loss, Loss):
        return loss
    if callable(loss) and not isinstance(loss, type):
        return CustomLoss(loss)
    raise InputTypeError(
        f"loss must be a name, a Loss or a function, got {type(loss).__name__}"
    )


def objective_of(loss: Loss, *, targeted: bool) -> Objective:
    """Return what is ascended: the loss toward the target class, or away from the true one."""
    if targeted:
        return lambda logits, y, target: loss.toward(logits, target)
    return lambda logits, y, target: loss.away(logits, y)


def find_targets(target: Any, y: Tensor, classes: int) -> Tensor:
    """Return the class to reach for each point, from one for all or one for each."""
    given = class_numbers("target", target).to(y.device)
    found = broadcast("target", given, y.shape)
    if bool(((found < 0) | (found >= classes)).any()):
        raise InputError(
            f"target must lie in 0..{classes - 1}, got values between {int(found.min())} and "
            f"{int(found.max())}"
        )
    return found


def is_fooled(logits: Tensor, y: Tensor, target: Tensor, targeted: bool) -> Tensor:
    """Return which points are fooled: argmax f is the target, or is not y."""
    predicted = logits.argmax(1)
    if targeted:
        return predicted == target
    return predicted != y
