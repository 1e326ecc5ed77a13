"""`overt evaluate`: predictions and rankings on held-out entries, beside simple baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from overt._check import choice
from overt.cli import ratings as shared
from overt.cli.base import (
    AsJson,
    Seed,
    app,
    console,
    errors,
    show_json,
    show_table,
    warn,
)
from overt.entries.entries import DUPLICATES


@app.command()
def evaluate(
    ratings: Annotated[
        Path, Argument(help="Ratings or clicks, in any form that overt complete reads.")
    ],
    split: Annotated[
        str,
        Option(
            help="Hold out random entries, the latest (time), or the last of each row."
        ),
    ] = "random",
    holdout: Annotated[
        float, Option(min=0, max=0.9, help="Fraction to hold out.")
    ] = 0.1,
    factors: shared.Factors = None,
    missing: shared.Missing = "unknown",
    duplicates: shared.Duplicates = "mean",
    row: shared.Row = None,
    col: shared.Col = None,
    value: shared.Value = None,
    at: shared.Time = None,
    n_jobs: shared.Jobs = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure predictions and rankings on held-out entries, beside simple baselines.

    Try: [bold]overt evaluate ratings.csv --split last[/bold]
    """
    from overt.completion import DropoutCompletion, ratings_file
    from overt.completion import evaluate as judge

    choice("--duplicates", duplicates, DUPLICATES)
    read = ratings_file.read_ratings(
        ratings, duplicates, row=row, col=col, value=value, time=at
    )
    missing = shared.meaning_of_missing(read, missing, errors if as_json else console)
    model = DropoutCompletion(factors, n_jobs=n_jobs, seed=seed, missing=missing)
    if split in ("time", "last") and read.times is None:
        warn("there is no column of times; the order of lines is used")
    found = judge(model, read.entries, split=split, holdout=holdout, seed=seed)
    if as_json:
        show_json(found.to_dict(), indent=1)
        return
    console.print(repr(found).splitlines()[0])
    names = list(
        dict.fromkeys(name for figures in found.figures.values() for name in figures)
    )
    rows = []
    for name in names:
        cells = (figures.get(name) for figures in found.figures.values())
        rows.append([name, *(f"{c[0]:.4f} ± {c[1]:.4f}" if c else "" for c in cells)])
    show_table(("", *found.figures), rows)
