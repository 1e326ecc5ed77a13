"""Panel: the missing entries of a table of ratings, how sure they are, and the learned noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from overt import Entries
from overt.explorer import theory
from overt.explorer.fields import Values, number, ratings, word
from overt.explorer.figures import BLUE, GRAY, bars, figure, level, line, numbers, shown
from overt.explorer.panel import Panel, Table, View, call

NORMAL_90 = 1.6449
"""Standard deviations on each side of the mean that hold 90% of a normal law."""

FIELDS = (
    ratings(
        "data", "Ratings",
        hint="The sample, or a text file of at most 2 MB with row, column and value on each line. "
        "It stays on this machine.",
    ),
    number("n_factors", "Factors", 8, 1, 64, slide=1),
    number("holdout", "Share held out", 0.1, 0.02, 0.5, slide=0.01),
    number("seed", "Seed", 0, 0, 1_000_000),
    word("row", "Row to predict", lens=True,
         hint="An identifier of the file; the first one if empty."),
)  # fmt: skip


def _view(values: Values, found: Sequence[dict[str, Any]]) -> View:
    entries: Entries = values["entries"]
    m, n = entries.shape
    known = ("Ratings", f"{len(entries):,}"), ("Rows x columns", f"{m:,} x {n:,}")
    if not found:
        return View([*known])
    fit, path = found[0], [frame["path"] for frame in found[1:]]
    row, messages = _row(entries, values["row"])
    best = _best(entries, fit, row)
    points = {
        "type": "scatter", "mode": "markers", "marker": {"color": BLUE, "size": 9}, "name": "",
        "x": list(range(1, len(best) + 1)), "y": numbers(mean for _, mean, *_ in best),
        "error_y": {"array": numbers(high - mean for _, mean, _, high in best), "color": GRAY},
    }  # fmt: skip
    return View(
        [
            ("Learned drop probability", fit["drop_prob"]), ("Noise of one rating", fit["noise"]),
            ("Held-out RMSE", fit["rmse"]), ("RMSE of the mean alone", fit["mean_only"]),
            (f"90% intervals that hold, of {fit['held']:,}", f"{fit['coverage']:.1%}"), *known,
        ],
        [
            figure(
                "errors", "Held-out error of fits at a fixed drop probability, beside that of the "
                "learned noise.", "drop probability", "held-out RMSE",
                line([p for p, _ in path], [e for _, e in path], "fixed drop probability", BLUE,
                     mode="lines+markers"),
                xaxis={"range": [0, 1]}, shapes=[level(fit["rmse"], "learned")],
            ),
            figure(
                "factors", "The drop probability that was learned for each factor: one near 1 is "
                "switched off.", "factor, most important first", "drop probability",
                bars(fit["each"], "", BLUE), yaxis={"range": [0, 1.02]},
            ),
            figure(
                "intervals", "The row's best unseen columns in the order of the table, with 90% "
                "intervals.", "place in the table", "prediction", points,
            ),
        ],
        [
            Table(
                f"Row {_name(entries.row_ids, row)}: best of what it has not rated",
                ("column", "prediction", "90% from", "to"), best,
            ),
        ],
        messages,
        download=True,
    )  # fmt: skip


def _row(entries: Entries, text: str) -> tuple[int, dict[str, str]]:
    """Return the index of the row that is named, or the first one and what is wrong."""
    names = [_name(entries.row_ids, i) for i in range(entries.shape[0])]
    if not text or text in names:
        return names.index(text or names[0]), {}
    return 0, {"row": f"must be a row of the data, such as {names[0]} or {names[-1]}"}


def _best(entries: Entries, fit: dict[str, Any], row: int, count: int = 12) -> list[Any]:
    """Return column, prediction and interval of the best entries that the row does not have."""
    mean, half = fit["mean"][row], NORMAL_90 * fit["std"][row]
    cols = np.setdiff1d(np.arange(len(mean)), entries.cols[entries.rows == row])
    order = cols[np.argsort(-mean[cols], kind="stable")][:count]
    return [
        (_name(entries.col_ids, c), mean[c], mean[c] - half[c], mean[c] + half[c]) for c in order
    ]


def _name(ids: Any, index: int) -> str:
    return str(index if ids is None else ids[index])


def completed(entries: Entries, fit: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a CSV file of all missing entries."""
    yield "row,column,prediction,low_90,high_90\n"
    rows, cols = ([_quoted(_name(ids, i)) for i in range(n)] for ids, n in (
        (entries.row_ids, entries.shape[0]), (entries.col_ids, entries.shape[1])
    ))  # fmt: skip
    for i, j in zip(*entries.missing, strict=True):
        mean, half = fit["mean"][i, j], NORMAL_90 * fit["std"][i, j]
        yield f"{rows[i]},{cols[j]},{shown(mean)},{shown(mean - half)},{shown(mean + half)}\n"


def _quoted(name: str) -> str:
    """Return a name as CSV has it; one that a spreadsheet would run gets an apostrophe."""
    formula = name[:1] in tuple("=+-@\t\r") and not name[1:].replace(".", "").isdigit()
    return '"' + "'" * formula + name.replace('"', '""') + '"'


def _code(values: Values) -> str:
    sample = values["data"] == "sample"
    given = "sample_ratings()" if sample else 'read_ratings("ratings.csv").entries  # your file'
    asked = {name: values[name] for name in ("n_factors", "holdout", "seed")}
    complete = call(theory.complete, asked, "ratings")
    lines = (
        f"ratings = {given}\n"
        f"frames = [found for share, found in {complete}]\n"
        'fit, path = frames[0], [frame["path"] for frame in frames[1:]]\n'
        f'half = {NORMAL_90} * fit["std"]\n'
        'low, high = fit["mean"] - half, fit["mean"] + half  # 90% intervals of every entry'
    )
    functions = (theory.sample_ratings,) if sample else ()
    return theory.script(lines, *functions, theory.complete)


PANEL = Panel(
    "completion", "Completion",
    "A half-empty table of ratings is completed by factors whose noise is learned from the data, "
    "so that nothing has to be tuned. See how the learned noise compares with fixed drop "
    "probabilities on ratings that were held out, and how sure each prediction is.",
    "howto/completion", FIELDS, _view, _code, theory.complete,
)  # fmt: skip
