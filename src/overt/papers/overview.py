"""Labels and pages of all items from a folder of rows and verdicts, and comparison of folders.

A label is computed from stored rows and verdicts alone, so that no page can say more than was
measured.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from overt._check import InputError
from overt._figures import write_figure
from overt._html import Page
from overt._io import reading, write_whole
from overt._running import thread_count
from overt.papers.figures import SIZES, VERDICTS, Figure, Finding, Table, together
from overt.papers.records import UNCHECKED, Item
from overt.papers.rows import Folder, Stored, commit, read_rows
from overt.papers.runner import compute
from overt.papers.verification import Verdict

HEADER = ("claim", "verdict", "measured here", "printed")

ORDER = (
    "error",
    "fails",
    "no power",
    "not run",
    "not run at this size",
    "inconclusive",
    "holds",
)
"""Verdicts of an item, worst first; of several that decide it the worst counts."""

VERDICT_FILE = "verdicts.json"


@dataclass(frozen=True)
class Measured:
    """The stored rows of one figure at the largest size that is complete."""

    figure: Figure
    size: str
    stored: list[Stored]
    findings: list[Finding]
    begun: str = ""  # what is stored of a larger size, and what is missing

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows in the order of the settings."""
        return [stored.row for stored in self.stored]

    @property
    def counts(self) -> str:
        """How many claims hold, fail, or are undecided."""
        found = Counter(f.verdict for f in self.findings)
        return ", ".join(f"{found[name]} {name}" for name in VERDICTS if found[name])

    @property
    def lines(self) -> list[tuple[str, str, str, str]]:
        """The findings as lines of a table."""
        return [(f.claim, f.verdict, f.measured, f.reported) for f in self.findings]

    @property
    def where(self) -> str:
        """On what machine, when and by which code, and how the size differs from the paper's."""
        last = self.stored[-1]
        facts = ", ".join(
            f"{name} {value}" for name, value in sorted(last.machine.items())
        )
        seconds = sum(row["seconds"] for row in self.rows)
        commits = ", ".join(
            sorted({row.commit or "not recorded" for row in self.stored})
        )
        files = {name: value for row in self.stored for name, value in row.data.items()}
        data = "".join(
            f" Data: {name} (sha256 {value})." for name, value in sorted(files.items())
        )
        return (
            f"{len(self.stored)} rows, {seconds:,.0f} s of work, {last.date}; commit {commits}; "
            f"{facts}.{data} Differs from the paper: {self.figure.differs.get(self.size, 'no')}."
            f"{self.begun}"
        )


@dataclass(frozen=True)
class StoredVerdict:
    """The verdicts of one statement at several seeds: the worst, and the worst residuals."""

    verdict: str
    seeds: int
    date: str
    commit: str
    residual: float | None
    tolerance: float | None
    printed: float | None
    null: float | None
    detail: str


@dataclass(frozen=True)
class Label:
    """The label of an item: its verdict, at which size and when."""

    verdict: str
    size: str = ""
    date: str = ""

    def __str__(self) -> str:
        known = [part for part in (self.size, self.date) if part]
        if not known:
            return self.verdict
        return f"{self.verdict} ({', '.join(known)})"


def figures_of(items: Iterable[Item]) -> list[Figure]:
    """Return the figures among the items."""
    return [item.figure for item in items if item.figure is not None]


def run_all(
    chosen: list[Figure],
    size: str,
    out: Folder,
    *,
    n_jobs: int = 1,
    on_row: Callable[[int, int, str], None] | None = None,
) -> dict[str, str]:
    """Compute the rows that are missing, of all figures at once; return what could not be run.

    Each is run at the size, or at the next smaller one that it has. What lacks data or a package is
    returned by id with what to provide, and the others continue.
    """
    found = {figure.id: figure for figure in chosen}
    tasks = []
    for figure in chosen:
        have = {stored.key for stored in read_rows(figure, out)}
        settings = figure.settings(figure.nearest(size))
        tasks += [
            (figure.id, params) for params in settings if figure.key(params) not in have
        ]
    absent: dict[str, str] = {}
    for done, (name, outcome) in enumerate(
        compute(found, tasks, thread_count(n_jobs), out), 1
    ):
        if isinstance(outcome, InputError):
            absent[name] = str(outcome)
        if on_row:
            on_row(done, len(tasks), name)
    return absent


def measured(chosen: Iterable[Figure], folder: Folder) -> Iterator[Measured]:
    """Yield what the folder holds, in order; figures without a complete size are left out."""
    for figure in chosen:
        stored = {row.key: row for row in read_rows(figure, folder)}
        begun = ""
        for size in reversed(SIZES):
            settings = figure.settings(size) if size in figure.sizes else ()
            keys = [figure.key(params) for params in settings]
            found = [stored[key] for key in keys if key in stored]
            if found and len(found) == len(keys):
                findings = figure.findings([one.row for one in found])
                yield Measured(figure, size, found, findings, begun)
                break
            if found:
                begun += (
                    f" Of the {size} size {len(found)} of {len(keys)} rows are stored."
                )


def summarize(verdicts: Iterable[Verdict], date: str) -> dict[str, StoredVerdict]:
    """Return the worst verdict of each statement over all seeds that are given."""
    by_id: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_id.setdefault(verdict.id, []).append(verdict)
    return {name: _worst(found, date) for name, found in by_id.items()}


