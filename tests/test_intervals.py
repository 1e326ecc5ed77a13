"""Intervals of shares against scipy's own."""

import numpy as np
import pytest
from scipy.stats import binomtest

from overt._intervals import clopper_pearson


@pytest.mark.parametrize("level", [0.9, 0.95, 0.999])
def test_agrees_with_scipy_entry_by_entry(level):
    trials = np.repeat([1, 2, 7, 40], 3)
    successes = np.array([0, 1, 1, 0, 1, 2, 0, 3, 7, 0, 17, 40])
    low, high = clopper_pearson(successes, trials, level)
    for k, n, a, b in zip(successes, trials, low, high, strict=True):
        expected = binomtest(int(k), int(n)).proportion_ci(level, method="exact")
        assert (a, b) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_numbers_and_arrays_mix():
    low, high = clopper_pearson(3, 10, 0.95)
    assert low.shape == high.shape == ()
    assert low < 0.3 < high
    assert clopper_pearson(np.arange(4), 3, 0.95)[1][-1] == 1.0
