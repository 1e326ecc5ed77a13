"""Features of rows and columns: tables given by users, and which entries are observed.

A user's table is standardized (`Encoder`) and brought into the order of the entries
(`align_features`). Row a then has features f_a in blocks. Each block is reduced to its leading
directions R,

    F = Q diag(sqrt e) R',   scores A = F R,

by one singular value decomposition over the rows that have entries. For the block of missingness
features, F is the matrix of observed entries (1 where observed) with every row divided by the
square root of its count: what SVD++ adds to a row, in closed form, and its mirror image for
columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from overt._check import Array, Bools, Floats, InputError, InputTypeError, plain_array
from overt.completion.problem import Grouped
from overt.entries import Entries
from overt.entries.frames import is_frame, read_frame
from overt.entries.identifiers import (
    UNKNOWN,
    IdentifierIndex,
    as_identifiers,
    as_index,
)

MISSINGNESS = "signals"
GIVEN = "features"
"""Names of the blocks, in the order of their scores."""

MAX_DIRECTIONS = 100
"""Leading directions of a block that are used. MovieLens 1M gains nothing from more."""

MAX_DIRECTION_SHARE = 0.25
"""Directions of missingness for each row. With half as many as rows they explain rows at random:
new rows with 3 entries are then in nine tenths intervals 69 times of 100, and 76 without them
(generated, 50 rows and 250 columns of rank 4)."""

MAX_DENSE_SIZE = 1 << 21
"""Size of a block up to which its decomposition is exact; a randomized one is faster above."""

MIN_SINGULAR_VALUE = 1e-5
"""Singular values below this part of the largest are rounding."""

MAX_SIZE = 1e75
"""Size of a number whose fourth power is finite."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """Brings numbers into units of their standard deviation about the mean; NaN stays NaN.

    `names` are the columns of the data frame that was learned from, if it was one.
    """

    means: Floats
    scales: Floats
    names: tuple[str, ...] = ()

    @classmethod
    def learn(cls, table: Any) -> Encoder:
        """Learn means and standard deviations."""
        F = _numbers(table)
        names = tuple(map(str, read_frame(table).columns)) if is_frame(table) else ()
        known = np.ma.masked_invalid(F)
        means = np.ma.filled(known.mean(axis=0), 0.0)
        scales = np.ma.filled(known.std(axis=0), 1.0)
        return cls(means, np.where(scales > 0, scales, 1.0), names)

    def encode(self, table: Any) -> Floats:
        """Return (rows, numbers), NaN where missing; columns of data frames go by their names."""
        if self.names and is_frame(table):
            columns = {str(k): v for k, v in read_frame(table).columns.items()}
            if set(columns) != set(self.names):
                raise InputError(
                    f"features must have the columns of fit, {', '.join(self.names)}, got "
                    f"{', '.join(columns)}"
                )
            table = np.column_stack([columns[name] for name in self.names])
        F = _numbers(table)
        if F.shape[1] != len(self.means):
            raise InputError(
                f"features must have the {len(self.means)} columns of fit, got {F.shape[1]}"
            )
        return np.asarray((F - self.means) / self.scales)


def _numbers(table: Any) -> Floats:
    """Return a table of features as numbers, (rows, numbers), NaN where missing."""
    given = table.toarray() if sparse.issparse(table) else table
    try:
        numbers = np.atleast_2d(plain_array("features", given))
        if np.iscomplexobj(numbers):
            raise TypeError
        with np.errstate(over="ignore"):
            rows: Floats = numbers.astype(float)
    except (TypeError, ValueError):
        raise InputTypeError(
            "features must be real numbers; encode categories first, for example with "
            "scikit-learn's OneHotEncoder"
        ) from None
    values = rows[~np.isnan(rows)]
    if rows.ndim != 2 or not rows.size or not np.all(np.abs(values) < MAX_SIZE):
        raise InputError(
            "features must be a two-dimensional array, a sparse matrix or a data frame of finite "
            f"real numbers below {MAX_SIZE:g} (NaN where missing), got shape {rows.shape}"
        )
    return rows


def align_features(
    entries: Entries, tables: Sequence[Any], *, allowed: bool
) -> tuple[Entries, tuple[Any, Any], tuple[Encoder | None, Encoder | None]]:
    """Encode tables of the rows' and of the columns' features, in the order of the entries.

    A table has a row for each index, or comes as a pair (identifiers, table), or as a data frame
    whose index holds them. Rows that the entries do not have make the matrix larger.
    """
    if not allowed and any(table is not None for table in tables):
        raise InputError('row_features and col_features need drop_prob="learn"')
    numbers: list[Any] = [None, None]
    encoders: list[Encoder | None] = [None, None]
    for side, table in enumerate(tables):
        if table is None:
            continue
        name = ("row_features", "col_features")[side]
        ids, table = _split_identifiers(name, table)
        encoder = Encoder.learn(table)
        encoded = encoder.encode(table)
        order, entries = _find_rows(name, ids, entries, side, encoded.shape[0])
        encoders[side] = encoder
        numbers[side] = GivenFeatures.of(encoded, order)
    return entries, (numbers[0], numbers[1]), (encoders[0], encoders[1])


def _split_identifiers(name: str, table: Any) -> tuple[Array | None, Any]:
    """Return the identifiers of a table's rows, None where they are indices, and the table."""
    if isinstance(table, tuple) and len(table) == 2:
        return as_identifiers(f"identifiers of {name}", table[0]), table[1]
    index = read_frame(table).index if is_frame(table) else None
    if index is None:
        return None, table
    ids = as_identifiers(f"the index of {name}", np.asarray(index))
    counts_up = ids.dtype.kind == "i" and np.array_equal(ids, np.arange(len(ids)))
    return (None if counts_up else ids), table


