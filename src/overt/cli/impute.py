"""`overt impute`: fill the empty cells of a table, with their uncertainty."""

from __future__ import annotations

import csv
import gzip
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Argument, Option

from overt._check import Array, Floats, InputError
from overt._io import is_number, reading, write_csv
from overt.cli.base import AsJson, Seed, app, awaited, show_json, show_path, show_table

MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-", ".")
"""Cells that mean missing, in any case."""

MOSTLY_NUMBERS = 0.5
"""A column with words is a column of numbers with mistakes if more than this fraction are numbers.
Such a file is refused, because leaving the column out would hide the mistakes."""

LEVEL = 1.645
"""Half the width of a 90 % interval, in standard deviations."""


@dataclass(frozen=True)
class TableFile:
    """A table as it was read: its cells as text, and its numeric columns as numbers."""

    header: list[str]
    cells: list[list[str]]
    numeric: list[int]
    values: Floats
    decimal_comma: bool

    @property
    def other(self) -> list[str]:
        """Names of the columns that are left as they are."""
        return [name for j, name in enumerate(self.header) if j not in self.numeric]

    def lines(self, filled: Floats) -> list[list[str]]:
        """Return the cells with numbers in place of the missing ones, and decimal points."""
        lines = [list(line) for line in self.cells]
        if self.decimal_comma:
            for line in lines:
                for j in self.numeric:
                    line[j] = line[j].replace(",", ".")
        digits = [_digits(column) for column in filled.T]
        for i, k in np.argwhere(np.isnan(self.values)):
            lines[i][self.numeric[k]] = f"{filled[i, k]:.{digits[k]}g}"
        return lines


