"""How a text file of ratings is written, and its lines and fields, damaged ones among them."""

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
from overt._files import bounded_lines, is_number
from overt.entries.frames import find_roles, role_of

_SAMPLE = 200
"""Lines from which it is told how a file is written."""


class Rejected(NamedTuple):
    """A line that was not used."""

    line: int
    reason: str
    content: str


ORDER = ("row", "col", "value", "time")

Said = Mapping[str, str | None]
"""Names (or numbers, from 1) of the columns that are row, col, value and time, where said."""


@dataclass(frozen=True)
class Dialect:
    """How a text file is written.

    `header` is the number and the fields of its header line, `places` say where row, col, value and
    time stand (those that there are), `guessed` which of these no name told, and `width` how many
    fields a line has.
    """

    delimiter: str
    header: tuple[int, list[str]] | None
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
    """Return how a file is written, from its first lines: damaged ones may come before good."""
    needed, said = 3 if with_values else 2, said or {}
    sample = list(islice(((n, line) for n, line in numbered_lines(path) if line.strip()), _SAMPLE))
    if not sample:
        raise InputError(f"{path} is empty")
    usable = _usable(sample, needed)
    # Words of a text are separated by spaces too: these count only where nothing else does.
    delimiter = max(("::", "\t", ";", ","), key=lambda d: len(usable[d]))
    delimiter = delimiter if usable[delimiter] else " "
    if with_values and not usable[delimiter]:  # rows and columns without values: clicks
        usable = _usable(sample, 2) | {" ": []}
        delimiter, with_values = max(usable, key=lambda d: len(usable[d])), False
    if not usable[delimiter]:
        fields = ", ".join(("row", "column", "value")[:needed])
        raise InputError(
            f"{path}: no line has {needed} fields ({fields}) "
            f"separated by comma, tab, semicolon, :: or spaces; the first is {sample[0][1][:60]!r}"
        )
    known = [*names, *(name for name in said.values() if name)]
    header = _header(usable[delimiter], with_values, known)
    sizes = Counter(len(parts) for _, parts in usable[delimiter])
    width = max(sizes, key=lambda size: (sizes[size], size))
    width = max(width, len(header[1]) if header else 0)
    places, guessed = places_of(header[1] if header else width, with_values, said, str(path))
    return Dialect(delimiter, header, places, guessed, width)


def _usable(sample: list[tuple[int, str]], needed: int) -> dict[str, list[tuple[int, list[str]]]]:
    found: dict[str, list[tuple[int, list[str]]]] = {}
    for delimiter in ("::", "\t", ";", ",", " "):
        parsed = [(n, _split_or_none(line, delimiter)) for n, line in sample]
        found[delimiter] = [(n, parts) for n, parts in parsed if parts and len(parts) >= needed]
    return found


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
    needed = max(place for role, place in dialect.places.items() if role != "time")
    if len(parts) <= needed:
        return f"{len(parts)} field(s), {needed + 1} needed"
    if any(parts[dialect.width :]):
        return f"{len(parts)} fields, {dialect.width} expected"
    parts += [""] * (dialect.width - len(parts))
    return [parts[dialect.places[role]] for role in ORDER if role in dialect.places]


def places_of(
    header: list[str] | int, with_values: bool, said: Said, what: str
) -> tuple[dict[str, int], list[str]]:
    """Return where row, col, value and time stand, and which no name told.

    Without a header, of which only the number of columns is known, the first ones count.
    """
    names = [str(i + 1) for i in range(header)] if isinstance(header, int) else header
    names = [name.strip() for name in names]
    asked = {role: _name(names, name) for role, name in said.items()}
    if isinstance(header, int):
        free = iter(i for i in range(header) if names[i] not in asked.values())
        places = {r: names.index(n) if n in names else -1 for r, n in asked.items() if n}
        if -1 in places.values():
            raise InputError(f"{what} has no header; columns are said by number, 1 to {header}")
        for role in ORDER[: 3 if with_values else 2]:
            if role not in places:
                places[role] = next(free, 0)
        return places, []
    places, guessed = find_roles(names, asked, what)
    if not with_values:
        places.pop("value", None)
    for role in ORDER[: 3 if with_values else 2]:
        if role not in places:
            have = ", ".join(names)
            raise InputError(f"{what} has no column for {role}; its columns are {have}")
    return places, [role for role in guessed if role in places]


def _name(names: Sequence[str], said: str | None) -> str | None:
    """Return the name of a column that is said by name or by number."""
    if said is not None and said not in names and said.isdigit() and 0 < int(said) <= len(names):
        return names[int(said) - 1]
    return said


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


def short_lines(path: Path) -> list[list[str]]:
    """Return the fields of a short file, by the delimiter (tab, ; or ,) that most lines have."""
    lines = [line for _, line in numbered_lines(path) if line.strip()]
    delimiter = max("\t;,", key=lambda d: sum(d in line for line in lines))
    return [_split_or_none(line, delimiter) or [line.strip()] for line in lines]


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
    known, leading = {name.lower() for name in names}, []
    for number, parts in lines:
        if with_values and any(map(_is_number, parts)) and not any(map(role_of, parts)):
            break
        leading.append((number, parts))
        if not with_values and len(leading) > 1:
            break
    named = [line for line in leading if any(p.lower() in known or role_of(p) for p in line[1])]
    if not named and with_values:
        named = [line for line in leading[:1] if not any(map(_is_number, line[1]))]
    return named[0] if named else None


def _is_number(word: str) -> bool:
    return is_number(word.replace(",", ".", 1))


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
