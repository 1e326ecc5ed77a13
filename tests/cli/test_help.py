"""Every command as its help shows it: complete, in words, and with JSON for programs."""

import re

import pytest
import typer.main
from rich.text import Text
from typer.testing import CliRunner

from overt.cli import app

COMMANDS = typer.main.get_command(app).commands
WITHOUT_JSON = {"explore"}  # serves pages until Ctrl-C


def words(text):
    """Return text without frames, line breaks and markup."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def shown(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "300"})
    assert result.exit_code == 0
    return words(result.output)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_all_that_was_written(name):
    """Nothing in brackets is taken for markup and lost."""
    page = shown(name)
    command = COMMANDS[name]
    for text in (
        command.help,
        *(p.help for p in command.params if getattr(p, "help", None)),
    ):
        written = words(re.sub(r"\[/?bold\]", "", text))
        assert written in page, written


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_made_of_sentences(name):
    command = COMMANDS[name]
    first = command.help.split("\n")[0]
    assert first[0].isupper()
    assert first.endswith(".")
    for parameter in command.params:
        text = getattr(parameter, "help", None)
        assert text, f"{parameter.name} has no help"
        assert text.endswith(".")
        assert Text.from_markup(text).plain == text


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_in_the_help_is_a_command(name):
    """What follows "Try:" names options that exist."""
    known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    for example in re.findall(
        r"\[bold\]overt (.+?)\[/bold\]", COMMANDS[name].help, re.DOTALL
    ):
        assert example.split()[0] == name
        assert set(re.findall(r"(?<!\S)--[a-z-]+", example)) <= known


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_JSON))
def test_every_command_speaks_json(name):
    assert any("--json" in parameter.opts for parameter in COMMANDS[name].params)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["tuor"], "tour"),
        (["solve", "--widht", "3"], "--width"),
        (["verify", "path-nrm"], "path-norm"),
        (["reproduce", "dropout-fgi1"], "dropout-fig1"),
    ],
)
def test_a_typo_is_answered_with_what_was_meant(typed, meant):
    result = CliRunner().invoke(app, typed)
    assert result.exit_code != 0
    answer = result.output + str(result.exception)
    assert meant in answer
    assert len(answer) < 1000


@pytest.mark.parametrize("command", ["cite", "verify", "reproduce"])
def test_a_name_that_is_near_none_is_not_answered_with_all(command):
    result = CliRunner().invoke(app, [command, "zzzzzz"])
    assert "are known, such as" in str(result.exception)
    assert len(str(result.exception)) < 200
