"""Robust error: the share of points that some allowed perturbation misclassifies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overt._check import InputError, InputTypeError, MissingExtraError, number, whole
from overt._intervals import clopper_pearson
from overt._progress import meter
from overt._types import Floats
from overt.results import Result, Status
from overt.robust.attacks import models
from overt.robust.attacks.base import Attack
from overt.robust.attacks.criteria import Misclassified
from overt.robust.attacks.results import AttackResult
from overt.robust.attacks.staged import LEAST_BUDGET, strongest
from overt.robust.threats.base import Threat, check_threat


@dataclass(frozen=True, repr=False, eq=False)
class RobustError(Result):
    """The robust error that an attack found, at one radius and along a curve.

    Attributes
    ----------
    value
        Share of the given points that are misclassified, or made to be, at the threat's radius. It
        is a lower bound on these points' true robust error: an attack never proves robustness.
    interval
        Clopper-Pearson interval, at the given confidence, for the error that the same attack has
        on the distribution that the points came from.
    clean
        Error without any perturbation.
    norm, radius, points, confidence
        What was measured.
    radii, errors, intervals
        The curve: ascending radii (k,), errors (k,), intervals (k, 2).
    smallest
        For each point the smallest of the radii at which it was fooled, 0 if it was misclassified
        to begin with, infinity if it never was, (points,).
    gradients
        Gradients evaluated in all, each point counted on its own.
    status
        "finished" or "interrupted".
    """

    value: float
    interval: tuple[float, float]
    clean: float
    norm: str
    radius: float
    points: int
    confidence: float
    radii: Floats
    errors: Floats
    intervals: Floats
    smallest: Floats
    gradients: int
    status: Status

    def plot(self) -> Any:
        """Draw the curve with its intervals."""
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError:
            raise MissingExtraError("matplotlib", "plots") from None
        figure = Figure(figsize=(5.6, 3.8), layout="constrained")
        axes = figure.add_subplot()
        self.draw(axes)
        axes.set_title(f"{self.points} points, {self.confidence:.0%} intervals", fontsize=10)
        return figure

    def draw(self, axes: Any, label: str | None = None) -> None:
        """Draw the curve with its intervals into axes of matplotlib."""
        radii, errors = np.r_[0.0, self.radii], np.r_[self.clean, self.errors]
        clean = clopper_pearson(round(self.clean * self.points), self.points, self.confidence)
        axes.fill_between(radii, *np.vstack([clean, self.intervals]).T, alpha=0.25, lw=0)
        axes.plot(radii, errors, marker="o", ms=4, label=label)
        axes.set(xlabel=f"radius ({self.norm})", ylabel="robust error found")
        axes.set(ylim=(0, 1), xlim=(0, None))
        axes.grid(alpha=0.3)


def robust_error(
    model: models.Model, x: Any, y: Any, threat: Threat, *, radii: Sequence[float] | None = None,
    attack: Attack | None = None, budget: int = 1000, confidence: float = 0.95,
    batch_size: int = models.BATCH_SIZE, seed: int = 0, warn: bool = True,
) -> RobustError:  # fmt: skip
    """Measure the robust error at the threat's radius and, if given, along smaller and larger ones.

    Radii are attacked in ascending order, each only at the points not fooled before and starting
    from their best perturbations so far, so that the curve never falls and costs little more than
    its last point.

    Parameters
    ----------
    model, x, y
        As for any attack.
    threat
        L1, L2 or Linf with the radius of interest.
    radii
        Further radii of the curve.
    attack
        Attack to use instead of `strongest`; its own threat is not used.
    budget
        Gradients that `strongest` spends on a point at most, at each radius.
    confidence
        Confidence of the intervals.
    batch_size, seed, warn
        As for any attack.
    """
    check_threat(threat)
    if attack is not None and not isinstance(attack, Attack):
        raise InputTypeError(f"attack must be FGSM, BIM, PGD or None, got {attack!r}")
    if not 0 < number("confidence", confidence) < 1:
        raise InputError(f"confidence must lie between 0 and 1, got {confidence!r}")
    whole("budget", budget, minimum=LEAST_BUDGET)
    x = models.inputs(model, x)
    threat = threat.within(x)
    further = () if radii is None else np.ravel(radii)
    curve = np.unique([number("radii", r) for r in (*further, threat.radius)])
    with models.evaluating(model):
        clean = models.clean_logits(model, x, whole("batch_size", batch_size))
    y = models.classes(y, x, clean.shape[1])
    criterion = Misclassified() if attack is None else attack.criterion
    aim = criterion.aims(y, clean.shape[1])
    wrong = criterion.met(clean, y, y if aim is None else aim).cpu().numpy()

    def attacked(rows: Tensor, radius: float, start: Tensor | None, heed: bool) -> AttackResult:
        given, allowed = (model, x[rows], y[rows]), threat.at(radius)
        if attack is None:
            how: Any = {"budget": budget, "batch_size": batch_size, "seed": seed}
            return strongest(*given, allowed, **how, start=start, warn=heed)
        chosen = dataclasses.replace(attack, threat=allowed, criterion=criterion.take(rows))
        return chosen(*given, start=start, warn=heed)

    smallest = np.where(wrong, 0.0, np.inf)
    left, start = torch.arange(len(x), device=x.device), None
    gradients, status, positive = 0, Status.FINISHED, curve[curve > 0]
    with meter("radii", len(positive), show=len(positive) > 1) as bar:
        for radius in positive:
            if len(left) == 0 or status is Status.INTERRUPTED:
                break
            found = attacked(left, float(radius), start, warn and radius == positive[0])
            fooled = left[found.success].cpu().numpy()
            smallest[fooled] = np.minimum(smallest[fooled], radius)
            gradients, status = gradients + found.gradients, found.status
            left, start = left[~found.success], found.x[~found.success]
            bar.advance(note=f"error {float(np.mean(smallest <= radius)):.3f}")
    n = len(smallest)
    counts = np.array([np.sum(smallest <= radius) for radius in curve])
    errors, intervals = counts / n, np.stack(clopper_pearson(counts, n, confidence), axis=1)
    here = int(np.searchsorted(curve, threat.radius))
    low, high = intervals[here].tolist()
    return RobustError(
        float(errors[here]), (low, high), float(np.mean(smallest == 0)), threat.name,
        float(threat.radius), n, float(confidence), curve, errors, intervals, smallest, gradients,
        status,
    )  # fmt: skip
