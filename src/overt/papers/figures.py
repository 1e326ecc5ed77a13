"""A figure or table as data: settings at each size, a function that measures one, its findings.

A finding is a claim of the paper with a verdict: by an interval where chance has a part.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from overt._check import InputError
from overt._figures import COLORS, canvas, simplify_log_ticks, styled
from overt._intervals import clopper_pearson

SIZES = ("toy", "reduced", "paper")
"""Sizes, each with more work than the one before."""

VERDICTS = ("fails", "inconclusive", "holds")
"""Verdicts on a claim; of several claims together the first of these that occurs counts."""

Params = dict[str, Any]
Row = dict[str, Any]
"""A setting's parameters and measurements together."""

Rows = list[Row]

Grid = Mapping[str, Any]
"""The values along each axis of a size."""

Table = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""Header and lines, the paper's numbers beside ours."""


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, what the rows say of it, and what they show.

    The verdict is one of `VERDICTS`, or the truth of what needs no interval.
    """

    claim: str
    verdict: Any
    measured: str
    reported: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", as_verdict(self.verdict))


Findings = Iterator[Finding]


def as_verdict(value: Any) -> str:
    """Return a verdict from its name or from a truth; anything else, NaN above all, is refused."""
    if isinstance(value, bool | np.bool_):
        return "holds" if value else "fails"
    if isinstance(value, str) and value in VERDICTS:
        return value
    accepted = ", ".join(reversed(VERDICTS))
    raise InputError(f"a verdict must be a bool or one of {accepted}; got {value!r}")


def together(*verdicts: Any) -> str:
    """Return the verdict on claims that must all hold."""
    return min(map(as_verdict, verdicts), key=VERDICTS.index)


Interval = tuple[float, float]


def mean_interval(values: Any, level: float = 0.95) -> Interval:
    """Return Student's interval for a mean; one value says nothing."""
    from scipy.stats import t

    values = np.asarray(values, dtype=float)
    n = len(values)
    if n < 2:
        return -np.inf, np.inf
    deviation = values.std(ddof=1)
    error = deviation / np.sqrt(n)
    quantile = t.ppf((1 + level) / 2, n - 1)
    half = quantile * error
    mean = float(values.mean())
    return mean - half, mean + half


def share_interval(count: int, of: int, level: float = 0.95) -> Interval:
    """Return the exact interval for a share."""
    low, high = clopper_pearson(count, of, level)
    return float(low), float(high)


def most(count: int, of: int) -> str:
    """Return whether more than half of all do what `count` of them were seen to do."""
    interval = share_interval(count, max(of, 1))
    return above(interval, 0.5)


def above(interval: Interval, limit: float) -> str:
    """Return whether a quantity known to lie in the interval exceeds the limit."""
    low, high = interval
    if low > limit:
        return "holds"
    return "fails" if high <= limit else "inconclusive"


def below(interval: Interval, limit: float) -> str:
    """Return whether a quantity known to lie in the interval is below the limit."""
    low, high = interval
    return above((-high, -low), -limit)


def values_of(rows: Iterable[Row], name: str) -> list[Any]:
    """Return the different values along an axis, in order."""
    return sorted({row[name] for row in rows})


def rows_with(rows: Iterable[Row], **setting: Any) -> Rows:
    """Return the rows of a setting."""

    def matches(row: Row) -> bool:
        return all(row[name] == value for name, value in setting.items())

    return list(filter(matches, rows))


