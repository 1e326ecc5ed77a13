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
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError, MissingExtraError, choice
from overt._types import Array, Floats, Ints
from overt.completion.storage import text
from overt.completion.storage.text import Dialect, Rejected
from overt.entries import Entries

DUPLICATES = ("mean", "last", "error")

LONGEST = 1000
"""Characters of an identifier; what is longer is taken for damage."""

BATCH = 100_000
"""Lines of a file with faults that are read at once."""


@dataclass(frozen=True, eq=False, repr=False)
class RatingsFile:
    """What a ratings file holds, every line of it.

    Attributes
    ----------
    rows, cols, values
        Of the lines that were used; values are NaN in a file of pairs.
    row_ids, col_ids
        The identifiers that `rows` and `cols` index, sorted.
    rejected
        The lines that were not used: (line number, reason, content).
    duplicates
        Number of lines that were merged with another of the same row and column.
    header
        Names of the columns that were used, where the file has a header.
    """

    rows: Ints
    cols: Ints
    values: Floats
    row_ids: Array
    col_ids: Array
    rejected: list[Rejected]
    duplicates: int
    header: tuple[str, ...]

    @cached_property
    def entries(self) -> Entries:
        """The ratings, ready for `fit`."""
        shape = (len(self.row_ids), len(self.col_ids))
        return Entries(self.rows, self.cols, self.values, shape, self.row_ids, self.col_ids)

    def __repr__(self) -> str:
        counts = f"{len(self.rejected)} rejected, {self.duplicates} duplicates"
        return f"RatingsFile({len(self.rows)} entries, {counts})"


def read_ratings(path: str | os.PathLike[str], duplicates: str = "mean") -> RatingsFile:
    """Read row identifier, column identifier and value from each line of a file.

    CSV, TSV, MovieLens `::` and Parquet are read, plain or gzipped. `duplicates` says what becomes
    of an entry given more than once: "mean" averages, "last" keeps the last one, "error" refuses.
    The result has the `entries`, ready for `fit`, and an account of the other lines.
    """
    choice("duplicates", duplicates, DUPLICATES)
    read = _read(Path(path), duplicates)
    if not len(read.values):
        raise InputError(f"{path} has no usable line (row, column, value)" + _first(read))
    return read


def read_pairs(path: str | os.PathLike[str], header: Sequence[str] = ()) -> RatingsFile:
    """Read row and column identifiers of entries to predict, in the order of the file.

    `header` has names by which a header line is known, beside the usual ones.
    """
    read = _read(Path(path), None, header)
    if not len(read.rows):
        raise InputError(f"{path} has no usable line (row, column)" + _first(read))
    return read


