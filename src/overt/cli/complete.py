"""`overt complete`: fit a file of ratings, measure the error, save the model, predict pairs."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from typer import Argument, Option

from overt._check import InputError, choice, drop_prob
from overt._io import ready, write_csv, write_whole
from overt.cli import ratings as shared
from overt.cli.base import (
    AsJson,
    Engine,
    Seed,
    app,
    console,
    ended,
    errors,
    show_json,
    show_path,
    show_table,
)
from overt.entries.entries import DUPLICATES

if TYPE_CHECKING:
    from overt.completion import DropoutCompletion
    from overt.entries import Entries

HOLDOUT = "holdout.csv"

MOST_HELD_OUT = 1_000_000
"""Most ratings to measure errors on: enough for a thousandth."""

LEVEL = 0.9
"""Of the intervals whose coverage is reported."""


@app.command()
def complete(
    ratings: Annotated[
        Path,
        Argument(
            help="Triplets as CSV, TSV, MovieLens ::, Parquet or .gz; or a folder of them."
        ),
    ],
    prob: Annotated[
        str,
        Option(
            "--drop-prob",
            help="learn, auto, or a number that is at least 0 and below 1.",
        ),
    ] = "learn",
    factors: shared.Factors = None,
    holdout: Annotated[
        float,
        Option(min=0, max=0.9, help="Fraction of the ratings to measure the error on."),
    ] = 0.1,
    predict: Annotated[
        Path | None, Option(help="File of (row, column) pairs to predict.")
    ] = None,
    out: Annotated[
        Path, Option(help="Folder for the model and the predictions.")
    ] = Path("overt-completion"),
    duplicates: shared.Duplicates = "mean",
    row: shared.Row = None,
    col: shared.Col = None,
    value: shared.Value = None,
    at: shared.Time = None,
    missing: shared.Missing = "unknown",
    engine: Engine = "local",
    resume: Annotated[
        bool, Option("--resume", help="Continue a run that was stopped.")
    ] = False,
    memory_limit: Annotated[
        str | None,
        Option(help="Keep the ratings on disk and use about this much, such as 4GB."),
    ] = None,
    n_jobs: shared.Jobs = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Fill in a file of ratings: fit, measure on held-out ratings, save the model, predict pairs.

    For a table with a column per variable use overt impute. Lines that cannot be used are counted
    and written to rejected.csv. A run that was stopped or killed continues with --resume.
    Try: [bold]overt complete ratings.csv --predict pairs.csv[/bold]
    """
    from overt.completion import DropoutCompletion, ratings_file
    from overt.completion.storage import SweepCheckpoint

    start = time.perf_counter()
    screen = errors if as_json else console
    choice("--duplicates", duplicates, DUPLICATES)
    choice("--missing", missing, ("unknown", "negative"))
    model = DropoutCompletion(
        factors,
        _drop_prob(prob),
        seed=seed,
        n_jobs=n_jobs,
        engine=engine,
        missing=missing,
        memory_limit=memory_limit,
    )
    columns = {"row": row, "col": col, "value": value, "time": at}
    read = ratings_file.read_ratings(
        ratings, duplicates, memory_limit=memory_limit, **columns
    )
    pairs = (
        ratings_file.read_pairs(predict, read.header) if predict is not None else None
    )
    ready(out)
    shared.report_lines("ratings", read, out / "rejected.csv", duplicates, screen)
    model.missing = shared.meaning_of_missing(read, missing, screen)

    folder = out / "checkpoint"
    train, held_out = _split(read.entries, holdout, seed)
    checkpoints = [
        (SweepCheckpoint(folder, train, model.get_params(), resume=resume), folder)
    ]
    model.fit_entries(train, checkpoint=checkpoints[0][0])
    (out / HOLDOUT).unlink(missing_ok=True)
    measured = {} if held_out is None else _measure(model, held_out, out / HOLDOUT)
    refitted = held_out is not None and model.status_ != "interrupted"
    if refitted:
        last = SweepCheckpoint(
            folder / "all", read.entries, model.get_params(), resume=resume
        )
        checkpoints.insert(0, (last, folder / "all"))
        model.fit_entries(read.entries, checkpoint=last)
    if model.status_ != "interrupted":
        model.prepare_ranking()
    model.save(out)

    summary = _summary(model, read) | measured
    summary["seconds"] = time.perf_counter() - start
    write_whole(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    if not as_json:
        show_table(("what", "value"), list(summary.items()))
    if pairs is not None:
        shared.report_lines("pairs", pairs, out / "rejected-pairs.csv", screen=screen)
        unknown = shared.write_predictions(model, pairs, out / "predictions.csv")
        summary["unknown_pairs"] = unknown
        if not as_json:
            shared.show_predictions(out / "predictions.csv", unknown)
    if as_json:
        show_json({**summary, "model": str(out)}, indent=1)
    else:
        if refitted:
            console.print("After measuring, the model was fitted again to all ratings.")
        show_path("model", out)
    ended(
        model.status_,
        "the model is that of the last sweep; --resume continues from there",
    )
    for checkpoint, place in checkpoints:
        checkpoint.clear()
        with suppress(OSError):  # not empty: the user keeps other files there
            place.rmdir()


def _split(entries: Any, holdout: float, seed: int) -> tuple[Any, Entries | None]:
    """Return entries to fit and to hold out, sampled uniformly."""
    count = min(int(holdout * len(entries)), MOST_HELD_OUT)
    if not count:
        return entries, None
    held = np.sort(np.random.default_rng(seed).permutation(len(entries))[:count])
    return entries.take(np.delete(np.arange(len(entries)), held)), entries.take(held)


def _summary(model: DropoutCompletion, read: Any) -> dict[str, Any]:
    rows, columns = read.entries.shape
    return {
        "ratings": len(read.entries),
        "rows": rows,
        "columns": columns,
        "rejected": len(read.rejected),
        "duplicates": read.duplicates,
        "drop_prob": model.drop_prob_,
        "sweeps": model.n_sweeps_,
        "draws_averaged": model.average_,
        "status": str(model.status_),
    }


def _measure(
    model: DropoutCompletion, held_out: Entries, path: Path
) -> dict[str, float]:
    """Write held-out ratings beside their predictions; return the errors."""
    from scipy.special import ndtri

    predicted, std = shared.predict_with_std(model, model.predict, held_out)
    row, col = (
        np.asarray(held_out.row_ids)[held_out.rows],
        np.asarray(held_out.col_ids)[held_out.cols],
    )
    columns = (row, col, held_out.values, predicted, std)
    write_csv(
        path,
        ("row", "column", "value", "prediction", "std"),
        (
            (a, b, repr(y), f"{mean:.6g}", shared.format_std(s))
            for a, b, y, mean, s in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ),
    )
    if model.missing == "negative":
        return {"holdout": len(held_out), "holdout_ndcg@10": model.score(held_out)}
    error = held_out.values - predicted
    found = {
        "holdout": len(held_out),
        "holdout_rmse": float(np.sqrt(np.mean(error**2))),
        "holdout_mae": float(np.mean(np.abs(error))),
        "mean_only_rmse": float(np.std(held_out.values)),
    }
    if model.model_.has_std:
        inside = np.abs(error) <= ndtri((1 + LEVEL) / 2) * std
        found["interval_90_coverage"] = float(np.mean(inside))
    return found


def _drop_prob(text: str) -> Any:
    if text in ("learn", "auto"):
        return text
    try:
        return drop_prob(float(text), "--drop-prob")
    except ValueError:
        raise InputError(
            f"--drop-prob must be learn, auto or a number in [0, 1), got {text!r}"
        ) from None
