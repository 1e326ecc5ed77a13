"""Deep linear networks with weight decay: minima by rank, SGD's one-way jumps, completion.

>>> from overt.decay import minima, two_by_two
>>> [m.rank for m in minima(two_by_two(0.25), depth=3, weight_decay=1e-3)]
[0, 1, 2]

The sets that SGD does not leave are in `overt.papers.rank_sets`.
"""

from overt.decay.completion import DeepLinearCompletion
from overt.decay.family import two_by_two
from overt.decay.fully_observed import RankThresholds, rank_thresholds
from overt.decay.jumping import Jumps, find_jumps, jumps
from overt.decay.landscape import (
    Minima,
    Minimum,
    existence,
    minima,
    smallest_fitting_rank,
)
from overt.decay.layers import balanced, test_error, train_error
from overt.decay.schedule import Phase, Schedule, effective
from overt.decay.simulation import Runs, initial_weights, simulate

__all__ = [
    "DeepLinearCompletion",
    "Jumps",
    "Minima",
    "Minimum",
    "Phase",
    "RankThresholds",
    "Runs",
    "Schedule",
    "balanced",
    "effective",
    "existence",
    "find_jumps",
    "initial_weights",
    "jumps",
    "minima",
    "rank_thresholds",
    "simulate",
    "smallest_fitting_rank",
    "test_error",
    "train_error",
    "two_by_two",
]
