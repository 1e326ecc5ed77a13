"""Implicit bias of dropout, Figure 2: two runs of dropout on the smallest autoencoder."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from overt.experiments._trajectories import log_steps, trajectory
from overt.experiments.base import Experiment, Finding, Findings, Params, Row, canvas, grid
from overt.experiments.dropout_fig1 import EXTENT, TARGET, WIDTH
from overt.linear import TiedAutoencoder, inverse_decay
from overt.noise import Dropout

STARTS = ([[0.2, -1.4]], [[-1.6, 1.3]])


def run(params: Params, seed: int) -> dict[str, Any]:
    """Follow dropout from two starts and find where it ends."""
    lam = params["strength"]
    net = TiedAutoencoder([[TARGET]], WIDTH, Dropout(lam / (1 + lam)))
    steps = log_steps(params["steps"], 120)

    def train(*args: Any, init: Any, **options: Any) -> Any:
        return net.train(*args, init=init[0], **options)

    paths = []
    for number, start in enumerate(STARTS):
        points = trajectory(
            train, [np.array(start)], steps, inverse_decay(0.02, 400), seed + 1000 * number
        )
        paths.append([weights[0][0].tolist() for _, weights in points])
    axis = np.linspace(-EXTENT, EXTENT, 121)
    surface = (TARGET - axis[:, None] ** 2 - axis[None, :] ** 2) ** 2
    surface = surface + lam * (axis[:, None] ** 4 + axis[None, :] ** 4)
    best = net.solve()
    return {
        "paths": paths,
        "axis": axis.tolist(),
        "surface": surface.tolist(),
        "corner": float(np.abs(best.U).mean()),
        "optimum": best.objective,
        "final": [net.objective(np.array([path[-1]])) for path in paths],
    }


def check(rows: list[Row]) -> Findings:
    """Check that both runs end at an equalized global optimum."""
    for row in rows:
        ends = np.abs([path[-1] for path in row["paths"]])
        excess = max(row["final"]) / row["optimum"] - 1
        yield Finding(
            f"lam = {row['strength']:g}: dropout ends at a global, equalized optimum",
            excess <= 0.02 and np.abs(ends - row["corner"]).max() <= 0.1 * row["corner"],
            f"|u_i| in {ends.min():.3f}..{ends.max():.3f}, exact {row['corner']:.3f}; "
            f"objective {excess:.2%} above the optimum",
            "converges, parallel to (+-1, +-1)",
        )


def plot(rows: list[Row]) -> Any:
    """Draw both paths on the objective's contours."""
    figure, axes = canvas(3.8 * len(rows), 3.9, 1, len(rows), squeeze=False)
    for row, panel in zip(rows, axes[0], strict=True):
        x, y = np.meshgrid(row["axis"], row["axis"], indexing="ij")
        height = np.sqrt(np.minimum(row["surface"], 8.0))
        panel.contourf(x, y, height, levels=24, cmap="viridis")
        for path in row["paths"]:
            panel.plot(*np.transpose(path), color="white", lw=0.9)
            panel.scatter(*path[0], color="#e4572e", zorder=3)
        corners = list(product((-row["corner"], row["corner"]), repeat=2))
        panel.scatter(*zip(*corners, strict=True), color="#76b041", edgecolors="black", zorder=3)
        panel.set(
            title=f"$\\lambda$ = {row['strength']:g}",
            xlabel="$u_1$",
            ylabel="$u_2$",
            aspect="equal",
        )
    return figure


EXPERIMENT = Experiment(
    id="dropout-fig2",
    title="Dropout finds the equalized optimum",
    source="On the Implicit Bias of Dropout, Figure 2",
    claim="dropout converges to an equalized global optimum from any start, for every strength",
    grids={
        "toy": grid(strength=[0.1, 0.5, 1.0], steps=20_000),
        "full": grid(strength=[0.1, 0.5, 1.0], steps=100_000),
    },
    run=run, check=check, plot=plot,
)  # fmt: skip
