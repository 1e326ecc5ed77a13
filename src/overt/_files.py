"""Files: written whole or not at all; arrays, tables and matrices in them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from overt._check import InputError, MissingExtraError
from overt._types import Array

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


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a header and lines; what has no character in UTF-8 becomes a question mark."""

    def write(file: IO[bytes]) -> None:
        text = io.TextIOWrapper(file, "utf-8", errors="replace", newline="")
        writer = csv.writer(text)
        writer.writerow(header)
        writer.writerows(lines)
        text.detach()

    write_whole(path, write)


def write_arrays(path: Path, arrays: Mapping[str, Array], metadata: dict[str, str]) -> str:
    """Write arrays as safetensors, whole or not at all; return the file's checksum."""
    save = safetensors("numpy", "files").numpy.save
    data = save({name: np.ascontiguousarray(a) for name, a in arrays.items()}, metadata)
    write_whole(path, data)
    return _checksum(data)


def read_arrays(path: Path) -> tuple[dict[str, Array], dict[str, str], str]:
    """Return the arrays, the metadata and the checksum of a safetensors file."""
    library = safetensors("numpy", "files")
    try:
        data = path.read_bytes()
        arrays: dict[str, Array] = library.numpy.load(data)
    except (OSError, library.SafetensorError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return arrays, metadata, _checksum(data)


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
    header = not all(is_number(word) for word in words)
    return np.loadtxt(
        path, delimiter=delimiter, skiprows=int(header), ndmin=2, encoding="utf-8-sig"
    )


def is_number(word: str) -> bool:
    """Whether a word can be read as a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def _floats(array: Any) -> Any:
    if array.dtype.kind not in "fiu":
        raise InputError(f"the matrix must hold numbers, got {array.dtype}")
    return array.astype(float)


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def safetensors(framework: str, extra: str) -> Any:
    """Return the library, with its functions for arrays of "numpy" or "torch"."""
    try:
        import_module(f"safetensors.{framework}")
    except ModuleNotFoundError:
        raise MissingExtraError("safetensors", extra) from None
    return import_module("safetensors")
