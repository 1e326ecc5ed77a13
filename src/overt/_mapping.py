"""Many calls of one function, on processes of this machine or on a Dask cluster.

Functions and their arguments must be picklable.
"""

from __future__ import annotations

import multiprocessing
import pickle
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields
from operator import itemgetter
from typing import Any

import numpy as np

from overt._check import InputError, InputTypeError, MissingExtraError, plain_array, whole
from overt._cluster import ClusterLostError, checked_engine, connected, thread_count
from overt.results import Status

RETRIES = 2
"""Times that Dask repeats a call that failed for any reason but its input."""


def mapped(
    function: Callable[..., Any],
    tasks: Sequence[Sequence[Any]],
    engine: str = "local",
    n_jobs: int = 1,
) -> Generator[tuple[int, Any]]:
    """Yield (number of the task, function(*task)) as they are done.

    "local" means `n_jobs` processes; "dask" or an address is a cluster, where calls that fail for
    any reason but their input are repeated.
    """
    n_jobs = thread_count(n_jobs)
    if checked_engine(engine) != "local":
        yield from _on_cluster(function, tasks, engine, n_jobs)
    elif n_jobs == 1 or len(tasks) < 2:
        for number, task in enumerate(tasks):
            yield number, function(*task)
    else:
        yield from _on_processes(function, tasks, n_jobs)


def seed_numbers(seeds: Any) -> list[int]:
    """Return the numbers of runs: 0, 1, ... for a count, or those that are listed."""
    if not isinstance(seeds, (Sequence, np.ndarray)) or getattr(seeds, "ndim", 1) == 0:
        return list(range(whole("seeds", seeds)))
    if len(seeds) == 0:
        raise InputError("seeds must be a number of runs or a list of at least one, got none")
    return [whole("seeds", number, minimum=0) for number in seeds]


def record_steps(records: Any, steps: int, spaced: Callable[[int], Any]) -> list[int]:
    """Return the steps to record, in order: spaced(count) for a count, or those listed."""
    given = plain_array("records", records)
    if given.ndim:
        chosen = {whole("records", step, minimum=0) for step in given}
    else:
        chosen = set(np.round(spaced(whole("records", records, minimum=2))).astype(int).tolist())
    if max(chosen, default=0) > steps:
        raise InputError(f"records must lie in 0..{steps}, the steps, got {max(chosen)}")
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
    parts = [part for _, part in sorted(mapped(run, tasks, engine, n_jobs), key=itemgetter(0))]
    given: dict[str, Any] = {}
    for name in (field.name for field in fields(parts[0])):
        values = [getattr(part, name) for part in parts]
        if name == "status":
            given[name] = next((s for s in values if s is not Status.FINISHED), Status.FINISHED)
        elif name in alike:
            given[name] = values[0]
        elif isinstance(values[0], tuple):
            given[name] = tuple(np.concatenate(layer) for layer in zip(*values, strict=True))
        else:
            given[name] = np.concatenate(values)
    return type(parts[0])(**given)


def _on_processes(
    function: Callable[..., Any], tasks: Sequence[Sequence[Any]], n_jobs: int
) -> Generator[tuple[int, Any]]:
    # A fresh interpreter for each: forking a process that has started threads can hang.
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(min(n_jobs, len(tasks)), mp_context=context) as pool:
        futures = {pool.submit(function, *task): number for number, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            # What is being computed is given up, or Ctrl-C would wait for it.
            for process in set(multiprocessing.active_children()) - set(others):
                process.terminate()
            raise


def _on_cluster(
    function: Callable[..., Any], tasks: Sequence[Sequence[Any]], engine: str, n_jobs: int
) -> Generator[tuple[int, Any]]:
    with connected(engine, n_jobs) as client:
        import distributed

        packed = _send(client, function)
        futures = {}
        for number, task in enumerate(tasks):
            future = client.submit(_call, packed, task, pure=False, retries=RETRIES)
            futures[future] = number
        try:
            for future in distributed.as_completed(list(futures)):
                result, error = future.result()
                if error is not None:
                    raise error
                yield futures[future], result
        except (distributed.CancelledError, distributed.KilledWorker) as error:
            raise ClusterLostError(f"the cluster lost its workers: {error}") from None
        finally:
            if client.status == "running":
                client.cancel(list(futures))


def _send(client: Any, function: Callable[..., Any]) -> Any:
    """Return a pickled function as a future: sent once, and again if its worker is lost."""
    from distributed.protocol.pickle import dumps

    try:
        packed = dumps(function)
    except Exception as error:
        raise InputTypeError(
            'engine must be "local" for what cannot be sent to other processes, such as models '
            f"that hold open files, locks or generators: {type(error).__name__}: {error}"
        ) from None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")
        return client.submit(bytes, packed, pure=False)


def _call(packed: bytes, task: Sequence[Any]) -> tuple[Any, Exception | None]:
    """Call a function on a worker; an error of the input is returned, so that Dask tries once."""
    try:
        function = pickle.loads(packed)  # noqa: S301 - by our own client
    except Exception as error:
        from distributed import get_worker

        worker = get_worker().address
        return None, InputError(
            f"the workers need what the client has imported, {worker} lacks it: {error}"
        )
    try:
        return function(*task), None
    except (InputError, MissingExtraError) as error:
        return None, error
