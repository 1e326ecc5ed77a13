"""Retentivity and Rademacher complexity against grids, descent and the two theorems."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from overt import InputError
from overt.papers.relu_capacity import rademacher, retentivity
from overt.relu import positive_norm, rademacher_lower, rademacher_upper

ANGLES = np.linspace(0, 2 * np.pi, 20_001)
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)])


def share(X, v):
    s = X @ v
    return np.mean(np.maximum(s, 0) ** 2, axis=0) / np.mean(s**2, axis=0)


@pytest.mark.parametrize("seed", range(6))
def test_retentivity_in_the_plane_is_exact(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(9, 2)) @ rng.normal(size=(2, 2)) + rng.normal(size=2)
    found = retentivity(X)
    grid = share(X, CIRCLE).min()
    assert found.lower == found.upper <= grid + 1e-12
    assert grid - found.upper < 1e-5
    assert share(X, found.direction) == pytest.approx(found.upper, abs=1e-9)


@pytest.mark.parametrize("dimensions", [1, 3, 8])
def test_retentivity_lies_between_its_sides(dimensions):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, dimensions)) + 0.1
    found = retentivity(X)
    starts = rng.normal(size=(8, dimensions))
    least = min(minimize(lambda v: share(X, v), start).fun for start in starts)
    assert found.lower - 1e-9 <= least
    assert found.upper <= least + 1e-6
    assert share(X, found.direction) == pytest.approx(found.upper, abs=1e-9)
    assert retentivity(np.concatenate([X, -X])).lower == pytest.approx(0.5)
    assert retentivity(np.abs(X)).upper == pytest.approx(0, abs=1e-9)


def test_almost_symmetric_data_have_a_positive_retentivity():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(100, 8))
    near = retentivity(np.concatenate([X, -X + 0.02 * rng.normal(size=X.shape)]))
    assert 0.4 < near.lower <= near.upper


def test_retentivity_of_many_non_negative_inputs_is_seen_at_once():
    X = np.maximum(np.random.default_rng(9).normal(size=(3000, 40)) + 0.5, 0)
    assert retentivity(X).upper == 0


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_units_of_measurement_do_not_matter(scale):
    X = np.random.default_rng(8).normal(size=(12, 2))
    assert retentivity(scale * X).upper == pytest.approx(retentivity(X).upper)
    values = [rademacher(Z, draws=5).value for Z in (X, scale * X)]
    assert values[0] == pytest.approx(values[1])


@pytest.mark.parametrize("skew", [0.0, 0.5])
def test_the_supremum_is_exact(skew):
    X = np.random.default_rng(5).normal(size=(8, 2)) + skew
    found = rademacher(X, draws=40, seed=7)
    S = np.maximum(X @ CIRCLE, 0)
    scaled = S / np.sqrt(np.mean(S**2, axis=0) + 1e-300)
    rng = np.random.default_rng(7)
    signs = np.array([rng.choice((-1.0, 1.0), 8) for _ in range(40)])
    suprema = np.abs(signs @ scaled).max(axis=1) / 8
    assert suprema.mean() <= found.value + 1e-12
    assert found.value == pytest.approx(suprema.mean(), rel=1e-3)
    error = suprema.std(ddof=1) / math.sqrt(40)
    assert found.standard_error == pytest.approx(error, rel=1e-2)
    norm, beta = positive_norm(X, X.T @ X / 8), retentivity(X).lower
    assert found.lower == pytest.approx(rademacher_lower(1.0, norm, 8))
    assert found.upper == pytest.approx(rademacher_upper(1.0, norm, 8, beta))


def test_beyond_the_plane_no_direction_exceeds_the_supremum():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(7, 3)) + 0.3
    found = rademacher(X, draws=30, seed=7)
    V = rng.normal(size=(3, 200_000))
    S = np.maximum(X @ V, 0)
    scaled = S / np.sqrt(np.mean(S**2, axis=0) + 1e-300)
    again = np.random.default_rng(7)
    signs = np.array([again.choice((-1.0, 1.0), 7) for _ in range(30)])
    suprema = np.abs(signs @ scaled).max(axis=1) / 7
    assert suprema.mean() <= found.value + 1e-12
    assert found.value == pytest.approx(suprema.mean(), rel=0.02)  # a random search
    least = retentivity(X)
    assert least.lower == least.upper <= share(X, V).min() + 1e-12
    assert share(X, V).min() - least.upper < 0.005
    assert share(X, least.direction) == pytest.approx(least.upper, abs=1e-9)


def test_complexity_of_a_sample_is_proportional_to_alpha():
    rng = np.random.default_rng(8)
    X, sample = rng.normal(size=(20, 2)) + 0.2, rng.integers(0, 20, 12)
    one, more = (rademacher(X, a, sample=sample, draws=100) for a in (1.0, 2.5))
    assert more.value == pytest.approx(2.5 * one.value)
    assert one.lower <= one.value + 5 * one.standard_error
    assert one.value - 5 * one.standard_error <= one.upper < math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: retentivity(np.zeros((3, 2))), "not zero"),
        (lambda: rademacher(np.random.default_rng(0).normal(size=(80, 3))), "faces"),
        (lambda: rademacher(np.eye(2), draws=1), "draws must be"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
