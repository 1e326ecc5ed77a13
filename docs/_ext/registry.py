"""Directives that write what the library says about itself, so that pages cannot go stale.

`statements` lists every executable statement, `corrections` those that differ from print, with what
`overt verify` measures while the pages are built; `statement-files` says where each is checked,
`experiments` lists the figures, `papers` all items of the papers, and `command-line` shows the help
of every command.
"""

from __future__ import annotations

import csv
import inspect
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from docutils import nodes
from reference import documented
from source import link
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from threadpoolctl import threadpool_limits

import overt
from overt import experiments, theorems
from overt.theorems._latex import tex

PACKAGE = Path(overt.__file__).parent
PAPERS = (
    "Implicit bias of dropout",
    "Structured dropout",
    "Thesis",
    "One-way jumps",
    "overt",
    "Others",
)


@cache
def verdicts() -> dict[str, theorems.Verdict]:
    """Check every statement once per build."""
    with threadpool_limits(1):
        found = {verdict.id: verdict for verdict in theorems.verify()}
    failed = [verdict for verdict in found.values() if verdict.verdict != "holds"]
    if failed:
        raise ExtensionError(f"statements that do not hold: {failed}")
    return found


def _paper(verdict: theorems.Verdict) -> str:
    """Return the source that a statement names first."""
    source = verdict.source.lower()
    named = [paper for paper in PAPERS if paper.lower() in source]
    return min(named, key=lambda paper: source.index(paper.lower()), default="Others")


def _place(verdict: theorems.Verdict) -> str:
    """Return where in its source a statement stands."""
    return verdict.source.partition(", ")[2] or verdict.source


class Generated(SphinxDirective):
    """A directive whose page is written again when the package changes."""

    folder: ClassVar[str] = ""

    def depend(self) -> None:
        for path in (PACKAGE / self.folder).rglob("*.py"):
            self.env.note_dependency(str(path))


class Statements(Generated):
    """All statements, by source."""

    folder = "theorems"

    def run(self) -> list[nodes.Node]:
        self.depend()
        content: list[nodes.Node] = []
        for paper in PAPERS:
            chosen = [v for v in verdicts().values() if _paper(v) == paper]
            if not chosen:
                continue
            section = nodes.section(ids=[nodes.make_id(f"statements-{paper}")])
            section += nodes.title(text="New here" if paper == "overt" else paper)
            rows = [
                (
                    _checked(self, v.id),
                    [_stated(v.claim), *_formula(v), *_assumption(v)],
                    "" if paper == "overt" else _place(v),
                    f"{v.residual:.1e} ≤ {v.tolerance:.0e}" + (" *" if v.correction else ""),
                )
                for v in chosen
            ]
            header = ("id", "statement", "where", "residual")
            section += table(header, rows, (18, 52, 15, 15))
            content.append(section)
        return content


class StatementFiles(Generated):
    """Which file checks which statement."""

    folder = "theorems"

    def run(self) -> list[nodes.Node]:
        self.depend()
        files: dict[str, nodes.paragraph] = {}
        for statement in theorems.registered().values():
            path = statement.check.__code__.co_filename
            ids = files.setdefault(path, nodes.paragraph())
            ids += [nodes.Text(", ")] * bool(ids.children)
            ids += _checked(self, statement.id).children
        rows = [(_code(Path(path).name), ids) for path, ids in files.items()]
        return [table(("file", "statements"), rows, (20, 80))]


class Corrections(Generated):
    """The statements whose printed form does not hold, one section each."""

    folder = "theorems"

    def run(self) -> list[nodes.Node]:
        self.depend()
        content: list[nodes.Node] = []
        for paper in PAPERS:
            chosen = [v for v in verdicts().values() if v.correction and _paper(v) == paper]
            if not chosen:
                continue
            section = nodes.section(ids=[nodes.make_id(f"corrections-{paper}")])
            section += nodes.title(text=paper)
            rows = [
                (
                    [_text(_place(v)), _code(v.id)],
                    [_stated(v.claim), *_formula(v), *_assumption(v)],
                    _stated(v.correction or ""),
                    [
                        _text(f"right: {v.residual:.1e}"),
                        _text(f"as printed: {v.printed_residual:.2g}"),
                        _text(f"limit: {v.tolerance:.0e}"),
                        _text(v.detail),
                    ],
                )
                for v in chosen
            ]
            header = ("where", "what is right", "what is printed", "evidence")
            section += table(header, rows, (20, 28, 28, 24))
            content.append(section)
        return content


class Count(Generated):
    """One sentence: how many statements there are, and how many are corrected."""

    folder = "theorems"

    def run(self) -> list[nodes.Node]:
        self.depend()
        corrected = sum(v.correction is not None for v in verdicts().values())
        places = theorems.distinct(verdicts().values())
        return [
            _text(
                f"There are {len(verdicts())} executable statements; {corrected} of them, about "
                f"{places} places of the papers, differ from what is printed. All held when this "
                "page was built."
            )
        ]


class Experiments(Generated):
    """All figures and tables that can be reproduced."""

    folder = "experiments"

    def run(self) -> list[nodes.Node]:
        self.depend()
        chosen = [experiments.find(name) for name in experiments.IDS]
        rows = [(_code(e.id), e.source, e.claim) for e in chosen]
        return [table(("id", "source", "claim"), rows, (18, 30, 52))]


