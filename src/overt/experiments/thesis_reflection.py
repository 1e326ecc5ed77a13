"""Thesis, Figures 6-1 and 6-2, section 6.5.3: cross-entropy, its reflection, and what they find.

In Figure 6-2 f(x) = x, x = (3, 2, 1), class 1. Perturbations on a grid in (-.51, .51)^3 within a
Euclidean ball are sorted by a loss, and the flips among the top k counted. The printed radius .7078
leaves flips only on very fine grids; .72 shows the same at a coarse one.

In section 6.5.3 f(x) = W x with W = [2e1, e1, 10e2] at x = (1, 0): class 2 is likelier than class
3, but never wins; class 3 wins from radius 2 / sqrt(104) = .196 on.
"""

from __future__ import annotations

import math
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
W = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 10.0]])


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
        axes.set(title=f"top {k}", ylim=(0, 1.12 * min(k, max(*values, 1))))
    return figure


def run_greedy(params: Params, seed: int) -> dict[str, Any]:
    """Attack the point at each radius."""
    import torch

    from overt.robust import L2, PGD, exact, strongest

    weight = torch.from_numpy(W)
    x, y = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    radii = np.linspace(0.02, 0.4, params["points"])
    fooled, where = [], [1.0, 0.0]
    for radius in radii:
        threat = L2(float(radius))
        if params["method"] == "exact":
            fooled.append(bool(exact.linear(W, np.zeros(3), x, y, threat).fooled[0]))
            continue
        if params["method"] == "strongest":
            found = strongest(lambda v: v @ weight.T, x, y, threat, budget=100, warn=False)
        else:
            attack = PGD(threat, steps=50, loss=params["method"])
            found = attack(lambda v: v @ weight.T, x, y, warn=False)
        fooled.append(bool(found.success))
        where = found.x[0].tolist()
    return {"radii": radii.tolist(), "fooled": fooled, "last": where}


def check_greedy(rows: list[Row]) -> Findings:
    """Check that greedy never succeeds, and every class in turn exactly where it is possible."""
    by = {row["method"]: row for row in rows}
    truth = by["exact"]["fooled"]
    first = next(r for r, f in zip(by["exact"]["radii"], truth, strict=True) if f)
    yield Finding("greedy reflection fails at every radius up to .4",
                  not any(by["reflected_greedy"]["fooled"]),
                  f"{sum(by['reflected_greedy']['fooled'])} successes", "fails at .3")  # fmt: skip
    yield Finding("every wrong class in turn succeeds exactly where an attack exists",
                  by["reflected_all"]["fooled"] == truth, f"from radius {first:.3f} on",
                  f"2 / sqrt(104) = {2 / math.sqrt(104):.3f}")  # fmt: skip
    yield Finding("so do the greedy choice followed by the nearest classes, and the ensemble",
                  by["reflected"]["fooled"] == by["strongest"]["fooled"] == truth,
                  "equal at all radii")  # fmt: skip


def plot_greedy(rows: list[Row]) -> Any:
    """Draw the plane with its classes and where each attack ends, and success by radius."""
    figure, (plane, right) = canvas(8.8, 3.4, 1, 2)
    a, b = np.meshgrid(np.linspace(0.4, 1.6, 300), np.linspace(-0.5, 0.5, 300))
    winner = np.argmax(np.stack([a, b], -1) @ W.T, -1)
    plane.contourf(
        a, b, winner, levels=[-0.5, 0.5, 1.5, 2.5], colors=["#dbe9f6", "#eee", "#fde0c5"]
    )
    angle = np.linspace(0, 2 * np.pi, 200)
    plane.plot(1 + 0.4 * np.cos(angle), 0.4 * np.sin(angle), "k:", lw=1)
    for row in rows:
        if row["method"] in ("cross_entropy", "reflected_greedy", "reflected_all"):
            plane.annotate("", row["last"], (1, 0), arrowprops={"arrowstyle": "->"})
            side = "left" if row["method"] == "reflected_all" else "right"
            plane.text(*row["last"], f" {row['method']} ", fontsize=8, ha=side)
    plane.set(aspect="equal", title="blue: class 1, orange: class 3")
    for i, row in enumerate(rows):
        radii, fooled = np.array(row["radii"]), np.array(row["fooled"])
        right.scatter(radii[fooled], np.full(fooled.sum(), i), s=14, color=ORANGE)
        right.scatter(radii[~fooled], np.full((~fooled).sum(), i), s=14, color="0.8")
    right.set_yticks(range(len(rows)), [row["method"] for row in rows])
    right.axvline(2 / math.sqrt(104), color="k", lw=0.8, ls=":")
    right.set_xlabel("radius (red: fooled)")
    return figure
