"""What the experiments on one-way jumps share: the paper's schedules, and panels of curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import ORANGE
from overt.decay import Jumps, Schedule

CONVENTION = "pytorch"
WARM_UP = (500, 0.03, 0.1)
WIDTH = 100


def schedule(*phases: tuple[int, float, float]) -> Schedule:
    """Return a schedule from the numbers printed in the paper's figures."""
    return Schedule.of(phases, convention=CONVENTION)


def summary(found: Jumps, shown: int) -> dict[str, Any]:
    """Return what a row keeps of the jumps: times, survival, and the first runs' curves."""
    return {
        "jump_step": found.jump_step.tolist(),
        "diverged": int(found.runs.diverged.sum()),
        "collapsed": found.collapsed,
        "returned": found.returned,
        "below": found.below,
        "grid": found.steps.tolist(),
        "surviving": _brief(found.surviving),
        "lower": _brief(found.lower),
        "upper": _brief(found.upper),
        "ratio": _brief(found.runs.ratio[:shown]),
        "missing": _brief(found.runs.missing[:shown, :, 0]),
        "final_missing": found.runs.missing[:, -1, 0].tolist(),
        "test_error": _brief(found.runs.test_error[:shown]),
    }


def _brief(curves: Any) -> Any:
    """Return curves to the four digits that a picture shows."""
    flat = [float(f"{value:.4g}") for value in np.ravel(curves)]
    return np.reshape(flat, np.shape(curves)).tolist()


def ratio_panel(axes: Any, row: dict[str, Any], threshold: float = 0.05, shown: int = -1) -> None:
    """Draw s_2 / s_1 of the first runs; all faint but the one that is `shown`, if any."""
    for k, curve in enumerate(row["ratio"]):
        strength = 1 if k == shown else 0.25 if shown >= 0 else 0.5
        axes.plot(row["grid"], curve, color=ORANGE, lw=0.8, alpha=strength)
    axes.axhline(threshold, color="black", ls=":", lw=1)
    axes.set(yscale="log", ylim=(1e-4, 1), ylabel="$s_2 / s_1$")


def survival_panel(axes: Any, row: dict[str, Any], label: str, color: str) -> None:
    """Draw the share of runs that have not jumped, with its band."""
    axes.step(row["grid"], row["surviving"], where="post", color=color, label=label)
    axes.fill_between(row["grid"], row["lower"], row["upper"], step="post", color=color, alpha=0.2)
    axes.set(ylim=(-0.02, 1.02), xlabel="step", ylabel="share not jumped")


def jumped(row: dict[str, Any]) -> int:
    """Return how many runs of a row jumped."""
    return int(np.sum(np.array(row["jump_step"]) >= 0))
