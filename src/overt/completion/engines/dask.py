"""The row kernels on the workers of a Dask cluster.

Each worker keeps its share of the ratings, sent once. A half sweep sends the other side's factors
to every worker and brings the updated rows back; the arithmetic is that of one process, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from overt._check import InputError, MissingExtraError
from overt._types import Array

if TYPE_CHECKING:
    from overt.completion.engines import Engine
    from overt.completion.forms.problem import Layout

TASKS = 2
"""Tasks for each worker thread in a half sweep."""


@contextmanager
def dask_engine(n_jobs: int) -> Iterator[Engine]:
    """Take the cluster of the current `distributed.Client`, or start one of `n_jobs` processes."""
    try:
        import distributed
    except ModuleNotFoundError as error:
        if error.name not in ("distributed", "dask"):
            raise
        raise MissingExtraError("distributed", "dask") from None
    started = None
    try:
        client = distributed.get_client()
    except ValueError:
        client = started = distributed.Client(
            n_workers=n_jobs, threads_per_worker=1, dashboard_address=None
        )
    try:
        if not client.nthreads():
            raise InputError('engine="dask" needs a cluster with workers, the current one has none')
        yield _DaskEngine(client)
    finally:
        if started is not None:
            started.close()
            started.cluster.close()


class _Share(NamedTuple):
    """Some chunks of a layout: their numbers, rows and cuts, and where their entries are."""

    chunks: list[int]
    rows: Array
    cuts: Array
    entries: Any


class _DaskEngine:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._shares: dict[int, tuple[Layout, list[_Share]]] = {}

    def run(
        self, kernel: Any, layout: Layout, shared: Any, by_row: Any, out: Any, sums: Any = None
    ) -> None:
        """Update the rows of `out`, each share on the worker that keeps its entries."""
        client, shares = self._client, self._scattered(layout)
        name = (kernel.__module__, kernel.__name__)
        everywhere = client.scatter(tuple(shared), broadcast=True, hash=False)
        like = type(out)(*((array.shape[1], array.dtype) for array in out))
        size = None if sums is None else sums.shape[1]
        futures = []
        for share in shares:
            mine = [array[share.rows] for array in by_row]
            given = (name, share.entries, share.cuts, everywhere, mine, like, size)
            futures.append(client.submit(_update, *given, pure=False))
        try:
            for share, future in zip(shares, futures, strict=True):
                updated, summed = future.result()
                for array, new in zip(out, updated, strict=True):
                    array[share.rows] = new
                if sums is not None:
                    sums[share.chunks] = summed
        except BaseException:
            client.cancel(futures)
            raise

    def _scattered(self, layout: Layout) -> list[_Share]:
        """Return the ratings' shares, sent to the workers when first asked for."""
        if id(layout) not in self._shares:
            tasks = TASKS * max(1, sum(self._client.nthreads().values()))
            numbers = [range(i, layout.n_chunks, tasks) for i in range(min(tasks, layout.n_chunks))]
            taken = [layout.take(chunks) for chunks in numbers]
            sent = self._client.scatter([entries for *_, entries in taken], hash=False)
            shares = [
                _Share(list(chunks), rows, cuts, future)
                for chunks, (rows, cuts, _), future in zip(numbers, taken, sent, strict=True)
            ]
            # The layout is kept too: its id is that of no other as long as it lives.
            self._shares[id(layout)] = layout, shares
        return self._shares[id(layout)][1]


def _update(
    kernel: tuple[str, str], entries: Any, cuts: Array, shared: Any, by_row: list[Array],
    like: Any, size: int | None,
) -> tuple[Any, Array | None]:  # fmt: skip
    """Run a kernel on one share, on a worker; return its rows and the sums of its chunks."""
    module, name = kernel
    rows = np.arange(cuts[-1])
    out = type(like)(*(np.zeros((len(rows), width), dtype) for width, dtype in like))
    sums = None if size is None else np.zeros((len(cuts) - 1, size))
    more = () if sums is None else (cuts, sums)
    getattr(import_module(module), name)(rows, entries, *shared, *by_row, out, *more)
    return out, sums
