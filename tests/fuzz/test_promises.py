"""What SECURITY.md promises: loaders execute nothing, names are text, folders are not left."""

import json
import pickle
import sys

import numpy as np
import pytest
from fuzz.readers import _completion, _entries, _matrix, _state

import overt
from overt._files import digest, read_sealed
from overt.cli.models import read_examples
from overt.completion import DropoutCompletion, read_ratings

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
HOSTILE = '"><script>alert(1)</script>'


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def npz(path, bomb):
    np.savez(path, target=np.array([bomb], dtype=object), x=np.array([bomb], dtype=object))


LOADERS = {
    "M.npy": (lambda p, b: np.save(p, np.array([b], dtype=object)), _matrix),
    "M.npz": (npz, _matrix),
    "data.npz": (npz, read_examples),
    "w.pt": (lambda p, b: torch.save({"weight": b}, p), _state),
    "r.npz": (npz, overt.Solution.load),
    "M.safetensors": (lambda p, b: p.write_bytes(pickle.dumps(b)), lambda p: read_sealed(p, "")),
    "r.csv": (lambda p, b: p.write_bytes(pickle.dumps(b)), read_ratings),
}


@pytest.mark.parametrize("name", LOADERS)
def test_loaders_execute_nothing(name, tmp_path):
    write, read = LOADERS[name]
    (tmp_path / "net.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Linear(4, 3)\n"
    )
    write(tmp_path / name, Bomb(tmp_path / "exploded"))
    (tmp_path / "exploded").unlink(missing_ok=True)
    with pytest.raises(overt.InputError):
        read(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


OPENED: list[str] = []
WATCHING: list[bool] = []
sys.addaudithook(
    lambda event, args: OPENED.append(str(args[0])) if WATCHING and event == "open" else None
)


def test_a_saved_model_names_no_other_file(tmp_path):
    folder = tmp_path / "model"
    _completion().fit(_entries()).save(folder)
    header = json.loads((folder / "model.json").read_text())
    header["arrays_file"] = header["path"] = "../secret.safetensors"
    header.pop("checksum")
    header["checksum"] = digest(header)
    (folder / "model.json").write_text(json.dumps(header))
    WATCHING.append(True)
    try:
        DropoutCompletion.load(folder)
    finally:
        WATCHING.clear()
    read = {path for path in OPENED if str(tmp_path) in path or "secret" in path}
    assert read == {str(folder / "model.json"), str(folder / "model.safetensors")}


def test_names_of_models_and_layers_are_text_in_reports(tmp_path):
    from overt.nn import audit

    kind = type(HOSTILE, (torch.nn.Sequential,), {})
    model = kind()
    for name, layer in (("a", torch.nn.Linear(3, 4)), (HOSTILE, torch.nn.Dropout(0.5)),
                        ("<b>", torch.nn.Linear(4, 2))):  # fmt: skip
        model.add_module(name, layer)
    data = torch.randn(8, 3), torch.randn(8, 2)
    page = audit(model, data, "mse", passes=1).to_html(tmp_path / "audit.html")
    written = (tmp_path / "audit.html").read_text()
    assert "alert(1)" in written
    assert "<script>alert" not in page + written
    assert "<b>" not in page + written
