"""One style for every picture: in the library, the experiments, the tour and the pages.

The colors are told apart by the color-blind and, by their lightness, in gray.
"""

from __future__ import annotations

from typing import Any

from overt._check import MissingExtraError

COLORS = ("#0072b2", "#d55e00", "#009e73", "#8a97a3", "#cc79a7", "#e69f00")
BLUE, ORANGE, GREEN, GRAY = COLORS[:4]

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
    from matplotlib import cycler

    return STYLE | {"axes.prop_cycle": cycler(color=COLORS)}


def subplots(rows: int = 1, columns: int = 1, size: tuple[float, float] = (4.2, 3.2)) -> Any:
    """Return a figure in the house's style and its axes, an array of rows x columns.

    `size` is that of each of the axes, in inches.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    with mpl.rc_context(style()):
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False)
