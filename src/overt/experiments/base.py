"""An experiment is data: a grid of settings, a function that runs one, claims, a picture."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from overt._figures import styled
from overt.experiments.verdicts import Finding

SIZES = ("toy", "reduced", "paper")
"""Sizes, each with more work than the one before."""

Params = dict[str, Any]
Row = dict[str, Any]
"""A setting's parameters and measurements together."""


Findings = Iterator[Finding]


def values_of(rows: Iterable[Row], name: str) -> list[Any]:
    """Return the different values along an axis, in order."""
    return sorted({row[name] for row in rows})


def rows_with(rows: Iterable[Row], **setting: Any) -> list[Row]:
    """Return the rows of a setting."""
    return [row for row in rows if all(row[name] == value for name, value in setting.items())]


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the papers.

    Attributes
    ----------
    id, title, source, claim
        What it is, where it is printed, and what it is meant to show.
    grids
        For each size ("toy" takes seconds, "paper" is the printed one, "reduced" may stand between
        them) the values along each axis; the rows are their product.
    run
        Measures one setting: run(params, seed) -> numbers, strings and lists of them, NaN where
        there is none (never None).
    check
        Compares the rows with the paper's claims; a function that yields findings becomes one
        that returns their list.
    plot
        Draws the rows as a matplotlib figure.
    needs
        Modules that must be importable, with the extra that installs each.
    differs
        How each size differs from what was printed, or what was not printed and had to be chosen.
    revision
        Raised when `run` changes meaning, so that stored rows are computed again.
    """

    id: str
    title: str
    source: str
    claim: str
    grids: Mapping[str, Mapping[str, Sequence[Any]]]
    run: Callable[[Params, int], dict[str, Any]]
    check: Callable[[list[Row]], Any]
    plot: Callable[[list[Row]], Any]
    needs: Mapping[str, str] = field(default_factory=dict)
    differs: Mapping[str, str] = field(default_factory=dict)
    revision: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "check", partial(_listed, self.check))
        object.__setattr__(self, "plot", partial(_styled, self.plot))

    def settings(self, size: str) -> Iterator[Params]:
        """Yield every combination of the grid's values."""
        grid = self.grids[size]
        for values in itertools.product(*grid.values()):
            yield dict(zip(grid, values, strict=True))

    def key(self, params: Params) -> str:
        """Return a name for a setting that is stable between runs and machines."""
        text = json.dumps([self.id, self.revision, params], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def seed(self, params: Params) -> int:
        """Return the setting's own seed, derived from the named axes alone."""
        text = json.dumps([self.id, params], sort_keys=True)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])

    def nearest(self, size: str) -> str:
        """Return the size, or the next smaller one that the experiment has."""
        smaller = SIZES[: SIZES.index(size) + 1]
        return next(name for name in reversed(smaller) if name in self.grids)

    def draw(self, rows: list[Row], size: str) -> Any:
        """Return the picture, which says what it is to be laid beside."""
        figure = self.plot(rows)
        figure.suptitle(f"{self.source} (recomputed, {size} size)", fontsize=9, color="0.35")
        return figure


def _listed(check: Callable[[list[Row]], Iterable[Finding]], rows: list[Row]) -> list[Finding]:
    return list(check(rows))


def _styled(plot: Callable[[list[Row]], Any], rows: list[Row]) -> Any:
    with styled(**{"axes.titlesize": 10, "legend.fontsize": 8}):
        return plot(rows)
