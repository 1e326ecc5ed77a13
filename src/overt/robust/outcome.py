"""What attacks and evaluations return."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from overt.results import Result, Status


@dataclass(frozen=True, repr=False)
class AttackResult(Result):
    """Perturbed inputs and what they do to the model.

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
        return 1 - float(self.success.double().mean())

    def __repr__(self) -> str:
        return (
            f"AttackResult({int(self.success.sum())} of {len(self.success)} points fooled, "
            f"x={tuple(self.x.shape)}, gradients={self.gradients}, status='{self.status}')"
        )
