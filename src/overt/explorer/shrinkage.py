"""Panel: how a noise shrinks a spectrum, and which drop probability gives a wanted rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from overt import InputError
from overt.explorer import figures, theory
from overt.explorer.fields import Values, choice, number, spectrum
from overt.explorer.figures import BLUE, GRAY, GREEN, ORANGE, PALE, bars, figure, line, lines
from overt.explorer.panel import Panel, View, call

PATH = np.linspace(0, 0.975, 40)
"""Drop probabilities of the path."""

MAX_SOLVED = 4096
"""Largest len(values) * width for which a network is searched while the page waits (a second)."""

NOISES = {"Dropout": "Dropout", "DropBlock": "DropBlock", "DropConnect": "DropConnect"}

FIELDS = (
    spectrum(
        "values", "Singular values of the target", "5 4 3 2.5 2 1.5 1 0.5", 500,
        hint="Up to 500 numbers, in any order.",
    ),
    choice("noise", "Noise", NOISES),
    number("drop_prob", "Drop probability", 0.5, 0, 0.99, slide=0.01),
    number(
        "block_size", "Block size", 2, 1, 64, slide=1, when="noise=DropBlock",
        hint="Must divide the width.",
    ),
    number("width", "Width (hidden units)", 8, 1, 512, slide=1),
    number("rank", "Wanted rank", 3, 1, 500, optional=True),
)  # fmt: skip


def _asked(values: Values) -> Values:
    return {name: values[name] for name in ("values", "noise", "block_size", "width")}


def _view(values: Values, found: Sequence[dict[str, Any]]) -> View:
    here = values["drop_prob"]
    spectra, losses, penalties = theory.shrink(**_asked(values), drop_probs=[here, *PATH])
    ranks = np.count_nonzero(spectra, axis=1)
    needed, messages = _needed(values)
    wanted = f"rank {values['rank']}"
    marks = [figures.mark(here, "here")]
    marks += [figures.mark(needed, wanted, ORANGE)] if needed is not None else []
    proved = _attained(values)
    of = "the optimum" if proved else "the lower bound"
    right = {
        "overlaying": "y", "side": "right", "range": [0, 1.05 * ranks[1] + 0.1], "showgrid": False,
        "tickmode": "linear", "dtick": max(1, int(ranks[1]) // 4),
    }  # fmt: skip
    return View(
        [
            (f"Rank of {of}", ranks[0]),
            ("Objective" if proved else "Lower bound", losses[0] + penalties[0]),
            ("Loss", losses[0]), ("Penalty", penalties[0]),
            *([(f"Drop probability for {wanted}", needed)] if needed is not None else []),
        ],
        [
            figure(
                "spectrum", f"The target's singular values, and those of {of}.{_remark(proved)}",
                "index", "singular value", bars(values["values"], "target", PALE),
                bars(spectra[0], of.removeprefix("the "), BLUE), barmode="overlay", bargap=0.25,
            ),
            figure(
                "path", "Each of these singular values against the drop probability; where a line "
                "reaches zero, the rank falls by one.",
                "drop probability", "singular value",
                lines(PATH, spectra[1:].T, "singular values", BLUE),
                line(PATH, ranks[1:], "rank (right)", GRAY, "dash", yaxis="y2",
                     line={"shape": "hv", "width": 1.5}),
                shapes=marks, yaxis={"rangemode": "tozero"}, yaxis2=right,
            ),
            figure(
                "split", "The least objective at each drop probability: loss and penalty.",
                "drop probability", "objective",
                line(PATH, losses[1:], "loss", GREEN, stackgroup="1"),
                line(PATH, penalties[1:], "penalty", ORANGE, "dash", stackgroup="1"), shapes=marks,
            ),
        ],
        messages=messages,
    )  # fmt: skip


def _attained(values: Values) -> bool:
    """Return whether a network is proved to reach the bound: always, but for DropBlock."""
    if values["noise"] != "DropBlock":
        return True
    if len(values["values"]) * values["width"] > MAX_SOLVED:
        return False
    return theory.attained(**_asked(values), drop_prob=values["drop_prob"])


def _remark(proved: bool) -> str:
    """Return what to say where no network is known to reach the numbers shown."""
    if proved:
        return ""
    return " No network is proved to reach it: with more blocks some would."


def _needed(values: Values) -> tuple[float | None, dict[str, str]]:
    """Return the drop probability for the wanted rank, or why there is none."""
    if values["rank"] is None:
        return None, {}
    if values["noise"] == "DropBlock":
        return None, {"rank": "is known in closed form for Dropout and DropConnect only"}
    try:
        return theory.needed_drop_prob(values["values"], values["width"], values["rank"]), {}
    except InputError as error:
        return None, {"rank": str(error).removeprefix("rank ")}


def _code(values: Values) -> str:
    steps = [
        f"drop_probs = [{values['drop_prob']}, *np.linspace(0, 0.975, 40)]",
        "spectra, losses, penalties = "
        + call(theory.shrink, _asked(values), "drop_probs=drop_probs"),
    ]
    functions: list[Any] = [theory.make_noise, theory.shrink]
    if values["rank"] is not None and values["noise"] != "DropBlock":
        wanted = {name: values[name] for name in ("values", "width", "rank")}
        steps.append(f"needed = {call(theory.needed_drop_prob, wanted)}")
        functions.append(theory.needed_drop_prob)
    steps.append("rank, objective = np.count_nonzero(spectra[0]), losses[0] + penalties[0]")
    return theory.script("\n".join(steps), *functions)


PANEL = Panel(
    "shrinkage", "Shrinkage",
    "Noise on the hidden units of a linear network is a penalty on the singular values of its "
    "map: all of them shrink, and the small ones vanish. Move the drop probability to see which "
    "survive, what they cost, and which probability leaves the rank that you want.",
    "theory/optima", FIELDS, _view, _code, plots_at_once=True,
)  # fmt: skip
