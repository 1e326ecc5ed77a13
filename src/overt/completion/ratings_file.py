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

import csv
import gzip
import io
import os
import tempfile
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from overt._check import Array, Floats, InputError, Ints, MissingExtraError, choice
from overt._io import as_path, bounded_lines, is_number, reading
from overt.completion.memory import allocate, n_bytes, slices
from overt.entries import Entries
from overt.entries.entries import DUPLICATES
from overt.entries.frames import find_roles, role_of
from overt.entries.identifiers import as_identifiers

SAMPLE_LINES = 200
"""Lines from which the dialect of a file is found: damaged ones may come before good ones."""

DELIMITERS = ("::", "\t", ";", ",", " ")
"""Delimiters in order of preference. Spaces separate the words of a text too, so they come last."""

ORDER = ("row", "col", "value", "time")

Said = Mapping[str, str | int | None]
"""Names (or numbers, from 1) of the columns that are row, col, value and time, where given."""

Line = tuple[int, list[str]]
"""A line's number and fields."""

MAX_IDENTIFIER_LENGTH = 1000
"""Characters of an identifier; longer ones are taken for damage."""

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

ABSENT = "null::varchar"
"""Cell of a column that a file does not have."""

MAX_RECORD_LENGTH = 1 << 16
"""Characters of a record of several lines."""

OPEN_QUOTE = "end of data"
"""What the csv module says of a record that ends within quotes."""

LINES = """create table lines (file integer, n bigint, a varchar, b varchar, v varchar, x double,
t double, reason varchar, line varchar)"""

NUMBER = "try_cast(trim(v) as double)"

# 4,5 is 4.5, but 1,234 may be more than a thousand, and is no number.
NUMBER_WITH_COMMA = f"""coalesce({NUMBER}, case when regexp_full_match(trim(v),
'[+-]?[0-9]*,[0-9]+') and not regexp_full_match(trim(v), '[+-]?[1-9][0-9]{{0,2}},[0-9]{{3}}')
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


class Rejected(NamedTuple):
    """A line that was not used."""

    line: int
    reason: str
    content: str


@dataclass(frozen=True)
class Dialect:
    """How a text file is written.

    `header` is the number and the fields of its header line, `places` say where row, col, value and
    time stand (those that there are), `guessed` which of these no name identified, and `width` how
    many fields a line has.
    """

    delimiter: str
    header: Line | None
    places: dict[str, int]
    guessed: list[str]
    width: int

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the columns that count, where there is a header."""
        if self.header is None:
            return ()
        names = self.header[1]
        return tuple(names[self.places[role]] for role in ORDER if role in self.places)


def find_dialect(
    path: Path, with_values: bool, names: Sequence[str] = (), said: Said | None = None
) -> Dialect:
    """Return how a file is written, judged by its first lines.

    `names` are names by which a header is known, beside the usual ones.
    """
    said = said or {}
    needed = 3 if with_values else 2
    filled = ((number, line) for number, line in numbered_lines(path) if line.strip())
    sample = list(islice(filled, SAMPLE_LINES))
    if not sample:
        raise InputError(f"{path} is empty")
    usable = _usable_lines(sample, needed)
    delimiter = max(DELIMITERS[:-1], key=lambda d: len(usable[d]))
    if not usable[delimiter]:
        delimiter = " "
    if with_values and not usable[delimiter]:  # rows and columns without values: clicks
        with_values = False
        usable = _usable_lines(sample, 2)
        usable[" "] = []
        delimiter = max(usable, key=lambda d: len(usable[d]))
    lines = usable[delimiter]
    if not lines:
        fields = ", ".join(("row", "column", "value")[:needed])
        raise InputError(
            f"{path}: no line has {needed} fields ({fields}) "
            f"separated by comma, tab, semicolon, :: or spaces; the first is {sample[0][1][:60]!r}"
        )
    known = [*names, *(str(name) for name in said.values() if name)]
    header = _find_header(lines, with_values, known)
    width = _usual_width(lines)
    if header is not None:
        width = max(width, len(header[1]))
    places, guessed = places_of(
        header[1] if header else width, with_values, said, str(path)
    )
    return Dialect(delimiter, header, places, guessed, width)


