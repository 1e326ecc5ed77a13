"""Everything shown is run: the examples of all docstrings, and all Python of README and docs.

A page is a script. Its ```python and ```pycon blocks run from top to bottom in one namespace and in
an empty folder: those with `>>>` as doctests, the others as they stand, and what they print is
compared with a ```text block that follows at once. What a reader has and a test has not (a model, a
file) is made by a comment that the page carries and nobody sees:

    <!-- setup
    model = torch.nn.Linear(3, 2)
    -->

A block that cannot run says why: ```python no-run: needs a cluster
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import re
import shlex
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import packages
import pytest
import typer

import overt
from overt.cli import app, main
from overt.cli.base import console
from overt.papers import items, records

ROOT = Path(__file__).parents[1]
# The changelog is history: what it names need not be there any more.
SKIPPED = {
    "CHANGELOG.md",
    "_build",
    "auto_examples",
    "auto_lectures",
    "auto_stories",
    "generated",
}
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if SKIPPED.isdisjoint(page.relative_to(ROOT).parts)]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=fence) *$"
    r"|^<!-- setup\n(?P<setup>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)[^)]*\)")
COMMAND = re.compile(r"\bovert ([a-z]+)\b((?: [^\n`#]*)?)")
LANGUAGES = {"python", "pycon", "console", "shell", "sh", "text", "toml", "setup"}
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
MOST_NOT_RUN = 3


def name(path):
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, or a hidden one that sets the page up."""

    page: Path
    line: int  # of the first line inside
    language: str
    note: str
    text: str
    adjacent: bool  # nothing but white space since the block before

    @property
    def python(self):
        return self.language in ("python", "pycon", "setup")

    def __str__(self):
        return f"{name(self.page)}:{self.line}"


def blocks(page):
    content, found, end = page.read_text(encoding="utf-8"), [], 0
    for match in BLOCK.finditer(content):
        adjacent = bool(found) and not content[end : match.start()].strip()
        line = content.count("\n", 0, match.start()) + 2
        language, _, note = (
            "setup" if match["info"] is None else match["info"]
        ).partition(" ")
        text = textwrap.dedent(match["setup"] or match["text"] or "")
        found.append(Block(page, line, language, note, text, adjacent))
        end = match.end()
    return found


@contextlib.contextmanager
def reported(where):
    """Turn what an example raises into a skip where an extra is missing, else a plain failure."""
    try:
        yield
    except doctest.DocTestFailure as failure:
        line = failure.test.lineno + failure.example.lineno + 1
        pytest.fail(
            f"{where}, line {line}:\n{failure.example.source}"
            f"expected:\n{failure.example.want}got:\n{failure.got}",
            pytrace=False,
        )
    except Exception as error:
        cause = (
            error.exc_info[1]
            if isinstance(error, doctest.UnexpectedException)
            else error
        )
        package = (getattr(cause, "name", None) or "").partition(".")[0]
        absent = isinstance(cause, ModuleNotFoundError) and package != "overt"
        if absent or isinstance(cause, overt.MissingExtraError):
            pytest.skip(f"{where}: {cause}")
        raise cause from None


def run_doctest(text, names, where, line):
    test = doctest.DocTestParser().get_doctest(text, {}, where, where, line)
    test.globs = names
    with reported(where):
        doctest.DebugRunner(optionflags=OPTIONS).run(test, clear_globs=False)
    return len(test.examples)


def run_script(block, names):
    """Execute a block in `names` and return what it printed; errors point at the page's lines."""
    code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
    with reported(str(block)), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)  # noqa: S102
    return printed.getvalue()


def same(expected, got):
    return doctest.OutputChecker().check_output(expected, got, OPTIONS)


def resolve(dotted):
    """Return what a dotted name stands for, importing modules on the way."""
    value, known = overt, packages.modules()
    for end in range(1, dotted.count(".") + 1):
        here = ".".join(dotted.split(".")[: end + 1])
        if here in known:
            importlib.import_module(here)
        value = getattr(value, here.rpartition(".")[2])
    return value


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder to work in, and a registry of statements that examples may add to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(records, "_registry", items())


MODULES = {
    name: module for name, module in packages.modules().items() if ">>>" in module.text
}


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module, elsewhere):
    ran = 0
    with reported(module):
        names = vars(importlib.import_module(module))
    for owner, text, line in MODULES[module].docstrings():
        if ">>>" in text:
            ran += run_doctest(text, dict(names), f"{module}.{owner}", line)
    assert ran == len(re.findall(r"^ *>>> ", MODULES[module].text, re.MULTILINE))


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.python for b in blocks(p))], ids=name
)
def test_python_in_pages(page, elsewhere):
    names, printed = {"__name__": "__main__"}, None
    for block in blocks(page):
        if block.note.startswith("no-run"):
            printed = None
        elif block.language == "text" and block.adjacent and printed:
            assert same(block.text, printed), (
                f"{block}: the block before printed\n{printed}"
            )
        elif block.python and ">>>" in block.text:
            run_doctest(block.text, names, name(page), block.line - 1)
            printed = None
        elif block.python:
            printed = run_script(block, names)


