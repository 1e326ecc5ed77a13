"""Many calls of one function, on processes of this machine or on a cluster; lost ones are repeated.

What is called, and what it is given, must be what processes can be sent.
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
from overt._cluster import ClusterLostError, await_workers, checked_engine, connected
from overt.results import Status

ALL_CORES = -1
"""As `n_jobs`: one thread or process for each core."""

TRIES = 3
"""Times that a call is made, on different workers where there are others."""


def mapped(
    function: Callable[..., Any], tasks: Sequence[Sequence[Any]], engine: str = "local",
    n_jobs: int = 1,
) -> Generator[tuple[int, Any]]:  # fmt: skip
    """Yield (number of the task, function(*task)) as they are done.

    "local" are `n_jobs` processes; "dask" or an address is a cluster, where a call that fails for
    whatever but its input is made again elsewhere, with a warning.
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
    """Return the numbers of runs: so many, from 0 on, or those that are listed."""
    if not isinstance(seeds, (Sequence, np.ndarray)) or getattr(seeds, "ndim", 1) == 0:
        return list(range(whole("seeds", seeds)))
    if len(seeds) == 0:
        raise InputError("seeds must be a number of runs or a list of at least one, got none")
    return [whole("seeds", number, minimum=0) for number in seeds]


def thread_count(n_jobs: int | None) -> int:
    """Return the number of threads or processes: all cores that may be used for None and -1."""
    if n_jobs is None or n_jobs == ALL_CORES:
        # Imported on first use: it takes as long to load as all of overt.
        from joblib import effective_n_jobs  # type: ignore[import-untyped]

        return int(effective_n_jobs(ALL_CORES))
    if isinstance(n_jobs, int) and n_jobs < 1:
        raise InputError(f"n_jobs must be at least 1, or -1 for all cores, got {n_jobs}")
    return whole("n_jobs", n_jobs)


def record_steps(records: Any, steps: int, spaced: Callable[[int], Any]) -> list[int]:
    """Return the steps to record, rising: so many, as `spaced`, or those that are listed."""
    given = plain_array("records", records)
    if given.ndim:
        chosen = {whole("records", step, minimum=0) for step in given}
    else:
        chosen = set(np.round(spaced(whole("records", records, minimum=2))).astype(int).tolist())
    if max(chosen, default=0) > steps:
        raise InputError(f"records must lie in 0..{steps}, the steps, got {max(chosen)}")
    return sorted(chosen)


def mapped_seeds(
    run: Callable[..., Any], tasks: Sequence[Sequence[Any]], engine: str, n_jobs: int,
    alike: Sequence[str],
) -> Any:  # fmt: skip
    """Return run(*task) of all tasks as one result, where each is the result of a single seed.

    Arrays have the seeds as their first axis, but for those that are `alike` in all.
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
    context, others = multiprocessing.get_context("spawn"), multiprocessing.active_children()
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
        from distributed import as_completed as finished

        def submit(number: int, *avoid: str) -> Any:
            others = [worker for worker in client.nthreads() if worker not in avoid]
            how = {"workers": others, "allow_other_workers": True} if avoid and others else {}
            return client.submit(_told, sent, tasks[number], pure=False, **how)

        sent, known = _sent(client, function), set(client.nthreads())
        tried = dict.fromkeys(range(len(tasks)), 1)
        running = {submit(number): number for number in tried}
        waiting = finished(list(running))
        try:
            for future in waiting:
                number = running.pop(future)
                place, result, error = _outcome(future)
                if error is None:
                    yield number, result
                    continue
                if isinstance(error, (InputError, MissingExtraError)) or tried[number] >= TRIES:
                    raise error
                warnings.warn(
                    f"task {number} failed on {place or 'a worker that was lost'} and is repeated "
                    f"elsewhere ({type(error).__name__}: {error})",
                    stacklevel=2,
                )
                tried[number] += 1
                await_workers(client)
                again = submit(number, place)
                running[again] = number
                waiting.add(again)
            if gone := known - set(client.nthreads()):
                names = ", ".join(sorted(gone))
                warnings.warn(f"workers left: {names}; others did their tasks", stacklevel=2)
        finally:
            if running and client.status == "running":
                client.cancel(list(running))


def _outcome(future: Any) -> tuple[str, Any, Exception | None]:
    """Return where a call was made, what it returned, and what it raised."""
    try:
        found: tuple[str, Any, Exception | None] = future.result()
    except Exception as error:
        lost = ClusterLostError(f"its worker was lost: {error}")
        return "", None, lost
    return found


def _sent(client: Any, function: Callable[..., Any]) -> Any:
    """Return a function, packed, as a future: sent once, and again where its worker was lost."""
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


def _told(packed: bytes, task: Sequence[Any]) -> tuple[str, Any, Exception | None]:
    """Call a function on a worker, and tell which it is."""
    from distributed import get_worker

    place = get_worker().address
    try:
        function = pickle.loads(packed)  # noqa: S301 - by our own client
    except Exception as error:
        said = f"the workers need what the client has imported, {place} lacks it: {error}"
        return place, None, InputError(said)
    try:
        return place, function(*task), None
    except Exception as error:
        return place, None, error
