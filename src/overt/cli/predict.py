"""`overt predict`: predictions of a saved model for pairs of rows and columns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from overt.cli import ratings as shared
from overt.cli.base import AsJson, app, awaited, console, errors, show_json


@app.command()
def predict(
    model: shared.Model,
    pairs: Annotated[Path, Argument(help="File of (row, column) pairs.")],
    out: Annotated[Path, Option(help="CSV file for the predictions.")] = Path(
        "predictions.csv"
    ),
    row: shared.Row = None,
    col: shared.Col = None,
    as_json: AsJson = False,
) -> None:
    """Predict pairs of rows and columns with a saved model.

    Try: [bold]overt predict overt-completion pairs.csv[/bold]
    """
    from overt.completion import DropoutCompletion, ratings_file

    awaited(out)
    fitted = DropoutCompletion.load(model)
    read = ratings_file.read_pairs(pairs, (), {"row": row, "col": col})
    rejected = out.with_name(out.stem + "-rejected.csv")
    shared.report_lines("pairs", read, rejected, screen=errors if as_json else console)
    unknown = shared.write_predictions(fitted, read, out)
    if as_json:
        found = {
            "pairs": len(read.rows),
            "rejected": len(read.rejected),
            "unknown": unknown,
        }
        show_json({**found, "predictions": str(out)}, indent=1)
    else:
        shared.show_predictions(out, unknown)
