"""One-way jumps, Figure 4: periods of noise let SGD jump, quiet periods show that it did."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import YELLOW, canvas
from overt.decay import Schedule, jumps, two_by_two
from overt.experiments._jumps import WARM_UP, WIDTH, summary, survival_panel
from overt.experiments.base import Findings, Params, Row
from overt.experiments.verdicts import Finding, above, share_interval, together

DEPTH, EPSILON, PERIOD = 3, 0.2, 1000


def run(params: Params, seed: int) -> dict[str, Any]:
    """Run the periodic schedule for many seeds, ending in a quiet phase."""
    problem, phases = two_by_two(EPSILON), Schedule.periodic(params["periods"], PERIOD)
    path = Schedule((*phases.phases, phases.phases[1]))
    found = jumps(
        problem, DEPTH, WIDTH, path, params["seeds"], records=path.steps // 20 + 1, seed=seed
    )
    return summary(found, shown=5)


def check(rows: list[Row]) -> Findings:
    """Check that all runs jump, and that they do it in noisy phases."""
    (row,) = rows
    steps = np.array(row["jump_step"])
    done = steps[steps >= 0]
    # The last record above the threshold may come up to one record before the phase begins.
    noisy = ((done + 20 - WARM_UP[0]) // PERIOD) % 2 == 1
    final = np.array(row["final_missing"])[steps >= 0]
    kept = final[np.abs(final) > 1e-3]
    lost, n = row["diverged"] + row["collapsed"], len(steps)
    yield Finding("most runs jump to rank 1, and none comes back",
                  together(above(share_interval(row["below"], n), 0.5), row["returned"] == 0),
                  f"{row['below']} of {n}, {row['returned']} came back", "5 of 5")  # fmt: skip
    yield Finding("jumps happen in noisy phases, more than by chance",
                  above(share_interval(int(noisy.sum()), max(len(done), 1)), 0.5),
                  f"{int(noisy.sum())} of {len(done)} in noisy phases", "all")  # fmt: skip
    filled = int(np.sum(kept > 0.5 / EPSILON))
    yield Finding("after the jump quiet phases fill in the missing entry (above half of it)",
                  above(share_interval(filled, max(len(kept), 1)), 0.5),
                  f"A12 {kept.min():.2f} to {kept.max():.2f}" if len(kept) else "none",
                  "close to 1/epsilon = 5")  # fmt: skip
    yield Finding("the rate .4 is at the edge: later noisy phases throw some runs out",
                  above(share_interval(lost, n), 0),
                  f"{row['diverged']} of {n} diverged, {row['collapsed']} fell to rank 0",
                  "not mentioned")  # fmt: skip


def plot(rows: list[Row]) -> Any:
    """Draw the test error of five runs over the alternating phases."""
    (row,) = rows
    figure, (error, share) = canvas(9, 6, 2, 1, sharex=True)
    for curve in row["test_error"]:
        error.plot(row["grid"], curve, lw=0.8)
    error.set(yscale="log", ylabel="test error / that of zeros")
    survival_panel(share, row, "", "black")
    share.set_xlabel(f"step (shaded: noisy; {len(row['jump_step'])} seeds, 95% band)")
    for start in range(WARM_UP[0] + PERIOD, row["grid"][-1], 2 * PERIOD):
        for axes in (error, share):
            axes.axvspan(start, start + PERIOD, color=YELLOW, alpha=0.15, lw=0)
    return figure
