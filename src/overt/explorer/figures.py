"""One look for all plots: plain dictionaries that plotly.js draws.

Colors are like those of Okabe and Ito, dark enough for text: they are told apart with any color
vision, and lines differ in their dashes too. Surfaces use cividis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

BLUE, ORANGE, GREEN, GRAY = "#0072b2", "#b34700", "#00795a", "#5b6b7b"
PALE, INK, GRID = "#8593a1", "#1c2733", "#dde4ea"
LOG = {"type": "log", "tickformat": "~g"}

Trace = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A plot, and what it shows in words; a `still` one, slow to draw, keeps while a task runs."""

    name: str
    caption: str
    plot: dict[str, Any]
    still: bool = False


def figure(
    name: str, caption: str, x: str, y: str, *data: Trace, still: bool = False, **layout: Any
) -> Figure:
    """Return a plot in the common look; `layout` adds to it, "xaxis" and "yaxis" included."""
    axis = {
        "gridcolor": GRID, "linecolor": GRAY, "zeroline": False, "ticks": "outside",
    }  # fmt: skip
    common = {
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
        "paper_bgcolor": "#fff", "plot_bgcolor": "#fff", "uirevision": name,
        "margin": {"l": 64, "r": 30, "t": 34, "b": 46}, "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "dragmode": False,  # a finger on a phone scrolls the page
        "xaxis": axis | {"title": {"text": x}} | layout.pop("xaxis", {}),
        "yaxis": axis | {"title": {"text": y}} | layout.pop("yaxis", {}),
    }  # fmt: skip
    return Figure(name, caption, {"data": list(data), "layout": common | layout}, still)


def line(x: Any, y: Any, name: str, color: str, dash: str = "solid", **more: Any) -> Trace:
    """Return a line."""
    style = {"color": color, "width": 2, "dash": dash} | more.pop("line", {})
    trace = {"type": "scatter", "mode": "lines", "name": name, "line": style}
    return trace | {"x": numbers(x), "y": numbers(y)} | more


def lines(x: Any, ys: Any, name: str, color: str) -> Trace:
    """Return many thin lines over the same x (lines x points) as one trace, which draws fast."""
    xs = [*numbers(x), None]
    flat = [v for y in ys for v in (*numbers(y), None)]
    return line(xs * len(ys), flat, name, color, line={"width": 1})


def bars(y: Any, name: str, color: str) -> Trace:
    """Return bars at 1, 2, ..."""
    x = list(range(1, len(y) + 1))
    return {"type": "bar", "x": x, "y": numbers(y), "name": name, "marker": {"color": color}}


def level(value: float, text: str) -> dict[str, Any]:
    """Return a dashed horizontal line with its name, as a layout's shape."""
    return _rule("x", "y", value, ORANGE, "dash", {"text": text, "textposition": "start"})


def mark(value: float, text: str, color: str = INK) -> dict[str, Any]:
    """Return a dotted vertical line with its name, as a layout's shape."""
    label = {"text": text, "textposition": "end", "textangle": 0, "xanchor": "right"}
    return _rule("y", "x", value, color, "dot", label | {"yanchor": "top"})


def _rule(
    along: str, across: str, value: float, color: str, dash: str, label: dict[str, Any]
) -> dict[str, Any]:
    return {
        "type": "line", f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1,
        f"{across}0": value, f"{across}1": value, "label": label | {"font": {"color": color}},
        "line": {"color": color, "width": 1.5, "dash": dash},
    }  # fmt: skip


def numbers(values: Any) -> list[float | None]:
    """Return numbers as JSON has them: six digits, and nothing where they are not finite."""
    plain = values.tolist() if isinstance(values, np.ndarray) else values
    return [float(f"{v:.6g}") if v is not None and math.isfinite(v) else None for v in plain]


def shown(value: Any) -> str:
    """Return a value as pages show it."""
    if value is None or isinstance(value, str):
        return value or "none"
    return f"{value:,}" if isinstance(value, (int, np.integer)) else f"{value:.6g}"
