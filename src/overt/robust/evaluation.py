"""Robust error: the share of points that some allowed perturbation misclassifies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from torch import Tensor

from overt._check import InputError, InputTypeError, number, whole
from overt._figures import subplots
from overt._intervals import clopper_pearson
from overt._progress import meter
from overt._types import Bools, Floats
from overt.results import Result, Status
from overt.robust.attacks import models
from overt.robust.attacks.base import Attack
from overt.robust.attacks.criteria import Criterion, Misclassified
from overt.robust.attacks.results import report
from overt.robust.attacks.staged import LEAST_BUDGET, begin, run_stages
from overt.robust.certificates.bounds import chain_of, decide
from overt.robust.threats import Threat


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
        to begin with, infinity if it never was ("never" in JSON), (points,).
    proved
        Which points no allowed perturbation fools, by a certificate for the network in exact
        arithmetic; none unless it was asked for, (points,).
    gradients, queries
        Gradients, and evaluations without one, in all, each point counted on its own.
    warnings
        What makes the result doubtful, in words, whether it was warned of or not.
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
    proved: Bools
    gradients: int
    queries: int
    warnings: tuple[str, ...]
    status: Status

    def __post_init__(self) -> None:
        if np.asarray(self.smallest).dtype.kind == "U":  # from JSON, which has no infinity
            words = np.where(self.smallest == "never", "inf", self.smallest)
            object.__setattr__(self, "smallest", words.astype(float))

    @property
    def upper(self) -> float:
        """Upper bound on the robust error of these points: the share not proved robust."""
        return 1 - float(np.mean(self.proved))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, "never" where no radius was large enough."""
        stored = super().to_dict()
        return stored | {"smallest": ["never" if r is None else r for r in stored["smallest"]]}

    def plot(self) -> Any:
        """Draw the curve with its intervals."""
        figure, axes = subplots(1, 1, (5.6, 3.8))
        self.draw(axes[0][0])
        axes[0][0].set_title(f"{self.points} points, {self.confidence:.0%} intervals", fontsize=10)
        return figure

    def draw(self, axes: Any, label: str | None = None) -> None:
        """Draw the curve with its intervals into axes of matplotlib."""
        radii, errors = np.r_[0.0, self.radii], np.r_[self.clean, self.errors]
        clean = clopper_pearson(round(self.clean * self.points), self.points, self.confidence)
        axes.fill_between(radii, *np.vstack([clean, self.intervals]).T, alpha=0.25, lw=0)
        axes.plot(radii, errors, marker="o", ms=4, label=label)
        axes.set(xlabel=f"radius ({self.norm})", ylabel="robust error found")
        axes.set(ylim=(0, 1), xlim=(0, None))


def robust_error(
    model: models.Model, x: Any, y: Any = None, threat: Threat | None = None, *,
    radii: Sequence[float] | None = None, attack: Attack | None = None, budget: int = 1000,
    queries: int = 1500, surrogate: models.Model | None = None, confidence: float = 0.95,
    certify: bool = False, seconds: float = 10.0, batch_size: int = models.BATCH_SIZE,
    seed: int = 0, warn: bool = True, **run: Unpack[models.Door],
) -> RobustError:  # fmt: skip
    """Measure the robust error at the threat's radius and, if given, along smaller and larger ones.

    Radii are attacked in ascending order, each only at the points not fooled before and starting
    from their best perturbations so far, so that the curve never falls and costs little more than
    its last point. The error of a random model is that over fresh draws of it.

    Parameters
    ----------
    model, x, y
        As for any attack.
    threat
        L0, L1, L2 or Linf with the radius of interest.
    radii
        Further radii of the curve.
    attack
        Attack to use instead of `strongest`; its own threat is not used.
    budget, queries, surrogate
        As for `strongest`, at each radius.
    confidence
        Confidence of the intervals.
    certify, seconds
        Whether to decide, at the threat's radius, what the attack leaves open: by linear bounds,
        and by a mixed-integer program for at most so many seconds a point where the network is
        small enough. Needs a torch.nn.Sequential of affine layers, convolutions and rectifiers.
    batch_size, seed, warn, output, mean, std, samples
        As for any attack.
    """
    return measure(
        model, x, y, threat, radii, attack, (budget, queries, surrogate), confidence,
        (certify, seconds), batch_size, seed, warn, run,
    )[0]  # fmt: skip


def measure(
    model: models.Model, x: Any, y: Any, threat: Threat | None, radii: Any, attack: Attack | None,
    effort: tuple[int, int, models.Model | None], confidence: float, proof: tuple[bool, float],
    batch_size: int, seed: int, warn: bool, run: models.Door,
    criterion: Criterion = Misclassified(),  # noqa: B008  (immutable)
) -> tuple[RobustError, Tensor]:  # fmt: skip
    """Return the robust error and the perturbed inputs at the threat's radius.

    The criterion is that of `strongest`; an attack has its own.
    """
    if attack is not None and not isinstance(attack, Attack):
        raise InputTypeError(f"attack must be FGSM, BIM, PGD, Square or None, got {attack!r}")
    confidence = number("confidence", confidence)
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie between 0 and 1, got {confidence!r}")
    budget, queries, surrogate = effort
    whole("budget", budget, minimum=LEAST_BUDGET)
    further = () if radii is None else np.ravel(radii)
    criterion = criterion if attack is None else attack.criterion
    search = begin(model, x, y, threat, criterion, batch_size, run)
    threat = search.threat
    curve = np.unique([number("radii", r) for r in (*further, threat.radius)])
    # A point whose class is the one aimed at is right, and not an error, when it is predicted.
    chain, proved = chain_of(search) if proof[0] else None, np.zeros(len(search.x), bool)
    proper = (search.y != search.aim).cpu().numpy() if search.targeted else True
    with search:
        clean = _numbers(search.score(search.x)[1]) * proper
    smallest, rates = np.where(clean > 0.5, 0.0, np.inf), [clean for r in curve if r == 0]
    positive, here = curve[curve > 0], search.x
    with search, meter("radii", len(positive), show=len(positive) > 1) as bar:
        for radius in positive:
            search.limit(search.threat.with_radius(float(radius)))
            start = search.x + search.best.delta.view_as(search.x)
            if attack is None:
                run_stages(search, budget, queries, 9, surrogate, seed, start)
            else:
                search.note_saturation(attack)
                search.stage(attack, start=start)
            if chain is not None and radius == threat.radius:
                proved = decide(search, chain, number("seconds", proof[1]))
            moved = search.settled()
            rate = search.score(moved)[1]
            here = moved if radius == threat.radius else here
            search.doubt(rate > 0.5)
            rates.append(_numbers(rate) * proper)
            smallest[(rates[-1] > 0.5) & (smallest > radius)] = radius
            bar.advance(note=f"error {float(rates[-1].mean()):.3f}")
    counts, n = np.array(rates).sum(1), len(smallest)
    errors, intervals = counts / n, np.stack(clopper_pearson(counts, n, confidence), axis=1)
    at = int(np.searchsorted(curve, threat.radius))
    low, high = intervals[at].tolist()
    result = RobustError(
        float(errors[at]), (low, high), float(clean.mean()), threat.name, float(threat.radius),
        n, float(confidence), curve, errors, intervals, smallest, proved, search.best.gradients,
        search.best.queries, report(search.signs, warn=warn), search.status,
    )  # fmt: skip
    return result, here


def _numbers(values: Tensor) -> Floats:
    return np.asarray(values.double().cpu())
