"""Side-by-side measurement: times taken in turns, so that a noisy machine hits both sides."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


def movielens_sizes() -> list[str]:
    """Return which of the smaller MovieLens sets OVERT_DATA holds."""
    folder = Path(os.environ.get("OVERT_DATA", ""))
    return [size for size in ("100k", "1m") if (folder / f"ml-{size}.npz").exists()]


@dataclass
class Table:
    """A benchmark's outcome: what was compared, and whether the bar held."""

    title: str
    header: Sequence[str]
    rows: list[Sequence[Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    plot: str | None = None  # file name of a picture beside the README

    def markdown(self) -> str:
        lines = [f"## {self.title}", ""]
        lines += [
            "| " + " | ".join(self.header) + " |",
            "|" + " --- |" * len(self.header),
        ]
        lines += ["| " + " | ".join(map(_text, row)) + " |" for row in self.rows]
        if self.plot:
            lines += ["", f"![{self.title}]({self.plot})"]
        lines += ["", *self.notes] if self.notes else []
        return "\n".join(lines) + "\n"


def seconds(
    *calls: Callable[[], Any],
    repeat: int = 7,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Return the best time of each call; the calls take turns and the warm-up is not timed."""
    for _ in range(warm_up):
        for call in calls:
            call()
    best = [float("inf")] * len(calls)
    for _ in range(repeat):
        for i, call in enumerate(calls):
            start = clock()
            call()
            best[i] = min(best[i], clock() - start)
    return best


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Return the slope of log time against log size."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def verdict(holds: bool) -> str:
    return "yes" if holds else "**no**"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)
