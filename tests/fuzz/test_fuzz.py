"""A short, seeded run of the fuzzers; `make fuzz` runs them for as long as one likes."""

import io
import zipfile

import numpy as np
import pytest
from fuzz.readers import MEMORY, READERS, attack, peak

from overt import InputError
from overt._files import read_matrix
from overt.cli.models import read_examples

SLOW = {"ratings", "ratings in gzip", "Parquet", "torch state", "model.json", "training checkpoint"}
NEEDS = {"Parquet": "duckdb", "ratings": "duckdb", "ratings in gzip": "duckdb", "proof": "flint"}


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_right_or_refused_with_a_sentence(name, tmp_path):
    pytest.importorskip("safetensors")
    pytest.importorskip(NEEDS.get(name, "numpy"))
    assert attack(READERS[name], tmp_path, 12 if name in SLOW else 100, 1) == []


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


MARKET = b"%%MatrixMarket matrix coordinate real general\n"
GREEDY = {
    "npy": ("M.npy", lambda: promise((10**6, 10**6))),
    "npy beyond 64 bits": ("M.npy", lambda: promise((2**40, 2**40))),
    "npy of negative size": ("M.npy", lambda: promise((-1, 10**12))),
    "npz": ("M.npz", lambda: archive(target=[promise((10**12,))])),
    "Matrix Market": (
        "M.mtx", lambda: MARKET + b"9 9 1000000000000\n1 1 1\n"),
    "dense Matrix Market": (
        "M.mtx", lambda: b"%%MatrixMarket matrix array real general\n1000000 1000000\n1\n"),
    "an entry outside": (
        "M.mtx", lambda: MARKET + b"2 2 1\n3 1 1\n"),
    "a line without end": ("M.csv", lambda: b"1," * (3 * 2**24)),
}  # fmt: skip


@pytest.mark.parametrize("name", GREEDY)
def test_files_that_promise_too_much_take_little_memory(name, tmp_path):
    path, content = GREEDY[name]
    (tmp_path / path).write_bytes(content())
    with pytest.raises(InputError, match=path):
        read_matrix(tmp_path / path)
    assert peak(lambda: read_matrix(tmp_path / path)) < MEMORY


def test_archives_that_unpack_to_gigabytes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("overt._files.ROOMY", 2**20)
    np.savez_compressed(tmp_path / "data.npz", x=np.zeros(2**18), y=np.zeros(2))
    with pytest.raises(InputError, match="would unpack to"):
        read_examples(tmp_path / "data.npz")
