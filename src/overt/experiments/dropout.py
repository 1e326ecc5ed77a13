"""Implicit bias of dropout, Figures 1 to 3: a landscape, runs on it, and many runs of a network.

In Figures 1 and 2 one input, one output, two hidden units with tied weights u: the objective is
(m - |u|^2)^2 + lam (u_1^4 + u_2^4). In Figure 3 stochastic dropout reaches the exact optimum.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np

from overt import penalty, spectral
from overt._figures import COLORS, GREEN, ORANGE, canvas, draw_band, draw_objective
from overt._types import Floats
from overt.experiments._trajectories import log_steps, trajectory
from overt.experiments.base import Findings, Params, Row, rows_with, values_of
from overt.experiments.verdicts import Finding, above, mean_interval, together
from overt.linear import LinearNetwork, TiedAutoencoder, inverse_decay
from overt.noise import Dropout
from overt.theorems._oracles import with_spectrum

TARGET, WIDTH, EXTENT = 2.0, 2, 2.0
STARTS = ([[0.2, -1.4]], [[-1.6, 1.3]])

DECAY = 10.0
"""Singular values are exp(-i / DECAY); the paper says only that they decay exponentially."""


def run_landscape(params: Params, seed: int) -> dict[str, Any]:
    """Evaluate the objective on a grid and find its lowest points."""
    lam, points = params["strength"], params["points"]
    thin = (points - 1) // 60  # of the surface a row keeps what the picture needs
    axis = np.linspace(-EXTENT, EXTENT, points)
    objective = _surface(axis, lam)
    kept = spectral.SquaredNuclear().prox([TARGET], lam / WIDTH)[0]
    corner = np.sqrt(kept / WIDTH)
    optimum = (TARGET - kept) ** 2 + lam / WIDTH * kept**2
    return {
        "spacing": float(axis[1] - axis[0]),
        "lowest": float(objective.min()),
        "circle": lam == 0 and _on_circle(axis, objective),
        "axis": axis[::thin].tolist(),
        "objective": np.round(objective[::thin, ::thin], 4).tolist(),
        "minima": [list(point) for point in _strict_minima(axis, objective)],
        "predicted_corner": float(corner),
        "predicted_objective": float(optimum),
    }


def check_landscape(rows: list[Row]) -> Findings:
    """Check that the only minima are the four equalized points that Theorem 2.4 predicts."""
    for row in rows:
        lam, spacing, lowest = row["strength"], row["spacing"], row["lowest"]
        excess = lowest - row["predicted_objective"]
        if lam == 0:
            yield Finding("without dropout the minima form a circle of radius sqrt(2)",
                          row["circle"], f"lowest grid value {lowest:.2g}")  # fmt: skip
            continue
        corner, minima = row["predicted_corner"], np.array(row["minima"])
        expected = _corners(corner).T
        near = len(minima) == 4 and np.abs(minima - expected).max() <= spacing
        yield Finding(
            f"lam = {lam:g}: four minima, all equalized, where Theorem 2.4 puts them",
            near and 0 <= excess <= 20 * spacing**2,
            f"{len(minima)} minima at |u_i| = {np.abs(minima).mean():.4f}, predicted {corner:.4f}",
            "parallel to (+-1, +-1)",
        )


def plot_landscape(rows: list[Row]) -> Any:
    """Draw the surface above its contours for each strength."""
    figure, levels = canvas(3.6 * len(rows), 6.4, 2, len(rows), squeeze=False)
    for column, row in enumerate(rows):
        x, y = np.meshgrid(row["axis"], row["axis"], indexing="ij")
        height = np.minimum(row["objective"], 8.0)
        levels[0, column].remove()
        surface: Any = figure.add_subplot(2, len(rows), column + 1, projection="3d")
        surface.plot_surface(x, y, height, cmap="cividis", linewidth=0, rcount=80, ccount=80)
        surface.set(title=f"$\\lambda$ = {row['strength']:g}", xlabel="$u_1$", ylabel="$u_2$")
        level = levels[1, column]
        level.contourf(x, y, np.sqrt(height), levels=24)
        if row["strength"] == 0:
            angle, radius = np.linspace(0, 2 * np.pi, 200), np.sqrt(TARGET)
            level.plot(radius * np.cos(angle), radius * np.sin(angle), "w--", lw=1.2)
        else:
            corners = _corners(row["predicted_corner"])
            level.scatter(*corners, c="white", edgecolors="black", zorder=3)
        level.set(aspect="equal", xlabel="$u_1$", ylabel="$u_2$")
    return figure


def _surface(axis: Floats, lam: float) -> Floats:
    """(m - a^2 - b^2)^2 + the penalty of (a, b), which is that of (a, 0) plus that of (0, b)."""
    single = [penalty.tied(np.array([[a, 0.0]]), Dropout(lam / (1 + lam))) for a in axis]
    loss = (TARGET - axis[:, None] ** 2 - axis[None, :] ** 2) ** 2
    return np.asarray(loss + np.add.outer(single, single))


def _corners(corner: float) -> Any:
    """Return the four equalized points, coordinates x points, in lexicographic order."""
    return np.array(list(product((-corner, corner), repeat=2))).T


def _strict_minima(axis: Any, f: Any) -> list[tuple[float, float]]:
    """Return grid points strictly below their eight neighbors, in lexicographic order."""
    inner = f[1:-1, 1:-1]
    below = np.ones_like(inner, dtype=bool)
    for i, j in product((-1, 0, 1), repeat=2):
        if (i, j) != (0, 0):
            n, m = f.shape
            below &= inner < f[1 + i : n - 1 + i, 1 + j : m - 1 + j]
    return [(float(axis[i + 1]), float(axis[j + 1])) for i, j in np.argwhere(below)]


def _on_circle(axis: Any, f: Any) -> bool:
    """Return whether every low grid point lies near the circle, and all directions are met."""
    spacing = axis[1] - axis[0]
    i, j = np.nonzero(f <= (3 * spacing) ** 2)
    radius, angle = np.hypot(axis[i], axis[j]), np.arctan2(axis[j], axis[i])
    directions = np.unique(np.floor((angle + np.pi) / (np.pi / 8)))
    return bool(np.abs(radius - np.sqrt(TARGET)).max() <= 2 * spacing and len(directions) >= 16)


def run_paths(params: Params, seed: int) -> dict[str, Any]:
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
    axis, best = np.linspace(-EXTENT, EXTENT, 61), net.solve()
    return {
        "paths": paths,
        "axis": axis.tolist(),
        "surface": np.round(_surface(axis, lam), 4).tolist(),
        "corner": float(np.abs(best.U).mean()),
        "optimum": best.objective,
        "final": [net.objective(np.array([path[-1]])) for path in paths],
    }


def check_paths(rows: list[Row]) -> Findings:
    """Check that both runs end at an equalized global optimum."""
    for row in rows:
        ends = np.abs([path[-1] for path in row["paths"]])
        excess = max(row["final"]) / row["optimum"] - 1
        yield Finding(f"lam = {row['strength']:g}: ends at a global, equalized optimum",
                      excess <= 0.02 and np.abs(ends - row["corner"]).max() <= 0.1 * row["corner"],
                      f"|u_i| in {ends.min():.3f}..{ends.max():.3f}, exact {row['corner']:.3f}; "
                      f"objective {excess:.2%} above the optimum",
                      "converges, parallel to (+-1, +-1)")  # fmt: skip


def plot_paths(rows: list[Row]) -> Any:
    """Draw both paths on the objective's contours."""
    figure, axes = canvas(3.8 * len(rows), 3.9, 1, len(rows), squeeze=False)
    for row, panel in zip(rows, axes[0], strict=True):
        x, y = np.meshgrid(row["axis"], row["axis"], indexing="ij")
        panel.contourf(x, y, np.sqrt(np.minimum(row["surface"], 8.0)), levels=24)
        for path in row["paths"]:
            panel.plot(*np.transpose(path), color="white", lw=0.9)
            panel.scatter(*path[0], color=ORANGE, zorder=3)
        panel.scatter(*_corners(row["corner"]), color=GREEN, edgecolors="black", zorder=3)
        panel.set(title=f"$\\lambda$ = {row['strength']:g}", xlabel="$u_1$", ylabel="$u_2$",
                  aspect="equal", xlim=(-EXTENT, EXTENT), ylim=(-EXTENT, EXTENT))  # fmt: skip
    return figure


