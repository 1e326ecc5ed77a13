"""Directives that write what the library says about itself, so that pages cannot go stale.

`statements` lists every executable statement, `corrections` those that correct a paper, with what
`overt verify` measures while the pages are built; `statement-files` says where each is checked,
`figures` lists the figures, `papers` all items of the papers with labels computed from docs/record,
`proofs` prints the theorems of our own with their proofs, `open-questions` what the papers leave
open, and `command-line` shows the help of every command.
"""

from __future__ import annotations

import inspect
import os
import re
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
from overt.papers import PAPERS, Item, Verdict, items, verify
from overt.papers.overview import figures_of, labels
from overt.papers.records import ANSWERS

PACKAGE = Path(overt.__file__).parent


@cache
def verdicts() -> dict[str, Verdict]:
    """Check every statement once per build."""
    with threadpool_limits(1):
        found = {verdict.id: verdict for verdict in verify()}
    failed = [verdict for verdict in found.values() if verdict.verdict != "holds"]
    if failed:
        raise ExtensionError(f"statements that do not hold: {failed}")
    return found


def _checked_items(paper: str) -> list[tuple[Item, Verdict]]:
    """Return the statements of a paper with their verdicts."""
    found = [item for item in items().values() if item.paper == paper and item.check]
    return [(item, verdicts()[item.id]) for item in found]


class Generated(SphinxDirective):
    """A directive whose page is written again when the package changes."""

    folder: ClassVar[str] = ""

    def depend(self) -> None:
        for path in (PACKAGE / self.folder).rglob("*"):
            if path.suffix in (".py", ".toml"):
                self.env.note_dependency(str(path))


class Statements(Generated):
    """All statements, by paper."""

    folder = "papers"

    def run(self) -> list[nodes.Node]:
        self.depend()
        content: list[nodes.Node] = []
        for paper, about in PAPERS.items():
            section = nodes.section(ids=[nodes.make_id(f"statements-{paper}")])
            section += nodes.title(text=about.name)
            rows = [
                (
                    _checked(self, item),
                    [*_stated(item.tex or item.claim), *_assumption(item)],
                    item.label,
                    f"{v.residual:.1e} ≤ {v.tolerance:.0e}"
                    + (" *" if item.printed else ""),
                )
                for item, v in _checked_items(paper)
            ]
            header = ("id", "statement", "where", "residual")
            section += table(header, rows, (18, 52, 15, 15))
            content.append(section)
        return content


class Proofs(Generated):
    """The theorems that are in no paper, each with its proof."""

    folder = "papers"

    def run(self) -> list[nodes.Node]:
        self.depend()
        content: list[nodes.Node] = []
        for item in items().values():
            if item.proof:
                section = nodes.section(ids=[nodes.make_id(f"proof-{item.id}")])
                section += nodes.title(text=item.title)
                section += [*_stated(item.tex or item.claim), *_assumption(item)]
                # Emphasis in TeX is the lead of a step.
                proof = re.sub(r"\\emph\{([^}]*)\}", r"\1", item.proof)
                section += _stated(f"Proof. {proof} ∎")
                section += _checked(self, item)
                content.append(section)
        return content


class StatementFiles(Generated):
    """Which file checks which statement."""

    folder = "papers"

    def run(self) -> list[nodes.Node]:
        self.depend()
        files: dict[str, nodes.paragraph] = {}
        for item in items().values():
            if item.check is None:
                continue
            ids = files.setdefault(item.module, nodes.paragraph())
            ids += [nodes.Text(", ")] * bool(ids.children)
            ids += _checked(self, item).children
        rows = [
            (_code(module.removeprefix("overt.papers.")), ids)
            for module, ids in files.items()
        ]
        return [table(("module", "statements"), rows, (24, 76))]


class Corrections(Generated):
    """The statements whose printed form does not hold, one section each."""

    folder = "papers"

    def run(self) -> list[nodes.Node]:
        self.depend()
        content: list[nodes.Node] = []
        for paper, about in PAPERS.items():
            chosen = [(item, v) for item, v in _checked_items(paper) if item.printed]
            if not chosen:
                continue
            section = nodes.section(ids=[nodes.make_id(f"corrections-{paper}")])
            section += nodes.title(text=about.name)
            rows = [
                (
                    [_text(item.label), _code(item.id)],
                    [*_stated(item.tex or item.claim), *_assumption(item)],
                    _text(item.printed),
                    [
                        _text(f"right: {v.residual:.1e}"),
                        *_printed_residual(v),
                        _text(f"limit: {v.tolerance:.0e}"),
                        _text(v.detail),
                    ],
                )
                for item, v in chosen
            ]
            header = ("where", "what is right", "what is printed", "evidence")
            section += table(header, rows, (20, 28, 28, 24))
            content.append(section)
        return content


def _printed_residual(verdict: Verdict) -> list[nodes.Node]:
    if verdict.printed_residual is None:
        return []
    return [_text(f"as printed: {verdict.printed_residual:.2g}")]


class Count(Generated):
    """One sentence: how many statements there are, and how many are corrected."""

    folder = "papers"

    def run(self) -> list[nodes.Node]:
        self.depend()
        corrected = sum(bool(items()[name].printed) for name in verdicts())
        return [
            _text(
                f"{len(verdicts())} statements can be run. {corrected} of them correct the papers. "
                "All hold as of the build of this page."
            )
        ]


