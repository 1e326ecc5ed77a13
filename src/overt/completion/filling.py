"""Rows without holes: what scikit-learn calls transform."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from sklearn.base import TransformerMixin

from overt._check import InputError, plain_array
from overt._types import Array, Floats
from overt.completion.forms.model import FactorModel
from overt.completion.index import EntryIndex
from overt.entries import Entries, observed
from overt.entries.frames import is_table


class Fills(TransformerMixin, ABC):  # type: ignore[misc]
    """A transformer that fills rows, with `set_output` and `fit_transform`."""

    @abstractmethod
    def _asked(self) -> tuple[FactorModel, EntryIndex]: ...

    def transform(self, X: Any) -> Floats:
        """Return rows without holes: what is observed as it is, all else predicted from it.

        X is a table or a sparse matrix with the columns that were fitted; its rows are new rows,
        whatever their place. With missing="negative" all of it is predictions.
        """
        (model, index), given = self._asked(), observed(X)
        if isinstance(X, Entries) or not (hasattr(X, "tocoo") or is_table(X)):
            raise InputError("transform takes rows of the matrix, not a frame of entries")
        places, n = _columns(index, given), model.shape[1]
        if not np.array_equal(np.sort(places), np.arange(n)):
            raise InputError(
                f"X has {given.shape[1]} features, but DropoutCompletion is expecting {n} features "
                "as input, by the names that were fitted"
            )
        filled, order = np.empty((given.shape[0], n)), np.argsort(given.rows, kind="stable")
        ends = np.cumsum(np.bincount(given.rows, minlength=given.shape[0]))[:-1]
        for a, mine in enumerate(np.split(order, ends)):
            cols, values = places[given.cols[mine]], given.values[mine]
            row = model.products(model.fold(cols, values), np.arange(n))
            filled[a] = np.clip(row, model.low, model.high)
            if model.pairs is None:
                filled[a, cols] = values
        return filled

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the columns, in the order that was fitted.

        `input_features`, as scikit-learn's pipelines pass them, must be these names, or name the
        columns of a model that was fitted without names.
        """
        model, index = self._asked()
        count = model.shape[1]
        given = None
        if input_features is not None:
            given = np.atleast_1d(plain_array("input_features", input_features)).astype(object)
        if given is not None and len(given) != count:
            raise InputError(
                f"input_features should have length equal to number of features ({count}), got "
                f"{len(given)}"
            )
        if index.cols.ids is None:
            names = [f"x{col}" for col in range(count)]
            return np.array(names, dtype=object) if given is None else given
        names = list(map(str, index.cols.ids.tolist()))
        if given is not None and list(map(str, given)) != names:
            raise InputError("input_features is not equal to the names that were fitted")
        return np.array(names, dtype=object)


def _columns(index: EntryIndex, given: Entries) -> Array:
    """Return which fitted column each column is: by name where both have them."""
    if given.col_ids is None or index.cols.ids is None:
        return np.arange(given.shape[1])
    return index.cols.find(given.col_ids)
