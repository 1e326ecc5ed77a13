"""Recommendations for everyone: in blocks of rows, to memory or to a file, with progress."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from overt._check import InputError, plain_array, whole
from overt._files import as_path, ready, replacing, write_whole
from overt._progress import meter
from overt._types import Array, Floats, Ints
from overt.completion.index import EntryIndex
from overt.completion.ratings_file import duckdb
from overt.completion.recommending import BLOCK, BY, Ranking, column_mask, top
from overt.entries import pairs
from overt.entries.identifiers import UNKNOWN, describe_unknown, warn_unknown
from overt.results import Result

HEADER = ("row", "column", "rank", "prediction", "score")
FULL = "No space left on device"


@dataclass(frozen=True, repr=False, eq=False)
class Recommendations(Result):
    """Lists for many rows: line i recommends cols[i] to rows[i] as number ranks[i], from 1."""

    rows: Array
    cols: Array
    ranks: Ints
    values: Floats
    scores: Floats
    by: str


class _Lines(NamedTuple):
    rows: Ints
    cols: Ints
    ranks: Ints
    values: Floats
    scores: Floats


class Lists:
    """What is recommended to whom, block by block."""

    def __init__(
        self,
        ranking: Ranking,
        index: EntryIndex,
        n: int,
        exclude_seen: bool,
        exclude: Any,
        candidates: Any,
    ) -> None:
        self._ranking = ranking
        self._index = index
        self._seen = exclude_seen
        self._n = whole("n", n)
        paired = plain_array("exclude", exclude).ndim == 2 and len(exclude)
        self._pairs = _known_pairs(index, exclude) if paired else None
        self._mask = column_mask(index, () if paired else exclude, candidates)

    def collect(self, rows: Any = None) -> Recommendations:
        """Return all lists."""
        blocks = zip(*self._blocks(self._places(rows)), strict=True)
        found = _Lines(*map(np.concatenate, blocks))
        return Recommendations(*self._named(found), BY[self._ranking.by])

    def write(self, path: str | os.PathLike[str], rows: Any = None) -> None:
        """Write all lists to a CSV or Parquet file, which appears when it is whole."""
        path = as_path("path", path)
        places = self._places(rows)
        if path.suffix.lower() not in (".csv", ".parquet"):
            raise InputError(f"recommendations go to a .csv or a .parquet file, got {path}")
        if path.is_dir():
            raise InputError(f"{path} is a folder; a file is needed")
        ready(path.parent)
        if path.suffix.lower() == ".csv":
            write_whole(path, lambda file: self._write_csv(file, places))
        else:
            self._write_parquet(path, places)

    def _write_csv(self, file: IO[bytes], places: Ints) -> None:
        text = io.TextIOWrapper(file, "utf-8", errors="replace", newline="")
        writer = csv.writer(text)
        writer.writerow(HEADER)
        for block in self._blocks(places):
            columns = self._named(block)
            y, x = ([f"{v:.6g}" for v in column] for column in columns[3:])
            writer.writerows(zip(*(c.tolist() for c in columns[:3]), y, x, strict=True))
        text.detach()

    def _write_parquet(self, path: Path, places: Ints) -> None:
        with duckdb().connect() as db, replacing(path) as temporary:
            for number, block in enumerate(self._blocks(places)):
                columns = zip(HEADER, self._named(block), strict=True)
                words = {n: c.astype(object) if c.dtype.kind == "U" else c for n, c in columns}
                db.register("given", words)
                start = "create table lists as" if number == 0 else "insert into lists"
                db.execute(f"{start} select * from given")  # noqa: S608
                db.unregister("given")
            target = os.fspath(temporary).replace("'", "''")
            try:
                db.execute(f"copy lists to '{target}' (format parquet)")
            except duckdb().IOException as error:
                raise OSError(FULL if FULL in str(error) else str(error)[:200]) from None

    def _named(self, block: _Lines) -> tuple[Any, Any, Any, Any, Any]:
        rows = self._index.rows.labels(block.rows)
        cols = self._index.cols.labels(block.cols)
        return rows, cols, *block[2:]

    def _places(self, rows: Any) -> Ints:
        if rows is None:
            return np.arange(self._ranking.model.shape[0])
        places = self._index.rows.find(rows)
        unknown = describe_unknown("rows", rows, places)
        if unknown:
            raise InputError(f"rows must have been fitted, but {unknown}")
        return places

    def _blocks(self, places: Ints) -> Iterator[_Lines]:
        step = max(1, BLOCK // max(1, self._ranking.model.shape[1]))
        low = self._ranking.model.low
        high = self._ranking.model.high
        with meter("rows", len(places)) as bar:
            for start in range(0, max(len(places), 1), step):
                rows = places[start : start + step]
                values, scores = self._ranking.of_rows(rows)
                scores = np.where(self._mask, scores, -np.inf)
                best = []
                for i, row in enumerate(rows):
                    if self._seen:
                        scores[i, self._index.of_row(row)[0]] = -np.inf
                    if self._pairs is not None:
                        scores[i, self._pairs.get(int(row), [])] = -np.inf
                    best.append(top(scores[i], self._n))
                counts = [len(found) for found in best]
                line = np.repeat(np.arange(len(rows)), counts)
                cols = np.concatenate([np.zeros(0, np.int64), *best])
                ranks = np.concatenate([cols[:0], *(np.arange(1, c + 1) for c in counts)])
                predicted = np.clip(values[line, cols], low, high)
                yield _Lines(rows[line], cols, ranks, predicted, scores[line, cols])
                bar.advance(len(rows))


def _known_pairs(index: EntryIndex, exclude: Any) -> dict[int, list[int]]:
    row_labels, col_labels = pairs("exclude", exclude)
    rows = index.rows.find(row_labels, "exclude")
    cols = index.cols.find(col_labels, "exclude")
    warn_unknown("rows to exclude", row_labels, rows, "nothing is excluded for them", 5)
    warn_unknown("columns to exclude", col_labels, cols, "nothing is excluded for them", 5)
    found: dict[int, list[int]] = {}
    for row, col in zip(rows.tolist(), cols.tolist(), strict=True):
        if UNKNOWN not in (row, col):
            found.setdefault(row, []).append(col)
    return found
