"""Panel: the surface that two hidden units see, its critical points, and dropout's way down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from overt.explorer import theory
from overt.explorer.fields import Values, number, points
from overt.explorer.figures import GRAY, GRID, INK, Figure, figure, numbers
from overt.explorer.panel import Panel, Table, View, call

FIELDS = (
    number("target", "Target m", 2.0, 0.1, 10, slide=0.1),
    number("drop_prob", "Drop probability", 0.5, 0, 0.95, slide=0.01),
    points(
        "starts", "Starting points (u1 u2)", "0.2 1.6\n-1.5 0.3\n-0.4 -0.1", 10, 10,
        hint="One pair on a line. A click on the map adds one and runs. A run that starts on an "
        "axis stays on it: the gradient of a unit whose weight is 0 is 0.",
    ),
    number("steps", "Steps", 2000, 40, 100_000),
    number("learning_rate", "Learning rate", 0.01, 1e-6, 1),
    number("seed", "Seed", 0, 0, 1_000_000),
)  # fmt: skip


def _survey(values: Values) -> Values:
    extent = round(1.3 * values["target"] ** 0.5, 3)
    return {"target": values["target"], "drop_prob": values["drop_prob"], "extent": extent}


def _view(values: Values, found: Sequence[dict[str, Any]]) -> View:
    axis, f, points = theory.survey(**_survey(values))
    starts = values["starts"]
    trails = [[start, *(frame["places"][i] for frame in found)] for i, start in enumerate(starts)]
    ends = found[-1]["objective"] if found else [None] * len(starts)
    reached = [(i + 1, *trail[-1], ends[i]) for i, trail in enumerate(trails)]
    return View(
        [
            ("Least objective", min(value for *_, value, _ in points)),
            ("Strength of the noise", values["drop_prob"] / (1 - values["drop_prob"])),
        ],
        [_map(axis, f, points, trails), _surface(axis, f)],
        [
            Table("Critical points, up to signs and order", ("u1", "u2", "objective", "kind"),
                  points),
            Table("Where the runs are", ("run", "u1", "u2", "objective"), reached),
        ],
    )  # fmt: skip


def _map(axis: Any, f: Any, points: Any, trails: Any) -> Figure:
    marks = []
    for a, b, value, kind in points:
        places = {(i * u, j * v) for u, v in ((a, b), (b, a)) for i in (1, -1) for j in (1, -1)}
        marks.append({
            "type": "scatter", "mode": "markers", "name": f"{kind}, f = {value:.4g}",
            "x": numbers(x for x, _ in places), "y": numbers(y for _, y in places),
            "marker": {"symbol": "star" if kind == "minimum" else "x", "size": 12, "color": "#fff",
                       "line": {"color": INK, "width": 1.5}},
        })  # fmt: skip
    runs = [
        {
            "type": "scatter", "mode": "lines+markers", "name": f"run {i + 1}", "showlegend": False,
            "x": numbers(x for x, _ in trail), "y": numbers(y for _, y in trail),
            "line": {"color": "#fff", "width": 1.5},
            "marker": {"size": [9] + [0] * (len(trail) - 2) + [9] * (len(trail) > 1),
                       "color": "#e0573e", "line": {"color": "#fff", "width": 1}},
        }
        for i, trail in enumerate(trails)
    ]  # fmt: skip
    contour = {
        "type": "contour", "ncontours": 24, "contours": {"coloring": "heatmap"},
        "line": {"width": 0.5}, **_height(axis, f),
    }  # fmt: skip
    across = {"range": [axis[0], axis[-1]], "constrain": "domain"}
    return figure(
        "map", "Contours of the objective's root over the weights of the two units; stars are "
        "minima, crosses saddles, lines the runs of dropout from each starting point.", "u1", "u2",
        contour, *runs, *marks, height=480, xaxis=across,
        yaxis={"scaleanchor": "x"} | across,
    )  # fmt: skip


def _surface(axis: Any, f: Any) -> Figure:
    top = 1.6 * float(np.sqrt(f[len(f) // 2, len(f) // 2]))
    scene: dict[str, Any] = {
        key: {"title": {"text": text}, "color": GRAY, "gridcolor": GRID}
        for key, text in (("xaxis", "u1"), ("yaxis", "u2"), ("zaxis", "root of f"))
    }
    scene["zaxis"]["range"] = [0, top]
    scene["aspectratio"] = {"x": 1, "y": 1, "z": 0.75}
    scene["camera"] = {"eye": {"x": 1.6, "y": 1.6, "z": 1.1}}
    surface = {"type": "surface", "cmin": 0, "cmax": top, **_height(axis, f)}
    return figure(
        "surface", "The same surface in perspective, cut off above.", "", "", surface, still=True,
        height=420, margin={"l": 0, "r": 0, "t": 0, "b": 0}, scene=scene,
    )  # fmt: skip


def _height(axis: Any, f: Any) -> dict[str, Any]:
    return {
        "x": numbers(axis), "y": numbers(axis), "z": [numbers(row) for row in np.sqrt(f).T],
        "colorscale": "Cividis", "showscale": False, "name": "",
        "hovertemplate": "u1 %{x}, u2 %{y}<br>root of f %{z:.3g}",
    }  # fmt: skip


def _code(values: Values) -> str:
    lines = (
        f"axis, f, points = {call(theory.survey, _survey(values))}\n"
        f"frames = list({call(theory.descend, values)})\n"
        'share, last = frames[-1]  # last["places"], last["objective"]'
    )
    return theory.script(lines, theory.survey, theory.descend)


PANEL = Panel(
    "landscape", "Landscape",
    "With one input and two hidden units of tied weights, the whole landscape "
    "f(u) = (m - u1² - u2²)² + λ (u1⁴ + u2⁴) can be seen: dropout leaves minima only where both "
    "units carry the same share. Click anywhere on the map, or type starting points, and watch "
    "dropout training find its way there.",
    "theory/landscape", FIELDS, _view, _code, theory.descend, plots_at_once=True,
)  # fmt: skip
