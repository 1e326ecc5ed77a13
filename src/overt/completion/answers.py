"""What a fitted model answers: recommendations, explanations, new rows, dense blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt._check import InputError, InputTypeError, whole
from overt.completion.model import Model
from overt.completion.ratings import Triplets
from overt.results import Result

Array = NDArray[Any]
Floats = NDArray[np.float64]


class Index:
    """Translates what users call rows and columns into indices, and finds a row's entries."""

    def __init__(self, entries: Triplets) -> None:
        self._entries = entries
        self._order: Array | None = None

    def rows(self, names: Any) -> Array:
        """Return row indices; -1 for rows never seen."""
        return _locate("rows", names, self._entries.row_ids, self._entries.shape[0])

    def cols(self, names: Any) -> Array:
        """Return column indices; -1 for columns never seen."""
        return _locate("cols", names, self._entries.col_ids, self._entries.shape[1])

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

    Entries are sorted by the size of their contribution.
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
            spread = np.array([model.noise_of(1, np.array([j])) for j in b])
            variance = np.einsum("ei,ij,ej->e", V, self.covariance, V)
            variance += np.einsum("eij,ij->e", spread, second)
        return predicted, np.sqrt(np.maximum(variance, 0) + model.noise)

    def recommend(self, n: int = 10, exclude_seen: bool = True) -> Recommendation:
        """Return the columns with the largest predictions, best first."""
        scores = self.model.center + self.model.means[1][:-1].astype(np.float64) @ self.vector
        return _best(self.model, self.index, scores, n, self.seen if exclude_seen else None)


class Completed:
    """A dense matrix computed when it is read: iterate over blocks, index rows, or np.asarray."""

    def __init__(self, model: Model, rows: Array, block_rows: int = 1024) -> None:
        self._model, self._rows, self._block_rows = model, rows, block_rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows asked for, and columns."""
        return len(self._rows), self._model.shape[1]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Floats]:
        for start in range(0, len(self._rows), self._block_rows):
            yield self._model.block(self._rows[start : start + self._block_rows])

    def __getitem__(self, chosen: Any) -> Floats:
        rows = np.atleast_1d(self._rows[chosen])
        block = self._model.block(rows)
        return block[0] if np.ndim(self._rows[chosen]) == 0 else block

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.concatenate(list(self)).astype(dtype or np.float64, copy=False)


def recommend(model: Model, index: Index, row: Any, n: int, exclude_seen: bool) -> Recommendation:
    """Return the columns with the largest predictions for a row."""
    a = index.row(row)
    seen = index.of_row(a)[0] if exclude_seen else None
    return _best(model, index, model.block(np.array([a]))[0], n, seen)


def similar(model: Model, index: Index, col: Any, n: int) -> Recommendation:
    """Correlation over rows of two columns' predictions: v_i'C v_j, C the rows' covariance."""
    b, k = index.col(col), model.n_factors
    C = model.priors[0].covariance[:k, :k] if model.spread != "dropout" else None
    if C is None:
        C = np.cov(model.means[0][:-1, :k].astype(np.float64), rowvar=False).reshape(k, k)
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
    added = model.influence(model.means[0][a], cols, values, b)
    u = model.means[0][a].astype(np.float64)
    prediction = model.center + float(u @ model.means[1][b].astype(np.float64))
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
    if isinstance(entries, Mapping):
        names, values = list(entries.keys()), list(entries.values())
    else:
        try:
            names, values = entries
        except (TypeError, ValueError):
            raise InputError(
                "entries must be {column: value} or a pair (columns, values), got "
                f"{type(entries).__name__}"
            ) from None
    cols, numbers = index.cols(names), np.asarray(values, dtype=float)
    if len(cols) != len(numbers) or not np.all(np.isfinite(numbers)):
        raise InputError("entries must have one finite value for each column")
    known = cols >= 0
    vector, covariance = model.fold(cols[known], numbers[known])
    return NewRow(vector, covariance, model, index, cols[known])


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
    model: Model, index: Index, scores: Floats, n: int, without: Array | None, *, clip: bool = True
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


def _locate(name: str, names: Any, ids: Array | None, count: int) -> Array:
    given = np.atleast_1d(np.asarray(names))
    if given.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got shape {given.shape}")
    if not len(given):
        return np.zeros(0, np.int64)
    if ids is not None:
        if given.dtype.kind != ids.dtype.kind and "U" in (given.dtype.kind, ids.dtype.kind):
            given = given.astype(str)
            if ids.dtype.kind != "U":
                raise InputTypeError(f"{name} must be identifiers like {ids[0]!r}, got {names!r}")
        at = np.minimum(np.searchsorted(ids, given), len(ids) - 1)
        return np.where(ids[at] == given, at, -1)
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
