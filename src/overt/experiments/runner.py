"""Runs experiments and says what they show: rows are stored as they come, and computed once."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import overt
from overt._check import InputError, MissingExtraError, choice
from overt._figures import write_figure
from overt._files import digest, reading, ready, write_whole
from overt._mapping import mapped, thread_count
from overt._plain import plain
from overt._progress import reraising_interrupts
from overt.experiments.base import Experiment, Params, Row
from overt.experiments.verdicts import Finding


def run(
    experiment: Experiment, *, size: str = "toy", n_jobs: int = 1,
    out: str | os.PathLike[str] | None = None, on_row: Callable[[int, int], None] | None = None,
    engine: str = "local",
) -> list[Row]:  # fmt: skip
    """Return the rows of an experiment in the grid's order, computing those not yet stored.

    Parameters
    ----------
    experiment
        What to run.
    size
        "toy", "reduced" or "paper", of which an experiment may lack one.
    n_jobs
        Number of processes; the rows do not depend on it.
    out
        Folder of the stored rows; nothing is stored if None.
    on_row
        Called with (rows done, rows in all) at the start and after each row.
    engine
        "local", "dask" or a scheduler's address; a row that fails elsewhere is computed again.
    """
    choice("size", size, tuple(experiment.grids))
    n_jobs = thread_count(n_jobs)
    _ready(experiment)
    settings = {experiment.key(params): params for params in experiment.settings(size)}
    held = stored(experiment, out) if out is not None else ()
    rows = {key: row for key, row, *_ in held if key in settings}
    tell = on_row or (lambda done, total: None)
    tell(len(rows), len(settings))
    missing = [(experiment.id, params) for key, params in settings.items() if key not in rows]
    with closing(compute({experiment.id: experiment}, missing, n_jobs, out, engine)) as computed:
        for _, outcome in computed:
            if isinstance(outcome, Exception):
                raise outcome
            rows.update([outcome])
            tell(len(rows), len(settings))
    return [rows[key] for key in settings]


def report(
    experiment: Experiment, size: str, rows: list[Row], out: str | os.PathLike[str]
) -> tuple[list[Finding], Path]:
    """Check the rows, write ID-SIZE.png and ID-SIZE.json, return the findings and the picture."""
    findings = experiment.check(rows)
    stem = Path(out) / f"{experiment.id}-{size}"
    picture = write_figure(experiment.draw(rows, size), f"{stem}.png", dpi=110)
    summary = {
        **{name: getattr(experiment, name) for name in ("id", "title", "source", "claim")},
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


Outcome = tuple[str, Row] | Exception
Task = tuple[str, Params]


def compute(
    experiments: Mapping[str, Experiment], tasks: Sequence[Task], n_jobs: int,
    out: str | os.PathLike[str] | None, engine: str = "local",
) -> Generator[tuple[str, Outcome]]:  # fmt: skip
    """Yield (id, (key, row)) as rows are done and stored; for a wrong input, (id, the error)."""
    if out is not None:
        ready(out)
    given = [(experiments[name], params) for name, params in tasks]
    for number, outcome in mapped(_outcome, given, engine, n_jobs):
        name = tasks[number][0]
        if out is not None and isinstance(outcome, tuple):
            _append(_path(experiments[name], out), *outcome)
        yield name, outcome


def _outcome(experiment: Experiment, params: Params) -> Outcome:
    try:
        _ready(experiment)
        return experiment.key(params), _measure(experiment, params)
    except (InputError, MissingExtraError) as error:
        data = f" on {params['data']}" if "data" in params else ""
        return InputError(f"{experiment.id}{data}: {error}")


def _ready(experiment: Experiment) -> None:
    for module, extra in experiment.needs.items():
        if find_spec(module) is None:
            raise MissingExtraError(module, extra)


def _measure(experiment: Experiment, params: Params) -> Row:
    start = time.perf_counter()
    with reraising_interrupts():
        result = experiment.run(params, experiment.seed(params))
    # As it will be read: whether a row was stored before makes no difference to what is checked.
    row: Row = _numbers(plain({**params, **result, "seconds": time.perf_counter() - start}))
    return row


def _numbers(stored: Any) -> Any:
    """Return what JSON held with NaN for null, to nine digits; rows hold no other None."""
    match stored:
        case float():
            return float(f"{stored:.9g}")
        case None:
            return float("nan")
        case list():
            return [_numbers(v) for v in stored]
        case dict():
            return {name: _numbers(v) for name, v in stored.items()}
    return stored


def stored(
    experiment: Experiment, out: str | os.PathLike[str]
) -> Iterator[tuple[str, Row, dict[str, Any], str]]:
    """Yield (key, row, machine, date) of stored rows; a line cut off by a kill is not read.

    What is a whole line but no row, or does not fit its checksum, is refused.
    """
    path = _path(experiment, out)
    if not path.exists():
        return
    with reading(path, "cannot be read as rows of an experiment"):
        lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip() and (entry := _entry(path, number, line)):
            yield entry["key"], _numbers(entry["row"]), entry["machine"], entry["date"]


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any] | None:
    """Return what a line holds; None if it was cut off, so that its row is computed again."""
    try:
        entry = json.loads(line)
        if entry.pop("checksum") == digest(entry):
            return dict(entry)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        if b'{"key"'.startswith(line[:6]) and line.count(b"{") > line.count(b"}"):
            return None
    raise InputError(
        f"{path}, line {number} is not a row of an experiment, or was changed; remove the line, "
        "or choose another folder"
    )


def _path(experiment: Experiment, out: str | os.PathLike[str]) -> Path:
    return Path(out) / f"{experiment.id}.jsonl"


def _append(path: Path, key: str, row: Row) -> None:
    """Add a row to the JSON lines, after the end of a line that a kill cut off."""
    entry = {"key": key, "row": plain(row), "machine": machine_facts()}
    entry["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    entry["checksum"] = digest(entry)
    line = json.dumps(entry, allow_nan=False, separators=(",", ":"))
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else "\n" + line
        file.write(line.encode() + b"\n")
