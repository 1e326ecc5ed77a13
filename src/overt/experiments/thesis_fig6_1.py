"""Thesis, Figure 6-1: the 0-1 loss between cross-entropy and its reflection."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt.experiments.base import Experiment, Finding, Findings, Params, Row, canvas, grid

FORMS = {
    "0-1": lambda z: (z <= 0).astype(float),
    "cross-entropy": lambda z: np.logaddexp(0, -z),
    "reflected": lambda z: -np.logaddexp(0, z),
}


def run(params: Params, seed: int) -> dict[str, Any]:
    """Evaluate one loss and its slope on a grid of margins."""
    z = np.linspace(-5, 5, params["points"])
    value = FORMS[params["loss"]](z)
    return {"z": z.tolist(), "value": value.tolist(), "slope": np.gradient(value, z).tolist()}


def check(rows: list[Row]) -> Findings:
    """Check the order of the losses and where their slopes live."""
    curves = {row["loss"]: np.array(row["value"]) for row in rows}
    slopes = {row["loss"]: np.abs(row["slope"]) for row in rows}
    # log(1 + e^-z) is 0.69 at z = 0; in units of log 2 it bounds the 0-1 loss from above.
    upper = float((curves["cross-entropy"] / np.log(2) - curves["0-1"]).min())
    lower = float((curves["0-1"] - curves["reflected"]).min())
    bend = float(np.diff(curves["reflected"], 2).max())
    sure = slopes["reflected"][-2] / slopes["cross-entropy"][-2]
    yield Finding("cross-entropy (base 2) bounds the 0-1 loss from above", upper >= -1e-9,
                  f"smallest distance {upper:.2g}")  # fmt: skip
    yield Finding("the reflected loss is a concave lower bound", lower >= 0 and bend <= 1e-12,
                  f"smallest distance {lower:.2g}, largest second difference "
                  f"{bend:.1e}")  # fmt: skip
    yield Finding("at margin 5 the reflected slope is over 100 times cross-entropy's",
                  sure > 100, f"ratio {sure:.0f}", "e^5 = 148")  # fmt: skip


def plot(rows: list[Row]) -> Any:
    """Draw the three losses, and the two slopes."""
    figure, (left, right) = canvas(8.4, 3.4, 1, 2)
    colors = {"0-1": "tab:red", "cross-entropy": "tab:blue", "reflected": "tab:green"}
    for row in rows:
        left.plot(row["z"], row["value"], color=colors[row["loss"]], label=row["loss"])
        if row["loss"] != "0-1":
            right.semilogy(row["z"], np.abs(row["slope"]), color=colors[row["loss"]])
    left.set(ylim=(-4, 4), xlabel="margin $z = y f(x)$", title="loss")
    left.legend()
    right.set(xlabel="margin $z = y f(x)$", title="size of the slope that an attack follows")
    right.grid(alpha=0.3)
    return figure


EXPERIMENT = Experiment(
    id="thesis-fig6-1",
    title="The 0-1 loss, cross-entropy and its reflection",
    source="Thesis, Figure 6-1",
    claim="cross-entropy bounds the 0-1 loss from above, its reflection from below",
    grids={
        "toy": grid(loss=list(FORMS), points=401),
        "full": grid(loss=list(FORMS), points=4001),
    },
    run=run, check=check, plot=plot,
)  # fmt: skip
