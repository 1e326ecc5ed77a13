"""Memory-mapped arrays in temporary files, deleted when the last reference is dropped."""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from overt._check import Array, InputError

SLICE = 1 << 21
"""Entries that are looked at together."""

UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
UNITS |= {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}

LEAST = 100_000_000
"""Bytes below which nothing can be read."""


def n_bytes(limit: Any) -> int | None:
    """Return the bytes that a limit of memory stands for, such as 4e9, "4GB" or "4GiB"."""
    if limit is None:
        return None
    found = re.fullmatch(
        r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?i?)b?\s*", str(limit).lower()
    )
    try:
        size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size < LEAST:
        raise InputError(
            f'memory_limit must be at least 100 MB, as bytes or as in "4GB", got {limit!r}'
        )
    return size


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


def standardized(values: Array, center: float, scale: float, dtype: Any) -> Array:
    """(values - center) / scale, on disk."""
    out = room(len(values), dtype)
    for some in slices(len(values), values, out):
        out[some] = (values[some] - center) / scale
    return out


def moments(values: Array) -> tuple[float, float]:
    """Return mean and standard deviation."""
    mean = sum(float(values[some].sum()) for some in slices(len(values), values)) / len(
        values
    )
    square = sum(
        float(((values[some] - mean) ** 2).sum())
        for some in slices(len(values), values)
    )
    return mean, float(np.sqrt(square / len(values)))


def arranged(
    keys: Array,
    others: Array,
    values: Array,
    bucket: Array,
    n_buckets: int,
) -> tuple[Array, Array, Array, Array]:
    """Sort triplets by bucket[key], then by other, keeping the order of equals.

    Returns where buckets start, keys, others and values, the last three on disk. Buckets are
    filled slice by slice and then sorted one by one, so that only a slice or a bucket is in memory.
    """
    n, counts, given = len(keys), np.zeros(n_buckets, np.int64), (keys, others, values)
    for some in slices(n, *given):
        counts += np.bincount(bucket[keys[some]], minlength=n_buckets)
    starts = np.concatenate([[0], np.cumsum(counts)])
    out = room(n, np.int32), room(n, np.int32), room(n, values.dtype)
    at = starts[:-1].copy()
    for some in slices(n, *given, *out):
        part = bucket[keys[some]]
        order, sizes = (
            np.argsort(part, kind="stable"),
            np.bincount(part, minlength=n_buckets),
        )
        sorted_parts = [array[some][order] for array in given]
        ends = np.cumsum(sizes)
        for b in np.flatnonzero(sizes).tolist():
            for array, found in zip(out, sorted_parts, strict=True):
                array[at[b] : at[b] + sizes[b]] = found[ends[b] - sizes[b] : ends[b]]
        at += sizes
    for b in range(n_buckets):
        here = slice(starts[b], starts[b + 1])
        order = np.argsort(out[1][here], kind="stable")
        for array in out:
            array[here] = array[here][order]
        forget(*out)
    return starts, *out
