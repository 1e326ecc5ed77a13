"""overt compress as a user meets it, and the statements on compression."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import overt.cli.compress  # noqa: F401  (registers the command)
from overt.cli.base import app

NET = """
import torch
from torch import nn

def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 6)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x, y=(x[:, :3].argmax(1)))
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 32),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(32, 3),
    )
    torch.save(net.state_dict(), tmp_path / "w.pt")
    return tmp_path


def command(folder, *arguments):
    given = [
        "compress",
        f"{folder / 'net.py'}:build_model",
        "--data",
        str(folder / "x.npz"),
    ]
    return CliRunner().invoke(app, [*given, "--out", str(folder / "out"), *arguments])


@pytest.mark.parametrize("by", ["flow", "spectrum"])
def test_the_files_load_without_overt(folder, by):
    options = (
        "--by",
        by,
        "--weights",
        str(folder / "w.pt"),
        "--keep",
        "0.5",
    )
    shown = command(folder, *options, "--json")
    assert shown.exit_code == 0, shown.output
    report = json.loads(shown.output)
    stored = json.loads((folder / "out" / "compress.json").read_text())
    assert stored.pop("checksum")
    assert report == stored
    assert report["after"]["parameters"] < report["before"]["parameters"]
    code = (
        "import sys; sys.path.insert(0, '.'); sys.modules['overt'] = None\n"
        "from load import load; import torch; m = load()\n"
        "print(sum(p.numel() for p in m.parameters()), m(torch.ones(1, 6)).sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder / "out",
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) == report["after"]["parameters"]


def test_the_table_names_what_changed_and_what_did_not(folder):
    shown = command(folder)
    assert shown.exit_code == 0, shown.output
    for word in ("parameters", "units 32 -> 16", "returns", "load.py", "accuracy"):
        assert word in shown.output
    named = command(folder, "--keep", "0=0.25")
    assert "units 32 -> 8" in named.output
    assert "nothing could" in command(folder, "--keep", "1").output


def test_the_report_is_on_the_holdout(folder):
    rng = np.random.default_rng(1)
    np.savez(
        folder / "other.npz", x=rng.standard_normal((50, 6)), y=np.zeros(50, dtype=int)
    )
    given = ("--weights", str(folder / "w.pt"), "--by", "flow", "--json")
    one, other = (
        json.loads(command(folder, *given, *more).output)["before"]["accuracy"]
        for more in ((), ("--holdout", str(folder / "other.npz")))
    )
    assert one != other
    assert 50 * other == pytest.approx(round(50 * other))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--keep", "half"), "LAYER=SHARE"),
        (("--keep", "1.5"), "(0, 1]"),
        (("--keep", "9=.5"), "keep must name layers"),
        (("--by", "luck"), "by must be one of"),
        (("--weights", "missing.pt"), "weights must name a file"),
    ],
)
def test_mistakes_end_with_one_sentence(folder, arguments, message):
    shown = command(folder, *arguments)
    assert shown.exit_code != 0
    assert message in str(shown.exception)


def test_loading_program_names_its_file(folder):
    command(folder)
    spec = importlib.util.spec_from_file_location("load", folder / "out" / "load.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.load()[0].out_features == 16
