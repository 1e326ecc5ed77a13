"""The row kernels on the workers of a Dask cluster.

Each worker keeps its share of the ratings, sent once. A half sweep sends the other side's factors
to every worker and brings the updated rows back; the arithmetic is that of one process, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from overt._check import InputError, MissingExtraError
from overt._types import Array
from overt.completion.kernels import Csr

if TYPE_CHECKING:
    from overt.completion.engines import Engine
    from overt.completion.forms.problem import Grouped

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


@dataclass(frozen=True, eq=False)
class _Share:
    """Some chunks of a grouping: their numbers, rows, cuts and entries (later: where these are)."""

    chunks: list[int]
    rows: Array
    cuts: Array
    csr: Any

    @classmethod
    def take(cls, group: Grouped, chunks: Sequence[int]) -> Self:
        """Take some chunks; their rows are numbered anew."""
        parts = [group.rows[group.cuts[c] : group.cuts[c + 1]] for c in chunks]
        rows, csr = np.concatenate(parts), group.csr
        indptr = np.concatenate([[0], np.cumsum(group.counts[rows])])
        at = np.repeat(csr.indptr[rows] - indptr[:-1], np.diff(indptr)) + np.arange(indptr[-1])
        part = Csr(indptr, csr.indices[at], csr.values[at])
        return cls(list(chunks), rows, np.cumsum([0, *map(len, parts)]), part)


class _DaskEngine:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._shares: dict[int, tuple[Grouped, list[_Share]]] = {}

    def run(
        self, kernel: Any, group: Grouped, shared: Any, out: Any, by_row: Any = (), sums: Any = None
    ) -> None:
        """Update the rows of `out`, each share on the worker that keeps its entries."""
        client, shares = self._client, self._scattered(group)
        name = (kernel.__module__, kernel.__name__)
        everywhere = client.scatter(tuple(shared), broadcast=True, hash=False)
        like = type(out)(*((array.shape[1], array.dtype) for array in out))
        size = None if sums is None else sums.shape[1]
        futures = []
        for share in shares:
            mine = [array[share.rows] for array in by_row]
            given = (name, share.csr, share.cuts, everywhere, mine, like, size)
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

    def _scattered(self, group: Grouped) -> list[_Share]:
        """Return the ratings' shares, sent to the workers when first asked for."""
        if id(group) not in self._shares:
            tasks = TASKS * max(1, sum(self._client.nthreads().values()))
            shares = [
                _Share.take(group, range(first, group.n_chunks, tasks))
                for first in range(min(tasks, group.n_chunks))
            ]
            sent = self._client.scatter([share.csr for share in shares], hash=False)
            pairs = zip(shares, sent, strict=True)
            # The group is kept too: its id is that of no other as long as it lives.
            self._shares[id(group)] = group, [replace(share, csr=csr) for share, csr in pairs]
        return self._shares[id(group)][1]


def _update(
    kernel: tuple[str, str], csr: Csr, cuts: Array, shared: Any, by_row: list[Array], like: Any,
    size: int | None,
) -> tuple[Any, Array | None]:  # fmt: skip
    """Run a kernel on one share, on a worker; return its rows and the sums of its chunks."""
    module, name = kernel
    rows = np.arange(cuts[-1])
    out = type(like)(*(np.zeros((len(rows), width), dtype) for width, dtype in like))
    sums = None if size is None else np.zeros((len(cuts) - 1, size))
    more = () if sums is None else (cuts, sums)
    getattr(import_module(module), name)(rows, csr, *shared, *by_row, out, *more)
    return out, sums
