"""The command."""

import json

import numpy as np
import pytest
import torch
from robust_cases import blobs
from torch import nn
from typer.testing import CliRunner

from overt import InputError
from overt.cli.base import app
from overt.robust import RobustError, adversarial_train

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
    arguments = [
        "attack",
        f"{given / 'net.py'}:build",
        "--data",
        str(given / "data.npz"),
        "--norm",
        "Linf",
        "--radius",
        "1/5",
        "--bounds",
        "0,1",
        "--plot",
        "--budget",
        "60",
        "--queries",
        "30",
        "--out",
        str(out),
        "--json",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    stored = json.loads((out / "attack.json").read_text())
    assert stored.pop("checksum")
    assert "success" not in printed  # lists of single points only if asked for
    assert printed == {
        k: v for k, v in stored.items() if k not in ("success", "proved")
    }
    again = CliRunner().invoke(app, [*arguments, "--per-point"])
    assert len(json.loads(again.stdout)["success"]) == 60
    assert RobustError.load(out / "attack.json").value == printed["value"]
    run = printed["run"]
    assert (run["norm"], run["radius"], run["budget"], run["seed"]) == (
        "Linf",
        "1/5",
        60,
        0,
    )
    assert len(run["data_sha256"]) == 64
    assert any(
        "untrained weights; no weights were given" in text
        for text in printed["warnings"]
    )
    with np.load(out / "adversarial.npz") as file:
        assert np.abs(file["adversarial"].astype(float) - file["x"]).max() <= 0.2
        assert (file["adversarial_class"] != file["y"]).mean() == printed["value"]
    assert len(printed["radii"]) == 8
    assert printed["value"] >= printed["clean"]
    assert (out / "attack.png").stat().st_size > 1000


def attacked(given, *words):
    arguments = [
        "attack",
        *map(str, words),
        "--norm",
        "linf",
        "--radius",
        "0.1",
        "--budget",
        "24",
        "--queries",
        "0",
        "--out",
        str(given / "out"),
        "--json",
    ]
    return CliRunner().invoke(app, arguments)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_the_command_reads_torchscript_and_trusted_models(given):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
    torch.jit.script(net).save(given / "script.pt")
    torch.save(net, given / "whole.pt")
    torch.save(net.state_dict(), given / "weights.pt")
    with np.load(given / "data.npz") as file:
        np.savez(given / "test.npz", x_test=file["x"], y_test=file["y"])
    data = ("--data", given / "test.npz")
    wanted = attacked(given, f"{given / 'net.py'}:build", *data)
    assert wanted.exit_code == 0, wanted.output
    for words in ((given / "script.pt",), (given / "whole.pt", "--trust-pickle")):
        found = attacked(given, *words, *data)
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout)["value"] == json.loads(wanted.stdout)["value"]
    for words, message in (
        ((given / "whole.pt",), "--trust-pickle"),
        ((given / "weights.pt", "--trust-pickle"), "must hold a torch module"),
        ((given / "none.pt",), "must name a file that exists"),
        ((given / "script.pt", "--weights", given / "weights.pt"), "has its own"),
    ):
        refused = attacked(given, *words, *data)
        assert isinstance(refused.exception, InputError)
        assert message in str(refused.exception)


IMAGES = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
"""


@pytest.mark.parametrize("form", ["module", "checkpoint"])
def test_the_command_takes_what_training_saves(tmp_path, form):
    pytest.importorskip("matplotlib")
    (tmp_path / "net.py").write_text(IMAGES)
    net, rng = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), np.random.default_rng(0)
    x = rng.integers(0, 256, (30, 4, 4)).astype(np.uint8)
    y = net(torch.tensor(x / 255.0).float()).argmax(1).numpy()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    path = tmp_path / ("w.safetensors" if form == "checkpoint" else "w.pt")
    if form == "checkpoint":
        tiny = torch.optim.SGD(net.parameters(), 1e-9)
        data = (torch.tensor(x / 255.0).float(), y)
        adversarial_train(net, data, None, epochs=1, optimizer=tiny, checkpoint=path)
    else:
        named = {f"module.{k}": v for k, v in net.state_dict().items()}
        torch.save({"state_dict": named, "epoch": 3}, path)
    words = [
        "attack",
        f"{tmp_path / 'net.py'}:build",
        "--data",
        str(tmp_path / "data.npz"),
        "--weights",
        str(path),
        "--norm",
        "linf",
        "--radius",
        "30/255",
        "--bounds",
        "0,1",
        "--scale",
        "255",
        "--budget",
        "24",
        "--queries",
        "0",
        "--plot",
        "--radii",
        "0.01",
        "--certify",
        "--out",
        str(tmp_path / "out"),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "attack.json").read_text())
    assert found["clean"] == 0
    assert 0 < found["value"] <= 1 - np.mean(found["proved"]) + 1e-9
    assert (tmp_path / "out" / "attack.png").stat().st_size > 1000
    targeted = CliRunner().invoke(app, [*words, "--target", "1"])
    assert isinstance(targeted.exception, InputError)  # nothing certifies targets


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--radius": "8/0"}, "radius must hold numbers"),
        ({"--scale": "-1"}, "scale must be positive"),
        ({"--device": "nowhere"}, "device must be one that torch has"),
        ({"model": "net.py"}, "FILE.py:FUNCTION"),
        ({"--norm": "l3"}, "norm must be one of"),
        ({"--bounds": "1"}, "LOW,HIGH"),
        ({"--bounds": "a,b"}, "numbers"),
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
