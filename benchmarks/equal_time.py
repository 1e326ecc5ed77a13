"""Training without sampling against sampled dropout at equal CPU time.

`python -m benchmarks.equal_time` runs this part of `python -m benchmarks nn` alone.
"""

from __future__ import annotations

import copy
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.harness import Table, verdict
from overt.nn import without_noise

TRAIN, SEEDS, SECONDS, BATCH, PASSES, DRAWS = 10_000, 5, (10, 20, 30), 64, 10, 200
NEW = 0.01
"""The share of the newest weights in their running average."""


def equal_time() -> list[Table]:
    """784-512-512-10 on Fashion-MNIST: objective, accuracy, and the gradient's variance."""
    file = Path(os.environ.get("OVERT_DATA", "")) / "fashion-mnist.npz"
    if not file.exists():
        return []
    data = np.load(file)
    (x, y), (tx, ty) = (
        (
            torch.tensor(data[f"x_{part}"][:TRAIN].reshape(TRAIN, -1) / 255.0).float(),
            torch.tensor(data[f"y_{part}"][:TRAIN].astype(int)),
        )
        for part in ("train", "test")
    )
    table = Table(
        f"784-512-512-10, two dropouts of .5, {TRAIN:,} Fashion-MNIST images, Adam 1e-3, batches "
        f"of {BATCH}: equal CPU time, {SEEDS} seeds",
        (
            "CPU seconds",
            "steps: sampled",
            "penalty",
            "dropout objective: sampled",
            "penalty",
            "lower in",
            "lower",
            "test accuracy: sampled",
            "penalty",
            "no lower",
        ),
    )
    runs = {kind: [] for kind in (False, True)}
    shares = []
    for seed in range(SEEDS):
        pair = {kind: _training(kind, seed, x, y, tx, ty) for kind in runs}
        for _ in range(SECONDS[-1]):  # in turns, a second each
            models = {kind: next(steps) for kind, steps in pair.items()}
        for kind, found in runs.items():
            found.append(list(pair[kind]))
            print(seed, "penalty" if kind else "sampled", found[-1], flush=True)
        shares.append(
            [_variance(m, x, y, seed) for m in (_network(seed), models[True])]
        )
    sampled, ours = (np.array(runs[kind]) for kind in (False, True))  # seeds, rows, 3
    limits = [name for limit in SECONDS for name in (limit, f"{limit}, averages")]
    for i, limit in enumerate(limits):
        steps, objective, accuracy = (
            [
                f"{a[:, i, k].mean():.4g} ± {a[:, i, k].std(ddof=1):.2g}"
                for a in (sampled, ours)
            ]
            for k in range(3)
        )
        less = sampled[:, i] - ours[:, i]
        table.rows.append(
            (
                limit,
                *steps,
                *objective,
                f"{int((less[:, 1] > 0).sum())} of {SEEDS}",
                verdict(less[:, 1].mean() > 0),
                *accuracy,
                verdict(less[:, 2].mean() <= 0),
            )
        )
    before, after = np.mean(shares, 0)
    table.notes.append(
        f"The objective is the mean of {PASSES} sampled passes over all training images, test "
        "accuracy that of 10,000 images without noise; neither is on the clock. Averages are of "
        f"the weights of both sides, {NEW} of the newest at each step, off the clock too. Settings "
        "were fixed on other seeds and images. The variance that drawing leaves in a batch's "
        f"gradient, over that of sampled dropout ({DRAWS} draws each): {before:.2g} at the start, "
        f"{after:.2g} at the weights after {SECONDS[-1]} s with the penalty."
    )
    return [table]


def _network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(512, 10),
    )


def _training(penalty, seed, x, y, tx, ty):
    """Yield the model after each second; at last steps, objective and accuracy at each limit.

    Those of the last weights, then those of their running average.
    """
    model = _network(seed)
    net = without_noise(model, loss="cross_entropy") if penalty else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    average, weights = copy.deepcopy(model), list(model.parameters())
    order = torch.Generator().manual_seed(seed)
    state = torch.Generator().manual_seed(100 + seed).get_state()
    rows, used, steps = [], 0.0, 0
    for second in range(1, SECONDS[-1] + 1):
        net.train()
        torch.set_rng_state(state)
        while used < second:
            start = time.process_time()
            batch = torch.randint(len(x), (BATCH,), generator=order)
            optimizer.zero_grad()
            objective = functional.cross_entropy(net(x[batch]), y[batch])
            (objective + net.penalty if penalty else objective).backward()
            optimizer.step()
            used, steps = used + time.process_time() - start, steps + 1
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), weights, NEW)
        state = torch.get_rng_state()
        if second in SECONDS:
            rows += [(steps, *_judged(m, seed, x, y, tx, ty)) for m in (model, average)]
        yield model
    yield from rows


def _judged(model, seed, x, y, tx, ty):
    """Return the dropout objective and the test accuracy."""
    torch.manual_seed(1000 + seed)
    with torch.no_grad():
        model.train()
        value = (
            sum(float(functional.cross_entropy(model(x), y)) for _ in range(PASSES))
            / PASSES
        )
        return value, float((model.eval()(tx).argmax(1) == ty).double().mean())


def _variance(model, x, y, seed):
    """Return the gradient's variance with a probe over that with sampled masks, one batch."""
    torch.manual_seed(seed)
    batch = torch.randint(len(x), (BATCH,))
    x, y, weights = x[batch], y[batch], list(model.parameters())
    net = without_noise(model, loss="cross_entropy").train()

    def spread(value):
        total = squares = 0.0
        for _ in range(DRAWS):
            g = torch.cat([g.flatten() for g in torch.autograd.grad(value(), weights)])
            total, squares = total + g, squares + g.square().sum()
        return float(squares / DRAWS - (total / DRAWS).square().sum())

    ours = spread(lambda: functional.cross_entropy(net(x), y) + net.penalty)
    return ours / spread(lambda: functional.cross_entropy(model(x), y))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for part in equal_time():
        print(part.markdown())
