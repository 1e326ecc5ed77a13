"""Robust accuracy that an attack reports when a network's logits are scaled: our own figure.

Scaling logits changes no prediction and so no true robustness. What an attack reports should not
change either; with cross-entropy it does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from overt.experiments.base import Experiment, Findings, Params, Row, canvas, grid
from overt.experiments.verdicts import Finding

METHODS = ("cross_entropy", "dlr", "margin", "reflected", "reflected_lse", "strongest")
SETTINGS = {
    "digits": {"epochs": 40, "points": 200, "threats": (("l2", 0.8), ("linf", 0.12))},
    "mnist": {"epochs": 5, "points": 1000, "threats": (("l2", 2.0), ("linf", 0.1))},
}


def run(params: Params, seed: int) -> dict[str, Any]:
    """Attack the same network at one scale with one loss, in both norms."""
    from overt.robust import L2, PGD, Linf, strongest

    setting: Any = SETTINGS[params["data"]]
    data, net = _trained(params["data"], setting["epochs"])

    def model(v: Any) -> Any:
        return params["scale"] * net(v)

    x, y = data.x_test[: setting["points"]], data.y_test[: setting["points"]]
    accuracy = {}
    for norm, radius in setting["threats"]:
        threat = (L2 if norm == "l2" else Linf)(radius, (0.0, 1.0))
        if params["method"] == "strongest":
            found = strongest(model, x, y, threat, budget=params["steps"], warn=False)
        else:
            attack = PGD(threat, steps=params["steps"], loss=params["method"])
            found = attack(model, x, y, warn=False)
        accuracy[norm] = found.robust_accuracy
    return accuracy


@cache
def _trained(name: str, epochs: int) -> tuple[Any, Any]:
    """Return the data and the one network that all settings attack."""
    import torch

    from overt.experiments import small

    data = small.load(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = small.mlp(data.x[0].numel(), 10)
    small.fit(net, data.x, data.y, epochs=epochs, seed=0)
    return data, net


def check(rows: list[Row]) -> Findings:
    """Check that cross-entropy goes blind and that nothing else does."""
    scales = sorted({row["scale"] for row in rows})
    for norm in ("l2", "linf"):
        table = {(r["method"], r["scale"]): r[norm] for r in rows}
        truth = min(r[norm] for r in rows)
        blind = table["cross_entropy", scales[-1]]
        worst = max(table["strongest", s] - truth for s in scales)
        reflected = [table["reflected", s] for s in scales]
        drift = max(reflected) - min(reflected)
        yield Finding(f"{norm}: at scale {scales[-1]:g} cross-entropy reports much robustness",
                      blind >= truth + 0.3, f"{blind:.3f} against {truth:.3f}",
                      ".95 / .94 against .005 / .025 on MNIST")  # fmt: skip
        yield Finding(f"{norm}: the ensemble is the strongest at every scale", worst <= 0.01,
                      f"at most {worst:.3f} above the lowest found by any method at any "
                      "scale")  # fmt: skip
        yield Finding(f"{norm}: the reflected loss does not depend on the scale", drift <= 0.02,
                      f"spread {drift:.3f}")  # fmt: skip


def plot(rows: list[Row]) -> Any:
    """Draw reported robust accuracy against the scale of the logits."""
    figure, sides = canvas(8.8, 3.4, 1, 2)
    for axes, norm in zip(sides, ("l2", "linf"), strict=True):
        for method in METHODS:
            chosen = sorted((r["scale"], r[norm]) for r in rows if r["method"] == method)
            style = "--" if method in ("dlr", "margin") else "-"
            axes.semilogx(*np.array(chosen).T, style, marker="o", ms=4, label=method)
        axes.set(
            xlabel="logits multiplied by",
            ylabel="robust accuracy reported",
            ylim=(-0.02, 1),
            title=norm,
        )
        axes.grid(alpha=0.3)
    sides[0].legend(fontsize=8)
    return figure


EXPERIMENT = Experiment(
    id="robust-scaling",
    title="What attacks report when logits are scaled",
    source="overt's own, after the thesis's section 6.2",
    claim="cross-entropy attacks go blind on scaled logits; reflected ones do not",
    grids={
        "toy": grid(data="digits", method=list(METHODS), scale=[1.0, 100.0], steps=50),
        "paper": grid(data="mnist", method=list(METHODS), scale=[1.0, 3.0, 10.0, 30.0, 100.0],
                     steps=50),
    },
    differs={"paper": "our own figure"},
    run=run, check=check, plot=plot, needs={"torch": "torch", "matplotlib": "plots"},
)  # fmt: skip
