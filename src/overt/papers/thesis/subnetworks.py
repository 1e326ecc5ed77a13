"""Thesis, Figures 5-2 and 5-3: the full network and the sub-networks that dropout visits, or not.

As in the thesis: two convolutions with max-pooling and three fully connected layers, ReLU, dropout
on the top hidden layer, cross-entropy, plain SGD at rate .01 in batches of 64. The sizes of the
other layers are not printed: 10 and 20 channels of 5 x 5, 128 units.

A step t samples one mask B_t, as in Algorithm 4, and visits the sub-network g(W_t; ., B_t).
Beside it stand masks that are sampled before training from a separate generator, so that training
never sees them: ten in Figure 5-2; 100 at drop probability .8 in Figure 5-3, each of which keeps
about a fifth of the units.
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

BATCH = 64
UNSEEN = 10
DROP_PROB = 0.8

AXES: dict[str, Any] = {"xscale": "log", "xlabel": "step", "ylabel": "test accuracy"}


def network(image: Any) -> Any:
    """Return all layers below the top hidden one, for images like `image`: 128 features."""
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
    return nn.Sequential(convolutions, nn.Linear(features, 128), nn.ReLU())


def accuracies(features: Any, layer: Any, bias: Any, masks: Any, y: Any) -> Any:
    """Return the accuracy of the sub-network of each mask."""
    import torch

    V, b, U = layer
    tops = (masks[:, :, None] * U).transpose(0, 1).flatten(1)  # width x (masks, 10)
    hits = torch.zeros(len(masks))
    with torch.no_grad():
        for rows in torch.arange(len(y)).split(200):
            h = torch.relu(torch.addmm(b, features[rows], V.T))
            outputs = (h @ tops).view(len(rows), len(masks), 10) + bias
            hits += (outputs.argmax(2) == y[rows, None]).sum(0)
    return (hits / len(y)).numpy()


def train(
    params: Params, width: int, drop_prob: float, count: int, seed: int
) -> Iterator[tuple[int, Any]]:
    """Train with SGD; yield steps and accuracies.

    They are those of the full network, of the sub-network that the step visited, and of `count`
    sub-networks that training never sees: they come from another generator.
    """
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    from overt.papers import models

    data = models.load(params["data"])
    rate = params["learning_rate"]

    def sample(count: int, generator: Any = None) -> Any:
        return torch.rand(count, width, generator=generator) >= drop_prob

    unseen = sample(count, torch.Generator().manual_seed(seed))
    steps = params["epochs"] * -(-len(data.x) // BATCH)
    wanted = np.geomspace(min(10, steps), steps, params["records"]).round()
    with torch.random.fork_rng():
        torch.manual_seed(params["run"])
        trunk = network(data.x[0])
        hidden = nn.Linear(128, width)
        top = nn.Linear(width, 10)
        optimizer = torch.optim.SGD([*trunk.parameters(), top.bias], lr=rate)
        # Units by rows, so that a step reads and writes those that its mask keeps.
        layer = [hidden.weight.data, hidden.bias.data, top.weight.data.T.contiguous()]
        step = 0
        for _ in range(params["epochs"]):
            for rows in torch.randperm(len(data.x)).split(BATCH):
                mask = sample(1)
                kept = mask[0].nonzero().squeeze(1)
                V, b, U = (part[kept].requires_grad_() for part in layer)
                h = torch.relu(torch.addmm(b, trunk(data.x[rows]), V.T))
                outputs = torch.addmm(top.bias, h, U / (1 - drop_prob))
                optimizer.zero_grad()
                cross_entropy(outputs, data.y[rows]).backward()
                optimizer.step()
                for part, units in zip(layer, (V, b, U), strict=True):
                    part[kept] = units.data.sub_(units.grad, alpha=rate)
                step += 1
                if step in wanted:
                    masks = torch.cat([mask, unseen]) / (1 - drop_prob)
                    masks = torch.cat([torch.ones(1, width), masks])
                    with torch.no_grad():
                        features = torch.cat(
                            [trunk(part) for part in data.x_test.split(1000)]
                        )
                    yield (
                        step,
                        accuracies(features, layer, top.bias, masks, data.y_test),
                    )


def run_visited(params: Params, seed: int) -> dict[str, Any]:
    """Train one network; follow it, the sub-networks it visits, and others."""
    width, drop_prob = params["network"]
    steps, found = zip(*train(params, width, drop_prob, UNSEEN, seed), strict=True)
    return {
        "width": width,
        "drop_prob": drop_prob,
        "steps": steps,
        "full": [shares[0] for shares in found],
        "visited": [shares[1] for shares in found],
        "unseen": [shares[2:].mean() for shares in found],
    }


def run_unseen(params: Params, seed: int) -> dict[str, Any]:
    """Train one network and follow the accuracy of every sub-network."""
    found = train(params, params["width"], DROP_PROB, params["masks"], seed)
    steps, shares = zip(*found, strict=True)
    full = [part[0] for part in shares]
    return {"steps": steps, "full": full, "parts": [part[2:] for part in shares]}


def _gap_finding(claim: str, larger: Any, smaller: Any, reported: str) -> Finding:
    """Compare (label, values) of what should be larger with what should be smaller.

    The values are those of runs, or of the random sub-networks of one run.
    """
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
    narrow = widths[0]
    wide = widths[-1]
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
    gaps = {}
    lowest = {}
    for w in (widths[0], widths[-1]):
        parts = [
            (row["full"][-1], row["parts"][-1]) for row in rows_with(rows, width=w)
        ]
        gap = np.concatenate([full - np.array(shares) for full, shares in parts])
        gaps[w] = (f"width {w}", gap)
        lowest[w] = np.min([shares for _, shares in parts])
    yield _gap_finding(
        "the widest network has a smaller gap to random sub-networks than the narrowest",
        gaps[widths[0]],
        gaps[widths[-1]],
        "as the width increases, the sub-networks become more competitive",
    )
    worst = [f"width {w}: {100 * share:.1f} %" for w, share in lowest.items()]
    yield Finding(
        "so has its worst sub-network a higher accuracy",
        lowest[widths[-1]] > lowest[widths[0]],
        ", ".join(worst),
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


DIFFERS = {
    "toy": "scikit-learn's digits, widths up to 300, a larger rate",
    "reduced": "widths up to 4,000, 2 epochs, at most 3 runs",
    "paper": "channels and the other layers' widths are not printed: 10, 20 and 128",
}

COMMON = {"data": "mnist", "learning_rate": 0.01}

TOY = {"data": "digits", "records": 6, "learning_rate": 0.2}

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
    common=COMMON,
    sizes={
        "toy": {
            **TOY,
            "runs": 3,
            "network": [[20, 0.5], [300, 0.1], [300, 0.5], [300, 0.8]],
            "epochs": 20,
        },
        "reduced": {
            "runs": 3,
            "network": [[100, 0.5], [1000, 0.5], [4000, 0.5], [4000, 0.1], [4000, 0.7]],
            "epochs": 2,
            "records": 10,
        },
        "paper": {
            "runs": 50,
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
        },
    },
    differs=DIFFERS,
    needs={"torch": "torch"},
    revision=2,
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
    common=COMMON,
    sizes={
        "toy": {**TOY, "run": 0, "width": [20, 300], "masks": 30, "epochs": 25},
        "reduced": {
            "run": 0,
            "width": [100, 1000, 4000],
            "masks": 100,
            "epochs": 2,
            "records": 8,
        },
        "paper": {
            "run": 0,
            "width": [100, 1000, 10000, 100000],
            "masks": 100,
            "epochs": 25,
            "records": 8,
        },
    },
    differs=DIFFERS
    | {"paper": DIFFERS["paper"] + "; one network of each width, as the figure shows"},
    needs={"torch": "torch"},
    revision=2,
)
