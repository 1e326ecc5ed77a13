"""DropBlock on the last layer of a deep network reaches the bound of Theorem 2.7.

x -> residual trunk -> linear layer to 80 units -> DropBlock of 5 on a grid -> linear layer U,
trained on a small data set with the squared loss. With g(X) the 80 units (samples x 80), the
objective is

    |Y - g(X) U'|^2 / n + <Gamma, U'U o g(X)'g(X) / n>

(structured dropout, Lemma 3.1), and no network does better than the minimum over all predictions A,
|Y/sqrt(n) - A|^2 + (lam b / 80) (k-support norm of A with k = b)^2 (Theorem 2.7).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt import penalty
from overt._figures import BLUE, ORANGE, canvas
from overt._types import Floats
from overt.experiments._trajectories import log_steps
from overt.experiments.base import Findings, Params, Row
from overt.experiments.verdicts import Finding
from overt.linear.bounds import shrink, spectral_bound
from overt.noise import DropBlock
from overt.spectral import induced

UNITS, BLOCK = 80, 5
NAMES = {"digits": "digits", "mnist": "MNIST", "cifar10": "CIFAR-10"}


def run(params: Params, seed: int) -> dict[str, Any]:
    """Train one network; record the exact objective, and the final spectrum beside the bound's."""
    import torch

    from overt.nn import DropBlock1d

    x, Y = _subset(params["data"], params["samples"])
    target = Y.numpy().astype(float) / np.sqrt(len(Y))
    noise = DropBlock(params["drop_prob"], BLOCK)
    envelope = induced(noise, UNITS)
    m = np.linalg.svd(target, compute_uv=False)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        hidden, last = _network(params, x.shape[1], Y.shape[1])
        drop = DropBlock1d(params["drop_prob"], BLOCK, placement="grid")
        weights = [*hidden.parameters(), *last.parameters()]
        optimizer = torch.optim.Adam(weights, lr=params["rate"])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, params["steps"])
        records = set(log_steps(params["steps"], 24))
        seen, exact = [0], [_objective(hidden, last, x, Y, noise)[0]]
        for step in range(1, params["steps"] + 1):
            optimizer.zero_grad()
            predicted = last(drop(hidden(x)[:, None])[:, 0])
            ((Y - predicted) ** 2).sum(1).mean().backward()
            optimizer.step()
            schedule.step()
            if step in records:
                seen.append(step)
                exact.append(_objective(hidden, last, x, Y, noise)[0])
        objective, predictions = _objective(hidden, last, x, Y, noise)
    return {
        "steps_seen": seen,
        "exact": exact,
        "objective": objective,
        "bound": spectral_bound(m, 0.0, envelope),
        "spectrum": np.linalg.svd(predictions, compute_uv=False).tolist(),
        "best_spectrum": shrink(m, envelope).tolist(),
        "target_spectrum": m.tolist(),
        "parameters": sum(p.numel() for p in weights),
    }


def _subset(name: str, samples: int) -> tuple[Any, Any]:
    """Return the first images, standardized, and their classes as indicator rows."""
    from torch.nn.functional import one_hot

    from overt.experiments import small

    data = small.load(name)
    x, y = data.x[:samples], data.y[:samples]
    return (x - x.mean()) / x.std(), one_hot(y, 10).float()


def _network(params: Params, channels: int, outputs: int) -> tuple[Any, Any]:
    """Return the trunk with its layer of 80 units, and the last layer U.

    Batch normalization uses the statistics of the whole data set, which every step sees.
    """
    from torch import nn

    from overt.experiments.small import bottleneck_trunk, features

    trunk = bottleneck_trunk(channels, params["blocks"], params["width"])
    hidden = nn.Sequential(trunk, nn.Linear(features(trunk), UNITS))
    return hidden, nn.Linear(UNITS, outputs, bias=False)


def _objective(hidden: Any, last: Any, x: Any, Y: Any, noise: DropBlock) -> tuple[float, Floats]:
    """Return the exact objective, and the predictions divided by sqrt(n)."""
    import torch

    with torch.no_grad():
        g = hidden(x).double().numpy()
    U = last.weight.detach().double().numpy()
    A = g @ U.T
    squared = float(((Y.double().numpy() - A) ** 2).sum(1).mean())
    return squared + float(penalty.hidden(U, g, noise)), A / np.sqrt(len(A))


def check(rows: list[Row]) -> Findings:
    """Check that training ends near the bound and never passes it."""
    for row in rows:
        name = NAMES[row["data"]]
        gap = row["objective"] / row["bound"] - 1
        yield Finding(
            f"{name}: training ends within 5 per cent of the lower bound, and never below it",
            min(row["exact"]) / row["bound"] - 1 >= -1e-6 and gap <= 0.05,
            f"objective {row['objective']:.4f}, bound {row['bound']:.4f}: {100 * gap:+.2f}%",
            "very close",
        )
        found, best = np.array(row["spectrum"]), np.array(row["best_spectrum"])
        distance = float(np.linalg.norm(found - best) / np.linalg.norm(best))
        yield Finding(f"{name}: predicted and found singular values agree to a tenth",
                      distance <= 0.1,
                      f"relative distance {distance:.3f}; least value {found[-1]:.3f}, predicted "
                      f"{best[-1]:.3f}", "closely match, but for the least one")  # fmt: skip


def plot(rows: list[Row]) -> Any:
    """Draw the objective over the steps and the final spectrum, a row for each data set."""
    figure, axes = canvas(8.4, 3.1 * len(rows), len(rows), 2, squeeze=False)
    for (left, right), row in zip(axes, rows, strict=True):
        left.plot(row["steps_seen"], row["exact"], color=BLUE, label="exact objective")
        left.axhline(row["bound"], color="0.4", ls="--", label="lower bound")
        left.set(xlabel="step", ylabel="objective", title=NAMES[row["data"]], yscale="log")
        left.set_xscale("symlog", linthresh=10)
        left.set_xlim(0, row["steps_seen"][-1])
        left.legend()
        places = np.arange(1, len(row["spectrum"]) + 1)
        right.plot(places, row["target_spectrum"], "o", mfc="none", color="0.6", label="targets")
        right.plot(places, row["best_spectrum"], "k_", ms=14, label="predicted")
        right.plot(places, row["spectrum"], "o", ms=4, color=ORANGE, label="trained network")
        right.set(xlabel="place", ylabel="singular value", ylim=(0, None), xticks=places)
        right.legend()
    return figure
