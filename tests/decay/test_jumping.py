"""Jumps to lower ranks: which runs count as one, and when SGD makes one."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from overt.decay import (
    Schedule,
    find_jumps,
    jumps,
    simulate,
    two_by_two,
)
from overt.decay.simulation import last_crossing
from overt.results import Status

FIGURE_2 = Schedule.of([(500, 0.03, 0.1), (4500, 0.25, 0.1)], convention="pytorch")


def test_last_crossing():
    steps = np.array([0, 10, 20, 30])
    ratio = np.array(
        [
            [1.0, 0.9, 0.01, 0.01],
            [1.0, 0.01, 0.9, 0.01],
            [1.0, 0.9, 0.9, 0.9],
            [0.01, 0.01, 0.01, 0.01],
            [1.0, 0.01, np.nan, np.nan],
        ]
    )
    assert last_crossing(steps, ratio, 0.05).tolist() == [10, 20, -1, 0, -1]


def test_deeper_networks_jump():
    """Figure 2 with a narrower network: depth 4 jumps, depth 3 does not, and none returns."""
    problem = two_by_two(0.1)
    shallow, deep = (
        jumps(problem, depth, 40, FIGURE_2, 10, records=101) for depth in (3, 4)
    )
    assert shallow.jumped <= 1
    assert deep.jumped >= 6
    assert deep.returned == shallow.returned == 0
    assert deep.surviving[deep.steps == 5000] == pytest.approx(1 - deep.jumped / 10)
    assert deep.collapsed == 0
    assert (deep.median < 5000) == (deep.jumped > 5)
    again = find_jumps(deep.runs, threshold=0.2, floor=0.1)
    assert np.all(
        again.jump_step[deep.jump_step >= 0] <= deep.jump_step[deep.jump_step >= 0]
    )


def test_return_is_counted():
    runs = simulate(two_by_two(0.3), 3, 4, Schedule.constant(40, 0.1, 0.01), records=5)
    spectra = np.array([[[1, 0.5], [1, 0.01], [1, 0.3], [1, 0.01], [1, 0.01]]])
    fake = type(runs)(**{**vars(runs), "singular_values": spectra})
    found = find_jumps(fake)
    assert (found.below, found.returned) == (1, 1)
    assert found.jump_step.tolist() == [20]


def test_jumps_are_counted_by_hand():
    """Five runs: two jump, one collapses, one stays, one diverges; errors start at 4."""
    runs = simulate(
        two_by_two(0.3), 3, 4, Schedule.constant(40, 0.1, 0.01), 5, records=5
    )
    s = np.array(
        [
            [[2, 1], [2, 0.01], [2, 0.01], [2, 0.01], [2.1e-3, 1e-5]],
            [[2, 1], [2, 1], [2, 1], [2, 0.03], [2, 0.03]],
            [[2, 1], [1, 0.5], [0.1, 0.001], [1e-3, 1e-6], [1.9e-3, 1e-7]],
            [[2, 1], [2, 1], [2, 1], [2, 1], [2, 0.1]],
            [[2, 1], [2, 1], [np.nan, np.nan], [np.nan, np.nan], [np.nan, np.nan]],
        ]
    )
    error = np.where(np.isnan(s[..., 0]), np.nan, 4.0)
    fake = type(runs)(**{**vars(runs), "singular_values": s, "train_error": error})
    found = find_jumps(fake, confidence=0.8)
    assert found.jump_step.tolist() == [0, 20, 10, -1, -1]
    assert (found.jumped, found.seeds, found.collapsed, found.returned) == (3, 5, 1, 0)
    assert found.below == 3
    assert found.surviving.tolist() == [0.75, 0.5, 0.25, 0.25, 0.25]
    assert found.median == 15.0
    assert binom.cdf(1, 4, found.upper[-1]) == pytest.approx(0.1)
    never = type(runs)(
        **{
            **vars(runs),
            "singular_values": s[[3, 3, 0, 3, 3]],
            "train_error": error[[0] * 5],
        }
    )
    assert find_jumps(never).median == np.inf


def test_shuffled_sgd_does_not_jump():
    """At the rate of Figure 1: 97 of 100 runs jump with replacement, none shuffled."""
    problem = two_by_two(0.25)
    schedule = Schedule.of([(500, 0.03, 0.1), (20_000, 0.2, 0.1)], convention="pytorch")
    common = {"width": 10, "schedule": schedule, "seeds": 30, "records": 101}
    assert jumps(problem, 3, **common).jumped >= 24
    with pytest.warns(UserWarning, match="shuffled"):
        shuffled = jumps(problem, 3, sampling="shuffled", **common)
    assert shuffled.jumped == 0
    assert np.all(shuffled.runs.ratio[:, -1] > 0.3)


def test_runs_that_return_or_never_jump():
    """Runs made by hand: one jumps, one is always low, one returns, one stays up, one diverges."""
    nan = np.nan
    ratio = np.array(
        [
            [0.5, 0.4, 0.01, 0.02],
            [0.01, 0.02, 0.01, 0.03],
            [0.5, 0.01, 0.5, 0.1],
            [0.5, 0.5, 0.5, 0.2],
            [0.5, 0.01, nan, nan],
        ]
    )
    made = simulate(
        two_by_two(0.5), 3, 2, Schedule.constant(30, 0.01, 0.1), seeds=5, records=4
    )
    runs = replace(
        made,
        singular_values=np.stack([np.where(np.isnan(ratio), nan, 1.0), ratio], axis=-1),
        train_error=np.where(np.isnan(ratio), nan, 1.0),
    )
    found = find_jumps(runs, threshold=0.1, floor=0.05, confidence=0.9)
    assert found.jump_step.tolist() == [10, 0, -1, -1, -1]
    assert (found.below, found.returned) == (4, 1)
    assert found.surviving.tolist() == [0.75, 0.5, 0.5, 0.5]
    assert np.all((found.lower < found.surviving) & (found.surviving < found.upper))


def test_interrupted_runs_are_judged_by_the_records_that_all_reached():
    """`overt jumps` promised results so far after Ctrl-C, and showed nan."""
    made = simulate(
        two_by_two(0.5), 3, 2, Schedule.constant(30, 0.01, 0.1), seeds=2, records=4
    )
    ratio = np.array([[0.5, 0.01, 0.01, np.nan], [0.5, 0.4, 0.4, 0.4]])
    error = np.where(np.isnan(ratio), np.nan, 1.0)
    runs = replace(
        made,
        singular_values=np.stack([error, ratio], axis=-1),
        train_error=error,
        status=Status.INTERRUPTED,
    )
    found = find_jumps(runs)
    assert found.steps.tolist() == [0, 10, 20]
    assert found.surviving.tolist() == [0.5, 0.5, 0.5]
    assert found.jump_step.tolist() == [0, -1]
    assert found.status == Status.INTERRUPTED
