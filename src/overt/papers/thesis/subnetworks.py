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

from overt.papers.figures import (
    Finding,
    Findings,
    Params,
    Row,
    above,
    mean_interval,
    plot_curves,
    rows_with,
    values_of,
)
from overt.papers.records import figure

BATCH, VISITED, DROP_PROB = 64, 10, 0.8

AXES: dict[str, Any] = {"xscale": "log", "xlabel": "step", "ylabel": "test accuracy"}

DIFFERS = {
    "toy": "scikit-learn's digits, widths up to 300, a larger rate, 3 runs",
    "reduced": "widths up to 4,000, 2 epochs, 3 runs",
    "paper": "channels and the other layers' widths are not printed: 10, 20 and 128",
}


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


def accuracies(trunk: Any, top: Any, masks: Any, x: Any, y: Any) -> tuple[float, Any]:
    """Return the accuracy of the full network, and of the sub-network of each mask.

    All sub-networks are evaluated at once: their top layers are stacked in one matrix product.
    """
    import torch

    with torch.no_grad():
        stacked = (masks[:, None, :] * top.weight).flatten(0, 1)
        full, parts = 0, torch.zeros(len(masks), dtype=torch.int64)
        for rows in torch.arange(len(x)).split(1000):
            h, labels = trunk(x[rows]), y[rows]
            full += int((top(h).argmax(1) == labels).sum())
            outputs = (h @ stacked.T).unflatten(1, (len(masks), -1)) + top.bias
            parts += (outputs.argmax(2) == labels[:, None]).sum(0)
    return full / len(x), parts.double().numpy() / len(x)


def sample_masks(
    count: int, width: int, drop_prob: float, generator: Any = None
) -> Any:
    """Return masks of units, scaled as dropout does."""
    import torch

    kept = torch.rand(count, width, generator=generator) >= drop_prob
    return kept.float() / (1 - drop_prob)