def _read(path: Path, duplicates: str | None, names: Sequence[str] = ()) -> RatingsFile:
    """Read a file with values (`duplicates` says what to do with repeated ones) or without."""
    if not path.exists():
        raise InputError(f"there is no file {path}")
    if path.is_dir():
        raise InputError(f"{path} is a folder; a file is needed")
    magic = text.first_bytes(path)
    db = _duckdb().connect()
    try:
        if magic == b"PAR1":
            header = _load_parquet(db, path, duplicates is not None)
            return _collect(db, [], duplicates, path, header)
        if path.suffix.lower() == ".parquet" or magic == b"PK\x03\x04":
            kind = "a Parquet file" if magic[:2] != b"PK" else "text but a zip archive or workbook"
            raise InputError(f"{path} is not {kind}; accepted are CSV, TSV, ::, Parquet, and gzip")
        dialect = text.find_dialect(path, duplicates is not None, names)
        header = dialect.used
        if _load_clean(db, path, dialect):
            table = _collect(db, [], duplicates, path, header)
            if not table.rejected:
                return table
            db.execute("drop table lines; drop table judged")
        rejected = _load_lines(db, path, dialect)
        return _collect(db, rejected, duplicates, path, header)
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
    a, b, *v = (f"c{i}" for i in dialect.places)
    try:
        db.execute(
            "create table lines as select row_number() over () as n, "  # noqa: S608
            f"{a} a, {b} b, {v[0] if v else 'null::varchar'} v from read_csv(?, delim = ?, "
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
    names = "abv"[: len(dialect.places)]
    db.execute("create table lines (n bigint, a varchar, b varchar, v varchar)")
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
            value = "v" if len(names) == 3 else "null"
            db.execute(f"insert into lines select n, a, b, {value} from given")  # noqa: S608
            db.unregister("given")
    return rejected


def _load_parquet(db: Any, path: Path, with_values: bool) -> tuple[str, ...]:
    """Load a Parquet file; return the names of the columns used."""
    source = _literal(path)
    names = [row[0] for row in db.execute("describe from read_parquet(?)", [source]).fetchall()]
    if len(names) < (3 if with_values else 2):
        needed = "row, column, value" if with_values else "row, column"
        raise InputError(f"{path} must have columns {needed}, got {', '.join(names)}")
    places = text.places_of(names, with_values)
    a, b, *v = ('"' + names[i].replace('"', '""') + '"' for i in places)
    value = f"{v[0]}::varchar" if v else "null"
    db.execute(
        "create table lines as select row_number() over () as n, "  # noqa: S608
        f"{a}::varchar as a, {b}::varchar as b, {value} as v from read_parquet(?)",
        [source],
    )
    return tuple(names[i] for i in places)


def _collect(
    db: Any, rejected: list[Rejected], duplicates: str | None, path: Path, header: tuple[str, ...]
) -> RatingsFile:
    """Judge fields, merge duplicates and return columns, in the order of the file."""
    wrong = [
        f"when {name} is null or {name} = '' then '{side} identifier missing' "
        f"when contains({name}, chr(0)) then '{side} identifier with a null character' "
        f"when length({name}) > {LONGEST} then '{side} identifier longer than {LONGEST} characters'"
        for name, side in (("a", "row"), ("b", "column"))
    ]
    if duplicates is not None:
        wrong.append("when x is null then 'not a number'")
        wrong.append("when not isfinite(x) then 'not a finite number'")
    db.execute(
        "create table judged as select *, case " + " ".join(wrong) + " else null end reason from "  # noqa: S608
        "(select n, trim(a) a, trim(b) b, v, try_cast(trim(v) as double) x from lines)"
    )
    bad = db.execute(
        "select n, reason, concat_ws(',', a, b, v) from judged where reason is not null"
    ).fetchall()
    rejected = sorted(rejected + [Rejected(int(n), str(why), str(line)) for n, why, line in bad])
    count, distinct = db.execute(
        "select count(*), count(distinct (a, b)) from judged where reason is null"
    ).fetchone()
    repeated = 0 if duplicates is None else int(count - distinct)
    if repeated and duplicates == "error":
        a, b = db.execute(
            "select a, b from judged where reason is null group by a, b having count(*) > 1 limit 1"
        ).fetchone()
        raise InputError(
            f"{path} has {repeated} duplicate entries, such as ({a}, {b}); duplicates 'mean' or "
            "'last' would merge them"
        )
    row_ids, col_ids = (_number_names(db, name) for name in "ab")
    good = "from judged join a_codes using (a) join b_codes using (b) where reason is null"
    if repeated:
        value = "avg(x)" if duplicates == "mean" else "arg_max(x, n)"
        query = f"select a_code, b_code, {value} x {good} group by all order by min(n)"
    else:
        query = f"select a_code, b_code, x {good} order by n"
    found = db.execute(query).fetchnumpy()
    rows, cols = (np.asarray(found[f"{name}_code"], dtype=np.int64) for name in "ab")
    x = np.full(len(rows), np.nan) if duplicates is None else np.asarray(found["x"], dtype=float)
    return RatingsFile(rows, cols, x, row_ids, col_ids, rejected, repeated, header)


def _number_names(db: Any, name: str) -> Array:
    """Return the sorted identifiers of a column; table NAME_codes gets their positions."""
    query = f"select distinct {name} from judged where reason is null"  # noqa: S608
    names = np.array([row[0] for row in db.execute(query).fetchall()], dtype=object)
    ids = _identifiers(names)
    order = np.argsort(ids, kind="stable")
    codes = np.empty(len(ids), np.int64)
    codes[order] = np.arange(len(ids))
    db.execute(f"create or replace table {name}_codes ({name} varchar, {name}_code bigint)")
    if len(ids):
        db.register("given", {"name": names, "code": codes})
        db.execute(f"insert into {name}_codes select name, code from given")  # noqa: S608
        db.unregister("given")
    return ids[order]


def _identifiers(names: Array) -> Array:
    """Return whole numbers where every identifier is one as written, strings otherwise."""
    words = names.astype(str)
    try:
        numbers = words.astype(np.int64)
    except (ValueError, OverflowError):
        return words
    return numbers if np.array_equal(numbers.astype(words.dtype), words) else words


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
