"""How a text file of ratings is written, and its lines and fields, damaged ones among them."""

from __future__ import annotations

import csv
import gzip
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from overt._check import InputError
from overt._files import bounded_lines, is_number

_ROW = ("user", "userid", "user_id", "row", "row_id", "customer", "customer_id")
_COL = ("item", "itemid", "item_id", "movie", "movieid", "movie_id", "col", "column", "product")
_VALUE = ("rating", "value", "score", "stars")
_SAMPLE = 200
"""Lines from which it is told how a file is written."""


class Rejected(NamedTuple):
    """A line that was not used."""

    line: int
    reason: str
    content: str


@dataclass(frozen=True)
class Dialect:
    """How a text file is written.

    `header` is the number and the fields of its header line, `places` say where row, column and
    value stand, and `width` how many fields a line has.
    """

    delimiter: str
    header: tuple[int, list[str]] | None
    places: tuple[int, ...]
    width: int

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the columns that count, where there is a header."""
        return () if self.header is None else tuple(self.header[1][i] for i in self.places)


def find_dialect(path: Path, with_values: bool, names: Sequence[str] = ()) -> Dialect:
    """Return how a file is written, from its first lines: damaged ones may come before good."""
    needed = 3 if with_values else 2
    sample = list(islice(((n, line) for n, line in numbered_lines(path) if line.strip()), _SAMPLE))
    if not sample:
        raise InputError(f"{path} is empty")
    usable: dict[str, list[tuple[int, list[str]]]] = {}
    for delimiter in ("::", "\t", ";", ",", " "):
        parsed = [(n, _split_or_none(line, delimiter)) for n, line in sample]
        usable[delimiter] = [(n, parts) for n, parts in parsed if parts and len(parts) >= needed]
    # Words of a text are separated by spaces too: these count only where nothing else does.
    delimiter = max(("::", "\t", ";", ","), key=lambda d: len(usable[d]))
    delimiter = delimiter if usable[delimiter] else " "
    if not usable[delimiter]:
        fields = ", ".join(("row", "column", "value")[:needed])
        raise InputError(
            f"{path}: no line has {needed} fields ({fields}) "
            f"separated by comma, tab, semicolon, :: or spaces; the first is {sample[0][1][:60]!r}"
        )
    header = _header(usable[delimiter], with_values, names)
    places = places_of(header[1] if header else [], with_values)
    sizes = Counter(len(parts) for _, parts in usable[delimiter])
    width = max(sizes, key=lambda size: (sizes[size], size))
    return Dialect(delimiter, header, places, max(width, len(header[1]) if header else 0))


def fields_of(number: int, line: str, dialect: Dialect) -> list[str] | str:
    """Return the fields that count (none for the header), or what is wrong with the line."""
    if not line.strip():
        return "empty line"
    try:
        parts = _split(line, dialect.delimiter)
    except csv.Error as error:
        return "quote not closed" if "end of data" in str(error) else f"misplaced quote: {error}"
    if dialect.header is not None and parts == dialect.header[1]:
        return [] if number == dialect.header[0] else "header repeated"
    if len(parts) <= max(dialect.places):
        return f"{len(parts)} field(s), {len(dialect.places)} needed"
    if any(parts[dialect.width :]):
        return f"{len(parts)} fields, {dialect.width} expected"
    return [parts[i] for i in dialect.places]


def places_of(header: list[str], with_values: bool) -> tuple[int, ...]:
    """Return where row, column and value stand, by name where all are known, else in order."""
    names = [name.strip().lower() for name in header]
    found = [
        next((i for i, name in enumerate(names) if name in accepted), None)
        for accepted in (_ROW, _COL, _VALUE)[: 3 if with_values else 2]
    ]
    if all(place is not None for place in found):
        return tuple(place for place in found if place is not None)
    return (0, 1, 2)[: 3 if with_values else 2]


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


def first_bytes(path: Path) -> bytes:
    """Return the bytes that tell what kind of file it is."""
    with path.open("rb") as file:
        return file.read(4)


def compression(path: Path) -> str:
    """Return "gzip" or "none"."""
    return "gzip" if first_bytes(path)[:2] == b"\x1f\x8b" else "none"


def _header(
    lines: list[tuple[int, list[str]]], with_values: bool, names: Sequence[str]
) -> tuple[int, list[str]] | None:
    """Return the header among the lines before the first good one: by its names, or the first.

    A header has no numbers; without values only known names tell it from a pair.
    """
    known = {*_ROW, *_COL, *_VALUE, *(name.lower() for name in names)}
    leading = []
    for number, parts in lines:
        place = places_of(parts, with_values)[-1]
        if with_values and place < len(parts) and is_number(parts[place]):
            break
        leading.append((number, parts))
    named = [line for line in leading if any(part.lower() in known for part in line[1])]
    if not named and with_values:
        named = [line for line in leading[:1] if not any(map(is_number, line[1]))]
    return named[0] if named else None


def _readable(line: str) -> str:
    if line.isascii():
        return line
    try:
        line.encode()
    except UnicodeEncodeError:
        return line.encode("utf-8", "surrogateescape").decode("latin-1")
    return line


def _split(line: str, delimiter: str) -> list[str]:
    """Return the fields of a line; csv.Error if its quotes make no sense."""
    if delimiter == " ":
        return line.split()
    if '"' not in line:
        return [part.strip() for part in line.split(delimiter)]
    if len(delimiter) > 1:
        return [_unquoted(part.strip()) for part in line.split(delimiter)]
    return [part.strip() for part in next(csv.reader([line], delimiter=delimiter, strict=True))]


def _split_or_none(line: str, delimiter: str) -> list[str] | None:
    try:
        return _split(line, delimiter)
    except csv.Error:
        return None


def _unquoted(field: str) -> str:
    return field[1:-1] if len(field) > 1 and field[0] == field[-1] == '"' else field