class Papers(Generated):
    """Every item of the papers with its status, from docs/record/papers.tsv."""

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir) / "record" / "papers.tsv"
        self.env.note_dependency(str(path))
        with path.open(encoding="utf-8") as file:
            items = list(csv.DictReader(file, delimiter="\t", restval=""))
        counts = Counter(item["status"] for item in items)
        summary = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        content: list[nodes.Node] = [_text(f"{len(items)} items: {summary}.")]
        for paper in dict.fromkeys(item["paper"] for item in items):
            section = nodes.section(ids=[nodes.make_id(f"papers-{paper}")])
            section += nodes.title(text=paper)
            rows = [
                (i["item"], i["what"], i["status"], self.checks(i["checks"]), i["note"])
                for i in items
                if i["paper"] == paper
            ]
            header = ("item", "what", "status", "check", "remark")
            section += table(header, rows, (14, 26, 10, 24, 26))
            content.append(section)
        return content

    def checks(self, names: str) -> list[nodes.Node]:
        """Return links to the checks: of a statement to its code, of a figure to its id."""
        known = theorems.registered()
        return [
            _checked(self, name) if name in known else _code(name)
            for name in filter(None, names.split(","))
        ]


class CommandLine(Generated):
    """The help of the command line and of each command."""

    folder = "cli"

    def run(self) -> list[nodes.Node]:
        self.depend()
        import typer

        from overt.cli import app

        content: list[nodes.Node] = [_literal("overt --help", _help())]
        for name in typer.main.get_command(app).commands:
            section = nodes.section(ids=[f"overt-{name}"])
            section += nodes.title("", "", nodes.literal(text=f"overt {name}"))
            section += _literal(f"overt {name} --help", _help(name))
            content.append(section)
        return content


class PublicNames(Generated):
    """The names of the package, each linked to the page that documents it."""

    def run(self) -> list[nodes.Node]:
        self.depend()
        rows = []
        for name in overt.__all__:
            value = getattr(overt, name)
            # The errors have no page of their own; that of the names describes them.
            target = documented(value) or f"overt.{name}"
            kind = "mod" if isinstance(value, ModuleType) else "obj"
            link = addnodes.pending_xref(
                "",
                nodes.literal(text=f"overt.{name}"),
                refdomain="py",
                reftype=kind,
                reftarget=target,
                refwarn=True,
            )
            first = (inspect.getdoc(value) or "").partition("\n\n")[0]
            first = first.replace("\n", " ").replace("`", "")
            rows.append((nodes.paragraph("", "", link), first))
        return [table(("name", "what it is"), rows, (34, 66))]


def _help(*command: str) -> str:
    code = "from overt.cli import main; main()"
    finished = subprocess.run(
        [sys.executable, "-c", code, *command, "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUTF8": "1", "TERM": "dumb"},
    )
    if finished.returncode:
        raise ExtensionError(f"overt {' '.join(command)} --help failed: {finished.stderr}")
    lines = (line.rstrip() for line in finished.stdout.splitlines())
    return "\n".join(lines).replace("Usage: -c", "Usage: overt").strip("\n")


def _literal(command: str, output: str) -> nodes.Node:
    block = nodes.literal_block(text=f"$ {command}\n{output}")
    block["language"] = "text"
    return block


def _formula(verdict: theorems.Verdict) -> list[nodes.Node]:
    tex = theorems.registered()[verdict.id].formula
    return [nodes.paragraph("", "", nodes.math(tex, tex), classes=["claim"])] if tex else []


def _assumption(verdict: theorems.Verdict) -> list[nodes.Node]:
    if verdict.assumes == "nothing":
        return []
    assumes = _stated(verdict.assumes).children
    return [nodes.paragraph("", "", nodes.emphasis(text="Assumes: "), *assumes)]


def _checked(directive: SphinxDirective, name: str) -> nodes.paragraph:
    """Return a statement's id, which leads to its check."""
    code = theorems.registered()[name].check.__code__
    there = link(directive.env.docname, name, code.co_filename, code.co_firstlineno)
    return nodes.paragraph("", "", there)


def _stated(text: str) -> nodes.paragraph:
    """Return a statement with its formulas set as formulas."""
    parts = tex(text).split("$")
    math = [nodes.math(text=p) if i % 2 else nodes.Text(p.replace("\\_", "_"))
            for i, p in enumerate(parts)]  # fmt: skip
    return nodes.paragraph("", "", *math)


def _text(text: str) -> nodes.paragraph:
    return nodes.paragraph(text=text)


def _code(text: str) -> nodes.paragraph:
    return nodes.paragraph("", "", nodes.literal(text=text))


Cell = str | nodes.Node | Sequence[nodes.Node]


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]], widths: Sequence[int]) -> Any:
    """Return a table with columns of these relative widths."""
    whole = nodes.table(classes=["generated", "colwidths-given"])
    group = nodes.tgroup(cols=len(header))
    whole += group
    group += [nodes.colspec(colwidth=width) for width in widths]
    head, body = nodes.thead(), nodes.tbody()
    head += _row([_text(name) for name in header])
    body += [_row([_nodes(cell) for cell in row]) for row in rows]
    group += [head, body]
    return whole


def _nodes(cell: Cell) -> Any:
    return _text(cell) if isinstance(cell, str) else cell


def _row(cells: Iterable[Any]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        entry = nodes.entry()
        entry += cell
        row += entry
    return row


def setup(app: Sphinx) -> dict[str, Any]:
    directives: dict[str, Callable[..., Any]] = {
        "statements": Statements,
        "corrections": Corrections,
        "statement-count": Count,
        "statement-files": StatementFiles,
        "experiments": Experiments,
        "papers": Papers,
        "command-line": CommandLine,
        "public-names": PublicNames,
    }
    for name, directive in directives.items():
        app.add_directive(name, directive)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
