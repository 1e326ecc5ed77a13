"""Files from visitors: bounded, looked at before they are read, never executed."""

from __future__ import annotations

import io
import math
import secrets
import tempfile
import threading
from functools import cache
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from overt import Entries, InputError
from overt._types import Floats
from overt.explorer import theory
from overt.explorer.theory import read_ratings

LARGEST = 2 * 2**20
"""Bytes of a file."""

VALUES, CELLS, LINES, KEPT = 500, 2_000_000, 150_000, 8
"""Singular values, rows times columns of ratings, lines of a text, and ratings that are kept."""

RATING, ROW = 200, 20_000
"""Characters of a line of ratings, and of one of numbers."""


def spectrum(data: bytes) -> str:
    """Return the singular values in an npy or csv file, or of the matrix in it, as text."""
    array = _from_npy(data) if data.startswith(b"\x93NUMPY") else _from_csv(data)
    if not np.all(np.isfinite(array)):
        raise InputError("the file holds NaN or infinite values")
    if array.ndim == 2 and 1 < min(array.shape) <= VALUES:
        array = np.asarray(np.linalg.svd(array, compute_uv=False), dtype=float)
    values = np.sort(array.ravel())[::-1].tolist()
    if not 1 <= len(values) <= VALUES:
        raise InputError(f"the file must give 1 to {VALUES} values, got {len(values)}")
    return " ".join(f"{v:.6g}" for v in values)


def _from_npy(data: bytes) -> Floats:
    """Read an array of numbers; its header must say so, and nothing in it is unpickled."""
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = read(file, max_header_size=4096)
    except (ValueError, KeyError, SyntaxError, TypeError) as error:
        raise InputError(f"the npy header cannot be read ({str(error)[:80]})") from None
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise InputError(f"the array must hold real numbers, got {str(dtype)[:40]}")
    if len(shape) not in (1, 2) or math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise InputError(f"the array must be a list or a matrix that fills the file, got {shape}")
    array = np.frombuffer(data, dtype, offset=file.tell()).astype(float)
    return array.reshape(shape, order="F" if fortran else "C")


def _from_csv(data: bytes) -> Floats:
    """Read numbers from text; a first line without numbers is a header."""
    rows = []
    for number, line in enumerate(_lines(data, ROW), 1):
        try:
            rows.append([float(word) for word in line.replace(",", " ").replace(";", " ").split()])
        except ValueError:
            if number > 1:
                raise InputError(f"line {number} has something else than numbers") from None
    rows = [row for row in rows if row]
    if not rows:
        raise InputError("the file has no numbers")
    matrix = len({len(row) for row in rows}) == 1
    return np.array(rows if matrix else [value for row in rows for value in row])


def _lines(data: bytes, longest: int) -> list[str]:
    """Return the lines of a text; InputError if it is not one of bounded length."""
    try:
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    lines = text.splitlines()
    # What is compressed or binary by its first bytes would be unpacked further on.
    packed = data[:2] in (b"\x1f\x8b", b"PK") or data[:4] == b"PAR1"
    if packed or "\0" in text or len(lines) > LINES or any(len(line) > longest for line in lines):
        raise InputError(
            f"the file must be plain text of at most {LINES:,} lines of {longest:,} characters"
        )
    return lines


@cache
def sample() -> Entries:
    """Return the sample's ratings, always the same object."""
    return theory.sample_ratings()


class Shelf:
    """The last ratings that were uploaded, by a token that nobody can guess."""

    def __init__(self) -> None:
        self._held: dict[str, Entries] = {}
        self._lock = threading.Lock()

    def put(self, data: bytes) -> tuple[str, str]:
        """Read ratings; return their token and a sentence about them."""
        _lines(data, RATING)
        # One at a time: hostile files take memory once.
        with self._lock, tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "upload"
            path.write_bytes(data)
            try:
                table = read_ratings(path)
            except InputError as error:
                raise InputError(str(error).replace(str(path), "the file")) from None
            entries, unused = table.entries, len(table.rejected)
            m, n = entries.shape
            if m * n > CELLS or len(entries) < 20 or min(m, n) < 2:
                raise InputError(
                    f"the file must have 20 ratings or more, in a table of at most {CELLS:,} cells,"
                    f" got {len(entries):,} of {m:,} x {n:,}; overt complete takes larger ones"
                )
            token = secrets.token_urlsafe(16)
            self._held[token] = entries
            while len(self._held) > KEPT:
                self._held.pop(next(iter(self._held)))
        more = f", {unused:,} lines not used" if unused else ""
        return token, f"{len(entries):,} ratings of {m:,} rows and {n:,} columns{more}."

    def get(self, token: str) -> Entries:
        """Return ratings by their token."""
        entries = sample() if token == "sample" else self._held.get(token)  # noqa: S105
        if entries is None:
            raise InputError("data is no longer here: upload the file again, or use the sample")
        return entries
