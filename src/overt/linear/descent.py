"""Gradient descent: on the exact objective until it ends, and stochastic, for many seeds.

Training runs many seeds over the cores, with records, divergence and interruption. The steps of
a run are given as functions: along the exact gradient, or with sampled masks. Masks and samples
(x, y) come from separate streams, a block of steps at a time, so that a run does not depend on
where it is cut into blocks.

A sampled step moves along the gradient of half the squared error, the mean over a batch (structured
dropout, Algorithm 1; Algorithm 1 of the implicit bias of dropout takes theta times this step):

    h = z o V'x,  e = U h - y,  g = z o U'e,   U <- U - rate e h',  V <- V - rate x g'

Tied weights are the same array twice: h and e come before the first update, and a unit's g before
its own. A mask on V is one on inputs that each unit sees alone: x has a row for every unit, or one
for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from overt import _check
from overt._check import Floats, InputError, Ints, record_steps, seed_numbers
from overt._running import meter, thread_count, working
from overt.linear.bounds import EXACT
from overt.linear.regression import Samples, multipliers
from overt.noise import Noise
from overt.results import Status, Trace

STARTS = 8
"""Descents tried at most where theory gives no weights that reach the bound."""

SAME = 1e-8
"""Relative difference up to which two descents ended at the same value."""

NUDGE = 0.03
"""Size of what is added to structured starts, which may be saddles, relative to their own."""

SPREADS = (1.0, 0.1, 3.0)
"""Sizes of random weights, relative to those of the first start."""

Value = Callable[..., tuple[float, Sequence[Floats]]]
"""value(*arrays) -> (objective, gradients), one gradient per array."""


def descend(value: Value, start: Sequence[Floats]) -> list[Floats]:
    """Minimize with L-BFGS from `start` until the objective no longer falls."""
    from scipy.optimize import minimize  # needed by few networks, and slow to import

    shapes = [array.shape for array in start]
    cuts = np.cumsum([array.size for array in start])[:-1]

    def unpack(theta: Floats) -> list[Floats]:
        parts = np.split(theta, cuts)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    theta = np.concatenate([array.ravel() for array in start])
    # In units of the start and of its objective, so that steps and tolerances have a meaning.
    scale = abs(value(*start)[0]) or 1.0
    size = float(np.sqrt(np.mean(theta**2))) or 1.0

    def flat(theta: Floats) -> tuple[float, Floats]:
        objective, gradients = value(*unpack(size * theta))
        slope = np.concatenate([G.ravel() for G in gradients])
        return objective / scale, slope * (size / scale)

    options = {
        "maxiter": 3000,
        "maxfun": 6000,
        "ftol": 1e-15,
        "gtol": 1e-12,
        "maxcor": 30 if theta.size < 2000 else 10,  # their cost grows with the weights
    }
    # Threads cost more than they save on products of small matrices.
    with threadpool_limits(1 if theta.size < 100_000 else None, user_api="blas"):
        found = minimize(
            flat, theta / size, jac=True, method="L-BFGS-B", options=options
        )
    return unpack(size * found.x)


def scaled(value: Value, *sizes: Any) -> Value:
    """Return the function whose arrays are divided by their sizes first, and its gradients."""

    def in_units(*arrays: Floats) -> tuple[float, Sequence[Floats]]:
        objective, gradients = value(*map(np.divide, arrays, sizes))
        return objective, list(map(np.divide, gradients, sizes))

    return in_units


def attains(bound: float) -> float:
    """Return the objective at which a bound counts as attained, with a margin."""
    return bound * (1 + EXACT / 10)


def refine(
    value: Value,
    starts: Sequence[Sequence[Floats]],
    enough: float,
    tries: int = STARTS,
    search: Callable[[Value, Sequence[Floats]], list[Floats]] = descend,
    agreeing: int = 1,
) -> Sequence[Floats]:
    """Return the lowest point of descents from near each start, and from random weights.

    Stops as soon as a value is low `enough`, or `agreeing` random starts ended at the lowest one.
    Starts are moved a little, as they may be saddles.
    """
    rng = np.random.default_rng(0)
    best = min(starts, key=lambda start: value(*start)[0])
    lowest = value(*best)[0]
    agreed = 0
    for number in range(len(starts) + tries):
        if lowest <= enough:
            break
        given = number < len(starts)
        start = starts[number] if given else starts[0]
        factor = NUDGE if given else SPREADS[number % len(SPREADS)]
        near = []
        for W in start:
            noise = np.sqrt(np.mean(W**2)) * rng.standard_normal(W.shape)
            near.append(given * W + factor * noise)
        found = search(value, near)
        reached = value(*found)[0]
        if reached < lowest * (1 - SAME):
            agreed = 0
        elif not given and reached <= lowest * (1 + SAME):
            agreed += 1
        if reached < lowest:
            best = found
            lowest = reached
        if agreed == agreeing:
            break
    return best


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
    return lambda steps: rate / (1 + steps / halving)


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
    compiled = compiled_steps()
    for_masks, for_inputs = rng.spawn(2)

    def advance(weights: list[Floats], rates: Floats) -> int:
        rows = [np.ascontiguousarray(W.T) for W in weights]
        outputs = len(weights[0])
        inputs = len(weights[-1])
        masked = width if noise.masks == "units" else width * inputs
        block = max(1, BLOCK // ((outputs + inputs + masked) * batch_size))
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
            taken += compiled(rows[0], rows[-1], *given, part)
            if taken < first + len(part):
                break
        for W, row in zip(weights, rows, strict=True):
            W[:] = row.T
        return taken

    return advance


@cache
def compiled_steps() -> Callable[..., int]:
    """Return `steps_with_masks` as machine code; its folder's cache sees changes of this file."""
    from overt._running import njit  # it imports a compiler

    compiled: Callable[..., int] = njit(
        fastmath={"reassoc", "contract", "nsz", "arcp"}
    )(steps_with_masks)
    return compiled


