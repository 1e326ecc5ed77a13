"""Files of ratings loaded into a table of lines: number, row, column, value, time, as written."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError, MissingExtraError
from overt.completion.storage import text
from overt.completion.storage.collecting import Columns
from overt.completion.storage.text import ORDER, Dialect, Rejected, Said

WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")

BATCH = 100_000
"""Lines of a file with faults that are read at once."""


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what a damaged file makes its reader do into a sentence."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeError, duckdb().Error) as error:
        if isinstance(error, duckdb().InterruptException):
            raise KeyboardInterrupt from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        full = "No space left" in reason or "offload" in reason  # of what it keeps on disk
        why = f"{tempfile.gettempdir()} has no room for it" if full else "it may be damaged"
        raise InputError(f"{path} cannot be read, {why}: {reason}") from None


def refuse_archives(path: Path, magic: bytes) -> None:
    """Refuse what is neither text nor what its name says."""
    if path.suffix.lower() == ".parquet" or magic == b"PK\x03\x04":
        kind = "a Parquet file" if magic[:2] != b"PK" else "text but a zip archive or workbook"
        raise InputError(f"{path} is not {kind}; accepted are CSV, TSV, ::, Parquet, and gzip")
    if magic[:2] == b"\x1f\x8b":  # duckdb does not look at the checksum at the end
        with gzip.open(path) as file:
            while file.read(1 << 20):
                pass


def load_clean(db: Any, path: Path, dialect: Dialect) -> bool:
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
    except duckdb().Error:
        return False
    return True


def load_lines(db: Any, path: Path, dialect: Dialect) -> list[Rejected]:
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


def load_parquet(db: Any, path: Path, with_values: bool, said: Said) -> Columns:
    """Load a Parquet file; return which columns were used."""
    source = _literal(path)
    told = db.execute("describe from read_parquet(?)", [source]).fetchall()
    names = [row[0] for row in told]
    if len(names) < 2:
        needed = "row, column, value" if with_values else "row, column"
        raise InputError(f"{path} must have columns {needed}, got {', '.join(names)}")
    places, guessed = text.places_of(names, with_values and len(names) > 2, said, str(path))
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    kinds = {r: _kind(told[places[r]][1], r) for r in ORDER if r in places}
    a, b, v, t = (
        f"{quoted[places[r]]}::{kinds[r]}" if r in places else "null::varchar" for r in ORDER
    )
    db.execute(
        "create table lines as select row_number() over () as n, "  # noqa: S608
        f"{a} as a, {b} as b, {v} as v, {t} as t from read_parquet(?)",
        [source],
    )
    return Columns(text.used(places, names), tuple(guessed), places)


def _kind(kind: str, role: str) -> str:
    """Return as what a column is kept: numbers as numbers, all else as it is written."""
    if role in ("row", "col") and kind in WHOLE:
        return "bigint"
    return "double" if role == "value" and kind in (*WHOLE, "FLOAT", "DOUBLE") else "varchar"


def _literal(path: Path) -> str:
    """Return a path of which duckdb takes every character as it is, wildcards too."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in os.fspath(path))


def duckdb() -> Any:
    """Return the library."""
    try:
        import duckdb
    except ModuleNotFoundError:
        raise MissingExtraError("duckdb", "files") from None
    return duckdb
