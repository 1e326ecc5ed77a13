"""Predictions for pairs, written to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.markup import escape

from overt._files import write_csv
from overt.cli.base import console
from overt.entries.identifiers import UNKNOWN

if TYPE_CHECKING:
    from overt.completion import DropoutCompletion, RatingsFile


def write_predictions(model: DropoutCompletion, pairs: RatingsFile, path: Path) -> None:
    """Write one line per pair, with a flag where an identifier was never seen."""
    (rows, cols), _ = model.index_.find_pairs(pairs)
    predicted, std, _ = model.predict(pairs, return_std=True, return_known=True)
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
