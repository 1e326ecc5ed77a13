"""A short, seeded run of the fuzzers; `make fuzz` runs them for as long as one likes."""

import inspect
import io
import os
import re
import zipfile
from importlib import import_module

import numpy as np
import pytest
from fuzz.hostile import assault
from fuzz.readers import MEMORY, READERS, attack, peak

from overt import InputError
from overt.cli.matrix_file import read_matrix
from overt.cli.models import read_examples
from overt.results import Result

SLOW = {
    "ratings",
    "ratings in gzip",
    "Parquet",
    "torch state",
    "model.safetensors",
    "training checkpoint",
}
NEEDS = {
    "Parquet": "duckdb",
    "ratings": "duckdb",
    "ratings in gzip": "duckdb",
    "proof": "flint",
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_right_or_refused_with_a_sentence(name, tmp_path):
    pytest.importorskip("safetensors")
    pytest.importorskip(NEEDS.get(name, "numpy"))
    assert attack(READERS[name], tmp_path, 12 if name in SLOW else 100, 1) == []


def test_the_long_run_counts_as_it_goes(rooms, monkeypatch, capsys):
    from fuzz import __main__ as long

    monkeypatch.setattr(long, "AT_MOST", 2)
    assert long.main(0, 1, "reader: npz", "times=3") == 0
    assert f"# {2 * 3 * long.READING} reader: npz" in capsys.readouterr().out


def promise(shape, held=8):
    """An npy file whose header announces more than it holds."""
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + b"\0" * held


def archive(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as box:
        for name, content in members.items():
            with box.open(f"{name}.npy", "w", force_zip64=True) as member:
                for piece in content:
                    member.write(piece)
    return file.getvalue()


def sparse_archive(kind, **arrays):
    """An archive as SciPy writes it, of a 2 x 2 matrix, without any check."""
    file = io.BytesIO()
    np.savez(
        file, format=kind.encode(), shape=(2, 2), data=[1.0], _is_array=True, **arrays
    )
    return file.getvalue()


GREEDY = {
    "npy": ("M.npy", lambda: promise((10**6, 10**6))),
    "npy beyond 64 bits": ("M.npy", lambda: promise((2**40, 2**40))),
    "npy of negative size": ("M.npy", lambda: promise((-1, 10**12))),
    "npz": ("M.npz", lambda: archive(target=[promise((10**12,))])),
    "an entry outside": ("M.npz", lambda: sparse_archive("coo", row=[2], col=[0])),
    "rows that go back": (
        "M.npz",
        lambda: sparse_archive("csr", indices=[0], indptr=[0, 9, 1]),
    ),
    "a line without end": ("M.csv", lambda: b"1," * (3 * 2**24)),
}


@pytest.mark.parametrize("name", GREEDY)
def test_files_that_promise_too_much_take_little_memory(name, tmp_path):
    path, content = GREEDY[name]
    (tmp_path / path).write_bytes(content())
    with pytest.raises(InputError, match=path):
        read_matrix(tmp_path / path)
    assert peak(lambda: read_matrix(tmp_path / path)) < MEMORY


def test_archives_that_unpack_to_gigabytes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("overt._io.MAX_UNPACKED_BYTES", 2**20)
    np.savez_compressed(tmp_path / "data.npz", x=np.zeros(2**18), y=np.zeros(2))
    with pytest.raises(InputError, match="would unpack to"):
        read_examples(tmp_path / "data.npz")


MODULES = (
    "overt",
    "overt.linear",
    "overt.completion",
    "overt.decay",
    "overt.nn",
    "overt.robust",
    "overt.relu",
    "overt.spectral",
    "overt.penalty",
    "overt.equalize",
    "overt.noise",
    "overt.datasets",
    "overt.papers",
    "overt.explorer",
)


def exported():
    """The public names, each once, and what they stand for."""
    found = {}
    for path in MODULES:
        module = import_module(path)
        own = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_")
            and inspect.isfunction(value)
            and value.__module__ == path
        ]
        for name in getattr(module, "__all__", own):
            value = getattr(module, name)
            seen = [known for known, other in found.items() if other is value]
            if not seen:
                found[f"{path.removeprefix('overt.')}.{name}"] = value
    return found


@pytest.fixture(scope="module")
def rooms():
    for name in ("torch", "duckdb", "safetensors"):
        pytest.importorskip(name)
    from fuzz.methods import ROOMS

    return ROOMS


def test_every_public_name_is_called_or_excluded_for_a_reason(rooms):
    from fuzz.functions import EXCLUDED

    names = exported()
    made = {n for n, v in names.items() if inspect.isclass(v) and issubclass(v, Result)}
    called = names_of(rooms)
    missing = sorted(set(names) - made - called - set(EXCLUDED))
    assert missing == [], "give each a row, or a reason, in tests/fuzz/functions.py"
    assert sorted(set(EXCLUDED) & called) == []
    assert sorted(set(EXCLUDED) - set(names)) == []


def names_of(rooms):
    """What the rows call, without what they call it with."""
    return {
        re.split(" (?:of|with|whole|by) ?", key)[0]
        for rows in rooms.values()
        for key in rows
    }


INNER = {
    "perturb",
    "run",
    "config",
    "targets",
    "met",
    "truth",
    "away",
    "toward",
    "plan",
    "h",
    "saturated",
    "margin",
    "ascent",
    "draw",
    "draw_extreme",
    "dual",
    "input_bounds",
    "linear_argmax",
    "project",
    "region",
    "size",
    "with_radius",
    "convolve",
    "patches",
    "extra_repr",
}
"""Methods that overt calls itself, with what was checked before; for who writes attacks, layers."""


def test_every_public_method_is_called(rooms):
    from fuzz.functions import EXCLUDED

    called, missing = names_of(rooms), []
    names = {
        n: v for n, v in exported().items() if inspect.isclass(v) and n not in EXCLUDED
    }
    for name, kind in names.items():
        if issubclass(kind, Result):
            continue
        for method, value in inspect.getmembers(kind, callable):
            own = getattr(value, "__module__", "") or ""
            hidden = method.startswith(("_", "set_")) or method in INNER
            if hidden or not own.startswith("overt") or inspect.isclass(value):
                continue
            if len(inspect.signature(value).parameters) < 2:
                continue  # takes no argument
            alike = {f"{other}.{method}" for other in names if other[:12] == name[:12]}
            if (
                not called & alike
            ):  # a layer for images stands for those of other dimensions
                missing.append(f"{name}.{method}")
    assert missing == [], "give each a row in tests/fuzz/methods.py"


ROOMS = (
    "noise",
    "penalty",
    "spectral",
    "equalize",
    "linear",
    "entries",
    "completion",
    "decay",
    "relu",
    "nn",
    "robust",
    "papers",
)
DEAR = ("linear", "completion", "decay", "nn", "robust")
SLOWEST = {"decay.minima", "nn.audit"}


@pytest.mark.parametrize("room", ROOMS)
def test_hostile_arguments_give_the_right_value_or_a_sentence(
    rooms, room, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # some arguments are names of files to write
    rng = np.random.default_rng(len(room))
    count = int(os.environ.get("OVERT_FUZZ", "1" if room in DEAR else "4"))
    found = [
        f"{name}: {fault}"
        for name, row in rooms[room].items()
        if name not in SLOWEST
        for _ in range(count)
        if (fault := assault(row, rng))
    ]
    assert found == [], "\n".join(found)
