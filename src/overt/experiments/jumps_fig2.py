"""One-way jumps, Figure 2: with the same schedule depth 4 jumps and depth 3 does not."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import BLUE, GRAY, ORANGE, canvas
from overt.decay import jumps, two_by_two
from overt.experiments import _jumps
from overt.experiments.base import Findings, Params, Row
from overt.experiments.verdicts import Finding, above, below, share_interval

EPSILON = 0.1
PHASES = (_jumps.WARM_UP, (4500, 0.25, 0.1), (5000, 0.05, 0.001))
BY_DEPTH = {3: BLUE, 4: ORANGE}


def run(params: Params, seed: int) -> dict[str, Any]:
    """Run one depth for many seeds."""
    given = (two_by_two(EPSILON), params["depth"], _jumps.WIDTH, _jumps.schedule(*PHASES))
    found = jumps(*given, params["seeds"], records=501, seed=seed)
    return _jumps.summary(found, shown=5)


def check(rows: list[Row]) -> Findings:
    """Check how many runs of each depth jump, and when."""
    shares = {}
    for row in rows:
        count, n = _jumps.jumped(row), len(row["jump_step"])
        shallow = row["depth"] == 3
        low, high = shares[row["depth"]] = share_interval(count, n)
        steps = np.array(row["jump_step"])
        when = f", median step {np.median(steps[steps >= 0]):.0f}" if count else ""
        yield Finding(f"depth {row['depth']}: {'few' if shallow else 'most'} runs jump",
                      below((low, high), 0.5) if shallow else above((low, high), 0.5),
                      f"{count} of {n} (95%: {low:.2f} to {high:.2f}){when}",
                      "0 of 5" if shallow else "5 of 5")  # fmt: skip
    least = (shares[4][0] - shares[3][1], shares[4][1] - shares[3][0])
    yield Finding("depth 4 jumps more often than depth 3", above(least, 0),
                  f"share larger by {least[0]:.2f} to {least[1]:.2f}", "5 against 0")  # fmt: skip


def plot(rows: list[Row]) -> Any:
    """Draw the missing entry of five runs of each depth, and the survival."""
    figure, (curves, share) = canvas(9, 6, 2, 1, sharex=True)
    for row in rows:
        color = BY_DEPTH[row["depth"]]
        for k, curve in enumerate(row["missing"]):
            label = f"depth {row['depth']}" if k == 0 else None
            curves.plot(row["grid"], curve, color=color, lw=0.7, label=label)
        name = f"depth {row['depth']}, {len(row['jump_step'])} seeds, 95% band"
        _jumps.survival_panel(share, row, name, color)
    curves.axhline(1 / EPSILON, color="black", ls=":", lw=1)
    curves.set_ylabel("missing entry")
    for axes in (curves, share):
        axes.legend()
        axes.axvspan(500, 5000, color=GRAY, alpha=0.1, lw=0)
    return figure
