"""Memory-mapped arrays in temporary files, deleted when the last reference is dropped."""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from overt._check import Array, InputError

SLICE = 1 << 21
"""Entries that are looked at together."""

LEAST = 100_000_000
"""Bytes below which nothing can be read."""


def n_bytes(limit: Any) -> int | None:
    """Return the bytes that a limit of memory stands for, such as 4e9, "4GB" or "4GiB"."""
    if limit is None:
        return None
    number = r"([0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?)"
    found = re.fullmatch(number + r"\s*([kmgt]?)i?b?", str(limit).strip().lower())
    size = 0.0
    if found:
        power = "kmgt".find(found[2] or "?") + 1
        size = float(found[1]) * 1000.0**power
    if not LEAST <= size < np.inf:
        raise InputError(
            f'memory_limit must be at least 100 MB, as bytes or as in "4GB", got {limit!r}'
        )
    return int(size)


def room(count: int, dtype: Any) -> Array:
    """Return an array on disk, in the folder for temporary files."""
    count = max(size := count, 1)
    with tempfile.TemporaryFile(prefix="overt-") as file:
        if hasattr(
            os, "posix_fallocate"
        ):  # where a disk is full later, the process just ends
            try:
                os.posix_fallocate(file.fileno(), 0, count * np.dtype(dtype).itemsize)
            except OSError as error:
                why = (
                    f"{error.strerror} for temporary files; TMPDIR names another folder"
                )
                raise OSError(error.errno, why, tempfile.gettempdir()) from None
        return np.asarray(np.memmap(file, dtype=dtype, mode="w+", shape=(count,)))[
            :size
        ]


def allocate(count: int, dtype: Any, limit: int | None) -> Array:
    """Return an array, on disk if there is a limit of memory."""
    return room(count, dtype) if limit else np.empty(count, dtype)


def slices(count: int, *arrays: Array) -> Iterator[slice]:
    """Yield slices that cover `count` entries; arrays that are mapped leave memory after each."""
    for start in range(0, count, SLICE):
        yield slice(start, min(count, start + SLICE))
        forget(*arrays)


def forget(*arrays: Any) -> None:
    """Give back the memory of arrays that are mapped; they are read again when asked for."""
    for array in arrays:
        base = array
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            base.madvise(mmap.MADV_DONTNEED)


def standardized(
    values: Array, center: float, scale: float, dtype: Any, limit: int | None
) -> Array:
    """(values - center) / scale, on disk if there is a limit."""
    out = allocate(len(values), dtype, limit)
    for some in slices(len(values), values, out):
        out[some] = (values[some] - center) / scale
    return out


def moments(values: Array) -> tuple[float, float]:
    """Return mean and standard deviation."""
    count = len(values)
    mean = sum(values[some].sum() for some in slices(count, values)) / count
    squares = (np.sum((values[some] - mean) ** 2) for some in slices(count, values))
    return float(mean), float(np.sqrt(sum(squares) / count))


def sort_by_chunk(
    keys: Array,
    others: Array,
    values: Array,
    chunk: Array,
    slot: Array,
    limit: int | None,
) -> tuple[Array, Array, Array, Array]:
    """Sort triplets by chunk[key], then by other, keeping the order of equals.

    Returns where chunks start, slot[key], others and values. Chunks are filled slice by slice and
    then sorted one by one, so that only a slice or a chunk is in memory where arrays are on disk.
    """
    count = len(keys)
    n_chunks = int(chunk.max()) + 1
    sizes = np.zeros(n_chunks, np.int64)
    for some in slices(count, keys):
        sizes += np.bincount(chunk[keys[some]], minlength=n_chunks)
    starts = np.append(0, np.cumsum(sizes))
    kinds = (slot.dtype, np.dtype(np.int32), values.dtype)
    out = [allocate(count, kind, limit) for kind in kinds]
    at = starts[:-1].copy()
    for some in slices(count, keys, others, values, *out):
        part = chunk[keys[some]]
        order = np.argsort(part, kind="stable")
        slots = slot[keys[some]]
        given = (slots[order], others[some][order], values[some][order])
        cuts = np.searchsorted(part[order], np.arange(n_chunks + 1))
        for c, size in enumerate(np.diff(cuts)):
            for array, found in zip(out, given, strict=True):
                array[at[c] : at[c] + size] = found[cuts[c] : cuts[c + 1]]
            at[c] += size
    for start, end in pairwise(starts):
        order = np.argsort(out[1][start:end], kind="stable")
        for array in out:
            array[start:end] = array[start:end][order]
        forget(*out)
    return starts, out[0], out[1], out[2]
