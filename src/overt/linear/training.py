"""Training: many seeds over the cores, records, divergence, interruption.

The steps of a run are given as functions; `train` uses a network only through its noise effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from overt import _check
from overt._check import InputError
from overt._parallel import (
    checked_engine,
    mapped_seeds,
    record_steps,
    seed_numbers,
    thread_count,
)
from overt._progress import meter, working
from overt._types import Floats, Ints
from overt.linear.descent import Value
from overt.linear.effect import Evaluation, NoiseEffect
from overt.linear.sampling import LIMIT, Advance
from overt.results import Status, Trace

Weights = list[Floats]
Rate = float | Callable[[Ints], Any]
Descent = Callable[[np.random.Generator], Advance]

CHUNK = 20_000
"""Steps between looks at the clock: an interrupt waits for no longer than this many."""

VISIBLE = 0.01
"""Share of the target's largest singular value from which a direction counts as learned."""


def inverse_decay(rate: float, halving: float) -> Callable[[Ints], Floats]:
    """Return the schedule rate / (1 + step / halving)."""
    rate = _check.number("rate", rate, exclusive=True)
    halving = _check.number("halving", halving, exclusive=True)
    return lambda steps: np.asarray(
        rate * (halving / (halving + steps)), dtype=np.float64
    )


def train(
    effect: NoiseEffect,
    *,
    batch_size: int,
    gradient: str,
    init: Sequence[Floats] | None,
    init_scale: float | None,
    engine: str = "local",
    **running: Any,
) -> Trace:
    """Train a network by sampled steps or along the expected gradient; `running` is run_seeds's.

    An `engine` that is not "local" runs every seed as a task of a cluster.
    """
    _check.choice("gradient", gradient, ("sampled", "expected"))
    task = effect.regression.dense("train")
    largest = float(task.svd[1][0])
    if init_scale is None:  # the initial product is as large as the target
        paths = task.outputs * task.inputs * effect.shapes[0][1]
        init_scale = float((np.sum(task.T**2) / paths) ** 0.25) or 1.0
    init_scale = _check.number("init_scale", init_scale)

    def measure(weights: Weights) -> tuple[float, float, int]:
        found = Evaluation(effect, *weights)
        rank = int(np.sum(found.spectrum > VISIBLE * largest))
        return found.objective, found.imbalance, rank

    def begin(rng: np.random.Generator) -> Weights:
        if init is not None:
            return [W.copy() for W in init]
        return [init_scale * rng.standard_normal(shape) for shape in effect.shapes]

    sampled = partial(effect.steps, batch_size=_check.whole("batch_size", batch_size))
    descent = sampled if gradient == "sampled" else gradient_descent(effect.value)
    running["optimum"] = effect.relaxation.bound
    if checked_engine(engine) == "local":
        return run_seeds(begin, descent, measure, **running)
    seeds, threads = seed_numbers(running["seeds"]), thread_count(running["n_jobs"])

    def run(seed: int) -> Trace:
        return run_seeds(
            begin, descent, measure, **running | {"seeds": [seed], "n_jobs": 1}
        )

    tasks = [(seed,) for seed in seeds]
    found: Trace = mapped_seeds(run, tasks, engine, threads, ("steps", "optimum"))
    return found


def run_seeds(
    begin: Callable[[np.random.Generator], Weights],
    descent: Descent,
    measure: Callable[[Weights], tuple[float, float, int]],
    *,
    steps: int,
    learning_rate: Rate,
    seeds: int | Sequence[int],
    records: int | Sequence[int],
    n_jobs: int | None,
    optimum: float,
) -> Trace:
    """Run all seeds to the end: begin(rng) and descent(rng) once, measure(weights) at each record.

    A measure is (objective, imbalance, rank).
    """
    grid = _grid(_check.whole("steps", steps), records)
    generators = [np.random.default_rng(s) for s in seed_numbers(seeds)]
    count = len(generators)
    objective = np.full((count, len(grid)), np.nan)
    imbalance = objective.copy()
    rank = np.full((count, len(grid)), -1, dtype=np.int64)
    weights = [begin(rng) for rng in generators]
    advance = [descent(rng) for rng in generators]
    with working("training: compiling the steps, once on this machine"):
        advance[0](weights[0], np.empty(0))
    diverged = np.zeros(count, dtype=bool)

    def record(i: int, column: int) -> None:
        if all(np.isfinite(W).all() for W in weights[i]):
            # Weights may be so large that their products are not finite.
            with suppress(InputError, np.linalg.LinAlgError), np.errstate(all="ignore"):
                values = measure(weights[i])
                if np.isfinite(values[0]):
                    objective[i, column], imbalance[i, column], rank[i, column] = values
                    return
        diverged[i] = True

    def extend(i: int, first: int, last: int) -> None:
        if diverged[i]:
            return
        rates = _rates(learning_rate, np.arange(first, last))
        diverged[i] = advance[i](weights[i], rates) < len(rates)

    status = Status.FINISHED
    # The seeds share the cores; threads inside BLAS would only fight them.
    single = threadpool_limits(1, user_api="blas")
    with (
        single,
        ThreadPoolExecutor(thread_count(n_jobs)) as pool,
        meter("train", steps) as bar,
    ):
        try:
            list(pool.map(lambda i: record(i, 0), range(count)))
            for column, (first, last) in enumerate(pairwise(grid), 1):
                for start in range(first, last, CHUNK):
                    stop = min(start + CHUNK, last)
                    list(
                        pool.map(
                            lambda i, a=start, b=stop: extend(i, a, b), range(count)
                        )
                    )
                    bar.advance(stop - start)
                alive = np.flatnonzero(~diverged).tolist()
                list(pool.map(lambda i, c=column: record(i, c), alive))
                if diverged.all():
                    break
                bar.advance(
                    0, note=f"gap {np.nanmean(objective[:, column]) - optimum:.3g}"
                )
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
    if diverged.any() and status is Status.FINISHED:
        status = Status.DIVERGED
    stacked = tuple(np.stack(layer) for layer in zip(*weights, strict=True))
    return Trace(
        np.array(grid), objective, imbalance, rank, stacked, optimum, diverged, status
    )


def gradient_descent(value: Value) -> Descent:
    """Return steps along the gradient of half the exact objective, which need no random numbers."""

    def advance(weights: Weights, rates: Floats) -> int:
        for step, rate in enumerate(rates):
            objective, gradients = value(*weights)
            if not objective < LIMIT:
                return step
            for W, gradient in zip(weights, gradients, strict=True):
                W -= rate / 2 * gradient
        return len(rates)

    return lambda rng: advance


def _grid(steps: int, records: int | Sequence[int]) -> list[int]:
    """Return the steps to record, the first and the last among them."""
    inner = record_steps(
        records, steps, lambda count: np.geomspace(1, steps, count - 1)
    )
    return sorted({0, *inner, steps})


def _rates(learning_rate: Rate, steps: Ints) -> Floats:
    if callable(learning_rate):
        rates = _check.plain_array("learning_rate(steps)", learning_rate(steps))
        if (
            rates.dtype.kind not in "iuf"
            or rates.shape != steps.shape
            or not np.all(rates >= 0)
        ):
            raise InputError(
                "learning_rate(steps) must return one rate >= 0 for each step, got shape "
                f"{rates.shape} of {rates.dtype} for {len(steps)} steps"
            )
        return rates.astype(float)
    return np.full(
        len(steps), _check.number("learning_rate", learning_rate, exclusive=True)
    )
