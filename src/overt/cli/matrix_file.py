"""Read a matrix from a file: NumPy, SciPy, Matrix Market or text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError
from overt._io import (
    MAX_UNPACKED_BYTES,
    as_path,
    bounded_lines,
    check_announced_size,
    is_number,
    open_npz,
    reading,
)

ACCEPTED = (".npy", ".npz", ".csv", ".tsv", ".txt", ".mtx")


def read_matrix(path: str | os.PathLike[str]) -> Any:
    """Return the matrix in a file as float64, dense, or scipy sparse if it is stored so.

    A .npz file must hold a single array, one named target, or what `scipy.sparse.save_npz` wrote;
    .mtx is the Matrix Market format.
    Text files may have one header line.
    """
    path = as_path("path", path)
    suffix = path.suffix.lower()
    if suffix not in ACCEPTED:
        raise InputError(f"{path} must end in one of {', '.join(ACCEPTED)}")
    with reading(path, "cannot be read as a matrix"):
        if not path.is_file():
            raise InputError(f"{path} does not exist, or is no file")
        match suffix:
            case ".npy":
                with path.open("rb") as file:
                    check_announced_size(path, file, path.stat().st_size)
                return _floats(np.load(path, allow_pickle=False))
            case ".npz":
                return _from_npz(path)
            case ".mtx":
                return _from_market(path)
        return _from_text(
            path, "\t" if suffix == ".tsv" else "," if suffix == ".csv" else None
        )


def _from_npz(path: Path) -> Any:
    with open_npz(path) as archive:
        names = archive.files
        if len(names) == 1 or "target" in names:
            return _floats(archive["target" if "target" in names else names[0]])
    if "format" in names:
        return _sparse(path)
    raise InputError(
        f"{path} must hold one array, or one named target; it holds {', '.join(names)}"
    )


def _from_market(path: Path) -> Any:
    """Return the matrix of a Matrix Market file: sparse where it lists coordinates."""
    from scipy.io import mminfo, mmread
    from scipy.sparse import issparse

    rows, cols, entries, _, field, _ = mminfo(path)
    if field == "complex":
        raise InputError(f"{path} must hold real numbers, it holds complex ones")
    size = path.stat().st_size
    # A symmetric matrix is listed by half, at two characters or more for an entry.
    if entries > size or max(rows, cols) > max(MAX_UNPACKED_BYTES, 100 * size):
        raise InputError(
            f"{path} announces {rows} x {cols} with {entries} entries, more than it can hold"
        )
    found = mmread(path)
    return _checked_sparse(path, found) if issparse(found) else _floats(found)


def _sparse(path: Path) -> Any:
    from scipy.sparse import load_npz

    return _checked_sparse(path, load_npz(path))


def _checked_sparse(path: Path, found: Any) -> Any:
    """Return a sparse matrix in rows, columns or coordinates, whose indices are inside of it."""
    if found.format not in ("coo", "csr", "csc"):
        raise InputError(
            f"{path} must be stored as coo, csr or csc, got {found.format}"
        )
    if found.format != "coo":
        found.check_format(full_check=True)  # or conversions would believe it
    found = found.tocoo()
    for place, size in ((found.row, found.shape[0]), (found.col, found.shape[1])):
        if len(place) and not 0 <= place.min() <= place.max() < size:
            raise InputError(f"{path} holds an entry outside of its {found.shape}")
    found.data = _floats(found.data)
    return found


def _from_text(path: Path, delimiter: str | None) -> Any:
    with path.open(encoding="utf-8-sig") as file:
        first = next(bounded_lines(path, file), "")
        if not first:
            raise InputError(f"{path} is empty")
        words = [word for word in first.replace(delimiter or " ", " ").split() if word]
        header = not all(is_number(word) for word in words)
        file.seek(0)
        lines = bounded_lines(path, file)
        return np.loadtxt(lines, delimiter=delimiter, skiprows=int(header), ndmin=2)


def _floats(array: Any) -> Any:
    if array.dtype.kind not in "fiu":
        raise InputError(f"the matrix must hold numbers, got {array.dtype}")
    return array.astype(float)
