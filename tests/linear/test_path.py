"""The regularization path and the knob from the wanted rank."""

import numpy as np
import pytest

import overt


@pytest.mark.parametrize("width", [2, 4, 9])
def test_path_agrees_with_solving_each_point(width):
    M = np.random.default_rng(0).standard_normal((6, 4))
    probs = [0.0, 0.1, 0.5, 0.9, 0.99]
    whole = overt.path(M, width, probs)
    for i, p in enumerate(probs):
        best = overt.LinearNetwork(M, width, overt.Dropout(p)).solve()
        assert whole.objective[i] == pytest.approx(best.objective, rel=1e-12)
        assert whole.rank[i] == best.rank
    assert np.all(np.diff(whole.objective) >= -1e-12)


def test_path_takes_data_and_second_moments():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((20, 3)), rng.standard_normal((20, 2))
    whole = overt.path(X=X, Y=Y, width=2, drop_probs=[0.3])
    best = overt.LinearNetwork(X=X, Y=Y, width=2, noise=overt.Dropout(0.3)).solve()
    assert whole.objective[0] == pytest.approx(best.objective, rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_drop_prob_for_rank_is_the_smallest_that_gives_it(seed):
    rng = np.random.default_rng(seed)
    M, width = rng.standard_normal((6, 5)), int(rng.integers(2, 9))
    for rank in range(1, min(5, width) + 1):
        p = overt.drop_prob_for_rank(M, width, rank)
        assert overt.LinearNetwork(M, width, overt.Dropout(p)).solve().rank == rank
        if p > 0:
            below = overt.LinearNetwork(M, width, overt.Dropout(p * (1 - 1e-4))).solve()
            assert below.rank == rank + 1


def test_ranks_between_limits_that_nearly_meet_are_found():
    M = np.diag([3.0, 2.0, 2.0 - 1e-10])
    p = overt.drop_prob_for_rank(M, 3, 2)
    assert overt.LinearNetwork(M, 3, overt.Dropout(p)).solve().rank == 2


def test_noises_without_a_probability_have_that_of_their_variance():
    noises = [overt.KeepExactly(k) for k in (1, 2, 3)]
    found = overt.path(np.diag([3.0, 2.0, 1.0]), 4, noise=noises).drop_probs
    np.testing.assert_allclose(found, [3 / 4, 2 / 4, 1 / 4])
    connect = overt.path(np.eye(2), 2, noise=overt.DropConnect(0.3))
    np.testing.assert_allclose(connect.drop_probs, [0.3])


def test_unreachable_ranks_are_named():
    with pytest.raises(overt.InputError, match="such as 1 or 3"):
        overt.drop_prob_for_rank(np.diag([3.0, 2.0, 2.0, 1.0]), width=4, rank=2)
    with pytest.raises(overt.InputError, match="at most 2 "):
        overt.drop_prob_for_rank(np.diag([3.0, 2.0, 1.0]), width=2, rank=3)


def test_an_empty_path_is_refused():
    with pytest.raises(overt.InputError, match="drop_probs"):
        overt.path(np.eye(2), 2, [])
