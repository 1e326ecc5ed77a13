"""How far rows may be from their means: full covariances, variances, or the noise of dropout.

Forms sweep with these covariances, models predict with them, storage saves them. All three have

    name, learned                          as users see it; whether rows have S and priors
    product_variance(means, rows, cols)    Var(u_a . v_b) for pairs (a, b)
    total(means, side, rows, weights)      weighted sum of S over some rows of a side
    traces(means, side, rows, M)           tr(S M) for each of some rows of a side
    packaged(columns, scale, unseen)       in units of the values, a row never seen at the end
    arrays(), from_arrays(arrays)          the arrays to store

with S the covariance of a row about its mean; side 0 are the rows and side 1 the columns. Those
that are learned also say

    to_row(S), to_square(row)              S as a row of a table, and back
    add_means(side, W, sign)               add (1) or take away (-1) what sweeps keep of w w'
    sweep(engine, group, shared, by_row, out)    update one side's rows; sum of w w' + S over them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from overt._check import InputError
from overt._types import Array, Floats, Ints
from overt.completion.engines import Engine
from overt.completion.forms.problem import Columns, CompletionProblem, Grouped
from overt.completion.kernels import Learned, dots, full, gram
from overt.completion.kernels.full import pack, unpack

FULL_BYTES = 2 << 30
"""Full row covariances are used where their tables fit into this many bytes."""

Means = Sequence[Array]


@dataclass(frozen=True, eq=False)
class DropoutSpread:
    """The noise of dropout; `strength` is lam of each column."""

    strength: Floats
    name: ClassVar[str] = "dropout"
    learned: ClassVar[bool] = False

    @classmethod
    def start(cls, columns: Columns, drop_prob: float | Floats) -> Self:
        """lam = drop_prob / (1 - drop_prob) for factors, 0 for biases."""
        strength = np.zeros(columns.width)
        probs = np.asarray(drop_prob, dtype=float)
        strength[: columns.n_factors] = probs / (1 - probs)
        return cls(strength)

    def product_variance(self, means: Means, rows: Array, cols: Array) -> Floats:
        """sum_i lam_i U_ai^2 V_bi^2."""
        (U, V), out = means, np.empty(len(rows))
        dots(rows, cols, U * U * self.strength, V * V, out)
        return out

    def total(self, means: Means, side: int, rows: Array, weights: Floats) -> Floats:
        """lam diag(sum w o w)."""
        return np.diag(self.strength * (weights @ means[side][rows].astype(np.float64) ** 2))

    def traces(self, means: Means, side: int, rows: Array, M: Floats) -> Floats:
        """sum_i lam_i w_i^2 M_ii."""
        return (means[side][rows].astype(np.float64) ** 2) @ (self.strength * np.diag(M))

    def packaged(self, columns: Columns, scale: float, unseen: Sequence[Floats]) -> Self:
        """Return the same: lam has no unit."""
        return self

    def arrays(self) -> dict[str, Array]:
        """Return lam."""
        return {"strength": self.strength}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Take lam."""
        return cls(arrays["strength"])


