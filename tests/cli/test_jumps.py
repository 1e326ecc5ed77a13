"""`overt jumps`: tables, files and JSON."""

import json

from typer.testing import CliRunner

from overt import InputError


def command(*arguments):
    import overt.cli.jumps  # noqa: F401  (registers its command)
    from overt.cli.base import app

    return CliRunner().invoke(app, ["jumps", *map(str, arguments)])


SMALL = ("--width", 10, "--seeds", 3, "--noisy-steps", 300, "--quiet-steps", 100)


def test_command_prints_tables_and_writes_files(tmp_path):
    out, picture = tmp_path / "runs.npz", tmp_path / "jumps.png"
    result = command(*SMALL, "--out", out, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert "of 3 runs jumped" in result.output
    assert "overestimating" in result.output
    assert out.exists()
    assert picture.stat().st_size > 1000


def test_command_prints_json():
    result = command(*SMALL, "--json")
    found = json.loads(result.output)
    assert len(found["jump_step"]) == 3
    assert [m["rank"] for m in found["minima"]] == [0, 1, 2]
    assert len(found["schedule"]["phases"]) == 3


def test_command_refuses_a_strange_file(tmp_path):
    result = command(*SMALL, "--out", tmp_path / "runs.csv")
    assert isinstance(result.exception, InputError)
