"""Thesis, Table 6-II: adversarial training of a residual network with and without reflection.

The thesis trains a PreActResNet-18 on all of CIFAR-10; here a smaller pre-activation network on
the CIFAR-10 images that OVERT_DATA holds ("full": the thesis's radii, steps and epochs; "small":
fewer steps and epochs, and images halved by the first layer) or on scikit-learn's digits ("toy").
SGD with momentum .9 and weight decay 5e-4 in batches of 128, the rate going up to .2 and back to 0;
robust accuracy by 50-step PGD.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt.experiments.base import Experiment, Finding, Findings, Params, Row, canvas, grid

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
    from overt.robust import PGD, Constant, Linf, adversarial_train

    data = small.load(params["data"])
    epochs, threat = params["epochs"], Linf(params["radius"] / 255, (0.0, 1.0))
    with torch.random.fork_rng():
        torch.manual_seed(params["run"])
        model = small.residual(data.x.shape[1], 10, params["width"], params["stride"])
        loader = DataLoader(TensorDataset(data.x, data.y), batch_size=128, shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=5e-4)
        total = epochs * len(loader)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(2 * step / total, 2 - 2 * step / total)
        )
        attack = PGD(threat, steps=params["steps"], loss=LOSSES[params["method"]],
                     schedule=Constant(), momentum=0.0, random_start=True)  # fmt: skip
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
    for radius in sorted({row["radius"] for row in rows}):
        differences, noise = [], []
        for steps in sorted({row["steps"] for row in rows}):
            pair = {
                m: [r for r in rows if (r["method"], r["radius"], r["steps"]) == (m, radius, steps)]
                for m in LOSSES
            }
            means = {m: float(np.mean([r["robust"] for r in pair[m]])) for m in LOSSES}
            differences.append(means["R-PGD"] - means["PGD"])
            n = sum(r["points_tested"] for r in pair["PGD"])
            # Two networks from different losses; 3 binomial standard errors plus retraining noise.
            noise.append(3 * np.sqrt(2 * 0.25 / n) + 0.05)
        known = [v for (r, _), v in REPORTED.items() if r == radius]
        yield Finding(
            f"radius {radius}/255: PGD and R-PGD train equally robust networks",
            all(abs(d) <= e for d, e in zip(differences, noise, strict=True)),
            "R-PGD minus PGD: " + ", ".join(f"{100 * d:+.1f}" for d in differences) + " points",
            ", ".join(f"{b - a:+.1f}" for a, b in known),
        )


def plot(rows: list[Row]) -> Any:
    """Draw robust and clean accuracy by attack steps, a panel for each radius."""
    radii = sorted({row["radius"] for row in rows})
    figure, line = canvas(3.1 * len(radii), 3.2, 1, len(radii), squeeze=False)
    for axes, radius in zip(line[0], radii, strict=True):
        for method, color in (("PGD", "tab:blue"), ("R-PGD", "tab:red")):
            chosen = [r for r in rows if (r["method"], r["radius"]) == (method, radius)]
            measured = sorted((r["steps"], r["robust"], r["clean"]) for r in chosen)
            steps, robust, clean = np.array(measured).T
            axes.plot(steps, robust, marker="o", color=color, label=f"{method}, robust")
            axes.plot(steps, clean, marker="s", ls="--", color=color, label=f"{method}, clean")
        axes.set_xscale("log", base=2)
        axes.set(ylim=(0, 1), xlabel="attack steps in training", title=f"radius {radius}/255")
    line[0, 0].set_ylabel("test accuracy")
    line[0, 0].legend(fontsize=7)
    return figure


EXPERIMENT = Experiment(
    id="thesis-table6-2",
    title="Adversarial training of a residual network with and without reflection",
    source="Thesis, Table 6-II",
    claim="reflecting the loss of the training attack changes robust accuracy within noise",
    grids={
        "toy": grid(data="digits", method=list(LOSSES), radius=16, steps=2, test_radius=16,
                    epochs=2, width=4, stride=1, points=150, run=0),
        "small": grid(data="cifar10", method=list(LOSSES), radius=[2, 4, 8, 16], steps=[2, 8],
                      test_radius=8, epochs=6, width=8, stride=2, points=870, run=0),
        "full": grid(data="cifar10", method=list(LOSSES), radius=[2, 4, 8, 16],
                     steps=[2, 4, 16, 32], test_radius=8, epochs=20, width=16, stride=1, points=870,
                     run=0),
    },
    run=run, check=check, plot=plot, needs={"torch": "torch", "matplotlib": "plots"},
)  # fmt: skip
