"""Robust error: the share of points that some allowed perturbation misclassifies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from overt._check import InputError, InputTypeError, number, whole
from overt._progress import meter
from overt._types import Floats
from overt.results import Result, Status
from overt.robust.attack import Attack
from overt.robust.criteria import Misclassified
from overt.robust.model import Model, classes, clean_logits, evaluation, inputs
from overt.robust.outcome import AttackResult
from overt.robust.strongest import strongest
from overt.robust.threat import Threat, check_threat


@dataclass(frozen=True, repr=False)
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
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.6, 3.8), layout="constrained")
        axes: Any = figure.add_subplot()
        radii = np.concatenate([[0.0], self.radii])
        clean = interval(round(self.clean * self.points), self.points, self.confidence)
        errors = np.concatenate([[self.clean], self.errors])
        bands = np.vstack([[clean], self.intervals])
        axes.fill_between(radii, bands[:, 0], bands[:, 1], alpha=0.25, lw=0)
        axes.plot(radii, errors, marker="o", ms=4)
        axes.set_xlabel(f"radius ({self.norm})")
        axes.set_ylabel("robust error found")
        axes.set_ylim(0, 1)
        axes.set_xlim(0, None)
        axes.grid(alpha=0.3)
        axes.set_title(f"{self.points} points, {self.confidence:.0%} intervals", fontsize=10)
        return figure


def robust_error(
    model: Model,
    x: Any,
    y: Any,
    threat: Threat,
    *,
    radii: Sequence[float] | None = None,
    attack: Attack | None = None,
    budget: int = 1000,
    confidence: float = 0.95,
    batch_size: int = 1024,
    seed: int = 0,
    warn: bool = True,
) -> RobustError:
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
    whole("budget", budget, minimum=24)
    x = inputs(model, x)
    threat = threat.within(x)
    further = () if radii is None else np.ravel(radii)
    curve = np.unique([number("radii", r) for r in (*further, threat.radius)])
    with evaluation(model):
        clean = clean_logits(model, x, whole("batch_size", batch_size))
    y = classes(y, x, clean.shape[1])
    criterion = Misclassified() if attack is None else attack.criterion
    aim = criterion.aims(y, clean.shape[1])
    wrong = criterion.met(clean, y, y if aim is None else aim).cpu().numpy()

    def attacked(rows: Any, radius: float, start: Any, heed: bool) -> AttackResult:
        allowed = threat.at(radius)
        if attack is None:
            return strongest(
                model, x[rows], y[rows], allowed,
                start=start, budget=budget, batch_size=batch_size, seed=seed, warn=heed,
            )  # fmt: skip
        chosen = dataclasses.replace(attack, threat=allowed, criterion=criterion.take(rows))
        return chosen(model, x[rows], y[rows], start=start, warn=heed)

    smallest = np.where(wrong, 0.0, np.inf)
    left, start, gradients, status = torch.arange(len(x), device=x.device), None, 0, Status.FINISHED
    positive = curve[curve > 0]
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
    counts = np.array([np.sum(smallest <= radius) for radius in curve])
    intervals = np.array([interval(int(k), len(x), confidence) for k in counts])
    here = int(np.searchsorted(curve, threat.radius))
    low, high = intervals[here]
    return RobustError(
        float(counts[here] / len(x)),
        (float(low), float(high)),
        float(np.mean(wrong)),
        threat.name,
        float(threat.radius),
        len(x),
        float(confidence),
        curve,
        counts / len(x),
        intervals,
        smallest,
        gradients,
        status,
    )


def interval(count: int, total: int, confidence: float) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a share, which never covers less than it says."""
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, count, total - count + 1)) if count > 0 else 0.0
    high = float(beta.ppf(1 - tail, count + 1, total - count)) if count < total else 1.0
    return low, high
