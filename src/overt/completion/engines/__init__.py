"""Who runs the row kernels: threads of this process, or the workers of a Dask cluster.

A kernel is called as kernel(rows, entries, *shared, *by_row, out, [cuts, sums]) on chunks of rows
that do not depend on who runs them, so results do not either.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from overt._parallel import checked_engine, thread_count

if TYPE_CHECKING:
    from overt.completion.forms.problem import Layout


class Engine(Protocol):
    """Runs a kernel over all rows of one side; `faults` say what was lost and done again."""

    @property
    def faults(self) -> Sequence[str]:
        """Describe each loss, needed or not."""

    def run(
        self, kernel: Any, layout: Layout, shared: Any, by_row: Any, out: Any, sums: Any = None
    ) -> None:
        """Update the rows of the arrays in `out`, a named tuple.

        `shared` is needed for every row; arrays in `by_row` and `out` have a row for each row of
        the side, and `sums`, where the kernel sums something, has one for each chunk.
        """


def make_engine(name: str, n_jobs: int | None) -> AbstractContextManager[Engine]:
    """Return the engine with this name, ready between `with` and its end."""
    from overt.completion.engines.dask import dask_engine
    from overt.completion.engines.threads import thread_engine

    engine = checked_engine(name)
    count = thread_count(n_jobs)
    return thread_engine(count) if engine == "local" else dask_engine(engine, count)
