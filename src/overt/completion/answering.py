"""What a fitted estimator answers for whole rows: dense ones, recommendations, similarities."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from overt._check import InputError, choice
from overt._types import Floats, Ints
from overt.completion import bounds, fitting, listing, recommending
from overt.completion.forms.model import FactorModel
from overt.completion.index import EntryIndex
from overt.completion.recommending import Ranking, Recommendation
from overt.completion.settings import Settings
from overt.entries import Entries
from overt.entries.identifiers import UNKNOWN, IdentifierIndex, warn_unknown


class Answers(ABC):
    """The questions about rows that an estimator with a fitted model can be asked."""

    chosen_: FactorModel | None
    entries_: Entries

    @abstractmethod
    def _asked(self, keys: str = "auto") -> tuple[FactorModel, EntryIndex]: ...

    @abstractmethod
    def _settings(self) -> Settings: ...

    def complete(self, rows: Any = None, cols: Any = None, *, keys: str = "auto") -> Floats:
        """Return the dense matrix, or some rows and columns of one too large to be had at once.

        Rows and columns are given as in `predict`, or as slices of their order. Those never seen
        are predicted as `predict` does, with a warning.
        """
        model, index = self._asked(keys)
        a = _find_or_slice(index.rows, rows)
        return _complete(model, a, None if cols is None else _find_or_slice(index.cols, cols))

    def recommend(
        self,
        row: Any,
        n: int = 10,
        exclude_seen: bool = True,
        *,
        by: str = "auto",
        exclude: Any = (),
        candidates: Any = None,
        keys: str = "auto",
    ) -> Recommendation:
        """Return the `n` columns that suit a row best.

        They are ranked by how likely they are chosen (with missing="negative"), or by that and how
        they are expected to be rated, together: "both"; "value" and "chosen" take one of them. What
        was chosen comes from a second model of the same entries, see `prepare_ranking`; where
        that shows no more than how often columns were chosen, these counts alone are taken.
        `exclude` are columns to leave out, `candidates` those to choose among; those never seen
        are reported by a warning. `keys` says how rows and columns are given and returned, as in
        `predict`.
        """
        _, index = self._asked(keys)
        index.rows.find_one(row)  # an unknown row is refused first
        ranking = self._ranking(by)
        return recommending.recommend(ranking, index, row, n, exclude_seen, exclude, candidates)

    def recommend_all(
        self,
        path: str | os.PathLike[str] | None = None,
        n: int = 10,
        *,
        rows: Any = None,
        by: str = "auto",
        exclude_seen: bool = True,
        exclude: Any = (),
        candidates: Any = None,
        keys: str = "auto",
    ) -> listing.Recommendations | None:
        """Recommend to all rows (or those given), as `recommend` does, in blocks.

        With a `path` (.csv or .parquet) lines of row, column, rank, prediction and score are
        written there; without one they are returned. `exclude` are columns, or an (n, 2) array of
        (row, column) pairs.
        """
        _, index = self._asked(keys)
        ranking = self._ranking(by)
        lists = listing.Lists(ranking, index, n, exclude_seen, exclude, candidates)
        if path is None:
            return lists.collect(rows)
        lists.write(path, rows)
        return None

    def prepare_ranking(self) -> Self:
        """Fit the second model that `recommend` needs: of which entries are observed.

        `fit` does so itself where that takes a moment, up to 200,000 entries. A model with
        missing="negative" needs none.
        """
        model, _ = self._asked()
        if model.pairs is None and self.chosen_ is None:
            self.chosen_ = fitting.fit_chosen(self._settings(), self.entries_)
        return self

    def _ranking(self, by: str = "auto") -> Ranking:
        """Return by what to rank; see `prepare_ranking`."""
        model, _ = self._asked()
        choice("by", by, ("auto", "both", "value", "chosen"))
        if model.pairs is not None:
            if by not in ("auto", "chosen"):
                raise InputError(f'by={by!r} needs missing="unknown": this model has no values')
            return Ranking("chosen", model, None, 0.0)
        middle = float(self.entries_.values.mean())
        if by == "value":
            return Ranking(by, model, None, middle)
        if self.chosen_ is None:
            raise InputError(
                "columns are ranked by a second model, of which entries are observed, and this fit "
                "left it out: call prepare_ranking() once, or rank by='value'"
            )
        if by == "auto":  # never below counts where nothing was learned beyond them
            pairs = self.chosen_.pairs
            by = "chosen" if pairs is not None and pairs.popular == 1 else "both"
        return Ranking(by, model, self.chosen_, middle)

    def similar_items(self, col: Any, n: int = 10, *, keys: str = "auto") -> Recommendation:
        """Return the columns whose predictions go most alike with those of `col` over rows."""
        return recommending.similar(*self._asked(keys), col, n)

    def generalization_bound(
        self, delta: float = 0.05, constant: float | None = None
    ) -> bounds.Bound:
        """Return Theorem 11's bound; `constant` is its K, 1 as printed, by default a proved one."""
        return bounds.generalization_bound(self._asked()[0], self.entries_, delta, constant)

    def weighted_trace_norm(self) -> float:
        """|diag(sqrt p) U V' diag(sqrt q)|_*, p and q the observed row and column frequencies."""
        return bounds.weighted_trace_norm(self._asked()[0], self.entries_)

    def explicit_regularizer(self) -> float:
        """R = mean over entries of sum_i U_ai^2 V_bi^2, without lam."""
        return bounds.explicit_regularizer(self._asked()[0], self.entries_)


def _find_or_slice(side: IdentifierIndex, given: Any) -> Ints:
    """Return the positions of what users give: None is all of them."""
    if given is None or isinstance(given, slice):
        return np.arange(side.count)[given or slice(None)]
    found = side.find(given)
    warn_unknown(side.name, given, found, "they get what is known of the other side", 4)
    return found


def _complete(model: FactorModel, rows: Ints, cols: Ints | None = None) -> Floats:
    """Return the dense predictions of some rows (and columns), filled block by block."""
    dense = np.empty((len(rows), model.shape[1] if cols is None else len(cols)))
    unseen = np.zeros(0, np.int64) if cols is None else np.flatnonzero(cols == UNKNOWN)
    step = max(1, recommending.BLOCK // model.shape[1])
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        block = model.block(some)
        dense[start : start + step] = block if cols is None else block[:, cols]
        if len(unseen):  # a block has known columns only
            beside = model.predict(some, np.full(len(some), UNKNOWN))
            dense[start : start + step, unseen] = beside[:, None]
    return dense
