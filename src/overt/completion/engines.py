"""Run the row kernels: on threads of this process, or on the workers of a Dask cluster.

`update_rows` is called on chunks of rows that do not depend on the engine, so results do not
either, bit for bit.

On a cluster, workers store shares of the entries, which are sent once. A half sweep sends the fixed
side to every worker, runs the kernel on each share where its entries are, and returns the updated
rows to the client. Where a worker is lost, entries are sent again and the half sweep is repeated.
"""

from __future__ import annotations

import socket
import time
import warnings
from asyncio import CancelledError
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import cycle
from typing import Any, NamedTuple, Protocol

import numpy as np

from overt._check import Array, Floats, Ints
from overt._running import ClusterLostError, checked_engine, connected, thread_count
from overt.completion.kernels.rows import (
    Blocks,
    FixedSide,
    RowPrior,
    Rows,
    update_rows,
)
from overt.completion.memory import forget
from overt.completion.problem import Layout

MIN_ENTRIES_PER_CALL = 5000
"""With fewer entries a kernel's call costs more than its work."""

SHARES_PER_THREAD = 2
"""Shares for each worker thread: a second one evens out differences in speed."""

MAX_ATTEMPTS = 6
"""Attempts at a half sweep before a fit is given up."""

PAUSE_SECONDS = 1.0
"""Pause after the second attempt, twice that after the third, and so on."""

REACH_SECONDS = 3.0
"""Seconds in which a worker that can be reached answers."""

WORKER_SECONDS = 60.0
"""Seconds without any worker after which a cluster is given up."""

SEND_SECONDS = 3
"""Seconds after which a worker that cannot be sent anything counts as lost."""


class Engine(Protocol):
    """Runs a kernel over all rows of one side."""

    def run(self, layout: Layout, shared: Any, by_row: Any, out: Rows) -> Floats:
        """Update the rows of the arrays in `out`; return the sum of their tables.

        `shared` (the fixed side, the prior) is needed for every row; arrays in `by_row` and `out`
        have a row for each row of the side.
        """


def half_sweep(
    engine: Engine,
    layout: Layout,
    shared: tuple[FixedSide, RowPrior],
    shifts: Floats,
    precisions: Floats,
    means: Array,
    tables: Array,
    normals: Floats | None = None,
) -> tuple[Rows, Floats]:
    """Update a side's means and tables in place; return all results and the sum of the tables.

    Without stored tables, means are samples where there are standard `normals`.
    """
    stored = tables.shape[1] > 0
    centers = means[:, :0] if stored else means.copy()
    if normals is None:
        normals = np.zeros((len(means), 0 if stored else shifts.shape[1]))
    out = Rows(means, centers, tables, np.zeros((len(means), 2)))
    return out, engine.run(layout, shared, (shifts, precisions, normals), out)


