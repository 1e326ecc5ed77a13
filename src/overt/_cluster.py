"""A Dask cluster: that of the current client, one at an address, or processes started here."""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from overt._check import InputError, MissingExtraError, choice, whole

NAMES = ("local", "threads", "dask")

PROTOCOLS = ("tcp", "tls", "ucx", "ws", "wss", "inproc")

ALL_CORES = -1
"""As `n_jobs`: one thread or process for each core."""

PATIENCE = 60.0
"""Seconds without any worker after which a cluster is given up."""

REACH = 3.0
"""Seconds in which a worker that can be reached answers."""

UNGUARDED = (
    "processes cannot be started while this script is being imported by one of them: put what it "
    'does under `if __name__ == "__main__":`, or connect a Client to a cluster that runs already'
)


class ClusterLostError(ConnectionError):
    """A cluster no longer answers, or has no workers left."""


def thread_count(n_jobs: int | None) -> int:
    """Return the number of threads or processes: all cores that may be used for None and -1."""
    if n_jobs is None or n_jobs == ALL_CORES:
        # Imported on first use: it takes as long to load as all of overt.
        from joblib import effective_n_jobs  # type: ignore[import-untyped]

        return int(effective_n_jobs(ALL_CORES))
    if isinstance(n_jobs, int) and n_jobs < 1:
        raise InputError(f"n_jobs must be at least 1, or -1 for all cores, got {n_jobs}")
    return whole("n_jobs", n_jobs)


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
    """Yield a client of the cluster; what is started here ends here."""
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
            raise InputError('engine="dask" needs a cluster with workers, the current one has none')
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
            raise ClusterLostError(f"no scheduler answers at {engine} ({error})") from None
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InputError(UNGUARDED)
    from dask import config

    try:
        with config.set({"distributed.worker.profile.enabled": False}):  # 100 samples a second
            return distributed.Client(
                n_workers=n_jobs, threads_per_worker=1, dashboard_address=":0"
            )
    except RuntimeError as error:
        if "Nanny" not in str(error) and "bootstrapping" not in str(error):
            raise
        raise InputError(UNGUARDED) from None


def reachable(client: Any) -> bool:
    """Whether data can go to and from the workers without a detour through the scheduler."""
    from distributed.comm.addressing import get_address_host_port

    for address in client.nthreads():
        if address.startswith("inproc://"):
            continue
        try:
            socket.create_connection(get_address_host_port(address), timeout=REACH).close()
        except (OSError, ValueError):
            return False
    return True


def await_workers(client: Any) -> None:
    """Return once there is a worker; raise ClusterLostError where none comes."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and client.status not in ("closed", "closing"):
        try:
            if client.status == "running" and client.nthreads():
                return
        except Exception:  # noqa: S110 - whatever a broken connection raises
            pass
        time.sleep(0.2)
    what = "has no workers left" if client.status == "running" else "no longer answers"
    raise ClusterLostError(f"the cluster {what}")
