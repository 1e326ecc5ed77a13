"""Thesis, Figures 5-2 and 5-3: the full network and the sub-networks that dropout visits, or not.

As in the thesis: two convolutions with max-pooling and three fully connected layers, ReLU, dropout
on the top hidden layer, cross-entropy, plain SGD at rate .01 in batches of 64. The sizes of the
other layers are not printed: 8 and 16 channels of 5 x 5, 20 units.

A step t samples one mask B_t, as in Algorithm 4, and visits the sub-network g(W_t; ., B_t).
Beside it stand masks that are sampled before training from a separate generator, so that training
never sees them: three in Figure 5-2; 100 at drop probability .8 in Figure 5-3, each of which keeps
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
    Rows,
    above,
    mean_interval,
    plot_curves,
    rows_with,
    values_of,
)
from overt.papers.records import figure

BATCH = 64
UNSEEN = 3
DROP_PROB = 0.8

FEATURES = 20
"""Units of the layer below the top hidden one."""

TILE = 2048
"""Units of the top layer that are taken at a time: as many as fit the processor's cache."""

AXES: dict[str, Any] = {"xscale": "log", "xlabel": "step", "ylabel": "test accuracy"}


def network(image: Any) -> Any:
    """Return all layers below the top hidden one, for images like `image`: 20 features."""
    import torch
    from torch import nn

    size, padding = (5, 0) if image.shape[-1] >= 16 else (3, 1)
    convolutions = nn.Sequential(
        nn.Conv2d(1, 8, size, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(8, 16, size, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    )
    with torch.no_grad():
        features = convolutions(image[None]).shape[1]
    trunk = nn.Sequential(convolutions, nn.Linear(features, FEATURES), nn.ReLU())
    return trunk.to(memory_format=torch.channels_last)


class TopLayers:
    """The top hidden layer and the outputs, with the SGD step of one sub-network.

    A row of `units` holds a unit's weights, its bias, and its weights in the ten outputs.
    """

    def __init__(self, width: int) -> None:
        import torch
        from torch import nn

        hidden = nn.Linear(FEATURES, width)
        top = nn.Linear(width, 10)
        parts = [hidden.weight, hidden.bias[:, None], top.weight.T]
        self.units = torch.cat(parts, 1).detach()
        self.bias = top.bias.detach()

    def active(self, units: Any, inputs: Any) -> Any:
        """Return the activations (units, points) of some of the units."""
        return (units[:, : FEATURES + 1] @ inputs.T).relu_()

    def step(self, mask: Any, features: Any, y: Any, scale: float, rate: float) -> Any:
        """Step along the slope of the sub-network's cross-entropy; return the slope of features.

        Units that are kept are scaled; the others are neither read nor written.
        """
        import torch
        from torch.nn.functional import one_hot

        inputs = with_one(features)
        kept = [part.nonzero().squeeze(1) for part in mask.split(TILE)]
        tiles = list(zip(self.units.split(TILE), kept, strict=True))
        outputs = torch.zeros(10, len(y))
        for tile, rows in tiles:
            units = tile.index_select(0, rows)
            outputs.addmm_(units[:, FEATURES + 1 :].T, self.active(units, inputs))
        shares = torch.softmax(scale * outputs + self.bias[:, None], 0)
        error = (shares - one_hot(y, 10).T) / len(y)
        self.bias -= rate * error.sum(1)
        error *= scale
        slope = torch.zeros(FEATURES, len(y))
        for tile, rows in tiles:
            units = tile.index_select(0, rows)
            h = self.active(units, inputs)
            weights = units[:, : FEATURES + 1]
            top = units[:, FEATURES + 1 :]
            # Nothing comes back to units that are off.
            back = (top @ error).mul_(h.sign())
            slope.addmm_(weights[:, :FEATURES].T, back)
            top.addmm_(h, error.T, alpha=-rate)
            weights.addmm_(back, inputs, alpha=-rate)
            tile.index_copy_(0, rows, units)
        return slope.T

    def accuracies(self, features: Any, masks: Any, y: Any) -> Any:
        """Return the accuracy of the sub-network of each mask."""
        import torch

        top = self.units[:, FEATURES + 1 :]
        tops = (masks.T[:, :, None] * top[:, None]).flatten(1)  # width x (masks, 10)
        hits = torch.zeros(len(masks))
        for rows in torch.arange(len(y)).split(500):
            inputs = with_one(features[rows])
            outputs = self.bias.repeat(len(rows), len(masks))
            for units, part in zip(
                self.units.split(TILE), tops.split(TILE), strict=True
            ):
                outputs.addmm_(self.active(units, inputs).T, part)
            classes = outputs.view(len(rows), len(masks), 10).argmax(2)
            hits += (classes == y[rows, None]).sum(0)
        return (hits / len(y)).numpy()


def with_one(features: Any) -> Any:
    """Return features (points, 20) with a column of ones, whose weights are biases."""
    import torch

    return torch.cat([features, torch.ones(len(features), 1)], 1)


def train(
    params: Params, width: int, drop_prob: float, count: int, seed: int
) -> Iterator[tuple[int, Any]]:
    """Train with SGD; yield steps and accuracies.

    They are those of the full network, of the sub-network that the step visited, and of `count`
    sub-networks that training never sees: they come from another generator.
    """
    import torch

    from overt.papers import models

    data = models.load(params["data"])
    rate = params["learning_rate"]
    scale = 1 / (1 - drop_prob)

    def sample(count: int, generator: Any = None) -> Any:
        return torch.rand(count, width, generator=generator) >= drop_prob

    unseen = sample(count, torch.Generator().manual_seed(seed))
    steps = params["epochs"] * -(-len(data.x) // BATCH)
    wanted = np.geomspace(min(10, steps), steps, params["records"]).round()
    with torch.random.fork_rng():
        torch.manual_seed(params["run"])
        trunk = network(data.x[0])
        layers = TopLayers(width)
        optimizer = torch.optim.SGD(trunk.parameters(), lr=rate)
        step = 0
        for _ in range(params["epochs"]):
            for rows in torch.randperm(len(data.x)).split(BATCH):
                mask = sample(1)
                features = trunk(data.x[rows])
                slope = layers.step(
                    mask[0], features.detach(), data.y[rows], scale, rate
                )
                optimizer.zero_grad()
                features.backward(slope)
                optimizer.step()
                step += 1
                if step in wanted:
                    masks = torch.cat([mask, unseen]) * scale
                    masks = torch.cat([torch.ones(1, width), masks])
                    with torch.no_grad():
                        parts = [trunk(part) for part in data.x_test.split(1000)]
                    found = layers.accuracies(torch.cat(parts), masks, data.y_test)
                    yield step, found


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
    verdict = above(difference, 0)
    return Finding(claim, verdict, ", ".join(shown), reported)


def check_visited(rows: Rows) -> Findings:
    """Check that the gap shrinks with the width and grows with the drop probability."""

    def gap(width: int, drop_prob: float, part: str) -> tuple[str, Any]:
        """Return full - sub-network accuracy of each run, over the last three records."""
        chosen = rows_with(rows, width=width, drop_prob=drop_prob)
        ends = [row["full"][-3:] for row in chosen]
        full = np.array(ends)
        gaps = full - [row[part][-3:] for row in chosen]
        return f"width {width}, drop {drop_prob:g}", gaps.mean(axis=1)

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


def plot_visited(rows: Rows) -> Any:
    """Plot accuracies against steps: by drop probability above, by width below."""
    panels = {}
    networks = {(row["width"], row["drop_prob"]) for row in rows}
    for width, drop_prob in sorted(networks):
        chosen = rows_with(rows, width=width, drop_prob=drop_prob)
        panels[f"width {width}, drop {drop_prob:g}"] = [
            (part, chosen[0]["steps"], [row[part] for row in chosen])
            for part in ("full", "visited", "unseen")
        ]
    styles = {"visited": "--", "unseen": ":"}
    return plot_curves(panels, columns=3, styles=styles, **AXES)


def check_unseen(rows: Rows) -> Findings:
    """Check that random sub-networks approach the full network as the width grows."""
    widths = values_of(rows, "width")
    gaps = {}
    lowest = {}
    narrow = widths[0]
    wide = widths[-1]
    for w in (narrow, wide):
        chosen = rows_with(rows, width=w)
        ends = [row["full"][-1:] for row in chosen]
        full = np.array(ends)
        parts = np.array([row["parts"][-1] for row in chosen])
        gap = np.ravel(full - parts)
        gaps[w] = (f"width {w}", gap)
        lowest[w] = parts.min()
    yield _gap_finding(
        "the widest network has a smaller gap to random sub-networks than the narrowest",
        gaps[narrow],
        gaps[wide],
        "as the width increases, the sub-networks become more competitive",
    )
    worst = [f"width {w}: {100 * share:.1f} %" for w, share in lowest.items()]
    yield Finding(
        "so has its worst sub-network a higher accuracy",
        lowest[wide] > lowest[narrow],
        ", ".join(worst),
    )


def plot_unseen(rows: Rows) -> Any:
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
)