def run_seeds(params: Params, seed: int) -> dict[str, Any]:
    """Train from many seeds and compare with the exact optimum."""
    m, n, lam = params["outputs"], params["inputs"], params["strength"]
    M = with_spectrum(np.random.default_rng(0), m, n, np.exp(-np.arange(min(m, n)) / DECAY))
    net = LinearNetwork(M, params["width"], Dropout(lam / (1 + lam)))
    rate = inverse_decay(4e-3 * 80 / n, params["steps"] / 10)
    trace = net.train(params["steps"], rate, range(seed, seed + params["seeds"]), records=30)
    best = net.solve()
    return {
        "steps_seen": trace.steps.tolist(),
        "objective": trace.objective.tolist(),
        "imbalance": trace.imbalance.tolist(),
        "optimum": best.objective,
        "gap": best.certificate.relative_gap,
    }


def check_seeds(rows: list[Row]) -> Findings:
    """Check that the mean over seeds ends at the optimum, never below it, and is balanced."""
    for row in rows:
        objective, imbalance = np.array(row["objective"]), np.array(row["imbalance"])
        excess = objective[:, -1].mean() / row["optimum"] - 1
        below = objective.min() < row["optimum"] * (1 - 1e-8)
        falling = objective[:, -1].mean() < 0.99 * objective[:, -2].mean()
        yield Finding(
            f"width {row['width']}, lam = {row['strength']:g}: within 2 per cent of the optimum",
            not below and (excess <= 0.02 or (falling and "inconclusive")),
            f"mean of {len(objective)} runs ends {excess:.2%} above; imbalance "
            f"{imbalance.max(1).mean():.1e} -> {imbalance[:, -1].mean():.1e}",
            "converges; variance of |u_i||v_i| goes to 0",
        )
    for width in values_of(rows, "width"):
        settings = sorted(rows_with(rows, width=width), key=lambda r: r["strength"])
        steps = np.array([_balanced_after(row) for row in settings], dtype=float)
        gains = [mean_interval(np.log(a / b)) for a, b in pairwise(steps)]
        yield Finding(f"width {width}: the larger lam, the sooner the units are balanced",
                      together(*(above(gain, 0) for gain in gains)),
                      "half of the peak imbalance after "
                      + ", ".join(f"{n:,.0f} +- {e:,.0f}" for n, e in zip(
                          steps.mean(1), steps.std(1, ddof=1), strict=True)) + " steps",
                      "faster for larger lam")  # fmt: skip


