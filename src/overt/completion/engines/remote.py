"""What a worker of a cluster does: it puts together what all need, and runs a kernel on a share."""

from __future__ import annotations

import sys
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
    again: bool  # whether memory is kept for the next


_lock = threading.Lock()
_whole: dict[str, Any] = {}
_spare: list[Array] = []
_taking = threading.Lock()


def _references(arrays: list[Array]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


UNUSED = _references([np.zeros(1)])[0]
"""References to an array that only the list holds: how they are counted differs by Python."""


def _room(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array in memory that an earlier half sweep had, if nobody reads it any more.

    Pages that are new to a process can cost more than what is computed in them.
    """
    with _taking:
        for base, count in zip(_spare, _references(_spare), strict=True):
            if base.shape == shape and base.dtype == dtype and count == UNUSED:
                return base[:]
        _spare.append(np.zeros(shape, dtype))
        return _spare[-1][:]


def release() -> None:
    """Give back what was kept for the next half sweep."""
    with _lock, _taking:
        _whole.clear()
        _spare.clear()


def _assembled(token: str, held: Any, room: Any) -> Any:
    """Return what was sent in pieces as it was, put together once on each worker."""
    with _lock:
        if token not in _whole:
            small, large = held
            groups = list(small)
            _whole.clear()
            for (group, number), shape, dtype, pieces in large:
                array = room(shape, dtype)
                for rows, field, piece in pieces:
                    if field is None:
                        array[rows] = piece
                    else:
                        array[piece[0]] = piece[1][field]
                name = groups[group]._fields[number]
                groups[group] = groups[group]._replace(**{name: array})
            _whole[token] = groups
        return _whole[token]


def without(result: tuple[Array, Any, Array | None], field: int) -> tuple[Array, Any, Array | None]:
    """Return what a worker returned but for one field, which stays there."""
    places, out, sums = result
    return places, out._replace(**{out._fields[field]: None}), sums


def update(
    work: Work, share: tuple[Array, Array, Any], by_row: list[Array], held: Any
) -> tuple[Array, Any, Array | None]:
    """Run a kernel on one share, on a worker; return which rows, those, the sums of its chunks."""
    (module, name), (places, cuts, entries) = work.kernel, share
    room = _room if work.again else np.zeros
    shared, rows = _assembled(work.token, held, room), np.arange(cuts[-1])
    out = type(work.like)(*(room((len(rows), width), dtype) for width, dtype in work.like))
    for array in out:
        array[:] = 0
    sums = None if work.size is None else np.zeros((len(cuts) - 1, work.size))
    more = () if sums is None else (cuts, sums)
    getattr(import_module(module), name)(rows, entries, *shared, *by_row, out, *more)
    return places, out, sums
