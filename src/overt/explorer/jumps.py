"""Panel: SGD with weight decay jumps from high to low rank, and does not come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from overt.decay import survival
from overt.explorer import theory
from overt.explorer.fields import Values, choice, number
from overt.explorer.figures import BLUE, ORANGE, figure, line, lines, mark
from overt.explorer.panel import Panel, Table, View, call

SCHEDULES = {
    "annealing": "annealing: noisy, then quiet",
    "periodic": "periodic: quiet and noisy in turn",
    "constant": "constant: noisy",
}

FIELDS = (
    number("epsilon", "Epsilon in [[1, *], [epsilon, 1]]", 0.25, 0.02, 1, slide=0.01),
    number("depth", "Depth (layers)", 3, 3, 6, slide=1),
    number("width", "Width (hidden units)", 50, 2, 100, slide=1),
    choice("schedule", "Schedule", SCHEDULES),
    number("steps", "Steps of a noisy phase", 5000, 100, 50_000),
    number("quiet_steps", "Steps of the quiet phase", 2000, 100, 50_000,
           when="schedule=annealing"),
    number("periods", "Periods", 3, 1, 10, when="schedule=periodic"),
    number("learning_rate", "Learning rate of a noisy phase", 0.2, 1e-4, 1),
    number("weight_decay", "Weight decay of a noisy phase", 0.1, 1e-4, 0.4),
    number("seeds", "Runs", 12, 1, 40, slide=1),
    number("seed", "Seed", 0, 0, 1_000_000),
)  # fmt: skip

_PLAN = ("schedule", "steps", "quiet_steps", "periods", "learning_rate", "weight_decay")


def _view(values: Values, found: Sequence[dict[str, Any]]) -> View:
    plan = theory.make_schedule(**{name: values[name] for name in _PLAN})
    if not found:
        return View([("Steps in all", plan.steps)])
    first, runs = found[0], found[1:]
    table = Table(
        f"Minima by rank at weight decay {first['lam']:.4g}, the coefficient of |θ|²",
        ("rank", "kind", "loss", "missing entry"),
        [(m.rank, m.kind, m.loss, float(m.matrix[0, 1])) for m in first["minima"]],
    )
    known = [
        ("Missing entry at rank 1", 1 / values["epsilon"]),
        ("Rank 1 has a minimum below", first["exists"][0]),
        ("Rank 2 has a minimum below", first["exists"][1]),
    ]
    if not runs:
        return View(known, tables=[table])
    steps, s = runs[0]["steps"], np.array([run["s"] for run in runs])  # (runs, records, 2)
    jump = np.array([run["jump"] for run in runs if not run["diverged"]])
    share, low, high = survival(jump, steps)
    jumped = jump[jump >= 0]
    phases = [mark(end, "") for end in np.cumsum([p.steps for p in plan.phases])[:-1].tolist()]
    band = line([*steps, *steps[::-1]], [*low, *high[::-1]], "95% band", BLUE, fill="toself",
                hoverinfo="skip", line={"width": 0}, fillcolor="rgba(0,114,178,0.18)")  # fmt: skip
    return View(
        [
            ("Runs that jumped to rank 1", f"{len(jumped)} of {len(jump)}"),
            ("Median step of their jumps", float(np.median(jumped)) if len(jumped) else None),
            ("Runs that diverged", len(runs) - len(jump)), *known,
        ],
        [
            figure(
                "singular", "Both singular values of every run over time; dotted: a new phase of "
                "the schedule begins.", "step", "singular value",
                lines(steps, s[..., 0], "largest", BLUE), lines(steps, s[..., 1], "second", ORANGE),
                shapes=phases,
            ),
            figure(
                "survival", "The share of runs that have not jumped to rank 1 yet.", "step",
                "share of runs", band, line(steps, share, "not jumped", BLUE, line={"shape": "hv"}),
                yaxis={"range": [-0.02, 1.02]}, shapes=phases,
            ),
        ],
        [table],
    )  # fmt: skip


def _code(values: Values) -> str:
    lines = (
        f"frames = [found for share, found in {call(theory.jump, values)}]\n"
        "first, *runs = frames\n"
        'jump_step = np.array([run["jump"] for run in runs])\n'
        'surviving, low, high = decay.survival(jump_step, runs[0]["steps"])'
    )
    return theory.script(lines, theory.make_schedule, theory.jump)


PANEL = Panel(
    "jumps", "Rank jumps",
    "A deep linear network with weight decay has a minimum for several ranks, and the noise of SGD "
    "makes it jump from one of high rank to one of low rank, but not back. Choose how the learning "
    "rate goes, and see when the second singular value falls and stays down.",
    "howto/rank_jumps", FIELDS, _view, _code, theory.jump,
)  # fmt: skip
