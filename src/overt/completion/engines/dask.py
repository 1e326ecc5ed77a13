"""The row kernels on the workers of a Dask cluster.

Workers keep their shares of the entries. A half sweep needs the other side's rows everywhere: those
that workers computed in the half sweep before they fetch from each other, others are sent in
pieces. Updated rows come back to the client as well, so that a lost worker loses none: what it had
not finished is computed elsewhere. Of covariances those of one side do: the other side's are made
of them again where they are lost. The arithmetic is that of one process, bit for bit.
"""

from __future__ import annotations

import time
import uuid
import warnings
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError as Cancelled
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from overt._cluster import ClusterLostError, await_workers, connected, reachable
from overt._types import Array
from overt.completion.engines.remote import Work, release, update, without
from overt.completion.engines.shares import Fresh, Job, Late, Share, SharedLayout, TaskError

if TYPE_CHECKING:
    from overt.completion.engines import Engine
    from overt.completion.forms.problem import Layout

TASKS = 2
"""Tasks for each worker thread in a half sweep."""

LARGE = 1 << 16
"""Bytes from which an array travels in pieces."""

PATIENCE = 3
"""Seconds after which a worker that cannot be sent anything is taken for lost."""

TRIES, PAUSE = 6, 1.0
"""Rounds in a row that finish nothing before a fit is given up, and seconds between them."""


@contextmanager
def dask_engine(engine: str, n_jobs: int) -> Iterator[Engine]:
    """Take the cluster of the current `distributed.Client`, or that at an address, or start one."""
    with connected(engine, n_jobs) as client:
        yield DaskEngine(client)


