"""The page of a record, made from its rows alone: one HTML file, or Markdown with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overt._files import write_whole
from overt._html import Page
from overt.experiments.base import Experiment
from overt.experiments.record import Entry, Folder, entries

HEADER = ("claim", "verdict", "measured here", "printed")


def _lines(entry: Entry) -> list[tuple[str, str, str, str]]:
    return [(f.claim, f.verdict, f.measured, f.reported) for f in entry.findings]


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
        page.table(HEADER, _lines(entry))
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
        text += [*map(_row, _lines(entry)), "", entry.where, ""]
    return "\n".join(text)


def _row(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def write_markdown(chosen: list[Experiment], out: Folder) -> Path:
    """Write OUT/index.md and the pictures beside it."""
    for entry in entries(chosen, out):
        figure = entry.experiment.draw(entry.rows, entry.size)
        figure.savefig(Path(out) / f"{entry.experiment.id}.png", dpi=75, bbox_inches="tight")
    return write_whole(Path(out) / "index.md", markdown(chosen, out))
