"""Pictures of training runs beside the exact optimum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from overt.results import Trace

INK, ACCENT, QUIET = "#1f6f8b", "#c8553d", "#8a97a3"


def objective_figure(runs: Sequence[tuple[str, Trace]]) -> Any:
    """Draw the objective of each run above its imbalance; band: spread over the seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * max(len(runs), 1.5), 5.6), layout="constrained")
    axes: Any = figure.subplots(2, len(runs), squeeze=False, sharex=True)
    for column, (title, run) in enumerate(runs):
        draw_objective(axes[0][column], run.steps, run.objective, run.optimum)
        draw_band(axes[1][column], run.steps, run.imbalance, INK)
        axes[0][column].set_title(title)
        axes[1][column].set_yscale("log")
        axes[1][column].set_xlabel("step")
    axes[0][0].set_ylabel("objective")
    axes[1][0].set_ylabel("imbalance")
    return figure


def draw_objective(axes: Any, steps: Any, objective: Any, optimum: float) -> None:
    """Draw the mean objective with its spread, and the exact optimum as a dashed line."""
    draw_band(axes, steps, objective, INK, label="training with noise")
    axes.axhline(optimum, color=ACCENT, ls="--", lw=1.4, label="exact optimum")
    axes.set_yscale("log")


def draw_band(axes: Any, steps: Any, values: Any, color: str, label: str | None = None) -> None:
    """Draw the mean over seeds and the band from the lowest to the highest."""
    steps, values = np.maximum(np.asarray(steps), 1), np.asarray(values)
    axes.fill_between(
        steps, np.nanmin(values, 0), np.nanmax(values, 0), color=color, alpha=0.2, lw=0
    )
    axes.plot(steps, np.nanmean(values, 0), color=color, lw=1.6, label=label)
    axes.set_xscale("log")
