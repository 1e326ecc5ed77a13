"""Robust error: the share of points that some allowed perturbation misclassifies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from overt._check import Bools, Floats, InputError, instance, number
from overt._figures import subplots
from overt._intervals import clopper_pearson
from overt._running import meter
from overt.results import Result, Status
from overt.robust.attack.base import Attack, AttackState
from overt.robust.attack.ensemble import run_ensemble
from overt.robust.attack.results import Stage, report, stage_table
from overt.robust.certify.bounds import compare, decide, read_network
from overt.robust.certify.network import ReluNetwork
from overt.robust.models import BATCH_SIZE, Model, ModelOptions, evaluation_mode
from overt.robust.threats import Threat

MAX_ROUNDING = 100
"""Machine epsilons of the largest logit by which two evaluations of a model may differ."""


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
    success
        Which points are fooled at the threat's radius, (points,).
    proved
        Which points no allowed perturbation fools, by a certificate for the network in exact
        arithmetic; none without certify=True, (points,).
    gradients, queries
        Gradients, and evaluations without one, in all, each point and each sample counted.
    stages
        What each stage of the attack found and cost: attack, points, gradients, queries.
    warnings
        What makes the result doubtful, in words, whether it was warned of or not.
    status
        "finished" or "interrupted".
    x
        The perturbed inputs at the threat's radius, shaped like the given ones.
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
    success: Bools
    proved: Bools
    gradients: int
    queries: int
    stages: tuple[Stage, ...]
    warnings: tuple[str, ...]
    status: Status
    x: Tensor | None = None

    @property
    def upper(self) -> float:
        """Upper bound on the robust error of these points: the share not proved robust."""
        return 1 - float(np.mean(self.proved))

    def table(self) -> str:
        """Return what each stage of the attack found and cost, as lines of text."""
        return stage_table(self.stages)

    def plot(self) -> Any:
        """Plot the curve with its intervals."""
        figure, ((axes,),) = subplots(1, 1, (5.6, 3.8))
        low, high = self.intervals.T
        axes.fill_between(self.radii, low, high, alpha=0.25, lw=0)
        radii = np.r_[0.0, self.radii]
        errors = np.r_[self.clean, self.errors]
        axes.plot(radii, errors, marker="o", ms=4)
        axes.set(xlabel=f"radius ({self.norm})", ylabel="robust error found")
        axes.set(ylim=(0, 1), xlim=(0, None))
        title = f"{self.points} points, {self.confidence:.0%} intervals"
        axes.set_title(title, fontsize=10)
        return figure


def robust_error(
    model: Model,
    x: Any,
    y: Any = None,
    threat: Threat | None = None,
    *,
    radii: Sequence[float] | None = None,
    attack: Attack | None = None,
    budget: int = 1000,
    queries: int = 1500,
    surrogate: Model | None = None,
    target: Any = None,
    confidence: float = 0.95,
    certify: bool = False,
    seconds: float = 10.0,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    warn: bool = True,
    **options: Unpack[ModelOptions],
) -> RobustError:
    """Measure the robust error at the threat's radius and, if given, along smaller and larger ones.

    Radii are attacked in ascending order, each only at the points not fooled before and starting
    from their best perturbations so far, so that the curve never falls and costs little more than
    its last point. The error of a random model is that over fresh samples of it.

    Parameters
    ----------
    model, x, y
        As for any attack; a DataLoader may stand for x and y.
    threat
        L1, L2 or Linf with the radius of interest.
    radii
        Further radii of the curve.
    attack
        Attack to use instead of `strongest`; its own threat is not used.
    budget, queries, surrogate
        As for `strongest`, at each radius.
    target
        The class that predictions are to reach; None: any wrong one. An attack has its own.
    confidence
        Confidence of the intervals.
    certify, seconds
        Whether to decide, at the threat's radius, what the attack leaves open: by linear bounds,
        and by a mixed-integer program for at most `seconds` a point where the network is small
        enough. A network with parts that are not modelled is refused.
    batch_size, seed, warn, output, outputs, mean, std, samples
        As for any attack.
    """
    if attack is not None:
        instance("attack", attack, Attack, "FGSM, BIM, PGD, Square or None")
    if not 0 < number("confidence", confidence) < 1:
        raise InputError(f"confidence must lie between 0 and 1, got {confidence!r}")
    number("seconds", seconds)
    state = AttackState(
        model,
        x,
        y,
        threat,
        target=target if attack is None else attack.target,
        batch_size=batch_size,
        options=options,
    )
    threat = state.threat
    further = () if radii is None else np.ravel(radii).tolist()
    curve = np.unique([number("radii", r) for r in (*further, threat.radius)])
    # A point of the target class is right, and not an error, when it is predicted.
    counts = (state.y != state.target).cpu().numpy() if state.targeted else True
    proved = np.zeros(len(state.x), bool)
    perturbed = state.x
    with evaluation_mode(model), meter("radii", len(curve), show=len(curve) > 1) as bar:
        network = _network(state) if certify else None
        clean = _numbers(state.success_rate(state.x)[1]) * counts
        rates = []
        for radius in curve:
            state.set_radius(threat.with_radius(float(radius)))
            state.start = state.region.project(state.best.delta)
            if attack is None:
                run_ensemble(state, budget, queries, surrogate, seed)
            else:
                state.flag_saturation(attack)
                state.run(attack)
            stopped = state.status is Status.INTERRUPTED
            if network is not None and radius == threat.radius and not stopped:
                proved = _decide(state, network, float(seconds))
            moved = state.stored()
            rate = state.success_rate(moved)[1]
            if radius == threat.radius:
                perturbed = moved
            state.add_doubts(rate > 0.5)
            rates.append(_numbers(rate) * counts if radius > 0 else clean)
            bar.advance(note=f"error {float(rates[-1].mean()):.3f}")
    n = len(clean)
    fooled = np.array(rates).sum(1)
    intervals = np.stack(clopper_pearson(fooled, n, confidence), axis=1)
    at = np.searchsorted(curve, threat.radius)
    low, high = intervals[at].tolist()
    return RobustError(
        value=float(fooled[at] / n),
        interval=(low, high),
        clean=float(clean.mean()),
        norm=threat.name,
        radius=float(threat.radius),
        points=n,
        confidence=float(confidence),
        radii=curve,
        errors=fooled / n,
        intervals=intervals,
        success=rates[at] > 0.5,
        proved=proved,
        gradients=state.best.gradients,
        queries=state.best.queries,
        stages=tuple(state.stages),
        warnings=report(state.flags, warn=warn),
        status=state.status,
        x=perturbed,
    )


def _network(state: AttackState) -> ReluNetwork:
    """Return the state's model as a network to certify, or say why there is none."""
    again = state.adapter.all_logits(state.x, state.batch_size)
    # Noise too small to count as random may still move points that lie near a boundary.
    rounding = MAX_ROUNDING * state.adapter.precision * float(again.abs().max())
    same = torch.allclose(again, state.clean, rtol=0, atol=rounding)
    if state.targeted or state.random or not same:
        raise InputError(
            "certify needs a model that is not random, and any wrong class to count"
        )
    return read_network(state.adapter, state.region, state.batch_size)


def _decide(state: AttackState, network: ReluNetwork, seconds: float) -> Bools:
    """Decide the points that are left; enter perturbations that fool the model itself."""
    compare(network, state.adapter, state.stored().to(state.x), state.batch_size)
    left = state.left
    proved = np.zeros(len(state.x), bool)
    with state.stage("certificate"):
        region = state.region.take(left).changed(lambda part: part.cpu().double())
        decision = decide(network, region, state.y[left].cpu(), seconds)
        proved[left.cpu().numpy()] = decision.below(0.0)
        delta = torch.from_numpy(decision.x) - region.x
        leads = np.flatnonzero(decision.lead >= 0)
        if len(leads):
            rows = left[leads]
            batch = state.batch(rows)
            found = batch.region.project(delta[leads].to(batch.region.x))
            stored = batch.region.store_exactly(found).to(found)
            value, fooled = batch.evaluate(stored)
            state.best.enter(rows, found, value, fooled)
        state.status = decision.status
    return proved


def _numbers(values: Tensor) -> Floats:
    return np.asarray(values.double().cpu())
