"""Runs experiments and says what they show: rows are stored as they come, and computed once."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import overt
from overt._check import InputError, MissingExtraError, choice, whole
from overt._files import write_whole
from overt._plain import plain
from overt._progress import reraising_interrupts
from overt.experiments.base import Experiment, Finding, Params, Row


def run(
    experiment: Experiment,
    *,
    size: str = "toy",
    n_jobs: int = 1,
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
    n_jobs
        Number of processes; the rows do not depend on it.
    out
        Folder of the stored rows; nothing is stored if None.
    on_row
        Called with (rows done, rows in all) at the start and after each row.
    """
    choice("size", size, tuple(experiment.grids))
    whole("n_jobs", n_jobs)
    for module, extra in experiment.needs.items():
        if find_spec(module) is None:
            raise MissingExtraError(module, extra)
    settings = {experiment.key(params): params for params in experiment.settings(size)}
    store = _Store(Path(out) / f"{experiment.id}.jsonl") if out is not None else None
    rows = {key: row for key, row in (store.read() if store else ()) if key in settings}
    tell = on_row or (lambda done, total: None)
    tell(len(rows), len(settings))
    missing = {key: params for key, params in settings.items() if key not in rows}
    with closing(_compute(experiment, missing, n_jobs)) as computed:
        for key, row in computed:
            rows[key] = row
            if store:
                store.append(key, row)
            tell(len(rows), len(settings))
    return [rows[key] for key in settings]


def report(
    experiment: Experiment, size: str, rows: list[Row], out: str | os.PathLike[str]
) -> tuple[list[Finding], Path]:
    """Check the rows, write ID-SIZE.png and ID-SIZE.json, return the findings and the picture."""
    findings = experiment.check(rows)
    stem = Path(out) / f"{experiment.id}-{size}"
    try:
        figure = experiment.plot(rows)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise MissingExtraError("matplotlib", "plots") from None
    picture = stem.with_suffix(".png")
    figure.savefig(picture, dpi=150, bbox_inches="tight")
    summary = {
        "id": experiment.id,
        "title": experiment.title,
        "source": experiment.source,
        "claim": experiment.claim,
        "size": size,
        "rows": len(rows),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    text = json.dumps(plain(summary), indent=2, allow_nan=False)
    write_whole(stem.with_suffix(".json"), text + "\n")
    return findings, picture


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
    experiment: Experiment, settings: dict[str, Params], n_jobs: int
) -> Generator[tuple[str, Row]]:
    if n_jobs == 1 or len(settings) < 2:
        for key, params in settings.items():
            yield key, _measure(experiment, params)
        return
    # A fresh interpreter for each: forking a process that has started threads can hang.
    context, others = multiprocessing.get_context("spawn"), multiprocessing.active_children()
    with ProcessPoolExecutor(min(n_jobs, len(settings)), mp_context=context) as pool:
        futures = {
            pool.submit(_measure, experiment, params): key for key, params in settings.items()
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            # Rows that are being computed are given up, or Ctrl-C would wait for them.
            for process in set(multiprocessing.active_children()) - set(others):
                process.terminate()
            raise


def _measure(experiment: Experiment, params: Params) -> Row:
    start = time.perf_counter()
    with reraising_interrupts():
        result = experiment.run(params, experiment.seed(params))
    # As it will be read: whether a row was stored before makes no difference to what is checked.
    row: Row = _numbers(plain({**params, **result, "seconds": time.perf_counter() - start}))
    return row


def _numbers(stored: Any) -> Any:
    """Return what JSON held with NaN for null; rows hold no other None."""
    match stored:
        case None:
            return float("nan")
        case list():
            return [_numbers(v) for v in stored]
        case dict():
            return {name: _numbers(v) for name, v in stored.items()}
    return stored


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
                yield entry["key"], _numbers(entry["row"])
            except (json.JSONDecodeError, KeyError, TypeError):
                if not line.startswith('{"key"'):
                    raise InputError(
                        f"{self._path}, line {number} is not a row of an experiment; "
                        "remove the file or choose another folder"
                    ) from None

    def append(self, key: str, row: Row) -> None:
        entry = {"key": key, "row": plain(row), "machine": machine_facts()}
        line = json.dumps(entry, allow_nan=False)
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(line.encode() + b"\n")
