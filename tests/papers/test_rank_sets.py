"""The sets of matrices of low rank that SGD does not leave."""

import numpy as np
import pytest

from overt import Entries, InputError
from overt.decay import balanced
from overt.papers.rank_sets import ApproximateRankSet, approximate_rank


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
    assert not region.contains(balanced(two, 3, 4))
    assert ApproximateRankSet(2, 1e-8, 0.25, 1e-2, 50.0).contains(balanced(two, 3, 4))
    tilted = balanced(one, 3, 4, 1)
    tilted[0] *= 2
    assert not region.contains(tilted)
    assert ApproximateRankSet(1, 1e3, 0.25, 1e-2, 50.0).contains(tilted)
    assert not ApproximateRankSet(1, 1e3, 0.25, 1e-2, 0.1).contains(tilted)
    np.testing.assert_allclose(
        [approximate_rank([np.diag(np.sqrt([x]))], 1.0) for x in (0, 0.5, 1, 7.0)],
        [0, 0.75, 1, 1],
    )


@pytest.mark.parametrize("slack", [0.5, 0.0])
def test_slack_must_be_below_one_half(slack):
    with pytest.raises(InputError):
        ApproximateRankSet(1, 1.0, slack, 0.1, 1.0)
