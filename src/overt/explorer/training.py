"""Panel: stochastic gradient descent with noise, beside the optimum that theory knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from overt.explorer import theory
from overt.explorer.fields import Values, choice, number
from overt.explorer.figures import BLUE, LOG, ORANGE, figure, level, line, lines
from overt.explorer.panel import Panel, View, call
from overt.explorer.shrinkage import NOISES

FIELDS = (
    number("outputs", "Outputs", 30, 1, 60, slide=1),
    number("inputs", "Inputs", 20, 1, 60, slide=1),
    number("rank", "Rank of the target", 5, 1, 60, slide=1),
    number("width", "Width (hidden units)", 10, 1, 60, slide=1),
    choice("noise", "Noise", NOISES),
    number("drop_prob", "Drop probability", 0.5, 0, 0.9, slide=0.01),
    number("block_size", "Block size", 2, 1, 60, when="noise=DropBlock",
           hint="Must divide the width."),
    number("learning_rate", "Learning rate", 0.002, 1e-7, 1),
    number("halving", "Halve the rate after", 6000, 0, 1_000_000,
           hint="Steps; 0 keeps it constant, and the noise of the steps with it."),
    number("steps", "Steps", 30_000, 100, 1_000_000),
    number("seeds", "Runs", 5, 1, 10, slide=1),
    number("seed", "Seed of the target", 0, 0, 1_000_000),
)  # fmt: skip


def _view(values: Values, found: Sequence[dict[str, Any]]) -> View:
    noise = theory.make_noise(values["noise"], values["drop_prob"], values["block_size"])
    if values["noise"] == "DropBlock":
        noise.mean(values["width"])  # answers a block size that does not divide the width
    if len(found) < 2:
        return View([("Optimum", frame["optimum"]) for frame in found])
    best, records = found[0], found[1:]
    steps = [frame["step"] for frame in records]
    objective = np.array([frame["objective"] for frame in records]).T  # (runs, records)
    gap = objective - best["optimum"]
    scores = np.array([frame["importance"] for frame in records]).T  # (units, records)
    shares = np.unique(np.round(best["importance"], 6)).tolist()
    return View(
        [
            ("Step", steps[-1]), ("Optimum", best["optimum"]),
            ("Mean objective", objective[:, -1].mean()), ("Mean gap", gap[:, -1].mean()),
            ("Gap / optimum", gap[:, -1].mean() / max(best["optimum"], 1e-300)),
            ("Spread of importance", scores[:, -1].std()), ("Rank of the optimum", best["rank"]),
        ],
        [
            figure(
                "objective", "The exact objective of each run of training, and the optimum.",
                "step", "objective", lines(steps, objective, "training with noise", BLUE),
                xaxis=LOG, yaxis=LOG | {"dtick": "D2"},
                shapes=[level(best["optimum"], "exact optimum")],
            ),
            figure(
                "gap", "How far each run is above the optimum.", "step", "gap",
                lines(steps, np.maximum(gap, 1e-12), "each run", BLUE),
                line(steps, gap.mean(axis=0), "mean", ORANGE, "dash"), xaxis=LOG, yaxis=LOG,
            ),
            figure(
                "importance", "Importance |u||v| of every hidden unit in the first run; dashed: at "
                "the optimum.", "step", "importance",
                lines(steps, scores, "hidden units of run 1", BLUE), xaxis=LOG,
                shapes=[level(v, "" if i else "optimum") for i, v in enumerate(shares)],
            ),
        ],
    )  # fmt: skip


def _code(values: Values) -> str:
    lines = (
        f"frames = [found for share, found in {call(theory.train, values)}]\n"
        "best, *records = frames\n"
        'objective = np.array([record["objective"] for record in records]).T  # runs x records\n'
        'gap = objective - best["optimum"]'
    )
    return theory.script(lines, theory.make_noise, theory.train)


PANEL = Panel(
    "training", "Training against theory",
    "Stochastic gradient descent with one sample and one mask per step comes down to the optimum "
    "that theory computes without any sampling. On the way the hidden units come to carry equal "
    "shares of the map, although nothing asks them to.",
    "theory/certificates", FIELDS, _view, _code, theory.train,
)  # fmt: skip
