"""Files: matrices in every accepted format, arrays, tables, and what is said of the others."""

import os

import numpy as np
import pytest

from overt import InputError
from overt._io import write_csv, write_whole
from overt.cli.matrix_file import read_matrix

M = np.array([[1.0, 2.5], [-3.0, 4e-3], [0.0, 1e6]])


def write(path, kind):
    from scipy import io, sparse

    match kind:
        case "npy":
            np.save(path, M)
        case "npz":
            np.savez(path, M)
        case "named npz":
            np.savez(path, target=M, other=M + 1)
        case "integers":
            np.save(path, M.astype(int))
        case "csv":
            np.savetxt(path, M, delimiter=",")
        case "csv with header":
            np.savetxt(path, M, delimiter=",", header="a,b", comments="")
        case "csv with mark":
            path.write_text("\ufeff1,2.5\r\n-3,0.004\r\n0,1e6\r\n", encoding="utf-8")
        case "tsv":
            np.savetxt(path, M, delimiter="\t")
        case "txt":
            np.savetxt(path, M)
        case "mtx":
            io.mmwrite(path, sparse.coo_array(M))
        case "dense mtx":
            io.mmwrite(path, M)
        case "coo" | "csr" | "csc":
            sparse.save_npz(path, sparse.coo_array(M).asformat(kind))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("npy", "M.npy"),
        ("npz", "M.npz"),
        ("named npz", "M.npz"),
        ("csv", "M.csv"),
        ("csv with header", "M.csv"),
        ("csv with mark", "M.csv"),
        ("tsv", "M.tsv"),
        ("txt", "M.txt"),
        ("mtx", "M.mtx"),
        ("dense mtx", "M.mtx"),
        ("coo", "M.npz"),
        ("csr", "M.npz"),
        ("csc", "M.npz"),
        ("integers", "M.npy"),
    ],
)
def test_formats_are_read(tmp_path, kind, name):
    write(tmp_path / name, kind)
    read = read_matrix(tmp_path / name)
    dense = read.toarray() if hasattr(read, "toarray") else read
    np.testing.assert_allclose(dense, M.astype(int) if kind == "integers" else M)
    assert dense.dtype == np.float64


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("M.parquet", b"", "must end in one of"),
        ("M.npy", b"not an array", "cannot be read"),
        ("M.npz", b"not an archive", "cannot be read"),
        ("M.csv", b"1,2\n3,x\n", "cannot be read"),
        ("M.csv", b"1,2\n3\n", "cannot be read"),
        ("M.mtx", b"nonsense", "cannot be read"),
        (
            "M.mtx",
            b"%%MatrixMarket matrix coordinate real general\n3 2 9000000\n1 1 2.0\n",
            "more than it can hold",
        ),
        (
            "M.mtx",
            b"%%MatrixMarket matrix coordinate real general\n3 2 2\n1 1 2.0\n9 1 2.0\n",
            "cannot be read",
        ),
        (
            "M.mtx",
            b"%%MatrixMarket matrix array complex general\n1 1\n1 2\n",
            "must hold real numbers",
        ),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_matrix(tmp_path / name)
    assert name in str(error.value)


def test_missing_and_ambiguous_files(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_matrix(tmp_path / "none.npy")
    np.savez(tmp_path / "two.npz", a=M, b=M)
    with pytest.raises(InputError, match="it holds a, b"):
        read_matrix(tmp_path / "two.npz")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    assert write_whole(path, "first") == path

    def fail(file):
        file.write(b"half of the sec")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, fail)
    assert path.read_text() == "first"
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"


def test_tables_keep_commas_quotes_and_what_is_no_character(tmp_path):
    path = tmp_path / "table.csv"
    write_csv(path, ("a", "b"), [(1, 'x, "y"'), (2.5, "\udcff")])
    assert path.read_bytes() == b'a,b\r\n1,"x, ""y"""\r\n2.5,?\r\n'


def test_content_reaches_the_disk_before_its_name(tmp_path, monkeypatch):
    """Without a sync a crash can leave the new name with no content."""
    done = []
    sync, replace = os.fsync, type(tmp_path).replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("sync"), sync(file))[1])
    monkeypatch.setattr(
        type(tmp_path),
        "replace",
        lambda a, b: (done.append("rename"), replace(a, b))[1],
    )
    write_whole(tmp_path / "file", b"content")
    assert done == ["sync", "rename"]


def test_files_have_ordinary_permissions(tmp_path):
    write_whole(tmp_path / "ours", b"content")
    (tmp_path / "other").write_bytes(b"content")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "other").stat().st_mode
