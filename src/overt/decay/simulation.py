"""SGD on single entries of a completion problem, for many seeds at once, and its records."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from overt._check import (
    Bools,
    Floats,
    InputError,
    InputTypeError,
    Ints,
    Seed,
    choice,
    doubles,
    number,
    record_steps,
    seed_number,
    seed_numbers,
    whole,
)
from overt._running import Meter, checked_engine, mapped_seeds, meter, thread_count
from overt.decay import layers
from overt.decay.schedule import Schedule, cut_into_pieces
from overt.entries.entries import Entries
from overt.results import Result, Status

STEPS_PER_CALL = 20_000
"""Steps between two looks at Ctrl-C (a tenth of a second at width 100); samples in memory."""

JUMP_RATIO = 0.05
"""A run has jumped to rank r for good after the last record with s_(r+1) / s_1 at or above this."""

NEVER = -1
"""The jump step of a run that did not jump, or not for good."""

MAX_RECORDED_MISSING = 256
"""Missing entries are recorded if there are at most this many."""

SAMPLINGS = ("replacement", "shuffled")


@dataclass(frozen=True, repr=False, eq=False)
class Runs(Result):
    """SGD runs, one per seed, recorded at `steps`; NaN after a run diverged or was interrupted.

    Attributes
    ----------
    steps
        Steps taken before each record, (records,).
    singular_values
        Of the product W_L ... W_1, (seeds, records, min(shape)).
    missing
        The product's unobserved entries, row by row, (seeds, records, missing); empty if there are
        more than 256.
    train_error
        Mean squared error of the observed entries, (seeds, records).
    test_error
        Squared error of the missing entries relative to putting zeros there, (seeds, records);
        NaN if the truth is not known.
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
    weights: tuple[Floats, ...]
    jump_step: Ints
    phases: Floats
    diverged: Bools
    status: Status

    @property
    def ratio(self) -> Floats:
        """s_2 / s_1 of the product, (seeds, records)."""
        return spectral_ratio(self.singular_values, rank=1)

    def jumps_to(self, rank: int, threshold: float = JUMP_RATIO) -> Ints:
        """Return the step of each run's last jump to a rank at most `rank`; -1 if none."""
        ratio = spectral_ratio(self.singular_values, rank)
        return last_crossing(self.steps, ratio, number("threshold", threshold))


def simulate(
    problem: Entries,
    depth: int = 3,
    width: int = 100,
    schedule: Schedule | None = None,
    seeds: int | Sequence[int] = 1,
    init: float | Sequence[Any] = 1.0,
    records: int | Sequence[int] = 201,
    *,
    seed: Seed = 0,
    sampling: str = "replacement",
    n_jobs: int | None = None,
    progress: bool = True,
    engine: str = "local",
) -> Runs:
    """Run theta <- (1 - 2 eta lam) theta - (eta/2) grad (A_ij - y_ij)^2 on random entries.

    [One-way jumps] 2.3: one entry per step. See `overt.decay.schedule` for the conventions of eta
    and lam. Ctrl-C returns what was computed, with the status "interrupted" (on a cluster it ends
    the call).

    Parameters
    ----------
    problem
        The observed entries.
    depth, width
        Number of layers L (at least 2) and of units in each of the L - 1 hidden layers.
    schedule
        Learning rates and weight decays; by default the annealing of the paper's Figure 1.
    seeds
        Number of runs, or the list of their numbers: run k does not depend on the others.
    init
        Weights start as N(0, init^2 / width); or the layers [W_1, ..., W_L] themselves, each
        outputs x inputs, or seeds x outputs x inputs as in `Runs.weights`.
    records
        Number of records, evenly spaced from before the first step to after the last, or the list
        of steps to record.
    seed
        Root of all randomness.
    sampling
        "replacement" samples each entry independently, as in the paper. "shuffled" uses every entry
        once per pass, in a new random order, as data loaders do; such runs do not jump at small
        learning rates.
    n_jobs
        Number of threads, by default one per core; the result does not depend on it.
    progress
        Show a bar if this is a terminal.
    engine
        "local" for threads; "dask" for the current `distributed.Client` or processes started here,
        or a scheduler's address, runs every seed as a task there; the result is the same.
    """
    layers.check_entries(problem)
    depth = whole("depth", depth, 2)
    width = whole("width", width)
    choice("sampling", sampling, SAMPLINGS)
    schedule = Schedule.annealing() if schedule is None else schedule
    if not isinstance(schedule, Schedule):
        raise InputTypeError(
            f"schedule must be a Schedule, got {type(schedule).__name__}"
        )
    numbers = seed_numbers(seeds)
    root = seed_number(seed)
    starts = _starts(problem, depth, width, init, root, numbers)
    threads = thread_count(n_jobs)
    if checked_engine(engine) != "local":
        run_one = partial(
            simulate,
            problem,
            depth,
            width,
            schedule,
            records=records,
            seed=root,
            sampling=sampling,
            n_jobs=1,
            progress=False,
        )
        tasks = [([run], start) for run, start in zip(numbers, starts, strict=True)]
        found: Runs = mapped_seeds(run_one, tasks, engine, threads, ("steps", "phases"))
        return found

    steps = schedule.steps
    grid = record_steps(records, steps, lambda count: np.linspace(0, steps, count))
    if not grid:
        raise InputError("records must hold at least one step, got none")
    log = Records(problem, grid, len(numbers))
    runs = [Weights(start) for start in starts]
    samplers = [EntrySampler(len(problem), root, run, sampling) for run in numbers]
    with meter("steps", steps * len(runs), show=progress) as bar:
        finished = _execute(
            problem, runs, samplers, schedule, log, min(threads, len(runs)), bar
        )
    return log.close([run.layers() for run in runs], schedule, finished)


