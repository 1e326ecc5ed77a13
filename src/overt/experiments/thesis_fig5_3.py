"""Thesis, Figure 5-3: 100 random sub-networks at drop probability .8 against the full network.

The network and its training are those of Figure 5-2. The 100 masks are drawn before training from
a generator of their own, so training never sees them; each keeps about a fifth of the units.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from overt.experiments.base import Experiment, Finding, Findings, Params, Row, canvas, grid
from overt.experiments.thesis_fig5_2 import (
    BATCH,
    LEARNING_RATE,
    accuracies,
    descend,
    fixed_masks,
    network,
    record_steps,
)

DROP_PROB = 0.8


def run(params: Params, seed: int) -> dict[str, Any]:
    """Train one network and follow the accuracy of every sub-network."""
    import torch

    from overt.experiments import small

    data = small.load(params["data"])
    steps = params["epochs"] * -(-len(data.x) // BATCH)
    wanted = record_steps(steps, params["records"])
    masks = fixed_masks(params["masks"], params["width"], DROP_PROB, seed)
    full, parts = [], []
    with torch.random.fork_rng():
        torch.manual_seed(params["run"])
        trunk, top = network(data.x[0], params["width"])
        for step, _ in descend(
            trunk, top, data.x, data.y, DROP_PROB, steps, params["learning_rate"]
        ):
            if step in wanted:
                whole, each = accuracies(trunk, top, masks, data.x_test, data.y_test)
                full.append(whole)
                parts.append([float(a) for a in each])
    kept = [int(m) for m in (masks > 0).sum(1)]
    return {"steps": wanted, "full": full, "parts": parts, "kept": kept}


def final(row: Row) -> tuple[float, Any]:
    """Return (full - mean sub-network accuracy, all sub-networks' accuracies) at the last step."""
    parts = np.array(row["parts"][-1])
    return float(row["full"][-1] - parts.mean()), parts


def check(rows: list[Row]) -> Findings:
    """Check that random sub-networks approach the full network as the width grows."""
    widths = sorted({row["width"] for row in rows})
    gaps, worst = {}, {}
    for width in widths:
        ends = [final(row) for row in rows if row["width"] == width]
        gaps[width] = float(np.mean([gap for gap, _ in ends]))
        worst[width] = float(np.mean([parts.min() for _, parts in ends]))
    yield Finding("the gap between full and random sub-networks shrinks at every step of the width",
                  all(gaps[b] < gaps[a] for a, b in pairwise(widths)),
                  ", ".join(f"width {w}: {100 * g:.2f} points" for w, g in gaps.items()),
                  "as the width increases, the sub-networks become more competitive")  # fmt: skip
    yield Finding("the worst sub-network improves as the width grows",
                  worst[widths[-1]] > worst[widths[0]],
                  ", ".join(f"width {w}: {100 * a:.2f} %" for w, a in worst.items()))  # fmt: skip


def plot(rows: list[Row]) -> Any:
    """Draw all sub-networks and the full network against steps, one panel per width."""
    widths = sorted({row["width"] for row in rows})
    figure, panels = canvas(3.4 * len(widths), 3.2, 1, len(widths), sharey=True, squeeze=False)
    for axes, width in zip(panels[0], widths, strict=True):
        row = next(row for row in rows if row["width"] == width)
        lines = axes.plot(row["steps"], 100 * np.array(row["parts"]), color="tab:orange", lw=0.5)
        lines[0].set_label("sub-networks")
        axes.plot(row["steps"], 100 * np.array(row["full"]), color="tab:blue", label="full network")
        axes.set_xscale("log")
        axes.set_title(f"width {width}", fontsize=10)
        axes.set_xlabel("step")
    panels[0, 0].set_ylabel("test accuracy, %")
    panels[0, 0].legend(fontsize=8)
    return figure


EXPERIMENT = Experiment(
    id="thesis-fig5-3",
    title="Random sub-networks against the full network",
    source="Thesis, Figure 5-3",
    claim="sub-networks that training has not seen come close to the full network as it widens",
    grids={
        "toy": grid(run=0, data="digits", width=[20, 100, 500], masks=30, epochs=15, records=6,
                    learning_rate=0.2),
        "full": grid(run=0, data="mnist", width=[100, 1000, 10_000], masks=100, epochs=5,
                     records=10, learning_rate=LEARNING_RATE),
    },
    run=run, check=check, plot=plot,
    needs={"torch": "torch", "matplotlib": "plots"},
)  # fmt: skip