class DaskEngine:
    """Sends kernels to the workers that keep the entries, and finds others for what is lost."""

    def __init__(self, client: Any) -> None:
        self.client, self._direct = client, reachable(client)
        self._shares: dict[int, tuple[Layout, list[Share]]] = {}
        self._fresh: dict[int, Fresh] = {}
        self._late: Late | None = None
        self._rests = False
        self._faults: list[str] = []
        self._known = set(client.nthreads())

    @property
    def faults(self) -> list[str]:
        """What was lost and computed again, and which workers left, needed or not."""
        try:
            gone = self._known - set(self.client.nthreads())
        except Exception:  # the scheduler itself is gone, and what was asked of it is done
            gone = self._known
        left = [f"workers left before the end: {', '.join(sorted(gone))}"] if gone else []
        return self._faults + left

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave late fields with the workers until the end, or `fetch`."""
        from distributed import fire_and_forget

        self._rests = True
        try:
            yield
            self.fetch()
        finally:
            self._rests, self._late, self._fresh = False, None, {}
            with suppress(Exception):  # of a cluster that is gone
                for worker in self.client.nthreads() if self.client.status == "running" else ():
                    fire_and_forget(self.client.submit(release, workers=[worker], pure=False))

    def run(
        self, kernel: Any, layout: Any, shared: Any, by_row: Any, out: Any, sums: Any = None,
        late: str | None = None,
    ) -> None:  # fmt: skip
        """Update the rows of `out`, each share on the worker that keeps its entries."""
        field = None if late is None else self._staying(out, out._fields.index(late), shared)
        job, before = Job.of(kernel, shared, by_row, out, sums, field), len(self._faults)
        if self._late is not None:
            self._late.keep(out)
        parts, results = {}, self._results(self._shares_of(layout), partial(self._submitted, job))
        # Rows whose tables stay are taken over together: none without the others.
        for share, whole, updated, summed in results if field is None else list(results):
            for array, new in zip(out, updated, strict=True):
                if new is not None:
                    array[share.rows] = new
            if sums is not None:
                sums[share.chunks] = summed
            parts[share] = whole
        there = [n for n, array in enumerate(out) if array.nbytes >= LARGE and n != field]
        found = list(parts.values())
        self._fresh = {id(out[n]): Fresh.of(out[n], n, found) for n in there}
        if len(self._faults) > before:  # what workers had may be gone too: everything is sent anew
            self._fresh = {}
        if field is not None:
            self._late = Late(out[field], field, job, parts)

    def fetch(self) -> None:
        """Bring what stayed with the workers."""
        late = self._late
        if late is None:
            return

        def submitted(waiting: list[Share]) -> dict[Any, Any]:
            self._recover(late)
            return {late.parts[share]: (share, late.parts[share]) for share in waiting}

        for share, _, updated, _ in self._results(list(late.parts), submitted):
            late.array[share.rows] = updated[late.field]
        self._late = None

    def _staying(self, out: Any, field: int, shared: Any) -> int | None:
        """Return the field if it may stay: where the client has all that it can be made of again.

        Of two sides in turns the one with the smaller tables is brought.
        """
        if not self._rests or (self._late is not None and self._late.within(shared)):
            return None
        least = max(getattr(array, "nbytes", 0) for group in shared for array in group)
        return field if out[field].nbytes >= max(LARGE, least) else None

    def _results(
        self, shares: list[Share], submitted: Callable[[list[Share]], dict[Any, Any]]
    ) -> Iterator[tuple[Share, Any, Any, Any]]:
        """Yield (share, future of all, rows, sums) as workers finish them, however often it takes.

        `submitted` asks for what is waiting: futures of what is brought, with (share, of all).
        """
        waiting, fruitless = list(shares), 0
        while waiting:
            found, fault = [], ""
            try:
                futures = submitted(waiting)
                for future, (_, updated, summed) in self._finished(futures):
                    found.append(futures[future][0])
                    yield *futures[future], updated, summed
            except TaskError as error:
                raise error.args[0] from None
            except ClusterLostError:
                raise
            except (Exception, CancelledError) as error:  # of a connection
                fault = f"{type(error).__name__}: {error}".splitlines()[0]
            waiting = [share for share in waiting if share not in found]
            if waiting:
                fruitless = 0 if found else fruitless + 1
                self._mend(waiting, fault, fruitless)

    def _submitted(self, job: Job, waiting: list[Share]) -> dict[Any, tuple[Share, Any]]:
        """Ask workers for some shares of a job."""
        self._note(sum(share.lost for share in waiting), "")
        if self._late is not None and self._late.within(job.shared):
            self._recover(self._late)
        work = Work(job.kernel, uuid.uuid4().hex, job.like, job.size, self._rests)
        held = self._held(job.shared)
        futures, alive = {}, self._workers()
        for share, worker in zip(waiting, cycle(alive), strict=False):
            if share.worker not in alive:  # its entries may still be somewhere
                share.worker = worker
            share.place(self)
            mine = self.sent([array[share.rows] for array in job.by_row], share.worker)
            whole = self.client.submit(update, work, share.entries, mine, held, pure=False)
            brief = whole
            if job.late is not None:
                brief = self.client.submit(without, whole, job.late, pure=False)
            futures[brief] = share, whole
        return futures

    def _recover(self, late: Late) -> None:
        """Compute again what stayed with a worker that was lost."""
        lost = [share for share, future in late.parts.items() if future.status != "finished"]
        if lost:
            self._note(len(lost), "")
            for share, whole, *_ in self._results(lost, partial(self._submitted, late.job)):
                late.parts[share] = whole

    def _finished(self, futures: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
        """Yield what workers have finished; what was lost on the way is left out."""
        from distributed import KilledWorker, as_completed

        try:
            for future in as_completed(list(futures)):
                if future.status == "finished":
                    yield future, self.client.gather(future, direct=self._direct)
                elif future.status == "error" and not isinstance(future.exception(), KilledWorker):
                    raise TaskError(future.exception())
        except BaseException:
            if self.client.status == "running":
                self.client.cancel(list(futures))
            raise

    def _mend(self, waiting: list[Share], fault: str, fruitless: int) -> None:
        """Give up after many rounds; what was lost is sent again in the next."""
        if fruitless > TRIES:
            raise ClusterLostError(f"{TRIES} attempts in a row finished nothing ({fault})")
        self._note(len(waiting), fault)
        self._direct = reachable(self.client)
        time.sleep(PAUSE * fruitless)

    def _note(self, count: int, fault: str) -> None:
        """Wait for workers and say what was lost; others may have had it from the one gone."""
        if count:
            self._fresh = {}
            await_workers(self.client)
            text = f"workers were lost; {count} parts of a half sweep were computed elsewhere"
            self._faults.append(f"{text} ({fault})" if fault else text)
            warnings.warn(self._faults[-1], stacklevel=2)

    def _shares_of(self, layout: Any) -> list[Share]:
        """Return the shares of a layout, cut when first asked for."""
        if isinstance(layout, SharedLayout):  # workers made them
            return layout.shares
        if id(layout) not in self._shares:
            tasks = TASKS * max(1, len(self._workers()))
            numbers = [range(i, layout.n_chunks, tasks) for i in range(min(tasks, layout.n_chunks))]
            # The layout is kept too: its id is that of no other as long as it lives.
            shares = [Share(layout.rows_of(chunks), chunks, (layout, chunks)) for chunks in numbers]
            self._shares[id(layout)] = layout, shares
        return self._shares[id(layout)][1]

    def _held(self, shared: Any) -> Any:
        """Return what all workers need: small arrays as they are, large ones in pieces."""
        small: list[Any] = []
        large = []
        for group in shared:
            for number, array in enumerate(group):
                if getattr(array, "nbytes", 0) < LARGE:
                    continue
                large.append(((len(small), number), array.shape, array.dtype, self._pieces(array)))
                group = group._replace(**{group._fields[number]: None})
            small.append(group)
        return self.sent(small), large

    def _pieces(self, array: Array) -> list[Any]:
        """Return (rows, field, future) of the pieces of an array: fields are of results."""
        if self._late is not None and array is self._late.array:
            return [(None, self._late.field, future) for future in self._late.parts.values()]
        fresh = self._fresh.get(id(array))
        if fresh is not None and fresh.holds(array):
            return [(None, fresh.field, future) for future in fresh.parts]
        count = len(self.client.nthreads())
        edges = np.linspace(0, len(array), count + 1).astype(int)
        places = [slice(int(a), int(b)) for a, b in pairwise(edges)]
        sent = self.client.scatter([array[p] for p in places], direct=self._direct, hash=False)
        return [(place, None, future) for place, future in zip(places, sent, strict=True)]

    def _workers(self) -> list[str]:
        """Return the workers, one with several threads as often as it has."""
        threads = self.client.nthreads()
        self._known |= set(threads)
        return [worker for worker, n in threads.items() for _ in range(n)]

    def submit(self, function: Any, *given: Any, turn: int | None = None) -> Any:
        """Return a future of function(*given), which Dask computes again where it is lost.

        Workers take what has a `turn` in turns, as long as there are all of them.
        """
        how: dict[str, Any] = {}
        if turn is not None and (threads := self._workers()):
            how = {"workers": [threads[turn % len(threads)]], "allow_other_workers": True}
        return self.client.submit(function, *given, pure=False, **how)

    def gathered(self, futures: list[Any]) -> list[Any]:
        """Return results; what a task raised is raised here."""
        from distributed import KilledWorker

        try:
            return list(self.client.gather(futures))
        except (OSError, TimeoutError, CancelledError, Cancelled, KilledWorker) as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ClusterLostError(f"the cluster was lost while it read ({why})") from None

    def sent(self, value: Any, place: str | None = None) -> Any:
        """Return a value that is with a worker."""
        near = None if place is None else [place]
        how = {"direct": self._direct, "hash": False, "workers": near, "timeout": PATIENCE}
        return self.client.scatter([value], **how)[0]
