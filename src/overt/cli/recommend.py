"""`overt recommend`: the columns that suit a row best."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from typer import Option

from overt._check import InputError
from overt._io import ready, replacing, write_csv
from overt.cli import ratings as shared
from overt.cli.base import AsJson, app, console, show_json, show_path, show_table
from overt.entries.frames import role_of
from overt.entries.identifiers import UNKNOWN

if TYPE_CHECKING:
    from overt.completion import Recommendations

HEADER = ("row", "column", "rank", "prediction", "score")

FULL = "No space left on device"


@app.command()
def recommend(
    model: shared.Model,
    user: Annotated[str | None, Option(help="Identifier of the row.")] = None,
    n: Annotated[int, Option("--n", "-n", min=1, help="Length of the list.")] = 10,
    everyone: Annotated[
        Path | None,
        Option("--all", help="Write lists for all rows to this .csv or .parquet file."),
    ] = None,
    entries: Annotated[
        Path | None,
        Option(
            help="File with the entries of a new row: column,value; or columns alone."
        ),
    ] = None,
    seen: Annotated[
        bool, Option("--seen", help="Include columns already rated.")
    ] = False,
    exclude: Annotated[
        Path | None,
        Option(help="File of columns, or of pairs (row, column), to leave out."),
    ] = None,
    by: Annotated[
        str,
        Option(
            help="Rank by value (predicted), chosen (probability of choosing), both, or auto."
        ),
    ] = "auto",
    why: Annotated[
        bool, Option("--why", help="Name the known entries behind each.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the columns that suit a row best: one row, a newcomer, or everyone.

    Try: [bold]overt recommend overt-completion --user 42 --why[/bold]
    """
    from overt.completion import DropoutCompletion

    asked = [option for option in (user, everyone, entries) if option is not None]
    if len(asked) != 1:
        raise InputError("say to whom to recommend: one of --user, --entries and --all")
    fitted = DropoutCompletion.load(model)
    if by != "value":
        fitted.prepare_ranking()
    left_out = _left_out(exclude, fitted)
    how: dict[str, Any] = {"exclude_seen": not seen, "by": by}
    if everyone is not None:
        _check_list_path(everyone)
        _write_lists(everyone, fitted.recommend_all(n, exclude=left_out, **how))
        if as_json:
            show_json({"recommendations": str(everyone)}, indent=1)
        else:
            show_path("recommendations", everyone)
        return
    if user is not None:
        best = fitted.recommend(user, n, exclude=left_out, **how)
        given = [user] * len(best.cols), best.cols
        std = shared.predict_with_std(fitted, fitted.predict, *given)[1]
    else:
        if why or np.ndim(left_out) == 2:
            raise InputError(
                "--why and pairs to exclude are for rows that the model knows"
            )
        cols, values = _newcomer(entries, fitted)
        if values is None:
            if fitted.missing != "negative":
                raise InputError(
                    f"{entries} has columns alone, and the model is one of values: add the value "
                    "of each column, as in 50,4.5"
                )
            values = [1.0] * len(cols)
        if not np.any(fitted.index_.cols.find(cols) != UNKNOWN):
            raise InputError(
                f"{entries} names no column of the model; its first is {cols[0]!r}"
            )
        newcomer = fitted.fold_in((cols, values))
        best = newcomer.recommend(n, exclude=left_out, **how)
        std = shared.predict_with_std(fitted, newcomer.predict, best.cols)[1]
    rows: list[dict[str, Any]] = [
        {"column": c, "prediction": v, "std": None if np.isnan(s) else s}
        for c, v, s in zip(
            best.cols.tolist(), best.values.tolist(), std.tolist(), strict=True
        )
    ]
    if why:
        for line in rows:
            explained = fitted.explain(user, line["column"])
            line["because"] = explained.cols[explained.contributions > 0][:3].tolist()
    if as_json:
        show_json(rows, indent=1)
        return
    console.print(f"by {best.by}")
    for line in rows:
        line["column"] = str(line["column"])  # text is aligned to the left
        if why:
            line["because"] = ", ".join(map(str, line["because"]))
    header = ("column", "prediction", "std", "because of")[: 4 if why else 3]
    show_table(header, [list(line.values()) for line in rows])


