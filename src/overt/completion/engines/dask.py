"""The row kernels on the workers of a Dask cluster.

Workers keep their shares of the entries. A half sweep needs the other side's rows everywhere: those
that workers computed in the half sweep before they fetch from each other, others are sent in
pieces. Updated rows come back to the client as well, so that a lost worker loses none: what it had
not finished is computed elsewhere. The arithmetic is that of one process, bit for bit.
"""

from __future__ import annotations

import time
import uuid
import warnings
from asyncio import CancelledError
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError as Cancelled
from contextlib import contextmanager
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from overt._cluster import ClusterLostError, await_workers, connected, reachable
from overt._types import Array, Ints
from overt.completion.engines.remote import Work, update

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


class _Fresh(NamedTuple):
    """An array whose rows workers have: the array, its mark, and which field of whose results."""

    array: Array
    mark: int
    field: int
    parts: list[Any]


class _TaskError(Exception):
    """A kernel failed, wherever it ran; the error is its argument."""


class DaskEngine:
    """Sends kernels to the workers that keep the entries, and finds others for what is lost."""

    def __init__(self, client: Any) -> None:
        self.client, self._direct = client, reachable(client)
        self._shares: dict[int, tuple[Layout, list[Share]]] = {}
        self._fresh: dict[int, _Fresh] = {}
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

    def run(
        self, kernel: Any, layout: Any, shared: Any, by_row: Any, out: Any, sums: Any = None
    ) -> None:
        """Update the rows of `out`, each share on the worker that keeps its entries."""
        shares, parts = self._shares_of(layout), []
        name = (kernel.__module__, kernel.__name__)
        like = type(out)(*((array.shape[1], array.dtype) for array in out))
        size, waiting, fruitless = None if sums is None else sums.shape[1], list(shares), 0
        before = len(self._faults)
        while waiting:
            self._note(sum(share.lost for share in waiting), "")
            found, fault = [], ""
            try:
                token, held = uuid.uuid4().hex, self._held(shared)
                futures = {}
                alive = self._workers()
                for share, worker in zip(waiting, cycle(alive), strict=False):
                    if share.worker not in alive:  # its entries may still be somewhere
                        share.worker = worker
                    share.place(self)
                    mine = self.sent([array[share.rows] for array in by_row], share.worker)
                    work = Work(name, token, like, size)
                    given = (share.entries, mine, held)
                    futures[self.client.submit(update, work, *given, pure=False)] = share
                for future, (_, updated, summed) in self._finished(futures):
                    share = futures[future]
                    for array, new in zip(out, updated, strict=True):
                        array[share.rows] = new
                    if sums is not None:
                        sums[share.chunks] = summed
                    found.append(share)
                    parts.append(future)
            except _TaskError as error:
                raise error.args[0] from None
            except (Exception, CancelledError) as error:  # of a connection
                fault = f"{type(error).__name__}: {error}".splitlines()[0]
            waiting = [share for share in waiting if share not in found]
            if waiting:
                fruitless = 0 if found else fruitless + 1
                self._mend(waiting, fault, fruitless)
        large = [(field, array) for field, array in enumerate(out) if array.nbytes >= LARGE]
        self._fresh = {id(a): _Fresh(a, _mark(a), field, parts) for field, a in large}
        if len(self._faults) > before:  # what workers had may be gone too: everything is sent anew
            self._fresh = {}

    def _finished(self, futures: dict[Any, Share]) -> Iterator[tuple[Any, Any]]:
        """Yield what workers have finished; what was lost on the way is left out."""
        from distributed import KilledWorker, as_completed

        try:
            for future in as_completed(list(futures)):
                if future.status == "finished":
                    yield future, self.client.gather(future, direct=self._direct)
                elif future.status == "error" and not isinstance(future.exception(), KilledWorker):
                    raise _TaskError(future.exception())
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
        if hasattr(layout, "shares"):  # workers made them
            found: list[Share] = layout.shares
            return found
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
        fresh = self._fresh.get(id(array))
        if fresh is not None and fresh.mark == _mark(array):
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


def _mark(array: Array) -> int:
    """Return a number that a changed array does not keep."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = flat[: len(flat) // 8 * 8].view(np.uint64)
    sums = np.add.reduceat(words, np.arange(0, len(words), 1024))
    return hash((sums.tobytes(), flat[8 * len(words) :].tobytes()))
