"""What the commands on PyTorch models read, and how they refuse what they cannot read."""

import io
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from overt import InputError
from overt.cli.models import build_model, read_examples

NET = """
from torch import nn

HIDDEN = 4

def build():
    return nn.Sequential(nn.Linear(3, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))

def sized(width, *more, bias=True, **others):
    return nn.Linear(width, 2, bias=bias)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "net.txt").write_text(NET)
    (tmp_path / "slip.py").write_text("def build(:\n")
    np.savez(tmp_path / "data.npz", x=np.arange(12.0).reshape(4, 3), y=np.arange(4))
    return tmp_path


def same(a, b):
    return all(torch.equal(value, b[name]) for name, value in a.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("net.py", "must be FILE.py:FUNCTION"),
        ("net.py:", "must be FILE.py:FUNCTION"),
        (":build", "must be FILE.py:FUNCTION"),
        ("net.py:two words", "must be FILE.py:FUNCTION"),
        ("net.txt:build", "must be FILE.py:FUNCTION"),
        ("", "must be FILE.py:FUNCTION"),
        ("absent.py:build", "file that exists, got absent.py"),
        ("net.py:absent", "must define a function absent"),
        ("net.py:HIDDEN", "must define a function HIDDEN"),
        ("net.py:sized", "without arguments, it needs width$"),
        ("slip.py:build", "line 1, is not Python"),
    ],
)
def test_bad_names_of_models_are_refused(folder, text, message):
    with pytest.raises(InputError, match=message):
        build_model(text)


def test_a_model_is_built_from_any_folder(folder):
    assert len(build_model("net.py:build")) == 3
    assert len(build_model(f"{folder / 'net.py'}:build")) == 3


def test_weights_are_read_from_either_kind_of_file(folder):
    state = {
        name: value + 1
        for name, value in build_model("net.py:build").state_dict().items()
    }
    torch.save(state, folder / "net.pt")
    save_file(state, folder / "net.safetensors")
    for name in ("net.pt", "net.safetensors"):
        assert same(state, build_model("net.py:build", folder / name).state_dict())


@pytest.mark.parametrize(
    "wrapped", ["module.{}", "_orig_mod.{}", "model.{}", "model._orig_mod.module.{}"]
)
def test_names_that_wrappers_put_before_weights_are_taken_off(folder, wrapped):
    net = build_model("net.py:build")
    torch.save(
        {wrapped.format(k): v for k, v in net.state_dict().items()}, folder / "net.pt"
    )
    assert same(
        net.state_dict(), build_model("net.py:build", folder / "net.pt").state_dict()
    )


def test_names_stay_where_the_model_has_them_itself(folder):
    whole = (
        NET
        + """
def held(compiled=False):
    part = nn.ModuleDict({"_orig_mod": build()}) if compiled else build()  # named as if compiled
    return nn.ModuleDict({"model": part, "top": nn.Linear(2, 1)})

def compiled():
    return held(True)