class Figures(Generated):
    """All figures and tables that can be reproduced."""

    folder = "papers"

    def run(self) -> list[nodes.Node]:
        self.depend()
        rows = [(_code(f.id), f.source, f.claim) for f in figures_of(items().values())]
        return [table(("id", "source", "claim"), rows, (18, 30, 52))]


class Papers(Generated):
    """Every item of the papers with the label that docs/record supports."""

    folder = "papers"

    def run(self) -> list[nodes.Node]:
        self.depend()
        record = Path(self.env.srcdir) / "record"
        for path in (*record.glob("*.jsonl"), *record.glob("*.json")):
            self.env.note_dependency(str(path))
        known = items()
        found = labels(known, record)
        counts = Counter(label.verdict for label in found.values())
        summary = ", ".join(
            f"{count} {verdict}" for verdict, count in counts.most_common()
        )
        content: list[nodes.Node] = [_text(f"{len(known)} items: {summary}.")]
        for paper, about in PAPERS.items():
            section = nodes.section(ids=[nodes.make_id(f"papers-{paper}")])
            section += nodes.title(text=about.name)
            rows = [
                (
                    item.label or item.id,
                    item.title,
                    str(found[item.id]) + (", corrected" if item.printed else ""),
                    self.checks(item),
                    _remark(item),
                )
                for item in known.values()
                if item.paper == paper
            ]
            header = ("item", "what", "label", "check", "remark")
            section += table(header, rows, (14, 22, 16, 22, 26))
            content.append(section)
        return content

    def checks(self, item: Item) -> list[nodes.Node]:
        """Return links to the checks: of a statement to its code, of a figure to its id."""
        own = [item.id] if item.check or item.figure else []
        deciding = [items()[name] for name in (*own, *item.by)]
        return [_checked(self, one) if one.check else _code(one.id) for one in deciding]


class OpenQuestions(Papers):
    """The papers' open questions with their answers, those without one first."""

    def run(self) -> list[nodes.Node]:
        self.depend()
        asked = [item for item in items().values() if item.answer]
        content: list[nodes.Node] = []
        for answer in reversed(ANSWERS):
            chosen = [item for item in asked if item.answer == answer]
            section = nodes.section(ids=[nodes.make_id(f"questions-{answer}")])
            section += nodes.title(text=f"{answer.capitalize()}: {len(chosen)}")
            rows = [
                (
                    [
                        _text(item.title),
                        nodes.paragraph("", "", nodes.emphasis(text=item.section)),
                    ],
                    item.claim if item.claim != item.title else "",
                    self.checks(item),
                    item.open,
                )
                for item in chosen
            ]
            header = ("question", "what is known", "check", "what remains")
            section += table(header, rows, (32, 32, 18, 18))
            content.append(section)
        return content


def _remark(item: Item) -> list[nodes.Node]:
    remarks = {"In print: ": item.printed, "Open: ": item.open}
    return [_text(name + text) for name, text in remarks.items() if text]


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
            # The errors have no page; the page of names describes them.
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
        raise ExtensionError(
            f"overt {' '.join(command)} --help failed: {finished.stderr}"
        )
    lines = (line.rstrip() for line in finished.stdout.splitlines())
    return "\n".join(lines).replace("Usage: -c", "Usage: overt").strip("\n")


def _literal(command: str, output: str) -> nodes.Node:
    block = nodes.literal_block(text=f"$ {command}\n{output}")
    block["language"] = "text"
    return block


def _assumption(item: Item) -> list[nodes.Node]:
    if not item.assumes:
        return []
    return [
        nodes.paragraph(
            "", "", nodes.emphasis(text="Assumes: "), nodes.Text(item.assumes)
        )
    ]


def _checked(directive: SphinxDirective, item: Item) -> nodes.paragraph:
    """Return a statement's id, which leads to its check."""
    code = item.check.__code__
    there = link(directive.env.docname, item.id, code.co_filename, code.co_firstlineno)
    return nodes.paragraph("", "", there)


def _stated(text: str) -> list[nodes.Node]:
    r"""Return a statement with its formulas, between dollars or \[ and \], set as formulas."""
    prose, *displayed = re.split(r"\\\[(.*?)\\\]", text)
    parts = prose.split("$")
    inline = [
        nodes.math(text=part) if number % 2 else nodes.Text(part.replace("\\_", "_"))
        for number, part in enumerate(parts)
    ]
    formulas = [part for part in displayed if part.strip()]
    below = [
        nodes.paragraph("", "", nodes.math(f, f), classes=["claim"]) for f in formulas
    ]
    return [nodes.paragraph("", "", *inline), *below]


def _text(text: str) -> nodes.paragraph:
    return nodes.paragraph(text=text)


def _code(text: str) -> nodes.paragraph:
    return nodes.paragraph("", "", nodes.literal(text=text))


Cell = str | nodes.Node | Sequence[nodes.Node]


def table(
    header: Sequence[str], rows: Iterable[Sequence[Cell]], widths: Sequence[int]
) -> Any:
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
        "figures": Figures,
        "papers": Papers,
        "open-questions": OpenQuestions,
        "proofs": Proofs,
        "command-line": CommandLine,
        "public-names": PublicNames,
    }
    for name, directive in directives.items():
        app.add_directive(name, directive)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
