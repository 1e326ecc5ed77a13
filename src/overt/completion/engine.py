"""Who runs the row kernels: the one place that knows about threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from overt._check import InputError, whole

ENGINES = ("local",)


class LocalEngine(AbstractContextManager["LocalEngine"]):
    """Threads of this process. Each chunk of rows is one task, so results never depend on them.

    The BLAS is held to one thread meanwhile: its own threads would compete with these.
    """

    def __init__(self, n_jobs: int | None = None) -> None:
        if n_jobs is None or n_jobs == -1:
            n_jobs = _cores()
        self.n_jobs = whole("n_jobs", n_jobs)
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> LocalEngine:
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

    def run(self, task: Callable[[int, Any], None], chunks: Sequence[Any]) -> None:
        """Call task(number, chunk) for every chunk, heavy ones first."""
        if self._pool is None:
            for number, chunk in enumerate(chunks):
                task(number, chunk)
        else:
            for _ in self._pool.map(task, range(len(chunks)), chunks):
                pass


def make_engine(name: str, n_jobs: int | None) -> LocalEngine:
    """Return the engine with this name."""
    if name not in ENGINES:
        raise InputError(f"engine must be one of {', '.join(map(repr, ENGINES))}, got {name!r}")
    return LocalEngine(n_jobs)


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
