"""`overt update`: take new ratings into a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from overt._check import InputError
from overt._io import ready
from overt.cli import ratings as shared
from overt.cli.base import AsJson, app, console, errors, show_json, show_path


@app.command()
def update(
    model: shared.Model,
    ratings: Annotated[Path, Argument(help="New ratings or clicks.")],
    out: Annotated[
        Path | None, Option(help="Another folder for the updated model.")
    ] = None,
    duplicates: shared.Duplicates = "last",
    row: shared.Row = None,
    col: shared.Col = None,
    value: shared.Value = None,
    at: shared.Time = None,
    as_json: AsJson = False,
) -> None:
    """Take new ratings into a saved model, without fitting it anew.

    Known entries are replaced; new rows and columns may appear.
    Try: [bold]overt update overt-completion today.csv[/bold]
    """
    from overt.completion import DropoutCompletion, ratings_file

    fitted = DropoutCompletion.load(model)
    read = ratings_file.read_ratings(
        ratings, duplicates, row=row, col=col, value=value, time=at
    )
    if read.clicks and fitted.missing == "unknown":
        raise InputError(f"{ratings} has no values, and the model is one of values")
    folder = model if out is None else out
    ready(folder)
    screen = errors if as_json else console
    shared.report_lines("ratings", read, folder / "rejected.csv", duplicates, screen)
    rows, columns = fitted.entries_.shape
    fitted.partial_fit(read.entries)
    fitted.prepare_ranking()
    fitted.save(folder)
    found = {
        "entries": len(fitted.entries_),
        "new_rows": fitted.entries_.shape[0] - rows,
        "new_columns": fitted.entries_.shape[1] - columns,
    }
    if as_json:
        show_json({**found, "model": str(folder)}, indent=1)
        return
    console.print(
        f"{found['entries']:,} entries; {found['new_rows']:,} new rows and "
        f"{found['new_columns']:,} new columns"
    )
    show_path("model", folder)
