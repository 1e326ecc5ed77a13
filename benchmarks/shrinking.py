"""Compression without recovery: accuracy at a quarter of parameters, multiply-adds and latency.

Networks are trained shortly, so that all runs in minutes. torch-pruning, where it is installed,
prunes by group magnitude, its ratio bisected until the same share is left.
"""

from __future__ import annotations

import copy
import os
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.harness import Table, verdict
from overt.nn import compress

TRAIN, TEST, SEEDS, KEEP = 2000, 870, 3, 0.25


class Block(nn.Module):
    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.side = nn.Conv2d(a, b, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        h = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(h + self.side(x))


class Attention(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.head_dim = d // heads

    def forward(self, x: Any) -> Any:
        q, k, v = (
            part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        h = functional.scaled_dot_product_attention(q, k, v)
        return self.out(h.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.n1, self.attention, self.n2 = nn.LayerNorm(d), Attention(d, heads), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.n1(x))
        return x + self.down(functional.gelu(self.up(self.n2(x))))


class Transformer(nn.Module):
    def __init__(self, d: int = 32, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.patch, self.place = nn.Conv2d(1, d, 7, 7), nn.Parameter(torch.randn(16, d) / 50)
        self.layers = nn.Sequential(*(Layer(d, heads) for _ in range(depth)))
        self.norm, self.last = nn.LayerNorm(d), nn.Linear(d, 10)

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        return self.last(self.norm(self.layers(x)).mean(1))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10),
    )  # fmt: skip


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Block(8, 8, 1),
        Block(8, 16, 2), Block(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip


NETWORKS = {
    "CNN, Fashion-MNIST": (cnn, "fashion-mnist", 4),
    "ResNet, CIFAR-10": (resnet, "cifar10", 5),
    "transformer, Fashion-MNIST": (Transformer, "fashion-mnist", 6),
}


def images(name: str) -> tuple[torch.Tensor, ...]:
    """Return training and test images and their classes, the former centered and scaled."""
    data = np.load(Path(os.environ["OVERT_DATA"]) / f"{name}.npz")
    parts = []
    for part, n in (("train", TRAIN), ("test", TEST)):
        x = torch.tensor(data[f"x_{part}"][:n] / 255.0, dtype=torch.float32)
        x = x[:, None] if x.ndim == 3 else x.movedim(3, 1)
        parts += [(x - 0.4) / 0.3, torch.tensor(data[f"y_{part}"][:n].astype(int))]
    return tuple(parts)


def trained(build: Any, x: Any, y: Any, epochs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


def accuracy(model: nn.Module, x: Any, y: Any) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def pruned(model: nn.Module, example: Any, ratio: float) -> nn.Module:
    """Return what torch-pruning leaves in one step."""
    import torch_pruning

    small = copy.deepcopy(model)
    heads = {
        part: part.out_features // module.head_dim
        for module in small.modules()
        if isinstance(module, Attention)
        for part in (module.q, module.k, module.v)
    }
    linear = [module for module in small.modules() if isinstance(module, nn.Linear)]
    pruner = torch_pruning.pruner.BasePruner(
        small, example, importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=ratio, ignored_layers=linear[-1:], num_heads=heads, prune_head_dims=False,
        prune_num_heads=True, head_pruning_ratio=ratio,
    )  # fmt: skip
    pruner.step()
    return small


def share(small: nn.Module, model: nn.Module) -> float:
    sizes = [sum(p.numel() for p in m.parameters()) for m in (small, model)]
    return sizes[0] / sizes[1]


def to_share(model: nn.Module, example: Any) -> nn.Module:
    """Bisect torch-pruning's ratio until at most KEEP of the parameters are left."""
    low, high, best = 0.0, 0.95, None
    for _ in range(6):
        middle = (low + high) / 2
        small = pruned(model, example, middle)
        if share(small, model) <= KEEP * 1.05:
            best, high = small, middle
        else:
            low = middle
    return pruned(model, example, 0.95) if best is None else best


def cpu(call: Any) -> tuple[float, Any]:
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def compression() -> list[Table]:
    title = f"Compression without recovery, {TRAIN:,} training images, {SEEDS} seeds: accuracy"
    table = Table(
        title,
        ("network", "whole", "1/4 of parameters", "multiply-adds", "1/2 of the latency",
         "torch-pruning, 1/4 of parameters", "time / one step of it", "<= 2", "/ to the share"),
    )  # fmt: skip
    peer = find_spec("torch_pruning") is not None
    if "OVERT_DATA" not in os.environ:
        table.notes.append("Without OVERT_DATA, a folder with the images, nothing is measured.")
        return [table]
    for name, (build, data, epochs) in NETWORKS.items():
        x, y, tx, ty = images(data)
        rows = []
        for seed in range(SEEDS):
            model = trained(build, x, y, epochs, seed)
            rows.append(_row(model, (x[:512], y[:512]), tx, ty, peer=peer))
        means = [float(np.mean(column)) for column in zip(*rows, strict=True)]
        times = [*means[5:6], verdict(means[5] <= 2), means[6]] if peer else [""] * 3
        table.rows.append((name, *means[:4], means[4] if peer else "", *times))
    if not peer:
        table.notes.append("torch-pruning is not installed: its columns are empty.")
    return [table]


def _row(model: nn.Module, data: Any, tx: Any, ty: Any, *, peer: bool) -> list[float]:
    example = data[0][:2]
    found = [accuracy(model, tx, ty)]
    for of, keep in (("parameters", KEEP), ("multiply_adds", KEEP), ("latency", 0.5)):
        small, _ = compress(model, keep, example, data, of=of)
        found.append(accuracy(small, tx, ty))
    if not peer:
        return [*found, 0.0, 0.0, 0.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, small = cpu(lambda: to_share(model, example))
        one = min(cpu(lambda: pruned(model, example, 0.5))[0] for _ in range(2))
    ours = min(cpu(lambda: compress(model, KEEP, example, by="flow"))[0] for _ in range(2))
    return [*found, accuracy(small, tx, ty), ours / one, ours / theirs]
