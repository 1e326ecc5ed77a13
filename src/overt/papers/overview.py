"""The record: every figure and table run, what a folder holds of them, pages of it, comparison.

Rows are kept in a folder as JSON lines, one file for each experiment; pages are made from rows
alone: one HTML file, or Markdown with pictures.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overt._check import InputError
from overt._figures import write_figure
from overt._files import write_whole
from overt._html import Page
from overt.experiments.base import SIZES, Experiment, Row
from overt.experiments.runner import compute, stored
from overt.experiments.verdicts import VERDICTS, Finding

Folder = str | os.PathLike[str]
HEADER = ("claim", "verdict", "measured here", "printed")


@dataclass(frozen=True)
class Entry:
    """What a folder holds of one experiment: the largest size that is complete, or why not."""

    experiment: Experiment
    size: str
    rows: list[Row]
    findings: list[Finding]
    machine: dict[str, Any]
    date: str

    @property
    def counts(self) -> str:
        """How many claims hold, fail, or are left open."""
        found = Counter(f.verdict for f in self.findings)
        return ", ".join(f"{found[name]} {name}" for name in VERDICTS if found[name])

    @property
    def lines(self) -> list[tuple[str, str, str, str]]:
        """The findings as lines of a table."""
        return [(f.claim, f.verdict, f.measured, f.reported) for f in self.findings]

    @property
    def where(self) -> str:
        """On what machine and when, and how the size differs from print."""
        facts = ", ".join(f"{name} {value}" for name, value in sorted(self.machine.items()))
        seconds = sum(row["seconds"] for row in self.rows)
        return (
            f"{len(self.rows)} rows, {seconds:,.0f} s of work, {self.date}; {facts}. Differs from "
            f"print: {self.experiment.differs.get(self.size, 'no')}."
        )


def run_all(
    chosen: list[Experiment], size: str, out: Folder, *, n_jobs: int = 1,
    on_row: Callable[[int, int, str], None] | None = None, engine: str = "local",
) -> dict[str, str]:  # fmt: skip
    """Compute the rows that are missing, of all experiments at once; return what could not be run.

    Each is run at the size, or at the next smaller one that it has. What lacks data or a package is
    returned by id with what to provide, and the others go on.
    """
    found, tasks = {e.id: e for e in chosen}, []
    for e in chosen:
        have = {key for key, *_ in stored(e, out)}
        settings = e.settings(e.nearest(size))
        tasks += [(e.id, params) for params in settings if e.key(params) not in have]
    absent: dict[str, str] = {}
    for done, (name, outcome) in enumerate(compute(found, tasks, n_jobs, out, engine), 1):
        if isinstance(outcome, InputError):
            absent[name] = str(outcome)
        if on_row:
            on_row(done, len(tasks), name)
    return absent


def entries(chosen: list[Experiment], out: Folder) -> Iterator[Entry]:
    """Yield what the folder holds, in order; experiments without a complete size are left out."""
    for e in chosen:
        held: dict[str, Any] = {key: rest for key, *rest in stored(e, out)}
        for size in reversed(SIZES):
            keys = [e.key(params) for params in e.settings(size)] if size in e.grids else []
            if keys and all(key in held for key in keys):
                rows = [held[key][0] for key in keys]
                _, machine, date = held[keys[-1]]
                yield Entry(e, size, rows, e.check(rows), machine, date)
                break


def compare(
    chosen: list[Experiment], old: Folder, new: Folder
) -> Iterator[tuple[str, str, str, str]]:
    """Yield (id, claim, before, now) for every claim whose verdict or measurement changed."""
    for folder in (old, new):
        if not Path(folder).is_dir():
            raise InputError(f"{folder} is not a folder of rows that `overt reproduce` wrote")
    before, now = (
        {(e.experiment.id, f.claim): f"{f.verdict}: {f.measured} ({e.size})"
         for e in entries(chosen, folder) for f in e.findings}
        for folder in (old, new)
    )  # fmt: skip
    for key in dict.fromkeys([*before, *now]):
        if before.get(key) != now.get(key):
            yield *key, before.get(key, "absent"), now.get(key, "absent")


def write_page(
    chosen: list[Experiment], out: Folder, absent: dict[str, str], command: str = "{id} {size}"
) -> Path:
    """Write OUT/index.html: claims, pictures, numbers beside printed ones, verdicts, commands."""
    held = list(entries(chosen, out))
    page = Page(
        "The papers' figures and tables, recomputed",
        "A verdict is holds, fails or inconclusive, from an interval where chance has a part.",
    )
    page.section("All")
    summary = [(e.experiment.id, e.experiment.source, e.size, e.counts) for e in held]
    page.table(("id", "source", "size", "claims"), summary)
    for entry in held:
        e = entry.experiment
        page.section(e.source)
        page.text(f"{e.title}. Claim: {e.claim}.")
        page.figure(e.draw(entry.rows, entry.size), f"{e.source}, {entry.size} size")
        page.table(HEADER, entry.lines)
        page.code(command.format(id=e.id, size=entry.size))
        page.text(entry.where, note=True)
    if absent:
        page.section("Not run")
        page.table(("id", "what to provide"), list(absent.items()))
    return page.write(Path(out) / "index.html")


def markdown(chosen: list[Experiment], out: Folder) -> str:
    """Return the same page as Markdown; pictures are ID.png beside it."""
    text = [
        "# The record", "",
        "What came out when the papers' figures and tables were computed anew, at the largest size "
        "that was run. The rows are in this folder; `overt reproduce ID` makes new ones, and "
        "`overt reproduce compare` says what changed. A verdict is *holds*, *fails* or "
        "*inconclusive*, from an interval where chance has a part.", "",
    ]  # fmt: skip
    for entry in entries(chosen, out):
        e = entry.experiment
        text += [f"## {e.source}", "", f"`{e.id}`, {entry.size} size. {e.title}: {e.claim}.", ""]
        text += [f"![{e.source}]({e.id}.png)", "", _row(HEADER), _row(["---"] * 4)]
        text += [*map(_row, entry.lines), "", entry.where, ""]
    return "\n".join(text)


def _row(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def write_markdown(chosen: list[Experiment], out: Folder) -> Path:
    """Write OUT/index.md and the pictures beside it."""
    for entry in entries(chosen, out):
        figure = entry.experiment.draw(entry.rows, entry.size)
        write_figure(figure, Path(out) / f"{entry.experiment.id}.png", dpi=75)
    return write_whole(Path(out) / "index.md", markdown(chosen, out))
