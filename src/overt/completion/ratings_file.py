"""Ratings files, read by DuckDB: every line is used or reported.

CSV, TSV, MovieLens `::` and Parquet, plain or gzipped (recognized by content, not by name); three
columns (row, column, value) or more, of which the first three count unless the header names them.
One file, a folder and a memory limit take the same steps, each a table of the database:

    lines         file, n, identifiers a and b, value v as written and x as a number, time t, and
                  the reason why a line is not used (null: it is used)
    a_ids, b_ids  the identifiers of each side, sorted, with their codes
    coded         usable lines with codes for identifiers
    entries       different entries in the order of lines, duplicates merged

The database sorts and spills to disk by itself.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from overt._check import InputError, MissingExtraError, choice
from overt._io import as_path, is_number, reading
from overt._types import Array, Floats, Ints
from overt.completion import ratings_text as text
from overt.completion.memory import n_bytes, room, slices
from overt.completion.ratings_text import ORDER, Dialect, Rejected, Said
from overt.entries import Entries
from overt.entries.entries import DUPLICATES
from overt.entries.identifiers import as_identifiers

MAX_IDENTIFIER_LENGTH = 1000
"""Characters of an identifier; what is longer is taken for damage."""

MAX_DECIMAL_SHARE = 0.1
"""Share of decimal numbers among identifiers beyond which a file is a table, not ratings."""

DECIMAL_SAMPLE = 1000
"""Identifiers that are looked at for it."""

MAX_GUESSED_VALUE = 1e8
"""Where the value column was guessed, a larger median is that of times or identifiers."""

MIN_LINES_TO_JUDGE = 20
"""Lines below which a guess of columns is not judged by how many identifiers differ."""

MAX_DIFFERENT_SHARE = 0.95
"""Share of different identifiers beyond which a guessed column does not name rows or columns."""

BATCH = 100_000
"""Lines of a file with faults that are read at once."""

DATABASE_SHARE = 0.5
"""Part of a memory limit that the database may take."""

WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
"""Types of Parquet columns that hold whole numbers of 64 bits at most."""

ABSENT = "null::varchar"
"""Cell of a column that a file does not have."""

LINES = """create table lines (file integer, n bigint, a varchar, b varchar, v varchar, x double,
t double, reason varchar)"""

# 4,5 is 4.5, but 1,234 may be more than a thousand, and is no number.
NUMBER = """coalesce(try_cast(trim(v) as double), case when regexp_full_match(trim(v),
'[+-]?[0-9]*,[0-9]+') and not regexp_full_match(trim(v), '[+-]?[1-9][0-9]{0,2},[0-9]{3}')
then try_cast(replace(trim(v), ',', '.') as double) end)"""

TIME = "coalesce(try_cast(t as double), epoch(try_cast(t as timestamp)))"

# 196.0 is 196
IDENTIFIER = r"regexp_replace(trim({0}), '^(-?[0-9]+)[.]0+$', '\1')"

FAULTS = """when {0} is null or {0} = '' then '{1} identifier missing'
when contains({0}, chr(0)) then '{1} identifier with a null character'
when length({0}) > {2} then '{1} identifier longer than {2} characters'"""

NOT_A_NUMBER = """when x is null then 'not a number'
when not isfinite(x) then 'not a finite number'"""

MERGED_VALUE = {
    # In the order of lines, so that the rounding of a mean does not depend on threads.
    "mean": "avg(x order by file, n)",
    "last": "last(x order by coalesce(t, 0), file, n)",
    "count": "count(*)::double",
}


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
        Which of row, col and value were taken by their place, because no name identified them.
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


@dataclass(frozen=True)
class FileReport:
    """What became of the lines of a ratings file that a model was fitted to.

    `rejected` has the line number, the reason and the content of each line that was not used.
    """

    path: str
    used: int
    rejected: list[Rejected]
    duplicates: int
    header: tuple[str, ...]
    guessed: tuple[str, ...]
    clicks: bool


def is_path(given: Any) -> bool:
    """Whether something names a file or folder."""
    return isinstance(given, (str, os.PathLike))


def read_ratings(
    path: str | os.PathLike[str],
    duplicates: str = "mean",
    *,
    row: str | None = None,
    col: str | None = None,
    value: str | None = None,
    time: str | None = None,
    memory_limit: Any = None,
) -> RatingsFile:
    """Read row identifier, column identifier and value from each line of a file.

    CSV, TSV, MovieLens `::` and Parquet are read, plain or gzipped. `row`, `col`, `value` and
    `time` name columns (or number them, from 1); without, known names count (user, item, rating,
    timestamp and the like), and then the order. A file of two columns is of clicks, with values 1.
    `duplicates` says what becomes of an entry given more than once: "mean" averages, "last" keeps
    the latest one, or without times the last, "error" refuses. The result has the `entries`,
    ready for `fit`, and an account of the other lines.

    The files of a folder are read in the order of their names, as one. With a folder, or with a
    `memory_limit` (bytes, or "4GB"), entries are stored in memory-mapped files and may be more
    than memory holds.
    """
    choice("duplicates", duplicates, DUPLICATES)
    path = as_path("path", path)
    said = {"row": row, "col": col, "value": value, "time": time}
    limit = n_bytes(memory_limit)
    with reading(path, "cannot be read as ratings"):
        read = _read(path, duplicates, said, mapped=path.is_dir() or limit is not None, limit=limit)
    if not len(read.values):
        raise InputError(f"{path} has no usable line (row, column, value)" + _first(read))
    _refuse_absurd(read, path, said)
    if read.untimed:
        warnings.warn(
            f"{read.untimed} of {len(read.values)} entries of {path} have no time that can be "
            "read: times are left out",
            stacklevel=2,
        )
    return read


def read_pairs(
    path: str | os.PathLike[str], header: Sequence[str] = (), said: Said | None = None
) -> RatingsFile:
    """Read row and column identifiers of entries to predict, in the order of the file.

    `header` has names by which a header line is known, beside the usual ones.
    """
    path = as_path("path", path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; a file is needed")
    with reading(path, "cannot be read as pairs"):
        read = _read(path, None, said or {}, header=header)
    if not len(read.rows):
        raise InputError(f"{path} has no usable line (row, column)" + _first(read))
    return read


def report(path: Any, read: RatingsFile) -> FileReport:
    """Return what became of the lines of a file, with a warning for each thing to look at."""
    used = len(read.rows) + read.duplicates
    name = os.fspath(path)
    lines = (read.rejected, read.duplicates, read.header, read.guessed, read.clicks)
    if read.guessed:
        warnings.warn(
            f"{name}: {', '.join(read.guessed)} were taken by the place of their columns "
            f"({', '.join(read.header)}); overt.completion.read_ratings(path, row=..., col=..., "
            "value=...) names them",
            stacklevel=3,
        )
    if read.duplicates and not read.clicks:
        warnings.warn(f"{name}: {read.duplicates} duplicate entries were averaged", stacklevel=3)
    if read.rejected:
        first = read.rejected[0]
        warnings.warn(
            f"{name}: {len(read.rejected)} of {used + len(read.rejected)} lines were rejected, "
            f"the first is line {first.line}: {first.reason}; see file_report_.rejected",
            stacklevel=3,
        )
    return FileReport(name, used, *lines)


def duckdb() -> Any:
    """Return the library."""
    try:
        import duckdb
    except ModuleNotFoundError:
        raise MissingExtraError("duckdb", "files") from None
    return duckdb


def _refuse_absurd(read: RatingsFile, path: Path, said: Said) -> None:
    """Refuse columns that cannot be meant: times for values, a row for each line, decimals."""
    count = len(read.rows)
    wrong = ""
    if "value" in read.guessed and np.median(np.abs(read.values)) > MAX_GUESSED_VALUE:
        wrong = f"values as large as {np.abs(read.values).max():.3g}, like times or identifiers"
    if read.guessed and not read.clicks and read.duplicates > max(MIN_LINES_TO_JUDGE, count):
        wrong = f"{read.duplicates} duplicates of {count} entries"
    for role, ids in (("row", read.row_ids), ("col", read.col_ids)):
        different = count >= MIN_LINES_TO_JUDGE and len(ids) > MAX_DIFFERENT_SHARE * count
        if role in read.guessed and different:
            wrong = f"a different {role} on nearly every line"
        if said.get(role) is None and _decimal_share(ids) > MAX_DECIMAL_SHARE:
            wrong = (
                f"decimal numbers for identifiers ({role}), as in a table with a row of the matrix "
                "on each line; give tables as an array or a data frame"
            )
    if wrong:
        raise InputError(
            f"{path}: taking the columns {', '.join(read.header)} for row, column and value gives "
            f"{wrong}; say which columns they are"
        )


def _decimal_share(ids: Array) -> float:
    """Return the share of identifiers that are numbers with a fraction."""
    words = ids[:DECIMAL_SAMPLE].tolist() if ids.dtype.kind != "i" else []
    return sum("." in word and is_number(word) for word in words) / max(1, len(words))


def _first(read: RatingsFile) -> str:
    if not read.rejected:
        return ""
    line, reason, _ = read.rejected[0]
    return f"; the first of {len(read.rejected)} rejected lines is line {line}: {reason}"


def _read(
    path: Path,
    duplicates: str | None,
    said: Said,
    *,
    header: Sequence[str] = (),
    mapped: bool = False,
    limit: int | None = None,
) -> RatingsFile:
    """Read ratings, or pairs without values if there is no word on `duplicates`."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    with _database(limit, on_disk=mapped) as db:
        loader = Loader(db, said, header, with_values=duplicates is not None)
        for file in _files_of(path):
            with _readable(file):
                loader.load(file)
        with _readable(path):
            return loader.collect(path, duplicates, mapped)


