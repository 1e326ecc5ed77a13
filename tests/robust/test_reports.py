"""Statements, the tour's chapter and the command."""

import json

import numpy as np
import pytest
from robust_cases import blobs
from typer.testing import CliRunner

import overt.theorems.robust as statements
from overt import InputError
from overt._html import Page
from overt.cli.base import app
from overt.theorems.base import registered, verify
from overt.tour.robust import chapter


@pytest.mark.parametrize(
    "name", [i for i, s in registered().items() if s.check.__module__ == statements.__name__]
)
def test_statements_hold(name):
    (verdict,) = verify([name], seed=1)
    assert verdict.verdict == "holds", verdict.detail


def test_the_chapter_holds(tmp_path):
    pytest.importorskip("matplotlib")
    page = Page("tour", "")
    assert chapter(page, tmp_path, 0)
    text = page.write(tmp_path / "page.html").read_text()
    assert text.count("<img") == 2
    assert json.loads((tmp_path / "robust-usual.json").read_text())["norm"] == "l2"


NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
    return net
"""


@pytest.fixture
def given(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    x, y = blobs(60)
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy())
    return tmp_path


def test_the_command_measures_plots_and_saves(given):
    pytest.importorskip("matplotlib")
    out = given / "out"
    arguments = ["attack", f"{given / 'net.py'}:build", "--data", str(given / "data.npz"),
                 "--norm", "linf", "--radius", "0.2", "--bounds", "0,1", "--plot",
                 "--budget", "60", "--out", str(out), "--json"]  # fmt: skip
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed == json.loads((out / "attack.json").read_text())
    assert len(printed["radii"]) == 8
    assert printed["value"] >= printed["clean"]
    assert (out / "attack.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "net.py"}, "FILE.py:FUNCTION"),
        ({"--norm": "l3"}, "norm must be one of"),
        ({"--bounds": "1"}, "LOW,HIGH"),
        ({"--bounds": "a,b"}, "numbers"),
        ({"--loss": "hinge"}, "loss must be one of"),
    ],
)
def test_the_command_names_mistakes(given, monkeypatch, change, message):
    monkeypatch.chdir(given)
    options = {"model": "net.py:build", "--data": "data.npz"} | change
    model = options.pop("model")
    words = [w for pair in options.items() for w in pair]
    result = CliRunner().invoke(app, ["attack", model, *words])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