def _check_list_path(path: Path) -> None:
    """Refuse a path that is no CSV or Parquet file, before the work."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"recommendations go to a .csv or a .parquet file, got {path}")
    if path.is_dir():
        raise InputError(f"{path} is a folder; a file is needed")
    ready(path.parent)


def _write_lists(path: Path, lists: Recommendations) -> None:
    """Write lists to a CSV or Parquet file, which appears when it is whole."""
    columns = (lists.rows, lists.cols, lists.ranks, lists.values, lists.scores)
    if path.suffix.lower() == ".csv":
        *names, y, x = (column.tolist() for column in columns)
        numbers = ([f"{v:.6g}" for v in column] for column in (y, x))
        write_csv(path, HEADER, zip(*names, *numbers, strict=True))
        return
    from overt.completion.ratings_file import duckdb

    with duckdb().connect() as db, replacing(path) as temporary:
        db.register("lists", dict(zip(HEADER, columns, strict=True)))
        target = os.fspath(temporary).replace("'", "''")
        try:
            db.execute(f"copy (from lists) to '{target}' (format parquet)")
        except duckdb().IOException as error:
            raise OSError(FULL if FULL in str(error) else str(error)[:200]) from None


def _left_out(path: Path | None, fitted: Any) -> Any:
    """Return the columns, or the pairs, that a file names."""
    if path is None:
        return []
    lines = [parts for _, parts in _fields(path, fitted, "row", "col")]
    if all(len(parts) == 1 for parts in lines):
        return [parts[0] for parts in lines]
    return np.array([parts for parts in lines if len(parts) > 1])


def _newcomer(path: Path | None, fitted: Any) -> tuple[list[str], list[float] | None]:
    """Return columns and values of a newcomer; None for values of columns alone (clicks)."""
    lines = _fields(Path(path or ""), fitted, "col", "value")
    if all(len(parts) == 1 for _, parts in lines):
        return [parts[0] for _, parts in lines], None
    cols: list[str] = []
    values: list[float] = []
    for number, parts in lines:
        if len(parts) < 2:
            raise InputError(
                f"{path}, line {number}: the value of {parts[0]!r} is missing"
            )
        try:
            value = float(parts[1])
        except ValueError:
            if number == 1:
                continue  # a header
            raise InputError(
                f"{path}, line {number}: {parts[1]!r} is not a number"
            ) from None
        cols.append(parts[0])
        values.append(value)
    return cols, values


def _fields(path: Path, fitted: Any, *roles: str) -> list[tuple[int, list[str]]]:
    """Return the numbers and the fields of a file's lines, as a header of known names says.

    Columns of other names are taken in order for what no name says.
    """
    from overt.completion.ratings_file import numbered_lines, split_or_none

    if not path.is_file():
        raise InputError(f"there is no file or folder {path}")
    lines = [(number, line) for number, line in numbered_lines(path) if line.strip()]
    if not lines:
        raise InputError(f"{path} is empty")
    delimiter = max("\t;,", key=lambda d: sum(d in line for _, line in lines))
    found = [(n, split_or_none(line, delimiter) or [line.strip()]) for n, line in lines]
    header = found[0][1]
    ids = [] if fitted.col_ids_ is None else fitted.col_ids_.tolist()
    places = list(range(len(roles)))
    if any(map(role_of, header)) and not set(map(str, ids)) & set(header):
        found = found[1:]
        named = [role_of(name) for name in header]
        for role in roles:
            if role not in named and None in named:
                named[named.index(None)] = role
        places = [named.index(role) for role in roles if role in named]
    return [(n, [parts[i] for i in places if i < len(parts)]) for n, parts in found]
