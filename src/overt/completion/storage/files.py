"""Ratings files through duckdb: every line is used or accounted for.

CSV, TSV, MovieLens `::`, Parquet, plain or gzipped (told by content, not by name); three columns
(row, column, value) or more, of which the first three count unless the header names them;
identifiers are strings or whole numbers.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError, choice
from overt._files import as_path, is_number, reading
from overt._mapped import n_bytes
from overt.completion.storage import folders, loading, text
from overt.completion.storage.collecting import Columns, RatingsFile, collect
from overt.completion.storage.text import Said
from overt.entries.entries import DUPLICATES

MAX_DECIMAL_SHARE = 0.1
"""Share of decimal numbers among identifiers beyond which a file is a table, not ratings."""

DECIMAL_SAMPLE = 1000
"""Identifiers that are looked at for it."""

LARGEST_VALUE = 1e8
"""Values that are mostly larger are no ratings where a column was only guessed."""

FEW, ALL_DIFFERENT = 20, 0.95
"""Of so many lines, such a share of different identifiers makes a guess of the column absurd."""


def read_ratings(
    path: str | os.PathLike[str], duplicates: str = "mean", *, row: str | None = None,
    col: str | None = None, value: str | None = None, time: str | None = None,
    memory_limit: Any = None,
) -> RatingsFile:  # fmt: skip
    """Read row identifier, column identifier and value from each line of a file.

    CSV, TSV, MovieLens `::` and Parquet are read, plain or gzipped. `row`, `col`, `value` and
    `time` name columns (or number them, from 1); without, known names count (user, item, rating,
    timestamp and the like), and then the order. A file of two columns is of clicks, with values 1.
    `duplicates` says what becomes of an entry given more than once: "mean" averages, "last" keeps
    the latest one, or without times the last, "error" refuses. The result has the `entries`,
    ready for `fit`, and an account of the other lines.

    The files of a folder are read one after the other. With a folder, or with a `memory_limit`
    (bytes, or "4GB"), entries are kept in mapped files and may be more than memory holds.
    """
    choice("duplicates", duplicates, DUPLICATES)
    path = as_path("path", path)
    said, limit = {"row": row, "col": col, "value": value, "time": time}, n_bytes(memory_limit)
    with reading(path, "cannot be read as ratings"):
        if path.is_dir() or (limit is not None and path.exists()):
            read = folders.read_folder(path, duplicates, said, limit)
        else:
            read = _read(path, duplicates, (), said)
    if not len(read.values):
        raise InputError(f"{path} has no usable line (row, column, value)" + _first(read))
    refuse_absurd(read, path, said)
    if read.untimed:
        warnings.warn(
            f"{read.untimed} of {len(read.values)} entries of {path} have no time that can be "
            "read: times are left out",
            stacklevel=2,
        )
    return read


def is_path(given: Any) -> bool:
    """Whether something names a file or folder."""
    return isinstance(given, (str, os.PathLike))


@dataclass(frozen=True)
class FileReport:
    """What became of the lines of a ratings file that a model was fitted to.

    `rejected` has the line number, the reason and the content of each line that was not used.
    """

    path: str
    used: int
    rejected: list[text.Rejected]
    duplicates: int
    header: tuple[str, ...]
    guessed: tuple[str, ...]
    clicks: bool


def report(path: Any, read: Any) -> FileReport:
    """Return what became of the lines of a file, with a warning for each thing to look at."""
    used = len(read.entries) + read.duplicates
    found = FileReport(
        os.fspath(path),
        used,
        read.rejected,
        read.duplicates,
        read.header,
        read.guessed,
        read.clicks,
    )
    if found.guessed:
        warnings.warn(
            f"{path}: {', '.join(found.guessed)} were taken by the place of their columns "
            f"({', '.join(found.header)}); overt.completion.read_ratings(path, row=..., col=..., "
            "value=...) names them",
            stacklevel=3,
        )
    if found.duplicates and not found.clicks:
        warnings.warn(f"{path}: {found.duplicates} duplicate entries were averaged", stacklevel=3)
    if found.rejected:
        first = found.rejected[0]
        warnings.warn(
            f"{path}: {len(found.rejected)} of {used + len(found.rejected)} lines were rejected, "
            f"the first is line {first.line}: {first.reason}; see file_report_.rejected",
            stacklevel=3,
        )
    return found


def refuse_absurd(read: Any, path: Any, said: Said) -> None:
    """Refuse a guess of columns that cannot be meant: times for values, a row for each line."""
    count, wrong = len(read.entries), ""
    if "value" in read.guessed and np.median(np.abs(read.values)) > LARGEST_VALUE:
        wrong = f"values as large as {np.abs(read.values).max():.3g}, like times or identifiers"
    for role, ids in (("row", read.row_ids), ("col", read.col_ids)):
        if role in read.guessed and count >= FEW and len(ids) > ALL_DIFFERENT * count:
            wrong = f"a different {role} on nearly every line"
    if read.guessed and not read.clicks and read.duplicates > max(FEW, count):
        wrong = f"{read.duplicates} duplicates of {count} entries"
    for role, ids in (("row", read.row_ids), ("col", read.col_ids)):
        if said.get(role) is None and _decimal_share(ids) > MAX_DECIMAL_SHARE:
            wrong = (
                f"decimal numbers for identifiers ({role}), as in a table with a row of the matrix "
                "on each line; give tables as an array or a data frame"
            )
    if wrong:
        used = ", ".join(read.header)
        raise InputError(
            f"{path}: taking the columns {used} for row, column and value gives {wrong}; say "
            "which columns they are"
        )


def _decimal_share(ids: Any) -> float:
    """Return the share of identifiers that are numbers with a fraction."""
    words = ids[:DECIMAL_SAMPLE].tolist() if ids.dtype.kind != "i" else []
    return sum("." in word and is_number(word) for word in words) / max(1, len(words))


def read_pairs(
    path: str | os.PathLike[str], header: Sequence[str] = (), said: Said | None = None
) -> RatingsFile:
    """Read row and column identifiers of entries to predict, in the order of the file.

    `header` has names by which a header line is known, beside the usual ones.
    """
    path = as_path("path", path)
    with reading(path, "cannot be read as pairs"):
        read = _read(path, None, header, said)
    if not len(read.rows):
        raise InputError(f"{path} has no usable line (row, column)" + _first(read))
    return read


def _read(
    path: Path, duplicates: str | None, names: Sequence[str] = (), said: Said | None = None
) -> RatingsFile:
    """Read a file with values (`duplicates` says what to do with repeated ones) or without."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    if path.is_dir():
        raise InputError(f"{path} is a folder; a file is needed")
    with loading.readable(path):
        return _read_file(path, duplicates, names, said)


def _read_file(
    path: Path, duplicates: str | None, names: Sequence[str], said: Said | None
) -> RatingsFile:
    magic = text.first_bytes(path)
    db = loading.duckdb().connect()
    try:
        if magic == b"PAR1":
            read = loading.load_parquet(db, path, duplicates is not None, said or {})
            return collect(db, [], duplicates, path, read)
        loading.refuse_archives(path, magic)
        dialect = text.find_dialect(path, duplicates is not None, names, said)
        read = Columns(dialect.used, tuple(dialect.guessed), dialect.places)
        if loading.load_clean(db, path, dialect):
            table = collect(db, [], duplicates, path, read)
            if not table.rejected:
                return table
            db.execute("drop table lines; drop table judged")
        rejected = loading.load_lines(db, path, dialect)
        return collect(db, rejected, duplicates, path, read)
    finally:
        db.close()


def _first(read: RatingsFile) -> str:
    if not read.rejected:
        return ""
    line, reason, _ = read.rejected[0]
    return f"; the first of {len(read.rejected)} rejected lines is line {line}: {reason}"
