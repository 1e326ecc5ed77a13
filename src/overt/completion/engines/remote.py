"""What a worker of a cluster does: it puts together what all need, and runs a kernel on a share."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from overt._types import Array


class Work(NamedTuple):
    """What a half sweep asks of a worker beside entries and the other side's rows."""

    kernel: tuple[str, str]
    token: str
    like: Any
    size: int | None


_lock = threading.Lock()
_whole: dict[str, Any] = {}


def _assembled(token: str, held: Any) -> Any:
    """Return what was sent in pieces as it was, put together once on each worker."""
    with _lock:
        if token not in _whole:
            small, large = held
            groups = list(small)
            for (group, number), shape, dtype, pieces in large:
                array = np.zeros(shape, dtype)
                for rows, field, piece in pieces:
                    if field is None:
                        array[rows] = piece
                    else:
                        array[piece[0]] = piece[1][field]
                name = groups[group]._fields[number]
                groups[group] = groups[group]._replace(**{name: array})
            _whole.clear()
            _whole[token] = groups
        return _whole[token]


def update(
    work: Work, share: tuple[Array, Array, Any], by_row: list[Array], held: Any
) -> tuple[Array, Any, Array | None]:
    """Run a kernel on one share, on a worker; return which rows, those, the sums of its chunks."""
    (module, name), (places, cuts, entries) = work.kernel, share
    shared, rows = _assembled(work.token, held), np.arange(cuts[-1])
    out = type(work.like)(*(np.zeros((len(rows), width), dtype) for width, dtype in work.like))
    sums = None if work.size is None else np.zeros((len(cuts) - 1, work.size))
    more = () if sums is None else (cuts, sums)
    getattr(import_module(module), name)(rows, entries, *shared, *by_row, out, *more)
    return places, out, sums
