"""Ratings for a fit: a file or folder read here, or a folder that a cluster's workers read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError, choice
from overt._cluster import checked_engine
from overt._types import Array, Floats
from overt.completion.engines import make_engine
from overt.completion.engines.dask import TASKS, DaskEngine
from overt.completion.settings import Settings
from overt.completion.sharing import SharedEntries, tree
from overt.completion.storage import blocks, files
from overt.completion.storage.collecting import RatingsFile, refused
from overt.completion.storage.folders import FiledEntries, parts_of
from overt.completion.storage.parts import roles, shown
from overt.completion.storage.text import ORDER, Rejected, Said
from overt.entries.entries import DUPLICATES

SMALL, LARGE, UNITS = 32 << 20, 256 << 20, 4
"""Bytes of files that a task reads at least and at most, and tasks for each thread."""


@dataclass(frozen=True, eq=False)
class SharedFile:
    """What a folder holds, as `RatingsFile` says it, its entries with the workers."""

    entries: SharedEntries
    rejected: list[Rejected]
    duplicates: int
    header: tuple[str, ...]
    guessed: tuple[str, ...]
    clicks: bool

    @property
    def values(self) -> Floats:
        """The different values."""
        return self.entries.values

    @property
    def row_ids(self) -> Array:
        """The identifiers of rows, sorted."""
        return self.entries.filed.row_ids

    @property
    def col_ids(self) -> Array:
        """The identifiers of columns, sorted."""
        return self.entries.filed.col_ids


@contextmanager
def opened(
    path: Any,
    settings: Settings,
    duplicates: str = "mean",
    said: Said | None = None,
    *,
    shared: bool = True,
) -> Iterator[RatingsFile | SharedFile]:
    """Read a file or folder for a fit: a folder on a cluster, where its workers keep the entries.

    What cannot be `shared`, or is asked of entries that one machine must hold, is read here.
    """
    on_cluster = Path(path).is_dir() and checked_engine(settings.engine) != "local"
    if on_cluster and shared and settings.shareable:
        choice("duplicates", duplicates, DUPLICATES)
        columns = dict.fromkeys(ORDER) | dict(said or {})
        given = Path(path), settings.engine, settings.n_jobs, duplicates, columns
        with read_shared(*given) as read:
            files.refuse_absurd(read, path, columns)
            yield read
        return
    if on_cluster:
        warnings.warn(
            f"{path} is read by this process: workers keep entries of their own only for ratings "
            'that are unknown where missing, with drop_prob="learn" or a number, without features',
            stacklevel=3,
        )
    yield files.read_ratings(path, duplicates, memory_limit=settings.memory_limit, **(said or {}))


@contextmanager
def read_shared(
    path: Path, engine: str, n_jobs: int | None, duplicates: str, said: Said
) -> Iterator[SharedFile]:
    """Have the workers of a cluster read a folder; what they keep of it is gone at the end."""
    with make_engine(engine, n_jobs) as running:
        if not isinstance(running, DaskEngine):
            raise TypeError(f"a folder is shared by a cluster, got {engine!r}")
        yield _Reader(running, path.absolute(), duplicates, said).file()


class _Reader:
    """Submits what is to be done, and waits for sums."""

    def __init__(self, engine: DaskEngine, path: Path, duplicates: str, said: Said) -> None:
        self._engine, self._path, self._duplicates, self._said = engine, path, duplicates, said
        self._threads = max(1, sum(engine.client.nthreads().values()))
        self._n_blocks = TASKS * self._threads

    def file(self) -> SharedFile:
        """Read all files and return what they hold."""
        submit, n_blocks = self._engine.submit, self._n_blocks
        files = enumerate(self._units())
        units = [submit(blocks.read, some, self._said, turn=turn) for turn, some in files]
        names = tree(self._engine, blocks.merge_names, [submit(_names, unit) for unit in units])
        accounts = self._engine.gathered([submit(_account, unit) for unit in units])
        read, rejected, count = self._checked(accounts)
        if not count:
            first = [f"; the first rejected is {line.line}: {line.reason}" for line in rejected[:1]]
            more = "".join(first)
            raise InputError(f"{self._path} has no usable line (row, column, value){more}")
        plan, clicks = submit(blocks.plan, names, n_blocks), "value" not in read.places
        how = "count" if clicks and self._duplicates != "error" else self._duplicates
        timed = how == "last" and "time" in read.places
        cuts = [submit(blocks.cut, unit, plan, n_blocks, timed) for unit in units]
        kept: tuple[list[Any], list[Any]] = [], []
        for side in (0, 1):
            for number in range(n_blocks):
                pieces = [submit(blocks.piece, cut, side, number) for cut in cuts]
                given = plan, side, number, how, *pieces
                kept[side].append(submit(blocks.block, *given, turn=number))
        (rows, _), (cols, _) = self._engine.gathered([names])[0]
        ids = shown(rows), shown(cols)
        filed = FiledEntries(self._path, self._duplicates, dict(self._said), *ids, 0, 0)
        entries = SharedEntries(self._engine, kept, filed, None)
        if entries.repeated and self._duplicates == "error":
            a, b = entries.example
            raise refused(self._path, entries.repeated, ids[0][a], ids[1][b])
        how_read = read.header, read.guessed, clicks
        return SharedFile(entries, rejected, entries.repeated, *how_read)

    def _units(self) -> list[list[str]]:
        """Return files that a task reads, in their order."""
        files = parts_of(self._path)
        sizes = [file.stat().st_size for file in files]
        most = min(max(sum(sizes) // (UNITS * self._threads), SMALL // self._threads), LARGE)
        places = zip(np.cumsum([0, *sizes[:-1]]) // max(most, 1), files, strict=True)
        return [[str(f) for _, f in unit] for _, unit in groupby(places, key=lambda pair: pair[0])]

    def _checked(self, accounts: Sequence[Any]) -> tuple[Any, list[Rejected], int]:
        """Return the columns of all files, the lines rejected, and how many were used."""
        found = [read for read, _, _ in accounts if read is not None]
        for read in found:
            if roles(read) != roles(found[0]):
                raise InputError(
                    f"files of {self._path} have the columns {roles(read)} and {roles(found[0])}; "
                    "all files must have the same"
                )
        rejected = [line for _, lines, _ in accounts for line in lines]
        return found[0], rejected, sum(count for _, _, count in accounts)


def _names(unit: blocks.Unit) -> blocks.Names:
    return unit.names


def _account(unit: blocks.Unit) -> Any:
    return unit.account
