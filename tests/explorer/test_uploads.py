import gzip
import io
import pickle
import struct

import numpy as np
import pytest

from overt import InputError
from overt.explorer import uploads

HOSTILE = '<img src=x onerror="alert(1)">'


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def header(text, body=b""):
    text = text.encode() + b" " * (63 - (len(text) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def read(data):
    return [float(word) for word in uploads.spectrum(data).split()]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (npy(np.array([1.0, 3, 2])), [3, 2, 1]),
        (npy(np.array([[1, 5, 2]], dtype=np.int16)), [5, 2, 1]),
        (npy(np.diag([1.0, 4, 2])), [4, 2, 1]),
        (npy(np.asfortranarray([[3.0, 0], [0, 0], [0, 4]])), [4, 3]),
        (npy(np.array([2.0, 1.0], dtype=">f4")), [2, 1]),
        (b"value\n3\n1\n2\n", [3, 2, 1]),
        (b"3, 1; 2", [3, 2, 1]),
        (b"\xef\xbb\xbf3 0\n0 4\n", [4, 3]),
        (b"1 2\n3\n", [3, 2, 1]),
    ],
)
def test_spectra_are_read(data, expected):
    assert read(data) == pytest.approx(expected, rel=1e-5)


def test_a_matrix_gives_its_singular_values():
    A = np.random.default_rng(0).standard_normal((30, 7))
    assert read(npy(A)) == pytest.approx(np.linalg.svd(A, compute_uv=False), rel=1e-5)


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npy(np.array([Bomb()], dtype=object), allow_pickle=True), "real numbers"),
        (pickle.dumps(Bomb()), "plain text"),
        (npy(np.array([1 + 2j])), "real numbers"),
        (npy(np.array(["a"])), "real numbers"),
        (npy(np.zeros(3, dtype=[("a", float)])), "real numbers"),
        (npy(np.zeros((2, 2, 2))), "list or a matrix"),
        (npy(np.float64(3)), "list or a matrix"),
        (npy(np.zeros((0, 3))), "1 to 500"),
        (npy(np.arange(600.0)), "1 to 500"),
        (npy(np.zeros((1200, 1200), dtype=np.int8)), "1 to 500"),
        (npy(np.array([1.0, np.nan])), "NaN"),
        (npy(np.arange(5.0))[:-1], "fills the file"),
        (header("{'descr': '<f8', 'fortran_order': False, 'shape': (10**15,), }"), "header"),
        (header("{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999,), }"), "fills"),
        (header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"), "fills"),
        (header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"x"), "real"),
        (header("__import__('os').system('true')"), "header"),
        (b"\x93NUMPY\x09\x09", "header"),
        (gzip.compress(b"1 2 3", mtime=0), "plain text"),
        (b"PK\x03\x04", "plain text"),
        (b"\0\0\0", "plain text"),
        (b"", "no numbers"),
        (b"1\n2\nnan\n", "NaN"),
        (b"a\nb\n", "line 2"),
        (b"1 " * 30_000, "characters"),
        (b"1\n" * 200_000, "lines"),
    ],
)
def test_wrong_spectra_are_refused_with_a_reason(data, message):
    with pytest.raises(InputError, match=message):
        uploads.spectrum(data)


def ratings(rows=30, cols=8, name="u{}", item="i{}"):
    lines = [
        f"{name.format(i)},{item.format(j)},{(i + j) % 5}" for i in range(rows) for j in range(cols)
    ]
    return "\n".join(["user,item,rating", *lines]).encode()


def test_ratings_are_kept_under_a_token():
    pytest.importorskip("duckdb")
    shelf = uploads.Shelf()
    token, note = shelf.put(ratings(name=HOSTILE + "{}"))
    entries = shelf.get(token)
    assert entries.shape == (30, 8)
    assert entries.row_ids[0].startswith(HOSTILE)
    assert note.startswith("240 ratings of 30 rows and 8 columns")
    assert len(token) >= 20
    for _ in range(uploads.KEPT):
        shelf.put(ratings())
    with pytest.raises(InputError, match="upload the file again"):
        shelf.get(token)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"nothing here\n", "3 fields"),
        (b"a,b,c\n1,2,x\n", "no usable line"),
        (b"1,2,3\n", "20 ratings or more"),
        (ratings(cols=1), "20 ratings or more"),
        (b"\n".join(b"%d,%d,1" % (i, i) for i in range(1500)), "at most 2,000,000 cells"),
        (b"a," + b"b" * 300 + b",1\n", "characters"),
        (gzip.compress(ratings(), mtime=0), "plain text"),
        (b"PAR1" + b"\0" * 50, "plain text"),
    ],
)
def test_wrong_ratings_are_refused_with_a_reason(data, message):
    pytest.importorskip("duckdb")
    with pytest.raises(InputError, match=message) as error:
        uploads.Shelf().put(data)
    assert "tmp" not in str(error.value)
