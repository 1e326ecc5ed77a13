"""Compute the rows of figures, store them as they come, and report what they show."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from overt._check import InputError, MissingExtraError, choice
from overt._figures import write_figure
from overt._io import plain, ready, write_whole
from overt._running import mapped, reraising_interrupts, thread_count
from overt.papers.figures import Figure, Finding, Params, Row, Rows
from overt.papers.rows import (
    Folder,
    Stored,
    append_row,
    of_other_code,
    read_rows,
    to_numbers,
)


class OtherCodeWarning(UserWarning):
    """Stored rows that were computed by other code are used again."""


def run(
    figure: Figure,
    *,
    size: str = "toy",
    n_jobs: int = 1,
    out: Folder | None = None,
    on_row: Callable[[int, int], None] | None = None,
) -> Rows:
    """Return the rows of a figure in the order of its settings, computing those not yet stored.

    Parameters
    ----------
    figure
        What to run, such as ``find("dropout-fig1").figure``.
    size
        "toy", "reduced" or "paper", of which a figure may lack one.
    n_jobs
        Number of processes (-1: all cores); the rows do not depend on it.
    out
        Folder of the stored rows; nothing is stored if None.
    on_row
        Called with (rows done, rows in all) at the start and after each row.
    """
    choice("size", size, tuple(figure.sizes))
    n_jobs = thread_count(n_jobs)
    _require(figure)
    settings = {figure.key(params): params for params in figure.settings(size)}
    reused = _reusable(figure, settings, out)
    rows = {key: stored.row for key, stored in reused.items()}
    report_progress = on_row or (lambda done, total: None)
    report_progress(len(rows), len(settings))
    missing = [
        (figure.id, params) for key, params in settings.items() if key not in rows
    ]
    with closing(compute({figure.id: figure}, missing, n_jobs, out)) as computed:
        for _, outcome in computed:
            if isinstance(outcome, Exception):
                raise outcome
            rows.update([outcome])
            report_progress(len(rows), len(settings))
    return [rows[key] for key in settings]


def _reusable(
    figure: Figure, keys: Mapping[str, Params], out: Folder | None
) -> dict[str, Stored]:
    """Return the stored rows of these settings, with a warning if other code made some of them."""
    if out is None:
        return {}
    stored = {row.key: row for row in read_rows(figure, out) if row.key in keys}
    other = of_other_code(figure, stored.values())
    if other:
        named = {row.commit or "not recorded" for row in other}
        commits = ", ".join(sorted(named))
        warnings.warn(
            f"{len(other)} of {len(stored)} stored rows of {figure.id} were computed by other code "
            f"(commit: {commits}); remove {Path(out) / figure.id}.jsonl to compute them again",
            OtherCodeWarning,
            stacklevel=3,
        )
    return stored


def report(
    figure: Figure,
    size: str,
    rows: Rows,
    out: str | os.PathLike[str],
    picture_format: str = "png",
) -> tuple[list[Finding], Path]:
    """Write the picture and a summary, ID-SIZE.json; return the findings and the picture's path."""
    findings = figure.findings(rows)
    stem = Path(out) / f"{figure.id}-{size}"
    drawn = figure.draw(rows, size)
    picture = write_figure(drawn, f"{stem}.{picture_format}", dpi=200)
    summary = {
        "id": figure.id,
        "title": figure.title,
        "source": figure.source,
        "claim": figure.claim,
        "size": size,
        "differs": figure.differs.get(size, ""),
        "rows": len(rows),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    text = json.dumps(plain(summary), indent=2, allow_nan=False)
    write_whole(stem.with_suffix(".json"), text + "\n")
    return findings, picture


Outcome = tuple[str, Row] | Exception
Task = tuple[str, Params]


def compute(
    figures: Mapping[str, Figure],
    tasks: Sequence[Task],
    n_jobs: int,
    out: Folder | None,
) -> Generator[tuple[str, Outcome]]:
    """Yield (id, (key, row)) as rows are done and stored; for a wrong input, (id, the error)."""
    if out is not None:
        ready(out)
    given = [(figures[name], params) for name, params in tasks]
    for number, outcome in mapped(_outcome, given, "local", n_jobs):
        name = tasks[number][0]
        if out is not None and isinstance(outcome, tuple):
            append_row(figures[name], out, *outcome)
        yield name, outcome


def _outcome(figure: Figure, params: Params) -> Outcome:
    try:
        _require(figure)
        return figure.key(params), _measure(figure, params)
    except (InputError, MissingExtraError) as error:
        data = f" on {params['data']}" if "data" in params else ""
        return InputError(f"{figure.id}{data}: {error}")


def _require(figure: Figure) -> None:
    for module, extra in figure.needs.items():
        if find_spec(module) is None:
            raise MissingExtraError(module, extra)


def _measure(figure: Figure, params: Params) -> Row:
    start = time.perf_counter()
    with reraising_interrupts():
        result = figure.run(params, figure.seed(params))
    seconds = time.perf_counter() - start
    # As it will be read: whether a row was stored before makes no difference to its findings.
    row: Row = to_numbers(plain({**params, **result, "seconds": seconds}))
    return row
