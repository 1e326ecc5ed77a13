"""Thesis, Figure 4-1: train error, test error and their gap during completion with dropout.

The same curves for alternating minimization, against time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt.experiments._completion import measure
from overt.experiments.base import Experiment, Finding, Findings, Row, canvas, grid


def check(rows: list[Row]) -> Findings:
    """More dropout fits less and generalizes with a smaller gap; exact solves get there first."""
    for method in ("sgd", "alternating"):
        chosen = sorted(
            (row for row in rows if row["method"] == method), key=lambda r: r["drop_prob"]
        )
        train = [row["train"][-1] for row in chosen]
        gap = [row["test"][-1] - row["train"][-1] for row in chosen]
        shown = ", ".join(f"{r['drop_prob']:g}: {g:.3f}" for r, g in zip(chosen, gap, strict=True))
        yield Finding(
            f"{method}: more dropout, larger training error and smaller gap",
            train == sorted(train) and gap == sorted(gap, reverse=True),
            f"gap {shown}",
            "ordered by drop probability",
        )
    for drop_prob in sorted({row["drop_prob"] for row in rows} - {0.0}):
        exact, sgd = (
            next(r for r in rows if r["method"] == m and r["drop_prob"] == drop_prob)
            for m in ("alternating", "sgd")
        )
        ratio = time_ratio(exact, sgd)
        yield Finding(
            f"drop probability {drop_prob:g}: exact solves come within 1 per cent of their "
            "final objective before SGD does",
            np.isinf(sgd_time(exact, sgd)) or ratio > 1,
            f"SGD takes {'more than ' if np.isinf(sgd_time(exact, sgd)) else ''}"
            f"{ratio:.0f} times as long",
        )


def sgd_time(exact: Row, sgd: Row) -> float:
    """Return when SGD first comes within 1 per cent of the exact solver's objective."""
    bar = 1.01 * exact["objective"][-1]
    reached = [t for t, f in zip(sgd["times"], sgd["objective"], strict=True) if f <= bar]
    return reached[0] if reached else float("inf")


def time_ratio(exact: Row, sgd: Row) -> float:
    """Return SGD's time over the exact solver's; a lower bound where SGD never arrived."""
    bar = 1.01 * exact["objective"][-1]
    arrived = next(t for t, f in zip(exact["times"], exact["objective"], strict=True) if f <= bar)
    return min(sgd_time(exact, sgd), sgd["times"][-1]) / arrived


def plot(rows: list[Row]) -> Any:
    """Draw train error, test error and gap against seconds."""
    from matplotlib.ticker import NullFormatter

    figure, axes = canvas(12, 4, 1, 3)
    probs = sorted({row["drop_prob"] for row in rows})
    for row in rows:
        color = f"C{probs.index(row['drop_prob'])}"
        style = "-" if row["method"] == "alternating" else ":"
        train, test = np.array(row["train"]), np.array(row["test"])
        label = f"{row['method']}, drop {row['drop_prob']:g}"
        for panel, values in zip(axes, (train, test, test - train), strict=True):
            panel.plot(row["times"], values, style, color=color, label=label)
    for panel, title in zip(axes, ("training RMSE", "test RMSE", "gap"), strict=True):
        panel.set(title=title, xscale="log")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel("seconds")
    axes[0].legend(fontsize="x-small")
    return figure


EXPERIMENT = Experiment(
    id="thesis-fig4-1",
    title="Error during completion with dropout",
    source="Thesis, Figure 4-1",
    claim="a larger drop probability fits less and generalizes with a smaller gap; solved exactly, "
    "the same objective is reached much sooner",
    grids={
        "toy": grid(data="generated", method=["sgd", "alternating"], drop_prob=[0.0, 0.2, 0.4],
                    width=15, epochs=25, sweeps=15, learning_rate=1.0, batch_size=100),
        "full": grid(data="largest", method=["sgd", "alternating"],
                     drop_prob=[0.0, 0.1, 0.2, 0.3, 0.4], width=70, epochs=100, sweeps=100,
                     learning_rate=1.0, batch_size=2000),
    },
    run=measure, check=check, plot=plot,
)  # fmt: skip
