"""Implicit bias of dropout, Figure 1: what dropout does to the landscape of the smallest network.

One input, one output, two hidden units with tied weights u: the objective is
(m - |u|^2)^2 + lam (u_1^4 + u_2^4).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from overt import penalty, spectral
from overt.experiments.base import Experiment, Finding, Findings, Params, Row, grid
from overt.noise import Dropout

TARGET, WIDTH, EXTENT = 2.0, 2, 2.0


def run(params: Params, seed: int) -> dict[str, Any]:
    """Evaluate the objective on a grid and find its lowest points."""
    lam, points = params["strength"], params["points"]
    noise = Dropout(lam / (1 + lam))
    axis = np.linspace(-EXTENT, EXTENT, points)
    loss = (TARGET - axis[:, None] ** 2 - axis[None, :] ** 2) ** 2
    # The penalty of u = (a, b) is that of (a, 0) plus that of (0, b).
    single = np.array([penalty.tied(np.array([[a, 0.0]]), noise) for a in axis])
    objective = loss + single[:, None] + single[None, :]

    kept = spectral.SquaredNuclear().prox([TARGET], lam / WIDTH)[0]
    corner = np.sqrt(kept / WIDTH)
    optimum = (TARGET - kept) ** 2 + lam / WIDTH * kept**2
    return {
        "axis": axis.tolist(),
        "objective": objective.tolist(),
        "minima": [list(point) for point in _strict_minima(axis, objective)],
        "predicted_corner": float(corner),
        "predicted_objective": float(optimum),
    }


def check(rows: list[Row]) -> Findings:
    """Check that the only minima are the four equalized points that Theorem 2.4 predicts."""
    for row in rows:
        lam, spacing = row["strength"], row["axis"][1] - row["axis"][0]
        lowest = float(np.min(row["objective"]))
        excess = lowest - row["predicted_objective"]
        if lam == 0:
            yield Finding(
                "without dropout the minima form a circle of radius sqrt(2)",
                _on_circle(row, spacing),
                f"lowest grid value {lowest:.2g}",
            )
            continue
        corner, minima = row["predicted_corner"], np.array(row["minima"])
        expected = np.array(list(itertools.product((-corner, corner), repeat=2)))
        near = len(minima) == 4 and np.abs(minima - expected).max() <= spacing
        yield Finding(
            f"lam = {lam:g}: four minima, all equalized, where Theorem 2.4 puts them",
            near and 0 <= excess <= 20 * spacing**2,
            f"{len(minima)} minima at |u_i| = {np.abs(minima).mean():.4f}, predicted {corner:.4f}",
            "parallel to (+-1, +-1)",
        )


def plot(rows: list[Row]) -> Any:
    """Draw the surface above its contours for each strength."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(rows), 6.4), layout="constrained")
    for column, row in enumerate(rows):
        x, y = np.meshgrid(row["axis"], row["axis"], indexing="ij")
        height = np.minimum(row["objective"], 8.0)
        surface: Any = figure.add_subplot(2, len(rows), column + 1, projection="3d")
        surface.plot_surface(x, y, height, cmap="viridis", linewidth=0, rcount=80, ccount=80)
        surface.set(title=f"$\\lambda$ = {row['strength']:g}", xlabel="$u_1$", ylabel="$u_2$")
        level: Any = figure.add_subplot(2, len(rows), len(rows) + column + 1)
        level.contourf(x, y, np.sqrt(height), levels=24, cmap="viridis")
        if row["strength"] == 0:
            angle = np.linspace(0, 2 * np.pi, 200)
            radius = np.sqrt(TARGET)
            level.plot(radius * np.cos(angle), radius * np.sin(angle), "w--", lw=1.2)
        else:
            corner = row["predicted_corner"]
            level.scatter(
                *zip(*itertools.product((-corner, corner), repeat=2), strict=True),
                c="white",
                edgecolors="black",
                zorder=3,
            )
        level.set(aspect="equal", xlabel="$u_1$", ylabel="$u_2$")
    return figure


def _strict_minima(axis: Any, f: Any) -> list[tuple[float, float]]:
    """Return grid points strictly below their eight neighbors, in lexicographic order."""
    inner = f[1:-1, 1:-1]
    below = np.ones_like(inner, dtype=bool)
    for i, j in itertools.product((-1, 0, 1), repeat=2):
        if (i, j) != (0, 0):
            n, m = f.shape
            below &= inner < f[1 + i : n - 1 + i, 1 + j : m - 1 + j]
    return [(float(axis[i + 1]), float(axis[j + 1])) for i, j in np.argwhere(below)]


def _on_circle(row: Row, spacing: float) -> bool:
    """Return whether every low grid point lies near the circle, and all directions are met."""
    axis, f = np.array(row["axis"]), np.array(row["objective"])
    i, j = np.nonzero(f <= (3 * spacing) ** 2)
    radius, angle = np.hypot(axis[i], axis[j]), np.arctan2(axis[j], axis[i])
    directions = np.unique(np.floor((angle + np.pi) / (np.pi / 8)))
    return bool(np.abs(radius - np.sqrt(TARGET)).max() <= 2 * spacing and len(directions) >= 16)


EXPERIMENT = Experiment(
    id="dropout-fig1",
    title="Dropout's landscape for two hidden units",
    source="On the Implicit Bias of Dropout, Figure 1",
    claim="dropout turns the circle of minima into four equalized ones, which shrink as it grows",
    grids={
        "toy": grid(strength=[0.0, 0.6, 2.0], points=161),
        "full": grid(strength=[0.0, 0.6, 2.0], points=801),
    },
    run=run, check=check, plot=plot,
)  # fmt: skip
