"""How a text file of ratings is written: its delimiter, its header, its lines and their fields."""

from __future__ import annotations

import csv
import gzip
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from overt._check import InputError
from overt._io import bounded_lines, is_number
from overt.entries.frames import find_roles, role_of

SAMPLE_LINES = 200
"""Lines from which the dialect of a file is found: damaged ones may come before good ones."""

DELIMITERS = ("::", "\t", ";", ",", " ")
"""Delimiters in order of preference. Spaces separate the words of a text too, so they come last."""

ORDER = ("row", "col", "value", "time")

Said = Mapping[str, str | None]
"""Names (or numbers, from 1) of the columns that are row, col, value and time, where given."""

Line = tuple[int, list[str]]
"""A line's number and fields."""


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
        return () if self.header is None else used(self.places, self.header[1])


def used(places: Mapping[str, int], names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns that count, in the order of their roles."""
    return tuple(names[places[role]] for role in ORDER if role in places)


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
    known = [*names, *(name for name in said.values() if name)]
    header = _find_header(lines, with_values, known)
    width = _usual_width(lines)
    if header is not None:
        width = max(width, len(header[1]))
    places, guessed = places_of(header[1] if header else width, with_values, said, str(path))
    return Dialect(delimiter, header, places, guessed, width)


def _usable_lines(sample: list[tuple[int, str]], needed: int) -> dict[str, list[Line]]:
    """Return for each delimiter the lines that have at least the needed fields."""
    found: dict[str, list[Line]] = {delimiter: [] for delimiter in DELIMITERS}
    for delimiter, lines in found.items():
        for number, line in sample:
            fields = _split_or_none(line, delimiter)
            if fields and len(fields) >= needed:
                lines.append((number, fields))
    return found


def _usual_width(lines: list[Line]) -> int:
    """Return the most frequent number of fields, the larger one of two equally frequent ones."""
    counts = Counter(len(fields) for _, fields in lines)
    return max(counts, key=lambda width: (counts[width], width))


def _find_header(lines: list[Line], with_values: bool, names: Sequence[str]) -> Line | None:
    """Return the header among the lines before the first good one: by its names, or the first.

    A header has no numbers; without values only known names distinguish it from a pair.
    """
    known = {name.lower() for name in names}
    leading: list[Line] = []
    for line in lines:
        fields = line[1]
        if with_values and any(map(_is_number, fields)) and not any(map(role_of, fields)):
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
    needed = ORDER[: 3 if with_values else 2]
    if isinstance(header, int):
        return _places_by_number(header, needed, said, what), []
    names = [name.strip() for name in header]
    asked = {role: _column_name(names, name) for role, name in said.items()}
    places, guessed = find_roles(names, asked, what)
    if not with_values:
        places.pop("value", None)
    for role in needed:
        if role not in places:
            have = ", ".join(names)
            raise InputError(f"{what} has no column for {role}; its columns are {have}")
    return places, [role for role in guessed if role in places]


def _places_by_number(count: int, needed: Sequence[str], said: Said, what: str) -> dict[str, int]:
    """Return where roles stand in a file without a header."""
    numbers = [str(number + 1) for number in range(count)]
    places = {}
    for role, name in said.items():
        if name and name not in numbers:
            raise InputError(f"{what} has no header; columns are said by number, 1 to {count}")
        if name:
            places[role] = numbers.index(name)
    free = [place for place in range(count) if place not in places.values()]
    for role in needed:
        if role not in places:
            places[role] = free.pop(0) if free else 0
    return places


def _column_name(names: Sequence[str], said: str | None) -> str | None:
    """Return the name of a column that is given by name or by number."""
    if said is None or said in names or not said.isdigit():
        return said
    return names[int(said) - 1] if 0 < int(said) <= len(names) else said


def fields_of(number: int, line: str, dialect: Dialect) -> list[str] | str:
    """Return the fields that count (none for the header), or what is wrong with the line."""
    if not line.strip():
        return "empty line"
    try:
        fields = _split(line, dialect.delimiter)
    except csv.Error as error:
        return "quote not closed" if "end of data" in str(error) else f"misplaced quote: {error}"
    if dialect.header is not None and fields == dialect.header[1]:
        return [] if number == dialect.header[0] else "header repeated"
    last = max(place for role, place in dialect.places.items() if role != "time")
    if len(fields) <= last:
        return f"{len(fields)} field(s), {last + 1} needed"
    if any(fields[dialect.width :]):
        return f"{len(fields)} fields, {dialect.width} expected"
    fields += [""] * (dialect.width - len(fields))
    return [fields[dialect.places[role]] for role in ORDER if role in dialect.places]


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
                yield number, _readable(line.rstrip("\r\n"))


def _readable(line: str) -> str:
    """Return a line that was not UTF-8 as Latin-1."""
    if line.isascii():
        return line
    try:
        line.encode()
    except UnicodeEncodeError:
        return line.encode("utf-8", "surrogateescape").decode("latin-1")
    return line


def short_lines(path: Path) -> list[list[str]]:
    """Return the fields of a short file, by the delimiter (tab, ; or ,) that most lines have."""
    lines = [line for _, line in numbered_lines(path) if line.strip()]
    delimiter = max("\t;,", key=lambda d: sum(d in line for line in lines))
    return [_split_or_none(line, delimiter) or [line.strip()] for line in lines]


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


def _split_or_none(line: str, delimiter: str) -> list[str] | None:
    try:
        return _split(line, delimiter)
    except csv.Error:
        return None


def _unquoted(field: str) -> str:
    quoted = len(field) > 1 and field[0] == field[-1] == '"'
    return field[1:-1] if quoted else field