def _find_rows(
    name: str, ids: Array | None, entries: Entries, side: int, count: int
) -> tuple[Array, Entries]:
    """Return which row of the table each row of a side is (-1 for none), and entries with all."""
    size = entries.shape[side]
    id_field = ("row_ids", "col_ids")[side]
    known = getattr(entries, id_field)
    more: dict[str, Any] = {}
    if ids is not None and len(ids) != count:
        raise InputError(f"{name} has {count} rows and {len(ids)} identifiers")
    if known is None:
        if ids is None and count < size:
            raise InputError(
                f"{name} must have a row for each of {size} indices, got {count}"
            )
        at = (
            np.arange(count) if ids is None else as_index(f"identifiers of {name}", ids)
        )
        size = max(size, int(at.max(initial=-1)) + 1)
    elif ids is None:
        raise InputError(
            f"entries have identifiers, so {name} must be a pair (identifiers, table), or a data "
            "frame whose index holds them"
        )
    else:
        at, all_ids = IdentifierIndex(name, size, known).extend(ids)
        size = len(all_ids)
        more[id_field] = all_ids
    if len(np.unique(at)) < len(at):
        raise InputError(f"{name} must have different identifiers")
    order = np.full(size, UNKNOWN)
    order[at] = np.arange(count)
    m, n = entries.shape
    shape = (size, n) if side == 0 else (m, size)
    return order, replace(entries, shape=shape, truth=None, **more)


class GivenFeatures(NamedTuple):
    """Encoded features of a side's rows (0 where missing), and which rows have any."""

    numbers: Any
    known: Bools

    @classmethod
    def of(cls, numbers: Any, order: Array) -> GivenFeatures:
        """Take row order[a] of the numbers for row a; UNKNOWN is a row without features."""
        known = order != UNKNOWN
        found = np.where(known[:, None], numbers[order], np.nan)
        known = np.asarray(~np.isnan(found).all(axis=1))
        return cls(np.nan_to_num(found), known)


@dataclass(frozen=True, eq=False)
class Directions:
    """R of each block, (features, directions), and the law of the scores of rows with entries.

    What is not known of a row's scores has this mean and covariance.
    """

    parts: dict[str, Array]
    mean: Floats
    covariance: Floats

    @cached_property
    def members(self) -> Floats:
        """Whether score i belongs to block j, (blocks, scores)."""
        sizes = [part.shape[1] for part in self.parts.values()]
        return np.repeat(np.eye(len(sizes)), sizes, axis=1)

    def unknown(self, names: Sequence[str]) -> Floats:
        """Return the covariance of scores of which only these blocks are not known."""
        found = np.zeros_like(self.covariance)
        for a in names:
            for b in names:
                at = (self.block(a), self.block(b))
                found[at] = self.covariance[at]
        return found

    def block(self, name: str) -> slice:
        """Return where the scores of a block stand."""
        start = 0
        for other, part in self.parts.items():
            if other == name:
                return slice(start, start + part.shape[1])
            start += part.shape[1]
        return slice(start, start)


