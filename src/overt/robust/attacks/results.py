"""What attacks return, and the signs that it cannot be trusted, said aloud with their share."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

from torch import Tensor

from overt.results import Result, Status

NOTEWORTHY = 0.01
"""Share of the points from which a sign is reported."""


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
        Which points are fooled, recomputed at x, (points,); by a random model, in most of `rate`.
    rate
        Share of fresh draws of a random model that are fooled at x, 0 or 1 for others, (points,).
    loss
        The attack's loss at x, (points,).
    gradients, queries
        Gradients, and evaluations without one, in all, each point counted on its own.
    flat
        Which points had no gradient to follow where their search began, (points,).
    broken
        Which points met a perturbation at which the model returns NaN or infinity, which counts
        as no prediction and not as success, (points,).
    warnings
        What makes the result doubtful, in words, whether it was warned of or not.
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
    warnings: tuple[str, ...]
    status: Status

    @property
    def robust_accuracy(self) -> float:
        """Share of the points that were not fooled, over fresh draws if the model is random."""
        return 1 - float(self.rate.sum()) / len(self.rate)

    def __repr__(self) -> str:
        return (
            f"AttackResult({int(self.success.sum())} of {len(self.success)} points fooled, "
            f"x={tuple(self.x.shape)}, gradients={self.gradients}, status='{self.status}')"
        )


OVER = "robustness is likely to be overestimated"
SIGNS = {
    "random": "the model is random: two evaluations differ at {} of the first inputs. Success is "
    "scored over 100 fresh samples; gradients are averaged over `samples` of them.",
    "probabilities": "the outputs look like probabilities at {} of the points and were taken for "
    'logits: pass outputs="probabilities" if the model ends in a softmax or a sigmoid.',
    "labels": "the model returns class labels at {} of the points, which have no gradient: "
    f"{OVER}. Attack its logits.",
    "modes": "layers that were given in training mode are attacked in evaluation mode: batch "
    "normalization uses its running statistics, and dropout is off if the whole model was in "
    "training mode. Call model.eval() first; dropout layers that are put into training mode after "
    "that stay random.",
    "saturated": "cross_entropy is saturated at {} of the points: the model gives the true class "
    "all of the probability, the gradient is rounding noise and the attack goes blind. Use "
    'loss="reflected", which does not saturate there.',
    "flat": "the gradient is zero or not a number at {} of the points, where the attack starts: "
    "rounding, thresholds or saturated units inside the model mask it. A random start was used for "
    f"these points; {OVER}.",
    "broken": "the model returns NaN or infinity at perturbations of {} of the points, which is "
    f"not counted as success: {OVER}.",
    "stuck": "no step raised the loss at {} of the points although there is a gradient: it does "
    f"not point uphill, which masking or random layers cause; {OVER}.",
    "lying": "the gradient promises far more than steps along it keep at {} of "
    "the points: the model masks it. Smoothed gradients and search without gradients were used "
    "there; robustness may still be overestimated, and surrogate=, a model without the masking, "
    "finds more.",
    "unaided": "search without gradients fooled {} of the points that gradients had not: they are "
    f"masked, and {OVER}. More queries, or surrogate=, a model without the masking, find more.",
    "coarse": "the radius is less than the spacing of the numbers that {} of the points are stored "
    "in: nothing can be found there. Give inputs and model in a wider format, or nearer to 0.",
    "lost": "{} of the points were fooled only by perturbations that rounding takes out of the "
    "allowed set; they count as robust. Give inputs and model in double precision.",
}
"""What cannot be trusted, said with the share of the points; in the order of reporting."""

ANY = ("random", "probabilities", "labels", "modes", "lost")
"""Signs that are reported whatever their share."""


def report(signs: dict[str, Tensor], *, warn: bool) -> tuple[str, ...]:
    """Return the messages of signs, each with its share of the points, and warn of them.

    Warnings are in the name of the line outside of this package that called.
    """
    messages = []
    for name, message in SIGNS.items():
        share = float(signs[name].double().mean()) if name in signs else 0.0
        if share > 0 and (share >= NOTEWORTHY or name in ANY):
            messages.append(message.format(f"{share:.1%}"))
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("overt.robust."):
        frame, level = frame.f_back, level + 1
    for message in messages if warn else ():
        warnings.warn(message, RobustnessWarning, stacklevel=level)
    return tuple(messages)
