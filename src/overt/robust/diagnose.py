"""Signs that an attack's gradients cannot be trusted, said aloud with the share of points."""

from __future__ import annotations

import sys
import warnings

import torch
from torch import Tensor

from overt.robust.losses import Loss
from overt.robust.model import Model, logits
from overt.robust.outcome import AttackResult

NOTEWORTHY = 0.01
"""Share of the points from which a sign is reported."""


class RobustnessWarning(UserWarning):
    """The robust accuracy that was found may be far above the true one."""


def saturation(loss: Loss, clean: Tensor, y: Tensor) -> Tensor:
    """Warn if the loss has no slope left at the clean inputs; return at which of them."""
    saturated = loss.saturated(clean, y)
    share = _share(saturated)
    if share >= NOTEWORTHY:
        _warn(
            f"{loss.name} is saturated at {share:.1%} of the points: the model gives the true "
            "class all of the probability, the gradient is rounding noise and the attack goes "
            'blind. Use loss="reflected", which does not saturate there.'
        )
    return saturated


def gradients(result: AttackResult, x: Tensor, radius: float, known: Tensor | None = None) -> None:
    """Warn of gradients that led nowhere, except at the points whose trouble is known."""
    other = torch.ones_like(result.flat) if known is None else ~known
    share = _share(result.flat & other & ~result.broken)
    if share >= NOTEWORTHY:
        _warn(
            f"the gradient is zero or not a number at {share:.1%} of the points, where the attack "
            "starts: rounding, thresholds or saturated units inside the model mask it. A random "
            "start was used for these points; robustness is likely to be overestimated."
        )
    share = _share(result.broken & ~result.success)
    if share >= NOTEWORTHY:
        _warn(
            f"the model returns NaN or infinity at perturbations of {share:.1%} of the points, "
            "which is not counted as success: robustness is likely to be overestimated."
        )
    # The best iterate is the input itself where no step raised the loss, which means nothing
    # where a step of the whole radius drowns in rounding.
    coarse = 100 * torch.finfo(x.dtype).eps * x.abs().flatten(1).amax(1)
    same = (result.x == x).flatten(1).all(1) & (radius > coarse)
    share = _share(same & other & ~(result.success | result.flat | result.broken))
    if share >= NOTEWORTHY:
        _warn(
            f"no step raised the loss at {share:.1%} of the points although there is a gradient: "
            "it does not point uphill, which masking or random layers cause. Robustness is likely "
            "to be overestimated."
        )


def randomness(model: Model, x: Tensor) -> bool:
    """Warn if the same inputs give different logits; return whether they do."""
    with torch.no_grad():
        first, second = logits(model, x).detach(), logits(model, x).detach()
    scale = float(first.abs().amax())
    moved = (first - second).abs().amax(1) > 1e-3 * max(scale, 1e-30)
    random = bool(moved.any())
    if random:
        _warn(
            f"the model is random: two evaluations differ at {_share(moved):.1%} of "
            f"{len(x)} inputs although it is in evaluation mode. Gradients are noisy and success "
            "depends on the draw; average the model over its noise first."
        )
    return random


def _share(points: Tensor) -> float:
    return float(points.double().mean())


def _warn(message: str) -> None:
    """Warn in the name of the line outside of this package that called."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("overt.robust."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RobustnessWarning, stacklevel=level)
