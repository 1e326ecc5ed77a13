"""Jumps, the sets that SGD does not leave, and the command."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom
from typer.testing import CliRunner

from overt import Entries, InputError
from overt.decay import (
    Schedule,
    balanced,
    find_jumps,
    jumps,
    simulate,
    survival,
    two_by_two,
)
from overt.decay.simulation import last_crossing
from overt.papers.rank_sets import ApproximateRankSet, approximate_rank

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


def test_survival_band_is_the_exact_binomial_one():
    share, lower, upper = survival(
        np.array([5, 7, -1, -1, 7]), np.array([0, 5, 6, 7]), 0.9
    )
    assert share.tolist() == [1.0, 0.8, 0.8, 0.4]
    assert binom.sf(1, 5, lower[3]) == pytest.approx(0.05)
    assert binom.cdf(2, 5, upper[3]) == pytest.approx(0.05)
    assert upper[0] == 1
    assert np.all(lower < share)
    for wrong in ([[5], [7]], [0.5]):
        with pytest.raises(InputError, match="one-dimensional"):
            survival(np.array(wrong), np.array([0, 5]))
        with pytest.raises(InputError, match="one-dimensional"):
            survival(np.array([0, 5]), np.array(wrong))


def test_deeper_networks_jump():
    """Figure 2 with a narrower network: depth 4 jumps, depth 3 does not, and none returns."""
    problem = two_by_two(0.1)
    shallow, deep = (
        jumps(problem, depth, 40, FIGURE_2, 10, records=101) for depth in (3, 4)
    )
    assert shallow.jumped <= 1
    assert deep.jumped >= 6
    assert deep.returned == shallow.returned == 0
    assert deep.share(5000) == pytest.approx(deep.jumped / 10)
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
    assert [found.share(step) for step in (0, 9, 10, 25, 99)] == [
        0.25,
        0.25,
        0.5,
        0.75,
        0.75,
    ]
    assert binom.cdf(1, 4, found.upper[-1]) == pytest.approx(0.1)
    with pytest.raises(InputError, match="at least 0"):
        found.share(-1)
    never = type(runs)(
        **{
            **vars(runs),
            "singular_values": s[[3, 3, 0, 3, 3]],
            "train_error": error[[0] * 5],
        }
    )
    assert find_jumps(never).median == np.inf


@pytest.mark.parametrize(("L", "rank"), [(3, 1), (4, 1), (5, 2)])
def test_constants_of_other_depths_and_ranks(L, rank):
    """Theorems B.1, B.2 and E.2 written out, where powers of the depth differ from 1."""
    problem = Entries.from_matrix(np.array([[1.0, 2.0, np.nan], [0.5, np.nan, 1.5]]))
    n, wd, e2 = 7, 0.4, 0.2
    lam, C1 = 2 * wd, 4.0
    for absorbing in (False, True):
        C = C1 / lam if absorbing else C1 / (2 * lam)
        made = 2 * (C1 + C**L)
        alpha = (lam**2 / made) ** (1 / (L - 2))
        e1 = (
            lam
            * alpha
            * e2
            / (32 * n * L * (rank + 1) * C ** ((L - 1) / 2) * made**0.5)
        ) ** 2
        if absorbing:
            e1 = min(e1, alpha * e2 / (4 * (n - rank) * (L - 1)))
        region = ApproximateRankSet.for_problem(
            problem, L, n, wd, rank, slack=e2, absorbing=absorbing
        )
        assert (region.rank, region.slack) == (rank, e2)
        assert region.bound == pytest.approx(C)
        assert region.alpha == pytest.approx(alpha)
        assert region.balance == pytest.approx(e1, rel=1e-9, abs=0)
        D = made * C ** (L - 1) + lam**2 * C
        assert region.learning_rates(problem, L, n, wd) == pytest.approx(
            {
                "bound": C1 / (4 * D),
                "balance": 2
                * lam
                * e1
                / (4 * (C1 + C**L) * C ** (L - 1) + lam**2 * e1),
                "rank": lam * alpha * e2 / (32 * n * (rank + 1) * D),
                "overshoot": 2 * (rank + 1) / lam,
            },
            rel=1e-9,
            abs=0,
        )


def test_membership():
    rng = np.random.default_rng(0)
    region = ApproximateRankSet(1, 1e-8, 0.25, 1e-2, 50.0)
    one = np.outer(rng.standard_normal(3), rng.standard_normal(3))
    two = one + np.outer(rng.standard_normal(3), rng.standard_normal(3))
    assert region.contains(balanced(one, 3, 4, 1))
    assert region.violations(balanced(two, 3, 4)) == {
        "bound": False,
        "balance": False,
        "rank": True,
    }
    tilted = balanced(one, 3, 4, 1)
    tilted[0] *= 2
    assert region.violations(tilted)["balance"]
    assert ApproximateRankSet(1, 1.0, 0.25, 1e-2, 0.1).violations(tilted)["bound"]
    np.testing.assert_allclose(
        [approximate_rank([np.diag(np.sqrt([x]))], 1.0) for x in (0, 0.5, 1, 7.0)],
        [0, 0.75, 1, 1],
    )


@pytest.mark.parametrize("slack", [0.5, 0.0])
def test_slack_must_be_below_one_half(slack):
    with pytest.raises(InputError):
        ApproximateRankSet(1, 1.0, slack, 0.1, 1.0)


@pytest.mark.parametrize("options", [{"floor": 0.1}, {"confidence": 1.0}, {"rank": 2}])
def test_bad_jump_options(options):
    runs = simulate(two_by_two(0.5), 3, 4, Schedule.constant(10, 0.1, 0.01))
    with pytest.raises(InputError):
        find_jumps(runs, **options)


def command(*arguments):
    import overt.cli.jumps  # noqa: F401  (registers its command)
    from overt.cli.base import app

    return CliRunner().invoke(app, ["jumps", *map(str, arguments)])


SMALL = ("--width", 10, "--seeds", 3, "--noisy-steps", 300, "--quiet-steps", 100)


def test_command_prints_tables_and_writes_files(tmp_path):
    out, picture = tmp_path / "runs.npz", tmp_path / "jumps.png"
    result = command(*SMALL, "--out", out, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert "of 3 runs jumped" in result.output
    assert "overestimating" in result.output
    assert out.exists()
    assert picture.stat().st_size > 1000


def test_command_prints_json():
    result = command(*SMALL, "--json")
    found = json.loads(result.output)
    assert len(found["jump_step"]) == 3
    assert [m["rank"] for m in found["minima"]] == [0, 1, 2]
    assert len(found["schedule"]["phases"]) == 3


def test_command_refuses_a_strange_file(tmp_path):
    result = command(*SMALL, "--out", tmp_path / "runs.csv")
    assert isinstance(result.exception, InputError)


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
