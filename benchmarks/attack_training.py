"""Adversarial training beside loops written by hand: seconds an epoch, and robust accuracy.

Madry et al. 2018 (cross-entropy of the last iterate) and TRADES (Zhang et al. 2019), the same
small network, points, batches, steps and optimizer; robust accuracy by overt's `strongest` for
everybody. Given the same order of points and the same random starts, both sides must reach the
same weights: that is checked in double precision, where no gradient changes its sign by rounding.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from benchmarks.attack_networks import data
from benchmarks.harness import Table, verdict
from overt.robust import PGD, Linf, TrainingConfig, adversarial_train, strongest

RADIUS, STEPS, BATCH, POINTS, EPOCHS, TESTED, SEEDS = 0.1, 5, 100, 1000, 3, 400, 10
SIZE, RATE, BETA = 0.04, 2e-3, 3.0
ROUNDS, FEW = 10, 300


def run() -> list[Table]:
    torch.set_num_threads(1)
    if "OVERT_DATA" not in os.environ:
        empty = Table("Adversarial training", ("robust accuracy",))
        empty.notes.append("Not run: OVERT_DATA names no folder of fashion-mnist.npz.")
        return [empty]
    table = Table(
        f"Adversarial training, Fashion-MNIST CNN, linf {RADIUS}, {STEPS} steps, {EPOCHS} epochs "
        f"of {POINTS} points, {SEEDS} seeds",
        (
            "loss",
            "CPU s an epoch",
            "by hand",
            "ratio",
            "at most 1",
            "robust accuracy",
            "by hand",
            "standard error of the difference",
            "within two",
            "largest difference of weights at equal starts",
        ),
    )
    for loss in ("cross_entropy", "trades"):
        seconds: dict[bool, list[float]] = {True: [], False: []}
        robust: dict[bool, list[float]] = {True: [], False: []}
        for seed in range(SEEDS):
            for own in (True, False):
                model = _network(seed)
                start = time.process_time()
                if own:
                    _overt(model, loss, _points(), seed)
                else:
                    _by_hand(model, loss, _shuffled(seed))
                seconds[own].append((time.process_time() - start) / EPOCHS)
                robust[own].append(_robust(model))
        ratio = float(np.median(np.divide(seconds[True], seconds[False])))
        mine, theirs = float(np.mean(robust[True])), float(np.mean(robust[False]))
        # Both sides share seeds and points: the spread of their differences is the noise.
        difference = np.subtract(robust[True], robust[False])
        error = float(difference.std(ddof=1)) / SEEDS**0.5
        table.rows.append(
            (
                loss,
                min(seconds[True]),
                min(seconds[False]),
                ratio,
                verdict(ratio <= 1),
                mine,
                theirs,
                error,
                verdict(mine >= theirs - 2 * error),
                _largest_difference(loss),
            )
        )
        print(table.rows[-1], flush=True)
    table.notes.append(
        "Median ratio of CPU seconds over the seeds, taken in turns; robust accuracy by "
        f"`strongest` at 60 gradients on {TESTED} test points. Both sides share seeds and points: "
        "the noise is the standard error of their differences over the seeds."
    )
    return [table, _costs()]


def _costs() -> Table:
    """Compare the CPU seconds of an epoch on a network of ordinary size, where kernels decide."""
    table = Table(
        "CPU seconds an epoch, two convolutions of 32 and 64 channels, 1.7 million weights, "
        f"{STEPS} steps, {FEW} points, {ROUNDS} rounds in turns",
        ("loss", "overt", "by hand", "median ratio", "standard error"),
    )
    for loss in ("cross_entropy", "trades"):
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for seed in range(ROUNDS):
            for own in (True, False) if seed % 2 else (False, True):
                model = _large_network(seed)
                start = time.process_time()
                if own:
                    _overt(model, loss, _points(FEW), seed)
                else:
                    _by_hand(model, loss, _shuffled(seed, FEW))
                seconds[own].append((time.process_time() - start) / EPOCHS)
        ratios = np.divide(seconds[True], seconds[False])
        error = float(ratios.std(ddof=1)) / ROUNDS**0.5
        row = (
            loss,
            float(np.median(seconds[True])),
            float(np.median(seconds[False])),
            float(np.median(ratios)),
            error,
        )
        table.rows.append(row)
        print(row, flush=True)
    return table


def _large_network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 49, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def _network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 49, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def _points(count: int = POINTS) -> tuple[Tensor, Tensor]:
    given = data("fashion-mnist")
    return given["x_train"][:count], given["y_train"][:count]


def _robust(model: nn.Module) -> float:
    given = data("fashion-mnist")
    x, y = given["x_test"][:TESTED], given["y_test"][:TESTED]
    threat = Linf(RADIUS, (0.0, 1.0))
    return strongest(
        model, x, y, threat, budget=60, queries=0, warn=False
    ).robust_accuracy


def _overt(model: nn.Module, loss: str, given: Any, seed: int = 0) -> None:
    attack = PGD(
        Linf(RADIUS, (0.0, 1.0)),
        steps=STEPS,
        loss="cross_entropy",
        schedule="constant",
        step_size=SIZE,
        random_start=True,
    )
    adversarial_train(
        model,
        given,
        attack,
        epochs=EPOCHS,
        batch_size=BATCH,
        optimizer=torch.optim.Adam(model.parameters(), RATE),
        loss=loss,
        seed=seed,
        config=TrainingConfig(beta=BETA),
    )


def _shuffled(seed: int, count: int = POINTS) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of all epochs, each epoch in a new order."""
    x, y = _points(count)
    torch.manual_seed(seed)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            yield x[rows], y[rows]


