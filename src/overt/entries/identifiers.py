"""Identifiers of rows and columns, and where each one stands.

overt has one rule for "index or identifier". A matrix has identifiers on a side, or it has not.
Where it has, what users give for that side are identifiers; where it has not, they are indices
from 0. `keys="index"` and `keys="id"` say it explicitly. `Entries` always have both.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Set
from contextlib import suppress
from datetime import UTC, date, datetime, time
from functools import cached_property
from typing import Any

import numpy as np

from overt._check import Array, InputError, InputTypeError, Ints, choice, plain_array

UNKNOWN = -1
"""Position of what was never seen."""

MAX_INDEX = np.iinfo(np.int32).max
"""Indices are stored in 32 bits."""

KEYS = ("auto", "id", "index")

SHOWN_UNKNOWN = 3
"""Unknown identifiers that a warning names."""

ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d.*)?")


def as_identifiers(name: str, given: Any) -> Array:
    """Return identifiers as int64 if all are whole numbers, and as strings otherwise.

    196.0 is 196. A date is written in ISO format, with its time only where that is not midnight.
    Strings are Python objects, so that one long identifier does not widen all others.
    """
    if isinstance(given, list) and given and isinstance(given[0], str):
        given = np.array(
            given, dtype=object
        )  # or NumPy would make all as wide as the longest
    ids = plain_array(name, given)
    if ids.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got shape {ids.shape}")
    if ids.dtype.kind == "i" or (ids.dtype.kind == "u" and ids.max(initial=0) < 2**63):
        return ids.astype(np.int64, copy=False)
    words = (
        ids.tolist() if ids.dtype.kind != "M" else ids.astype("datetime64[us]").tolist()
    )
    missing = sum(map(is_missing, words))
    if missing:
        raise InputError(
            f"{name} must not be missing, got {missing} missing identifier(s)"
        )
    if holds_whole(ids):
        return ids.astype(np.int64)
    if ids.dtype.kind in "bcf":
        raise InputTypeError(
            f"{name} must be whole numbers or strings, got {ids.dtype}"
        )
    words = [int(x) if isinstance(x, float) and x.is_integer() else x for x in words]
    if all(type(x) is int and abs(x) < 2**63 for x in words):
        return np.array(words, dtype=np.int64)
    return np.array([_word(x) for x in words], dtype=object)


def _word(value: Any) -> str:
    """Return an identifier as text."""
    if isinstance(value, date):  # datetime and pandas.Timestamp are dates too
        return _iso(value)
    return whole_number(str(value))


def _iso(value: date) -> str:
    """Return a date in ISO format, in universal time if it has a zone, without midnight."""
    if not isinstance(value, datetime):
        return value.isoformat()
    if value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    return value.date().isoformat() if value.time() == time() else value.isoformat()


def _date_word(word: str) -> str | None:
    """Return the ISO format of text that is a date in another spelling, None for other text."""
    if not ISO_DATE.fullmatch(word):
        return None
    with suppress(ValueError):
        return _iso(datetime.fromisoformat(word))
    return None


def holds_whole(array: Array) -> bool:
    """Whether an array of floating-point numbers holds whole ones, which 64 bits can hold too."""
    if array.dtype.kind != "f":
        return False
    with np.errstate(over="ignore"):
        array = array.astype(np.float64)
    return bool(np.all((np.floor(array) == array) & (np.abs(array) < 2**63)))


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


def factorize(ids: Array) -> tuple[Array, Ints]:
    """Return the different identifiers, sorted, and where each one stands among them."""
    if ids.dtype.kind == "i":
        return np.unique(ids, return_inverse=True)
    words = ids.tolist()
    different = sorted(set(words))
    positions = {word: position for position, word in enumerate(different)}
    codes = np.fromiter(map(positions.__getitem__, words), np.int64, len(words))
    return np.array(different, dtype=object), codes


def as_index(name: str, value: Any) -> Ints:
    """Return a one-dimensional array of indices from 0."""
    found = plain_array(name, value)
    if found.ndim != 1:
        raise InputError(
            f"{name} must be a one-dimensional array, got shape {found.shape}"
        )
    if holds_whole(found):
        found = found.astype(np.int64)
    if found.dtype.kind not in "iu":
        raise InputTypeError(
            f"{name} must be an array of whole numbers, got {found.dtype}"
        )
    if found.min(initial=0) < 0:
        raise InputError(f"{name} must be indices from 0, got {found.min()}")
    if found.max(initial=0) >= MAX_INDEX:
        raise InputError(f"{name} must be indices below 2^31, got {found.max()}")
    return found.astype(np.int64, copy=False)


class IdentifierIndex:
    """One side of a matrix: `count` positions, with an identifier each or without.

    Numbers and strings are compared as they are written: 5 finds "5". A date is found in every
    spelling, unless two identifiers are the same date.
    """

    def __init__(self, name: str, count: int, ids: Array | None = None) -> None:
        self.name = name
        self.count = count
        self.ids = ids

    def by(self, keys: str) -> IdentifierIndex:
        """Return the side as it is addressed: "id", "index", or "auto" (identifiers if any)."""
        choice("keys", keys, KEYS)
        if keys == "id" and self.ids is None:
            raise InputError(
                'keys="id" needs a model that was fitted with identifiers, and this one knows '
                f"{self.name} by index"
            )
        return IdentifierIndex(self.name, self.count) if keys == "index" else self

    def find(self, given: Any, name: str | None = None) -> Ints:
        """Return the positions of what users give; UNKNOWN for what was never seen."""
        name = name or self.name
        given = _listed(given)
        if self.ids is None:
            return self._check_positions(name, given)
        if not isinstance(given, list):
            given = np.atleast_1d(plain_array(name, given))
        if not len(given):
            return np.zeros(0, np.int64)
        given = as_identifiers(name, given)
        if given.dtype.kind == self.ids.dtype.kind == "i":
            sorted_ids, order = self._order
            at = np.minimum(np.searchsorted(sorted_ids, given), len(sorted_ids) - 1)
            return np.where(sorted_ids[at] == given, order[at], UNKNOWN)
        words = list(map(str, given.tolist()))
        found = np.array([self._words.get(word, UNKNOWN) for word in words], np.int64)
        for place in np.flatnonzero(found == UNKNOWN):
            spelled = _date_word(words[place])
            if spelled is not None:
                found[place] = self._dates.get(spelled, UNKNOWN)
        return found

    def find_one(self, value: Any) -> int:
        """Return the position of one row or column, which must be known."""
        name = self.name.removesuffix("s")
        if value is np.ma.masked or plain_array(name, value).ndim:
            raise InputError(
                f"{name} must be a single index or identifier, got {value!r}"
            )
        found = int(self.find([value], name)[0])
        if found == UNKNOWN:
            raise InputError(f"{name} {value!r} was not among those fitted")
        return found

    def labels(self, positions: Ints) -> Array:
        """Return what users call these positions: identifiers, or the positions themselves."""
        return positions if self.ids is None else self.ids[positions]

    def extend(self, ids: Array) -> tuple[Ints, Array]:
        """Return positions of identifiers, new ones after all others, and all identifiers."""
        known = np.zeros(0, np.int64) if self.ids is None else self.ids
        found = self.find(ids)
        new = found == UNKNOWN
        found[new] = len(known) + np.arange(np.count_nonzero(new))
        more = ids[new]
        if len(more) and known.dtype.kind != more.dtype.kind:
            known, more = as_text(known), as_text(more)
        return found, np.concatenate([known, more])

    @cached_property
    def _order(self) -> tuple[Array, Ints]:
        ids = np.asarray(self.ids)
        order = np.argsort(ids, kind="stable")
        return ids[order], order

    @cached_property
    def _words(self) -> dict[str, int]:
        words = map(str, np.asarray(self.ids).tolist())
        return {word: position for position, word in enumerate(words)}

    @cached_property
    def _dates(self) -> dict[str, int]:
        """Positions by the ISO format of identifiers that are dates; UNKNOWN where two are one."""
        found: dict[str, int] = {}
        for word, position in self._words.items():
            spelled = _date_word(word)
            if spelled is not None:
                found[spelled] = UNKNOWN if spelled in found else position
        return found

    def _check_positions(self, name: str, given: Any) -> Ints:
        """Return indices; UNKNOWN for those beyond the matrix."""
        given = np.atleast_1d(plain_array(name, given))
        if given.dtype.kind in "OU" and all(str(x).isdecimal() for x in given.tolist()):
            given = np.array(list(map(int, given.tolist())))  # a file has only text
        found = as_index(name, given)
        return np.where(found < self.count, found, UNKNOWN)


def _listed(given: Any) -> Any:
    """Return a set, or the keys of a mapping, as a list."""
    return list(given) if isinstance(given, Set) else given


def as_text(ids: Array) -> Array:
    """Return identifiers as strings, each a Python object."""
    return np.array(list(map(str, ids.tolist())), dtype=object)


def describe_unknown(name: str, given: Any, positions: Ints) -> str:
    """Return a sentence on what was never seen, empty if everything is known."""
    unknown = np.flatnonzero(positions == UNKNOWN)
    if not len(unknown):
        return ""
    values = np.atleast_1d(np.asarray(_listed(given), dtype=object)).tolist()
    different = list(dict.fromkeys(str(values[place]) for place in unknown))
    shown = ", ".join(f"{word:.40}" for word in different[:SHOWN_UNKNOWN])
    more = ", ..." if len(different) > SHOWN_UNKNOWN else ""
    return f"{len(unknown)} of {len(positions)} {name} were never seen ({shown}{more})"


def warn_unknown(
    name: str, given: Any, positions: Ints, then: str, stacklevel: int = 3
) -> None:
    """Warn of identifiers that were never seen; `then` says what becomes of them."""
    found = describe_unknown(name, given, positions)
    if found:
        warnings.warn(f"{found}; {then}", stacklevel=stacklevel)
