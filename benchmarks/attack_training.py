"""Adversarial training beside loops written by hand: seconds an epoch, and robust accuracy.

Madry et al. 2018 (cross-entropy of the last iterate) and TRADES (Zhang et al. 2019), the same small
network, points, batches, steps and optimizer; robust accuracy by overt's `strongest` for everybody.
"""

from __future__ import annotations

import os
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from benchmarks.attack_networks import data
from benchmarks.harness import Table, verdict
from overt.robust import PGD, Linf, TrainingConfig, adversarial_train, strongest

RADIUS, STEPS, BATCH, POINTS, EPOCHS, TESTED, SEEDS = 0.1, 5, 100, 1000, 3, 400, 10
SIZE, RATE, BETA = 0.04, 2e-3, 3.0


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
        ),
    )
    for loss in ("cross_entropy", "trades"):
        seconds: dict[bool, list[float]] = {True: [], False: []}
        robust: dict[bool, list[float]] = {True: [], False: []}
        for seed in range(SEEDS):
            for own in (True, False):
                model = _network(seed)
                start = time.process_time()
                (_overt if own else _by_hand)(model, loss, seed)
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
            )
        )
        print(table.rows[-1], flush=True)
    table.notes.append(
        "Median ratio of CPU seconds over the seeds, taken in turns; robust accuracy by "
        f"`strongest` at 60 gradients on {TESTED} test points. Both sides share seeds and points: "
        "the noise is the standard error of their differences over the seeds."
    )
    return [table]


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


def _points() -> tuple[Tensor, Tensor]:
    given = data("fashion-mnist")
    return given["x_train"][:POINTS], given["y_train"][:POINTS]


def _robust(model: nn.Module) -> float:
    given = data("fashion-mnist")
    x, y = given["x_test"][:TESTED], given["y_test"][:TESTED]
    threat = Linf(RADIUS, (0.0, 1.0))
    return strongest(
        model, x, y, threat, budget=60, queries=0, warn=False
    ).robust_accuracy


def _overt(model: nn.Module, loss: str, seed: int) -> None:
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
        _points(),
        attack,
        epochs=EPOCHS,
        batch_size=BATCH,
        optimizer=torch.optim.Adam(model.parameters(), RATE),
        loss=loss,
        seed=seed,
        config=TrainingConfig(beta=BETA),
    )


def _by_hand(model: nn.Module, loss: str, seed: int) -> None:
    x_train, y_train = _points()
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    torch.manual_seed(seed)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x_train)).split(BATCH):
            x, y = x_train[rows], y_train[rows]
            model.eval()
            target = softmax(model(x), 1).detach() if loss == "trades" else None
            moved = (x + torch.empty_like(x).uniform_(-RADIUS, RADIUS)).clamp(0, 1)
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