def _random_start(x: Tensor) -> Tensor:
    return (x + torch.empty_like(x).uniform_(-RADIUS, RADIUS)).clamp(0, 1)


def _by_hand(
    model: nn.Module,
    loss: str,
    batches: Iterable[tuple[Tensor, Tensor]],
    start: Callable[[Tensor], Tensor] = _random_start,
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    for x, y in batches:
        model.eval()
        target = softmax(model(x), 1).detach() if loss == "trades" else None
        moved = start(x)
        for _ in range(STEPS):
            moved.requires_grad_()
            logits = model(moved)
            value = (
                cross_entropy(logits, y)
                if target is None
                else kl_div(log_softmax(logits, 1), target, reduction="sum")
            )
            (gradient,) = torch.autograd.grad(value, moved)
            moved = moved.detach() + SIZE * gradient.sign()
            moved = torch.min(torch.max(moved, x - RADIUS), x + RADIUS).clamp(0, 1)
        model.train()
        optimizer.zero_grad()
        if loss == "trades":
            clean = model(x)
            apart = kl_div(
                log_softmax(model(moved), 1),
                softmax(clean, 1),
                reduction="batchmean",
            )
            (cross_entropy(clean, y) + BETA * apart).backward()
        else:
            cross_entropy(model(moved), y).backward()
        optimizer.step()


def _largest_difference(loss: str) -> float:
    """Return by how much the weights of both sides differ, relative to how far they moved."""
    x, y = _points()
    batches = list(zip(x.double().split(BATCH), y.split(BATCH), strict=True))
    mine, theirs, before = (_network(0).double() for _ in range(3))
    seen: list[Tensor] = []
    hook = mine.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    _overt(mine, loss, batches)
    hook.remove()
    # A batch is seen clean by TRADES, at each step, and once or twice in the update; before all of
    # them one point is, which shows the number of classes.
    before_start, passes = (1, STEPS + 3) if loss == "trades" else (0, STEPS + 1)
    starts = (v.detach().clone() for v in seen[1 + before_start :: passes])
    _by_hand(theirs, loss, EPOCHS * batches, lambda _: next(starts))
    moves = [
        (float((a - b).abs().max()), float((a - c).abs().max()))
        for a, b, c in zip(
            mine.parameters(), theirs.parameters(), before.parameters(), strict=True
        )
    ]
    return max(apart for apart, _ in moves) / max(moved for _, moved in moves)
