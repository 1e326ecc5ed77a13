"""Batches of a search's points, one after the other here or as tasks of a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from overt._cluster import connected
from overt._mapping import mapped, thread_count
from overt.robust.attacks.points import Found

if TYPE_CHECKING:
    from overt.robust.attacks.search import Search

Work = Callable[["Search", Tensor], None]
"""Improves what is best at some rows of a search."""


def spread(search: Search, work: Work, parts: Sequence[Tensor]) -> Iterator[Tensor]:
    """Call work(search, rows) for all parts of the rows, and yield each when it is done.

    On a cluster a task is a search of its own over the points of a part, which meets what it would
    meet here.
    """
    if search.engine == "local":
        for part in parts:
            work(search, part)
            yield part
        return
    if search.client is None:  # once for all stages
        search.client = search.modes.enter_context(connected(search.engine, thread_count(None)))
        points, workers = sum(map(len, parts)), sum(search.client.nthreads().values())
        if len(parts) < min(workers, points):
            warnings.warn(
                f"{points} points in batches of {search.batch_size} are {len(parts)} task(s) for "
                f"{workers} workers: batch_size={-(-points // workers)} would occupy all",
                stacklevel=2,
            )
    empty = _over(search, _share(search, torch.arange(0, device=search.x.device)))
    empty.modes, empty.client = ExitStack(), None
    tasks = [(_share(search, part),) for part in parts]
    for k, found in mapped(partial(_worked, empty, work), tasks, "dask"):
        search.best.merge(parts[k], found)
        yield parts[k]


def _share(search: Search, rows: Tensor) -> dict[str, Any]:
    """Return what a search knows of some of its points."""
    best = replace(search.best.each(lambda part: part[rows]), gradients=0, queries=0)
    start = None if search.start is None else search.start[rows]
    context = tuple(part[rows.to(part.device)] for part in search.subject.context)
    own = {name: getattr(search, name)[rows] for name in ("x", "y", "aim", "clean")}
    return own | {"best": best, "start": start, "context": context}


def _over(search: Search, share: dict[str, Any]) -> Search:
    """Return the same search over the points of a share."""
    part, context = copy(search), share["context"]
    for name in share.keys() - {"context"}:
        setattr(part, name, share[name])
    part.subject = search.subject.at(part.x, context)
    if search.guide is not None:
        part.guide = replace(search.guide, subject=search.guide.subject.at(part.x, context))
    part.signs = {}
    return part


def _worked(empty: Search, work: Work, share: dict[str, Any]) -> Found:
    """Return what work finds at the points of a share, counted from 0."""
    search = _over(empty, share)
    with search:
        work(search, torch.arange(len(search.x), device=search.x.device))
    return search.best
