"""What attacks return, and the warnings that say when not to believe it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from overt.results import Result, Status

MIN_REPORTED_SHARE = 0.01
"""Share of the points from which a warning is worth reporting."""


class RobustnessWarning(UserWarning):
    """The robust accuracy that was found may be far above the true one."""


@dataclass(frozen=True, repr=False, eq=False)
class Stage(Result):
    """One stage of an attack, its cost, and how many points it was the first to fool."""

    attack: str
    points: int
    gradients: int
    queries: int


@dataclass(frozen=True, repr=False, eq=False)
class AttackResult(Result):
    """Perturbed inputs and what they do to the model; tensors, or arrays once loaded from a file.

    Attributes
    ----------
    x
        Perturbed inputs, shaped like the given ones and in their number format, or in the model's
        if that is narrower: the first iterate that fools the model, or the one of the largest
        loss. A point that was misclassified to begin with stays as it was.
    success
        Which points are fooled, recomputed at x, (points,). For a random model: in most samples.
    rate
        Share of 100 fresh samples of a random model that are fooled at x, 0 or 1 for others,
        (points,).
    loss
        The attack's loss at x, (points,).
    gradients, queries
        Gradients, and evaluations without one, in all; each point and each sample counts.
    flat
        Which points had no gradient to follow where their search began, (points,).
    broken
        Which points met a perturbation at which the model returns NaN or infinity, which counts
        as no prediction and not as success, (points,).
    stages
        What each stage of the attack found and cost.
    warnings
        What makes the result doubtful, in words, whether or not a warning was shown.
    status
        "finished" or "interrupted".
    """

    x: Tensor
    success: Tensor
    rate: Tensor
    loss: Tensor
    gradients: int
    queries: int
    flat: Tensor
    broken: Tensor
    stages: tuple[Stage, ...]
    warnings: tuple[str, ...]
    status: Status

    @property
    def robust_accuracy(self) -> float:
        """Share of the points that were not fooled, over fresh samples if the model is random."""
        return 1 - float(self.rate.sum()) / len(self.rate)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({int(self.success.sum())} of {len(self.success)} fooled, "
            f"x={tuple(self.x.shape)}, gradients={self.gradients}, status='{self.status}')"
        )


def stage_table(stages: tuple[Stage, ...]) -> str:
    """Return the stages as lines of a table."""
    lines = [f"{'attack':<28} {'found':>7} {'gradients':>11} {'queries':>11}"]
    lines += [
        f"{stage.attack:<28} {stage.points:>7} {stage.gradients:>11,} {stage.queries:>11,}"
        for stage in stages
    ]
    return "\n".join(lines)


LIKELY = "robustness is likely to be overestimated"
SURROGATE = (
    "Pass surrogate= (the same model without the masking layer) for a stronger attack."
)
MESSAGES = {
    "random": "the model is random: two evaluations differ at {} of the first inputs. Success is "
    "decided by the majority of 100 samples, and gradients are averaged over `samples` of them.",
    "modes": "layers that were given in training mode are attacked in evaluation mode: batch "
    "normalization uses its running statistics, and dropout is off if the whole model was in "
    "training mode. Call model.eval() first; dropout layers that are put into training mode after "
    "that stay random.",
    "batch": "the logits of a point depend on the other points of its batch, as with batch "
    "normalization without running statistics. The result is that of these batches, not of single "
    "points.",
    "probabilities": "the outputs look like probabilities at {} of the points, and were taken for "
    'logits: pass outputs="probabilities" if the model ends in a softmax or a sigmoid.',
    "labels": "the model returns class labels at {} of the points: there is no gradient, and "
    f"attacks that use decisions alone need many queries; {LIKELY}. Attack the logits.",
    "saturated": "cross_entropy is saturated at {} of the points: the model gives the true class "
    "all of the probability and the gradient is rounding noise. Use "
    'loss="reflected", which does not saturate there.',
    "flat": "the gradient is zero or not a number at {} of the points where the attack starts: "
    "rounding, thresholds or saturated units inside the model mask it. A random start was used for "
    f"these points; {LIKELY}.",
    "broken": "the model returns NaN or infinity at perturbations of {} of the points, which is "
    f"not counted as success: {LIKELY}.",
    "stuck": "no step raised the loss at {} of the points although there is a gradient: it does "
    "not point uphill, which masking or random layers cause, or the radius is below the spacing of "
    f"the inputs' number format; {LIKELY}.",
    "masked": "steps along the gradient gain far less than it promises at {} of the points: the "
    "model masks its gradients. Smoothed gradients and a full search without gradients were used; "
    f"robustness may still be overestimated. {SURROGATE}",
    "unaided": "search without gradients fooled {} of the points that gradients had not: they are "
    f"masked, and {LIKELY}. {SURROGATE}",
    "lost": "{} of the points were fooled only by perturbations that rounding takes out of the "
    "allowed set; they count as robust. Pass inputs and model in double precision.",
}
"""What makes a result doubtful, with the share of the points; in the order of reporting."""

ALWAYS_REPORTED = ("random", "probabilities", "labels", "modes", "batch", "lost")


def report(
    flags: dict[str, Any], *, warn: bool, stacklevel: int = 3
) -> tuple[str, ...]:
    """Return the messages of flagged points, each with its share, and warn of them."""
    messages = []
    for name, message in MESSAGES.items():
        share = float(flags[name].double().mean())
        if share > 0 and (share >= MIN_REPORTED_SHARE or name in ALWAYS_REPORTED):
            messages.append(message.format(f"{share:.1%}"))
    for message in messages if warn else ():
        warnings.warn(message, RobustnessWarning, stacklevel=stacklevel)
    return tuple(messages)