def _balanced_after(row: Row) -> list[float]:
    """Return the step at which each run's imbalance is down to half of its peak."""
    found = []
    for curve in np.array(row["imbalance"]):
        peak = int(curve.argmax())
        low = np.flatnonzero(curve[peak:] <= 0.5 * curve[peak])
        found.append(max(row["steps_seen"][peak + low[0]] if len(low) else row["steps"], 1))
    return found


def plot_seeds(rows: list[Row]) -> Any:
    """Draw the objective beside the optimum, and the imbalance, for each setting."""
    widths = values_of(rows, "width")
    strengths = values_of(rows, "strength")
    shape = (len(widths), len(strengths) + 1)
    figure, axes = canvas(3.2 * shape[1], 2.9 * shape[0], *shape, squeeze=False)
    for row in rows:
        i, j = widths.index(row["width"]), strengths.index(row["strength"])
        label = f"$\\lambda$ = {row['strength']:g}"
        draw_objective(axes[i][j], row["steps_seen"], row["objective"], row["optimum"])
        axes[i][j].set_title(f"width {row['width']}, {label}")
        draw_band(axes[i][-1], row["steps_seen"], row["imbalance"], COLORS[j], label)
        axes[i][-1].set(yscale="log", title="variance of $|u_i||v_i|$")
        axes[i][-1].legend()
    axes[0][0].legend()
    for panel in axes[-1]:
        panel.set_xlabel("step")
    return figure