def _files_of(path: Path) -> list[Path]:
    """Return the files of a folder that count, in order; hidden ones and _SUCCESS do not."""
    if not path.is_dir():
        return [path]
    names = (file.relative_to(path) for file in sorted(path.rglob("*")) if file.is_file())
    shown = [name for name in names if not any(part.startswith((".", "_")) for part in name.parts)]
    if not shown:
        raise InputError(f"{path} holds no files of ratings (CSV, TSV, ::, Parquet, gzip)")
    return [path / name for name in shown]


@contextmanager
def _database(limit: int | None, *, on_disk: bool) -> Iterator[Any]:
    """Yield a database, in memory or in a folder that is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="overt-") as place:
        db = duckdb().connect(str(Path(place) / "lines.db") if on_disk else ":memory:")
        try:
            db.execute(f"set temp_directory = '{place}'")
            if limit is not None:
                db.execute(f"set memory_limit = '{int(DATABASE_SHARE * limit)}B'")
            db.execute(LINES)
            yield db
        finally:
            db.close()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what a damaged file makes its reader raise into a sentence."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeError, duckdb().Error) as error:
        if isinstance(error, duckdb().InterruptException):
            raise KeyboardInterrupt from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        full = "No space left" in reason or "offload" in reason  # what the database spills
        why = f"{tempfile.gettempdir()} has no room for it" if full else "it may be damaged"
        raise InputError(f"{path} cannot be read, {why}: {reason}") from None


class Columns(NamedTuple):
    """Names of the columns used, those guessed, and where each role stands."""

    header: tuple[str, ...]
    guessed: tuple[str, ...]
    places: dict[str, int]

    @property
    def roles(self) -> str:
        """The columns that count, by name where they have one."""
        named = ", ".join(self.header)
        return named or " and ".join(role for role in ORDER if role in self.places)


class Loader:
    """Loads files into the table of lines, and makes entries of them."""

    def __init__(self, db: Any, said: Said, names: Sequence[str], *, with_values: bool) -> None:
        self._db = db
        self._said = said
        self._names = names
        self._with_values = with_values
        self._files: list[Path] = []
        self._columns = Columns((), (), {})
        self._rejected: list[tuple[int, Rejected]] = []

    def load(self, path: Path) -> None:
        """Add the lines of one file."""
        magic = text.first_bytes(path)
        self._files.append(path)
        if magic == b"PAR1":
            self._load_parquet(path)
            return
        _refuse_archives(path, magic)
        dialect = text.find_dialect(path, self._with_values, self._names, self._said)
        self._take_columns(Columns(dialect.used, tuple(dialect.guessed), dialect.places))
        if not self._load_clean(path, dialect):
            self._load_lines(path, dialect)

    def _take_columns(self, found: Columns) -> None:
        if len(self._files) == 1:
            self._columns = found
        elif found.roles != self._columns.roles:
            raise InputError(
                f"{self._files[-1]} has the columns {found.roles}, {self._files[0]} has "
                f"{self._columns.roles}; all files must have the same"
            )

    def _load_parquet(self, path: Path) -> None:
        """Load a Parquet file; numbers stay numbers, all else is taken as it is written."""
        source = _literal(path)
        described = self._db.execute("describe from read_parquet(?)", [source]).fetchall()
        names = [column[0] for column in described]
        if len(names) < 2:
            needed = "row, column, value" if self._with_values else "row, column"
            raise InputError(f"{path} must have columns {needed}, got {', '.join(names)}")
        valued = self._with_values and len(names) > 2
        places, guessed = text.places_of(names, valued, self._said, str(path))
        self._take_columns(Columns(text.used(places, names), tuple(guessed), places))
        cells = []
        for role in ORDER:
            name = names[places[role]].replace('"', '""') if role in places else ""
            cells.append(f'"{name}"::varchar' if role in places else ABSENT)
        a, b, v, t = cells
        kinds = {role: described[place][1] for role, place in places.items()}
        numbers = kinds.get("value") in (*WHOLE, "FLOAT", "DOUBLE")
        self._insert(
            "select row_number() over () as n, "  # noqa: S608
            f"{a} a, {b} b, {v} v, {t} t"
            + (f", {v.removesuffix('::varchar')}::double x" if numbers else "")
            + " from read_parquet(?)",
            [source],
            x="x" if numbers else NUMBER,
        )

    def _load_clean(self, path: Path, dialect: Dialect) -> bool:
        """Load a text file without faults at DuckDB's speed; return False if it has any."""
        if dialect.delimiter == " " or (dialect.header is not None and dialect.header[0] != 1):
            return False
        if text.first_bytes(path)[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16
            return False
        types = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(dialect.width))
        cells = (f"c{dialect.places[role]}" if role in dialect.places else ABSENT for role in ORDER)
        a, b, v, t = cells
        has_header = dialect.header is not None
        try:
            self._insert(
                f"select row_number() over () as n, {a} a, {b} b, {v} v, {t} t "  # noqa: S608
                f"from read_csv(?, delim = ?, header = ?, columns = {{{types}}}, "
                "auto_detect = false, quote = '\"', escape = '\"', compression = ?)",
                [_literal(path), dialect.delimiter, has_header, text.compression(path)],
            )
        except duckdb().Error as error:
            if isinstance(error, duckdb().InterruptException):
                raise
            return False
        here = [len(self._files)]
        faults = self._db.execute(
            "select count(*) from lines where file = ? and reason is not null", here
        ).fetchone()[0]
        if faults:  # to be read again, with the number and the content of each line
            self._db.execute("delete from lines where file = ?", here)
        return not faults

    def _load_lines(self, path: Path, dialect: Dialect) -> None:
        """Load a text file line by line, and reject lines that do not have the right fields."""
        used = [name for name, role in zip("abvt", ORDER, strict=True) if role in dialect.places]
        lines = text.numbered_lines(path)
        while batch := list(islice(lines, BATCH)):
            numbers = []
            fields = []
            for number, line in batch:
                found = text.fields_of(number, line, dialect)
                if isinstance(found, str):
                    rejected = Rejected(number, found, line)
                    self._rejected.append((len(self._files), rejected))
                elif found:
                    numbers.append(number)
                    fields.append(found)
            if not fields:
                continue
            columns = {"n": np.array(numbers, dtype=np.int64)}
            for name, column in zip(used, zip(*fields, strict=True), strict=True):
                columns[name] = np.array(column, dtype=object)
            cells = ", ".join(name if name in used else f"null::varchar {name}" for name in "abvt")
            self._db.register("given", columns)
            self._insert(f"select n, {cells} from given")  # noqa: S608
            self._db.unregister("given")

    def _insert(self, source: str, parameters: Sequence[Any] = (), x: str = NUMBER) -> None:
        """Add lines (n, a, b, v, t) of a source, each with the reason why it is not used if any."""
        faults = [
            FAULTS.format("a", "row", MAX_IDENTIFIER_LENGTH),
            FAULTS.format("b", "column", MAX_IDENTIFIER_LENGTH),
        ]
        if not self._with_values:
            x = "null"
        elif "value" not in self._columns.places:
            x = "1.0"
        else:
            faults.append(NOT_A_NUMBER)
        a = IDENTIFIER.format("a")
        b = IDENTIFIER.format("b")
        self._db.execute(
            f"insert into lines select {len(self._files)}, n, a, b, v, x, t, "  # noqa: S608
            f"case {' '.join(faults)} end from (select n, {a} a, {b} b, v, "
            f"({x})::double x, {TIME} t from ({source}))",
            list(parameters),
        )

    def collect(self, path: Path, duplicates: str | None, mapped: bool) -> RatingsFile:
        """Return the entries in the order of lines, with identifiers numbered and no duplicates."""
        rejected = self._all_rejected(path.is_dir())
        row_ids = self._number("a")
        col_ids = self._number("b")
        self._db.execute(
            "create table coded as select file, n, a_ids.code a, b_ids.code b, x, t from lines "
            "join a_ids on lines.a = a_ids.id join b_ids on lines.b = b_ids.id where reason is null"
        )
        self._db.execute("drop table lines")
        clicks = duplicates is not None and "value" not in self._columns.places
        count = 0 if duplicates is None else self._count_duplicates()
        if count and duplicates == "error":
            a, b = self._first_duplicate()
            raise InputError(
                f"{path} has {count} duplicate entries, such as ({row_ids[a]}, {col_ids[b]}); "
                "duplicates 'mean' or 'last' would merge them"
            )
        self._merge("count" if clicks else str(duplicates), any_merged=count > 0)
        rows, cols, values, times = self._fetch(mapped)
        missing = sum(int(np.isnan(times[some]).sum()) for some in slices(len(times), times))
        return RatingsFile(
            rows,
            cols,
            values,
            row_ids,
            col_ids,
            rejected,
            count,
            self._columns.header,
            self._columns.guessed,
            times if len(times) and not missing else None,
            clicks,
            missing if missing < len(times) else 0,
        )

    def _all_rejected(self, in_folder: bool) -> list[Rejected]:
        found = self._db.execute(
            "select file, n, reason, concat_ws(',', a, b, v) from lines where reason is not null"
        ).fetchall()
        rejected = [(file, Rejected(n, why, content)) for file, n, why, content in found]
        rejected = sorted(rejected + self._rejected)
        if not in_folder:
            return [line for _, line in rejected]
        names = [path.name for path in self._files]
        return [
            Rejected(line.line, f"{names[file - 1]}: {line.reason}", line.content)
            for file, line in rejected
        ]

    def _number(self, side: str) -> Array:
        """Return the identifiers of a side, sorted; the table of the side gets their codes.

        They are whole numbers if every one is written as such, and strings otherwise.
        """
        different = f"(select distinct {side} as id from lines where reason is null)"  # noqa: S608
        written = "coalesce(try_cast(id as bigint)::varchar = id, false)"
        whole = self._fetch_one(f"select bool_and({written}) from {different}")  # noqa: S608
        key = "id::bigint" if whole else "id"
        self._db.execute(
            f"create table {side}_ids as select id, row_number() over (order by {key}) - 1 as code "  # noqa: S608
            f"from {different}"
        )
        query = f"select {key} as id from {side}_ids order by code"  # noqa: S608
        ids = np.ma.getdata(self._db.execute(query).fetchnumpy()["id"])
        if whole or not len(ids):
            return ids.astype(np.int64)
        return as_identifiers("identifiers", ids.tolist())

    def _count_duplicates(self) -> int:
        """Return how many lines repeat another; table `repeated` gets their rows and columns."""
        self._db.execute(
            "create table repeated as select a, b, count(*) k from coded group by a, b "
            "having count(*) > 1"
        )
        return int(self._fetch_one("select coalesce(sum(k - 1), 0) from repeated"))

    def _first_duplicate(self) -> tuple[int, int]:
        """Return row and column of the first line that repeats another."""
        a, b = self._db.execute(
            "select a, b from (select file, n, a, b, row_number() over (partition by a, b "
            "order by file, n) k from coded semi join repeated using (a, b)) where k = 2 "
            "order by file, n limit 1"
        ).fetchone()
        return int(a), int(b)

    def _merge(self, how: str, *, any_merged: bool) -> None:
        """Make the table of entries: those of equal row and column become one."""
        source = "coded"
        if any_merged:
            source = (
                "(select file, n, a, b, x, t from coded anti join repeated using (a, b) union all "  # noqa: S608
                "select min_by(file, (file, n)), min_by(n, (file, n)), a, b, "
                f"{MERGED_VALUE[how]}, max(t) from coded semi join repeated using (a, b) "
                "group by a, b)"
            )
        self._db.execute(
            f"create table entries as select a, b, x, t from {source} order by file, n"  # noqa: S608
        )
        self._db.execute("drop table coded")

    def _fetch(self, mapped: bool) -> tuple[Ints, Ints, Floats, Floats]:
        """Return rows, columns, values and times (NaN where unknown), memory-mapped if wanted."""
        count = int(self._fetch_one("select count(*) from entries"))
        kinds = {"a": np.int64, "b": np.int64, "x": np.float64, "t": np.float64}
        if not mapped:
            found = self._db.execute("from entries").fetchnumpy()
            rows, cols, values, times = (_plain(found[name], kinds[name]) for name in kinds)
            return rows, cols, values, times
        arrays = [room(count, kind) for kind in kinds.values()]
        for some in slices(count, *arrays):
            found = self._db.execute(
                "from entries where rowid >= ? and rowid < ?", [some.start, some.stop]
            ).fetchnumpy()
            for array, name in zip(arrays, kinds, strict=True):
                array[some] = _plain(found[name], kinds[name])
        return arrays[0], arrays[1], arrays[2], arrays[3]

    def _fetch_one(self, query: str) -> Any:
        return self._db.execute(query).fetchone()[0]


def _plain(column: Any, kind: Any) -> Array:
    """Return a column of the database as an array; null is NaN."""
    if not np.ma.is_masked(column):
        return np.ma.getdata(column).astype(kind, copy=False)
    return np.ma.filled(column.astype(kind), np.nan)


def _refuse_archives(path: Path, magic: bytes) -> None:
    """Refuse what is neither text nor what its name says, and damaged gzip files."""
    if path.suffix.lower() == ".parquet" or magic == b"PK\x03\x04":
        kind = "a Parquet file" if magic[:2] != b"PK" else "text but a zip archive or workbook"
        raise InputError(f"{path} is not {kind}; accepted are CSV, TSV, ::, Parquet, and gzip")
    if magic[:2] == b"\x1f\x8b":  # DuckDB does not look at the checksum at the end
        with gzip.open(path) as file:
            while file.read(1 << 20):
                pass


def _literal(path: Path) -> str:
    """Return a path of which DuckDB takes every character as it is, wildcards too."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in os.fspath(path))
