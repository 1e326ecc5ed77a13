"""Identifiers of rows and columns: whole numbers or strings, as they are written."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._check import InputError, InputTypeError, plain_array
from overt._types import Array, Ints

WIDEST = 64
"""Characters of an identifier up to which arrays of strings give each the same room."""

LARGEST = np.iinfo(np.int32).max
"""Indices are stored in 32 bits."""


class Indices(np.ndarray):
    """Indices that know the identifiers they stand for: those of Entries with identifiers.

    What is picked out of them knows it too; what is computed from them is plain numbers.
    """

    ids: Array | None = None

    @classmethod
    def of(cls, places: Ints, ids: Array | None) -> Ints:
        """Return indices into `ids`, as they are without."""
        if ids is None:
            return places
        found = places.view(cls)
        found.ids = ids
        return found

    def __array_finalize__(self, source: Any) -> None:
        self.ids = getattr(source, "ids", None)

    def __array_wrap__(self, array: Array, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else np.asarray(array)

    def __reduce__(self) -> Any:
        return Indices.of, (np.asarray(self), self.ids)


def identifiers(name: str, given: Any) -> Array:
    """Return identifiers as an array of whole numbers if all are, of strings otherwise."""
    if isinstance(given, list) and given and isinstance(given[0], str):
        given = np.array(given, dtype=object)  # strings as they are, not as wide as the longest
    ids = plain_array(name, given)
    if ids.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got shape {ids.shape}")
    if ids.dtype.kind in "iu":
        return ids
    given = ids.tolist()
    if ids.dtype.kind == "U":
        return _words(given)
    missing = sum(map(is_missing, given))
    if missing:
        raise InputError(f"{name} must not be missing, got {missing} missing identifier(s)")
    if holds_whole(ids):
        return ids.astype(np.int64)
    if ids.dtype.kind in "bcf":
        raise InputTypeError(f"{name} must be whole numbers or strings, got {ids.dtype}")
    given = [int(x) if isinstance(x, float) and x.is_integer() else x for x in given]
    if all(type(x) is int and abs(x) < 2**63 for x in given):
        return np.array(given, dtype=np.int64)
    return _words(list(map(str, given)))


def holds_whole(array: Array) -> bool:
    """Whether an array of floating-point numbers holds whole ones, which 64 bits can hold too."""
    if array.dtype.kind != "f":
        return False
    with np.errstate(over="ignore"):
        array = array.astype(np.float64)
    return bool(np.all((np.floor(array) == array) & (np.abs(array) < 2**63)))


def factorized(ids: Array) -> tuple[Array, Ints]:
    """Return the different identifiers, sorted, and where each one stands among them."""
    if ids.dtype.kind in "iu":
        return np.unique(ids, return_inverse=True)
    words = ids.tolist()
    different = sorted(set(words))
    place = dict(zip(different, range(len(different)), strict=True))
    at = np.fromiter(map(place.__getitem__, words), np.int64, len(words))
    return np.array(different, dtype=ids.dtype), at


def _words(given: list[str]) -> Array:
    """Return identifiers as they are written, 196.0 as 196; long ones do not widen all others."""
    if any(word.endswith(".0") for word in given):
        given = [whole_number(word) for word in given]
    return np.array(given, dtype=str if max(map(len, given), default=0) <= WIDEST else object)


def whole_number(word: str) -> str:
    """Return 196 for 196.0, and everything else as it is written."""
    short = word[:-2]
    return short if word.endswith(".0") and short.lstrip("-").isdigit() else word


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT (unequal to itself) or NA (equal to nothing)."""
    try:
        return value is None or not bool(value == value)
    except TypeError:
        return True


def index(name: str, value: Any) -> Ints:
    """Return a one-dimensional array of indices from 0."""
    found = plain_array(name, value)
    if found.ndim != 1:
        raise InputError(f"{name} must be a one-dimensional array, got shape {found.shape}")
    if holds_whole(found):
        found = found.astype(np.int64)
    if found.dtype.kind not in "iu":
        raise InputTypeError(f"{name} must be an array of whole numbers, got {found.dtype}")
    if len(found) and int(found.min()) < 0:
        raise InputError(f"{name} must not be negative, got {int(found.min())}")
    if len(found) and int(found.max()) >= LARGEST:
        raise InputError(f"{name} must be indices below 2^31, got {int(found.max())}")
    return found.astype(np.int64, copy=False)
