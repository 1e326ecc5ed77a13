"""Section 6.5: experiments with attacks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from overt._check import InputError
from overt._figures import COLORS, canvas
from overt.papers.figures import (
    Finding,
    Findings,
    Interval,
    Params,
    Rows,
    Table,
    above,
    below,
    mean_interval,
    rows_with,
    together,
    values_of,
)
from overt.papers.records import Residuals, Rng, figure, read_table, statement


@statement("Section 6.5.3", "6.5.3", how="enumerated")
def greedy_reflection(rng: Rng) -> Residuals:
    """Aiming at one class.

    Aiming at the most likely wrong class can fail where another class is in reach: W = [2e1,
    e1, 10e2], x = (1, 0), radius .3; every class in turn succeeds from .196 on.

    TeX: Aiming at the most likely wrong class can fail where another class is in reach: $W =
    [2e_1, e_{1}, 10e_2]$, $x = (1, 0)$, radius $.3$; every class in turn succeeds from $.196$
    on.
    """
    from overt.robust import L2, PGD

    model, x, y = _example()
    wrong = 0
    for radius in (0.19, 0.195, 0.1962, 0.2, 0.3):
        succeeds = []
        for loss in ("reflected_all", "reflected_greedy"):
            attack = PGD(L2(radius), steps=50, loss=loss)
            found = attack(model, x, y)
            succeeds.append(bool(found.success))
        every, greedy = succeeds
        wrong += every != (radius > REACHED)
        wrong += greedy
    yield wrong
    return 0.0, "radii at which greedy succeeds, or every class in turn errs"


W = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 10.0]])
"""A linear classifier of the plane into three classes, attacked at (1, 0)."""

REACHED = 2 / math.sqrt(104)
"""The distance of (1, 0) to the third class."""


def _example() -> tuple[Any, Any, Any]:
    """Return the classifier, its input and its class."""
    import torch

    weight = torch.from_numpy(W)
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    return lambda v: v @ weight.T, x, torch.tensor([0])


X = np.array([3.0, 2.0, 1.0])
TOP = (10, 100, 1000)


def run_search(params: Params, seed: int) -> dict[str, Any]:
    """Go through the grid slab by slab, keeping the best thousand by the loss."""
    axis = np.linspace(-0.51, 0.51, params["points"])
    plane = np.stack(np.meshgrid(axis, axis, indexing="ij"))
    best_value = np.empty(0)
    best_flip = np.empty(0, dtype=bool)
    flips = 0
    for first in axis:
        inside = np.sum(plane**2, axis=0) + first**2 <= params["radius"] ** 2
        others = plane[:, inside]
        f = X[:, None] + np.vstack([np.full(others.shape[1], first), others])
        flip = f[1:].max(axis=0) > f[0]
        flips += int(flip.sum())
        best_value = np.append(best_value, _loss(params["loss"], f))
        best_flip = np.append(best_flip, flip)
        order = np.argsort(-best_value, kind="stable")[: TOP[-1]]
        best_value = best_value[order]
        best_flip = best_flip[order]
    return {"hits": [best_flip[:k].sum() for k in TOP], "flips": flips}


def _loss(name: str, f: Any) -> Any:
    if name == "reflected, pairwise":
        return -np.logaddexp(0, f[0] - f[1:].max(axis=0))
    log_p = f - np.logaddexp.reduce(f, axis=0)
    return -log_p[0] if name == "cross-entropy" else log_p[1:].max(axis=0)


def check_search(rows: Rows) -> Findings:
    """Compare the counts with those that are known, and the losses with each other."""
    hits = {row["loss"]: row["hits"] for row in rows}
    flips = rows[0]["flips"]
    first = [min(k, flips) for k in TOP]
    for loss, what in (
        ("reflected, pairwise", "the pairwise reflected loss"),
        (
            "reflected, log-softmax",
            "the reflected log-softmax, the rule of section 6.5.3,",
        ),
    ):
        yield Finding(
            f"by {what} all flips come first",
            hits[loss] == first,
            f"{hits[loss]}; {flips} flips on the grid",
        )
    ce = hits["cross-entropy"]
    pairwise = hits["reflected, pairwise"]
    ahead = np.all(np.greater_equal(pairwise, ce))
    yield Finding(
        "the reflected loss ranks attacks better than cross-entropy",
        ahead and pairwise[-1] > ce[-1],
        f"{pairwise} against {ce}, of {flips} flips on the grid",
        "Figure 6-2, bars",
    )


def plot_search(rows: Rows) -> Any:
    """Plot the bars of the figure."""
    figure, panels = canvas(8.4, 3.0, 1, len(TOP))
    names = [row["loss"].replace(", ", ",\n") for row in rows]
    for i, panel in enumerate(panels):
        heights = [row["hits"][i] for row in rows]
        bars = panel.bar(names, heights, color=COLORS[:3])
        panel.bar_label(bars)
        panel.margins(y=0.12)
        panel.tick_params(axis="x", labelsize=7)
        panel.set_title(f"flips among the top {TOP[i]}")
    return figure


TRAININGS = ("standard", "pgd-inf", "r-pgd-inf", "pgd-2", "r-pgd-2")


ATTACKS = ("fgsm", "r-fgsm", "pgd-inf", "r-pgd-inf", "bim", "r-bim", "pgd-2", "r-pgd-2")


TABLE_1 = read_table("thesis", "printed")["table6-1"]


BATCH = 64


PRINTED = 1e-3


RADII = {"mnist": {"inf": 0.1, "2": 2.0}, "digits": {"inf": 0.12, "2": 0.9}}


def attack_of(name: str, data: str, steps: int) -> Any:
    """Return the attack of a column of the table."""
    from overt.robust import FGSM, L2, PGD, Linf, Threat

    kind = name.removeprefix("r-")
    loss = "cross_entropy" if kind == name else "reflected"
    threat: Threat = Linf(RADII[data]["inf"])
    size = 10.0
    if kind == "pgd-2":
        threat = L2(RADII[data]["2"], (0.0, 1.0))
        size = 10.0 / BATCH
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
    """Train networks side by side, and attack each of them in all eight ways."""
    import torch

    from overt.papers import models

    data = models.load(params["data"], only=(0, 1))
    training = params["training"]
    count = params["networks"]
    attack = None
    if training != "standard":
        attack = attack_of(training, params["data"], params["train_steps"])

    def build() -> tuple[Any, Any, Any]:
        networks = [models.mlp(data.x[0].numel(), 1) for _ in range(count)]
        model = models.Stack(networks)
        # The rate of each network is 1: the loss is the mean over all of them.
        optimizer = torch.optim.SGD(model.parameters(), lr=float(count))
        quarter = max(params["epochs"] // 4, 1)
        steps = torch.optim.lr_scheduler.StepLR(optimizer, quarter, gamma=0.2)
        return model, optimizer, steps

    model = _train(Orders(data, count), build, attack, params["epochs"], 0, "epoch")
    networks = model.unstacked()
    errors = {}
    for name in ATTACKS:
        against = attack_of(name, params["data"], params["steps"])
        found = [against(net, data.x_test, data.y_test, warn=False) for net in networks]
        errors[name] = [1 - result.robust_accuracy for result in found]
    clean = []
    for network in networks:
        with torch.no_grad():
            wrong = (network(data.x_test).squeeze(1) > 0).long() != data.y_test
        clean.append(float(wrong.double().mean()))
    return {"clean": clean, "errors": errors, "points": len(data.y_test)}


@dataclass(frozen=True)
class Orders:
    """Batches for networks side by side: each network goes through the data in its own order."""

    data: Any
    networks: int

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        import torch

        orders = torch.rand(self.networks, len(self.data.y)).argsort(1)
        for part in orders.split(BATCH, dim=1):
            rows = part.flatten()
            yield self.data.x[rows], self.data.y[rows]


def _train(
    data: Any, build: Any, attack: Any, epochs: int, seed: int, each: str
) -> Any:
    """Return the model of `build` after adversarial training.

    The start and the order depend on the seed alone: every row of a table has the same. The
    learning rate changes after `each` batch or epoch.
    """
    import torch

    from overt.robust import TrainingConfig, adversarial_train

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, optimizer, scheduler = build()
        adversarial_train(
            model,
            data,
            attack,
            epochs=epochs,
            batch_size=128,
            optimizer=optimizer,
            scheduler=scheduler,
            seed=seed,
            config=TrainingConfig(step_scheduler_each=each),
        )
    return model.eval()


def table(rows: Rows) -> dict[str, dict[str, float]]:
    """Return mean errors by training and attack."""
    means = {}
    for training in TRAININGS:
        (row,) = rows_with(rows, training=training)
        errors = {a: np.mean(row["errors"][a]) for a in ATTACKS}
        means[training] = errors
    return means


def check_two_digits(rows: Rows) -> Findings:
    """Check the pattern of the table."""
    mean = table(rows)
    # With one logit the reflected FGSM and BIM are the plain ones: there is nothing to decide.
    for kind, printed in (("2", ".003 and .256"), ("inf", ".033 and .286")):
        plain = f"pgd-{kind}"
        reflected = f"r-pgd-{kind}"
        excess = _difference(rows, "standard", "standard", reflected, plain)
        found = mean["standard"]
        yield Finding(
            f"standard training: {reflected} finds more errors than {plain}",
            above(excess, 0),
            f"{found[plain]:.3f} and {found[reflected]:.3f}",
            printed,
        )
    for worse, better, slack, claim in (
        ("standard", "pgd-inf", 0, "more robust than"),
        ("standard", "pgd-2", 0, "more robust than"),
        ("pgd-inf", "r-pgd-inf", -PRINTED, "at least as robust to all attacks as"),
        ("pgd-2", "r-pgd-2", -PRINTED, "at least as robust to all attacks as"),
    ):
        attacks = ATTACKS if slack else ATTACKS[-1:]
        gains = [_difference(rows, worse, better, a, a) for a in attacks]
        verdicts = [above(gain, slack) for gain in gains]
        low, high = gains[-1]
        yield Finding(
            f"{better} training is {claim} {worse} training",
            together(*verdicts),
            f"r-pgd-2 error {mean[worse]['r-pgd-2']:.3f} -> {mean[better]['r-pgd-2']:.3f}"
            f" (gain {low:.3f} to {high:.3f})",
            f"{TABLE_1[worse][-1]} -> {TABLE_1[better][-1]}",
        )


def table_two_digits(rows: Rows) -> Table:
    """Return the measured errors as the thesis's table, the printed ones in brackets."""
    lines = []
    for training, found in table(rows).items():
        pairs = zip(found.values(), TABLE_1[training], strict=True)
        cells = [f"{ours:.3f} ({theirs})" for ours, theirs in pairs]
        lines.append([training, *cells])
    return ("training", *ATTACKS), lines


