"""Thesis, section 6.5.3: three classes where aiming at the likeliest wrong one fails.

f(x) = W x with W = [2e1, e1, 10e2] at x = (1, 0): class 2 is likelier than class 3, but never wins;
class 3 wins from radius 2 / sqrt(104) = .196 on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from overt._figures import ORANGE, canvas
from overt.experiments.base import Findings, Params, Row
from overt.experiments.verdicts import Finding

W = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 10.0]])


def run(params: Params, seed: int) -> dict[str, Any]:
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


def check(rows: list[Row]) -> Findings:
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


def plot(rows: list[Row]) -> Any:
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
    plane.set_aspect("equal")
    plane.set_title("blue: class 1, orange: class 3")
    for i, row in enumerate(rows):
        radii, fooled = np.array(row["radii"]), np.array(row["fooled"])
        right.scatter(radii[fooled], np.full(fooled.sum(), i), s=14, color=ORANGE)
        right.scatter(radii[~fooled], np.full((~fooled).sum(), i), s=14, color="0.8")
    right.set_yticks(range(len(rows)), [row["method"] for row in rows])
    right.axvline(2 / math.sqrt(104), color="k", lw=0.8, ls=":")
    right.set_xlabel("radius (red: fooled)")
    return figure
