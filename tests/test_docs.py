"""Everything shown with its output is run: docstrings, the README and the documentation pages."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

import overt
from overt import theorems
from overt.cli import main
from overt.cli.base import console

ROOT = Path(__file__).parents[1]
PACKAGE = Path(overt.__file__).parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts and page.exists()]
FENCE = re.compile(r"^(```+)(\w+)[^\n]*\n(.*?)^\1[ ]*$", re.DOTALL | re.MULTILINE)
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def name(path):
    return str(path.relative_to(ROOT))


def blocks(page, *languages):
    """Return (line number, text) of the page's fenced blocks in these languages."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start()) + 1, match[3])
        for match in FENCE.finditer(text)
        if match[2] in languages
    ]


def examples(page):
    return [(line, text) for line, text in blocks(page, "python", "pycon") if ">>>" in text]


def commands(page):
    """Return (line number, command, output) for each `$ overt ...` that is shown with output."""
    found = []
    for line, text in blocks(page, "console"):
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            if output.strip():
                found.append((line, command, output))
    return found


MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for folder in ("", "linear", "theorems")
    for path in (PACKAGE / folder).glob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module):
    outcome = doctest.testmod(importlib.import_module(module), optionflags=OPTIONS)
    assert outcome.attempted > 0
    assert outcome.failed == 0


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=name)
def test_examples_in_pages(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(theorems.base, "_registry", theorems.registered())
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=OPTIONS)
    shared: dict[str, object] = {}
    for line, text in examples(page):
        test = parser.get_doctest(text, shared, f"{name(page)}:{line}", str(page), line)
        runner.run(test, clear_globs=False)
        shared = test.globs
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name)
def test_commands_in_pages(page, tmp_path, monkeypatch, capsys):
    """The output of each command is compared word by word; `...` stands for anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "width", 100)
    for line, command, expected in commands(page):
        words = shlex.split(command)
        assert words[0] == "overt", f"{name(page)}:{line}: only overt commands show output"
        monkeypatch.setattr(sys, "argv", words)
        with contextlib.suppress(SystemExit):
            main()
        got = capsys.readouterr().out
        if not doctest.OutputChecker().check_output(expected, got, OPTIONS):
            pytest.fail(f"{name(page)}:{line}: {command} printed\n{got}")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_without_output_compiles(page):
    for line, text in blocks(page, "python"):
        if ">>>" not in text:
            compile(text, f"{name(page)}:{line}", "exec")


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "theory").glob("*.md")), ids=name)
def test_theory_names_statements_that_exist(page):
    named = re.findall(r"`overt verify ([a-z0-9\s-]+)`", page.read_text(encoding="utf-8"))
    assert set(" ".join(named).split()) <= theorems.registered().keys()