def steps_with_masks(Ut: Any, Vt: Any, x: Any, y: Any, z: Any, rates: Any) -> int:
    """Take a step for each rate; return how many were taken before an error exceeded LIMIT.

    Ut (width x outputs) and Vt (width x inputs) are updated: one contiguous row per hidden unit,
    so that a dropped unit costs nothing. x is steps x batch x (1 or width) x inputs,
    y steps x batch x outputs, z steps x batch x width.
    """
    batch = x.shape[1]
    last = x.shape[2] - 1
    d, m = Ut.shape
    n = Vt.shape[1]
    h = np.empty((batch, d))
    g = np.empty(batch)
    e = np.empty((batch, m))
    for step in range(rates.shape[0]):
        size = 0.0
        for b in range(batch):
            for i in range(m):
                e[b, i] = -y[step, b, i]
            for k in range(d):
                if z[step, b, k] == 0.0:
                    continue
                row = min(k, last)
                total = 0.0
                for j in range(n):
                    total += Vt[k, j] * x[step, b, row, j]
                total *= z[step, b, k]
                h[b, k] = total
                for i in range(m):
                    e[b, i] += total * Ut[k, i]
            for i in range(m):
                size += e[b, i] * e[b, i]
        if not size < LIMIT:
            return step
        rate = rates[step] / batch
        for k in range(d):
            for b in range(batch):
                total = 0.0
                if z[step, b, k] != 0.0:
                    for i in range(m):
                        total += Ut[k, i] * e[b, i]
                g[b] = rate * z[step, b, k] * total
            for b in range(batch):
                if z[step, b, k] == 0.0:
                    continue
                row = min(k, last)
                left = rate * h[b, k]
                right = g[b]
                for i in range(m):
                    Ut[k, i] -= left * e[b, i]
                for j in range(n):
                    Vt[k, j] -= right * x[step, b, row, j]
    return rates.shape[0]
