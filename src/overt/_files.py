"""Files: written whole or not at all; matrices read from .npy, .npz, .csv, .tsv, .txt and .mtx."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from overt._check import InputError

ACCEPTED = (".npy", ".npz", ".csv", ".tsv", ".txt", ".mtx")


def write_whole(
    path: str | os.PathLike[str], content: bytes | str | Callable[[IO[bytes]], Any]
) -> Path:
    """Write a file so that a reader finds the old or the new content, even after a crash.

    `content` is bytes, text, or a function that writes to an open file.
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        if callable(content):
            content(file)
        else:
            file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    return temporary.replace(path)


def read_matrix(path: str | os.PathLike[str]) -> Any:
    """Return the matrix in a file as float64, dense, or scipy sparse if it is stored so.

    A .npz file must hold a single array, or one named target. Text files may have one header line.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in ACCEPTED:
        raise InputError(f"{path} must end in one of {', '.join(ACCEPTED)}")
    if not path.exists():
        raise InputError(f"{path} does not exist")
    try:
        match suffix:
            case ".npy":
                return _floats(np.load(path, allow_pickle=False))
            case ".npz":
                return _from_npz(path)
            case ".mtx":
                from scipy.io import mmread

                matrix = mmread(path)
                return matrix.astype(float) if hasattr(matrix, "tocsr") else _floats(matrix)
        return _from_text(path, "\t" if suffix == ".tsv" else "," if suffix == ".csv" else None)
    except InputError:
        raise
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read as a matrix: {error}") from None


def _from_npz(path: Path) -> Any:
    with np.load(path, allow_pickle=False) as archive:
        names = archive.files
        if len(names) == 1 or "target" in names:
            return _floats(archive["target" if "target" in names else names[0]])
    raise InputError(
        f"{path} must hold one array, or one named target; it holds {', '.join(names)}"
    )


def _from_text(path: Path, delimiter: str | None) -> Any:
    with path.open(encoding="utf-8-sig") as file:
        first = file.readline()
    words = [word for word in first.replace(delimiter or " ", " ").split() if word]
    header = not all(_is_number(word) for word in words)
    return np.loadtxt(
        path, delimiter=delimiter, skiprows=int(header), ndmin=2, encoding="utf-8-sig"
    )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _floats(array: Any) -> Any:
    if array.dtype.kind not in "fiu":
        raise InputError(f"the matrix must hold numbers, got {array.dtype}")
    return array.astype(float)
