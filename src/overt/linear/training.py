"""Training: many seeds over the cores, records, divergence, interruption.

The steps of a run are given as functions: along the exact gradient, or with sampled masks. Masks
and samples (x, y) come from separate streams, a block of steps at a time, so that a run does not
depend on where it is cut into blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from overt import _check
from overt._check import Floats, InputError, Ints, record_steps, seed_numbers
from overt._running import meter, thread_count, working
from overt.linear.descent import Value
from overt.linear.regression import Samples, multipliers
from overt.noise import Noise
from overt.results import Status, Trace

Weights = list[Floats]

Advance = Callable[[Weights, Floats], int]
"""advance(weights, rates) takes a step in place for each rate, and returns how many: fewer if the
run diverged. It releases the interpreter lock, so that seeds can share the cores."""

Rate = float | Callable[[Ints], Any]
Descent = Callable[[np.random.Generator], Advance]

LIMIT = 1e40
"""The squared error beyond which a run has diverged."""

BLOCK = 100_000
"""Largest number of random numbers generated at once."""

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


def masked_steps(
    samples: Samples,
    noise: Noise,
    width: int,
    rng: np.random.Generator,
    batch_size: int = 1,
) -> Advance:
    """Return compiled steps of a two-layer network whose masks are sampled from the noise."""
    from overt.linear import kernels  # it compiles

    for_masks, for_inputs = rng.spawn(2)
    inputs = samples.inputs.shape[-1]
    masked = width if noise.masks == "units" else width * inputs
    drawn = samples.outputs.shape[0] + inputs + masked
    block = max(1, BLOCK // (drawn * batch_size))

    def advance(weights: list[Floats], rates: Floats) -> int:
        rows = [np.ascontiguousarray(W.T) for W in weights]
        taken = 0
        # Without rates nothing is sampled, but what is not compiled yet is compiled.
        for first in range(0, max(len(rates), 1), block):
            part = rates[first : first + block]
            size = len(part) * batch_size
            x, y = samples.batch(size, rng, for_inputs)
            x = x[:, None]
            z = np.empty((0, masked))
            if size:
                z = multipliers(noise, masked, size, for_masks)
            if masked > width:  # every unit sees inputs of its own
                x = x * z.reshape(size, width, inputs)
                z = np.ones((size, width))
            given = [a.reshape(len(part), batch_size, *a.shape[1:]) for a in (x, y, z)]
            taken += kernels.masked_steps(rows[0], rows[-1], *given, part)
            if taken < first + len(part):
                break
        for W, row in zip(weights, rows, strict=True):
            W[:] = row.T
        return taken

    return advance
