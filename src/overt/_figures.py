"""One style for every picture: in the library, the experiments, the stories and the pages.

Color-blind readers can distinguish the colors, also in gray by their lightness.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError, MissingExtraError
from overt._io import write_whole

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#8a97a3")
BLUE, ORANGE, GREEN, _, YELLOW, GRAY = COLORS

FORMATS = ("png", "pdf", "svg", "jpg", "jpeg", "webp", "eps", "ps", "tif", "tiff")

STYLE: dict[str, Any] = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#5b6b7b",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.color": "#dde4ea",
    "grid.linewidth": 0.7,
    "image.cmap": "cividis",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}


def style() -> dict[str, Any]:
    """Return the style as parameters of matplotlib."""
    from cycler import cycler

    return STYLE | {"axes.prop_cycle": cycler(color=COLORS)}


def styled(**changes: Any) -> Any:
    """Return a context in which every figure has the style, with these changes."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    return mpl.rc_context(style() | changes)


def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> Any:
    """Return a figure of this size in inches, and its axes: an array unless there is but one."""
    with styled():
        from matplotlib.figure import Figure

        class Picture(Figure):
            """A figure that notebooks show, whether or not pyplot has been imported."""

            def _repr_png_(self) -> bytes:
                file = BytesIO()
                self.savefig(file, format="png")
                return file.getvalue()

        figure = Picture(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, **options)


def subplots(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (4.2, 3.2)
) -> Any:
    """Return a figure in overt's style and its axes, an array of rows x columns.

    `size` is that of each of the axes, in inches.
    """
    return canvas(size[0] * columns, size[1] * rows, rows, columns, squeeze=False)


def write_figure(figure: Any, path: str | os.PathLike[str], dpi: int = 150) -> Path:
    """Write a picture whole or not at all, in the format that its name ends with."""
    how = {"format": figure_format(path), "dpi": dpi, "bbox_inches": "tight"}
    return write_whole(path, partial(figure.savefig, **how))


def figure_format(path: str | os.PathLike[str]) -> str:
    """Return the format of a picture by the end of its name, or refuse it."""
    found = Path(path).suffix[1:].lower()
    if found not in FORMATS:
        raise InputError(f"a picture's name ends in .{', .'.join(FORMATS)}, got {path}")
    return found


def simplify_log_ticks(picture: Any) -> None:
    """Label logarithmic axes at powers of ten; at .1, .2, .5 where they span less than two."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    for panel in picture.axes:
        for axis, limits in (
            (panel.xaxis, panel.get_xlim()),
            (panel.yaxis, panel.get_ylim()),
        ):
            if axis.get_scale() != "log" or axis.get_transform().base != 10:
                continue
            axis.set_minor_formatter(NullFormatter())
            if max(limits) < 100 * min(limits):
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_major_formatter(FormatStrFormatter("%g"))


def bars_figure(*panels: tuple[str, Any]) -> Any:
    """Plot one panel of bars for each pair of a name and values."""
    figure, axes = subplots(1, len(panels))
    for axis, (name, values) in zip(axes[0], panels, strict=True):
        axis.bar(range(1, len(values) + 1), values)
        axis.set(xlabel="index", ylabel=name)
    return figure


def runs_figure(runs: Sequence[tuple[str, Any]]) -> Any:
    """Plot the objective of each trace above its imbalance; the band is the range of the seeds."""
    figure, axes = subplots(2, len(runs), (5.1 if len(runs) == 1 else 3.4, 2.8))
    for column, (title, run) in enumerate(runs):
        draw_objective(axes[0][column], run.steps, run.objective, run.optimum)
        draw_band(axes[1][column], run.steps, run.imbalance, BLUE)
        axes[0][column].set_title(title)
        axes[1][column].set(yscale="log", xlabel="step")
    axes[0][0].set_ylabel("objective")
    axes[1][0].set_ylabel("imbalance")
    axes[0][0].legend()
    return figure


def draw_objective(axes: Any, steps: Any, objective: Any, optimum: float) -> None:
    """Plot the mean objective with the range of the seeds, and the optimum as a dashed line."""
    draw_band(axes, steps, objective, BLUE, label="training with noise")
    axes.axhline(optimum, color=ORANGE, ls="--", lw=1.4, label="exact optimum")
    axes.set_yscale("log")


def draw_band(
    axes: Any, steps: Any, values: Any, color: str, label: str | None = None
) -> None:
    """Plot the mean over seeds and the band from the lowest to the highest."""
    # A logarithmic axis has no place for what was recorded before the first step.
    shown = np.asarray(steps) > 0
    steps = np.asarray(steps)[shown]
    values = np.asarray(values)[..., shown]
    axes.fill_between(
        steps, np.nanmin(values, 0), np.nanmax(values, 0), color=color, alpha=0.2, lw=0
    )
    axes.plot(steps, np.nanmean(values, 0), color=color, lw=1.6, label=label)
    axes.set_xscale("log")
