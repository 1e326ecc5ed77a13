"""Ratings files through duckdb: every line is used or accounted for.

CSV, TSV, MovieLens `::`, Parquet, plain or gzipped; three columns (row, column, value) or more, of
which the first three count unless the header names them; identifiers are strings or whole numbers.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt._check import InputError, MissingExtraError, choice
from overt.completion.ratings import Triplets, identified

DUPLICATES = ("mean", "last", "error")

_ROW = ("user", "userid", "user_id", "row", "row_id", "customer", "customer_id")
_COL = ("item", "itemid", "item_id", "movie", "movieid", "movie_id", "col", "column", "product")
_VALUE = ("rating", "value", "score", "stars")


@dataclass(frozen=True)
class Table:
    """Good lines of a file, as text, and what was wrong with the others."""

    rows: NDArray[Any]
    cols: NDArray[Any]
    values: NDArray[np.float64]
    rejected: list[tuple[int, str, str]]  # line number, reason, the line
    duplicates: int


def read_ratings(path: str | os.PathLike[str], duplicates: str = "mean") -> tuple[Triplets, Table]:
    """Read row identifier, column identifier, value; entries given twice are merged.

    duplicates
        "mean" averages them, "last" keeps the last one, "error" refuses the file.
    """
    choice("duplicates", duplicates, DUPLICATES)
    table = _read(Path(path), with_values=True, duplicates=duplicates)
    if not len(table.values):
        raise InputError(f"{path} has no usable line (row, column, value)" + _first(table))
    return identified(table.rows, table.cols, table.values), table


def read_pairs(path: str | os.PathLike[str]) -> Table:
    """Read row and column identifiers of entries to predict, in the order of the file."""
    table = _read(Path(path), with_values=False, duplicates="keep")
    if not len(table.rows):
        raise InputError(f"{path} has no usable line (row, column)" + _first(table))
    return table


def write_rejected(path: Path, table: Table) -> None:
    """Write line number, reason and content of every line that was not used."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("line", "reason", "content"))
        writer.writerows(table.rejected)


def _read(path: Path, *, with_values: bool, duplicates: str) -> Table:
    if not path.exists():
        raise InputError(f"there is no file {path}")
    db = _duckdb().connect()
    try:
        if path.suffix == ".parquet":
            _load_parquet(db, path, with_values)
            return _collect(db, [], with_values, duplicates, path)
        if _load_clean(db, path, with_values):
            table = _collect(db, [], with_values, duplicates, path)
            if not table.rejected:
                return table
            db.execute("drop table lines; drop table judged")
        rejected = _load_lines(db, path, with_values)
        return _collect(db, rejected, with_values, duplicates, path)
    finally:
        db.close()


def _load_clean(db: Any, path: Path, with_values: bool) -> bool:
    """Load a file without faults at duckdb's speed; return False if it has any."""
    delimiter, header = _dialect(path, with_values)
    if delimiter == " ":
        return False
    places = _places(header, with_values) if header is not None else (0, 1, 2)
    columns = len(header) if header is not None else _dialect_width(path, delimiter)
    if columns <= max(places[: 3 if with_values else 2]):
        return False
    types = "{" + ", ".join(f"'c{i}': 'VARCHAR'" for i in range(columns)) + "}"
    value = f"c{places[2]}" if with_values else "null::varchar"
    try:
        db.execute(
            "create table lines as select row_number() over () as n, "  # noqa: S608
            f"c{places[0]} a, c{places[1]} b, {value} v from read_csv(?, delim = ?, header = ?, "
            f"columns = {types}, auto_detect = false, quote = '\"', escape = '\"')",
            [str(path), delimiter, header is not None],
        )
    except _duckdb().Error:
        return False
    return True


def _dialect_width(path: Path, delimiter: str) -> int:
    parts = next((_split(line, delimiter) for _, line in _lines(path) if line.strip()), None)
    return len(parts) if parts else 0


def _load_lines(db: Any, path: Path, with_values: bool) -> list[tuple[int, str, str]]:
    """Load a file line by line; return the lines that do not have the right fields."""
    delimiter, header = _dialect(path, with_values)
    first = None
    places = _places(header, with_values) if header is not None else (0, 1, 2)
    needed = 3 if with_values else 2
    rejected: list[tuple[int, str, str]] = []
    numbers, fields = [], []
    for number, line in _lines(path):
        if not line.strip():
            rejected.append((number, "empty line", line))
            continue
        parts = _split(line, delimiter)
        if header is not None and parts == header:
            if first is not None:
                rejected.append((number, "header repeated", line))
            first = number
            continue
        if parts is None:
            rejected.append((number, "quote not closed", line))
            continue
        if len(parts) <= max(places[:needed]):
            rejected.append((number, f"{len(parts)} field(s), {needed} needed", line))
            continue
        chosen = [parts[i] for i in places[:needed]]
        numbers.append(number)
        fields.append(chosen)
    columns = list(zip(*fields, strict=True)) if fields else [()] * needed
    arrays = {"n": np.array(numbers, dtype=np.int64)}
    for name, column in zip("abv", columns, strict=False):
        arrays[name] = np.array(column, dtype=object)
    _register(db, arrays, with_values)
    return rejected


def _load_parquet(db: Any, path: Path, with_values: bool) -> None:
    names = [row[0] for row in db.execute("describe from read_parquet(?)", [str(path)]).fetchall()]
    if len(names) < (3 if with_values else 2):
        raise InputError(f"{path} must have columns row, column, value, got {', '.join(names)}")
    places = _places([name.lower() for name in names], with_values)
    a, b, *v = ('"' + names[i].replace('"', '""') + '"' for i in places)
    value = f"{v[0]}::varchar" if with_values else "null"
    db.execute(
        "create table lines as select row_number() over () as n, "  # noqa: S608
        f"{a}::varchar as a, {b}::varchar as b, {value} as v from read_parquet(?)",
        [str(path)],
    )