@dataclass(frozen=True, eq=False)
class _LearnedSpread:
    """Learned covariances: one table for each side, with a row for each row."""

    tables: list[Array]
    learned: ClassVar[bool] = True
    to_row: ClassVar[staticmethod[[Array], Floats]]
    to_square: ClassVar[staticmethod[[Array], Floats]]

    @classmethod
    def start(cls, problem: CompletionProblem) -> Self:
        """Return covariances of zero."""
        size = len(cls.to_row(np.eye(problem.columns.width)))
        return cls([np.zeros((count, size), problem.dtype) for count in problem.shape])

    def total(self, means: Means, side: int, rows: Array, weights: Floats) -> Floats:
        """Weighted sum of the table's rows."""
        return self.to_square(weights @ self.tables[side][rows])

    def packaged(self, columns: Columns, scale: float, unseen: Sequence[Floats]) -> Self:
        """Return tables in the units of the values, and the covariance of a row never seen."""
        tables = []
        for table, S, c in zip(self.tables, unseen, columns.units(scale), strict=True):
            tables.append(np.empty((len(table) + 1, table.shape[1]), table.dtype))
            np.multiply(table, self.to_row(np.outer(c, c)).astype(table.dtype), tables[-1][:-1])
            tables[-1][-1] = self.to_row(S)
        return type(self)(tables)

    def taken(self, picks: Sequence[Ints], dtype: Any) -> Self:
        """Return those rows of the tables."""
        pairs = zip(self.tables, picks, strict=True)
        return type(self)([table[pick].astype(dtype) for table, pick in pairs])

    def arrays(self) -> dict[str, Array]:
        """Return the tables."""
        return {f"table_{side}": table for side, table in enumerate(self.tables)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Take the tables."""
        return cls([arrays["table_0"], arrays["table_1"]])


class FullSpread(_LearnedSpread):
    """A packed covariance for each row; sweeps keep second moments w w' + S."""

    name = "full"
    to_row = staticmethod(pack)
    to_square = staticmethod(unpack)

    def product_variance(self, means: Means, rows: Array, cols: Array) -> Floats:
        """u'S_v u + v'S_u v + tr(S_u S_v)."""
        out = np.empty(len(rows))
        full.dot_variances(rows, cols, *means, *self.tables, out)
        return out

    def traces(self, means: Means, side: int, rows: Array, M: Floats) -> Floats:
        """Sum of S_ij M_ij, of which the packed half counts twice off the diagonal."""
        return self.tables[side][rows] @ pack(2 * M - np.diag(np.diag(M)))

    def add_means(self, side: int, W: Array, sign: int = 1) -> None:
        """Add sign w w', column by column, which needs little memory."""
        table = self.tables[side]
        for t, (i, j) in enumerate(zip(*np.tril_indices(W.shape[1]), strict=True)):
            table[:, t] += sign * (W[:, i] * W[:, j])

    def sweep(
        self, engine: Engine, group: Grouped, shared: Any, by_row: Any, out: Learned
    ) -> Floats:
        """Update rows; the kernel sums their moments in the order of the chunks."""
        moments = np.zeros((group.blocked.n_chunks, out.spread.shape[1]))
        engine.run(full.learn_rows, group.blocked, shared, by_row, out, moments)
        return self.to_square(moments.sum(axis=0))


class DiagonalSpread(_LearnedSpread):
    """A variance for each column of each row."""

    name = "diagonal"
    to_square = staticmethod(np.diag)

    @staticmethod
    def to_row(S: Array) -> Floats:
        """Return the variances of covariances (..., width, width)."""
        return np.diagonal(S, axis1=-2, axis2=-1)

    def product_variance(self, means: Means, rows: Array, cols: Array) -> Floats:
        """sum_i (U_i^2 + s_i)(V_i^2 + t_i) - U_i^2 V_i^2."""
        (U, V), (SU, SV) = means, self.tables
        out = np.empty(len(rows))
        exact = np.empty(len(rows))
        dots(rows, cols, U * U + SU, V * V + SV, out)
        dots(rows, cols, U * U, V * V, exact)
        return out - exact

    def traces(self, means: Means, side: int, rows: Array, M: Floats) -> Floats:
        """sum_i s_i M_ii."""
        return self.tables[side][rows] @ np.diag(M)

    def add_means(self, side: int, W: Array, sign: int = 1) -> None:
        """Add nothing: sweeps keep variances."""

    def sweep(
        self, engine: Engine, group: Grouped, shared: Any, by_row: Any, out: Learned
    ) -> Floats:
        """Update rows, then sum their moments."""
        engine.run(gram.learn_variances, group.gathered, shared, by_row, out)
        active = group.counts > 0
        W = out.means[active].astype(np.float64)
        return W.T @ W + np.diag(out.spread[active].sum(axis=0, dtype=np.float64))


LearnedSpread = FullSpread | DiagonalSpread
RowSpread = DropoutSpread | LearnedSpread

SPREADS: dict[str, type[RowSpread]] = {
    "full": FullSpread,
    "diagonal": DiagonalSpread,
    "dropout": DropoutSpread,
}


def learned_spread(problem: CompletionProblem) -> type[FullSpread] | type[DiagonalSpread]:
    """Return full covariances where their tables fit into FULL_BYTES, else diagonal ones."""
    full = full_bytes(problem)
    limit = problem.by_row.mapped
    plain = sum(problem.shape) * problem.dtype.itemsize * problem.columns.width
    needed = 2 * (plain + (full if full <= FULL_BYTES else plain))  # a form's and its model's
    if limit and needed > limit:
        raise InputError(
            f"memory_limit must be at least {needed / 1e9:.3g} GB for the factors and covariances "
            f"of {sum(problem.shape):,} rows and columns, got {limit / 1e9:.3g} GB"
        )
    return FullSpread if full <= FULL_BYTES else DiagonalSpread


def full_bytes(problem: CompletionProblem) -> int:
    """Return the size of tables of full covariances."""
    width = problem.columns.width
    return int(sum(problem.shape) * (width * (width + 1) // 2) * problem.dtype.itemsize)


def append(table: Array, row: Floats) -> Array:
    """Return a table with one more row."""
    return np.concatenate([table, row[None].astype(table.dtype)])