def commands(page):
    """Yield (block, command, output) for each command that is shown with output."""
    for block in blocks(page):
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            if block.language == "console" and output.strip():
                yield block, command, output


@pytest.mark.parametrize(
    "page", [page for page in PAGES if [*commands(page)]], ids=name
)
def test_commands_in_pages(page, elsewhere, monkeypatch, capsys):
    """The output of each command is compared word by word; `...` stands for anything."""
    monkeypatch.setattr(console, "width", 100)
    for block, command, expected in commands(page):
        words = shlex.split(command)
        assert words[0] == "overt", f"{block}: only overt commands show output"
        monkeypatch.setattr(sys, "argv", words)
        with contextlib.suppress(SystemExit):
            main()
        got = capsys.readouterr().out
        assert same(expected, got), f"{block}: {command} printed\n{got}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_have_the_options_that_pages_name(page):
    commands = typer.main.get_command(app).commands
    for command, rest in COMMAND.findall(page.read_text(encoding="utf-8")):
        if command in commands:
            known = {
                o
                for p in commands[command].params
                for o in (*p.opts, *p.secondary_opts)
            }
            named = {
                word.partition("=")[0] for word in rest.split() if word.startswith("--")
            }
            assert named <= known | {"--help"}, (
                f"overt {command} has no {named - known}"
            )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_in_pages_exist(page):
    for dotted in sorted(
        set(re.findall(r"\bovert(?:\.\w+)+", page.read_text(encoding="utf-8")))
    ):
        with reported(f"{name(page)}: {dotted}"):
            resolve(dotted)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_that_hold_what_they_name(page):
    """[`Entries.split`](../src/overt/entries/entries.py) needs file, class and method."""
    missing = []
    for text, target in LINK.findall(page.read_text(encoding="utf-8")):
        path = page.parent / target
        if not path.is_file():
            missing.append(target)
        elif path.suffix == ".py":
            content = path.read_text(encoding="utf-8")
            for own in re.findall(r"\w+", " ".join(re.findall("`([^`]+)`", text))):
                defined = re.search(
                    rf"(def|class) {own}\b|^ *{own}\b.*=", content, re.MULTILINE
                )
                if own not in (path.stem, path.parent.name) and not defined:
                    missing.append(f"{own} in {target}")
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ARCHITECTURE], ids=name
)
def test_paths_that_pages_name_exist(page):
    places = [ROOT, ROOT / "src", ROOT / "src" / "overt"]
    known = {path.name for place in places for path in place.iterdir() if path.is_dir()}
    named = re.findall(r"`([\w.]+/[\w./]*)`", page.read_text(encoding="utf-8"))
    named += re.findall(r"`([\w/]+\.(?:py|md|txt))`", page.read_text(encoding="utf-8"))
    gone = [
        path
        for path in named
        if path.partition("/")[0] in known or path.endswith((".py", ".md", ".txt"))
        if not any((place / path).exists() for place in places)
    ]
    assert not gone, "\n".join(gone)


def test_blocks_are_of_a_known_kind():
    """A block in a language that nobody runs, or with a misspelt note, would never be run."""
    for page in PAGES:
        content = page.read_text(encoding="utf-8")
        assert len(re.findall(r"^ *(```|<!-- setup)", content, re.MULTILINE)) == sum(
            1 if block.language == "setup" else 2 for block in blocks(page)
        ), f"{name(page)}: a fence that is not closed, or closed by another"
        for block in blocks(page):
            known = block.language in LANGUAGES or block.language.startswith("{")
            assert known, f"{block}: nobody runs {block.language!r}"
            assert not (block.language.startswith("{code") and "py" in block.note), (
                f"{block}"
            )
            noted = block.note and block.language in ("python", "pycon")
            assert not noted or re.match(r"no-run: \w", block.note), (
                f"{block}: {block.note}"
            )


def test_nearly_all_blocks_are_run():
    left_out = [
        f"{b}: {b.note}"
        for p in PAGES
        for b in blocks(p)
        if b.note.startswith("no-run")
    ]
    assert len(left_out) <= MOST_NOT_RUN, "\n".join(left_out)


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "theory").glob("*.md")), ids=name
)
def test_theory_names_statements_that_exist(page):
    named = re.findall(
        r"`overt verify ([a-z0-9\s-]+)`", page.read_text(encoding="utf-8")
    )
    assert set(" ".join(named).split()) <= items().keys()
