"""Ratings in many files, or in one larger than memory: read part by part, kept on disk."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from overt._check import InputError
from overt.completion.storage import loading, text
from overt.completion.storage.collecting import Columns, RatingsFile, collect
from overt.completion.storage.text import ORDER, Rejected, Said

SHARE = 0.5
"""Part of the memory that the database may take."""


def parts_of(path: Path) -> list[Path]:
    """Return the files of a folder that count, in order; hidden ones and _SUCCESS do not."""
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
    if not found:
        raise InputError(f"{path} holds no files of ratings (CSV, TSV, ::, Parquet, gzip)")
    return found


def read_folder(path: Path, duplicates: str, said: Said, memory_limit: int | None) -> RatingsFile:
    """Read every file of a folder (or one file) as if they were one, in the order of their names.

    The database works within the limit, and entries stay in mapped loading.
    """
    parts, rejected, read, offset = parts_of(path), list[Rejected](), None, 0
    offsets = []
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="overt-"))
        db = loading.duckdb().connect(str(Path(place) / "lines.db"))
        stack.callback(db.close)
        db.execute(f"set temp_directory = '{place}'")
        if memory_limit is not None:
            db.execute(f"set memory_limit = '{int(SHARE * memory_limit)}B'")
        names = ("a", "b", "v", "t")
        typed = ", ".join(f"{name} varchar" for name in names)
        db.execute(f"create table every (n bigint, {typed})")
        for part in parts:
            with loading.readable(part):
                found, wrong = _load(db, part, said)
            rejected += [Rejected(n, f"{part.name}: {why}", line) for n, why, line in wrong]
            if read is not None and _roles(found) != _roles(read):
                raise InputError(
                    f"{part} has the columns {_roles(found)}, {parts[0]} has {_roles(read)}; all "
                    "files must have the same"
                )
            read = read or found
            offsets.append((offset, found.skipped, part))
            columns = ", ".join(names)
            db.execute(f"insert into every select n + {offset}, {columns} from lines")  # noqa: S608
            offset = db.execute("select max(n) from every").fetchone()[0] or offset
            db.execute("drop table lines")
        db.execute("alter table every rename to lines")
        with loading.readable(path):
            table = collect(db, [], duplicates, path, read or Columns((), (), {}), mapped=True)
        for n, why, line in table.rejected:
            start, skipped, part = next(x for x in reversed(offsets) if x[0] < n)
            rejected.append(Rejected(n - start + skipped, f"{part.name}: {why}", line))
        return replace(table, rejected=rejected)


def _load(db: Any, path: Path, said: Said) -> tuple[Columns, list[Rejected]]:
    """Load one file into the table of lines."""
    magic = text.first_bytes(path)
    if magic == b"PAR1":
        return loading.load_parquet(db, path, True, said), []
    loading.refuse_archives(path, magic)
    dialect = text.find_dialect(path, True, (), said)
    read = Columns(dialect.used, tuple(dialect.guessed), dialect.places)
    if loading.load_clean(db, path, dialect):
        return read._replace(skipped=int(dialect.header is not None)), []
    db.execute("drop table if exists lines")
    return read, loading.load_lines(db, path, dialect)


def _roles(read: Columns) -> str:
    return ", ".join(read.header) or " and ".join(role for role in ORDER if role in read.places)


def _hidden(path: Path) -> bool:
    return any(name.startswith((".", "_")) for name in path.parts)
