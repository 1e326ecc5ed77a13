"""Commands for half-empty matrices: complete and recommend."""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from overt._check import InputError, drop_prob
from overt.cli.base import app, console, show_table


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
    jobs: Annotated[int | None, typer.Option(min=1, help="Threads; all cores by default.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random draw.")] = 0,
) -> None:
    """Complete a ratings file: fit, measure on held-out ratings, save the model, predict pairs.

    Lines that cannot be used are counted and written to rejected.csv. A run that was stopped, even
    killed, goes on with --resume. Try: [bold]overt complete ratings.csv --predict pairs.csv[/bold]
    """
    from overt.completion import DropoutCompletion, files
    from overt.completion.checkpoint import Checkpoint

    start = time.perf_counter()
    setting: Any = prob if prob in ("learn", "auto") else drop_prob(_number(prob), "--drop-prob")
    entries, table = files.read_ratings(ratings, duplicates)
    pairs = files.read_pairs(predict) if predict is not None else None
    out.mkdir(parents=True, exist_ok=True)
    _account("ratings", table, out / "rejected.csv")
    if table.duplicates:
        merged = "averaged" if duplicates == "mean" else "the last one kept"
        console.print(f"[yellow]warning:[/] {table.duplicates:,} duplicate entries, {merged}")

    model = DropoutCompletion(factors, setting, average=average, seed=seed, n_jobs=jobs)
    order = np.random.default_rng([seed, 2]).permutation(len(entries))
    held, kept = np.split(order, [int(holdout * len(entries))])
    train, test = entries.take(np.sort(kept)), entries.take(np.sort(held))
    folder = out / "checkpoint"
    checkpoint = Checkpoint(folder, fingerprint(train, model.get_params()), resume=resume)
    model.fit_entries(train, holdout=test if len(test) else None, checkpoint=checkpoint)
    model.save(out)

    summary: dict[str, Any] = {
        "ratings": len(entries),
        "rows": entries.shape[0],
        "columns": entries.shape[1],
        "rejected": len(table.rejected),
        "duplicates": table.duplicates,
        "drop_prob": model.drop_prob_,
        "covariance": model.covariance_,
        "sweeps": model.n_sweeps_,
        "status": str(model.status_),
    }
    if len(test):
        predicted = model.model_.predict(test.rows, test.cols)
        std = np.sqrt(model.model_.variance(test.rows, test.cols))
        error = test.values - predicted
        summary |= {
            "held_out": len(test),
            "held_out_rmse": float(np.sqrt(np.mean(error**2))),
            "held_out_mae": float(np.mean(np.abs(error))),
            "mean_only_rmse": float(np.std(test.values)),
            "interval_90_coverage": float(np.mean(np.abs(error) <= 1.6449 * std)),
        }
    summary["seconds"] = time.perf_counter() - start
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    show_table(("what", "value"), list(summary.items()))
    if pairs is not None:
        _account("pairs", pairs, out / "rejected-pairs.csv")
        unknown = _predict(model, pairs, out / "predictions.csv")
        console.print(
            f"predictions: [bold]{escape(os.fspath(out / 'predictions.csv'))}[/]"
            + (f" ({unknown:,} with an identifier never seen)" if unknown else ""),
            soft_wrap=True,
        )
    if len(test):
        console.print("The held-out ratings took no part in the fit; --holdout 0 uses all.")
    console.print(f"model: [bold]{escape(os.fspath(out))}[/]", soft_wrap=True)
    shutil.rmtree(folder)


@app.command()
def recommend(
    model: Annotated[Path, typer.Argument(help="Folder that overt complete wrote.")],
    user: Annotated[str, typer.Option(help="Identifier of the row.")],
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="How many.")] = 10,
    seen: Annotated[bool, typer.Option("--seen", help="Include columns already rated.")] = False,
    why: Annotated[bool, typer.Option("--why", help="Name the entries behind each.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the columns a saved model predicts highest for one row.

    Try: [bold]overt recommend overt-completion --user 42 --why[/bold]
    """
    from overt.completion import DropoutCompletion

    fitted = DropoutCompletion.load(model)
    name: Any = user
    if fitted.row_ids_ is None or fitted.row_ids_.dtype.kind in "iu":
        name = _whole(user)
    best = fitted.recommend(name, n, exclude_seen=not seen)
    std = fitted.predict([name] * len(best.cols), best.cols, return_std=True)[1]
    reasons = []
    for col in best.cols if why else ():
        told = fitted.explain(name, col)
        reasons.append(", ".join(str(c) for c in told.cols[told.contributions > 0][:3]))
    if as_json:
        rows = [
            {"column": _plain(c), "prediction": float(v), "std": float(s)}
            for c, v, s in zip(best.cols, best.values, std, strict=True)
        ]
        for row, reason in zip(rows, reasons, strict=False):
            row["because"] = reason
        typer.echo(json.dumps(rows, indent=1))
        return
    header = ("column", "prediction", "std", *(("because of",) if why else ()))
    lines = [
        (str(c), float(v), float(s), *(reasons[i : i + 1]))
        for i, (c, v, s) in enumerate(zip(best.cols, best.values, std, strict=True))
    ]
    show_table(header, lines)


def fingerprint(entries: Any, parameters: dict[str, Any]) -> str:
    """Return a name for data and settings; threads do not change results and do not count."""
    import hashlib

    digest = hashlib.sha256()
    for array in (entries.rows, entries.cols, entries.values):
        digest.update(np.ascontiguousarray(array).tobytes())
    settings = {k: v for k, v in parameters.items() if k not in ("n_jobs", "engine")}
    digest.update(json.dumps([list(entries.shape), settings], sort_keys=True).encode())
    return digest.hexdigest()


def _account(what: str, table: Any, path: Path) -> None:
    from overt.completion import files

    good = len(table.rows) + table.duplicates
    console.print(f"{what}: {good:,} lines used, {len(table.rejected):,} rejected")
    path.unlink(missing_ok=True)
    if table.rejected:
        files.write_rejected(path, table)
        number, reason, _ = table.rejected[0]
        console.print(
            f"[yellow]warning:[/] rejected lines are in [bold]{escape(os.fspath(path))}[/]; the "
            f"first is line {number}: {escape(reason)}",
            soft_wrap=True,
        )


def _predict(model: Any, pairs: Any, path: Path) -> int:
    """Write one line per pair, with a flag where an identifier was never seen."""
    rows, cols = model.index_.rows(pairs.rows), model.index_.cols(pairs.cols)
    predicted = model.model_.predict(rows, cols)
    std = np.sqrt(model.model_.variance(rows, cols))
    flags = np.array(["", "unknown row", "unknown column", "unknown row and column"])
    flag = flags[(rows < 0) + 2 * (cols < 0)]
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("row", "column", "prediction", "std", "flag"))
        writer.writerows(
            (a, b, f"{y:.6g}", f"{s:.4g}", f)
            for a, b, y, s, f in zip(
                pairs.rows.tolist(), pairs.cols.tolist(), predicted, std, flag, strict=True
            )
        )
    temporary.replace(path)
    return int(np.count_nonzero(flag != ""))


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


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
