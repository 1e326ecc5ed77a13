"""What a simulation keeps: spectra, errors and balance at chosen steps, and when runs jumped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from overt._check import number, whole
from overt._figures import BLUE, COLORS, draw_band, subplots
from overt._types import Bools, Floats, Ints
from overt.decay import layers
from overt.decay.schedule import Schedule
from overt.entries import Entries
from overt.results import Result, Status

JUMP_RATIO = 0.05
"""A run has jumped to rank r for good after the last record with s_(r+1) / s_1 at or above this."""

NEVER = -1
"""The jump step of a run that did not jump, or not for good."""

_MISSING = 256  # record the missing entries if there are at most this many


@dataclass(frozen=True, repr=False, eq=False)
class Runs(Result):
    """SGD runs, one per seed, recorded at `steps`; NaN where a run did not get (or diverged).

    Attributes
    ----------
    steps
        Steps taken before each record, (records,).
    singular_values
        Of the product W_L ... W_1, (seeds, records, min(shape)).
    missing
        The product's unobserved entries, row by row, (seeds, records, missing); none are kept
        if there are more than 256.
    train_error
        Mean squared error of the observed entries, (seeds, records).
    test_error
        Squared error of the missing entries relative to putting zeros there, (seeds, records);
        NaN if the truth is not known.
    imbalance
        max_l |W_l W_l' - W_(l+1)' W_(l+1)| (Frobenius), (seeds, records), if asked for.
    approximate_rank
        sum_i f_alpha(s_i^(2/L)), which for balanced weights is that of every layer,
        (seeds, records).
    weights
        Final layers, each (seeds, outputs, inputs); the last before the explosion if diverged.
    jump_step
        Last recorded step with s_2 / s_1 >= 0.05, (seeds,); -1 if that was still so at the end.
    phases
        The schedule: steps, learning rate, weight decay, (phases, 3).
    diverged
        Which runs exploded, (seeds,).
    status
        "finished", "diverged" if any run did, or "interrupted".
    """

    steps: Ints
    singular_values: Floats
    missing: Floats
    train_error: Floats
    test_error: Floats
    imbalance: Floats
    approximate_rank: Floats
    weights: tuple[Floats, ...]
    jump_step: Ints
    phases: Floats
    diverged: Bools
    status: Status

    @property
    def ratio(self) -> Floats:
        """s_2 / s_1 of the product, (seeds, records)."""
        return spectral_ratio(self.singular_values, rank=1)

    def plot(self) -> Any:
        """Draw the singular values and the training error over the steps; band: the seeds."""
        figure, axes = subplots(1, 2)
        for k, color in zip(range(self.singular_values.shape[-1]), cycle(COLORS), strict=False):
            draw_band(
                axes[0][0], self.steps, self.singular_values[..., k], color, f"$s_{{{k + 1}}}$"
            )
        draw_band(axes[0][1], self.steps, self.train_error, BLUE)
        axes[0][0].set(xlabel="step", ylabel="singular values")
        axes[0][1].set(xlabel="step", ylabel="error of the observed entries", yscale="log")
        axes[0][0].legend()
        return figure

    def jumps_to(self, rank: int, threshold: float = JUMP_RATIO) -> Ints:
        """Return the step of each run's last jump to a rank at most `rank`; -1 if none."""
        return last_crossing(
            self.steps, spectral_ratio(self.singular_values, rank), number("threshold", threshold)
        )


def spectral_ratio(singular_values: Floats, rank: int) -> Floats:
    """s_(rank+1) / s_1, 0 where everything is 0."""
    rank = whole("rank", rank, 1, singular_values.shape[-1] - 1)
    first = singular_values[..., 0]
    return singular_values[..., rank] / np.where(first == 0, 1.0, first)


def last_crossing(steps: Ints, ratio: Floats, threshold: float) -> Ints:
    """Return the last step with ratio >= threshold for each row; -1 if it never fell for good."""
    result = np.full(len(ratio), NEVER, dtype=np.int64)
    for k, row in enumerate(ratio):
        known = np.flatnonzero(np.isfinite(row))
        if len(known) == 0 or known[-1] != len(row) - 1:
            continue
        above = np.flatnonzero(row >= threshold)
        if len(above) == 0:
            result[k] = steps[0]
        elif above[-1] != known[-1]:
            result[k] = steps[above[-1]]
    return result


class Book:
    """The records of all runs, which threads write at the same time."""

    def __init__(
        self, problem: Entries, depth: int, grid: Ints, runs: int, alpha: float, balance: bool
    ) -> None:
        self._problem, self._depth, self._grid = problem, depth, grid
        self._alpha, self._balance = alpha, balance
        self.steps = [int(step) for step in grid]
        self._index = {step: k for k, step in enumerate(self.steps)}
        rows, cols = problem.missing
        self._missing = (rows, cols) if len(rows) <= _MISSING else (rows[:0], cols[:0])
        self.diverged = np.zeros(runs, dtype=bool)
        lists = {"singular_values": min(problem.shape), "missing": len(self._missing[0])}
        numbers = ("train_error", "test_error", "imbalance", "approximate_rank")
        self._table = {name: np.full((runs, len(grid), n), np.nan) for name, n in lists.items()}
        self._table |= {name: np.full((runs, len(grid)), np.nan) for name in numbers}

    def write(self, step: int, number: int, weights: layers.Layers) -> None:
        """Record run `number` after `step` steps, if this step is to be recorded."""
        k = self._index.get(step)
        if k is None:
            return
        A = layers.product(weights)
        s = np.linalg.svd(A, compute_uv=False)
        found = {
            "singular_values": s,
            "missing": A[self._missing],
            "train_error": layers.train_error(self._problem, A),
            "test_error": layers.test_error(self._problem, A),
            "approximate_rank": layers.soft_count(s ** (2 / self._depth), self._alpha).sum(),
        }
        if self._balance:
            found["imbalance"] = layers.imbalance(weights)
        for name, value in found.items():
            self._table[name][number, k] = value

    def close(self, weights: Sequence[layers.Layers], schedule: Schedule, finished: bool) -> Runs:
        """Return the records with the runs' final weights."""
        s = self._table["singular_values"]
        ratio = spectral_ratio(s, 1) if s.shape[-1] > 1 else 0 * s[..., 0]
        status = Status.DIVERGED if self.diverged.any() else Status.FINISHED
        return Runs(
            steps=self._grid,
            **self._table,
            weights=tuple(np.stack(W) for W in zip(*weights, strict=True)),
            jump_step=last_crossing(self._grid, ratio, JUMP_RATIO),
            phases=np.array(schedule.to_dict()["phases"]),
            diverged=self.diverged,
            status=status if finished else Status.INTERRUPTED,
        )
