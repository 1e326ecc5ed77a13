"""Every command: the keys of its JSON are those of the page, and mistakes end as the page says."""

import json
import re
import sys
import warnings
from pathlib import Path

import pytest
from fuzz.commands import LINES, prepare
from typer.testing import CliRunner

from overt.cli import app, main

PAGE = Path(__file__).parents[2] / "docs/reference/command_line.md"
OTHERS = {
    "impute": "impute table.csv --out filled.csv",
    "cite": "cite",
    "certify with proof": "certify M.npy U.npy V.npy --rigorous",
    "list of figures": "reproduce --list",
}
COMMANDS = {**LINES, **OTHERS}
REPORTS = {"audit", "compress", "attack", "evaluate", "certify"}
"""Commands whose keys the page does not list: they are the fields of a documented class."""


def documented(command: str) -> set[str]:
    """Return the keys that the page lists for a command, in any of its forms."""
    row = re.search(rf"^\| `{command}` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return set(re.findall(r"`([\w@]+)`", row[1])) if row else set()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("commands")
    prepare(made)
    lines = ["a,b", *(f"{i},{2 * i + i % 3}" for i in range(30)), "31,"]
    (made / "table.csv").write_text("\n".join(lines))
    return made


def run(folder, monkeypatch, *words):
    monkeypatch.chdir(folder)
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"reproduce"}))
def test_json_has_the_documented_keys(folder, monkeypatch, name):
    words = COMMANDS[name].split()
    result = run(folder, monkeypatch, *words, "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    found = json.loads(result.stdout)
    keys = set().union(*found) if isinstance(found, list) else set(found)
    assert keys
    if words[0] not in REPORTS and words[0] != "verify":
        assert keys <= documented(words[0])
    if words[0] == "verify":
        assert documented("verify") <= keys


@pytest.mark.parametrize("name", sorted(set(LINES) - {"jumps", "verify"}))
def test_a_missing_file_is_one_sentence_and_code_2(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)  # where nothing is
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(sys, "argv", ["overt", *LINES[name].split()])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


@pytest.mark.parametrize("name", sorted(LINES))
def test_an_unknown_option_is_code_2_and_names_the_nearest(folder, monkeypatch, name):
    words = LINES[name].split()
    options = [word for word in words if word.startswith("--") and len(word) > 5]
    if not options:
        pytest.skip("no option to misspell")
    wrong = options[0][:-1] + "q"
    result = run(folder, monkeypatch, *(wrong if w == options[0] else w for w in words))
    assert result.exit_code == 2
    assert options[0] in result.output