"""
    )
    (folder / "whole.py").write_text(whole)
    plain, inside = build_model("whole.py:held"), build_model("whole.py:compiled")
    assert "model._orig_mod.0.weight" in inside.state_dict()
    torch.save(inside.state_dict(), folder / "inside.pt")
    torch.save(plain.state_dict(), folder / "plain.pt")
    for function, name, net in (
        ("held", "inside", inside),
        ("compiled", "plain", plain),
    ):
        found = build_model(f"whole.py:{function}", folder / f"{name}.pt")
        assert all(
            map(torch.equal, found.state_dict().values(), net.state_dict().values())
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: {f"model.{k}": v for k, v in s.items()} | {"top": s["0.bias"]},
            "do not fit",
        ),
        (lambda s: {f"net.{k}": v for k, v in s.items()}, "do not fit"),
        (lambda s: {f"model.{k}": v[:1] for k, v in s.items()}, "size mismatch"),
        (lambda s: {}, "do not fit"),
        (lambda s: {0: s["0.bias"]}, "tensors by their names"),
        (lambda s: list(s.values()), "tensors by their names, got list"),
    ],
    ids=["more", "another", "sizes", "empty", "numbers", "list"],
)
def test_weights_that_do_not_fit_after_that_are_refused(folder, change, message):
    torch.save(change(build_model("net.py:build").state_dict()), folder / "net.pt")
    with pytest.raises(InputError, match=message):
        build_model("net.py:build", folder / "net.pt")


class Trap:
    """A pickle that would write a file when it is loaded."""

    def __reduce__(self):
        return open, ("trapped", "w")


def weights_of_another_model():
    file = io.BytesIO()
    torch.save(torch.nn.Linear(3, 5).state_dict(), file)
    return file.getvalue()


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize(
    "content",
    [b"", b"garbage" * 50, pickle.dumps(Trap(), protocol=2)],
    ids=["empty", "garbage", "trap"],
)
def test_garbage_is_no_weights(folder, suffix, content):
    path = folder / f"net.{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match="safetensors"):
        build_model("net.py:build", path)
    assert not (folder / "trapped").exists()


def test_missing_and_foreign_weights_are_refused(folder):
    with pytest.raises(InputError, match=r"file that exists, got absent\.pt"):
        build_model("net.py:build", folder.__class__("absent.pt"))
    (folder / "other.pt").write_bytes(weights_of_another_model())
    with pytest.raises(InputError, match="do not fit the model"):
        build_model("net.py:build", folder / "other.pt")


def test_examples_are_read_and_cut(folder):
    x, y = read_examples(folder / "data.npz")
    assert x.shape == (4, 3)
    assert y.tolist() == [0, 1, 2, 3]
    x, y = read_examples(folder / "data.npz", 2)
    assert x.shape == (2, 3)
    assert y.tolist() == [0, 1]


def npz(path, **arrays):
    np.savez(path, **arrays)


def npy(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "file that exists"),
        (lambda path: path.write_bytes(b""), "must be an npz file"),
        (lambda path: path.write_text("x,y\n1,2\n"), "must be an npz file"),
        (lambda path: path.write_bytes(b"PK\x03\x04 cut off"), "must be an npz file"),
        (lambda path: path.write_bytes(pickle.dumps({"x": 1})), "must be an npz file"),
        (npy, "is a single array"),
        (lambda path: npz(path), "holds nothing"),
        (lambda path: npz(path, a=np.zeros(3), x=np.zeros(3)), "holds a, x"),
        (
            lambda path: npz(path, x=np.zeros((3, 2)), y=np.zeros(2)),
            r"\(3, 2\) and \(2,\)",
        ),
        (
            lambda path: npz(path, x=np.zeros(3), y=np.float64(1)),
            r"got shapes \(3,\) and \(\)",
        ),
        (lambda path: npz(path, x=np.array([{}, {}]), y=np.zeros(2)), "holds objects"),
    ],
)
def test_bad_examples_are_refused(folder, write, message):
    path = folder / "given.npz"
    write(path)
    with pytest.raises(InputError, match=message):
        read_examples(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x": np.zeros((2, 3)), "y": np.array(["a", "b"])},
            "y in given.npz must hold numbers",
        ),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0)}, "at least one example"),
    ],
)
def test_examples_of_words_or_of_nothing_are_refused(folder, arrays, message):
    npz(folder / "given.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read_examples(folder.__class__("given.npz"))


IMPATIENT = """
import torch
class Impatient(torch.nn.Sequential):
    calls = 0
    def forward(self, x):
        type(self).calls += 1
        if type(self).calls == CALLS:
            raise KeyboardInterrupt
        return super().forward(x)
def build():
    layers = torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(8, 2)
    return Impatient(*layers)
"""


@pytest.mark.parametrize("calls", [2, 4])
@pytest.mark.parametrize(
    ("command", "options"),
    [
        (
            "attack",
            ["--norm", "l2", "--radius", "1", "--budget", "24", "--out", "found"],
        ),
        ("audit", ["--loss", "cross_entropy"]),
        ("compress", ["--keep", "0.5", "--out", "small"]),
    ],
)
def test_interrupted_commands_on_models_say_what_was_kept(
    command, options, calls, tmp_path, monkeypatch
):
    from typer.testing import CliRunner

    from overt.cli import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(IMPATIENT.replace("CALLS", str(calls)))
    np.savez(tmp_path / "data.npz", x=np.ones((6, 3), np.float32), y=np.arange(6) % 2)
    found = CliRunner().invoke(
        app, [command, "net.py:build", "--data", "data.npz", *options]
    )
    assert found.exit_code == 130
    assert "interrupted; " in found.output


def test_weights_whose_bytes_changed_are_refused(folder):
    """torch.load reads them without a word."""
    path = folder / "w.pt"
    torch.save(build_model("net.py:build").state_dict(), path)
    content = bytearray(path.read_bytes())
    name = content.index(b"data/0")
    place = content.index(
        b"FB", name
    )  # padding ends where the numbers of the tensor start
    while content[place : place + 1] in (b"F", b"B", b"Z"):
        place += 1
    content[place + 8] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"w\.pt was changed or damaged"):
        build_model("net.py:build", path)
