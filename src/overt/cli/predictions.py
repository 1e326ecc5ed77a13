"""Predictions for pairs, written to a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

from overt._files import write_csv
from overt.cli.base import console
from overt.entries.identifiers import UNKNOWN

if TYPE_CHECKING:
    from overt.completion import DropoutCompletion, RatingsFile


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


def write_predictions(model: DropoutCompletion, pairs: RatingsFile, path: Path) -> None:
    """Write one line per pair, with a flag where an identifier was never seen."""
    (rows, cols), _ = model.index_.find_pairs(pairs)
    # By position: unknown identifiers are flagged in the file instead of being warned of.
    predicted = model.model_.predict(rows, cols)
    std = np.full(len(rows), np.nan)
    if model.model_.has_std:
        std = np.sqrt(model.model_.variance(rows, cols))
    flags = np.array(["", "unknown row", "unknown column", "unknown row and column"])
    flag = flags[(rows == UNKNOWN) + 2 * (cols == UNKNOWN)]
    given = (pairs.row_ids.tolist(), pairs.col_ids.tolist())
    write_csv(
        path,
        ("row", "column", "prediction", "std", "flag"),
        (
            (given[0][a], given[1][b], f"{y:.6g}", format_std(s), f)
            for a, b, y, s, f in zip(pairs.rows, pairs.cols, predicted, std, flag, strict=True)
        ),
    )
    unknown = int(np.count_nonzero(flag != ""))
    console.print(
        f"predictions: [bold]{escape(os.fspath(path))}[/]"
        + (f" ({unknown:,} with an identifier never seen)" if unknown else ""),
        soft_wrap=True,
    )