@dataclass(frozen=True, eq=False)
class Features:
    """Scores of every row of a side, and over those with entries K = A'A and A'1.

    A row without given features has the mean scores there.
    """

    directions: Directions
    scores: Array
    active: Bools
    has_given: Bools
    K: Floats
    ones: Floats

    @classmethod
    def build(
        cls, blocks: Mapping[str, GivenFeatures], active: Bools, dtype: Any, seed: int
    ) -> Features:
        """Reduce blocks of features, (count, features) each, over the rows that are active."""
        parts = {}
        scores = [np.zeros((len(active), 0))]
        complete = active
        has_given = np.ones(len(active), dtype=bool)
        for name, (F, known) in blocks.items():
            most = MAX_DIRECTIONS
            if name == MISSINGNESS:
                most = int(MAX_DIRECTION_SHARE * np.count_nonzero(active))
            R = leading_directions(F[active & known], most, seed).astype(dtype)
            if not R.shape[1]:
                continue
            parts[name] = R
            A = np.asarray(F @ R).astype(np.float64)
            A[~known] = A[active & known].mean(axis=0)
            scores.append(A)
            complete = complete & known
            if name == GIVEN:
                has_given = known
        A = np.concatenate(scores, axis=1)
        count = max(np.count_nonzero(complete), 1)
        mean = A[active].sum(axis=0) / max(np.count_nonzero(active), 1)
        deviations = A[complete] - mean
        directions = Directions(parts, mean, deviations.T @ deviations / count)
        entered = A[active].astype(dtype).astype(np.float64)
        return cls(
            directions,
            A.astype(dtype),
            active,
            has_given,
            entered.T @ entered,
            entered.sum(axis=0),
        )

    def without(self) -> Features:
        """Return the same rows without features."""
        return Features.build({}, self.active, self.scores.dtype, 0)

    @property
    def given(self) -> Array:
        """Scores of the given features alone, NaN for rows without any."""
        found = self.scores[:, self.directions.block(GIVEN)]
        return np.where(self.has_given[:, None], found, np.nan)


NO_FEATURES = Features.build({}, np.zeros(0, dtype=bool), np.float64, 0)


def observed_matrix(group: Grouped, dtype: Any) -> Any:
    """Return the sparse matrix of a side's observed entries, rows divided by sqrt(their count)."""
    weights = 1 / np.sqrt(np.maximum(group.counts, 1))
    values = weights[group.keys].astype(dtype)
    shape = (len(group.counts), group.n_others)
    return sparse.csr_array((values, (group.keys, group.others)), shape=shape)


def leading_directions(F: Any, most: int, seed: int) -> Floats:
    """Return the leading right singular vectors of F, (features, directions)."""
    rank = min(MAX_DIRECTIONS, most, *F.shape)
    if F.shape[0] * F.shape[1] <= MAX_DENSE_SIZE or rank < MAX_DIRECTIONS:
        dense = F.toarray() if sparse.issparse(F) else np.asarray(F)
        _, values, R = np.linalg.svd(dense.astype(np.float64), full_matrices=False)
    else:
        from sklearn.utils.extmath import randomized_svd

        _, values, R = randomized_svd(F, rank, n_iter=3, random_state=seed)
    keep = values[:rank] > MIN_SINGULAR_VALUE * values.max(initial=1e-300)
    return np.asarray(R[:rank][keep].T)


def both_features(
    sides: Sequence[Grouped],
    given: Sequence[Any],
    missingness: bool,
    dtype: Any,
    seed: int,
) -> tuple[Features, Features]:
    """Return the features of both sides."""
    found = []
    for group, table in zip(sides, given, strict=True):
        active = group.counts > 0
        blocks = {}
        if missingness:
            blocks[MISSINGNESS] = GivenFeatures(observed_matrix(group, dtype), active)
        if table is not None:
            blocks[GIVEN] = table
        found.append(Features.build(blocks, active, dtype, seed))
    return found[0], found[1]
