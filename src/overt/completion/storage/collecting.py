"""Lines in a database become ratings: fields are judged, names numbered, duplicates merged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from overt._check import InputError
from overt._mapped import slices
from overt._types import Array, Floats, Ints
from overt.completion.storage.text import Rejected
from overt.entries import Entries
from overt.entries.entries import merge_duplicates
from overt.entries.identifiers import as_identifiers

LONGEST = 1000
"""Characters of an identifier; what is longer is taken for damage."""


class Columns(NamedTuple):
    """Names of the columns used, those guessed, their places; lines that are not counted."""

    header: tuple[str, ...]
    guessed: tuple[str, ...]
    places: dict[str, int]
    skipped: int = 0


NUMBER = """coalesce(try_cast(trim(v::varchar) as double), case when regexp_full_match(
trim(v::varchar), '[+-]?[0-9]*,[0-9]+') and not regexp_full_match(trim(v::varchar),
'[+-]?[1-9][0-9]{0,2},[0-9]{3}') then try_cast(replace(trim(v::varchar), ',', '.') as double) end)
"""
"""A number, also with a decimal comma: 4,5 is 4.5, but 1,234 may be more than a thousand."""


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
    guessed
        Which of row, col and value were taken by their place, since no name told.
    times
        When each entry was observed, in seconds or in the file's numbers, where it says.
    clicks
        Whether the file has rows and columns only; values are then 1.
    untimed
        Number of entries without a time that can be read where others have one; `times` is then
        left out.
    """

    rows: Ints
    cols: Ints
    values: Floats
    row_ids: Array
    col_ids: Array
    rejected: list[Rejected]
    duplicates: int
    header: tuple[str, ...]
    guessed: tuple[str, ...] = ()
    times: Floats | None = None
    clicks: bool = False
    untimed: int = 0

    @cached_property
    def entries(self) -> Entries:
        """The ratings, ready for `fit`."""
        shape = (len(self.row_ids), len(self.col_ids))
        ids = (self.row_ids, self.col_ids)
        return Entries(self.rows, self.cols, self.values, shape, *ids, self.times)

    def __repr__(self) -> str:
        counts = f"{len(self.rejected)} rejected, {self.duplicates} duplicates"
        return f"RatingsFile({len(self.rows)} entries, {counts})"


def collect(
    db: Any, rejected: list[Rejected], duplicates: str | None, path: Path, read: Columns
) -> RatingsFile:
    """Judge fields, merge duplicates and return columns, in the order of the file."""
    rejected = sorted(rejected + judge(db, duplicates is not None, read))
    clicks = duplicates is not None and "value" not in read.places
    row_ids, col_ids = (number_names(db, name) for name in "ab")
    good = "from judged join a_codes using (a) join b_codes using (b) where reason is null"
    query = f"select a_code, b_code, x, t {good} order by n"
    rows, cols, x, times = fetched(db, query, "a_code", "b_code")
    repeated = 0
    if duplicates is None:
        x = np.full(len(rows), np.nan)
    elif found := merge_duplicates(rows, cols, x, times, "count" if clicks else duplicates):
        first, repeated = found[0], len(rows) - len(found[0])
        if duplicates == "error":
            again = int(np.delete(np.arange(len(rows)), first)[0])
            raise refused(path, repeated, row_ids[rows[again]], col_ids[cols[again]])
        rows, cols, x, times = rows[first], cols[first], *found[1:]
    told, untimed = times_told(times)
    return RatingsFile(
        rows, cols, x, row_ids, col_ids, rejected, repeated, read.header, read.guessed, told,
        clicks, untimed,
    )  # fmt: skip


