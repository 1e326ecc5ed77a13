"""Theorem 11: the constant that is proved."""

import numpy as np

from overt.papers.thesis.completion import rademacher_constant


def test_the_proved_constant_falls_with_the_size_and_is_at_least_what_is_needed():
    sizes = [rademacher_constant((d, d)) for d in (2, 10, 1000, 10**9)]
    assert sizes == sorted(sizes, reverse=True)
    assert 1.558 < np.sqrt(2) + 1 / 3 < sizes[-1] < 1.82
