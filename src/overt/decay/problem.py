"""The matrix completion problem: which entries of a matrix are seen, and what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from overt._check import InputError, InputTypeError, matrix, number
from overt._types import Floats, Ints


@dataclass(frozen=True, repr=False)
class Observed:
    """Observed entries (rows[n], cols[n]) of a matrix, with their values.

    C(A) = (1 / 2N) sum_n (A[rows[n], cols[n]] - values[n])^2  ([One-way jumps] 2.1).

    Parameters
    ----------
    rows, cols, values
        One entry each; an entry may be observed more than once and then counts as often.
    shape
        Of the matrix: (outputs, inputs).
    truth
        The whole matrix, if it is known; it serves to grade (`test_error`), never to fit.
    """

    rows: Ints
    cols: Ints
    values: Floats
    shape: tuple[int, int]
    truth: Floats | None = None

    def __post_init__(self) -> None:
        shape = tuple(int(n) for n in self.shape)
        if len(shape) != 2 or min(shape) < 1:
            raise InputError(f"shape must be two positive whole numbers, got {self.shape!r}")
        rows, cols = _indices("rows", self.rows, shape[0]), _indices("cols", self.cols, shape[1])
        try:
            values = np.asarray(self.values, dtype=float)
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"values must hold numbers only: {error}") from None
        if not len(rows) == len(cols) == values.size or values.ndim != 1:
            raise InputError(
                "rows, cols and values must be lists of the same length, got "
                f"{len(rows)}, {len(cols)} and shape {values.shape}"
            )
        if values.size == 0:
            raise InputError("there must be at least one observed entry, got none")
        if not np.all(np.isfinite(values)):
            raise InputError("values must be finite, got NaN or infinite value(s)")
        truth = None if self.truth is None else np.array(matrix("truth", self.truth), dtype=float)
        if truth is not None and truth.shape != shape:
            raise InputError(f"truth must have the shape {shape}, got {truth.shape}")
        for name, value in (
            ("rows", rows),
            ("cols", cols),
            ("values", values.copy()),
            ("shape", shape),
            ("truth", truth),
        ):
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(self, name, value)

    @classmethod
    def two_by_two(cls, epsilon: float) -> Self:
        """Return [[1, *], [epsilon, 1]], whose rank-1 completion is 1 / epsilon."""
        epsilon = number("epsilon", epsilon, exclusive=True)
        truth = np.array([[1.0, 1 / epsilon], [epsilon, 1.0]])
        return cls(
            np.array([0, 1, 1]), np.array([0, 0, 1]), truth[[0, 1, 1], [0, 0, 1]], (2, 2), truth
        )

    @classmethod
    def sample(cls, truth: Any, count: int, seed: int | np.random.Generator | None = 0) -> Self:
        """Observe `count` different entries of a known matrix, drawn uniformly."""
        from overt._check import generator, whole

        truth = np.asarray(matrix("truth", truth), dtype=float)
        count = whole("count", count)
        if count > truth.size:
            raise InputError(f"count must be at most {truth.size} (all entries), got {count}")
        chosen = generator(seed).choice(truth.size, size=count, replace=False)
        rows, cols = np.divmod(np.sort(chosen), truth.shape[1])
        return cls(rows, cols, truth[rows, cols], truth.shape, truth)

    @classmethod
    def from_matrix(cls, A: Any) -> Self:
        """Take a dense matrix in which NaN marks what is missing."""
        A = np.asarray(A, dtype=float)
        if A.ndim != 2:
            raise InputError(f"A must have 2 dimensions, got shape {A.shape}")
        rows, cols = np.nonzero(~np.isnan(A))
        return cls(rows, cols, A[rows, cols], A.shape)

    def __repr__(self) -> str:
        return f"Observed({len(self)} of {self.shape[0]} x {self.shape[1]} entries)"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def missing(self) -> tuple[Ints, Ints]:
        """Rows and columns of the entries that are never observed, row by row."""
        seen = np.zeros(self.shape, dtype=bool)
        seen[self.rows, self.cols] = True
        rows, cols = np.nonzero(~seen)
        return rows, cols

    def residuals(self, A: Floats) -> Floats:
        """A[rows, cols] - values."""
        return A[self.rows, self.cols] - self.values

    def cost(self, A: Floats) -> float:
        """C(A) = (1 / 2N) sum of squared residuals."""
        return 0.5 * self.train_error(A)

    def train_error(self, A: Floats) -> float:
        """Mean squared residual over the observed entries, 2 C(A)."""
        return float(np.mean(self.residuals(A) ** 2))

    def gradient(self, A: Floats) -> Floats:
        """Return the derivative of C by the matrix."""
        flat = self.rows * self.shape[1] + self.cols
        size = self.shape[0] * self.shape[1]
        sums = np.bincount(flat, self.residuals(A) / len(self), minlength=size)
        return np.asarray(sums.reshape(self.shape), dtype=np.float64)

    def test_error(self, A: Floats) -> float:
        """Squared error on the missing entries divided by that of putting zeros there.

        NaN if the truth is not known or nothing is missing.
        """
        rows, cols = self.missing
        if self.truth is None or len(rows) == 0:
            return float("nan")
        expected = self.truth[rows, cols]
        return float(np.sum((A[rows, cols] - expected) ** 2) / np.sum(expected**2))


def _indices(name: str, value: Any, size: int) -> Ints:
    value = np.asarray(value)
    if value.ndim != 1 or not (np.issubdtype(value.dtype, np.integer) or value.size == 0):
        raise InputTypeError(
            f"{name} must be a list of whole numbers, got {value.dtype} of shape {value.shape}"
        )
    if value.size and (value.min() < 0 or value.max() >= size):
        raise InputError(
            f"{name} must lie in 0..{size - 1}, got values from {value.min()} to {value.max()}"
        )
    return value.astype(np.int64)
