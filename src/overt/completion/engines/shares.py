"""What a Dask engine keeps in mind: shares of the entries, and tables that stay with workers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from overt._types import Array, Ints

if TYPE_CHECKING:
    from overt.completion.engines.dask import DaskEngine


class Share:
    """Some rows of a side, the numbers of their chunks, and where their entries are.

    It is `given` by the client, or `built` by workers from files, and then by Dask once more
    where it is lost.
    """

    def __init__(
        self, rows: Ints, chunks: Sequence[int], given: Any = None, built: Any = None
    ) -> None:
        self.rows, self.chunks, self.entries, self._given = rows, chunks, built, given
        self.worker = ""

    @property
    def lost(self) -> bool:
        """Whether no worker has the entries any more, nor is making them."""
        if self.entries is None:
            return False
        gone: bool = self.entries.status != "finished"
        return gone and (self._given is not None or self.entries.status != "pending")

    def place(self, engine: DaskEngine) -> None:
        """Send the entries to the worker, unless they are with one."""
        if self._given is not None and (self.entries is None or self.lost):
            layout, chunks = self._given
            self.entries = engine.sent(layout.take(chunks), self.worker)


@dataclass(frozen=True, eq=False)
class SharedLayout:
    """A side's entries as a kernel reads them, a share with each of some workers."""

    shares: list[Share]
    n_chunks: int


class TaskError(Exception):
    """A kernel failed, wherever it ran; the error is its argument."""


class Fresh(NamedTuple):
    """An array whose rows workers have: the array, its mark, and which field of whose results."""

    array: Array
    mark: bytes
    field: int
    parts: list[Any]

    @classmethod
    def of(cls, array: Array, field: int, parts: list[Any]) -> Fresh:
        """Remember an array as it is."""
        return cls(array, mark_of(array), field, parts)

    def holds(self, array: Array) -> bool:
        """Whether the array is what workers have."""
        return self.mark == mark_of(array)


class Job(NamedTuple):
    """A half sweep: a kernel by name, what it is given, what it returns, which field stays."""

    kernel: tuple[str, str]
    shared: Any
    by_row: Any
    like: Any
    size: int | None
    late: int | None

    @classmethod
    def of(
        cls, kernel: Any, shared: Any, by_row: Any, out: Any, sums: Any, late: int | None
    ) -> Job:
        """Describe a call of a kernel."""
        like = type(out)(*((array.shape[1], array.dtype) for array in out))
        size, name = None if sums is None else sums.shape[1], (kernel.__module__, kernel.__name__)
        return cls(name, shared, by_row, like, size, late)


@dataclass(eq=False)
class Late:
    """An array whose rows only workers have: which field of whose results, and how to make them."""

    array: Array
    field: int
    job: Job
    parts: dict[Share, Any]

    def within(self, shared: Any) -> bool:
        """Whether the array is needed for something else."""
        return any(array is self.array for group in shared for array in group)

    def keep(self, out: Any) -> None:
        """Copy what it is made of before that is overwritten."""
        shared = []
        for group in self.job.shared:
            old = {n: a for n, a in group._asdict().items() if any(a is new for new in out)}
            shared.append(group._replace(**{name: array.copy() for name, array in old.items()}))
        self.job = self.job._replace(shared=tuple(shared))


def mark_of(array: Array) -> bytes:
    """Return a digest of the numbers and their order, which a changed array does not keep."""
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).digest()
