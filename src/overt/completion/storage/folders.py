"""Ratings in many files, or in one larger than memory: read part by part, kept on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError
from overt._mapped import SLICE, arranged, forget, piles, room, slices
from overt._types import Array, Ints
from overt.completion.storage import loading
from overt.completion.storage.collecting import Columns, RatingsFile, refused, times_told
from overt.completion.storage.parts import Numbering, Reading, shown
from overt.completion.storage.text import Said
from overt.entries.entries import merge_duplicates

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

    The database works within the limit, a file at a time, and entries stay in mapped files.
    """
    sides = Numbering(), Numbering()
    kinds = (np.int64, np.int64, np.float64, np.float64)
    with piles(kinds) as found, database(memory_limit) as db:
        reading = Reading(db, said)
        for file in parts_of(path):
            for part in reading.parts(file):
                for pile, numbers, ids, codes in zip(found, sides, *part[:2], strict=False):
                    pile.add(numbers.add(ids)[codes])
                found[2].add(part.values)
                found[3].add(part.times)
        arrays = [pile.array() for pile in found]
    for numbers, array in zip(sides, arrays, strict=False):
        ranks = numbers.ranks
        for some in slices(len(array), array):
            array[some] = ranks[array[some]]
    read = reading.read or Columns((), (), {})
    clicks = "value" not in read.places
    shape = len(sides[0].ids), len(sides[1].ids)
    how = "count" if clicks and duplicates != "error" else duplicates
    arrays, repeated = _merged(arrays, shape, how)
    row_ids, col_ids = (shown(numbers.ids) for numbers in sides)
    if len(repeated) and duplicates == "error":
        a, b = (array[repeated[0]] for array in arrays[:2])
        raise refused(path, len(repeated), row_ids[a], col_ids[b])
    rows, cols, values, times = arrays
    told, untimed = times_told(times)
    return RatingsFile(
        rows, cols, values, row_ids, col_ids, reading.rejected, len(repeated), read.header,
        read.guessed, told, clicks, untimed,
    )  # fmt: skip


@contextmanager
def database(memory_limit: int | None) -> Iterator[Any]:
    """Yield a database on disk, which is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="overt-") as place:
        db = loading.duckdb().connect(str(Path(place) / "lines.db"))
        try:
            db.execute(f"set temp_directory = '{place}'")
            if memory_limit is not None:
                db.execute(f"set memory_limit = '{int(SHARE * memory_limit)}B'")
            yield db
        finally:
            db.close()


def _merged(arrays: list[Array], shape: tuple[int, int], how: str) -> tuple[list[Array], Ints]:
    """Merge entries that are given more than once; return also which were merged with others.

    Entries are looked at in blocks of rows, and stay in their order.
    """
    rows, cols, values, times = arrays
    dropped = [np.zeros(0, np.int64)]
    if len(rows):
        ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
        bucket = ends[:-1] // SLICE
        n_buckets = int(bucket[-1]) + 1
        places = np.arange(len(rows)) if n_buckets == 1 else room(len(rows), np.int64)
        for some in slices(len(rows), places):
            places[some] = np.arange(some.start, some.stop)
        starts, keys, others, at = arranged(rows, cols, places, bucket, n_buckets, True)
        for start, stop in pairwise(starts.tolist()):
            here = np.argsort(at[start:stop], kind="stable") + start
            where = at[here]
            once = merge_duplicates(keys[here], others[here], values[where], times[where], how)
            if once is not None:
                first, x, t = once
                values[where[first]], times[where[first]] = x, t
                dropped.append(np.delete(where, first))
            forget(keys, others, at, *arrays)
    gone = np.concatenate(dropped)
    if not len(gone) or how == "error":
        return arrays, gone
    kept = np.ones(len(rows), bool)
    kept[gone] = False
    with piles([array.dtype for array in arrays]) as found:
        for some in slices(len(rows), *arrays):
            for pile, array in zip(found, arrays, strict=True):
                pile.add(array[some][kept[some]])
        return [pile.array() for pile in found], gone


def _hidden(path: Path) -> bool:
    return any(name.startswith((".", "_")) for name in path.parts)
