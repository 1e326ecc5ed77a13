"""Runs experiments: rows are stored as they are computed and never computed twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import overt
from overt._check import InputError, MissingExtraError, choice, whole
from overt.experiments.base import Experiment, Params, Row


def run(
    experiment: Experiment,
    *,
    size: str = "toy",
    workers: int = 1,
    out: str | os.PathLike[str] | None = None,
    on_row: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Return the rows of an experiment in the grid's order, computing those not yet stored.

    Parameters
    ----------
    experiment
        What to run.
    size
        "toy", "full", or another of the experiment's sizes.
    workers
        Number of processes; the rows do not depend on it.
    out
        Folder of the stored rows; nothing is stored if None.
    on_row
        Called with (rows done, rows in all) at the start and after each row.
    """
    choice("size", size, tuple(experiment.grids))
    whole("workers", workers)
    for module, extra in experiment.needs.items():
        if find_spec(module) is None:
            raise MissingExtraError(module, extra)
    settings = {experiment.key(params): params for params in experiment.settings(size)}
    store = _Store(Path(out) / f"{experiment.id}.jsonl") if out is not None else None
    rows = {key: row for key, row in (store.read() if store else ()) if key in settings}
    report = on_row or (lambda done, total: None)
    report(len(rows), len(settings))
    missing = {key: params for key, params in settings.items() if key not in rows}
    for key, row in _compute(experiment, missing, workers):
        rows[key] = row
        if store:
            store.append(key, row)
        report(len(rows), len(settings))
    return [rows[key] for key in settings]


def machine_facts() -> dict[str, Any]:
    """Return what a stored row says about where it was computed."""
    return {
        "overt": overt.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


def _compute(
    experiment: Experiment, settings: dict[str, Params], workers: int
) -> Iterator[tuple[str, Row]]:
    if workers == 1 or len(settings) < 2:
        for key, params in settings.items():
            yield key, _measure(experiment, params)
        return
    # A fresh interpreter per worker: forking a process that has started threads can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(settings)), mp_context=context) as pool:
        futures = {
            pool.submit(_measure, experiment, params): key for key, params in settings.items()
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _measure(experiment: Experiment, params: Params) -> Row:
    start = time.perf_counter()
    with _whole():
        result = experiment.run(params, experiment.seed(params))
    return {**params, **result, "seconds": time.perf_counter() - start}


@contextmanager
def _whole() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if Ctrl-C came meanwhile.

    Trainers that are interrupted return what they have; a row must not be stored from that.
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


class _Store:
    """Rows as JSON lines, appended one at a time; a line cut off by a kill is not read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def read(self) -> Iterator[tuple[str, Row]]:
        if not self._path.exists():
            return
        for number, line in enumerate(self._path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                entry = json.loads(line)
                yield entry["key"], entry["row"]
            except (json.JSONDecodeError, KeyError, TypeError):
                if not line.startswith('{"key"'):
                    raise InputError(
                        f"{self._path}, line {number} is not a row of an experiment; "
                        "remove the file or choose another folder"
                    ) from None

    def append(self, key: str, row: Row) -> None:
        line = json.dumps({"key": key, "row": row, "machine": machine_facts()})
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(line.encode() + b"\n")