def _register(db: Any, arrays: dict[str, NDArray[Any]], with_values: bool) -> None:
    db.register("given", arrays)
    value = "v::varchar" if with_values else "null::varchar"
    db.execute(f"create table lines as select n, a::varchar a, b::varchar b, {value} v from given")  # noqa: S608
    db.unregister("given")


def _collect(
    db: Any,
    rejected: list[tuple[int, str, str]],
    with_values: bool,
    duplicates: str,
    path: Path,
) -> Table:
    """Judge fields, merge duplicates and return columns, in the order of the file."""
    db.execute(
        "create table judged as select n, trim(a) a, trim(b) b, v, try_cast(trim(v) as double) x "
        "from lines"
    )
    test = "when x is null then 'not a number' when not isfinite(x) then 'not a finite number'"
    bad = db.execute(
        "select n, case when a is null or a = '' then 'row identifier missing' "  # noqa: S608
        "when b is null or b = '' then 'column identifier missing' "
        f"{test if with_values else ''} else null end reason, concat_ws(',', a, b, v) "
        "from judged where reason is not null order by n"
    ).fetchall()
    rejected = sorted(rejected + [(int(n), str(why), str(line)) for n, why, line in bad])
    good = "a <> '' and b <> ''" + (" and isfinite(x)" if with_values else "")
    count, distinct = db.execute(
        f"select count(*), count(distinct (a, b)) from judged where {good}"  # noqa: S608
    ).fetchone()
    repeated = int(count - distinct) if with_values else 0
    if repeated and duplicates == "error":
        a, b = db.execute(
            f"select a, b from judged where {good} group by a, b having count(*) > 1 limit 1"  # noqa: S608
        ).fetchone()
        raise InputError(
            f"{path} has {repeated} duplicate entries, such as ({a}, {b}); choose --duplicates "
            "mean or last to merge them"
        )
    if with_values:
        value = "avg(x)" if duplicates == "mean" else "arg_max(x, n)"
        query = f"select a, b, {value} x from judged where {good} group by a, b order by min(n)"  # noqa: S608
    else:
        query = f"select a, b, null x from judged where {good} order by n"  # noqa: S608
    found = db.execute(query).fetchnumpy()
    a, b = (_identifiers(np.asarray(found[name], dtype=object)) for name in "ab")
    x = np.asarray(found["x"], dtype=float) if with_values else np.full(len(a), np.nan)
    return Table(a, b, x, rejected, repeated)


def _identifiers(names: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers where every identifier is one as written, strings otherwise."""
    text = names.astype(str)
    try:
        numbers = text.astype(np.int64)
    except (ValueError, OverflowError):
        return text
    return numbers if np.array_equal(numbers.astype(text.dtype), text) else text


def _dialect(path: Path, with_values: bool) -> tuple[str, list[str] | None]:
    """Return the delimiter, and the header line's fields if there is a header."""
    for _, line in _lines(path):
        if line.strip():
            break
    else:
        raise InputError(f"{path} is empty")
    counts = {d: line.count(d) for d in ("::", "\t", ";", ",")}
    delimiter = next((d for d, c in counts.items() if c), None)
    if delimiter is None:
        if len(line.split()) < 2:
            raise InputError(
                f"{path}: the first line has no delimiter (comma, tab, semicolon, ::, spaces): "
                f"{line[:60]!r}"
            )
        delimiter = " "
    parts = _split(line, delimiter)
    if parts is None:
        return delimiter, None
    names = [part.lower() for part in parts]
    known = {*_ROW, *_COL, *_VALUE}
    if with_values:
        return delimiter, None if len(parts) > 2 and _number(parts[2]) else parts
    return delimiter, parts if any(name in known for name in names) else None


def _places(header: list[str], with_values: bool) -> tuple[int, ...]:
    """Return where row, column and value stand, by name where all are known, else in order."""
    names = [name.strip().lower() for name in header]
    found = [
        next((i for i, name in enumerate(names) if name in accepted), None)
        for accepted in (_ROW, _COL, _VALUE)[: 3 if with_values else 2]
    ]
    if all(place is not None for place in found):
        return tuple(place for place in found if place is not None)
    return (0, 1, 2)[: 3 if with_values else 2]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without their ends or a byte-order mark.

    Bytes that are not UTF-8 become replacement characters.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with (
        opener(path, "rb") as raw,
        io.TextIOWrapper(raw, "utf-8-sig", errors="replace", newline="\n") as text,
    ):
        for number, line in enumerate(text, 1):
            yield number, line.rstrip("\r\n")


def _split(line: str, delimiter: str) -> list[str] | None:
    """Return the fields of a line, or None if a quote is not closed."""
    if delimiter == " ":
        return line.split()
    if '"' not in line:
        return [part.strip() for part in line.split(delimiter)]
    if line.count('"') % 2:
        return None
    if len(delimiter) > 1:
        return [part.strip().strip('"') for part in line.split(delimiter)]
    return [part.strip() for part in next(csv.reader([line], delimiter=delimiter))]


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first(table: Table) -> str:
    if not table.rejected:
        return ""
    number, reason, _ = table.rejected[0]
    return f"; the first of {len(table.rejected)} rejected lines is line {number}: {reason}"


def _duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError:
        raise MissingExtraError("duckdb", "files") from None
    return duckdb
