"""How far the bound of sets of units closes the gap of noises over correlated units."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import BLUE, ORANGE, canvas
from overt.linear import LinearNetwork
from overt.linear.bounds import pairs_below
from overt.linear.unit_sets import solver_package
from overt.noise import CovarianceNoise, DropBlock
from overt.papers.figures import Finding, Findings, Params, Row
from overt.papers.records import figure


def _characteristic(name: str, d: int) -> Any:
    """Return Gamma of arcs of 2 on a ring, blocks of 2 at any place, or decaying correlation."""
    shift = np.subtract.outer(np.arange(d), np.arange(d))
    if name == "ring":
        # Two units at a distance t < 2 share 2 - t of the d arcs.
        distance = np.minimum(shift % d, -shift % d)
        both = (d - 4 + np.maximum(2 - distance, 0)) / d
        return both / ((d - 2) / d) ** 2 - 1
    if name == "sliding":
        return DropBlock(0.5, 2, "sliding").characteristic(d)
    return 0.6 ** np.abs(shift)


def run_gaps(params: Params, seed: int) -> dict[str, Any]:
    """Return the best network that is known, and the bounds before and after."""
    Gamma = _characteristic(params["noise"], params["width"])
    d = len(Gamma)
    s = np.arange(d, 0, -1) / d
    network = LinearNetwork(np.diag(s), d, CovarianceNoise(np.ones(d), Gamma))
    return {
        "objective": network.solve().objective,
        "before": max(costs.bound(s) for costs in pairs_below(Gamma)),
        "after": network.bound(),
        "solver": solver_package() is not None,
    }


def check_gaps(rows: list[Row]) -> Findings:
    """Yield whether bounds are below the best network, and by how much less than before."""
    over = [row["after"] / row["objective"] - 1 for row in rows]
    yield Finding(
        "no bound exceeds the best network",
        max(over) < 1e-9,
        f"largest excess {max(over):.1e}, relative",
    )
    worse = sum(row["after"] < row["before"] * (1 - 1e-9) for row in rows)
    yield Finding(
        "the bound of sets is never lower", worse == 0, f"lower {worse} times"
    )
    if all(row["solver"] for row in rows):
        gaps = [1 - row["after"] / row["objective"] for row in rows]
        yield Finding(
            "sets leave a gap of at most 5 %",
            max(gaps) < 0.05,
            f"largest gap {max(gaps):.3f}",
        )


def plot_gaps(rows: list[Row]) -> Any:
    """Draw the gap before and after for every noise."""
    picture, axes = canvas(9, 4)
    places = np.arange(len(rows))
    for offset, name, color in ((-0.2, "before", ORANGE), (0.2, "after", BLUE)):
        gaps = [100 * (1 - max(row[name], 0.0) / row["objective"]) for row in rows]
        label = "one unit, all units" if name == "before" else "sets of units"
        axes.bar(places + offset, gaps, 0.4, color=color, label=label)
    axes.set_xticks(places, [f"{row['noise']}\n{row['width']} units" for row in rows])
    axes.set(ylabel="gap below the best network, %")
    axes.legend()
    return picture


figure(
    "noise-gaps",
    "The gap by noise",
    "any noise",
    """Sets of units close the gap of correlated noise.

    For arcs of a ring the bound goes from nothing to the optimum; for sliding blocks and for
    correlations that decay with distance a few hundredths remain open.
    """,
    run=run_gaps,
    check=check_gaps,
    plot=plot_gaps,
    differs={"toy": "our own figure", "paper": "our own figure"},
    sizes={
        "toy": {"noise": ["ring", "sliding", "decaying"], "width": [6]},
        "paper": {"noise": ["ring", "sliding", "decaying"], "width": [6, 8, 12]},
    },
)