@dataclass(frozen=True)
class Figure:
    """One figure or table of the papers.

    Attributes
    ----------
    id, title, claim, source
        What it is, what it is meant to show, and its place in the paper.
    run
        Measures one setting: run(params, seed) -> numbers, strings and lists of them, NaN where
        there is none (never None).
    check
        Yields findings from the rows.
    plot
        Plots the rows as a matplotlib figure; without it the picture is the table.
    common
        The values along the axes that are the same at all sizes.
    sizes
        For each size ("toy" takes seconds, "paper" is the printed one, "reduced" may stand between
        them) the values along each axis; the rows are their product. A value that is no list is
        the only one; runs = 3 is run = [0, 1, 2]. A list of such grids gives the rows of each.
    differs
        How each size differs from the paper, or what the paper leaves out and had to be chosen.
    hours
        Hours on one core at each size, measured or scaled up from a smaller size; absent where
        nobody has measured them.
    needs
        Packages that must be installed, with the extra that installs each.
    table
        Returns the rows as a table of the paper, the printed numbers beside them.
    revision
        Raised when `run` changes meaning, so that stored rows are computed again.
    """

    id: str
    title: str
    claim: str
    run: Callable[[Params, int], dict[str, Any]]
    check: Callable[[Rows], Iterable[Finding]]
    sizes: Mapping[str, Grid | Sequence[Grid]]
    plot: Callable[[Rows], Any] | None = None
    common: Grid = field(default_factory=dict)
    differs: Mapping[str, str] = field(default_factory=dict)
    hours: Mapping[str, float] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    table: Callable[[Rows], Table] | None = None
    revision: int = 1
    source: str = ""

    def settings(self, size: str) -> Iterator[Params]:
        """Yield every combination of the values along the axes."""
        given = self.sizes[size]
        grids = [given] if isinstance(given, Mapping) else given
        for grid in grids:
            axes: dict[str, Sequence[Any]] = {}
            for name, values in {**self.common, **grid}.items():
                if name == "runs":
                    axes["run"] = range(values)
                elif isinstance(values, list):
                    axes[name] = values
                else:
                    axes[name] = [values]
            for chosen in itertools.product(*axes.values()):
                yield dict(zip(axes, chosen, strict=True))

    def key(self, params: Params) -> str:
        """Return a name for a setting that is stable between runs and machines."""
        setting = [self.id, self.revision, params]
        text = json.dumps(setting, sort_keys=True)
        digest = hashlib.sha256(text.encode())
        return digest.hexdigest()[:20]

    def seed(self, params: Params) -> int:
        """Return the setting's own seed, derived from the named axes alone."""
        setting = [self.id, params]
        text = json.dumps(setting, sort_keys=True)
        digest = hashlib.sha256(text.encode()).digest()
        return int.from_bytes(digest[:4])

    def nearest(self, size: str) -> str:
        """Return the size, or the next smaller one that the figure has."""
        smaller = SIZES[: SIZES.index(size) + 1]
        there = [name for name in smaller if name in self.sizes]
        return there[-1]

    def size_name(self, size: str) -> str:
        """Return the size as it is shown: "full" for our own figures, which have no paper."""
        own = self.source.startswith("overt")
        return "full" if own and size == "paper" else size

    def findings(self, rows: Rows) -> list[Finding]:
        """Return what the rows say of each claim."""
        return list(self.check(rows))

    def data(self, size: str) -> str:
        """Return the data sets that a size needs in the folder OVERT_DATA; empty if none."""
        named = {params.get("data", "") for params in self.settings(size)}
        named -= {"", "digits", "generated"}
        return ", ".join(sorted(named))

    def draw(self, rows: Rows, size: str) -> Any:
        """Return the picture, which says what it is to be laid beside."""
        with styled(**{"axes.titlesize": 10, "legend.fontsize": 8}):
            plot = self.plot or self._plot_table
            picture = plot(rows)
            simplify_log_ticks(picture)
            _move_legends_below(picture)
        title = f"{self.source} (recomputed, {self.size_name(size)} size)"
        picture.suptitle(title, fontsize=9, color="0.35")
        return picture

    def _plot_table(self, rows: Rows) -> Any:
        if self.table is None:
            raise InputError(f"the figure {self.id} needs a plot or a table")
        header, lines = self.table(rows)
        width = 1.2 * len(header)
        height = 0.4 * len(lines) + 1
        picture, axes = canvas(width, height)
        axes.set_axis_off()
        cells = [[str(cell) for cell in line] for line in lines]
        drawn = axes.table(cells, colLabels=header, loc="center", cellLoc="center")
        drawn.auto_set_font_size(False)
        drawn.auto_set_column_width(range(len(header)))
        drawn.scale(1, 1.6)
        return picture


Curve = tuple[str, Any, Any]
"""Label, x, y; a y of (runs, points) has a band from the lowest run to the highest."""


def plot_curves(
    panels: Mapping[str, Sequence[Curve]],
    *,
    columns: int = 4,
    styles: Mapping[str, str] = MappingProxyType({}),
    **options: Any,
) -> Any:
    """Plot one panel for each title; a label has the same color in all of them.

    `styles` are line styles by label, `options` those of all panels, such as xscale and xlabel.
    """
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    size = (max(3.4 * columns, 6.0), 3.3 * lines)
    picture, axes = canvas(*size, lines, columns, squeeze=False)
    colors: dict[str, str] = {}
    for panel, (title, curves) in zip(axes.flat, panels.items(), strict=False):
        for label, x, y in curves:
            runs = np.atleast_2d(np.asarray(y, dtype=float))
            mean = runs.mean(axis=0)
            low = runs.min(axis=0)
            high = runs.max(axis=0)
            unused = COLORS[len(colors) % len(COLORS)]
            color = colors.setdefault(label, unused)
            style = styles.get(label, "-")
            panel.plot(x, mean, style, label=label, color=color)
            panel.fill_between(x, low, high, alpha=0.2, color=color)
        panel.set(title=title, **options)
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    axes[0, 0].legend()
    return picture


def column_of_each(
    rows: Sequence[Row], width: float, height: float, lines: int = 1, **options: Any
) -> tuple[Any, Any]:
    """Return a picture with a column of panels for each row, and the panels (lines, columns)."""
    columns = len(rows)
    size = (width * columns, height)
    return canvas(*size, lines, columns, squeeze=False, **options)


def _move_legends_below(picture: Any) -> None:
    """Replace the panels' legends by one below them, so that none covers data."""
    entries: dict[str, Any] = {}
    title = ""
    for panel in picture.axes:
        legend = panel.get_legend()
        if legend is not None:
            handles, labels = panel.get_legend_handles_labels()
            entries.update(zip(labels, handles, strict=True))
            title = title or legend.get_title().get_text()
            legend.remove()
    if entries:
        columns = len(entries) if len(entries) <= 4 else 3
        picture.legend(
            entries.values(),
            entries.keys(),
            title=title,
            loc="outside lower center",
            ncols=columns,
        )
