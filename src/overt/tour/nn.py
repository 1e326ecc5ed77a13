"""The tour's chapter on PyTorch: what DropBlock drops, dropout without sampling, uncertainty."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import numpy as np

from overt._figures import canvas
from overt._html import Page
from overt.tour.torch_chapter import digits, network, torch_chapter

STEPS, BATCH = 300, 32


@torch_chapter("PyTorch: dropout without sampling")
def chapter(page: Page, folder: Path, seed: int) -> bool:
    """Train on scikit-learn's digits with the penalty in place of noise; ask how sure it is."""
    return all([_blocks(page, seed), _training(page, seed)])


def _blocks(page: Page, seed: int) -> bool:
    from overt.papers.beyond.noises import run_realized

    page.text(
        "First, a layer that drops what it says. On a 14 x 14 map with blocks of 7, the popular "
        "implementations of DropBlock, asked for a drop probability, realize another one, and "
        "rescale by the batch's random count of survivors, so that the expected output of an "
        "all-ones map is not 1. overt's layer solves for the probability of a block and divides by "
        "each position's known keep probability."
    )
    lines, held = [], True
    for nominal in (0.1, 0.25, 0.5):
        params = {"block_size": 7, "drop_prob": nominal, "batches": 10}
        found = run_realized(params, seed)["implementations"]
        for name, f in found.items():
            lines.append((name, nominal, f["realized"], f["center"], f["corner"]))
        held &= abs(found["overt"]["realized"] - nominal) <= 5 * found["overt"]["error"]
    page.table(
        ("implementation", "nominal", "realized", "mean at the center", "in the corner"), lines
    )
    return bool(held)


def _training(page: Page, seed: int) -> bool:
    import torch

    from overt.nn import mc_moments, predictive_moments

    torch.manual_seed(seed)
    x, y, x_test, y_test = digits()
    curves, model = _trained(x, y, seed)
    page.text(
        "Next, a 64-256-10 network on scikit-learn's digits, dropout 0.5, squared loss. Dropout "
        "adds λ Σ ‖uⱼ‖² mean(aⱼ²) to the expected loss, no more and no less: "
        "without_noise(model) gives the noise-free output and that penalty in one pass, and trains "
        "the same objective without its sampling noise."
    )
    with torch.no_grad():
        start = time.perf_counter()
        mean, variance = predictive_moments(model, x_test)
        one_pass = time.perf_counter() - start
        start = time.perf_counter()
        sampled = mc_moments(model, x_test, 400, seed=seed)
        many = (time.perf_counter() - start) / 4
    sd = sampled.variance.sqrt()
    error = float((variance.sqrt() - sd).norm() / sd.norm())
    page.figure(
        _picture(curves, sd.numpy(), variance.sqrt().numpy()),
        "Left: the exact dropout objective on the training set. Right: each output's standard "
        "deviation under dropout, in one pass and from 400 sampled ones.",
    )
    accuracy = float((mean.argmax(1) == y_test).float().mean())
    finals = {name: curve[-1][1] for name, curve in curves.items()}
    doubt = _doubt(mean, variance, y_test)
    page.table(
        ("what", "value", "note"),
        [
            ("objective, sampled dropout", finals["sampled dropout"], f"after {STEPS} steps"),
            ("objective, the penalty", finals["the penalty"], "same start, same batches"),
            ("test accuracy, the penalty", accuracy, f"{len(y_test)} digits"),
            ("standard deviations, one pass", error, "relative distance to 400 sampled passes"),
            ("speed", many / one_pass, "100 sampled passes against one"),
            ("mean doubt, right answers", doubt[0], "sd of the lead over the runner-up / lead"),
            ("mean doubt, wrong answers", doubt[1], "larger: it knows where it may be wrong"),
        ],
    )
    lower = finals["the penalty"] <= finals["sampled dropout"] * 1.005
    return bool(lower and error <= 0.06 and doubt[1] > doubt[0])


def _trained(x: Any, y: Any, seed: int) -> tuple[dict[str, list[tuple[int, float]]], Any]:
    """Return the objective's course either way, and the network that the penalty trained."""
    import torch
    from torch.nn import functional

    from overt.nn import explicit_penalty, without_noise

    base, target = network(256, 0.5), functional.one_hot(y, 10).float()
    curves: dict[str, list[tuple[int, float]]] = {}
    for name in ("sampled dropout", "the penalty"):
        model = copy.deepcopy(base)
        net = without_noise(model) if name == "the penalty" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        order = torch.Generator().manual_seed(seed)
        curve = curves[name] = []
        for step in range(STEPS + 1):
            if step % 20 == 0:
                model.eval()
                with torch.no_grad():
                    plain = ((model(x) - target) ** 2).sum(1).mean()
                    curve.append((step, float(plain + explicit_penalty(model, x).value)))
            rows = torch.randint(len(x), (BATCH,), generator=order)
            net.train()
            optimizer.zero_grad()
            loss = ((net(x[rows]) - target[rows]) ** 2).sum(1).mean()
            (loss + net.penalty if name == "the penalty" else loss).backward()
            optimizer.step()
    return curves, model.eval()


def _doubt(mean: Any, variance: Any, y: Any) -> tuple[float, float]:
    """Return sd / lead of the winning output over the next, on right and on wrong answers."""
    top = mean.topk(2, dim=1)
    lead = top.values[:, 0] - top.values[:, 1]
    spread = variance.gather(1, top.indices).sum(1).sqrt()
    ratio, right = spread / lead, top.indices[:, 0] == y
    return float(ratio[right].median()), float(ratio[~right].median())


def _picture(curves: dict[str, list[tuple[int, float]]], sampled: Any, exact: Any) -> Any:
    figure, (left, right) = canvas(8.4, 3.6, 1, 2)
    for name, curve in curves.items():
        left.plot(*zip(*curve, strict=True), label=name)
    left.set(xlabel="step", ylabel="dropout objective", yscale="log")
    left.legend()
    chosen = np.random.default_rng(0).choice(exact.size, min(exact.size, 1500), replace=False)
    a, b = sampled.ravel()[chosen], exact.ravel()[chosen]
    right.plot([0, b.max()], [0, b.max()], color="0.75", lw=1)
    right.scatter(b, a, s=4, alpha=0.5)
    right.set(xlabel="standard deviation, one pass", ylabel="400 sampled passes")
    return figure
