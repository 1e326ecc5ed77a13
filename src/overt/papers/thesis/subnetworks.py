"""Thesis, Figures 5-2 and 5-3: the full network and the sub-networks that dropout visits, or not.

As in the thesis: two convolutions with max-pooling and three fully connected layers, ReLU, dropout
on the top hidden layer, cross-entropy, plain SGD at rate .01 in batches of 64. The sizes of the
other layers are not printed: 10 and 20 channels of 5 x 5, 128 units.

A step samples a mask for every example; the sub-networks visited at a step belong to its first ten
examples. Beside them stand masks that are sampled before training from a separate generator, so
that training never sees them: ten in Figure 5-2; 100 at drop probability .8 in Figure 5-3, each of
which keeps about a fifth of the units.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from overt._figures import BLUE, ORANGE, canvas
from overt.papers.figures import (
    Finding,
    Findings,
    Params,
    Row,
    above,
    mean_interval,
    rows_with,
    values_of,
)
from overt.papers.records import figure

BATCH, VISITED, DROP_PROB = 64, 10, 0.8


def network(image: Any, width: int) -> tuple[Any, Any]:
    """Return (trunk with `width` outputs, linear top layer) for images like `image`."""
    import torch
    from torch import nn

    size, padding = (5, 0) if image.shape[-1] >= 16 else (3, 1)
    convolutions = nn.Sequential(
        nn.Conv2d(1, 10, size, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, size, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    )
    with torch.no_grad():
        features = convolutions(image[None]).shape[1]
    trunk = nn.Sequential(
        convolutions,
        nn.Linear(features, 128),
        nn.ReLU(),
        nn.Linear(128, width),
        nn.ReLU(),
    )
    return trunk, nn.Linear(width, 10)


def descend(
    trunk: Any,
    top: Any,
    x: Any,
    y: Any,
    drop_prob: float,
    steps: int,
    learning_rate: float,
) -> Iterator[tuple[int, Any]]:
    """Train with SGD; yield (steps taken, masks of the last step (examples x width))."""
    import torch
    from torch.nn.functional import cross_entropy

    optimizer = torch.optim.SGD(
        [*trunk.parameters(), *top.parameters()], lr=learning_rate
    )
    step = 0
    while True:
        for rows in torch.randperm(len(x)).split(BATCH):
            if step == steps:
                return
            masks = (torch.rand(len(rows), top.in_features) >= drop_prob).float() / (
                1 - drop_prob
            )
            optimizer.zero_grad()
            cross_entropy(top(trunk(x[rows]) * masks), y[rows]).backward()
            optimizer.step()
            step += 1
            yield step, masks


def accuracies(trunk: Any, top: Any, masks: Any, x: Any, y: Any) -> tuple[float, Any]:
    """Return the accuracy of the full network, and of the sub-network of each mask.

    All sub-networks are evaluated at once: their top layers are stacked in one matrix product.
    """
    import torch

    with torch.no_grad():
        stacked = (masks[:, None, :] * top.weight).flatten(
            0, 1
        )  # (masks * classes, width)
        full, parts = 0, torch.zeros(len(masks), dtype=torch.int64)
        for rows in torch.arange(len(x)).split(1000):
            h, labels = trunk(x[rows]), y[rows]
            full += int((top(h).argmax(1) == labels).sum())
            outputs = (h @ stacked.T).unflatten(1, (len(masks), -1)) + top.bias
            parts += (outputs.argmax(2) == labels[:, None]).sum(0)
    return full / len(x), parts.double().numpy() / len(x)


def record_steps(steps: int, count: int) -> list[int]:
    """Return about `count` step numbers, evenly spaced in their logarithm, up to `steps`."""
    return sorted({int(s) for s in np.geomspace(min(10, steps), steps, count).round()})


def fixed_masks(count: int, width: int, drop_prob: float, seed: int) -> Any:
    """Return masks that training does not see: they come from a separate generator."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(count, width, generator=generator) >= drop_prob).float() / (
        1 - drop_prob
    )