def _difference(
    rows: Rows, one: str, other: str, attack: str, against: str
) -> Interval:
    """Return the interval, over networks, of one training's error less the other's."""
    errors = {row["training"]: row["errors"] for row in rows}
    first = np.array(errors[one][attack])
    second = np.array(errors[other][against])
    return mean_interval(first - second)


LOSSES = {"PGD": "cross_entropy", "R-PGD": "reflected_greedy"}


TABLE_2 = read_table("thesis", "printed")["table6-2"]

STEPS = (2, 4, 16, 32)


def printed_accuracy(radius: int, steps: int, method: str) -> float:
    """Return a cell of Table 6-II."""
    accuracies = TABLE_2[str(radius)]
    column = 2 * STEPS.index(steps) + (method == "R-PGD")
    return float(accuracies[column])


def run_cifar(params: Params, seed: int) -> dict[str, Any]:
    """Train one network and measure its clean and robust accuracy."""
    import torch

    from overt.papers import models
    from overt.robust import PGD, Linf

    data = models.load(params["data"])
    points = params["points"]
    if len(data.x_test) < points:
        raise InputError(
            f"OVERT_DATA must hold all of {params['data']}, {points:,} "
            f"images to test on; it has {len(data.x_test):,}"
        )
    attack = PGD(
        Linf(params["radius"] / 255, (0.0, 1.0)),
        steps=params["steps"],
        loss=LOSSES[params["method"]],
        schedule="constant",
        random_start=True,
    )

    def build() -> tuple[Any, Any, Any]:
        shape = (data.x.shape[1], params["blocks"], params["width"])
        first = (3, params["stride"])
        trunk = models.residual_trunk(*shape, first=first, bottleneck=False)
        model = torch.nn.Sequential(trunk, torch.nn.Linear(models.features(trunk), 10))
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.2, momentum=0.9, weight_decay=5e-4
        )
        total = params["epochs"] * -(-len(data.x) // 128)
        triangle = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(2 * step / total, 2 - 2 * step / total)
        )
        return model, optimizer, triangle

    pair = (data.x, data.y)
    model = _train(pair, build, attack, params["epochs"], params["run"], "batch")
    x = data.x_test[:points]
    y = data.y_test[:points]
    threat = Linf(params["test_radius"] / 255, (0.0, 1.0))
    found = PGD(threat, steps=50, loss="cross_entropy")(model, x, y, warn=False)
    with torch.no_grad():
        clean = float((model(x).argmax(1) == y).double().mean())
    return {"clean": clean, "robust": found.robust_accuracy, "points_tested": points}


