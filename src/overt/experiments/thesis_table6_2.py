"""Thesis, Table 6-II: adversarial training of a residual network with and without reflection.

The thesis trains a PreActResNet-18 on all of CIFAR-10; smaller sizes take a smaller network.
SGD with momentum .9 and weight decay 5e-4 in batches of 128, the rate going up to .2 and back to 0;
robust accuracy by 50-step PGD.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._check import InputError
from overt._figures import BLUE, ORANGE, canvas
from overt.experiments.base import Findings, Params, Row, rows_with, values_of
from overt.experiments.verdicts import Finding, below, mean_interval, together

LOSSES = {"PGD": "cross_entropy", "R-PGD": "reflected_greedy"}
REPORTED = {  # (radius * 255, steps): (RA of PGD, RA of R-PGD)
    (2, 2): (14.182, 14.338), (2, 4): (20.702, 20.726), (2, 16): (21.014, 20.958),
    (2, 32): (20.848, 20.746), (4, 2): (17.764, 17.162), (4, 4): (30.344, 30.34),
    (4, 16): (37.564, 37.4), (4, 32): (37.304, 37.374), (8, 2): (20.064, 20.1),
    (8, 4): (34.21, 34.19), (8, 16): (48.916, 48.792), (8, 32): (48.936, 48.828),
    (16, 2): (16.19, 15.986), (16, 4): (21.524, 21.362), (16, 16): (48.722, 48.742),
    (16, 32): (45.292, 44.778),
}  # fmt: skip


def run(params: Params, seed: int) -> dict[str, Any]:
    """Train one network and measure its clean and robust accuracy."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from overt.experiments import small
    from overt.robust import PGD, Linf, adversarial_train

    data = small.load(params["data"])
    if len(data.x_test) < params["points"]:
        raise InputError(f"OVERT_DATA must hold all of {params['data']}, {params['points']:,} "
                         f"images to test on; it has {len(data.x_test):,}")  # fmt: skip
    epochs, threat = params["epochs"], Linf(params["radius"] / 255, (0.0, 1.0))
    with torch.random.fork_rng():
        torch.manual_seed(params["run"])
        model = small.residual(
            data.x.shape[1], 10, params["width"], params["stride"], params["blocks"]
        )
        loader = DataLoader(TensorDataset(data.x, data.y), batch_size=128, shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=5e-4)
        total = epochs * len(loader)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(2 * step / total, 2 - 2 * step / total)
        )
        attack = PGD(threat, steps=params["steps"], loss=LOSSES[params["method"]],
                     schedule="constant", momentum=0.0, random_start=True)  # fmt: skip
        adversarial_train(
            model, loader, attack,
            epochs=epochs, optimizer=optimizer, scheduler=scheduler, step_scheduler_each="batch",
            seed=params["run"],
        )  # fmt: skip
    x, y = data.x_test[: params["points"]], data.y_test[: params["points"]]
    measure = PGD(Linf(params["test_radius"] / 255, (0.0, 1.0)), steps=50, loss="cross_entropy")
    model.eval()
    with torch.no_grad():
        clean = float((model(x).argmax(1) == y).double().mean())
    return {"clean": clean, "robust": measure(model, x, y, warn=False).robust_accuracy,
            "points_tested": len(x)}  # fmt: skip


def check(rows: list[Row]) -> Findings:
    """Check that reflection makes no difference beyond noise."""
    for radius in values_of(rows, "radius"):
        gains = []
        for steps in values_of(rows, "steps"):
            chosen = {m: rows_with(rows, method=m, radius=radius, steps=steps) for m in LOSSES}
            robust = {m: [row["robust"] for row in found] for m, found in chosen.items()}
            gains.append(mean_interval(np.subtract(robust["R-PGD"], robust["PGD"])))
        known = [v for (r, _), v in REPORTED.items() if r == radius]
        mean = [(low + high) / 2 for low, high in gains]
        yield Finding(
            f"radius {radius}/255: PGD and R-PGD train networks that differ by less than a point",
            together(*(below((max(-high, low), max(high, -low)), 0.01) for low, high in gains)),
            "R-PGD minus PGD: " + (", ".join(f"{100 * d:+.1f}" for d in mean) + " points"
                                   if np.isfinite(mean).all() else "one run, no interval"),
            ", ".join(f"{b - a:+.1f}" for a, b in known),
        )  # fmt: skip


def plot(rows: list[Row]) -> Any:
    """Draw robust and clean accuracy by attack steps, and what was printed, by radius."""
    radii = values_of(rows, "radius")
    figure, line = canvas(max(3.1 * len(radii), 4.5), 3.2, 1, len(radii), squeeze=False)
    for axes, radius in zip(line[0], radii, strict=True):
        steps = values_of(rows_with(rows, radius=radius), "steps")
        for shift, method, color in ((-0.2, "PGD", BLUE), (0.2, "R-PGD", ORANGE)):
            chosen = {s: rows_with(rows, method=method, radius=radius, steps=s) for s in steps}
            x = np.arange(len(steps)) + shift
            for name, alpha in (("clean", 0.25), ("robust", 0.9)):
                height = [100 * np.mean([r[name] for r in chosen[s]]) for s in steps]
                label = f"{method}, {name}"
                bars = axes.bar(x, height, 0.38, color=color, alpha=alpha, label=label)
                axes.bar_label(bars, [f"{h:.0f}" for h in height], fontsize=7)
            known = [REPORTED.get((radius, s), (np.nan, np.nan)) for s in steps]
            printed = [pair[method == "R-PGD"] for pair in known]
            axes.plot(x, printed, "kx", ms=5,
                      label="printed, CIFAR-10" if method == "PGD" else None)  # fmt: skip
        axes.set_xticks(range(len(steps)), [str(s) for s in steps])
        axes.set(ylim=(0, 105), xlabel="attack steps in training", title=f"radius {radius}/255")
    line[0, 0].set_ylabel("test accuracy, %")
    figure.legend(*line[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5,
                  fontsize=7)  # fmt: skip
    return figure
