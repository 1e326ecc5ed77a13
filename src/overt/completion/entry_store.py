"""The entries a model was fitted to: in memory, or in files that are read when needed."""

from __future__ import annotations

from functools import cached_property

from overt._types import Array, Floats
from overt.completion.kernels import Csr, group
from overt.completion.storage.folders import FiledEntries
from overt.entries import Entries


class EntryStore:
    """Fitted entries, and those of one row at the cost of that row."""

    def __init__(self, source: Entries | FiledEntries) -> None:
        self.source = source
        self.shape = source.shape
        self.row_ids = source.row_ids
        self.col_ids = source.col_ids

    def __len__(self) -> int:
        return len(self.source)

    @property
    def entries(self) -> Entries:
        """All entries."""
        return self.source if isinstance(self.source, Entries) else self.source.entries

    @cached_property
    def _by_row(self) -> Csr:
        entries = self.entries
        return Csr(*group(entries.rows, entries.cols, entries.values, self.shape[0]))

    def of_row(self, row: int) -> tuple[Array, Floats]:
        """Return the columns and values observed in a row."""
        some = slice(self._by_row.indptr[row], self._by_row.indptr[row + 1])
        return self._by_row.indices[some], self._by_row.values[some]
