"""The row kernels on threads of this process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from overt.completion.memory import forget

if TYPE_CHECKING:
    from overt.completion.engines import Engine
    from overt.completion.forms.problem import Layout

ENTRIES = 5000
"""Entries of a call at least: with fewer a call costs more than what it computes."""


@contextmanager
def thread_engine(n_jobs: int) -> Iterator[Engine]:
    """Start threads, and hold the BLAS to one: its own threads would compete with these."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        if n_jobs == 1:
            yield _ThreadEngine(None)
            return
        pool = ThreadPoolExecutor(n_jobs, thread_name_prefix="overt")
        try:
            yield _ThreadEngine(pool)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class _ThreadEngine:
    def __init__(self, pool: ThreadPoolExecutor | None) -> None:
        self._pool = pool
        self.faults: list[str] = []

    def run(
        self, kernel: Any, layout: Layout, shared: Any, by_row: Any, out: Any, sums: Any = None
    ) -> None:
        """Update the rows of `out`, heavy chunks first; small ones are taken together."""
        step = -(-ENTRIES * layout.n_chunks // len(layout.entries.values))

        def task(first: int) -> None:
            rows, cuts, entries = layout.part(first, first + step)
            more = () if sums is None else (cuts, sums[first : first + step])
            kernel(rows, entries, *shared, *by_row, out, *more)
            forget(*entries[1:])

        starts = range(0, layout.n_chunks, step)
        results = map(task, starts) if self._pool is None else self._pool.map(task, starts)
        for _ in results:  # raises what a call raised
            pass


ALONE = _ThreadEngine(None)
"""No threads beside the one that asks."""