@app.command()
def impute(
    table: Annotated[
        Path,
        Argument(help="CSV or TSV file with a header line, or such a file as .gz."),
    ],
    out: Annotated[Path, Option(help="CSV file for the filled table.")] = Path(
        "filled.csv"
    ),
    std: Annotated[
        Path | None,
        Option(help="CSV file for the standard deviations of filled cells."),
    ] = None,
    imputations: Annotated[
        int,
        Option(
            min=0, help="Also write this many random imputations, out-1.csv and so on."
        ),
    ] = 0,
    ignore: Annotated[
        list[str] | None,
        Option(help="Column to leave out, such as an identifier; repeatable."),
    ] = None,
    missing: Annotated[
        list[str] | None, Option(help="Another word that means missing; repeatable.")
    ] = None,
    holdout: Annotated[
        float,
        Option(min=0, max=0.5, help="Fraction of known cells to measure the error on."),
    ] = 0.1,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Fill the empty cells of a table of numbers.

    Columns of text are copied, not used. First the error is measured on known cells that are
    hidden, then the whole table is used to fill the empty ones.
    Try: [bold]overt impute table.csv --ignore id --std std.csv[/bold]
    """
    from overt.completion import DropoutImputer

    copies = [out.with_stem(f"{out.stem}-{i + 1}") for i in range(imputations)]
    awaited(out, std, *copies)
    read = read_table(
        table, set(ignore or ()), {word.lower() for word in missing or ()}
    )
    imputer = DropoutImputer(seed=seed)
    measured = _measure(imputer, read.values, holdout, seed) if holdout else {}
    filled, deviations = imputer.fit(read.values).transform(
        read.values, return_std=True
    )
    write_csv(out, read.header, read.lines(filled))
    if std is not None:
        empty = np.where(np.isnan(read.values), deviations, np.nan)
        names = [read.header[j] for j in read.numeric]
        write_csv(
            std,
            names,
            [["" if np.isnan(x) else f"{x:.4g}" for x in row] for row in empty],
        )
    if imputations:
        for path, sample in zip(
            copies, imputer.impute(read.values, imputations), strict=True
        ):
            write_csv(path, read.header, read.lines(sample))
    summary = {
        "rows": len(read.cells),
        "columns_used": len(read.numeric),
        "columns_copied": ", ".join(read.other),
        "cells_filled": int(np.isnan(read.values).sum()),
        **measured,
        "status": str(imputer.status_),
    }
    written = [out, *([] if std is None else [std]), *copies]
    if as_json:
        files = [str(path) for path in written]
        show_json({**summary, "columns_copied": read.other, "files": files}, indent=1)
        return
    show_table(("what", "value"), list(summary.items()))
    for path in written:
        show_path("written", path)


def _digits(column: Floats) -> int:
    """Return how many digits show a number to a millionth of the column's standard deviation."""
    largest = np.abs(column).max()
    std = (column / (largest or 1)).std()
    return 6 + int(np.ceil(-np.log10(std))) if std > 1e-11 else 17


def read_table(path: Path, ignore: set[str], missing: set[str]) -> TableFile:
    """Return the table of a CSV or TSV file with a header line."""
    header, cells, decimal_comma = _read_cells(path)
    unknown = ignore - set(header)
    if unknown:
        raise InputError(
            f"{path} has no column {sorted(unknown)[0]!r}; its columns are {', '.join(header)}"
        )
    absent = missing | set(MISSING)
    columns, numeric = [], []
    for j, name in enumerate(header):
        if name in ignore:
            continue
        words = [line[j].strip() for line in cells]
        if decimal_comma:
            words = [word.replace(",", ".") for word in words]
        column = _numbers(words, absent, f"{path}, column {name!r}")
        if column is not None:
            columns.append(column)
            numeric.append(j)
    if not columns:
        raise InputError(f"{path} has no column of numbers")
    return TableFile(header, cells, numeric, np.stack(columns, axis=1), decimal_comma)


def _read_cells(path: Path) -> tuple[list[str], list[list[str]], bool]:
    """Return header, cells, and whether commas are decimal marks: where they do not separate."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with (
        reading(path, "must be a CSV or TSV file in UTF-8"),
        opener(path, "rt", encoding="utf-8-sig", newline="") as stream,
    ):
        first = stream.readline()
        stream.seek(0)
        delimiter = max("\t;,", key=first.count)
        lines = [line for line in csv.reader(stream, delimiter=delimiter) if line]
    if len(lines) < 2:
        raise InputError(f"{path} must have a header line and at least one row")
    header = [name.strip() for name in lines[0]]
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InputError(f"{path} has two columns {twice!r}; names must differ")
    if all(is_number(name) for name in header):
        warnings.warn(
            f"{path}: the first line holds only numbers ({', '.join(header[:3])}, ...) and is "
            "taken for the header; if it is a row of the table, put a header line above it",
            stacklevel=2,
        )
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(header):
            raise InputError(
                f"{path}, row {number}: {len(line)} cells, but the header has {len(header)}"
            )
    return header, lines[1:], delimiter != ","


def _numbers(words: list[str], missing: set[str], where: str) -> Array | None:
    """Return a column as numbers, NaN where missing; None if it is one of text."""
    values, wrong, known = np.full(len(words), np.nan), [], 0
    for i, word in enumerate(words):
        if word.lower() in missing:
            continue
        known += 1
        try:
            values[i] = float(word)
        except ValueError:
            wrong.append((i, word))
    if np.isinf(values).any():
        raise InputError(
            f"{where}, row {int(np.isinf(values).argmax()) + 2}: infinite numbers"
        )
    if not wrong:
        return values if known else None
    if len(wrong) < MOSTLY_NUMBERS * known:
        i, text = wrong[0]
        raise InputError(
            f"{where}, row {i + 2}: {text!r} is not a number, but most cells of the column are; "
            f"--missing {text!r} takes it for missing, --ignore leaves the column out"
        )
    return None


def _measure(
    imputer: Any, values: Floats, holdout: float, seed: int
) -> dict[str, float]:
    """Hide known cells, fill them, and return the error and the coverage of 90 % intervals."""
    known = np.argwhere(~np.isnan(values))
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(known))[: int(holdout * len(known))]
    rows, cols = known[chosen].T
    hidden = values.copy()
    hidden[rows, cols] = np.nan
    if not len(chosen) or np.isnan(hidden).all(axis=0).any():
        return {}
    filled, std = imputer.fit(hidden).transform(hidden, return_std=True)
    error = filled[rows, cols] - values[rows, cols]
    scale = np.nanstd(values, axis=0)[cols]
    varies = scale > 0
    return {
        "hidden_cells": len(chosen),
        "error_in_standard_deviations": float(
            np.sqrt(np.mean((error[varies] / scale[varies]) ** 2))
        ),
        "interval_90_coverage": float(
            np.mean(np.abs(error) <= LEVEL * std[rows, cols])
        ),
    }