def _usable_lines(sample: list[tuple[int, str]], needed: int) -> dict[str, list[Line]]:
    """Return for each delimiter the lines that have at least the needed fields."""
    found: dict[str, list[Line]] = {delimiter: [] for delimiter in DELIMITERS}
    for delimiter, lines in found.items():
        for number, line in sample:
            fields = split_or_none(line, delimiter)
            if fields and len(fields) >= needed:
                lines.append((number, fields))
    return found


def _usual_width(lines: list[Line]) -> int:
    """Return the most frequent number of fields, the larger one of two equally frequent ones."""
    counts = Counter(len(fields) for _, fields in lines)
    return max(counts, key=lambda width: (counts[width], width))


def _find_header(
    lines: list[Line], with_values: bool, names: Sequence[str]
) -> Line | None:
    """Return the header among the lines before the first good one: by its names, or the first.

    A header has no numbers; without values only known names distinguish it from a pair.
    """
    known = {name.lower() for name in names}
    leading: list[Line] = []
    for line in lines:
        fields = line[1]
        if (
            with_values
            and any(map(_is_number, fields))
            and not any(map(role_of, fields))
        ):
            break
        leading.append(line)
        if not with_values and len(leading) > 1:
            break
    for line in leading:
        if any(field.lower() in known or role_of(field) for field in line[1]):
            return line
    if with_values and leading and not any(map(_is_number, leading[0][1])):
        return leading[0]
    return None


def _is_number(word: str) -> bool:
    return is_number(word.replace(",", ".", 1))


def places_of(
    header: list[str] | int, with_values: bool, said: Said, what: str
) -> tuple[dict[str, int], list[str]]:
    """Return where row, col, value and time stand, and which of them no name identified.

    `header` is the names of columns, or their number where there are no names: then the first ones
    count.
    """
    has_names = not isinstance(header, int)
    if isinstance(header, int):
        names = [str(number + 1) for number in range(header)]
    else:
        names = [name.strip() for name in header]
    asked = {}
    for role, name in said.items():
        by_number = str(name).isdigit() and name not in names
        numbered = names[int(name) - 1 : int(name)] if by_number else []  # type: ignore[arg-type]
        asked[role] = numbered[0] if numbered else name
    places, guessed = find_roles(names, asked, what)
    if not with_values:
        places.pop("value", None)
    for role in ORDER[: 3 if with_values else 2]:
        if role not in places:
            have = ", ".join(names)
            raise InputError(f"{what} has no column for {role}; its columns are {have}")
    return places, [role for role in guessed if role in places and has_names]


