"""Schedules: phases, pieces and conventions."""

import pytest

from overt import InputError
from overt.decay import Phase, Schedule, effective
from overt.decay.schedule import cut_into_pieces


def test_schedules_are_cut_into_pieces():
    plan = Schedule((Phase(3, 0.1, 0.2), Phase(4, 0.3, 0.4)))
    first, second = plan.phases
    assert cut_into_pieces(plan, [0, 1, 3, 5, 9]) == [
        (0, 1, first),
        (1, 3, first),
        (3, 5, second),
        (5, 7, second),
    ]
    assert plan.steps == 7
    assert repr(plan) == "Schedule(3 x (0.1, 0.2), 4 x (0.3, 0.4))"
    warm = Schedule.annealing(7, 8, convention="loss")
    assert warm.to_dict() == {
        "phases": [[500, 0.03, 0.1], [7, 0.2, 0.1], [8, 0.02, 0.001]]
    }
    assert Schedule.annealing(7, 8).phases[0] == Phase(500, 0.06, 0.025)
    assert effective(0.2, 0.1, "appendix") == (0.2, 0.05)
    for name in ("noisy", "quiet"):
        with pytest.raises(InputError, match=f"{name} must be"):
            Schedule.annealing(7, 8, **{name: (0.1,)})


@pytest.mark.parametrize(
    ("convention", "decay", "rate"),
    [
        ("loss", lambda eta, lam: 1 - 2 * eta * lam, lambda eta: eta),
        ("appendix", lambda eta, lam: 1 - eta * lam, lambda eta: eta),
        ("pytorch", lambda eta, lam: 1 - eta * lam, lambda eta: 2 * eta),
    ],
)
def test_conventions(convention, decay, rate):
    eta, lam = effective(0.3, 0.07, convention)
    assert 1 - 2 * eta * lam == pytest.approx(decay(0.3, 0.07))
    assert eta == pytest.approx(rate(0.3))
