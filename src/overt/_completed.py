"""A completed matrix that is computed when it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from overt._types import Array, Floats, Ints

BLOCK = 1 << 22
"""Entries of a completed matrix that are computed at once."""


class Completed:
    """A dense matrix computed when it is read: iterate over blocks, index rows, or np.asarray."""

    def __init__(self, block: Callable[[Ints], Floats], rows: Ints, n_cols: int) -> None:
        self._block, self._rows, self._n_cols = block, rows, n_cols

    @property
    def shape(self) -> tuple[int, int]:
        """Rows asked for, and columns."""
        return len(self._rows), self._n_cols

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Floats]:
        step = max(1, BLOCK // self._n_cols)
        for start in range(0, len(self._rows), step):
            yield self._block(self._rows[start : start + step])

    def __getitem__(self, chosen: Any) -> Floats:
        rows = self._rows[chosen]
        block = self._block(np.atleast_1d(rows))
        return block[0] if np.ndim(rows) == 0 else block

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        blocks = [np.zeros((0, self._n_cols)), *self]
        return np.concatenate(blocks).astype(dtype or np.float64, copy=False)
