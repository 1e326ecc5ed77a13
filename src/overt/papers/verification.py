"""Run the checks of statements: one verdict after another."""

from __future__ import annotations

import math
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from overt._check import InputError, InputTypeError, MissingExtraError
from overt.papers.evidence import Evidence
from overt.papers.records import Item, Residuals, find, items
from overt.results import Result

OPTIONAL = {"torch": "torch", "sympy": "proofs", "flint": "proofs"}
"""Packages that a check may lack, with the extra that installs each."""


@dataclass(frozen=True, repr=False, eq=False)
class Verdict(Result):
    """The outcome of one check.

    `verdict` is "holds", "fails", "no power" (the null passes too), "error" (the check broke), or
    "not run" where an optional package is missing.
    """

    id: str
    source: str
    claim: str
    assumes: str
    correction: str
    how: str
    residual: float | None
    tolerance: float | None
    printed_residual: float | None
    null_residual: float | None
    detail: str
    verdict: str
    seconds: float


def verify(ids: Iterable[str | Item] = (), *, seed: int = 0) -> Iterator[Verdict]:
    """Check the given statements (all, if none is given), one verdict after another.

    The id of an item without a check stands for the statements that decide it.
    """
    if (
        isinstance(ids, str)
        or not isinstance(ids, Iterable)
        or not getattr(ids, "ndim", 1)
    ):
        raise InputTypeError(f"ids must be a list of names of statements, got {ids!r}")
    chosen = [
        found
        for given in ids
        for found in deciding(given if isinstance(given, Item) else find(given))
    ]
    if not chosen:
        known = items().values()
        chosen = [found for found in known if found.check]
    return (_measure(found, seed) for found in chosen)


def deciding(item: Item) -> list[Item]:
    """Return the statements whose checks decide an item: its own, or those that it names."""
    if item.check:
        return [item]
    checked = [other for other in map(find, item.by) if other.check]
    if not checked:
        what = f"run overt reproduce {item.id}" if item.figure else f"it is {item.how}"
        raise InputError(f"{item.id} has no check: {what}")
    return checked


def statements_in(path: str) -> list[Item]:
    """Return the statements that a Python file of a user's own records."""
    spec = spec_from_file_location(f"overt_user_{Path(path).stem}", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise InputError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = [
        item for item in items().values() if item.module == spec.name and item.check
    ]
    if not found:
        raise InputError(f"{path} has no function with @overt.papers.statement(...)")
    return found


def _measure(item: Item, seed: int) -> Verdict:
    number = zlib.crc32(item.id.encode())
    rng = np.random.default_rng([seed, number])
    start = time.perf_counter()
    measured: dict[str, Any] = dict.fromkeys(
        ("residual", "tolerance", "printed_residual", "null_residual")
    )
    try:
        # Threads cost more than they save on the small matrices of a check.
        with threadpool_limits(1, user_api="blas"):
            found = collect(item.check(rng))  # type: ignore[misc]
        measured = {
            "residual": _finite(found.residual),
            "tolerance": found.tolerance,
            "printed_residual": _finite(found.printed),
            "null_residual": _finite(found.null),
            "detail": found.detail,
            "verdict": found.verdict,
        }
    except (
        Exception
    ) as error:  # a broken formula may raise anything; it must show as a failure
        missing = _missing_package(error)
        measured["detail"] = missing or f"{type(error).__name__}: {error}"
        measured["verdict"] = "not run" if missing else "error"
    return Verdict(
        item.id,
        item.source,
        item.claim,
        item.assumes,
        item.printed,
        item.how,
        **measured,
        seconds=time.perf_counter() - start,
    )


def collect(found: Evidence | Residuals) -> Evidence:
    """Return the evidence; one residual that is NaN makes the largest NaN: the check fails."""
    if isinstance(found, Evidence):
        return found
    residuals: list[float] = []
    nulls: list[float] = []
    while True:
        try:
            residual, *null = np.atleast_1d(next(found))
        except StopIteration as end:
            largest = float(np.max(residuals))
            evidence = Evidence(largest, *end.value)
            if nulls:
                null_residual = float(np.max(nulls))
                evidence = replace(evidence, null=null_residual)
            return evidence
        residuals.append(residual)
        nulls += null


def _missing_package(error: Exception) -> str | None:
    """Return what to install if an optional package is absent; None for any other error.

    A module that an installed package lacks, overt's own above all, is a broken check.
    """
    if isinstance(error, MissingExtraError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name in OPTIONAL:
        return f"{error.name} is not installed: pip install 'overt[{OPTIONAL[error.name]}]'"
    return None


def _finite(value: float | None) -> float | None:
    """Return the value as a float that JSON can hold."""
    if value is None:
        return None
    if math.isfinite(value):
        return float(value)
    return math.copysign(1e308, value)