def fields_of(number: int, line: str, dialect: Dialect) -> list[str] | str:
    """Return row, col, value and time (none for the header), or what is wrong with the line."""
    if not line.strip():
        return "empty line"
    try:
        fields = _split(line, dialect.delimiter)
    except csv.Error as error:
        is_open = OPEN_QUOTE in str(error)
        return "quote not closed" if is_open else f"misplaced quote: {error}"
    if dialect.header is not None and fields == dialect.header[1]:
        return [] if number == dialect.header[0] else "header repeated"
    last = max(place for role, place in dialect.places.items() if role != "time")
    if len(fields) <= last:
        return f"{len(fields)} field(s), {last + 1} needed"
    if any(fields[dialect.width :]):
        return f"{len(fields)} fields, {dialect.width} expected"
    fields += [""] * (dialect.width - len(fields))
    fields.append("")  # for what the file does not have
    return [fields[dialect.places.get(role, -1)] for role in ORDER]


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without their ends or a byte-order mark.

    UTF-8, or UTF-16 with a mark; a line that is neither is read as Latin-1, in which different
    bytes stay different characters.
    """
    opener = gzip.open if compression(path) == "gzip" else open
    with opener(path, "rb") as raw:
        mark = raw.read(2)
        raw.seek(0)
        encoding = "utf-16" if mark in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        with io.TextIOWrapper(raw, encoding, errors="surrogateescape") as text:
            for number, line in enumerate(bounded_lines(path, text), 1):
                yield number, _printable(line.rstrip("\r\n"))


def joined_lines(
    lines: Iterator[tuple[int, str]], delimiter: str
) -> Iterator[tuple[int, str]]:
    """Yield numbered records: the lines of a quoted field are one.

    A quote that is not closed within MAX_RECORD_LENGTH is a fault of its line alone.
    """
    ahead: deque[tuple[int, str]] = deque()

    def take() -> tuple[int, str] | None:
        return ahead.popleft() if ahead else next(lines, None)

    while first := take():
        number, record = first
        taken = [first]
        is_open = _is_open(record, delimiter)
        while is_open and len(record) < MAX_RECORD_LENGTH and (more := take()):
            taken.append(more)
            record += "\n" + more[1]
            is_open = '"' not in more[1] or _is_open(record, delimiter)
        if split_or_none(record, delimiter) is None:
            record = first[1]
            ahead.extendleft(reversed(taken[1:]))
        yield number, record


def _is_open(record: str, delimiter: str) -> bool:
    """Return whether a quoted field goes on in the next line."""
    try:
        _split(record, delimiter)
    except csv.Error as error:
        return OPEN_QUOTE in str(error)
    return False


def _printable(line: str) -> str:
    """Return a line that was not UTF-8 as Latin-1."""
    if line.isascii():
        return line
    try:
        line.encode()
    except UnicodeEncodeError:
        return line.encode("utf-8", "surrogateescape").decode("latin-1")
    return line


def first_bytes(path: Path) -> bytes:
    """Return the bytes that identify the kind of a file."""
    with path.open("rb") as file:
        return file.read(4)


def compression(path: Path) -> str:
    """Return "gzip" or "none"."""
    return "gzip" if first_bytes(path)[:2] == b"\x1f\x8b" else "none"


def _split(line: str, delimiter: str) -> list[str]:
    """Return the fields of a line; raise csv.Error if its quotes make no sense."""
    if delimiter == " ":
        return line.split()
    if '"' not in line:
        return [field.strip() for field in line.split(delimiter)]
    if len(delimiter) > 1:
        return [_unquoted(field.strip()) for field in line.split(delimiter)]
    fields = next(csv.reader([line], delimiter=delimiter, strict=True))
    return [field.strip() for field in fields]


def split_or_none(line: str, delimiter: str) -> list[str] | None:
    """Return the fields of a line, None if its quotes make no sense."""
    try:
        return _split(line, delimiter)
    except csv.Error:
        return None


def _unquoted(field: str) -> str:
    quoted = len(field) > 1 and field[0] == field[-1] == '"'
    return field[1:-1] if quoted else field


@dataclass(frozen=True, eq=False, repr=False)
class RatingsFile:
    """The content of a ratings file, every line of it.

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


def is_path(given: Any) -> bool:
    """Whether something names a file or folder."""
    return isinstance(given, (str, os.PathLike))


