"""Commands for half-empty matrices: complete and recommend."""

from __future__ import annotations

import csv
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from overt._check import InputError, choice, drop_prob
from overt._files import write_csv, write_whole
from overt.cli.base import AsJson, Seed, app, console, fail, show_path, show_table

if TYPE_CHECKING:
    from overt.completion import DropoutCompletion, RatingsFile
    from overt.entries import Entries

HOLDOUT = "holdout.csv"

LEVEL = 0.9
"""Of the intervals whose coverage is reported."""


@app.command()
def complete(
    ratings: Annotated[
        Path, typer.Argument(help="CSV, TSV, MovieLens ::, Parquet or .gz: row, column, value.")
    ],
    prob: Annotated[
        str, typer.Option("--drop-prob", help="learn, auto, or a number in [0, 1).")
    ] = "learn",
    factors: Annotated[int, typer.Option(min=1, help="Width of the factors.")] = 32,
    average: Annotated[int, typer.Option(min=0, help="Draws to average (with learn).")] = 0,
    holdout: Annotated[
        float, typer.Option(min=0, max=0.9, help="Part of the ratings kept aside to measure on.")
    ] = 0.1,
    predict: Annotated[
        Path | None, typer.Option(help="File of pairs (row, column) to predict.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for model and predictions.")] = Path(
        "overt-completion"
    ),
    duplicates: Annotated[
        str, typer.Option(help="mean, last or error: entries given more than once.")
    ] = "mean",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was stopped.")
    ] = False,
    n_jobs: Annotated[
        int | None, typer.Option(min=1, help="Threads; all cores by default.")
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
    read = files.read_ratings(ratings, choice("--duplicates", duplicates, files.DUPLICATES))
    pairs = files.read_pairs(predict, read.header) if predict is not None else None
    out.mkdir(parents=True, exist_ok=True)
    _account("ratings", read, out / "rejected.csv")
    if read.duplicates:
        merged = "averaged" if duplicates == "mean" else "the last one kept"
        console.print(f"[yellow]warning:[/] {read.duplicates:,} duplicate entries, {merged}")

    model = DropoutCompletion(factors, setting, average=average, seed=seed, n_jobs=n_jobs)
    train, aside = _set_aside(read.entries, holdout, seed)
    folder = out / "checkpoint"
    checkpoint = SweepCheckpoint(folder, train, model.get_params(), resume=resume)
    model.fit_entries(train, holdout=aside, checkpoint=checkpoint)
    model.save(out)
    (out / HOLDOUT).unlink(missing_ok=True)

    summary = _summary(model, read)
    if aside is not None:
        summary |= _judge(model, aside, out / HOLDOUT)
    summary["seconds"] = time.perf_counter() - start
    write_whole(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    show_table(("what", "value"), list(summary.items()))
    if pairs is not None:
        _account("pairs", pairs, out / "rejected-pairs.csv")
        _predict(model, pairs, out / "predictions.csv")
    if aside is not None:
        console.print("The held-out ratings took no part in the fit; --holdout 0 uses all.")
    show_path("model", out)
    if model.status_ == "interrupted":
        fail("interrupted; the model is that of the last sweep, and --resume goes on from it", 130)
    checkpoint.clear()
    with suppress(OSError):  # not empty: the user keeps something of their own there
        folder.rmdir()


@app.command()
def recommend(
    model: Annotated[Path, typer.Argument(help="Folder that overt complete wrote.")],
    user: Annotated[str, typer.Option(help="Identifier of the row.")],
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="How many.")] = 10,
    seen: Annotated[bool, typer.Option("--seen", help="Include columns already rated.")] = False,
    why: Annotated[bool, typer.Option("--why", help="Name the entries behind each.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the columns a saved model predicts highest for one row.

    Try: [bold]overt recommend overt-completion --user 42 --why[/bold]
    """
    from overt.completion import DropoutCompletion

    fitted = DropoutCompletion.load(model)
    name: Any = user
    if fitted.row_ids_ is None or fitted.row_ids_.dtype.kind in "iu":
        name = _whole(user)
    held = [] if seen else _held_out(model / HOLDOUT, str(name))
    best = fitted.recommend(name, n + len(held), exclude_seen=not seen)
    fresh = np.flatnonzero(~np.isin(best.cols.astype(str), held))[:n]
    cols, values = best.cols[fresh], best.values[fresh]
    std = fitted.predict([name] * len(cols), cols, return_std=True)[1]
    rows: list[dict[str, Any]] = [
        {"column": c, "prediction": v, "std": s}
        for c, v, s in zip(cols.tolist(), values.tolist(), std.tolist(), strict=True)
    ]
    if why:
        for row in rows:
            told = fitted.explain(name, row["column"])
            row["because"] = told.cols[told.contributions > 0][:3].tolist()
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        row["column"] = str(row["column"])  # text stands to the left
        if why:
            row["because"] = ", ".join(map(str, row["because"]))
    header = ("column", "prediction", "std", "because of")[: 4 if why else 3]
    show_table(header, [list(row.values()) for row in rows])


def _set_aside(entries: Entries, holdout: float, seed: int) -> tuple[Entries, Entries | None]:
    """Return what is fitted and what is kept aside, both in the order of the file."""
    order = np.random.default_rng([seed, 2]).permutation(len(entries))
    held, kept = np.split(order, [int(holdout * len(entries))])
    return entries.take(np.sort(kept)), entries.take(np.sort(held)) if len(held) else None


def _account(what: str, read: RatingsFile, path: Path) -> None:
    good = len(read.rows) + read.duplicates
    console.print(
        f"{what}: {good:,} lines used, {len(read.rejected):,} rejected"
        + (f" (columns {escape(', '.join(read.header))})" if read.header else ""),
        soft_wrap=True,
    )
    path.unlink(missing_ok=True)
    if read.rejected:
        first = read.rejected[0]
        write_csv(path, first._fields, read.rejected)
        console.print(
            f"[yellow]warning:[/] rejected lines are in [bold]{escape(os.fspath(path))}[/]; the "
            f"first is line {first.line}: {escape(first.reason)}",
            soft_wrap=True,
        )


def _summary(model: DropoutCompletion, read: RatingsFile) -> dict[str, Any]:
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
        "status": str(model.status_),
    }


def _judge(model: DropoutCompletion, aside: Entries, path: Path) -> dict[str, float]:
    """Write what was kept aside beside its prediction, which recommend takes for seen; grade it."""
    from scipy.special import ndtri

    predicted, std = model.predict(aside, return_std=True)
    row, col = np.asarray(aside.row_ids)[aside.rows], np.asarray(aside.col_ids)[aside.cols]
    columns = (row, col, aside.values, predicted, std)
    write_csv(
        path,
        ("row", "column", "value", "prediction", "std"),
        (
            (a, b, repr(y), f"{mean:.6g}", f"{s:.4g}")
            for a, b, y, mean, s in zip(*(column.tolist() for column in columns), strict=True)
        ),
    )
    error = aside.values - predicted
    return {
        "holdout": len(aside),
        "holdout_rmse": float(np.sqrt(np.mean(error**2))),
        "holdout_mae": float(np.mean(np.abs(error))),
        "mean_only_rmse": float(np.std(aside.values)),
        "interval_90_coverage": float(np.mean(np.abs(error) <= ndtri((1 + LEVEL) / 2) * std)),
    }


def _predict(model: DropoutCompletion, pairs: RatingsFile, path: Path) -> None:
    """Write one line per pair, with a flag where an identifier was never seen."""
    from overt.completion.forms.model import UNKNOWN

    rows, cols = model.index_.places(pairs)
    predicted, std = model.predict(pairs, return_std=True)
    flags = np.array(["", "unknown row", "unknown column", "unknown row and column"])
    flag = flags[(rows == UNKNOWN) + 2 * (cols == UNKNOWN)]
    given = (pairs.row_ids.tolist(), pairs.col_ids.tolist())
    write_csv(
        path,
        ("row", "column", "prediction", "std", "flag"),
        (
            (given[0][a], given[1][b], f"{y:.6g}", f"{s:.4g}", f)
            for a, b, y, s, f in zip(pairs.rows, pairs.cols, predicted, std, flag, strict=True)
        ),
    )
    unknown = int(np.count_nonzero(flag != ""))
    console.print(
        f"predictions: [bold]{escape(os.fspath(path))}[/]"
        + (f" ({unknown:,} with an identifier never seen)" if unknown else ""),
        soft_wrap=True,
    )


def _held_out(path: Path, row: str) -> list[str]:
    """Return the columns of a row that were held out, as they are written."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [line[1] for line in csv.reader(file) if line[0] == row]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"--drop-prob must be learn, auto or a number in [0, 1), got {text!r}"
        ) from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--user must be a whole number for this model, got {text!r}") from None