def _worst(found: list[Verdict], date: str) -> StoredVerdict:
    worst = min(found, key=lambda verdict: ORDER.index(verdict.verdict))

    def extreme(choose: Callable[[list[float]], float], name: str) -> float | None:
        values = [getattr(verdict, name) for verdict in found]
        known = [value for value in values if value is not None]
        return choose(known) if known else None

    return StoredVerdict(
        verdict=worst.verdict,
        seeds=len(found),
        date=date,
        commit=commit(),
        residual=extreme(max, "residual"),
        tolerance=worst.tolerance,
        printed=extreme(min, "printed_residual"),
        null=extreme(min, "null_residual"),
        detail=worst.detail,
    )


def write_verdicts(found: Mapping[str, StoredVerdict], folder: Folder) -> Path:
    """Write the verdicts of statements as JSON, by id."""
    verdicts = {name: asdict(one) for name, one in found.items()}
    text = json.dumps(verdicts, indent=1)
    return write_whole(Path(folder) / VERDICT_FILE, text + "\n")


def read_verdicts(folder: Folder) -> dict[str, StoredVerdict]:
    """Return the stored verdicts of statements; none if the folder has no such file."""
    path = Path(folder) / VERDICT_FILE
    if not path.exists():
        return {}
    with reading(path, "cannot be read as verdicts"):
        return {
            name: StoredVerdict(**one)
            for name, one in json.loads(path.read_bytes()).items()
        }


def labels(items: Mapping[str, Item], folder: Folder) -> dict[str, Label]:
    """Return the label of each item from the verdicts and rows that the folder holds.

    A figure is judged at the paper's size only: at any other it is "not run at this size". An item
    that others decide has the worst of their labels; if nothing decides it, its label is how it
    is recorded.
    """
    statements = read_verdicts(folder)
    figures = {
        found.figure.id: found for found in measured(figures_of(items.values()), folder)
    }

    def own(item: Item) -> Label | None:
        if item.check:
            found = statements.get(item.id)
            return (
                Label(found.verdict, f"{found.seeds} seeds", found.date)
                if found
                else Label("not run")
            )
        if item.figure:
            return _figure_label(figures.get(item.id))
        return None

    def label(item: Item) -> Label:
        if item.how in UNCHECKED:
            return Label(item.how)
        others = [own(items[name]) for name in item.by]
        deciding = [one for one in (own(item), *others) if one is not None]
        return min(deciding, key=lambda one: ORDER.index(one.verdict))

    return {name: label(item) for name, item in items.items()}


def _figure_label(found: Measured | None) -> Label:
    if found is None:
        return Label("not run")
    if found.size != "paper":
        return Label(
            "not run at this size", f"only {found.size}", found.stored[-1].date
        )
    verdict = together(*(f.verdict for f in found.findings))
    size = found.figure.size_name("paper")
    date = found.stored[-1].date
    return Label(verdict, size, date)


def write_page(
    chosen: list[Figure],
    out: Folder,
    absent: dict[str, str],
    command: str = "{id} {size}",
) -> Path:
    """Write OUT/index.html: claims, pictures, numbers beside printed ones, verdicts, commands."""
    held = list(measured(chosen, out))
    page = Page(
        "The papers' figures and tables, recomputed",
        "A verdict is holds, fails or inconclusive, from an interval where chance has a part.",
    )
    page.section("All")
    summary = [
        (found.figure.id, found.figure.source, found.size, found.counts)
        for found in held
    ]
    page.table(("id", "source", "size", "claims"), summary)
    for found in held:
        figure = found.figure
        page.section(figure.source)
        page.text(f"{figure.title}. Claim: {figure.claim}.")
        page.figure(
            figure.draw(found.rows, found.size),
            f"{figure.source}, {figure.size_name(found.size)} size",
        )
        page.table(HEADER, found.lines)
        page.code(command.format(id=figure.id, size=found.size))
        page.text(found.where, note=True)
    if absent:
        page.section("Not run")
        page.table(("id", "what to provide"), list(absent.items()))
    return page.write(Path(out) / "index.html")


def markdown(chosen: list[Figure], out: Folder) -> str:
    """Return the same page as Markdown; pictures are ID.png beside it."""
    text = [
        "# Figures and tables, recomputed",
        "",
        "Our reproduction of every figure and table, at the largest size that was run. "
        "`overt reproduce ID` computes new rows. "
        "A verdict is *holds*, *fails* or *inconclusive*, from an interval where chance has a "
        "part.",
        "",
    ]
    for found in measured(chosen, out):
        figure = found.figure
        size = figure.size_name(found.size)
        text += [
            f"## {figure.source}\n",
            f"`{figure.id}`, {size} size. {figure.title}: {figure.claim}.\n",
            f"![{figure.source}]({figure.id}.png)\n",
        ]
        tables: list[Table] = [(HEADER, found.lines)]
        if figure.table:
            tables.append(figure.table(found.rows))
        for header, lines in tables:
            rows = (header, ["---"] * len(header), *lines)
            text += [*map(_row, rows), ""]
        text += [found.where, ""]
    return "\n".join(text)


def _row(cells: Any) -> str:
    shown = [str(cell).replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(shown)} |"


def write_markdown(chosen: list[Figure], out: Folder) -> Path:
    """Write OUT/index.md and the pictures beside it."""
    from PIL import Image

    for found in measured(chosen, out):
        picture = found.figure.draw(found.rows, found.size)
        path = write_figure(picture, Path(out) / f"{found.figure.id}.png", dpi=200)
        # 256 colors are enough for a diagram, at a third of the bytes.
        image = Image.open(path).convert("RGB")
        image.quantize(256).save(path, optimize=True)
    return write_whole(Path(out) / "index.md", markdown(chosen, out))