def initial_weights(
    problem: Entries,
    depth: int,
    width: int,
    *,
    init: float = 1.0,
    seed: int = 0,
    run: int = 0,
) -> list[Floats]:
    """Return the layers [W_1, ..., W_L] ~ N(0, init^2 / width) with which a run starts."""
    layers.check_entries(problem)
    rng = np.random.default_rng([whole("seed", seed, 0), whole("run", run, 0), 0])
    if number("init", init) > 1e50:
        raise InputError(
            f"init must be at most 1e50, as layers are multiplied, got {init!r}"
        )
    scale = float(init) / np.sqrt(whole("width", width, maximum=10**6))
    depth = whole("depth", depth, 2, layers.MAX_DEPTH)
    shapes = layers.shapes(problem.shape, depth, width)
    return [scale * rng.standard_normal(shape) for shape in shapes]


class EntrySampler:
    """Samples which entry each step of a run uses, a few steps at a time.

    The result does not depend on how many steps are taken at a time.
    """

    def __init__(self, count: int, seed: int, run: int, sampling: str) -> None:
        self._count = count
        self._rng = np.random.default_rng([seed, run, 1])
        self._shuffled = sampling == "shuffled"
        self._rest: Ints = np.zeros(0, np.int64)  # of the current pass

    def take(self, steps: int) -> Ints:
        """Return the entries of the next steps."""
        if not self._shuffled:
            return self._rng.integers(self._count, size=steps)
        missing = max(steps - len(self._rest), 0)
        passes = math.ceil(missing / self._count)
        new = [self._rng.permutation(self._count) for _ in range(passes)]
        order = np.concatenate([self._rest, *new])
        self._rest = order[steps:]
        return order[:steps]


class Weights:
    """A network in the kernel's layout: first layer transposed, middle layers, last layer.

    The end layers are stored divided by one scale, which is all that weight decay has to touch.
    """

    def __init__(self, weights: layers.Layers) -> None:
        width = weights[0].shape[0]
        self.F = weights[0].T.copy()
        self.M = np.array(weights[1:-1]).reshape(-1, width, width)
        self.G = np.array(weights[-1], order="C")
        self._scale = np.ones(1)

    def layers(self) -> list[Floats]:
        """Return [W_1, ..., W_L]; those in the middle are not copied."""
        return [self._scale * self.F.T, *self.M, self._scale * self.G]

    def copy(self) -> Weights:
        """Return independent weights."""
        return Weights(self.layers())

    def descend(self, problem: Entries, order: Ints, rate: float, decay: float) -> int:
        """Take a step on each entry of `order`; return how many were taken before an explosion."""
        from overt.decay.kernels import descend

        entries = (np.asarray(problem.rows), np.asarray(problem.cols), problem.values)
        return int(
            descend(self.F, self.M, self.G, self._scale, *entries, order, rate, decay)
        )

    def fold(self) -> None:
        """Multiply the scale into the end layers."""
        self.F *= self._scale
        self.G *= self._scale
        self._scale[:] = 1


