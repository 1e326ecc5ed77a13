"""Commands for half-empty matrices: complete a file of ratings, evaluate on it."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from typer import Option

from overt._check import InputError, choice, drop_prob
from overt._files import ready, write_csv, write_whole
from overt._mapped import lowest
from overt.cli.base import AsJson, Seed, app, console, ended, show_json, show_path, show_table
from overt.cli.predictions import format_std, predict_with_std, write_predictions
from overt.entries.entries import DUPLICATES

if TYPE_CHECKING:
    from overt.completion import DropoutCompletion
    from overt.entries import Entries

HOLDOUT = "holdout.csv"

MOST_ASIDE = 1_000_000
"""Ratings kept aside at most: they tell errors to a thousandth."""

LEVEL = 0.9
"""Of the intervals whose coverage is reported."""


Row = Annotated[str | None, Option(help="Column that names rows, by name or number.")]
Col = Annotated[str | None, Option(help="Column that names columns.")]
Value = Annotated[str | None, Option(help="Column of values.")]
Time = Annotated[str | None, Option("--time", help="Column of times.")]
Missing = Annotated[str, Option(help="unknown, or negative: what is absent counts as not chosen.")]
Duplicates = Annotated[str, Option(help="mean, last or error: entries given more than once.")]


@app.command()
def complete(
    ratings: Annotated[
        Path,
        typer.Argument(help="CSV, TSV, MovieLens ::, Parquet, .gz, or a folder of such files."),
    ],
    prob: Annotated[
        str, Option("--drop-prob", help="learn, auto, or a number in [0, 1).")
    ] = "learn",
    factors: Annotated[
        int | None, Option(min=1, help="Width of the factors; 32 by default.")
    ] = None,
    average: Annotated[
        str, Option(help="Draws to average (with learn); auto: where it takes seconds.")
    ] = "auto",
    holdout: Annotated[
        float, Option(min=0, max=0.9, help="Part of the ratings (1e6 at most) to measure on.")
    ] = 0.1,
    predict: Annotated[Path | None, Option(help="File of pairs (row, column) to predict.")] = None,
    out: Annotated[Path, Option(help="Folder for model and predictions.")] = Path(
        "overt-completion"
    ),
    duplicates: Duplicates = "mean",
    row: Row = None,
    col: Col = None,
    value: Value = None,
    at: Time = None,
    missing: Missing = "unknown",
    engine: Annotated[str, Option(help="threads, dask, or a scheduler: tcp://...")] = "local",
    resume: Annotated[bool, Option("--resume", help="Continue a run that was stopped.")] = False,
    memory_limit: Annotated[
        str | None, Option(help="Such as 4GB: ratings are kept on disk.")
    ] = None,
    n_jobs: Annotated[
        int | None, Option(min=-1, help="Threads; all cores by default, or with -1.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Complete a ratings file: fit, measure on held-out ratings, save the model, predict pairs.

    Lines that cannot be used are counted and written to rejected.csv. A run that was stopped, even
    killed, goes on with --resume. Try: [bold]overt complete ratings.csv --predict pairs.csv[/bold]
    """
    from overt.completion import DropoutCompletion
    from overt.completion.storage import files
    from overt.completion.storage.checkpoints import SweepCheckpoint

    start = time.perf_counter()
    setting: Any = prob if prob in ("learn", "auto") else drop_prob(_number(prob), "--drop-prob")
    choice("--duplicates", duplicates, DUPLICATES)
    choice("--missing", missing, ("unknown", "negative"))
    named = {"row": row, "col": col, "value": value, "time": at}
    model = DropoutCompletion(
        factors, setting, average=_draws(average), seed=seed, n_jobs=n_jobs, engine=engine,
        missing=missing, memory_limit=memory_limit,
    )  # fmt: skip
    folder = out / "checkpoint"
    read = files.read_ratings(ratings, duplicates, memory_limit=memory_limit, **named)
    pairs = files.read_pairs(predict, read.header) if predict is not None else None
    ready(out)
    account("ratings", read, out / "rejected.csv", duplicates)
    model.missing = asked_missing(read, missing)
    train, aside = _set_aside(read.entries, holdout, seed)
    checkpoint = SweepCheckpoint(folder, train, model.get_params(), resume=resume)
    model.fit_entries(train, holdout=aside, checkpoint=checkpoint)
    (out / HOLDOUT).unlink(missing_ok=True)
    judged = {} if aside is None else _judge(model, aside, out / HOLDOUT)
    again = None
    if aside is not None and model.status_ != "interrupted":
        again = SweepCheckpoint(folder / "all", read.entries, model.get_params(), resume=resume)
        model.fit_entries(read.entries, checkpoint=again)
    if model.status_ != "interrupted":
        model.prepare_ranking()
    model.save(out)

    summary = _summary(model, read) | judged
    if model.faults_:
        summary["faults"] = len(model.faults_)
    summary["seconds"] = time.perf_counter() - start
    write_whole(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    show_table(("what", "value"), list(summary.items()))
    if pairs is not None:
        account("pairs", pairs, out / "rejected-pairs.csv")
        write_predictions(model, pairs, out / "predictions.csv")
    if again is not None:
        console.print("After measuring, the model was fitted again to all ratings.")
    show_path("model", out)
    ended(model.status_, "the model is that of the last sweep, and --resume goes on from it")
    for kept, place in ((again, folder / "all"), (checkpoint, folder)):
        if kept is not None:
            kept.clear()
            with suppress(OSError):  # not empty: the user keeps something of their own there
                place.rmdir()


@app.command()
def evaluate(
    ratings: Annotated[Path, typer.Argument(help="Ratings or clicks, as overt complete reads.")],
    split: Annotated[
        str, Option(help="random, time, last (of each row) or rows (new ones).")
    ] = "random",
    holdout: Annotated[float, Option(min=0, max=0.9, help="Part that is held out.")] = 0.1,
    factors: Annotated[int | None, Option(min=1, help="Width of the factors.")] = None,
    missing: Missing = "unknown",
    duplicates: Duplicates = "mean",
    row: Row = None,
    col: Col = None,
    value: Value = None,
    at: Time = None,
    n_jobs: Annotated[int | None, Option(min=-1, help="Threads (-1: all cores).")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure predictions and rankings on held-out entries, beside simple baselines.

    Try: [bold]overt evaluate ratings.csv --split last[/bold]
    """
    from overt.completion import DropoutCompletion
    from overt.completion import evaluate as judge
    from overt.completion.storage import files

    choice("--duplicates", duplicates, DUPLICATES)
    read = files.read_ratings(ratings, duplicates, row=row, col=col, value=value, time=at)
    model = DropoutCompletion(
        factors, n_jobs=n_jobs, seed=seed, missing=asked_missing(read, missing, quiet=as_json)
    )
    found = judge(model, read.entries, split=split, holdout=holdout, seed=seed)
    if as_json:
        show_json(found.to_dict(), indent=1)
        return
    if split in ("time", "last") and read.times is None:
        console.print("[yellow]warning:[/] there is no column of times; the order of lines counts")
    console.print(repr(found).splitlines()[0])
    names = list(dict.fromkeys(name for figures in found.figures.values() for name in figures))
    rows = []
    for name in names:
        cells = (figures.get(name) for figures in found.figures.values())
        rows.append([name, *(f"{c[0]:.4f} ± {c[1]:.4f}" if c else "" for c in cells)])
    show_table(("", *found.figures), rows)


def _set_aside(entries: Any, holdout: float, seed: int) -> tuple[Any, Entries | None]:
    """Return what is fitted and what is kept aside: the same entries wherever they are read."""
    count = min(int(holdout * len(entries)), MOST_ASIDE)
    if not count:
        return entries, None
    held = np.sort(lowest(entries.rows, entries.cols, count, seed)[0])
    return entries.take(np.delete(np.arange(len(entries)), held)), entries.take(held)


def asked_missing(read: Any, missing: str, *, quiet: bool = False) -> str:
    """Return what absent entries are: in a file of clicks, or of one value, not chosen."""
    choice("--missing", missing, ("unknown", "negative"))
    same = bool(np.ptp(read.values) == 0)
    if missing == "unknown" and (read.clicks or same):
        what = "there are no values" if read.clicks else f"all values are {read.values[0]:g}"
        if not quiet:
            console.print(f"{what}: what is absent counts as not chosen, and columns are ranked")
        return "negative"
    return missing


def account(what: str, read: Any, path: Path | None, duplicates: str | None = None) -> None:
    """Say what was read and by which columns, and write down what was not used."""
    good = len(read.entries if what == "ratings" else read.rows) + read.duplicates
    console.print(
        f"{what}: {good:,} lines used, {len(read.rejected):,} rejected"
        + (f" (columns {escape(', '.join(read.header))})" if read.header else ""),
        soft_wrap=True,
    )
    if read.guessed:
        console.print(
            f"[yellow]warning:[/] {', '.join(read.guessed)} were taken by their place; --row, "
            "--col and --value say otherwise"
        )
    if read.duplicates and duplicates is not None:
        merged = "averaged" if duplicates == "mean" else "the last one kept"
        merged = "counted" if read.clicks else merged
        console.print(f"[yellow]warning:[/] {read.duplicates:,} duplicate entries, {merged}")
    if path is None:
        return
    path.unlink(missing_ok=True)
    if read.rejected:
        first = read.rejected[0]
        write_csv(path, first._fields, read.rejected)
        console.print(
            f"[yellow]warning:[/] rejected lines are in [bold]{escape(os.fspath(path))}[/]; the "
            f"first is line {first.line}: {escape(first.reason)}",
            soft_wrap=True,
        )


def _summary(model: DropoutCompletion, read: Any) -> dict[str, Any]:
    rows, columns = read.entries.shape
    return {
        "ratings": len(read.entries),
        "rows": rows,
        "columns": columns,
        "rejected": len(read.rejected),
        "duplicates": read.duplicates,
        "drop_prob": model.drop_prob_,
        "covariance": model.covariance_,
        "sweeps": model.n_sweeps_,
        "draws_averaged": model.average_,
        "status": str(model.status_),
    }


def _judge(model: DropoutCompletion, aside: Entries, path: Path) -> dict[str, float]:
    """Write what was kept aside beside its prediction; grade it."""
    from scipy.special import ndtri

    predicted, std = predict_with_std(model, model.predict, aside)
    row, col = np.asarray(aside.row_ids)[aside.rows], np.asarray(aside.col_ids)[aside.cols]
    columns = (row, col, aside.values, predicted, std)
    write_csv(
        path,
        ("row", "column", "value", "prediction", "std"),
        (
            (a, b, repr(y), f"{mean:.6g}", format_std(s))
            for a, b, y, mean, s in zip(*(column.tolist() for column in columns), strict=True)
        ),
    )
    if model.missing == "negative":
        return {"holdout": len(aside), "holdout_ndcg@10": model.score(aside)}
    error = aside.values - predicted
    found = {
        "holdout": len(aside),
        "holdout_rmse": float(np.sqrt(np.mean(error**2))),
        "holdout_mae": float(np.mean(np.abs(error))),
        "mean_only_rmse": float(np.std(aside.values)),
    }
    if model.model_.has_std:
        inside = np.abs(error) <= ndtri((1 + LEVEL) / 2) * std
        found["interval_90_coverage"] = float(np.mean(inside))
    return found


def _draws(text: str) -> Any:
    if text != "auto" and not text.isdecimal():
        raise InputError(f"--average must be auto or a whole number from 0, got {text!r}")
    return text if text == "auto" else int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"--drop-prob must be learn, auto or a number in [0, 1), got {text!r}"
        ) from None
