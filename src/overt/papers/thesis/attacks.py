"""Section 6.5: experiments with attacks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from overt._check import InputError
from overt._figures import BLUE, ORANGE, YELLOW, canvas
from overt.papers.figures import (
    Finding,
    Findings,
    Interval,
    Params,
    Row,
    Table,
    above,
    below,
    mean_interval,
    rows_with,
    together,
    values_of,
)
from overt.papers.records import Residuals, figure, item, statement


@statement("Section 6.5.3", "6.5.3", how="enumerated")
def greedy_reflection(scale: int, rng: np.random.Generator) -> Residuals:
    """Aiming at one class.

    Aiming at the most likely wrong class can fail where another class is in reach: W = [2e1,
    e1, 10e2], x = (1, 0), radius .3; every class in turn succeeds from .196 on.

    TeX: Aiming at the most likely wrong class can fail where another class is in reach: $W =
    [2e_1, e_{1}, 10e_2]$, $x = (1, 0)$, radius $.3$; every class in turn succeeds from $.196$
    on.
    """
    import torch

    from overt.robust import L2, PGD

    weight = torch.from_numpy(W)
    x, y = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    wrong = 0
    for radius in (0.19, 0.195, 0.1962, 0.2, 0.3):
        found = PGD(L2(radius), steps=50, loss="reflected_all")(
            lambda v: v @ weight.T, x, y
        )
        greedy = PGD(L2(radius), steps=50, loss="reflected_greedy")(
            lambda v: v @ weight.T, x, y
        )
        wrong += bool(found.success) != (radius > 2 / math.sqrt(104)) or bool(
            greedy.success
        )
    yield float(wrong)
    return 0.0, "radii at which greedy succeeds, or every class in turn errs"


X, TOP = np.array([3.0, 2.0, 1.0]), (10, 100, 1000)


W = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 10.0]])


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
        f = np.stack(
            [
                np.full(int(inside.sum()), X[0] + first),
                X[1] + second[inside],
                X[2] + third[inside],
            ]
        )
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
            yield Finding(
                "by the pairwise reflected loss all flips come first",
                row["hits"] == first,
                f"{row['hits']}; {row['flips']} flips on the grid",
            )
        if row["loss"] == "reflected, log-softmax":
            yield Finding(
                "by the reflected log-softmax, the rule of section 6.5.3, all flips come first",
                row["hits"] == [min(k, row["flips"]) for k in TOP],
                f"{row['hits']}; {row['flips']} flips on the grid",
            )
    ce, pairwise = counts["cross-entropy"], counts["reflected, pairwise"]
    yield Finding(
        "the reflected loss ranks attacks better than cross-entropy",
        all(p >= c for p, c in zip(pairwise, ce, strict=True))
        and pairwise[-1] > ce[-1],
        f"{pairwise} against {ce}, of {rows[0]['flips']} flips on the grid",
        "Figure 6-2, bars",
    )


def plot_search(rows: list[Row]) -> Any:
    """Plot the bars of the figure."""
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
            found = strongest(
                lambda v: v @ weight.T, x, y, threat, budget=100, warn=False
            )
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
    yield Finding(
        "greedy reflection fails at every radius up to .4",
        not any(by["reflected_greedy"]["fooled"]),
        f"{sum(by['reflected_greedy']['fooled'])} successes",
        "fails at .3",
    )
    yield Finding(
        "every wrong class in turn succeeds exactly where an attack exists",
        by["reflected_all"]["fooled"] == truth,
        f"from radius {first:.3f} on",
        f"2 / sqrt(104) = {2 / math.sqrt(104):.3f}",
    )
    yield Finding(
        "so do the greedy choice followed by the nearest classes, and the ensemble",
        by["reflected"]["fooled"] == by["strongest"]["fooled"] == truth,
        "equal at all radii",
    )


def plot_greedy(rows: list[Row]) -> Any:
    """Plot the plane with its classes and where each attack ends, and success by radius."""
    figure, (plane, right) = canvas(8.8, 3.4, 1, 2)
    a, b = np.meshgrid(np.linspace(0.4, 1.6, 300), np.linspace(-0.5, 0.5, 300))
    winner = np.argmax(np.stack([a, b], -1) @ W.T, -1)
    plane.contourf(
        a,
        b,
        winner,
        levels=[-0.5, 0.5, 1.5, 2.5],
        colors=["#dbe9f6", "#eee", "#fde0c5"],
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


TRAININGS = ("standard", "pgd-inf", "r-pgd-inf", "pgd-2", "r-pgd-2")


ATTACKS = ("fgsm", "r-fgsm", "pgd-inf", "r-pgd-inf", "bim", "r-bim", "pgd-2", "r-pgd-2")


TABLE_1 = {
    "standard": (0.236, 0.236, 0.033, 0.286, 0.286, 0.286, 0.003, 0.256),
    "pgd-inf": (0.004, 0.004, 0.005, 0.005, 0.005, 0.005, 0.003, 0.05),
    "r-pgd-inf": (0.003, 0.003, 0.004, 0.004, 0.004, 0.004, 0.002, 0.042),
    "pgd-2": (0.013, 0.013, 0.022, 0.024, 0.024, 0.024, 0.002, 0.034),
    "r-pgd-2": (0.004, 0.004, 0.005, 0.006, 0.006, 0.006, 0.0, 0.008),
}


BATCH = 64


PRINTED = 1e-3


RADII = {"mnist": {"inf": 0.1, "2": 2.0}, "digits": {"inf": 0.12, "2": 0.9}}


def attack_of(name: str, data: str, steps: int) -> Any:
    """Return the attack of a column of the table."""
    from overt.robust import FGSM, L2, PGD, Linf, Threat

    loss = "reflected" if name.startswith("r-") else "cross_entropy"
    kind = name.removeprefix("r-")
    threat: Threat
    if kind == "pgd-2":
        threat, size = L2(RADII[data]["2"], (0.0, 1.0)), 10.0 / BATCH
    else:
        threat, size = Linf(RADII[data]["inf"]), 10.0
    if kind == "fgsm":
        return FGSM(threat, loss=loss, random_start=False)
    return PGD(
        threat,
        steps=steps,
        loss=loss,
        schedule="decay",
        step_size=size,
        normalize=kind == "bim",
    )


def run_two_digits(params: Params, seed: int) -> dict[str, Any]:
    """Train one network and attack it in all eight ways."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from overt.papers import models
    from overt.robust import adversarial_train

    data = models.load(params["data"], only=(0, 1))
    # The same start and order for every row of the table, another for every run.
    with torch.random.fork_rng():
        torch.manual_seed(params["run"])
        model = models.mlp(data.x[0].numel(), 1)
        loader = DataLoader(
            TensorDataset(data.x, data.y), batch_size=BATCH, shuffle=True
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(
            optimizer, max(params["epochs"] // 4, 1), gamma=0.2
        )
        attack = None
        if params["training"] != "standard":
            attack = attack_of(
                params["training"], params["data"], params["train_steps"]
            )
        adversarial_train(
            model,
            loader,
            attack,
            epochs=params["epochs"],
            optimizer=optimizer,
            scheduler=scheduler,
            seed=params["run"],
        )
    errors = {
        name: 1
        - attack_of(name, params["data"], params["steps"])(
            model, data.x_test, data.y_test, warn=False
        ).robust_accuracy
        for name in ATTACKS
    }
    with torch.no_grad():
        wrong = (model(data.x_test).squeeze(1) > 0).long() != data.y_test
    return {
        "clean": float(wrong.double().mean()),
        "errors": errors,
        "points": len(wrong),
    }


def table(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return mean errors by training and attack."""
    runs = {training: rows_with(rows, training=training) for training in TRAININGS}
    return {
        training: {
            a: float(np.mean([row["errors"][a] for row in chosen])) for a in ATTACKS
        }
        for training, chosen in runs.items()
    }


def check_two_digits(rows: list[Row]) -> Findings:
    """Check the pattern of the table."""
    mean = table(rows)
    standard = mean["standard"]
    excess = _difference(rows, "standard", "standard", "r-pgd-2", "pgd-2")
    yield Finding(
        "standard training: the reflected L2 attack finds more errors than the plain one",
        above(excess, 0),
        f"{standard['pgd-2']:.3f} and {standard['r-pgd-2']:.3f}",
        ".003 and .256",
    )
    # With one logit the reflected FGSM and BIM are the plain ones: there is nothing to decide.
    inf = _difference(rows, "standard", "standard", "r-pgd-inf", "pgd-inf")
    yield Finding(
        "standard training: the reflected Linf attack finds more errors than the plain one",
        above(inf, 0),
        f"{standard['pgd-inf']:.3f} and {standard['r-pgd-inf']:.3f}",
        ".033 and .286",
    )
    for plain in ("pgd-inf", "pgd-2"):
        gain = _difference(rows, "standard", plain, "r-pgd-2", "r-pgd-2")
        yield Finding(
            f"{plain} training, with the weaker attack, is more robust than standard training",
            above(gain, 0),
            f"r-pgd-2 error {standard['r-pgd-2']:.3f} -> {mean[plain]['r-pgd-2']:.3f}",
            f"{TABLE_1['standard'][-1]} -> {TABLE_1[plain][-1]}",
        )
    for plain, reflected in (("pgd-inf", "r-pgd-inf"), ("pgd-2", "r-pgd-2")):
        gains = {a: _difference(rows, plain, reflected, a, a) for a in ATTACKS}
        last = gains["r-pgd-2"]
        yield Finding(
            f"{reflected} training is at least as robust as {plain} to all attacks",
            together(*(above(gain, -PRINTED) for gain in gains.values())),
            f"r-pgd-2 error {mean[plain]['r-pgd-2']:.3f} -> "
            f"{mean[reflected]['r-pgd-2']:.3f} (gain {last[0]:.3f} to {last[1]:.3f})",
            f"{TABLE_1[plain][-1]} -> {TABLE_1[reflected][-1]}",
        )


def table_two_digits(rows: list[Row]) -> Table:
    """Return the measured errors as the thesis's table, the printed ones in brackets."""
    mean = table(rows)
    lines = [
        [
            training,
            *(
                f"{mean[training][attack]:.3f} ({printed:.3f})"
                for attack, printed in zip(ATTACKS, TABLE_1[training], strict=True)
            ),
        ]
        for training in TRAININGS
    ]
    return ("training (printed in brackets)", *ATTACKS), lines


def _difference(
    rows: list[Row], one: str, other: str, attack: str, against: str
) -> Interval:
    """Return the interval, over runs, of one training's error less the other's."""
    errors = {(r["training"], r["run"]): r["errors"] for r in rows}
    runs = values_of(rows, "run")
    return mean_interval(
        [errors[one, run][attack] - errors[other, run][against] for run in runs]
    )


def plot_two_digits(rows: list[Row]) -> Any:
    """Plot the table as two heat maps, ours and the thesis's."""
    mean = table(rows)
    ours = np.array([[mean[t][a] for a in ATTACKS] for t in TRAININGS])
    printed = np.array([TABLE_1[t] for t in TRAININGS])
    figure, (upper, lower) = canvas(9, 5.4, 2, 1)
    shown = ((upper, "measured here", ours), (lower, "thesis, Table 6-I", printed))
    for axes, title, values in shown:
        axes.imshow(np.sqrt(values), cmap="Reds", vmin=0, vmax=1, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            axes.text(column, row, f"{value:.3f}", ha="center", va="center", fontsize=8)
        axes.set_xticks(range(len(ATTACKS)), ATTACKS, fontsize=8)
        axes.set_yticks(range(len(TRAININGS)), TRAININGS, fontsize=8)
        axes.set_title(f"robust test error, {title}")
    return figure


LOSSES = {"PGD": "cross_entropy", "R-PGD": "reflected_greedy"}


TABLE_2 = {  # (radius * 255, steps): (RA of PGD, RA of R-PGD)
    (2, 2): (14.182, 14.338),
    (2, 4): (20.702, 20.726),
    (2, 16): (21.014, 20.958),
    (2, 32): (20.848, 20.746),
    (4, 2): (17.764, 17.162),
    (4, 4): (30.344, 30.34),
    (4, 16): (37.564, 37.4),
    (4, 32): (37.304, 37.374),
    (8, 2): (20.064, 20.1),
    (8, 4): (34.21, 34.19),
    (8, 16): (48.916, 48.792),
    (8, 32): (48.936, 48.828),
    (16, 2): (16.19, 15.986),
    (16, 4): (21.524, 21.362),
    (16, 16): (48.722, 48.742),
    (16, 32): (45.292, 44.778),
}


def run_cifar(params: Params, seed: int) -> dict[str, Any]:
    """Train one network and measure its clean and robust accuracy."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from overt.papers import models
    from overt.robust import PGD, Linf, TrainingConfig, adversarial_train

    data = models.load(params["data"])
    if len(data.x_test) < params["points"]:
        raise InputError(
            f"OVERT_DATA must hold all of {params['data']}, {params['points']:,} "
            f"images to test on; it has {len(data.x_test):,}"
        )
    epochs, threat = params["epochs"], Linf(params["radius"] / 255, (0.0, 1.0))
    with torch.random.fork_rng():
        torch.manual_seed(params["run"])
        model = models.residual(
            data.x.shape[1], 10, params["width"], params["stride"], params["blocks"]
        )
        loader = DataLoader(TensorDataset(data.x, data.y), batch_size=128, shuffle=True)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.2, momentum=0.9, weight_decay=5e-4
        )
        total = epochs * len(loader)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(2 * step / total, 2 - 2 * step / total)
        )
        attack = PGD(
            threat,
            steps=params["steps"],
            loss=LOSSES[params["method"]],
            schedule="constant",
            random_start=True,
        )
        adversarial_train(
            model,
            loader,
            attack,
            epochs=epochs,
            optimizer=optimizer,
            scheduler=scheduler,
            seed=params["run"],
            config=TrainingConfig(step_scheduler_each="batch"),
        )
    x, y = data.x_test[: params["points"]], data.y_test[: params["points"]]
    measure = PGD(
        Linf(params["test_radius"] / 255, (0.0, 1.0)), steps=50, loss="cross_entropy"
    )
    model.eval()
    with torch.no_grad():
        clean = float((model(x).argmax(1) == y).double().mean())
    return {
        "clean": clean,
        "robust": measure(model, x, y, warn=False).robust_accuracy,
        "points_tested": len(x),
    }


def check_cifar(rows: list[Row]) -> Findings:
    """Check that reflection makes no difference beyond noise."""
    for radius in values_of(rows, "radius"):
        gains = []
        for steps in values_of(rows, "steps"):
            chosen = {
                m: rows_with(rows, method=m, radius=radius, steps=steps) for m in LOSSES
            }
            robust = {
                m: [row["robust"] for row in found] for m, found in chosen.items()
            }
            gains.append(mean_interval(np.subtract(robust["R-PGD"], robust["PGD"])))
        known = [v for (r, _), v in TABLE_2.items() if r == radius]
        mean = [(low + high) / 2 for low, high in gains]
        yield Finding(
            f"radius {radius}/255: PGD and R-PGD train networks that differ by less than a point",
            together(
                *(
                    below((max(-high, low), max(high, -low)), 0.01)
                    for low, high in gains
                )
            ),
            "R-PGD minus PGD: "
            + (
                ", ".join(f"{100 * d:+.1f}" for d in mean) + " points"
                if np.isfinite(mean).all()
                else "one run, no interval"
            ),
            ", ".join(f"{b - a:+.1f}" for a, b in known),
        )


def plot_cifar(rows: list[Row]) -> Any:
    """Plot robust and clean accuracy by attack steps, and the paper's numbers, by radius."""
    radii = values_of(rows, "radius")
    figure, line = canvas(max(3.1 * len(radii), 4.5), 3.2, 1, len(radii), squeeze=False)
    for axes, radius in zip(line[0], radii, strict=True):
        steps = values_of(rows_with(rows, radius=radius), "steps")
        for shift, method, color in ((-0.2, "PGD", BLUE), (0.2, "R-PGD", ORANGE)):
            chosen = {
                s: rows_with(rows, method=method, radius=radius, steps=s) for s in steps
            }
            x = np.arange(len(steps)) + shift
            for name, alpha in (("clean", 0.25), ("robust", 0.9)):
                height = [100 * np.mean([r[name] for r in chosen[s]]) for s in steps]
                label = f"{method}, {name}"
                bars = axes.bar(x, height, 0.38, color=color, alpha=alpha, label=label)
                axes.bar_label(bars, [f"{h:.0f}" for h in height], fontsize=7)
            known = [TABLE_2.get((radius, s), (np.nan, np.nan)) for s in steps]
            printed = [pair[method == "R-PGD"] for pair in known]
            axes.plot(
                x,
                printed,
                "kx",
                ms=5,
                label="printed, CIFAR-10" if method == "PGD" else None,
            )
        axes.set_xticks(range(len(steps)), [str(s) for s in steps])
        axes.set(
            ylim=(0, 105),
            xlabel="attack steps in training",
            title=f"radius {radius}/255",
        )
    line[0, 0].set_ylabel("test accuracy, %")
    figure.legend(
        *line[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=5,
        fontsize=7,
    )
    return figure


figure(
    "thesis-fig6-2",
    "Figure 6-2",
    "6.5.1",
    """Grid search: which of the top attacks flip the label.

    Sorting perturbations by the reflected loss puts label flips first.
    """,
    run=run_search,
    check=check_search,
    plot=plot_search,
    hours={"paper": 0.03},
    sizes={
        "toy": {
            "loss": ["cross-entropy", "reflected, log-softmax", "reflected, pairwise"],
            "radius": 0.72,
            "points": 120,
        },
        "reduced": {
            "loss": ["cross-entropy", "reflected, log-softmax", "reflected, pairwise"],
            "radius": 0.72,
            "points": 200,
        },
        "paper": {
            "loss": ["cross-entropy", "reflected, log-softmax", "reflected, pairwise"],
            "radius": 0.7078,
            "points": 800,
        },
    },
    differs={
        "toy": "radius .72 and a grid of 120^3, which contains flips",
        "reduced": "radius .72 and a grid of 200^3, which contains flips",
    },
)

figure(
    "thesis-table6-1",
    "Table 6-I",
    "6.5.2",
    """Robust test error on digits 0 and 1.

    Plain attacks overrate networks trained as usual; reflected training is more robust.
    """,
    run=run_two_digits,
    check=check_two_digits,
    plot=plot_two_digits,
    hours={"reduced": 0.54, "paper": 9},
    table=table_two_digits,
    sizes={
        "toy": {
            "run": 0,
            "data": "digits",
            "training": ["standard", "pgd-inf", "r-pgd-inf", "pgd-2", "r-pgd-2"],
            "epochs": 8,
            "train_steps": 10,
            "steps": 10,
        },
        "reduced": {
            "runs": 3,
            "data": "mnist",
            "training": ["standard", "pgd-inf", "r-pgd-inf", "pgd-2", "r-pgd-2"],
            "epochs": 8,
            "train_steps": 10,
            "steps": 20,
        },
        "paper": {
            "runs": 10,
            "data": "mnist",
            "training": ["standard", "pgd-inf", "r-pgd-inf", "pgd-2", "r-pgd-2"],
            "epochs": 20,
            "train_steps": 20,
            "steps": 40,
        },
    },
    differs={
        "toy": "scikit-learn's digits, one run, 8 epochs, 10 attack steps",
        "reduced": "3 runs, 8 epochs, 10 attack steps in training and 20 in the test",
        "paper": "how many attack steps is not printed: 20 in training, 40 in the test",
    },
    needs={"torch": "torch"},
    revision=2,
)

figure(
    "thesis-table6-2",
    "Table 6-II",
    "6.5.3",
    """Adversarial training of a residual network with and without reflection.

    Reflecting the loss of the training attack changes robust accuracy within noise.
    """,
    run=run_cifar,
    check=check_cifar,
    plot=plot_cifar,
    sizes={
        "toy": {
            "data": "digits",
            "method": ["PGD", "R-PGD"],
            "radius": 16,
            "steps": 2,
            "test_radius": 16,
            "epochs": 2,
            "width": 4,
            "stride": 1,
            "blocks": [[1, 1, 1]],
            "points": 150,
            "run": 0,
        },
        "reduced": {
            "data": "cifar10",
            "method": ["PGD", "R-PGD"],
            "radius": [2, 8],
            "steps": [2, 4],
            "test_radius": 8,
            "epochs": 3,
            "width": 8,
            "stride": 2,
            "blocks": [[1, 1, 1]],
            "points": 870,
            "runs": 2,
        },
        "paper": {
            "data": "cifar10",
            "method": ["PGD", "R-PGD"],
            "radius": [2, 4, 8, 16],
            "steps": [2, 4, 16, 32],
            "test_radius": 8,
            "epochs": 20,
            "width": 64,
            "stride": 1,
            "blocks": [[2, 2, 2, 2]],
            "points": 10000,
            "runs": 5,
        },
    },
    differs={
        "toy": "scikit-learn's digits, a small residual network, one run of 2 epochs",
        "reduced": "the CIFAR-10 images that OVERT_DATA holds, a small residual network on halved "
        "images, 2 runs of 3 epochs, two radii and two numbers of steps",
        "paper": "needs all of CIFAR-10 in OVERT_DATA; the attack's step size is not printed",
    },
    needs={"torch": "torch"},
)

figure(
    "robust-greedy",
    "Section 6.5.3, example",
    "6.5.3",
    """Greedy reflection against every class in turn.

    The most likely wrong class can be the wrong one to aim at.
    """,
    run=run_greedy,
    check=check_greedy,
    plot=plot_greedy,
    hours={"paper": 0.09},
    sizes={
        "toy": {
            "method": [
                "cross_entropy",
                "reflected_greedy",
                "reflected",
                "reflected_lse",
                "reflected_all",
                "strongest",
                "exact",
            ],
            "points": 8,
        },
        "paper": {
            "method": [
                "cross_entropy",
                "reflected_greedy",
                "reflected",
                "reflected_lse",
                "reflected_all",
                "strongest",
                "exact",
            ],
            "points": 191,
        },
    },
    differs={"toy": "8 radii", "paper": "191 radii up to .4; the thesis states one"},
    needs={"torch": "torch"},
)

item(
    "Section 6.5.2, claims",
    "6.5.2",
    "PGD-inf against R-PGD-inf for standard training; plain attacks still train well",
    by="thesis-table6-1",
)
