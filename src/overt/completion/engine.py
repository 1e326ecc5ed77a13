"""Who runs the row kernels: threads of this process, or the workers of a Dask cluster.

A kernel is called as kernel(rows, indptr, indices, values, *shared, *by_row, *outputs, total) on
chunks of rows that do not depend on who runs them, so results do not either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from overt._check import InputError, choice, whole
from overt._types import Array
from overt.completion.ratings import Grouped

ENGINES = ("local", "dask")


class Engine(Protocol):
    """Runs a kernel over all rows of one side."""

    def run(
        self,
        kernel: Callable[..., None],
        group: Grouped,
        shared: Sequence[Any],
        outputs: Sequence[Array],
        *,
        by_row: Sequence[Array] = (),
        totals: Array | None = None,
    ) -> None:
        """Update the rows of `outputs`.

        `shared` is needed for every row; `by_row` and `outputs` have a row for each row of the
        side, or none where the kernel is to leave them alone. `totals` has one row for each chunk.
        """


class LocalEngine(AbstractContextManager["LocalEngine"]):
    """Threads of this process; each chunk of rows is one task.

    The BLAS is held to one thread meanwhile: its own threads would compete with these.
    """

    def __init__(self, n_jobs: int | None = None) -> None:
        self.n_jobs = workers(n_jobs)
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        from threadpoolctl import threadpool_limits

        self._limits = threadpool_limits(1, user_api="blas")
        if self.n_jobs > 1:
            self._pool = ThreadPoolExecutor(self.n_jobs, thread_name_prefix="overt")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._limits.restore_original_limits()

    def run(
        self,
        kernel: Callable[..., None],
        group: Grouped,
        shared: Sequence[Any],
        outputs: Sequence[Array],
        *,
        by_row: Sequence[Array] = (),
        totals: Array | None = None,
    ) -> None:
        """Update the rows of `outputs`, heavy chunks first."""
        data = (group.indptr, group.indices, group.values)

        def task(number: int) -> None:
            total = () if totals is None else (totals[number],)
            kernel(group.chunks[number], *data, *shared, *by_row, *outputs, *total)

        numbers = range(len(group.chunks))
        for _ in map(task, numbers) if self._pool is None else self._pool.map(task, numbers):
            pass


def make_engine(name: str, n_jobs: int | None) -> AbstractContextManager[Engine]:
    """Return the engine with this name."""
    if choice("engine", name, ENGINES) == "dask":
        from overt.completion.cluster import DaskEngine

        return DaskEngine(n_jobs)
    return LocalEngine(n_jobs)


def workers(n_jobs: int | None) -> int:
    """Return a checked number of workers; None and -1 are one for each core."""
    if n_jobs is None or n_jobs == -1:
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    if isinstance(n_jobs, int) and n_jobs < 1:
        raise InputError(f"n_jobs must be at least 1, or -1 for every core, got {n_jobs}")
    return whole("n_jobs", n_jobs)


def empty(width: int) -> Array:
    """Return an array without rows: what a kernel is to leave alone."""
    return np.zeros((0, width))
