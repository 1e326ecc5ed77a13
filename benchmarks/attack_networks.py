"""Small networks for the benchmark of attacks: trained in a minute each, kept in a folder.

Nothing of overt takes part in their training: standard, or a plain loop of projected gradients.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

FOLDER = Path(tempfile.gettempdir()) / "overt-bench"
TRAINED = 12_000


@cache
def data(name: str) -> dict[str, Tensor]:
    """Return pixels in [0, 1], (points, channels, height, width), and classes."""
    with np.load(Path(os.environ["OVERT_DATA"]) / f"{name}.npz") as file:
        parts = {key: file[key] for key in ("x_train", "y_train", "x_test", "y_test")}
    out = {}
    for key, value in parts.items():
        if key.startswith("y"):
            out[key] = torch.tensor(value.ravel()[:TRAINED].astype(np.int64))
            continue
        x = torch.tensor(value[:TRAINED]).float() / 255
        x = x[:, None] if x.ndim == 3 else x
        out[key] = x.permute(0, 3, 1, 2).contiguous() if x.shape[-1] == 3 else x
    return out


def mlp(channels: int, side: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * side * side, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def cnn(channels: int, side: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def deep(channels: int, side: int) -> nn.Module:
    """Batch normalization and smooth units."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.SiLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.SiLU(),
        nn.Conv2d(32, 32, 3, 1, 1),
        nn.BatchNorm2d(32),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


# name: (data, architecture, norm and radius of training or None, epochs)
NETWORKS = {
    "mnist mlp": ("mnist", mlp, None, 4),
    "mnist cnn linf": ("mnist", cnn, ("linf", 0.2), 4),
    "fashion mlp l2": ("fashion-mnist", mlp, ("l2", 1.0), 4),
    "fashion cnn": ("fashion-mnist", cnn, None, 4),
    "fashion cnn linf": ("fashion-mnist", cnn, ("linf", 0.1), 5),
    "fashion cnn l2": ("fashion-mnist", cnn, ("l2", 1.5), 5),
    "fashion deep": ("fashion-mnist", deep, None, 3),
    "cifar cnn linf": ("cifar10", cnn, ("linf", 4 / 255), 5),
}


@cache
def network(name: str) -> nn.Module:
    """Return a trained network, from the folder if it is there."""
    source, build, threat, epochs = NETWORKS[name]
    points = data(source)
    torch.manual_seed(0)
    model = build(points["x_train"].shape[1], points["x_train"].shape[2])
    path = FOLDER / f"{name.replace(' ', '-')}.pt"
    if not path.exists():
        _train(model, points["x_train"], points["y_train"], threat, epochs)
        FOLDER.mkdir(exist_ok=True)
        torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def points(name: str, count: int) -> tuple[Tensor, Tensor]:
    """Return the first test points of a network's data."""
    given = data(NETWORKS[name][0])
    return given["x_test"][:count], given["y_test"][:count]


def _train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: tuple[str, float] | None,
    epochs: int,
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(128):
            moved = (
                x[rows] if threat is None else _moved(model, x[rows], y[rows], *threat)
            )
            model.train()
            optimizer.zero_grad()
            cross_entropy(model(moved), y[rows]).backward()
            optimizer.step()


def _moved(model: nn.Module, x: Tensor, y: Tensor, norm: str, radius: float) -> Tensor:
    model.eval()
    delta = torch.zeros_like(x)
    for _ in range(5):
        delta.requires_grad_()
        (g,) = torch.autograd.grad(cross_entropy(model(x + delta), y), delta)
        delta = delta.detach()
        if norm == "linf":
            delta = (delta + 0.4 * radius * g.sign()).clamp(-radius, radius)
        else:
            delta = delta + 0.4 * radius * g / _norm(g)
            delta = delta * (radius / _norm(delta)).clamp(max=1)
        delta = (x + delta).clamp(0, 1) - x
    return x + delta


def _norm(g: Tensor) -> Tensor:
    return g.flatten(1).norm(dim=1).clamp(min=1e-12)[:, None, None, None]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in NETWORKS:
        (x, y), model = points(each, 500), network(each)
        with torch.no_grad():
            print(each, float((model(x).argmax(1) == y).float().mean()), flush=True)