def check_cifar(rows: Rows) -> Findings:
    """Check that reflection makes no difference beyond noise."""
    for radius in values_of(rows, "radius"):
        gains = []
        verdicts = []
        printed = []
        for steps in values_of(rows, "steps"):
            cell = rows_with(rows, radius=radius, steps=steps)
            robust = []
            theirs = []
            for method in LOSSES:
                runs = rows_with(cell, method=method)
                accuracies = [row["robust"] for row in runs]
                robust.append(np.array(accuracies))
                theirs.append(printed_accuracy(radius, steps, method))
            plain, reflected = robust
            low, high = mean_interval(reflected - plain)
            gains.append(f"{100 * low:+.1f} to {100 * high:+.1f}")
            size = (max(-high, low), max(high, -low))
            verdicts.append(below(size, 0.01))
            printed.append(f"{theirs[1] - theirs[0]:+.1f}")
        yield Finding(
            f"radius {radius}/255: PGD and R-PGD train networks that differ by less than a point",
            together(*verdicts),
            "R-PGD minus PGD, points: " + ", ".join(gains),
            ", ".join(printed),
        )


def table_cifar(rows: Rows) -> Table:
    """Return clean and robust accuracies in per cent, the printed robust ones in brackets."""
    lines = []
    cells = product(values_of(rows, "radius"), values_of(rows, "steps"))
    for radius, steps in cells:
        line = [f"{radius}/255", steps]
        for method in LOSSES:
            cell = rows_with(rows, radius=radius, steps=steps, method=method)
            clean = np.mean([row["clean"] for row in cell])
            robust = np.mean([row["robust"] for row in cell])
            beside = ""
            if cell[0]["data"] == "cifar10":
                beside = f" ({printed_accuracy(radius, steps, method)})"
            line += [f"{100 * clean:.1f}", f"{100 * robust:.1f}{beside}"]
        lines.append(line)
    columns = []
    for method in LOSSES:
        columns += [f"{method}, clean", f"{method}, robust"]
    return ("radius", "steps", *columns), lines


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
    table=table_two_digits,
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
    table=table_cifar,
)
