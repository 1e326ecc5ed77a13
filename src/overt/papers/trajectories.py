"""Training followed step by step: weights at chosen steps, not only what a trace records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from overt.results import Trace


def log_steps(steps: int, points: int) -> list[int]:
    """Return 0 and about `points` step numbers on a logarithmic grid."""
    grid = np.geomspace(1, steps, points)
    numbers = np.unique(grid.round().astype(int))
    return [0, *numbers.tolist()]


def trajectory(
    train: Callable[..., Trace],
    start: Sequence[Any],
    steps: Sequence[int],
    rate: Callable[[Any], Any],
    seed: int,
    **options: Any,
) -> Iterator[tuple[int, list[Any]]]:
    """Yield (step, weights) along one run of a network's `train` method from `start`."""
    weights = list(start)
    yield steps[0], weights
    for part, (first, last) in enumerate(pairwise(steps)):
        run = train(
            last - first,
            lambda t, first=first: rate(t + first),
            [seed + part],
            init=weights,
            records=2,
            n_jobs=1,
            **options,
        )
        weights = [W[0] for W in run.weights]
        yield last, weights