def recorded(
    params: Params, width: int, drop_prob: float, unseen: Any, visited: int = 0
) -> Iterator[tuple[int, float, Any]]:
    """Train one network; yield steps, its accuracy and that of sub-networks, the unseen last."""
    import torch

    from overt.papers import models

    data = models.load(params["data"])
    steps = params["epochs"] * -(-len(data.x) // BATCH)
    wanted = record_steps(steps, params["records"])
    with torch.random.fork_rng():
        torch.manual_seed(params["run"])
        trunk, top = network(data.x[0], width)
        given = (data.x, data.y, drop_prob, steps, params["learning_rate"])
        for step, masks in descend(trunk, top, *given):
            if step in wanted:
                both = torch.cat([masks[:visited], unseen])
                yield step, *accuracies(trunk, top, both, data.x_test, data.y_test)


def run_visited(params: Params, seed: int) -> dict[str, Any]:
    """Train one network; follow it, the sub-networks it visits, and others."""
    width, drop_prob = params["network"]
    unseen = fixed_masks(VISITED, width, drop_prob, seed)
    steps, full, parts = zip(
        *recorded(params, width, drop_prob, unseen, VISITED), strict=True
    )
    visited = [float(p[:-VISITED].mean()) for p in parts]
    others = [float(p[-VISITED:].mean()) for p in parts]
    return {
        "width": width,
        "drop_prob": drop_prob,
        "steps": steps,
        "full": full,
        "visited": visited,
        "unseen": others,
    }


def run_unseen(params: Params, seed: int) -> dict[str, Any]:
    """Train one network and follow the accuracy of every sub-network."""
    masks = fixed_masks(params["masks"], params["width"], DROP_PROB, seed)
    steps, full, parts = zip(
        *recorded(params, params["width"], DROP_PROB, masks), strict=True
    )
    kept = [int(m) for m in (masks > 0).sum(1)]
    return {
        "steps": steps,
        "full": full,
        "parts": [p.tolist() for p in parts],
        "kept": kept,
    }


def final_gaps(rows: list[Row], width: int, drop_prob: float, part: str) -> Any:
    """Return full - sub-network accuracy of each run, over the last three records."""
    chosen = rows_with(rows, width=width, drop_prob=drop_prob)
    return np.array(
        [np.mean(np.subtract(row["full"][-3:], row[part][-3:])) for row in chosen]
    )


def check_visited(rows: list[Row]) -> Findings:
    """Check that the gap shrinks with the width and grows with the drop probability."""
    widths = values_of(rows, "width")
    for part in ("visited", "unseen"):
        gaps = {w: final_gaps(rows, w, 0.5, part) for w in widths}
        yield Finding(
            f"drop .5: the widest has a smaller gap to {part} sub-networks than the narrowest",
            above(mean_interval(gaps[widths[0]] - gaps[widths[-1]]), 0),
            ", ".join(
                f"width {w}: {100 * g.mean():.2f} points" for w, g in gaps.items()
            ),
            "the gap is higher for narrower networks",
        )
    wide = widths[-1]
    probs = values_of(rows_with(rows, width=wide), "drop_prob")
    gaps = {p: final_gaps(rows, wide, p, "visited") for p in probs}
    yield Finding(
        f"width {wide}: the gap is larger at the highest drop probability than at the lowest",
        above(mean_interval(gaps[probs[-1]] - gaps[probs[0]]), 0),
        ", ".join(f"drop {p:g}: {100 * g.mean():.2f} points" for p, g in gaps.items()),
        "the gap is higher for higher drop probabilities",
    )


def plot_visited(rows: list[Row]) -> Any:
    """Plot accuracies against steps: by drop probability above, by width below."""
    widths = values_of(rows, "width")
    wide = widths[-1]
    probs = values_of(rows_with(rows, width=wide), "drop_prob")
    figure, panels = canvas(
        10, 5.6, 2, max(len(probs), len(widths)), sharey=True, squeeze=False
    )
    cells = [[(wide, p) for p in probs], [(w, 0.5) for w in widths]]
    for line, settings in zip(panels, cells, strict=True):
        for axes, (width, prob) in zip(line, settings, strict=False):
            chosen = rows_with(rows, width=width, drop_prob=prob)
            for part, style in (("full", "-"), ("visited", "--"), ("unseen", ":")):
                curves = 100 * np.array([row[part] for row in chosen])
                axes.plot(chosen[0]["steps"], curves.mean(0), style, label=part)
            axes.set(xscale="log", title=f"width {width}, drop {prob:g}", xlabel="step")
        for axes in line[len(settings) :]:
            axes.set_axis_off()
        line[0].set_ylabel("test accuracy, %")
    panels[0, 0].legend()
    return figure


def check_unseen(rows: list[Row]) -> Findings:
    """Check that random sub-networks approach the full network as the width grows."""
    widths = values_of(rows, "width")
    gaps, worst = {}, {}
    for w in widths:
        chosen = rows_with(rows, width=w)
        parts = np.array([row["parts"][-1] for row in chosen])  # (runs, sub-networks)
        gaps[w] = np.array([row["full"][-1] for row in chosen]) - parts.mean(axis=1)
        worst[w] = parts.min(axis=1)
    narrow, wide = widths[0], widths[-1]
    yield Finding(
        "the widest network has a smaller gap to random sub-networks than the narrowest",
        above(mean_interval(gaps[narrow] - gaps[wide]), 0),
        ", ".join(f"width {w}: {100 * g.mean():.2f} points" for w, g in gaps.items()),
        "as the width increases, the sub-networks become more competitive",
    )
    yield Finding(
        "so has its worst sub-network a higher accuracy",
        above(mean_interval(worst[wide] - worst[narrow]), 0),
        ", ".join(f"width {w}: {100 * a.mean():.2f} %" for w, a in worst.items()),
        "",
    )


def plot_unseen(rows: list[Row]) -> Any:
    """Plot all sub-networks and the full network against steps, one panel per width."""
    widths = values_of(rows, "width")
    figure, panels = canvas(
        3.4 * len(widths), 3.2, 1, len(widths), sharey=True, squeeze=False
    )
    for axes, width in zip(panels[0], widths, strict=True):
        row = rows_with(rows, width=width)[0]
        lines = axes.plot(
            row["steps"], 100 * np.array(row["parts"]), color=ORANGE, lw=0.5
        )
        lines[0].set_label("sub-networks")
        axes.plot(
            row["steps"], 100 * np.array(row["full"]), color=BLUE, label="full network"
        )
        axes.set(xscale="log", title=f"width {width}", xlabel="step")
    panels[0, 0].set_ylabel("test accuracy, %")
    panels[0, 0].legend()
    return figure


figure(
    "thesis-fig5-2",
    "Figure 5-2",
    "5.5",
    """Sub-networks visited by dropout against the full network.

    The sub-networks that dropout visits are as good as the full network if it is wide.
    """,
    run=run_visited,
    check=check_visited,
    plot=plot_visited,
    sizes={
        "toy": {
            "runs": 3,
            "data": "digits",
            "network": [[20, 0.5], [300, 0.1], [300, 0.5], [300, 0.8]],
            "epochs": 8,
            "records": 6,
            "learning_rate": 0.2,
        },
        "reduced": {
            "runs": 3,
            "data": "mnist",
            "network": [[100, 0.5], [1000, 0.5], [4000, 0.5], [4000, 0.1], [4000, 0.7]],
            "epochs": 2,
            "records": 10,
            "learning_rate": 0.01,
        },
        "paper": {
            "runs": 50,
            "data": "mnist",
            "network": [
                [100, 0.5],
                [10000, 0.5],
                [100000, 0.5],
                [250000, 0.1],
                [250000, 0.5],
                [250000, 0.7],
            ],
            "epochs": 25,
            "records": 30,
            "learning_rate": 0.01,
        },
    },
    differs={
        "toy": "scikit-learn's digits, widths up to 300, a larger rate, 3 runs",
        "reduced": "widths up to 4,000, 2 epochs, 3 runs",
        "paper": "channels and the other layers' widths are not printed: 10, 20 and 128",
    },
    needs={"torch": "torch"},
)

figure(
    "thesis-fig5-3",
    "Figure 5-3",
    "5.5",
    """Random sub-networks against the full network.

    Sub-networks that training has not seen come close to the full network as it widens.
    """,
    run=run_unseen,
    check=check_unseen,
    plot=plot_unseen,
    sizes={
        "toy": {
            "runs": 3,
            "data": "digits",
            "width": [20, 300],
            "masks": 30,
            "epochs": 10,
            "records": 6,
            "learning_rate": 0.2,
        },
        "reduced": {
            "runs": 3,
            "data": "mnist",
            "width": [100, 1000, 4000],
            "masks": 100,
            "epochs": 2,
            "records": 8,
            "learning_rate": 0.01,
        },
        "paper": {
            "runs": 50,
            "data": "mnist",
            "width": [100, 1000, 10000, 100000],
            "masks": 100,
            "epochs": 25,
            "records": 30,
            "learning_rate": 0.01,
        },
    },
    differs={
        "toy": "scikit-learn's digits, widths up to 300, a larger rate, 3 runs",
        "reduced": "widths up to 4,000, 2 epochs, 3 runs",
        "paper": "channels and the other layers' widths are not printed: 10, 20 and 128",
    },
    needs={"torch": "torch"},
)
