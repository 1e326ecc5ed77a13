"""Reading and writing files of ratings, shared by the commands on half-empty matrices."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from overt._check import choice
from overt._io import write_csv
from overt.cli.base import console, warn
from overt.entries.identifiers import UNKNOWN

if TYPE_CHECKING:
    from overt.completion import DropoutCompletion, RatingsFile

Model = Annotated[Path, Argument(help="Folder that overt complete wrote.")]
Row = Annotated[
    str | None, Option(help="Column of the file that names rows, by name or number.")
]
Col = Annotated[str | None, Option(help="Column of the file that names columns.")]
Value = Annotated[str | None, Option(help="Column of the file with the values.")]
Time = Annotated[str | None, Option("--time", help="Column of the file with times.")]
Factors = Annotated[
    int | None, Option(min=1, help="Number of factors; chosen if not given.")
]
Jobs = Annotated[int | None, Option(min=-1, help="Threads; all cores by default.")]
Missing = Annotated[
    str,
    Option(
        help="What absent entries mean: unknown, or negative (seen and not chosen)."
    ),
]
Duplicates = Annotated[
    str,
    Option(help="What to do with entries given more than once: mean, last or error."),
]


def meaning_of_missing(read: Any, missing: str, screen: Console = console) -> str:
    """Return what absent entries mean: in a file of clicks, or of a single value, negative."""
    choice("--missing", missing, ("unknown", "negative"))
    same = bool(np.ptp(read.values) == 0)
    if missing == "unknown" and (read.clicks or same):
        why = (
            "there are no values"
            if read.clicks
            else f"all values are {read.values[0]:g}"
        )
        screen.print(
            f"{why}: absent entries count as not chosen, and columns are ranked"
        )
        return "negative"
    return missing


def report_lines(
    what: str,
    read: Any,
    rejected: Path | None,
    duplicates: str | None = None,
    screen: Console = console,
) -> None:
    """Print how many lines were used, and write those that were not to the file `rejected`."""
    used = len(read.entries if what == "ratings" else read.rows) + read.duplicates
    columns = f" (columns {escape(', '.join(read.header))})" if read.header else ""
    screen.print(
        f"{what}: {used:,} lines used, {len(read.rejected):,} rejected{columns}",
        soft_wrap=True,
    )
    if read.guessed:
        names = ", ".join(read.guessed)
        warn(f"{names} were taken by position; name them with --row, --col and --value")
    if read.duplicates and duplicates is not None:
        merged = "averaged" if duplicates == "mean" else "the last one used"
        merged = "counted" if read.clicks else merged
        warn(f"{read.duplicates:,} duplicate entries, {merged}")
    if rejected is None:
        return
    rejected.unlink(missing_ok=True)
    if read.rejected:
        first = read.rejected[0]
        write_csv(rejected, first._fields, read.rejected)
        warn(
            f"rejected lines are in {os.fspath(rejected)}; the first is line {first.line}: "
            f"{first.reason}"
        )


def predict_with_std(
    fitted: DropoutCompletion, predict: Callable[..., Any], *asked: Any
) -> tuple[Any, Any]:
    """Return predictions and their standard deviations, NaN where the model has none."""
    if fitted.model_.has_std:
        predicted, std = predict(*asked, return_std=True)
        return predicted, std
    predicted = predict(*asked)
    return predicted, np.full(len(predicted), np.nan)


def format_std(std: float) -> str:
    """Return a standard deviation as files have it, nothing where there is none."""
    return "" if np.isnan(std) else f"{std:.4g}"


def write_predictions(model: DropoutCompletion, pairs: RatingsFile, path: Path) -> int:
    """Write one line per pair, flagged where an identifier is unknown; return their number."""
    (rows, cols), _ = model.index_.find_pairs(pairs)
    # By position: unknown identifiers are flagged in the file instead of being warned of.
    predicted = model.model_.predict(rows, cols)
    std = np.full(len(rows), np.nan)
    if model.model_.has_std:
        std = np.sqrt(model.model_.variance(rows, cols))
    flags = np.array(["", "unknown row", "unknown column", "unknown row and column"])
    flag = flags[(rows == UNKNOWN) + 2 * (cols == UNKNOWN)]
    row_ids = pairs.row_ids.tolist()
    col_ids = pairs.col_ids.tolist()
    columns = (pairs.rows, pairs.cols, predicted, std, flag)
    lines = (
        (row_ids[a], col_ids[b], f"{y:.6g}", format_std(s), f)
        for a, b, y, s, f in zip(*columns, strict=True)
    )
    write_csv(path, ("row", "column", "prediction", "std", "flag"), lines)
    return int(np.count_nonzero(flag != ""))


def show_predictions(path: Path, unknown: int) -> None:
    """Print where predictions were written, and how many have an unknown identifier."""
    note = f" ({unknown:,} with an unknown identifier)" if unknown else ""
    console.print(
        f"predictions: [bold]{escape(os.fspath(path))}[/]{note}", soft_wrap=True
    )