def judge(db: Any, valued: bool, read: Columns) -> list[Rejected]:
    """Make the table `judged` of `lines`; return those with a fault. Whole numbers stay numbers."""
    types, wrong, names = types_of(db, "lines"), [], []
    for name, side in (("a", "row"), ("b", "column")):
        wrong.append(f"when {name} is null then '{side} identifier missing'")
        names.append(name if types[name] == "BIGINT" else f"{_written(name)} {name}")
        if types[name] != "BIGINT":
            wrong.append(
                f"when {name} = '' then '{side} identifier missing' "
                f"when contains({name}, chr(0)) then '{side} identifier with a null character' "
                f"when length({name}) > {LONGEST} "
                f"then '{side} identifier longer than {LONGEST} characters'"
            )
    x = "v" if types["v"] == "DOUBLE" else NUMBER
    if valued and "value" not in read.places:
        x = "1.0::double"
    elif valued:
        wrong.append("when x is null then 'not a number'")
        wrong.append("when not isfinite(x) then 'not a finite number'")
    db.execute(
        "create table judged as select *, case " + " ".join(wrong) + " else null end reason from "  # noqa: S608
        f"(select n, {', '.join(names)}, v, {x} x, coalesce(try_cast(t as double), "
        "epoch(try_cast(t as timestamp))) t from lines)"
    )
    bad = db.execute(
        "select n, reason, concat_ws(',', a, b, v) from judged where reason is not null"
    ).fetchall()
    return [Rejected(int(n), str(why), str(line)) for n, why, line in bad]


def times_told(times: Floats) -> tuple[Floats | None, int]:
    """Return times if all entries have one, and how many have none where others have."""
    missing = sum(int(np.isnan(times[some]).sum()) for some in slices(len(times), times))
    return (times, 0) if len(times) and not missing else (None, missing % max(len(times), 1))


def refused(path: Any, repeated: int, a: Any, b: Any) -> InputError:
    """Return what is said of duplicates that are not wanted."""
    return InputError(
        f"{path} has {repeated} duplicate entries, such as ({a}, {b}); duplicates 'mean' or "
        "'last' would merge them"
    )


def types_of(db: Any, table: str) -> dict[str, str]:
    """Return the types of a table's columns."""
    return {row[0]: row[1] for row in db.execute(f"describe {table}").fetchall()}


def fetched(db: Any, query: str, *names: str) -> tuple[Ints, Ints, Floats, Floats]:
    """Return rows, columns, values and times (NaN where they are not told)."""
    kinds = dict.fromkeys(names, np.int64) | {"x": np.float64, "t": np.float64}
    found = db.execute(query).fetchnumpy()
    arrays = (np.ma.asarray(found[name]) for name in kinds)
    pairs = zip(arrays, kinds.values(), strict=True)
    filled: Any = (np.ma.filled(a.astype(t), np.nan if t is np.float64 else 0) for a, t in pairs)
    rows, cols, x, times = filled
    return rows, cols, x, times


def number_names(db: Any, name: str) -> Array:
    """Return the sorted identifiers of a column; table NAME_codes gets their positions."""
    query = f"select distinct {name} from judged where reason is null"  # noqa: S608
    names = np.array([row[0] for row in db.execute(query).fetchall()], dtype=object)
    ids = _identifiers(names)
    order = np.argsort(ids, kind="stable")
    codes = np.empty(len(ids), np.int64)
    codes[order] = np.arange(len(ids))
    kind = "bigint" if types_of(db, "judged")[name] == "BIGINT" else "varchar"
    db.execute(f"create or replace table {name}_codes ({name} {kind}, {name}_code bigint)")
    if len(ids):
        db.register("given", {"name": names, "code": codes})
        db.execute(f"insert into {name}_codes select name, code from given")  # noqa: S608
        db.unregister("given")
    return ids[order]


def _written(name: str) -> str:
    """Return an identifier as it is written, 196.0 as 196."""
    return rf"regexp_replace(trim({name}::varchar), '^(-?[0-9]+)[.]0+$', '\1')"


def _identifiers(names: Array) -> Array:
    """Return whole numbers where every identifier is one as written, strings otherwise."""
    words = names.tolist()
    if words and isinstance(words[0], int):
        return np.array(words, dtype=np.int64)
    try:
        numbers = list(map(int, words))
        if list(map(str, numbers)) == words:
            return np.array(numbers, dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    return as_identifiers("identifiers", words)
