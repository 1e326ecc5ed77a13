"""The parts of observed entries, checked at the door: values, times, shape."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np

from overt._check import InputError, InputTypeError, plain_array, whole
from overt._types import Array, Floats

SPARSEST, ROOMY = 1000, 10_000_000
"""Rows (or columns) for each entry, and in all, beyond which indices must be identifiers."""

HUGE = 1e75
"""Size of values beyond which fourth powers leave the range of floating point."""


def checked_values(value: Any) -> Floats:
    """Return finite numbers, of any library or as text."""
    values = plain_array("values", value)
    if values.dtype.kind in "OUT":  # numbers of any library, or as text
        with suppress(TypeError, ValueError):
            values = values.astype(np.float64)
    if values.ndim != 1 or not (np.issubdtype(values.dtype, np.number) or values.dtype == bool):
        raise InputTypeError(
            "values must be a one-dimensional array of numbers, got shape "
            f"{values.shape}, {values.dtype}{_not_numbers(values)}"
        )
    if np.iscomplexobj(values):
        raise InputTypeError("values must be real numbers. Complex data not supported")
    with np.errstate(over="ignore"):
        values = values.astype(np.float64, copy=False)
    bad = np.count_nonzero(~np.isfinite(values))
    if bad:
        raise InputError(f"values must be finite, got {bad} NaN or infinite value(s)")
    if len(values) and max(values.max(), -values.min()) > HUGE:
        raise InputError(
            f"values must be at most {HUGE:g} in size, as their powers are summed, got "
            f"{max(values.max(), -values.min()):g}; divide them by a constant"
        )
    return values


def _not_numbers(values: Array) -> str:
    """Return the first of some objects that is no number, as a part of a sentence."""
    for x in values.ravel().tolist() if values.dtype.kind in "OUT" else ():
        try:
            float(x)
        except (TypeError, ValueError):
            return f", such as {x!r:.60}"
    return ""


def checked_times(given: Any, count: int) -> Array | None:
    """Return when entries were observed as numbers: those given, or seconds since 1970."""
    times = one_each("times", given, count)
    if times is None:
        return None
    if times.dtype.kind not in "iufM":
        try:
            times = np.array([_moment(t) for t in times.tolist()])
        except (TypeError, ValueError) as error:
            raise InputError(f"times must be numbers or dates ({error})") from None
    if times.dtype.kind in "fM" and np.any(missing := times != times):
        raise InputError(f"times must be told for all entries, got {missing.sum()} missing")
    return times.astype("datetime64[us]").astype(float) / 1e6 if times.dtype.kind == "M" else times


def _moment(when: Any) -> Any:
    """Return a date as datetime64, in universal time where it has a zone."""
    when = datetime.fromisoformat(when) if isinstance(when, str) else when
    if getattr(when, "tzinfo", None) is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    return np.datetime64(when, "us")


def one_each(name: str, given: Any, count: int) -> Array | None:
    """Return an array of `count` things, or None."""
    found = None if given is None else plain_array(name, given)
    if found is not None and found.shape != (count,):
        raise InputError(f"{name} must have shape ({count},), got {found.shape}")
    return found


def checked_shape(given: Any, least: tuple[int, int], count: int) -> tuple[int, int]:
    """Return (rows, columns) of a matrix that holds the entries."""
    if given is None:
        if max(least) > max(SPARSEST * count, ROOMY):
            raise InputError(
                f"rows and cols are indices from 0, and {count} entries would make a matrix of "
                f"{least[0]} x {least[1]}; if they are identifiers, use overt.Entries.from_ids"
            )
        return least
    try:
        m, n = (whole("shape", size) for size in given)
    except Exception as error:
        raise InputError(f"shape must be (rows, columns), got {given!r} ({error})") from None
    if m < least[0] or n < least[1]:
        raise InputError(f"shape must be at least {least} to hold the given indices, got {(m, n)}")
    return m, n
