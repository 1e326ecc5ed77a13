"""The row kernels on the workers of a Dask cluster.

Each worker keeps its share of the ratings, sent once. A half sweep sends the other side's factors
to every worker and brings the updated rows back; the arithmetic is that of one process, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from overt._check import InputError, MissingExtraError
from overt._types import Array
from overt.completion import kernels
from overt.completion.engine import workers
from overt.completion.ratings import Grouped

Entries = tuple[Array, Array, Array]

TASKS = 2
"""Tasks for each worker thread in a half sweep."""


class DaskEngine(AbstractContextManager["DaskEngine"]):
    """The cluster of the current `distributed.Client`, or one of `n_jobs` processes made here."""

    def __init__(self, n_jobs: int | None = None) -> None:
        try:
            import distributed
        except ModuleNotFoundError as error:
            if error.name not in ("distributed", "dask"):
                raise
            raise MissingExtraError("distributed", "dask") from None
        self._distributed = distributed
        self._n_jobs = workers(n_jobs)
        self._owned = False
        self._shares: dict[int, tuple[Grouped, list[_Share]]] = {}

    def __enter__(self) -> Self:
        try:
            self._client = self._distributed.get_client()
        except ValueError:
            self._client = self._distributed.Client(
                n_workers=self._n_jobs, threads_per_worker=1, dashboard_address=None
            )
            self._owned = True
        if not self._client.nthreads():
            raise InputError('engine="dask" needs a cluster with workers, the current one has none')
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shares.clear()
        if self._owned:
            self._client.close()
            self._client.cluster.close()

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
        """Update the rows of `outputs`, each share on the worker that keeps its entries."""
        client, shares = self._client, self._scattered(group)
        everywhere = client.scatter(tuple(shared), broadcast=True, hash=False)
        like = [(out.shape[1], out.dtype, bool(len(out))) for out in outputs]
        size = None if totals is None else totals.shape[1]
        futures = [
            client.submit(
                _update,
                kernel.__name__,
                share.entries,
                [len(group.chunks[number]) for number in share.chunks],
                everywhere,
                [w[share.rows] if len(w) else w for w in by_row],
                like,
                size,
                pure=False,
            )
            for share in shares
        ]
        try:
            for share, future in zip(shares, futures, strict=True):
                updated, summed = future.result()
                for out, new in zip(outputs, updated, strict=True):
                    if len(out):
                        out[share.rows] = new
                if totals is not None:
                    totals[share.chunks] = summed
        except BaseException:
            client.cancel(futures)
            raise

    def _scattered(self, group: Grouped) -> list[_Share]:
        """Return the ratings' shares, sent to the workers when first asked for."""
        kept = self._shares.get(id(group))
        if kept is None:
            tasks = TASKS * max(1, sum(self._client.nthreads().values()))
            numbers = [list(range(start, len(group.chunks), tasks)) for start in range(tasks)]
            rows = [np.concatenate([group.chunks[i] for i in some]) for some in numbers if some]
            entries = self._client.scatter([_entries(group, some) for some in rows], hash=False)
            shares = [
                _Share(*each) for each in zip(filter(None, numbers), rows, entries, strict=True)
            ]
            kept = self._shares[id(group)] = (group, shares)
        return kept[1]


@dataclass(frozen=True)
class _Share:
    """Some chunks of a grouping: their numbers, their rows, and where their entries are kept."""

    chunks: list[int]
    rows: Array
    entries: Any


def _entries(group: Grouped, rows: Array) -> Entries:
    """Return (indptr, indices, values) of some rows, numbered anew."""
    counts = group.counts[rows]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    at = np.repeat(group.indptr[rows] - indptr[:-1], counts) + np.arange(indptr[-1])
    return indptr, group.indices[at], group.values[at]


def _update(
    name: str,
    entries: Entries,
    lengths: list[int],
    shared: tuple[Any, ...],
    by_row: list[Array],
    like: list[tuple[int, np.dtype[Any], bool]],
    size: int | None,
) -> tuple[list[Array], Array | None]:
    """Run a kernel on one share, chunk by chunk, on a worker; return its rows and its totals."""
    count = sum(lengths)
    outputs = [np.zeros((count if kept else 0, width), dtype) for width, dtype, kept in like]
    totals = None if size is None else np.zeros((len(lengths), size))
    for number, rows in enumerate(np.split(np.arange(count), np.cumsum(lengths)[:-1])):
        last = () if totals is None else (totals[number],)
        getattr(kernels, name)(rows, *entries, *shared, *by_row, *outputs, *last)
    return outputs, totals
