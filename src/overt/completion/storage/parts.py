"""Ratings part by part: identifiers are numbered as they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from overt._check import InputError
from overt._mapped import slices
from overt._types import Array, Floats, Ints
from overt.completion.storage import loading, text
from overt.completion.storage.collecting import Columns, fetched, judge, number_names, types_of
from overt.completion.storage.text import ORDER, Rejected, Said
from overt.entries.identifiers import as_identifiers


class Part(NamedTuple):
    """Some lines: the identifiers of both sides, sorted, which of them, values and times."""

    ids: tuple[Array, Array]
    codes: tuple[Array, Array]
    values: Floats
    times: Floats


class Reading:
    """Files that are read one after the other, with an account of what was not used."""

    def __init__(self, db: Any, said: Said) -> None:
        self._db, self._said = db, said
        self.read: Columns | None = None
        self.rejected: list[Rejected] = []
        self._first = Path()

    def parts(self, path: Path) -> Iterator[Part]:
        """Yield the usable lines of a file."""
        db = self._db
        with loading.readable(path):
            found, wrong = _load(db, path, self._said)
            if self.read is not None and roles(found) != roles(self.read):
                raise InputError(
                    f"{path} has the columns {roles(found)}, {self._first} has "
                    f"{roles(self.read)}; all files must have the same"
                )
            if self.read is None:
                self.read, self._first = found, path
            bad = [Rejected(n + found.skipped, *rest) for n, *rest in judge(db, True, found)]
            db.execute("drop table lines")
            for n, why, line in sorted(wrong + bad):
                self.rejected.append(Rejected(n, f"{path.name}: {why}", line))
            yield from _coded(db)
            db.execute("drop table judged; drop table coded")


def _coded(db: Any) -> Iterator[Part]:
    """Yield slices of the table `judged` in their order; the database numbers words."""
    types, names, joins = types_of(db, "judged"), {}, ""
    for name in "ab":
        if types[name] != "BIGINT":
            names[name] = number_names(db, name)
            joins += f" join {name}_codes using ({name})"
    places = (f"{name}_code" if name in names else name for name in "ab")
    a, b = (f"{place} {name}" for place, name in zip(places, "ab", strict=True))
    order = " order by n" if joins else ""
    db.execute(
        f"create table coded as select {a}, {b}, x, t from judged{joins} "  # noqa: S608
        f"where reason is null{order}"
    )
    count = db.execute("select count(*) from coded").fetchone()[0]
    for some in slices(count):
        bounds = f"rowid >= {some.start} and rowid < {some.stop}"
        *codes, x, t = fetched(db, f"select * from coded where {bounds}", "a", "b")  # noqa: S608
        ids = []
        for side, name in enumerate("ab"):
            if (found := names.get(name)) is None:
                found, codes[side] = np.unique(codes[side], return_inverse=True)
            ids.append(found)
        yield Part((ids[0], ids[1]), (codes[0], codes[1]), x, t)


def _load(db: Any, path: Path, said: Said) -> tuple[Columns, list[Rejected]]:
    """Load one file into the table of lines."""
    magic = text.first_bytes(path)
    if magic == b"PAR1":
        return loading.load_parquet(db, path, True, said), []
    loading.refuse_archives(path, magic)
    dialect = text.find_dialect(path, True, (), said)
    read = Columns(dialect.used, tuple(dialect.guessed), dialect.places)
    if loading.load_clean(db, path, dialect):
        return read._replace(skipped=int(dialect.header is not None)), []
    db.execute("drop table if exists lines")
    return read, loading.load_lines(db, path, dialect)


def roles(read: Columns) -> str:
    """Return the columns that count, by name where they have one."""
    return ", ".join(read.header) or " and ".join(role for role in ORDER if role in read.places)


class Numbering:
    """Identifiers, sorted, how often each was met, and the number it got when first met."""

    def __init__(self) -> None:
        self.ids: Array = np.zeros(0, np.int64)
        self.numbers: Ints = np.zeros(0, np.int64)
        self.counts: Ints = np.zeros(0, np.int64)

    def add(self, found: Array, counts: Ints | int = 0) -> Ints:
        """Return the numbers of different identifiers, of which new ones get the next."""
        if found.dtype.kind != "i" or self.ids.dtype.kind != "i":
            found = words(found)
            if self.ids.dtype.kind == "i":
                known = words(self.ids)
                order = np.argsort(known)
                self.ids = known[order]
                self.numbers, self.counts = self.numbers[order], self.counts[order]
        order = np.argsort(found, kind="stable")
        sought = found[order]
        at = np.searchsorted(self.ids, sought)
        new = at == len(self.ids)
        new[~new] = self.ids[at[~new]] != sought[~new]
        more = len(self.ids) + np.arange(np.count_nonzero(new))
        self.ids = np.insert(self.ids, at[new], sought[new])
        self.numbers = np.insert(self.numbers, at[new], more)
        self.counts = np.insert(self.counts, at[new], 0)
        at = np.empty(len(found), np.int64)
        at[order] = np.searchsorted(self.ids, sought)
        self.counts[at] += counts
        return self.numbers[at]

    @property
    def ranks(self) -> Ints:
        """Where each number stands in the order of identifiers."""
        found = np.empty(len(self.ids), np.int64)
        found[self.numbers] = np.arange(len(self.ids))
        return found


def shown(ids: Array) -> Array:
    """Return identifiers as entries have them."""
    return ids if ids.dtype.kind == "i" else as_identifiers("identifiers", ids.tolist())


def words(ids: Array) -> Array:
    """Return identifiers as they are written."""
    return np.array([*map(str, ids.tolist()), None], dtype=object)[:-1]
