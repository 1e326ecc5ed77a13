"""Threads, processes and Dask clusters: how many, and calls of one function on them."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from operator import itemgetter
from typing import Any

import numpy as np

from overt._check import InputError, MissingExtraError, choice, plain_array, whole
from overt.results import Status

ALL_CORES = -1
"""As `n_jobs`: one thread or process for each core."""

NAMES = ("local", "threads", "dask")

PROTOCOLS = ("tcp", "tls", "ucx", "ws", "wss", "inproc")

UNGUARDED = (
    "processes cannot be started while this script is being imported by one of them: put what it "
    'does under `if __name__ == "__main__":`, or connect a Client to a cluster that runs already'
)


def mapped(
    function: Callable[..., Any],
    tasks: Sequence[Sequence[Any]],
    engine: str = "local",
    n_jobs: int | None = 1,
) -> Generator[tuple[int, Any]]:
    """Yield (number of the task, function(*task)) as they are done.

    "local" means `n_jobs` processes; "dask" or an address is a cluster, where the tasks of a lost
    worker are repeated by others.
    """
    n_jobs = thread_count(n_jobs)
    is_local = checked_engine(engine) == "local"
    if is_local and (n_jobs == 1 or len(tasks) < 2):
        for number, task in enumerate(tasks):
            yield number, function(*task)
        return
    from joblib import Parallel, delayed, parallel_config  # type: ignore[import-untyped]

    cluster = nullcontext() if is_local else connected(engine, n_jobs)
    with cluster as client, warnings.catch_warnings():
        # Joblib's advice to whoever stops early, as Ctrl-C and errors do.
        warnings.filterwarnings("ignore", ".*still being processed by the workers")
        if is_local:
            configured = parallel_config("loky", n_jobs=min(n_jobs, len(tasks)))
        else:
            configured = parallel_config("dask", n_jobs=ALL_CORES, client=client)
        calls = (
            delayed(_call)(number, function, task) for number, task in enumerate(tasks)
        )
        with configured:
            yield from Parallel(return_as="generator_unordered", batch_size=1)(calls)


def _call(
    number: int, function: Callable[..., Any], task: Sequence[Any]
) -> tuple[int, Any]:
    return number, function(*task)


def seed_numbers(seeds: Any) -> list[int]:
    """Return the numbers of runs: 0, 1, ... for a count, or those that are listed."""
    if not isinstance(seeds, (Sequence, np.ndarray)) or getattr(seeds, "ndim", 1) == 0:
        return list(range(whole("seeds", seeds)))
    if len(seeds) == 0:
        raise InputError(
            "seeds must be a number of runs or a list of at least one, got none"
        )
    return [whole("seeds", number, minimum=0) for number in seeds]


def thread_count(n_jobs: int | None) -> int:
    """Return the number of threads or processes: all cores that may be used for None and -1."""
    if n_jobs is None or n_jobs == ALL_CORES:
        # Imported on first use: it takes as long to load as all of overt.
        from joblib import effective_n_jobs

        return int(effective_n_jobs(ALL_CORES))
    if isinstance(n_jobs, int) and n_jobs < 1:
        raise InputError(
            f"n_jobs must be at least 1, or -1 for all cores, got {n_jobs}"
        )
    return whole("n_jobs", n_jobs)


def record_steps(records: Any, steps: int, spaced: Callable[[int], Any]) -> list[int]:
    """Return the steps to record, in order: spaced(count) for a count, or those listed."""
    given = plain_array("records", records)
    if given.ndim:
        chosen = {whole("records", step, minimum=0) for step in given}
    else:
        chosen = set(
            np.round(spaced(whole("records", records, minimum=2))).astype(int).tolist()
        )
    if max(chosen, default=0) > steps:
        raise InputError(
            f"records must lie in 0..{steps}, the steps, got {max(chosen)}"
        )
    return sorted(chosen)


def mapped_seeds(
    run: Callable[..., Any],
    tasks: Sequence[Sequence[Any]],
    engine: str,
    n_jobs: int,
    alike: Sequence[str],
) -> Any:
    """Return run(*task) of all tasks as one result, where each is the result of a single seed.

    Arrays have the seeds as their first axis, except the fields `alike` in all results.
    """
    parts = [
        part
        for _, part in sorted(mapped(run, tasks, engine, n_jobs), key=itemgetter(0))
    ]
    given: dict[str, Any] = {}
    for name in (field.name for field in fields(parts[0])):
        values = [getattr(part, name) for part in parts]
        if name == "status":
            given[name] = next(
                (s for s in values if s is not Status.FINISHED), Status.FINISHED
            )
        elif name in alike:
            given[name] = values[0]
        elif isinstance(values[0], tuple):
            given[name] = tuple(
                np.concatenate(layer) for layer in zip(*values, strict=True)
            )
        else:
            given[name] = np.concatenate(values)
    return type(parts[0])(**given)


class ClusterLostError(ConnectionError):
    """A cluster no longer answers, or has no workers left."""


def is_address(engine: str) -> bool:
    """Whether an engine is named by a scheduler's address."""
    return any(engine.startswith(f"{protocol}://") for protocol in PROTOCOLS)


def checked_engine(engine: Any) -> str:
    """Return "local" (threads of this process), "dask", or the address of a scheduler."""
    if isinstance(engine, str) and is_address(engine):
        return engine
    if not isinstance(engine, str) or engine not in NAMES:
        choice("engine", engine, (*NAMES, "tcp://host:port"))
    return "local" if engine == "threads" else engine


@contextmanager
def connected(engine: str, n_jobs: int) -> Iterator[Any]:
    """Yield a client of the cluster; a cluster started here is closed at the end."""
    try:
        import distributed
    except ModuleNotFoundError as error:
        if error.name not in ("distributed", "dask"):
            raise
        raise MissingExtraError("distributed", "dask") from None
    started = None
    try:
        client = distributed.get_client() if engine == "dask" else None
    except ValueError:
        client = None
    if client is None:
        client = started = _started(distributed, engine, n_jobs)
    try:
        if not client.nthreads():
            raise InputError(
                'engine="dask" needs a cluster with workers, the current one has none'
            )
        yield client
    finally:
        if started is not None:
            cluster = started.cluster
            started.close()
            if cluster is not None:
                cluster.close()


def _started(distributed: Any, engine: str, n_jobs: int) -> Any:
    if is_address(engine):
        try:
            return distributed.Client(engine)
        except (OSError, TimeoutError) as error:
            raise ClusterLostError(
                f"no scheduler answers at {engine} ({error})"
            ) from None
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InputError(UNGUARDED)
    from dask import config

    try:
        with config.set(
            {"distributed.worker.profile.enabled": False}
        ):  # 100 samples a second
            return distributed.Client(
                n_workers=n_jobs, threads_per_worker=1, dashboard_address=":0"
            )
    except RuntimeError as error:
        if "Nanny" not in str(error) and "bootstrapping" not in str(error):
            raise
        raise InputError(UNGUARDED) from None
