"""What a fitted model answers: recommendations, explanations, new rows, dense blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._check import InputError, InputTypeError, whole
from overt._types import Array, Floats
from overt.completion.model import Model
from overt.entries import Entries, identifiers, observed
from overt.results import Result

BLOCK = 1 << 22
"""Entries of a completed matrix that are computed at once."""


class Index:
    """Translates what users call rows and columns into indices, and finds a row's entries."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._order: Array | None = None
        self._sorted: dict[tuple[str, bool], tuple[Array, Array]] = {}

    def rows(self, names: Any) -> Array:
        """Return row indices; -1 for rows never seen."""
        return self._find("rows", names, self._entries.row_ids, self._entries.shape[0])

    def cols(self, names: Any) -> Array:
        """Return column indices; -1 for columns never seen."""
        return self._find("cols", names, self._entries.col_ids, self._entries.shape[1])

    def _find(self, name: str, names: Any, ids: Array | None, count: int) -> Array:
        given = np.atleast_1d(np.asarray(names))
        if not given.size:
            return np.zeros(0, np.int64)
        if ids is None:
            return _within(name, given, count)
        given = identifiers(name, given)
        # Whole numbers and strings are compared as they are written.
        as_text = "U" in (given.dtype.kind, ids.dtype.kind)
        if (name, as_text) not in self._sorted:
            keys = ids.astype(str) if as_text else ids
            order = np.argsort(keys, kind="stable")
            self._sorted[name, as_text] = keys[order], order
        keys, order = self._sorted[name, as_text]
        given = given.astype(str) if as_text else given
        at = np.minimum(np.searchsorted(keys, given), len(keys) - 1)
        return np.where(keys[at] == given, order[at], -1)

    def row(self, name: Any) -> int:
        """Return the index of one row that must be known."""
        return _known("row", name, self.rows)

    def col(self, name: Any) -> int:
        """Return the index of one column that must be known."""
        return _known("col", name, self.cols)

    def col_names(self, indices: Array) -> Array:
        """Return what users call these columns."""
        ids = self._entries.col_ids
        return indices if ids is None else ids[indices]

    def of_row(self, row: int) -> tuple[Array, Floats]:
        """Return the columns and values observed in a row."""
        if self._order is None:
            self._order = np.argsort(self._entries.rows, kind="stable")
        keys = self._entries.rows
        start, stop = np.searchsorted(keys, [row, row + 1], sorter=self._order)
        chosen = self._order[start:stop]
        return self._entries.cols[chosen], self._entries.values[chosen]


@dataclass(frozen=True, repr=False)
class Recommendation(Result):
    """Columns, best first, and their predictions (or similarities)."""

    cols: Array
    values: Floats


@dataclass(frozen=True, repr=False)
class Explanation(Result):
    """A prediction taken apart: baseline + sum of what each observed entry of the row adds.

    Entries are sorted by the size of their contribution. The baseline is all the rest: mean,
    biases, prior, draws that were averaged, and what clipping to the scale took away.
    """

    prediction: float
    baseline: float
    cols: Array
    values: Floats
    contributions: Floats


@dataclass(frozen=True, repr=False)
class NewRow(Result):
    """A row that was not fitted, from its entries and a fitted model."""

    vector: Floats
    covariance: Floats
    model: Model
    index: Index
    seen: Array

    def to_dict(self) -> dict[str, Any]:
        """Return the row's vector and covariance, without the model."""
        return {"vector": self.vector.tolist(), "covariance": self.covariance.tolist()}

    def predict(self, cols: Any, return_std: bool = False) -> Any:
        """Return the row's predictions for columns."""
        b, model = self.index.cols(cols), self.model
        V = model.means[1][b].astype(np.float64)
        predicted = np.clip(model.center + V @ self.vector, model.low, model.high)
        if not return_std:
            return predicted
        if model.spread == "dropout":
            variance = (V**2) @ (model.strength * self.vector**2)
        else:
            second = self.covariance + np.outer(self.vector, self.vector)
            variance = np.einsum("ei,ij,ej->e", V, self.covariance, V, optimize=True)
            variance += [np.sum(model.noise_of(1, np.array([j])) * second) for j in b]
        return predicted, np.sqrt(np.maximum(variance, 0) + model.noise)

    def recommend(self, n: int = 10, exclude_seen: bool = True) -> Recommendation:
        """Return the columns with the largest predictions, best first."""
        scores = self.model.center + self.model.means[1][:-1].astype(np.float64) @ self.vector
        return _best(self.model, self.index, scores, n, self.seen if exclude_seen else None)


