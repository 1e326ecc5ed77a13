"""Wrong arguments are refused in a sentence that names them."""

import numpy as np
import pytest

from overt import Entries, InputError
from overt.decay import (
    DeepLinearCompletion,
    Schedule,
    balanced,
    existence,
    find_jumps,
    minima,
    simulate,
    train_error,
    two_by_two,
)

PROBLEM = Entries([0, 0, 1, 2], [0, 1, 1, 3], [1.3, -2.1, 0.4, 1.7], (3, 4))
Fit = DeepLinearCompletion
SMALL = Schedule.constant(4, 0.01, 0.1)


def ran(**more):
    return simulate(
        PROBLEM, **({"depth": 3, "width": 2, "schedule": SMALL, "seeds": 2} | more)
    )


WRONG = [
    (lambda: minima(PROBLEM, 3, 1e200), "weight_decay must be at most"),
    (lambda: minima(PROBLEM, 3, 0.0), "weight_decay must be"),
    (lambda: minima(PROBLEM, 3, 0.1, starts=0), "starts must be"),
    (lambda: minima(PROBLEM, 1, 0.1), "depth must be"),
    (lambda: minima(np.eye(2), 3, 0.1), "problem must be overt.Entries"),
    (
        lambda: minima(Entries([0], [0], [1.0], (400, 400)), 3, 0.1),
        "too large to verify minima",
    ),
    (lambda: existence(PROBLEM, 3, 4), "rank must be at most 3, got 4"),
    (lambda: existence(PROBLEM, 3, 0), "rank must be"),
    (lambda: two_by_two(0.0), "epsilon must be"),
    (lambda: ran(width=0), "width must be"),
    (lambda: ran(depth=1), "depth must be"),
    (lambda: ran(schedule="annealing"), "schedule must be a Schedule"),
    (lambda: ran(records=[9]), r"records must lie in 0..4"),
    (lambda: ran(seeds=[]), "seeds must be"),
    (lambda: ran(init=[np.eye(2)] * 3), "init must be a number or 3 layers"),
    (lambda: ran(records=[]), "records must hold at least one step"),
    (lambda: ran(init=1e51), "at most 1e50"),
    (lambda: ran(init=-1.0), "init must be"),
    (lambda: find_jumps(3), "runs must be what simulate returns, got int"),
    (lambda: find_jumps(ran(), confidence=1.0), "confidence must be between 0 and 1"),
    (lambda: find_jumps(ran(), threshold=0.1, floor=0.2), r"in \(0, threshold = 0.1\]"),
    (lambda: find_jumps(ran(), floor=0.0), "floor must be"),
    (lambda: find_jumps(ran(), rank=0), "rank must be"),
    (lambda: Fit(holdout=1.0).fit(PROBLEM), "holdout must be between 0 and 1"),
    (lambda: Fit(holdout=0.0).fit(PROBLEM), "holdout must be between 0 and 1"),
    (lambda: Fit(width=0).fit(PROBLEM), "width must be"),
    (lambda: Fit(tol=-1.0).fit(PROBLEM), "tol must be"),
    (lambda: Fit(depth=1).fit(PROBLEM), "depth must be"),
    (lambda: Schedule.constant(-1, 0.1, 0.1), "steps must be"),
    (lambda: Schedule.constant(5, -0.1, 0.1), "learning_rate must be"),
    (lambda: Schedule.constant(5, 1.0, 0.5), "a step turns the weights"),
    (lambda: Schedule.constant(5, 0.1, 0.1, convention="torch"), "convention must be"),
    (lambda: Schedule.of([(1, 2)]), "triples"),
    (lambda: Schedule(()), "phases must be a list"),
    (lambda: balanced(np.eye(2), 1), "depth must be"),
    (lambda: balanced(np.ones(2), 3), "A must"),
    (lambda: train_error(PROBLEM, np.eye(2)), r"A must be \(3, 4\) numbers"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_mistakes_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
