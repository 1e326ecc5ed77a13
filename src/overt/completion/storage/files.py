"""Ratings files through duckdb: every line is used or accounted for.

CSV, TSV, MovieLens `::`, Parquet, plain or gzipped (told by content, not by name); three columns
(row, column, value) or more, of which the first three count unless the header names them;
identifiers are strings or whole numbers.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError, InputTypeError, MissingExtraError, choice
from overt.completion.storage import text
from overt.completion.storage.collecting import Columns, RatingsFile, collect
from overt.completion.storage.text import ORDER, Dialect, Rejected, Said

DUPLICATES = ("mean", "last", "error")

BATCH = 100_000
"""Lines of a file with faults that are read at once."""


LARGEST_VALUE = 1e8
"""Values that are mostly larger are no ratings where a column was only guessed."""

FEW, ALL_DIFFERENT = 20, 0.95
"""Of so many lines, such a share of different identifiers makes a guess of the column absurd."""


def read_ratings(
    path: str | os.PathLike[str], duplicates: str = "mean", *, row: str | None = None,
    col: str | None = None, value: str | None = None, time: str | None = None,
) -> RatingsFile:  # fmt: skip
    """Read row identifier, column identifier and value from each line of a file.

    CSV, TSV, MovieLens `::` and Parquet are read, plain or gzipped. `row`, `col`, `value` and
    `time` name columns (or number them, from 1); without, known names count (user, item, rating,
    timestamp and the like), and then the order. A file of two columns is of clicks, with values 1.
    `duplicates` says what becomes of an entry given more than once: "mean" averages, "last" keeps
    the latest one, or without times the last, "error" refuses. The result has the `entries`,
    ready for `fit`, and an account of the other lines.
    """
    choice("duplicates", duplicates, DUPLICATES)
    said = {"row": row, "col": col, "value": value, "time": time}
    if not isinstance(path, (str, os.PathLike)) or "\0" in str(path):
        raise InputTypeError(f"path must be the path of a file, got {type(path).__name__}")
    read = _read(Path(path), duplicates, (), said)
    if not len(read.values):
        raise InputError(f"{path} has no usable line (row, column, value)" + _first(read))
    _refuse_absurd(read, path)
    return read


def _refuse_absurd(read: RatingsFile, path: Any) -> None:
    """Refuse a guess of columns that cannot be meant: times for values, a row for each line."""
    count, wrong = len(read.rows), ""
    if "value" in read.guessed and np.median(np.abs(read.values)) > LARGEST_VALUE:
        wrong = f"values as large as {np.abs(read.values).max():.3g}, like times or identifiers"
    for role, ids in (("row", read.row_ids), ("col", read.col_ids)):
        if role in read.guessed and count >= FEW and len(ids) > ALL_DIFFERENT * count:
            wrong = f"a different {role} on nearly every line"
    if wrong:
        used = ", ".join(read.header)
        raise InputError(
            f"{path}: taking the columns {used} for row, column and value gives {wrong}; say "
            "which columns they are"
        )


def read_pairs(
    path: str | os.PathLike[str], header: Sequence[str] = (), said: Said | None = None
) -> RatingsFile:
    """Read row and column identifiers of entries to predict, in the order of the file.

    `header` has names by which a header line is known, beside the usual ones.
    """
    read = _read(Path(path), None, header, said)
    if not len(read.rows):
        raise InputError(f"{path} has no usable line (row, column)" + _first(read))
    return read


def _read(
    path: Path, duplicates: str | None, names: Sequence[str] = (), said: Said | None = None
) -> RatingsFile:
    """Read a file with values (`duplicates` says what to do with repeated ones) or without."""
    if not path.exists():
        raise InputError(f"there is no file {path}")
    if path.is_dir():
        raise InputError(f"{path} is a folder; a file is needed")
    magic = text.first_bytes(path)
    db = _duckdb().connect()
    try:
        if magic == b"PAR1":
            read = _load_parquet(db, path, duplicates is not None, said or {})
            return collect(db, [], duplicates, path, read)
        if path.suffix.lower() == ".parquet" or magic == b"PK\x03\x04":
            kind = "a Parquet file" if magic[:2] != b"PK" else "text but a zip archive or workbook"
            raise InputError(f"{path} is not {kind}; accepted are CSV, TSV, ::, Parquet, and gzip")
        dialect = text.find_dialect(path, duplicates is not None, names, said)
        read = Columns(dialect.used, tuple(dialect.guessed), dialect.places)
        if _load_clean(db, path, dialect):
            table = collect(db, [], duplicates, path, read)
            if not table.rejected:
                return table
            db.execute("drop table lines; drop table judged")
        rejected = _load_lines(db, path, dialect)
        return collect(db, rejected, duplicates, path, read)
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeError, _duckdb().Error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} cannot be read, it may be damaged: {reason}") from None
    finally:
        db.close()


def _load_clean(db: Any, path: Path, dialect: Dialect) -> bool:
    """Load a file without faults at duckdb's speed; return False if it has any."""
    if dialect.delimiter == " " or (dialect.header is not None and dialect.header[0] != 1):
        return False
    if text.first_bytes(path)[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return False
    types = "{" + ", ".join(f"'c{i}': 'VARCHAR'" for i in range(dialect.width)) + "}"
    a, b, v, t = (
        f"c{dialect.places[role]}" if role in dialect.places else "null::varchar" for role in ORDER
    )
    try:
        db.execute(
            "create table lines as select row_number() over () as n, "  # noqa: S608
            f"{a} a, {b} b, {v} v, {t} t from read_csv(?, delim = ?, "
            f"header = ?, columns = {types}, auto_detect = false, quote = '\"', escape = '\"', "
            "compression = ?)",
            [_literal(path), dialect.delimiter, dialect.header is not None, text.compression(path)],
        )
    except _duckdb().Error:
        return False
    return True


def _load_lines(db: Any, path: Path, dialect: Dialect) -> list[Rejected]:
    """Load a file line by line; return the lines that do not have the right fields."""
    rejected: list[Rejected] = []
    names = [name for name, role in zip("abvt", ORDER, strict=True) if role in dialect.places]
    db.execute("create table lines (n bigint, a varchar, b varchar, v varchar, t varchar)")
    lines = text.numbered_lines(path)
    while batch := list(islice(lines, BATCH)):
        numbers, fields = [], []
        for number, line in batch:
            found = text.fields_of(number, line, dialect)
            if isinstance(found, str):
                rejected.append(Rejected(number, found, line))
            elif found:
                numbers.append(number)
                fields.append(found)
        if fields:
            columns = {"n": np.array(numbers, dtype=np.int64)}
            for name, column in zip(names, zip(*fields, strict=True), strict=True):
                columns[name] = np.array(column, dtype=object)
            db.register("given", columns)
            db.execute(f"insert into lines (n, {', '.join(names)}) select * from given")  # noqa: S608
            db.unregister("given")
    return rejected


def _load_parquet(db: Any, path: Path, with_values: bool, said: Said) -> Columns:
    """Load a Parquet file; return which columns were used."""
    source = _literal(path)
    names = [row[0] for row in db.execute("describe from read_parquet(?)", [source]).fetchall()]
    if len(names) < 2:
        needed = "row, column, value" if with_values else "row, column"
        raise InputError(f"{path} must have columns {needed}, got {', '.join(names)}")
    places, guessed = text.places_of(names, with_values and len(names) > 2, said, str(path))
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    a, b, v, t = (f"{quoted[places[r]]}::varchar" if r in places else "null" for r in ORDER)
    db.execute(
        "create table lines as select row_number() over () as n, "  # noqa: S608
        f"{a} as a, {b} as b, {v} as v, {t} as t from read_parquet(?)",
        [source],
    )
    return Columns(text.used(places, names), tuple(guessed), places)


def _literal(path: Path) -> str:
    """Return a path of which duckdb takes every character as it is, wildcards too."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in os.fspath(path))


def _first(read: RatingsFile) -> str:
    if not read.rejected:
        return ""
    line, reason, _ = read.rejected[0]
    return f"; the first of {len(read.rejected)} rejected lines is line {line}: {reason}"


def _duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError:
        raise MissingExtraError("duckdb", "files") from None
    return duckdb
