"""The registry of executable statements: a claim, its source, and a check that measures it."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from overt._check import InputError, InputTypeError, MissingExtraError, choice, unknown
from overt._types import Floats
from overt.results import Result
from overt.theorems._symbolic import PROVED

SIZES = {"small": 1, "medium": 2, "large": 4}
"""Named problem sizes and the factor by which they scale a check's dimensions."""

EXACT = 1e-10
"""Tolerance on a relative difference of two sums that agree but for rounding."""

DESCENT = 1e-7
"""Tolerance on a relative difference of objectives where one of them was reached by descent."""

STRICT = 0.01
"""Least relative excess that shows that a bound is not attained."""

OPTIONAL = {"torch": "torch", "sympy": "proofs", "flint": "proofs"}
"""Packages that a check may lack, with the extra that installs each."""

MONTE_CARLO = 5.0
"""Tolerance on |Monte Carlo - exact| in standard errors."""


@dataclass(frozen=True)
class Evidence:
    """What a check measured.

    Attributes
    ----------
    residual
        How far the statement is from its independent oracle.
    tolerance
        The largest residual with which the statement holds.
    printed
        The residual of the form printed in the paper, where overt corrects it. It must exceed
        the tolerance: a correction that is not needed is an error too.
    detail
        What was compared, in a few words.
    """

    residual: float
    tolerance: float
    detail: str
    printed: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the statement holds and, where it was corrected, the printed form does not."""
        return self.residual <= self.tolerance and self.printed_holds in (None, False)

    @property
    def printed_holds(self) -> bool | None:
        """Whether the printed form holds too; None without one, NaN is an error."""
        if self.printed is None:
            return None
        if math.isnan(self.printed):
            raise InputError("the residual of the printed form is NaN: it was not measured")
        return self.printed <= self.tolerance


def relative(measured: Any, expected: Any) -> float:
    """|measured - expected| / |expected|, Frobenius norms."""
    expected = np.asarray(expected, dtype=float)
    return float(np.linalg.norm(measured - expected) / np.linalg.norm(expected))


def standard_errors(draws: Floats, exact: Any) -> float:
    """|mean(draws) - exact| in standard errors of the mean."""
    error = draws.std(ddof=1) / np.sqrt(draws.size)
    return float(abs(draws.mean() - float(exact)) / error)


def worst(*residuals: float) -> float:
    """Return the largest residual; NaN if any of them is, so that the check fails."""
    return float(np.max(residuals))


Residuals = Generator[float, None, tuple[Any, ...]]
"""Residuals, of which the largest counts; what is returned at last is the rest of the Evidence."""

Check = Callable[[int, np.random.Generator], Evidence | Residuals]


@dataclass(frozen=True)
class Theorem:
    """One statement of the papers, in plain words, with a check of it."""

    id: str
    source: str
    claim: str
    assumes: str
    correction: str | None
    check: Check

    @property
    def kind(self) -> str:
        """How far it is checked: "proved" or "enclosed" (`make proofs`), or "sampled"."""
        return PROVED.get(self.id, "sampled")

    @property
    def formula(self) -> str:
        """The claim as a formula in TeX, where its words have none; empty elsewhere."""
        return _formulas().get(self.id, "")


@cache
def _formulas() -> dict[str, str]:
    text = (files(__package__) / "formulas.tsv").read_text(encoding="utf-8")
    return dict(line.split("\t") for line in text.splitlines())


def distinct(corrected: Iterable[Theorem | Verdict]) -> int:
    """Return how many places of the papers are corrected: some have a check in two rooms."""
    return len({c.source.partition(";")[0] for c in corrected if c.correction})


@dataclass(frozen=True, repr=False, eq=False)
class Verdict(Result):
    """The outcome of one check.

    `verdict` is "holds", "fails", "error", or "skipped" where an optional package is missing.
    """

    id: str
    source: str
    claim: str
    assumes: str
    correction: str | None
    residual: float | None
    tolerance: float | None
    printed_residual: float | None
    detail: str
    verdict: str
    seconds: float


_registry: dict[str, Theorem] = {}


def theorem(
    id: str, *, source: str, claim: str, assumes: str = "nothing",  # noqa: A002
    correction: str | None = None,
) -> Callable[[Check], Check]:  # fmt: skip
    """Register the decorated check under `id`.

    The check gets a scale (1 for small problems) and a random generator, and returns Evidence or
    yields residuals.
    """

    def register(check: Check) -> Check:
        if id in _registry:
            raise InputError(f"there is a theorem with the id {id!r} already")
        _registry[id] = Theorem(id, source, claim, assumes, correction, check)
        return check

    return register


def registered() -> dict[str, Theorem]:
    """Return all statements by id, in the order of the papers' argument."""
    return dict(_registry)


def verify(
    ids: Iterable[str | Theorem] = (), *, size: str = "small", seed: int = 0
) -> Iterator[Verdict]:
    """Check the given statements (all, if none is given), one verdict after another."""
    choice("size", size, tuple(SIZES))
    if isinstance(ids, str) or not isinstance(ids, Iterable) or not getattr(ids, "ndim", 1):
        raise InputTypeError(f"ids must be a list of names of statements, got {ids!r}")
    chosen: list[Theorem] = []
    for name in list(ids) or list(_registry):
        if isinstance(name, Theorem):
            chosen.append(name)
        elif isinstance(name, str) and name in _registry:
            chosen.append(_registry[name])
        else:
            raise unknown("theorem", str(name), _registry)
    return (_measure(statement, SIZES[size], seed) for statement in chosen)


def _measure(statement: Theorem, scale: int, seed: int) -> Verdict:
    rng = np.random.default_rng([seed, zlib.crc32(statement.id.encode())])
    start = time.perf_counter()
    measured: dict[str, Any] = dict.fromkeys(("residual", "tolerance", "printed_residual"))
    try:
        # Threads cost more than they save on the small matrices of a check.
        with threadpool_limits(1, user_api="blas"):
            found = _evidence(statement.check(scale, rng))
        sizes = (_finite(found.residual), found.tolerance, _finite(found.printed))
        measured = dict(zip(measured, sizes, strict=True))
        measured |= {"detail": found.detail, "verdict": "holds" if found.holds else "fails"}
    except Exception as error:  # a broken formula may raise anything; it must show as a failure
        missing = _missing_package(error)
        detail = f"{type(error).__name__}: {error}"
        measured |= {"detail": missing or detail, "verdict": "skipped" if missing else "error"}
    s, seconds = statement, time.perf_counter() - start
    return Verdict(s.id, s.source, s.claim, s.assumes, s.correction, **measured, seconds=seconds)


def _missing_package(error: Exception) -> str | None:
    """Return what to install if an optional package is absent; None for any other error.

    A module that an installed package lacks, overt's own above all, is a broken check.
    """
    if isinstance(error, MissingExtraError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name in OPTIONAL:
        return f"{error.name} is not installed: pip install 'overt[{OPTIONAL[error.name]}]'"
    return None


def _evidence(found: Evidence | Residuals) -> Evidence:
    """Return the evidence; one residual that is NaN makes the largest NaN: the check fails."""
    residuals = []
    while not isinstance(found, Evidence):
        try:
            residuals.append(next(found))
        except StopIteration as end:
            found = Evidence(float(np.max(residuals)), *end.value)
    return found


def _finite(value: float | None) -> float | None:
    """Return the value as a float that JSON can hold."""
    if value is None:
        return None
    return float(value) if math.isfinite(value) else math.copysign(1e308, value)