def make_engine(name: str, n_jobs: int | None) -> AbstractContextManager[Engine]:
    """Return the engine with this name, ready between `with` and its end."""
    engine = checked_engine(name)
    count = thread_count(n_jobs)
    return thread_engine(count) if engine == "local" else dask_engine(engine, count)


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

    def run(self, layout: Layout, shared: Any, by_row: Any, out: Rows) -> Floats:
        """Update the rows of `out`, heavy chunks first; small ones are taken together."""
        sums = np.zeros((layout.n_chunks, out.tables.shape[1]))
        step = -(-MIN_ENTRIES_PER_CALL * layout.n_chunks // len(layout.entries.values))

        def task(first: int) -> None:
            rows, cuts, entries = layout.part(first, first + step)
            some = sums[first : first + step]
            update_rows(rows, entries, *shared, *by_row, out, cuts, some)
            forget(*entries[1:])

        starts = range(0, layout.n_chunks, step)
        results = (
            map(task, starts) if self._pool is None else self._pool.map(task, starts)
        )
        for _ in results:  # raises what a call raised
            pass
        return np.asarray(sums.sum(axis=0))


@contextmanager
def dask_engine(engine: str, n_jobs: int) -> Iterator[Engine]:
    """Take the cluster of the current `distributed.Client`, or that at an address, or start one."""
    with connected(engine, n_jobs) as client:
        yield DaskEngine(client)


Formats = Sequence[tuple[int, Any]]
"""Columns and storage format of each array of `Rows`."""


def update(
    formats: Formats,
    share: tuple[Array, Blocks],
    by_row: Sequence[Array],
    shared: Any,
) -> tuple[Rows, Floats]:
    """Run the kernel on one share, on a worker; return its rows and the sums of its chunks."""
    cuts, entries = share
    rows = np.arange(cuts[-1])
    out = Rows(*(np.zeros((len(rows), width), dtype) for width, dtype in formats))
    sums = np.zeros((len(cuts) - 1, out.tables.shape[1]))
    update_rows(rows, entries, *shared, *by_row, out, cuts, sums)
    return out, sums


class Share(NamedTuple):
    """Some chunks of a side's rows, and the future of their entries on one worker."""

    layout: Layout
    chunks: Sequence[int]
    rows: Ints
    worker: str
    entries: Any


class KernelError(Exception):
    """The kernel failed on a worker; the error is the cause."""


class DaskEngine:
    """Sends shares of the entries to workers, and again after a worker was lost."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._shares: dict[int, list[Share]] = {}
        self._direct = reachable(client)

    def run(self, layout: Layout, shared: Any, by_row: Any, out: Rows) -> Floats:
        """Update the rows of `out`, each share on the worker that has its entries."""
        reason = ""
        for attempt in range(MAX_ATTEMPTS):
            try:
                return self._half_sweep(layout, shared, by_row, out)
            except KernelError as error:
                raise error.__cause__ or error from None
            except (Exception, CancelledError) as error:  # of a connection
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
            await_workers(self.client)
            self._shares.clear()
            self._direct = reachable(self.client)
            fault = f"workers were lost; a half sweep was computed again ({reason})"
            warnings.warn(fault, stacklevel=2)
            time.sleep(PAUSE_SECONDS * attempt)
        raise ClusterLostError(
            f"{MAX_ATTEMPTS} attempts in a row finished nothing ({reason})"
        )

    def _half_sweep(
        self, layout: Layout, shared: Any, by_row: Any, out: Rows
    ) -> Floats:
        from distributed import KilledWorker, as_completed

        formats = [(array.shape[1], array.dtype) for array in out]
        sums = np.zeros((layout.n_chunks, out.tables.shape[1]))
        shares = self._shares_of(layout)
        fixed = self._send(shared)
        futures: dict[Any, Share] = {}
        for share in shares:
            if share.entries.status != "finished":
                raise ConnectionError(f"{share.worker} and its entries are gone")
            mine = [array[share.rows] for array in by_row]
            mine = self._send(mine, share.worker)
            future = self.client.submit(
                update, formats, share.entries, mine, fixed, pure=False
            )
            futures[future] = share
        try:
            for future in as_completed(list(futures)):
                if future.status == "error" and not isinstance(
                    future.exception(), KilledWorker
                ):
                    raise KernelError from future.exception()
                share = futures[future]
                rows, chunk_sums = self.client.gather(future, direct=self._direct)
                for array, new in zip(out, rows, strict=True):
                    array[share.rows] = new
                sums[share.chunks] = chunk_sums
        finally:
            with suppress(Exception):  # of a cluster that is gone
                self.client.cancel(list(futures))
        return np.asarray(sums.sum(axis=0))

    def _shares_of(self, layout: Layout) -> list[Share]:
        """Return the shares of a layout, cut and sent when first asked for."""
        if id(layout) not in self._shares:
            threads = [
                worker
                for worker, count in self.client.nthreads().items()
                for _ in range(count)
            ]
            count = min(SHARES_PER_THREAD * max(1, len(threads)), layout.n_chunks)
            shares = []
            for first, worker in zip(range(count), cycle(threads), strict=False):
                chunks = range(first, layout.n_chunks, count)
                entries = self._send(layout.take(chunks), worker)
                rows = layout.rows_of(chunks)
                shares.append(Share(layout, chunks, rows, worker, entries))
            # Shares refer to the layout, so that no other one gets its id as long as they live.
            self._shares[id(layout)] = shares
        return self._shares[id(layout)]

    def _send(self, value: Any, worker: str | None = None) -> Any:
        """Return the future of a value that was sent to one worker, or to all of them."""
        return self.client.scatter(
            [value],
            workers=None if worker is None else [worker],
            broadcast=worker is None,
            direct=self._direct,
            hash=False,
            timeout=SEND_SECONDS,
        )[0]


def reachable(client: Any) -> bool:
    """Whether data can go to and from the workers without a detour through the scheduler."""
    from distributed.comm.addressing import get_address_host_port

    for address in client.nthreads():
        if address.startswith("inproc://"):
            continue
        try:
            socket.create_connection(
                get_address_host_port(address), timeout=REACH_SECONDS
            ).close()
        except (OSError, ValueError):
            return False
    return True


def await_workers(client: Any) -> None:
    """Return once there is a worker; raise ClusterLostError where none comes."""
    end = time.monotonic() + WORKER_SECONDS
    while time.monotonic() < end and client.status not in ("closed", "closing"):
        try:
            if client.status == "running" and client.nthreads():
                return
        except Exception:  # noqa: S110 - whatever a broken connection raises
            pass
        time.sleep(0.2)
    what = "has no workers left" if client.status == "running" else "no longer answers"
    raise ClusterLostError(f"the cluster {what}")
