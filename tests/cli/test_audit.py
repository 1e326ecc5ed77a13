"""`overt audit` on a model in a file."""

import json
import sys

import numpy as np
import pytest
import torch

from overt.cli import audit as _registers  # noqa: F401
from overt.cli import main
from overt.cli.base import console

MODEL = """
from torch import nn

def build_model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "width", 200)
    (tmp_path / "net.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((90, 4))
    np.savez(tmp_path / "train.npz", x=x, y=x[:, :3].argmax(1))
    np.savez(tmp_path / "numbers.npz", x=x, y=x[:, :3])
    np.savez(
        tmp_path / "whole.npz",
        x=np.ones((9, 4), dtype=np.uint8),
        y=np.zeros(9, dtype=int),
    )
    np.savez(tmp_path / "words.npz", x=x, y=np.array(["a"] * 90))
    return tmp_path


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["overt", "audit", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    shown = capsys.readouterr()
    return stopped.value.code, shown.out, shown.err


def test_prints_a_report(folder, monkeypatch, capsys):
    torch.manual_seed(0)
    words = ("net.py:build_model", "--data", "train.npz", "--batch", "32")
    code, out, _ = run(monkeypatch, capsys, *words)
    assert code == 0
    for word in ("cross_entropy", "90 rows", "accuracy", "dead units"):
        assert word in out


def test_json_can_be_read(folder, monkeypatch, capsys):
    words = (
        "net.py:build_model",
        "--data",
        "numbers.npz",
        "--loss",
        "squared",
        "--json",
        "--points",
        "50",
    )
    code, out, _ = run(monkeypatch, capsys, *words)
    found = json.loads(out)
    assert (code, found["samples"], found["loss"]) == (0, 50, "squared")
    assert found["head"]["lower_bound"] < found["objective"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("net.py:build_model", "--data", "train.npz", "--loss", "hinge"),
            "loss must be one of",
        ),
        (("net.py:build_model", "--data", "none.npz"), "file that exists"),
        (("net.py:other", "--data", "train.npz"), "must define a function other"),
        (("net.py:build_model", "--data", "whole.npz"), "floating-point numbers"),
        (
            ("net.py:build_model", "--data", "words.npz"),
            "y in words.npz must hold numbers",
        ),
        (("net.py:build_model", "--data", "numbers.npz"), "whole class numbers"),
    ],
)
def test_mistakes_end_with_one_sentence(folder, monkeypatch, capsys, words, message):
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == 2
    assert message in " ".join(err.split())
