"""Signs that an attack's gradients cannot be trusted, said aloud with the share of points."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from overt.robust.losses import Loss
from overt.robust.model import Model, logits

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


def flatness(flat: Tensor) -> None:
    """Warn if gradients are exactly zero, or not numbers."""
    share = _share(flat)
    if share >= NOTEWORTHY:
        _warn(
            f"the gradient is zero or not a number at {share:.1%} of the points, where the attack "
            "starts: rounding, thresholds or saturated units inside the model mask it. A random "
            "start was used for these points; robustness is likely to be overestimated."
        )


def standstill(stuck: Tensor) -> None:
    """Warn if many steps along the gradient never raised the loss."""
    share = _share(stuck)
    if share >= NOTEWORTHY:
        _warn(
            f"no step raised the loss at {share:.1%} of the points although there is a gradient: "
            "it does not point uphill, which masking or random layers cause. Robustness is likely "
            "to be overestimated."
        )


def randomness(model: Model, x: Tensor) -> None:
    """Warn if the same inputs give different logits, so that gradients are random."""
    with torch.no_grad():
        first, second = logits(model, x), logits(model, x)
    scale = float(first.abs().amax())
    moved = (first - second).abs().amax(1) > 1e-3 * max(scale, 1e-30)
    if bool(moved.any()):
        _warn(
            f"the model is random: two evaluations differ at {_share(moved):.1%} of "
            f"{len(x)} inputs although it is in evaluation mode. Gradients are noisy and success "
            "depends on the draw; average the model over its noise first."
        )


def _share(points: Tensor) -> float:
    return float(points.double().mean())


def _warn(message: str) -> None:
    warnings.warn(message, RobustnessWarning, stacklevel=5)
