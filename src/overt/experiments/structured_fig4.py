"""Structured dropout, Figure 4: blocks anywhere or on a grid, at the same drop probability.

The original DropBlock starts a block at any unit; the theory puts blocks on a grid. At equal
probability of keeping a start the original drops far more. Section 5.3 prints a correction that
makes it worse; the one that works solves mean_i (1 - g)^(c_i) = keep for the probability g of a
start.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import BLUE, GRAY, ORANGE, canvas
from overt._types import Floats
from overt.experiments.base import Findings, Params, Row
from overt.experiments.structured import draw_run, follow, network
from overt.experiments.verdicts import Finding
from overt.noise import DropBlock


def run(params: Params, seed: int) -> dict[str, Any]:
    """Train by Algorithm 1 and record the exact objective and the sampled one."""
    noise, realized = _noise(params)
    # Multipliers are as large as 1 / keep, and enter the gradient twice.
    rate = params["rate"] * (1 - realized) ** 2
    seen = follow(network(params, noise), params, seed, rate)
    return {
        **{name: seen[name] for name in ("steps_seen", "exact", "sampled", "error")},
        "realized": realized,
        "printed_keep": _printed_keep(params),
    }


def check(rows: list[Row]) -> Findings:
    """Check that only the correct start probability makes the original behave like the grid."""
    by = {row["variant"]: row for row in rows}
    grid, fixed = by["grid"], by["sliding, same drop probability"]
    plain = by["sliding, same start probability"]
    close = fixed["exact"][-1] / grid["exact"][-1]
    far = plain["exact"][-1] / grid["exact"][-1]
    yield Finding(
        "at the same drop probability the original DropBlock is within 10 per cent of the grid",
        abs(close - 1) <= 0.1,
        f"final objective {close:.2f} times the grid's; units dropped {fixed['realized']:.3f} "
        f"and {grid['realized']:.3f}",
        "curves very close in log scale",
    )
    yield Finding("it is far closer than at the same probability of a start",
                  abs(np.log(close)) < abs(np.log(far)),
                  f"{close:.2f} and {far:.2f} times the grid's")  # fmt: skip
    yield Finding(
        "at the same probability of a start it drops far more, and trains to something else",
        plain["realized"] >= grid["realized"] + 0.2 and far >= 1.3,
        f"units dropped {plain['realized']:.3f}, final objective {far:.2f} times the grid's",
        "a higher effective dropping rate",
    )
    yield Finding("the correction of section 5.3, its k read as the block size, does not keep half",
                  abs(grid["printed_keep"] - 0.5) > 0.1, f"it keeps {grid['printed_keep']:.4f}",
                  "claimed 0.5; corrected")  # fmt: skip


def plot(rows: list[Row]) -> Any:
    """Draw the exact objectives, and the sampled ones with their errors."""
    figure, axes = canvas(6.4, 5.2)
    for row, color in zip(rows, (BLUE, ORANGE, GRAY), strict=True):
        draw_run(axes, row, (color, color), f"{row['variant']} ({row['realized']:.2f} dropped)")
    axes.set_ylabel("objective")
    figure.legend(loc="outside lower center", ncols=2)
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