def train(
    params: Params, width: int, drop_prob: float, count: int, seed: int
) -> Iterator[tuple[int, float, Any]]:
    """Train with SGD; yield steps, the accuracy of the network, and those of sub-networks.

    The last `count` sub-networks are never seen in training: they come from another generator. The
    others are those of the first examples of the last step.
    """
    import torch
    from torch.nn.functional import cross_entropy

    from overt.papers import models

    data = models.load(params["data"])
    unseen = sample_masks(count, width, drop_prob, torch.Generator().manual_seed(seed))
    steps = params["epochs"] * -(-len(data.x) // BATCH)
    wanted = np.geomspace(min(10, steps), steps, params["records"]).round()
    with torch.random.fork_rng():
        torch.manual_seed(params["run"])
        trunk, top = network(data.x[0], width)
        weights = [*trunk.parameters(), *top.parameters()]
        optimizer = torch.optim.SGD(weights, lr=params["learning_rate"])
        step = 0
        for _ in range(params["epochs"]):
            for rows in torch.randperm(len(data.x)).split(BATCH):
                masks = sample_masks(len(rows), width, drop_prob)
                outputs = top(trunk(data.x[rows]) * masks)
                optimizer.zero_grad()
                cross_entropy(outputs, data.y[rows]).backward()
                optimizer.step()
                step += 1
                if step in wanted:
                    both = torch.cat([masks[:VISITED], unseen])
                    test = (data.x_test, data.y_test)
                    yield step, *accuracies(trunk, top, both, *test)


def run_visited(params: Params, seed: int) -> dict[str, Any]:
    """Train one network; follow it, the sub-networks it visits, and others."""
    width, drop_prob = params["network"]
    found = train(params, width, drop_prob, VISITED, seed)
    steps, full, parts = zip(*found, strict=True)
    return {
        "width": width,
        "drop_prob": drop_prob,
        "steps": steps,
        "full": full,
        "visited": [part[:-VISITED].mean() for part in parts],
        "unseen": [part[-VISITED:].mean() for part in parts],
    }


def run_unseen(params: Params, seed: int) -> dict[str, Any]:
    """Train one network and follow the accuracy of every sub-network."""
    count = params["masks"]
    found = train(params, params["width"], DROP_PROB, count, seed)
    steps, full, parts = zip(*found, strict=True)
    return {"steps": steps, "full": full, "parts": [part[-count:] for part in parts]}


def _gap_finding(claim: str, larger: Any, smaller: Any, reported: str) -> Finding:
    """Compare (label, values by run) of what should be larger with what should be smaller."""
    shown = [f"{label}: {100 * np.mean(gap):.2f} %" for label, gap in (larger, smaller)]
    difference = mean_interval(larger[1] - smaller[1])
    return Finding(claim, above(difference, 0), ", ".join(shown), reported)


def check_visited(rows: list[Row]) -> Findings:
    """Check that the gap shrinks with the width and grows with the drop probability."""

    def gap(width: int, drop_prob: float, part: str) -> tuple[str, Any]:
        """Return full - sub-network accuracy of each run, over the last three records."""
        chosen = rows_with(rows, width=width, drop_prob=drop_prob)
        gaps = [np.subtract(row["full"], row[part])[-3:].mean() for row in chosen]
        return f"width {width}, drop {drop_prob:g}", np.array(gaps)

    widths = values_of(rows, "width")
    narrow, wide = widths[0], widths[-1]
    for part in ("visited", "unseen"):
        yield _gap_finding(
            f"drop .5: the widest has a smaller gap to {part} sub-networks than the narrowest",
            gap(narrow, 0.5, part),
            gap(wide, 0.5, part),
            "the gap is higher for narrower networks",
        )
    probs = values_of(rows_with(rows, width=wide), "drop_prob")
    yield _gap_finding(
        f"width {wide}: the gap is larger at the highest drop probability than at the lowest",
        gap(wide, probs[-1], "visited"),
        gap(wide, probs[0], "visited"),
        "the gap is higher for higher drop probabilities",
    )


def plot_visited(rows: list[Row]) -> Any:
    """Plot accuracies against steps: by drop probability above, by width below."""
    panels = {}
    for width, drop_prob in sorted({(row["width"], row["drop_prob"]) for row in rows}):
        chosen = rows_with(rows, width=width, drop_prob=drop_prob)
        panels[f"width {width}, drop {drop_prob:g}"] = [
            (part, chosen[0]["steps"], [row[part] for row in chosen])
            for part in ("full", "visited", "unseen")
        ]
    styles = {"visited": "--", "unseen": ":"}
    return plot_curves(panels, columns=3, styles=styles, **AXES)


def check_unseen(rows: list[Row]) -> Findings:
    """Check that random sub-networks approach the full network as the width grows."""
    widths = values_of(rows, "width")
    gaps, lowest = {}, {}
    for w in widths:
        chosen = rows_with(rows, width=w)
        parts = np.array([row["parts"][-1] for row in chosen])  # (runs, sub-networks)
        full = np.array([row["full"][-1] for row in chosen])
        gaps[w] = (f"width {w}", full - parts.mean(axis=1))
        lowest[w] = (f"width {w}", parts.min(axis=1))
    narrow, wide = widths[0], widths[-1]
    yield _gap_finding(
        "the widest network has a smaller gap to random sub-networks than the narrowest",
        gaps[narrow],
        gaps[wide],
        "as the width increases, the sub-networks become more competitive",
    )
    yield _gap_finding(
        "so has its worst sub-network a higher accuracy",
        lowest[wide],
        lowest[narrow],
        "",
    )


def plot_unseen(rows: list[Row]) -> Any:
    """Plot all sub-networks and the full network against steps, one panel per width."""
    panels = {}
    for row in rows:
        if row["run"] == 0:
            parts = np.array(row["parts"]).T  # (sub-networks, records)
            panels[f"width {row['width']}"] = [
                ("full network", row["steps"], row["full"]),
                ("sub-networks (mean and range)", row["steps"], parts),
            ]
    return plot_curves(panels, **AXES)


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
    differs=DIFFERS,
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
    differs=DIFFERS,
    needs={"torch": "torch"},
)
