"""When runs jump to a lower rank: jump times, the share that has not, and what they depend on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from overt._check import (
    Floats,
    InputError,
    InputTypeError,
    Ints,
    number,
    whole,
)
from overt._intervals import clopper_pearson
from overt.decay.schedule import Schedule
from overt.decay.simulation import JUMP_RATIO, NEVER, Runs, simulate, spectral_ratio
from overt.entries.entries import Entries
from overt.results import Result, Status

FLOOR = 0.02
"""s_(r+1) / s_1 below this is far enough down for a return above JUMP_RATIO to be one."""

COLLAPSED = 1e-3
"""s_1 below this share of the largest observation is rank 0."""


@dataclass(frozen=True, repr=False, eq=False)
class Jumps(Result):
    """Jumps to rank `rank` over many seeds.

    Attributes
    ----------
    jump_step
        Last recorded step with s_(rank+1) / s_1 >= threshold, (seeds,); -1 if it never fell
        below for good.
    steps, surviving, lower, upper
        The share of runs that have not jumped by each recorded step, with an exact binomial
        (Clopper-Pearson) band at `confidence` for each step by itself.
    returned
        Runs that came back above the threshold after s_(rank+1) / s_1 had fallen below the floor.
    below
        Runs that fell below the floor at all. Random weights may start there, so runs are watched
        from their first record above the threshold.
    collapsed
        Runs that ended at rank 0 (s_1 below a thousandth of the largest observation).
    seeds, rank, threshold
        The number of runs, and the arguments.
    median
        Median jump step over all runs, infinite if fewer than half jumped.
    runs
        The runs behind it.
    status
        Of the runs; runs that diverged are left out of the shares. Of interrupted ones, `steps` and
        `runs` end at the last record that all reached.
    """

    jump_step: Ints
    steps: Ints
    surviving: Floats
    lower: Floats
    upper: Floats
    returned: int
    below: int
    collapsed: int
    seeds: int
    rank: int
    threshold: float
    median: float
    runs: Runs
    status: Status

    @property
    def jumped(self) -> int:
        """How many runs jumped."""
        return int(np.sum(self.jump_step != NEVER))


def jumps(
    problem: Entries,
    depth: int = 3,
    width: int = 100,
    schedule: Schedule | None = None,
    seeds: int | Sequence[int] = 40,
    *,
    rank: int = 1,
    threshold: float = JUMP_RATIO,
    floor: float = FLOOR,
    confidence: float = 0.95,
    **options: Any,
) -> Jumps:
    """Simulate and find the jumps to `rank`; other options go to `simulate`.

    Warns if sampling="shuffled", because such runs are not expected to jump.
    """
    if options.get("sampling") == "shuffled":
        warnings.warn(
            'sampling="shuffled" uses every entry once per pass: at small learning rates such runs '
            'never leave a minimum. The jumps of the paper need sampling="replacement".',
            stacklevel=2,
        )
    runs = simulate(problem, depth, width, schedule, seeds, **options)
    return find_jumps(
        runs, rank=rank, threshold=threshold, floor=floor, confidence=confidence
    )


def find_jumps(
    runs: Runs,
    *,
    rank: int = 1,
    threshold: float = JUMP_RATIO,
    floor: float = FLOOR,
    confidence: float = 0.95,
) -> Jumps:
    """Find the jumps in runs that were simulated before."""
    if not isinstance(runs, Runs):
        raise InputTypeError(
            f"runs must be what simulate returns, got {type(runs).__name__}"
        )
    rank = whole("rank", rank)
    threshold = number("threshold", threshold, exclusive=True)
    confidence = number("confidence", confidence)
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be between 0 and 1, got {confidence!r}")
    floor = number("floor", floor)
    if not 0 < floor <= threshold:
        raise InputError(
            f"floor must be in (0, threshold = {threshold:g}], got {floor!r}"
        )
    if runs.status == Status.INTERRUPTED:
        runs = _until_all_reached(runs)
    jump_step = runs.jumps_to(rank, threshold)
    finished = np.isfinite(runs.train_error[:, -1])
    surviving, lower, upper = survival(jump_step[finished], runs.steps, confidence)
    ratio = spectral_ratio(runs.singular_values, rank)
    size = np.sqrt(runs.train_error[:, 0].max())
    below, came_back = zip(
        *(_visits(row, threshold, floor) for row in ratio), strict=True
    )
    times = np.where(
        jump_step[finished] != NEVER, jump_step[finished].astype(float), np.inf
    )
    median = float(np.median(times)) if len(times) else float("nan")
    collapsed = int(np.sum(runs.singular_values[finished, -1, 0] < COLLAPSED * size))
    return Jumps(
        jump_step,
        runs.steps,
        surviving,
        lower,
        upper,
        sum(came_back),
        sum(below),
        collapsed,
        len(jump_step),
        rank,
        threshold,
        median,
        runs,
        runs.status,
    )


def survival(
    jump_step: Ints, steps: Ints, confidence: float = 0.95
) -> tuple[Floats, Floats, Floats]:
    """Return the share not jumped by each step and its exact binomial band."""
    n = len(jump_step)
    if n == 0:
        return (np.full(len(steps), np.nan),) * 3
    jumped = (jump_step != NEVER)[:, None] & (jump_step[:, None] <= steps[None, :])
    k = n - jumped.sum(axis=0)
    return k / n, *clopper_pearson(k, n, confidence)


def _until_all_reached(runs: Runs) -> Runs:
    """Return the records that every run reached before it was interrupted or diverged."""
    reached = np.isfinite(runs.train_error[~runs.diverged]).all(axis=0)
    count = int(np.count_nonzero(reached)) or len(runs.steps)
    names = ("singular_values", "missing", "train_error", "test_error")
    records = {name: getattr(runs, name)[:, :count] for name in names}
    return replace(runs, steps=runs.steps[:count], **records)


def _visits(ratio: Floats, threshold: float, floor: float) -> tuple[bool, bool]:
    """Return whether the ratio fell below the floor, and whether it came back after that."""
    above = np.flatnonzero(ratio >= threshold)
    watched = ratio[above[0] :] if len(above) else ratio
    low = np.flatnonzero(watched < floor)
    return len(low) > 0, bool(len(low) and np.any(watched[low[0] :] >= threshold))
