"""What attacks return, and the signs that it cannot be trusted, said aloud with their share."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from overt.results import Result, Status
from overt.robust.attacks.losses import Loss
from overt.robust.attacks.models import Model, logits

NOTEWORTHY = 0.01
"""Share of the points from which a sign is reported."""

PROBED, RANDOM = 64, 1e-3
"""Points at which a model is evaluated twice, and the relative difference that is randomness."""


class RobustnessWarning(UserWarning):
    """The robust accuracy that was found may be far above the true one."""


@dataclass(frozen=True, repr=False, eq=False)
class AttackResult(Result):
    """Perturbed inputs and what they do to the model; tensors, or arrays once loaded from a file.

    Attributes
    ----------
    x
        Perturbed inputs, shaped like the given ones: the first iterate that fools the model, or
        the one of the largest loss. A point that was misclassified to begin with stays as it was.
    success
        Which points are fooled, recomputed at x, (points,).
    loss
        The attack's loss at x, (points,).
    gradients
        Gradients evaluated in all, each point counted on its own.
    flat
        Which points had no gradient to follow where their search began, (points,).
    broken
        Which points met a perturbation at which the model returns NaN or infinity, which counts
        as no prediction and not as success, (points,).
    status
        "finished" or "interrupted".
    """

    x: Tensor
    success: Tensor
    loss: Tensor
    gradients: int
    flat: Tensor
    broken: Tensor
    status: Status

    @property
    def robust_accuracy(self) -> float:
        """Share of the points that were not fooled."""
        return 1 - int(self.success.sum()) / len(self.success)

    def __repr__(self) -> str:
        return (
            f"AttackResult({int(self.success.sum())} of {len(self.success)} points fooled, "
            f"x={tuple(self.x.shape)}, gradients={self.gradients}, status='{self.status}')"
        )


def warn_of_saturation(loss: Loss, clean: Tensor, y: Tensor) -> Tensor:
    """Warn if the loss has no slope left at the clean inputs; return at which of them."""
    saturated = loss.saturated(clean, y)
    _warn_where(
        saturated,
        f"{loss.name} is saturated at {{}} of the points: the model gives the true class all of "
        "the probability, the gradient is rounding noise and the attack goes blind. Use "
        'loss="reflected", which does not saturate there.',
    )
    return saturated


def warn_of_gradients(result: AttackResult, x: Tensor, radius: float, known: Tensor) -> None:
    """Warn of gradients that led nowhere, except at the points whose trouble is known."""
    _warn_where(
        result.flat & ~(known | result.broken),
        "the gradient is zero or not a number at {} of the points, where the attack starts: "
        "rounding, thresholds or saturated units inside the model mask it. A random start was used "
        "for these points; robustness is likely to be overestimated.",
    )
    _warn_where(
        result.broken & ~result.success,
        "the model returns NaN or infinity at perturbations of {} of the points, which is not "
        "counted as success: robustness is likely to be overestimated.",
    )
    # The best iterate is the input itself where no step raised the loss, which means nothing
    # where a step of the whole radius drowns in rounding.
    coarse = 100 * torch.finfo(x.dtype).eps * x.abs().flatten(1).amax(1)
    same = (result.x == x).flatten(1).all(1) & (radius > coarse)
    _warn_where(
        same & ~(known | result.success | result.flat | result.broken),
        "no step raised the loss at {} of the points although there is a gradient: it does not "
        "point uphill, which masking or random layers cause. Robustness is likely to be "
        "overestimated.",
    )


def warn_of_randomness(model: Model, x: Tensor) -> bool:
    """Warn if the same inputs give different logits; return whether they do."""
    x = x[:PROBED]
    with torch.no_grad():
        first, second = logits(model, x).detach(), logits(model, x).detach()
    scale = float(first.abs().amax())
    moved = (first - second).abs().amax(1) > RANDOM * max(scale, torch.finfo(x.dtype).tiny)
    _warn_where(
        moved,
        f"the model is random: two evaluations differ at {{}} of {len(x)} inputs although it is in "
        "evaluation mode. Gradients are noisy and success depends on the draw; average the model "
        "over its noise first.",
        least=0,
    )
    return bool(moved.any())


def _warn_where(points: Tensor, message: str, least: float = NOTEWORTHY) -> None:
    """Warn of some points in the name of the line outside of this package that called."""
    share = float(points.double().mean())
    if share == 0 or share < least:
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("overt.robust."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message.format(f"{share:.1%}"), RobustnessWarning, stacklevel=level)