def _execute(
    problem: Entries,
    runs: list[Weights],
    samplers: list[EntrySampler],
    schedule: Schedule,
    log: Records,
    threads: int,
    bar: Meter,
) -> bool:
    """Take all steps of all runs; return whether nothing interrupted them."""
    cuts = {*log.steps, *range(STEPS_PER_CALL, schedule.steps, STEPS_PER_CALL)}
    pieces = cut_into_pieces(schedule, sorted(cuts))
    stop = threading.Event()

    def work(number: int) -> None:
        run = runs[number]
        log.write(0, number, run.layers())
        for first, last, phase in pieces:
            if stop.is_set():
                return
            order = samplers[number].take(last - first)
            taken = run.descend(problem, order, phase.learning_rate, phase.weight_decay)
            bar.advance(last - first)
            if taken < len(order):
                log.diverged[number] = True
                return
            log.write(last, number, run.layers())

    with threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(work, number) for number in range(len(runs))]
        try:
            for future in waiting:
                future.result()
        except KeyboardInterrupt:
            return False
        finally:  # an error of one run ends the others, too
            stop.set()
    return True


class Records:
    """The records of all runs, which threads write at the same time."""

    def __init__(self, problem: Entries, steps: list[int], runs: int) -> None:
        self.steps = steps
        self.diverged = np.zeros(runs, dtype=bool)
        self._positions = {step: k for k, step in enumerate(steps)}
        self._problem = problem
        rows, cols = problem.missing
        shown = len(rows) if len(rows) <= MAX_RECORDED_MISSING else 0
        self._missing = (rows[:shown], cols[:shown])
        # Singular values, missing entries and errors, side by side.
        self._ends = (min(problem.shape), min(problem.shape) + shown)
        self._table = np.full((runs, len(steps), self._ends[1] + 2), np.nan)

    def write(self, step: int, run: int, weights: layers.Layers) -> None:
        """Record a run after `step` steps, if this step is to be recorded."""
        if step not in self._positions:
            return
        A = layers.product(weights)
        self._table[run, self._positions[step]] = [
            *np.linalg.svd(A, compute_uv=False),
            *A[self._missing],
            layers.train_error(self._problem, A),
            layers.test_error(self._problem, A),
        ]

    def close(
        self, weights: Sequence[layers.Layers], schedule: Schedule, finished: bool
    ) -> Runs:
        """Return the records with the runs' final weights."""
        steps = np.array(self.steps)
        s, missing, rest = np.split(self._table, self._ends, axis=-1)
        ratio = spectral_ratio(s, 1) if s.shape[-1] > 1 else 0 * s[..., 0]
        status = Status.DIVERGED if self.diverged.any() else Status.FINISHED
        return Runs(
            steps=steps,
            singular_values=s,
            missing=missing,
            train_error=rest[..., 0],
            test_error=rest[..., 1],
            weights=tuple(np.stack(W) for W in zip(*weights, strict=True)),
            jump_step=last_crossing(steps, ratio, JUMP_RATIO),
            phases=np.array(schedule.to_dict()["phases"]),
            diverged=self.diverged,
            status=status if finished else Status.INTERRUPTED,
        )


def spectral_ratio(singular_values: Floats, rank: int) -> Floats:
    """s_(rank+1) / s_1, 0 where everything is 0."""
    rank = whole("rank", rank, 1, singular_values.shape[-1] - 1)
    first = singular_values[..., 0]
    return singular_values[..., rank] / np.where(first == 0, 1.0, first)


def last_crossing(steps: Ints, ratio: Floats, threshold: float) -> Ints:
    """Return the last step with ratio >= threshold for each row; -1 if it never fell for good."""
    result = np.full(len(ratio), NEVER, dtype=np.int64)
    for run, row in enumerate(ratio):
        if not np.isfinite(row[-1]) or row[-1] >= threshold:
            continue
        above = np.flatnonzero(row >= threshold)
        result[run] = steps[above[-1]] if len(above) else steps[0]
    return result


def _starts(
    problem: Entries,
    depth: int,
    width: int,
    init: float | Sequence[Any],
    seed: int,
    numbers: list[int],
) -> list[list[Floats]]:
    """Return the first layers of each run."""
    if np.isscalar(init) or getattr(init, "ndim", 1) == 0:
        scale = number("init", init)
        return [
            initial_weights(problem, depth, width, init=scale, seed=seed, run=run)
            for run in numbers
        ]
    if not isinstance(init, (Sequence, np.ndarray)):
        raise InputTypeError(
            f"init must be a number or {depth} layers, got {init!r:.60}"
        )
    given = [doubles("init", W) for W in init]
    expected = layers.shapes(problem.shape, depth, width)
    count = len(numbers)
    if [W.shape[-2:] for W in given] != expected or any(
        W.shape[:-2] not in ((), (count,)) for W in given
    ):
        raise InputError(
            f"init must be a number or {depth} layers of the shapes {expected} (or with a first "
            f"axis of {count} seeds), got {[W.shape for W in given]}"
        )
    per_seed = [np.broadcast_to(W, (count, *W.shape[-2:])) for W in given]
    return [list(W) for W in zip(*per_seed, strict=True)]
