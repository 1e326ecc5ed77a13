"""Long work: compiled, in threads, processes or on a cluster; progress bars and Ctrl-C."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import cache, partial
from importlib.util import find_spec
from operator import itemgetter
from types import FrameType
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from overt._check import InputError, MissingExtraError, choice, whole
from overt.results import Status

ALL_CORES = -1
"""As `n_jobs`: one thread or process for each core."""

NAMES = ("local", "threads", "dask")

PROTOCOLS = ("tcp", "tls", "ucx", "ws", "wss", "inproc")

UNGUARDED = (
    "processes cannot be started while this script is being imported by one of them: put what it "
    'does under `if __name__ == "__main__":`, or connect a Client to a cluster that runs already'
)


def njit(**options: Any) -> Callable[[Any], Any]:
    """Return numba's decorator for functions without the GIL, cached on disk.

    Without a cache folder, each process compiles anew.
    """
    import numba

    def compiled(function: Any) -> Any:
        try:
            return numba.njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # neither the source's folder nor a user's can be written
            return numba.njit(nogil=True, **options)(function)

    return compiled


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


class Meter:
    """A progress bar of known length with a free text at its end."""

    def __init__(self, update: Callable[..., None]) -> None:
        self._update = update

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Move on by `amount`; `note` replaces the text at the end of the bar."""
        self._update(advance=amount, **({} if note is None else {"note": note}))

    def reach(self, done: float, total: float) -> None:
        """Say how much is done of how much in all."""
        self._update(completed=done, total=total)


@contextmanager
def meter(title: str, total: float, *, show: bool = True) -> Iterator[Meter]:
    """Show a bar on standard error while it is a terminal, and below a notebook's cell."""
    console = _console()
    if not (show and _seen(console)):
        yield Meter(lambda **_: None)
        return
    name, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), note)
    with Progress(*columns, console=console, transient=True) as progress:
        yield Meter(
            partial(progress.update, progress.add_task(title, total=total, note=""))
        )


@cache
def _console() -> Console:
    return Console(
        stderr=True
    )  # which asks where standard error leads whenever it is used


def _seen(console: Console) -> bool:
    """Whether someone looks on: at a terminal, or at a notebook that can show a bar."""
    return console.is_terminal or (
        console.is_jupyter and find_spec("ipywidgets") is not None
    )


@contextmanager
def working(title: str) -> Iterator[None]:
    """Show a title in place of a bar, for work of unknown length."""
    console = _console()
    with console.status(title) if _seen(console) else nullcontext():
        yield


@contextmanager
def reraising_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if Ctrl-C came meanwhile.

    Trainers that are interrupted return what they have; nothing must be concluded from that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt
