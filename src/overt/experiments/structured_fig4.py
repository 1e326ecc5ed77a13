"""Structured dropout, Figure 4: blocks anywhere or on a grid, at the same drop probability.

The original DropBlock starts a block at any unit; the theory puts blocks on a grid. At equal
probability of keeping a start the original drops far more. Section 5.3 prints a correction that
makes it worse; the one that works solves mean_i (1 - g)^(c_i) = keep for the probability g of a
start.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt import penalty
from overt._types import Floats
from overt.experiments.base import Experiment, Finding, Params, Row
from overt.noise import DropBlock

RECORDS = 60


def run(params: Params, seed: int) -> dict[str, Any]:
    """Train by Algorithm 1 and record the exact objective and the sampled losses."""
    noise, realized = _noise(params)
    # The data and the start do not depend on the setting: all curves share them.
    X, Y = _dataset(params)
    C = X.T @ X / len(X)
    U, V = (0.3 * a for a in _factors(params, 1))
    rng = np.random.default_rng(seed)
    width, steps = params["width"], params["steps"]
    # Multipliers are as large as 1 / keep, and enter the gradient twice.
    start_rate = params["rate"] * (1 - realized) ** 2
    marks = np.unique(np.geomspace(1, steps, RECORDS).astype(int))
    objective, smoothed, average = [], [], None
    masks = np.empty((0, width))
    for step in range(1, steps + 1):
        i = (step - 1) % 1000
        if i == 0:
            masks = noise.multipliers(width, 1000, rng)
            rows = rng.integers(len(X), size=1000)
        x, y, z = X[rows[i]], Y[rows[i]], masks[i]
        h = z * (x @ V)
        error = U @ h - y
        loss = float(error @ error)
        average = loss if average is None else 0.998 * average + 0.002 * loss
        rate = start_rate / (1 + 8 * step / steps)
        gradient = np.outer(x, z * (error @ U))
        U = U - rate * np.outer(error, h)
        V = V - rate * gradient
        if step in marks:
            fit = float(np.mean(np.sum((Y - X @ V @ U.T) ** 2, axis=1)))
            objective.append(fit + float(penalty.shallow(U, V, noise, C)))
            smoothed.append(average)
    return {
        "steps_seen": marks.tolist(),
        "objective": objective,
        "smoothed": smoothed,
        "realized": realized,
        "printed_keep": _printed_keep(params),
    }


def check(rows: list[Row]) -> list[Finding]:
    """Check that only the correct start probability makes the original behave like the grid."""
    by = {row["variant"]: row for row in rows}
    grid, fixed = by["grid"], by["sliding, same drop probability"]
    plain = by["sliding, same start probability"]
    close = fixed["objective"][-1] / grid["objective"][-1]
    far = plain["objective"][-1] / grid["objective"][-1]
    return [
        Finding(
            "at the same drop probability the original DropBlock trains like the grid",
            bool(abs(np.log10(close)) <= 0.15),
            f"final objective {close:.2f} times the grid's; units dropped {fixed['realized']:.3f} "
            f"and {grid['realized']:.3f}",
            "curves very close in log scale",
        ),
        Finding(
            "at the same probability of a start it drops far more, and trains to something else",
            bool(plain["realized"] >= grid["realized"] + 0.2 and far >= 1.3),
            f"units dropped {plain['realized']:.3f}, final objective {far:.2f} times the grid's",
            "a higher effective dropping rate",
        ),
        Finding(
            "the printed correction of section 5.3 does not keep half of the units",
            bool(grid["printed_keep"] < 0.05),
            f"it keeps {grid['printed_keep']:.4f}",
            "claimed 0.5; corrected",
        ),
    ]


def plot(rows: list[Row]) -> Any:
    """Draw the exact objectives, and the sampled losses, smoothed, beside them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for row, color in zip(rows, ("#1f6f8b", "#d1751c", "#6b7a87"), strict=True):
        label = f"{row['variant']} ({row['realized']:.2f} dropped)"
        left.plot(row["steps_seen"], row["objective"], color=color, label=label)
        right.plot(row["steps_seen"], row["smoothed"], color=color)
    for axes, title in ((left, "exact objective"), (right, "sampled loss, moving average")):
        axes.set(xscale="log", yscale="log", xlabel="step", title=title)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _noise(params: Params) -> tuple[DropBlock, float]:
    """Return the noise of a variant, and the share of units it drops."""
    drop_prob, block, width = params["drop_prob"], params["block_size"], params["width"]
    match params["variant"]:
        case "grid":
            noise = DropBlock(drop_prob, block)
        case "sliding, same drop probability":
            noise = DropBlock(drop_prob, block, "sliding")
        case _:
            covered = _coverage(width, block)
            noise = DropBlock(1 - float(np.mean((1 - drop_prob) ** covered)), block, "sliding")
    return noise, 1 - float(noise.mean(width).mean())


def _printed_keep(params: Params) -> float:
    """Share of units kept when starts are kept with the probability of section 5.3."""
    k = params["block_size"]
    start = 1 - params["drop_prob"] ** (1 / (2 * k - 1))
    return float(np.mean(start ** _coverage(params["width"], k)))


def _coverage(width: int, block: int) -> Floats:
    i = np.arange(1, width + 1)
    return np.minimum.reduce(
        [i, np.full(width, block), np.full(width, width - block + 1), width - i + 1]
    ).astype(float)


def _factors(params: Params, seed: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    U = rng.standard_normal((params["outputs"], params["width"]))
    V = rng.standard_normal((params["inputs"], params["width"]))
    scale = (params["outputs"] * params["inputs"] * params["width"]) ** 0.25
    return U / scale, V / scale


def _dataset(params: Params) -> tuple[Floats, Floats]:
    """Return X with normal entries and Y = X M', M = U_true V_true' of unit norm."""
    X = np.random.default_rng(0).standard_normal((params["samples"], params["inputs"]))
    U, V = _factors(params, 2)
    M = U @ V.T
    return X, X @ (M / np.linalg.norm(M)).T


_VARIANTS = ["grid", "sliding, same drop probability", "sliding, same start probability"]

EXPERIMENT = Experiment(
    id="structured-fig4",
    title="DropBlock on a grid and DropBlock as practiced",
    source="On the Regularization Properties of Structured Dropout, Figure 4 and section 5.3",
    claim="at the same drop probability, blocks anywhere and blocks on a grid train alike",
    grids={
        "toy": {
            "variant": _VARIANTS, "drop_prob": [0.5], "block_size": [5], "width": [20],
            "inputs": [20], "outputs": [16], "samples": [200], "steps": [20_000], "rate": [0.06],
        },
        "full": {
            "variant": _VARIANTS, "drop_prob": [0.5], "block_size": [5], "width": [50],
            "inputs": [100], "outputs": [80], "samples": [1000], "steps": [100_000],
            "rate": [0.012],
        },
    },
    run=run,
    check=check,
    plot=plot,
)  # fmt: skip
