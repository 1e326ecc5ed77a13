"""The local minima of the 2 x 2 problem by rank, against the weight decay."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import BLUE, GRAY, ORANGE, canvas
from overt.decay import existence, minima, two_by_two
from overt.experiments.base import Findings, Params, Row
from overt.experiments.verdicts import Finding
from overt.theorems._descent import descend
from overt.theorems._oracles import chain
from overt.theorems.decay import network

DECAYS = (0.025, 0.00025)
"""Where random descents try to find a minimum that is not on the list."""


def run(params: Params, seed: int) -> dict[str, Any]:
    """Find the minima on a ladder of weight decays, and descend from random weights at two."""
    depth, epsilon = params["depth"], params["epsilon"]
    problem = two_by_two(epsilon)
    ladder = sorted({*np.geomspace(1e-5, 0.12, params["points"]), *DECAYS})
    points = []
    for lam in ladder:
        starts = 24 if lam in DECAYS else 1
        points += [
            {
                "weight_decay": float(lam),
                "rank": m.rank,
                "missing": float(m.matrix[0, 1]),
                "loss": m.loss,
                "curvature": m.curvature,
            }
            for m in minima(problem, depth, lam, starts=starts, seed=seed, every=True)
        ]
    rng, ends = np.random.default_rng(seed), []
    for lam in DECAYS:
        objective, weights, size = network(problem, depth, 2, lam)
        for _ in range(params["descents"]):
            loss, theta = descend(objective, rng.standard_normal(size))
            ends.append((lam, loss, chain(weights(theta))[0, 1]))
    return {
        "points": points,
        "ends": ends,
        "exists": {str(r): existence(problem, depth, r) for r in (1, 2)},
    }


def check(rows: list[Row]) -> Findings:
    """Compare with random descents, and with the existence thresholds."""
    for row in rows:
        name = f"L = {row['depth']}, epsilon = {row['epsilon']:g}"
        listed = {(p["weight_decay"], p["loss"]) for p in row["points"]}
        off = [
            min(abs(loss / other - 1) for at, other in listed if at == lam)
            for lam, loss, _ in row["ends"]
        ]
        yield Finding(f"{name}: random descents end at the listed minima",
                      max(off) < 1e-6, f"{len(off)} descents, largest relative distance in loss "
                      f"{max(off):.0e}")  # fmt: skip
        limits = {int(r): lam for r, lam in row["exists"].items()}
        inside = all(p["weight_decay"] < limits[p["rank"]] for p in row["points"] if p["rank"])
        yield Finding(f"{name}: no rank-2 minimum above lam = {limits[2]:.4f}, no rank-1 above "
                      f"{limits[1]:.4f}", inside, "none found above")  # fmt: skip


def plot(rows: list[Row]) -> Any:
    """Draw the missing entry and the loss of each rank's minimum against the weight decay."""
    figure, grid = canvas(3.3 * len(rows), 6, 2, len(rows), squeeze=False, sharex=True)
    colors = {0: GRAY, 1: ORANGE, 2: BLUE}
    for column, row in enumerate(rows):
        for rank, mirrored in ((0, False), (1, False), (1, True), (2, False)):
            line = [p for p in row["points"] if (p["rank"], p["missing"] < 0) == (rank, mirrored)]
            lam, color = [p["weight_decay"] for p in line], colors[rank]
            style, label = (".:", "rank 1, mirrored") if mirrored else (".-", f"rank {rank}")
            for axes, key in zip(grid[:, column], ("missing", "loss"), strict=True):
                axes.plot(lam, [p[key] for p in line], style, ms=3, color=color, label=label)
        for rank in (1, 2):
            for axes in grid[:, column]:
                axes.axvline(row["exists"][str(rank)], color=colors[rank], ls=":", lw=1)
        grid[0, column].axhline(1 / row["epsilon"], color="black", ls=":", lw=0.8)
        grid[0, column].set(
            title=f"L = {row['depth']}, $\\epsilon$ = {row['epsilon']:g}",
            xscale="log",
            ylim=(-1.3 / row["epsilon"], 1.3 / row["epsilon"]),
        )
        grid[1, column].set(yscale="log", xlabel="weight decay")
    grid[0, 0].set_ylabel("missing entry")
    grid[1, 0].set_ylabel("regularized loss")
    grid[0, 0].legend()
    return figure
