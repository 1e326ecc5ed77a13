"""What SECURITY.md promises: loaders execute nothing, names are text, folders are not left."""

import pickle
import re
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from fuzz.readers import _completion, _entries, _matrix, _state

import overt
from overt._html import Page
from overt.cli.models import read_examples
from overt.completion import DropoutCompletion, read_ratings
from overt.results import Result

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
HOSTILE = '"><script>alert(1)</script>'
PICTURE = "<img src=x onerror=alert(1)>'\""
SOURCE = Path(overt.__file__).parent


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def npz(path, bomb):
    np.savez(
        path, target=np.array([bomb], dtype=object), x=np.array([bomb], dtype=object)
    )


LOADERS = {
    "M.npy": (lambda p, b: np.save(p, np.array([b], dtype=object)), _matrix),
    "M.npz": (npz, _matrix),
    "data.npz": (npz, read_examples),
    "w.pt": (lambda p, b: torch.save({"weight": b}, p), _state),
    "r.npz": (npz, overt.Solution.load),
    "model.safetensors": (
        lambda p, b: p.write_bytes(pickle.dumps(b)),
        lambda p: DropoutCompletion.load(p.parent),
    ),
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
    lambda event, args: (
        OPENED.append(str(args[0])) if WATCHING and event == "open" else None
    )
)


def test_a_saved_model_names_no_other_file(tmp_path):
    folder = tmp_path / "model"
    _completion().fit(_entries()).save(folder)
    WATCHING.append(True)
    try:
        DropoutCompletion.load(folder)
    finally:
        WATCHING.clear()
    read = {path for path in OPENED if str(tmp_path) in path or "secret" in path}
    assert read - {str(folder)} == {str(folder / "model.safetensors")}


def test_names_of_models_and_layers_are_text_in_reports():
    from overt.nn import audit

    kind = type(HOSTILE, (torch.nn.Sequential,), {})
    model = kind()
    for name, layer in (
        ("a", torch.nn.Linear(3, 4)),
        (HOSTILE, torch.nn.Dropout(0.5)),
        ("<b>", torch.nn.Linear(4, 2)),
    ):
        model.add_module(name, layer)
    data = torch.randn(8, 3), torch.randn(8, 2)
    page = audit(model, data, "mse")._repr_html_()
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<b>" not in page


class Tags(HTMLParser):
    """What a browser would see: tags, attributes, and whether a name became one of them."""

    def __init__(self, page):
        super().__init__()
        self.seen, self.text = set(), ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen |= {tag, *(f"{tag}.{name}" for name, _ in attrs)}

    def handle_data(self, data):
        self.text += data


class Figure:
    def savefig(self, buffer, **_):
        buffer.write(b"png")


@pytest.mark.parametrize("name", [HOSTILE, PICTURE])
def test_names_are_text_wherever_a_page_puts_them(name, tmp_path):
    page = Page(name, name)
    page.section(name)
    page.text(name)
    page.text(name, note=True)
    page.code(name)
    page.table([name, name], [[name, name * 9], [Path(name), [name]]])
    page.table(("claim", "verdict"), [(name, True)])
    page.figure(Figure(), name)
    found = Tags(page.write(tmp_path / "page.html", footer=name).read_text())
    assert not found.seen & {"script", "img.onerror"}
    assert found.text.count("alert(1)") >= 14


@pytest.mark.parametrize("name", [HOSTILE, PICTURE])
def test_names_are_text_in_notebooks(name):
    @dataclass(frozen=True, repr=False, eq=False)
    class Named(Result):
        said: object
        listed: object

    shown = Named(Named(name, {name: [name]}), (name,))
    type(shown).__name__ = name
    found = Tags(shown._repr_html_())
    assert found.seen == {"table", "caption", "tr", "th", "th.style", "td"}
    assert "alert(1)" in found.text


def test_tags_are_written_in_few_files_and_by_no_script():
    """Tour and record get theirs from Page; scripts put text into the page as text."""
    written = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"</?(td|p|h[1-6]|tr|li)[ >]", path.read_text())
    }
    assert written <= {"_html.py", "results.py"}
    scripts = "".join(
        path.read_text() for path in (SOURCE / "explorer/page").glob("*.js")
    )
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", scripts
    )
