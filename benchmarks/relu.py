"""Two-layer ReLU networks: Algorithm 4 compiled against PyTorch, both on one thread, float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Table, seconds, verdict
from overt.papers.relu_capacity import retentivity
from overt.relu import kernels

STEPS = 200


def run() -> list[Table]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [training(), plane()]
    finally:
        torch.set_num_threads(threads)


def training() -> Table:
    table = Table(
        f"Algorithm 4: time of {STEPS} steps against PyTorch, drop probability .5",
        (
            "width",
            "inputs",
            "overt ms",
            "autograd ms",
            "by hand ms",
            "autograd / overt",
            "by hand / overt",
            "faster than both",
        ),
    )
    for width, inputs in ((100, 64), (1000, 64), (1000, 784), (4000, 784)):
        problem = _problem(width, inputs)
        calls = [_call(loop, *problem) for loop in (kernels.descend, autograd, by_hand)]
        ours, automatic, manual = seconds(*calls, repeat=3)
        table.rows.append(
            (
                width,
                inputs,
                1e3 * ours,
                1e3 * automatic,
                1e3 * manual,
                automatic / ours,
                manual / ours,
                verdict(ours < min(automatic, manual)),
            )
        )
    table.notes.append(
        "Autograd is the algorithm as one writes it in PyTorch; by hand has no graph, one in-place "
        "rank-one update and one pass for the norms. The kernel skips dropped rows and reads the "
        "weights once per step."
    )
    return table


def plane() -> Table:
    table = Table(
        "Retentivity in the plane: the exact sweep against a grid of 10,000 directions",
        ("points", "sweep ms", "grid ms", "ratio", "grid - exact"),
    )
    for n in (100, 1000):
        X = np.random.default_rng(0).normal(size=(n, 2)) + 0.5
        angles = np.linspace(0, 2 * np.pi, 10_000)
        V = np.stack([np.cos(angles), np.sin(angles)])

        def grid(X: Any = X, V: Any = V) -> float:
            S = X @ V
            return float(np.min(np.sum(np.maximum(S, 0) ** 2, 0) / np.sum(S**2, 0)))

        ours, theirs = seconds(lambda X=X: retentivity(X), grid, repeat=3)
        excess = grid() - retentivity(X).upper
        table.rows.append((n, 1e3 * ours, 1e3 * theirs, theirs / ours, excess))
    return table


def _problem(width: int, inputs: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, inputs))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    W, a = rng.normal(size=(width, inputs)), rng.choice((-1.0, 1.0), width)
    order, masks = rng.integers(0, 500, STEPS), rng.random((STEPS, width)) < 0.5
    max_norm = math.sqrt(inputs) + 2 * math.sqrt(math.log(width)) + 1
    return W, a, X, np.sign(X[:, 0]), order, masks, 0.5, max_norm, np.empty(STEPS)


def _call(loop: Callable[..., Any], *problem: Any) -> Callable[[], Any]:
    return lambda: loop(problem[0].copy(), *problem[1:])


def autograd(W, a, X, y, order, masks, learning_rate, max_norm, margins):  # type: ignore[no-untyped-def]
    weight = torch.tensor(W, requires_grad=True)
    top, inputs, kept = torch.tensor(a), torch.tensor(X), torch.tensor(masks).double()
    for t, i in enumerate(order):
        g = top @ (kept[t] * torch.relu(weight @ inputs[i])) / math.sqrt(len(a))
        torch.nn.functional.softplus(-y[i] * g).backward()
        with torch.no_grad():
            weight -= learning_rate * weight.grad
            weight *= torch.clamp(max_norm / weight.norm(dim=1, keepdim=True), max=1.0)
            weight.grad = None


def by_hand(W, a, X, y, order, masks, learning_rate, max_norm, margins):  # type: ignore[no-untyped-def]
    weight, inputs, kept = (
        torch.tensor(W),
        torch.tensor(X),
        torch.tensor(masks).double(),
    )
    top = torch.tensor(a) / math.sqrt(len(a))
    for t, i in enumerate(order):
        z = weight @ inputs[i]
        part = top * kept[t] * (z > 0)
        slope = 1 / (1 + math.exp(y[i] * float(part @ z)))
        weight.addr_(part, inputs[i], alpha=learning_rate * slope * y[i])
        norms = weight.norm(dim=1)
        if float(norms.max()) > max_norm:
            weight *= torch.clamp(max_norm / norms, max=1.0)[:, None]