class Completed:
    """A dense matrix computed when it is read: iterate over blocks, index rows, or np.asarray."""

    def __init__(self, model: Model, rows: Array) -> None:
        self._model, self._rows = model, rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows asked for, and columns."""
        return len(self._rows), self._model.shape[1]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Floats]:
        step = max(1, BLOCK // self.shape[1])
        for start in range(0, len(self._rows), step):
            yield self._model.block(self._rows[start : start + step])

    def __getitem__(self, chosen: Any) -> Floats:
        rows = self._rows[chosen]
        block = self._model.block(np.atleast_1d(rows))
        return block[0] if np.ndim(rows) == 0 else block

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        blocks = [np.zeros((0, self.shape[1])), *self]
        return np.concatenate(blocks).astype(dtype or np.float64, copy=False)


def recommend(model: Model, index: Index, row: Any, n: int, exclude_seen: bool) -> Recommendation:
    """Return the columns with the largest predictions for a row."""
    a = index.row(row)
    seen = index.of_row(a)[0] if exclude_seen else None
    return _best(model, index, model.block(np.array([a]), clip=False)[0], n, seen)


def similar(model: Model, index: Index, col: Any, n: int) -> Recommendation:
    """Correlation over rows of two columns' predictions: v_i'C v_j, C the rows' covariance."""
    b, k = index.col(col), model.n_factors
    C = model.priors[0].covariance[:k, :k] if model.spread != "dropout" else None
    if C is None:
        U = model.means[0][:-1, :k].astype(np.float64)
        C = np.cov(U, rowvar=False, bias=True).reshape(k, k)
    V = model.means[1][:-1, :k].astype(np.float64)
    products = V @ (C @ V[b])
    norms = np.sqrt(np.maximum(np.einsum("ei,ij,ej->e", V, C, V), 0))
    scale = norms * norms[b]
    scores = np.divide(products, scale, where=scale > 0, out=np.zeros(len(V)))
    return _best(model, index, scores, n, np.array([b]), clip=False)


def explain(model: Model, index: Index, row: Any, col: Any) -> Explanation:
    """Take a prediction apart into a baseline and what each entry of the row adds."""
    a, b = index.row(row), index.col(col)
    cols, values = index.of_row(a)
    added = model.influence(cols, values, b)
    prediction = float(model.predict(np.array([a]), np.array([b]))[0])
    order = np.argsort(-np.abs(added), kind="stable")
    return Explanation(
        prediction,
        prediction - float(added.sum()),
        index.col_names(cols[order]),
        values[order],
        added[order],
    )


def fold_in(model: Model, index: Index, entries: Any) -> NewRow:
    """Solve for one new row with all columns held."""
    names, values = _row_entries(entries)
    cols = index.cols(names)
    try:
        numbers = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise InputTypeError(f"entries must have numbers for values, got {values!r}") from None
    if cols.shape != numbers.shape or not np.all(np.isfinite(numbers)):
        raise InputError("entries must have one finite value for each column")
    known = cols >= 0
    vector, covariance = model.fold(cols[known], numbers[known])
    return NewRow(vector, covariance, model, index, cols[known])


def _row_entries(entries: Any) -> tuple[Any, Any]:
    """Return columns and values from a mapping, a series, a sparse row, or a pair of both."""
    if hasattr(entries, "tocoo"):
        row = observed(entries)
        if row.shape[0] != 1:
            raise InputError(f"a sparse row must have shape (1, columns), got {row.shape}")
        return row.cols, row.values
    if isinstance(entries, Mapping) or hasattr(entries, "items"):
        pairs = list(entries.items())  # also of a pandas Series
        return [name for name, _ in pairs], [value for _, value in pairs]
    try:
        names, values = entries
    except (TypeError, ValueError):
        raise InputError(
            "entries must be {column: value}, a sparse row or a pair (columns, values), got "
            f"{type(entries).__name__}"
        ) from None
    return names, values


def plot_path(path: Floats | None, chosen: float) -> Any:
    """Draw held-out error against drop probability."""
    from matplotlib.figure import Figure

    if path is None:
        raise InputError('there is a path only with drop_prob="auto"')
    order = np.argsort(path[:, 0])
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*path[order].T, marker="o")
    axes.axvline(chosen, ls="--", color="black", label=f"chosen: {chosen:g}")
    axes.set_xlabel("drop probability")
    axes.set_ylabel("held-out RMSE")
    axes.legend()
    return figure


def _best(
    model: Model,
    index: Index,
    scores: Floats,
    n: int,
    without: Array | None,
    *,
    clip: bool = True,
) -> Recommendation:
    n = whole("n", n)
    scores = np.array(scores, dtype=float)
    if without is not None:
        scores[without] = -np.inf
    n = min(n, int(np.count_nonzero(scores > -np.inf)))
    best = np.argpartition(-scores, max(n - 1, 0))[:n] if n else np.zeros(0, np.int64)
    best = best[np.lexsort((best, -scores[best]))]
    values = np.clip(scores[best], model.low, model.high) if clip else scores[best]
    return Recommendation(index.col_names(best), values)


def _within(name: str, given: Array, count: int) -> Array:
    """Return checked indices; -1 for those beyond what was fitted."""
    if given.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got shape {given.shape}")
    if given.dtype.kind == "f" and np.all(given == np.floor(given)):
        given = given.astype(np.int64)
    if given.dtype.kind not in "iu":
        raise InputTypeError(f"{name} must be whole numbers, got {given.dtype}")
    if int(given.min()) < -1:
        raise InputError(f"{name} must be indices (or -1 for unknown), got {int(given.min())}")
    return np.where(given < count, given, -1)


def _known(name: str, value: Any, locate: Any) -> int:
    index = int(locate([value])[0]) if np.ndim(value) == 0 else -2
    if index == -2:
        raise InputError(f"{name} must be a single index or identifier, got {value!r}")
    if index < 0:
        raise InputError(f"{name} {value!r} was not among those fitted")
    return index