def read_ratings(
    path: str | os.PathLike[str],
    duplicates: str = "mean",
    *,
    row: str | int | None = None,
    col: str | int | None = None,
    value: str | int | None = None,
    time: str | int | None = None,
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
        read = _read(
            path,
            duplicates,
            said,
            mapped=path.is_dir() or limit is not None,
            limit=limit,
        )
    if not len(read.values):
        raise InputError(
            f"{path} has no usable line (row, column, value)" + _first(read)
        )
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


def warn_of_lines(path: Any, read: RatingsFile) -> None:
    """Warn of each thing to look at in a file that was read."""
    name = os.fspath(path)
    if read.guessed:
        warnings.warn(
            f"{name}: {', '.join(read.guessed)} were taken by the place of their columns "
            f"({', '.join(read.header)}); overt.completion.read_ratings(path, row=..., col=..., "
            "value=...) names them",
            stacklevel=3,
        )
    if read.duplicates and not read.clicks:
        warnings.warn(
            f"{name}: {read.duplicates} duplicate entries were averaged", stacklevel=3
        )
    if read.rejected:
        first = read.rejected[0]
        count = len(read.rows) + read.duplicates + len(read.rejected)
        warnings.warn(
            f"{name}: {len(read.rejected)} of {count} lines were rejected, the first is line "
            f"{first.line}: {first.reason}; see file_report_.rejected",
            stacklevel=3,
        )


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
    if (
        read.guessed
        and not read.clicks
        and read.duplicates > max(MIN_LINES_TO_JUDGE, count)
    ):
        wrong = f"{read.duplicates} duplicates of {count} entries"
    for role, ids in (("row", read.row_ids), ("col", read.col_ids)):
        different = (
            count >= MIN_LINES_TO_JUDGE and len(ids) > MAX_DIFFERENT_SHARE * count
        )
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
    return (
        f"; the first of {len(read.rejected)} rejected lines is line {line}: {reason}"
    )


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
    names = (
        file.relative_to(path) for file in sorted(path.rglob("*")) if file.is_file()
    )
    shown = [
        name
        for name in names
        if not any(part.startswith((".", "_")) for part in name.parts)
    ]
    if not shown:
        raise InputError(
            f"{path} holds no files of ratings (CSV, TSV, ::, Parquet, gzip)"
        )
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
    except (
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        UnicodeError,
        duckdb().Error,
    ) as error:
        if isinstance(error, duckdb().InterruptException):
            raise KeyboardInterrupt from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        full = (
            "No space left" in reason or "offload" in reason
        )  # what the database spills
        why = (
            f"{tempfile.gettempdir()} has too little space for it"
            if full
            else "it may be damaged"
        )
        raise InputError(f"{path} cannot be read, {why}: {reason}") from None


class Loader:
    """Loads files into the table of lines, and makes entries of them."""

    def __init__(
        self, db: Any, said: Said, names: Sequence[str], *, with_values: bool
    ) -> None:
        self._db = db
        self._said = said
        self._names = names
        self._with_values = with_values
        self._files: list[Path] = []
        self._dialect = Dialect("", None, {}, [], 0)

    def load(self, path: Path) -> None:
        """Add the lines of one file."""
        magic = first_bytes(path)
        self._files.append(path)
        if magic == b"PAR1":
            self._load_parquet(path)
            return
        _refuse_archives(path, magic)
        dialect = find_dialect(path, self._with_values, self._names, self._said)
        self._take_columns(dialect)
        if not self._load_clean(path, dialect):
            self._load_lines(path, dialect)

    def _take_columns(self, found: Dialect) -> None:
        if len(self._files) == 1:
            self._dialect = found
            return
        here = list(found.used or found.places)
        first = list(self._dialect.used or self._dialect.places)
        if here != first:
            raise InputError(
                f"{self._files[-1]} has the columns {', '.join(here)}, {self._files[0]} has "
                f"{', '.join(first)}; all files must have the same"
            )

    def _load_parquet(self, path: Path) -> None:
        """Load a Parquet file, whose cells are taken as they would be written."""
        source = _literal(path)
        described = self._db.execute(
            "describe from read_parquet(?)", [source]
        ).fetchall()
        names = [column[0] for column in described]
        if len(names) < 2:
            needed = "row, column, value" if self._with_values else "row, column"
            raise InputError(
                f"{path} must have columns {needed}, got {', '.join(names)}"
            )
        valued = self._with_values and len(names) > 2
        places, guessed = places_of(names, valued, self._said, str(path))
        self._take_columns(Dialect("", (1, names), places, guessed, len(names)))
        cells = []
        for role in ORDER:
            name = names[places[role]].replace('"', '""') if role in places else ""
            cells.append(f'"{name}"::varchar' if role in places else ABSENT)
        a, b, v, t = cells
        self._insert(
            f"select row_number() over () as n, {a} a, {b} b, {v} v, {t} t, null line, '' why "  # noqa: S608
            "from read_parquet(?)",
            [source],
        )

    def _load_clean(self, path: Path, dialect: Dialect) -> bool:
        """Load a text file without faults at DuckDB's speed; return False if it has any."""
        if dialect.delimiter == " " or (
            dialect.header is not None and dialect.header[0] != 1
        ):
            return False
        if first_bytes(path)[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16
            return False
        types = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(dialect.width))
        cells = (
            f"c{dialect.places[role]}" if role in dialect.places else ABSENT
            for role in ORDER
        )
        a, b, v, t = cells
        has_header = dialect.header is not None
        try:
            self._insert(
                f"select row_number() over () as n, {a} a, {b} b, {v} v, {t} t, null line, '' why "  # noqa: S608
                f"from read_csv(?, delim = ?, header = ?, columns = {{{types}}}, "
                "auto_detect = false, quote = '\"', escape = '\"', compression = ?)",
                [_literal(path), dialect.delimiter, has_header, compression(path)],
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
        lines = joined_lines(numbered_lines(path), dialect.delimiter)
        names = ("n", "a", "b", "v", "t", "line", "why")
        while batch := list(islice(lines, BATCH)):
            rows: list[tuple[Any, ...]] = []
            for number, line in batch:
                found = fields_of(number, line, dialect)
                if isinstance(found, str):
                    rows.append((number, "", "", "", "", line, found))
                elif found:
                    rows.append((number, *found, line, ""))
            if not rows:
                continue
            columns = {
                name: np.array(column, dtype=object)
                for name, column in zip(names, zip(*rows, strict=True), strict=True)
            }
            self._db.register("given", columns)
            self._insert("from given")
            self._db.unregister("given")

    def _insert(self, source: str, parameters: Sequence[Any] = ()) -> None:
        """Add lines (n, a, b, v, t, line, why) of a source, `why` being what is wrong if known."""
        faults = [
            FAULTS.format("a", "row", MAX_IDENTIFIER_LENGTH),
            FAULTS.format("b", "column", MAX_IDENTIFIER_LENGTH),
        ]
        x = "null"
        if self._with_values:
            x = "1.0"
        if self._with_values and "value" in self._dialect.places:
            x = NUMBER if self._dialect.delimiter == "," else NUMBER_WITH_COMMA
            faults.append(NOT_A_NUMBER)
        a = IDENTIFIER.format("a")
        b = IDENTIFIER.format("b")
        self._db.execute(
            f"insert into lines select {len(self._files)}, n, a, b, v, x, t, "  # noqa: S608
            f"case when why != '' then why {' '.join(faults)} end reason, "
            f"if(reason is null, null, line) from (select n, {a} a, {b} b, v, "
            f"({x})::double x, {TIME} t, line, why from ({source}))",
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
        clicks = duplicates is not None and "value" not in self._dialect.places
        count = 0 if duplicates is None else self._count_duplicates()
        if count and duplicates == "error":
            raise InputError(
                f"{path} has {count} duplicate entries; duplicates 'mean' or 'last' merge them"
            )
        self._merge("count" if clicks else str(duplicates), any_merged=count > 0)
        rows, cols, values, times = self._fetch(mapped)
        missing = sum(
            int(np.isnan(times[some]).sum()) for some in slices(len(times), times)
        )
        return RatingsFile(
            rows,
            cols,
            values,
            row_ids,
            col_ids,
            rejected,
            count,
            self._dialect.used,
            tuple(self._dialect.guessed),
            times if len(times) and not missing else None,
            clicks,
            missing if missing < len(times) else 0,
        )

    def _all_rejected(self, in_folder: bool) -> list[Rejected]:
        found = self._db.execute(
            "select file, n, reason, coalesce(line, concat_ws(',', a, b, v)) from lines "
            "where reason is not null order by file, n"
        ).fetchall()
        places = [f"{path.name}: " if in_folder else "" for path in self._files]
        return [
            Rejected(n, places[file - 1] + reason, content)
            for file, n, reason, content in found
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

    def _merge(self, how: str, *, any_merged: bool) -> None:
        """Make the table of entries; entries of equal row and column become one."""
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
        rows, cols, values, times = arrays = [
            allocate(count, kind, int(mapped)) for kind in kinds.values()
        ]
        for some in slices(count, *arrays):
            found = self._db.execute(
                "from entries where rowid >= ? and rowid < ?", [some.start, some.stop]
            ).fetchnumpy()
            for array, name in zip(arrays, kinds, strict=True):
                column = found[name]
                # Null is NaN.
                is_masked = np.ma.is_masked(column)
                array[some] = column.filled(np.nan) if is_masked else column
        return rows, cols, values, times

    def _fetch_one(self, query: str) -> Any:
        return self._db.execute(query).fetchone()[0]


def _refuse_archives(path: Path, magic: bytes) -> None:
    """Refuse what is neither text nor what its name says, and damaged gzip files."""
    if path.suffix.lower() == ".parquet" or magic == b"PK\x03\x04":
        kind = (
            "a Parquet file"
            if magic[:2] != b"PK"
            else "text but a zip archive or workbook"
        )
        raise InputError(
            f"{path} is not {kind}; accepted are CSV, TSV, ::, Parquet, and gzip"
        )
    if magic[:2] == b"\x1f\x8b":  # DuckDB does not look at the checksum at the end
        with gzip.open(path) as file:
            while file.read(1 << 20):
                pass


def _literal(path: Path) -> str:
    """Return a path of which DuckDB takes every character as it is, wildcards too."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in os.fspath(path))
