"""Thesis, Figures 6-1 and 6-2: cross-entropy, its reflection, and which of them finds label flips.

In Figure 6-2 f(x) = x, x = (3, 2, 1), class 1. Perturbations on a grid in (-.51, .51)^3 within a
Euclidean ball are sorted by a loss, and the flips among the top k counted. The printed radius .7078
leaves flips only on very fine grids; .72 shows the same at a coarse one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import BLUE, GREEN, ORANGE, YELLOW, canvas
from overt.experiments.base import Findings, Params, Row
from overt.experiments.verdicts import Finding

FORMS = {
    "0-1": lambda z: (z <= 0).astype(float),
    "cross-entropy": lambda z: np.logaddexp(0, -z) / np.log(2),
    "reflected": lambda z: -np.logaddexp(0, z) / np.log(2),
}
X, TOP = np.array([3.0, 2.0, 1.0]), (10, 100, 1000)


def run_losses(params: Params, seed: int) -> dict[str, Any]:
    """Evaluate one loss and its slope on a grid of margins."""
    z = np.linspace(-5, 5, params["points"])
    value = FORMS[params["loss"]](z)
    return {"z": z.tolist(), "value": value.tolist(), "slope": np.gradient(value, z).tolist()}


def check_losses(rows: list[Row]) -> Findings:
    """Check the order of the losses and where their slopes live."""
    curves = {row["loss"]: np.array(row["value"]) for row in rows}
    slopes = {row["loss"]: np.abs(row["slope"]) for row in rows}
    # To base e log(1 + e^-z) is .69 at z = 0, below the 0-1 loss; to base 2 it is a bound.
    upper = float((curves["cross-entropy"] - curves["0-1"]).min())
    lower = float((curves["0-1"] - curves["reflected"]).min())
    bend = float(np.diff(curves["reflected"], 2).max())
    sure = slopes["reflected"][-2] / slopes["cross-entropy"][-2]
    yield Finding("cross-entropy (base 2) bounds the 0-1 loss from above", upper >= -1e-9,
                  f"smallest distance {upper:.2g}")  # fmt: skip
    yield Finding("the reflected loss is a concave lower bound", lower >= 0 and bend <= 1e-8,
                  f"smallest distance {lower:.2g}, largest second difference "
                  f"{bend:.1e}")  # fmt: skip
    yield Finding("at margin 5 the reflected slope is over 100 times cross-entropy's",
                  sure > 100, f"ratio {sure:.0f}", "e^5 = 148")  # fmt: skip


def plot_losses(rows: list[Row]) -> Any:
    """Draw the three losses, and the two slopes."""
    figure, (left, right) = canvas(8.4, 3.4, 1, 2)
    colors = {"0-1": ORANGE, "cross-entropy": BLUE, "reflected": GREEN}
    for row in rows:
        left.plot(row["z"], row["value"], color=colors[row["loss"]], label=row["loss"])
        if row["loss"] != "0-1":
            right.semilogy(row["z"], np.abs(row["slope"]), color=colors[row["loss"]])
    left.set(ylim=(-4, 4), xlabel="margin $z = y f(x)$", title="loss (logarithms to base 2)")
    left.legend()
    right.set(xlabel="margin $z = y f(x)$", title="size of the slope that an attack follows")
    return figure


def run_search(params: Params, seed: int) -> dict[str, Any]:
    """Go through the grid slab by slab, keeping the best thousand by the loss."""
    axis = np.linspace(-0.51, 0.51, params["points"])
    second, third = np.meshgrid(axis, axis, indexing="ij")
    tail = second**2 + third**2
    best_value, best_flip = np.empty(0), np.empty(0, dtype=bool)
    flips = 0
    for first in axis:
        room = params["radius"] ** 2 - first**2
        inside = tail <= room
        f = np.stack([
            np.full(int(inside.sum()), X[0] + first), X[1] + second[inside], X[2] + third[inside]
        ])  # fmt: skip
        flip = np.maximum(f[1], f[2]) > f[0]
        flips += int(flip.sum())
        value = _loss(params["loss"], f)
        best_value = np.concatenate([best_value, value])
        best_flip = np.concatenate([best_flip, flip])
        if len(best_value) > TOP[-1]:
            keep = np.argpartition(-best_value, TOP[-1])[: TOP[-1]]
            best_value, best_flip = best_value[keep], best_flip[keep]
    order = np.argsort(-best_value, kind="stable")
    hits = [int(best_flip[order[:k]].sum()) for k in TOP]
    return {"hits": hits, "flips": flips}


def _loss(name: str, f: Any) -> Any:
    if name == "reflected, pairwise":
        return -np.logaddexp(0, f[0] - np.maximum(f[1], f[2]))
    log_p = f - np.logaddexp.reduce(f, axis=0)
    return -log_p[0] if name == "cross-entropy" else np.maximum(log_p[1], log_p[2])


def check_search(rows: list[Row]) -> Findings:
    """Compare the counts with those that are known, and the losses with each other."""
    counts = {row["loss"]: row["hits"] for row in rows}
    for row in rows:
        if row["loss"] == "reflected, pairwise":
            first = [min(k, row["flips"]) for k in TOP]
            yield Finding("by the pairwise reflected loss all flips come first",
                          row["hits"] == first,
                          f"{row['hits']}; {row['flips']} flips on the grid")  # fmt: skip
    ce, pairwise = counts["cross-entropy"], counts["reflected, pairwise"]
    yield Finding("the reflected loss ranks attacks better than cross-entropy",
                  all(p >= c for p, c in zip(pairwise, ce, strict=True)) and pairwise[-1] > ce[-1],
                  f"{pairwise} against {ce}, of {rows[0]['flips']} flips on the grid",
                  "Figure 6-2, bars")  # fmt: skip


def plot_search(rows: list[Row]) -> Any:
    """Draw the bars of the figure."""
    figure, bars_of = canvas(8.4, 3.0, 1, len(TOP))
    for i, (axes, k) in enumerate(zip(bars_of, TOP, strict=True)):
        values = [row["hits"][i] for row in rows]
        bars = axes.bar(range(len(rows)), values, color=[BLUE, YELLOW, ORANGE])
        axes.bar_label(bars)
        axes.set_xticks(
            range(len(rows)), [r["loss"].replace(", ", ",\n") for r in rows], fontsize=7
        )
        axes.set_title(f"top {k}")
        axes.set_ylim(0, 1.12 * min(k, max(*values, 1)))
    return figure
