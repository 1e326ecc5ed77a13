"""Parts of bounds on retentivity and complexity, against the same written plainly."""

from itertools import permutations, product

import numpy as np
import pytest

from overt import Dropout, InputError
from overt.relu import TwoLayer, margin, positive_norm, rademacher, retentivity
from overt.relu.complexity import _search
from overt.relu.margins import _fresh
from overt.relu.retention import _branch_and_bound, _coupling, _descend, _starts, whiten


def shares(Z, p, V):
    return np.maximum(V @ Z.T, 0) ** 2 @ p


def bound_of_caps(Z, p, level):
    """The least of |g| cos(theta + rho) - f(v0) over the 4^level or 8^level parts of each face."""
    rank, found = Z.shape[1], []
    half = 0.5**level
    for axis, sign in product(range(rank), (1.0, -1.0)):
        for place in product(np.arange(-1 + half, 1, 2 * half), repeat=rank - 1):
            ends = [np.insert(np.add(place, half * np.array(c)), axis, sign)
                    for c in product((-1, 1), repeat=rank - 1)]  # fmt: skip
            v = np.insert(np.array(place), axis, sign)
            v = v / np.linalg.norm(v)
            rho = max(np.arccos(v @ e / np.linalg.norm(e)) for e in ends)
            f, g = shares(Z, p, v), 2 * (p * np.maximum(Z @ v, 0)) @ Z
            theta = np.arccos(g @ v / np.linalg.norm(g))
            found.append(np.linalg.norm(g) * np.cos(min(theta + rho, np.pi)) - f)
    return max(min(found), 0.0)


@pytest.mark.parametrize("rank", [3, 4])
def test_caps_of_the_cube_bound_what_is_inside_them(rank):
    rng = np.random.default_rng(rank)
    X = rng.standard_normal((40, rank))
    X = np.r_[X, -X + 0.1 * rng.standard_normal((40, rank))]
    p = np.full(80, 1 / 80)
    Z, parts = whiten(X, p), 2 ** (rank - 1)
    plain = [bound_of_caps(Z, p, level) for level in (0, 1, 2)]
    cells = 2 * rank * np.array([1, 1 + parts, 1 + parts + parts**2])
    for count, expected in zip(cells, plain, strict=True):
        assert _branch_and_bound(Z, p, 1.0, count) == pytest.approx(expected)
    assert 0 < plain[1] < plain[2]
    assert _branch_and_bound(Z, p, 1.0, cells[1] - 1) == pytest.approx(plain[0])
    V = rng.standard_normal((20_000, rank))
    least = shares(Z, p, V / np.linalg.norm(V, axis=1, keepdims=True)).min()
    upper, v = _descend(Z, p, _starts(X, Z, p, 16, rng))
    assert upper == pytest.approx(shares(Z, p, v))
    assert plain[2] < upper <= least


def test_points_are_paired_with_reflections_of_others():
    rng = np.random.default_rng(1)
    half = rng.standard_normal((3, 3))
    X = np.r_[half, -half + 0.05 * rng.standard_normal((3, 3))]
    Z = whiten(X, np.full(6, 1 / 6))
    best = min(permutations(range(6)), key=lambda order: np.sum((Z + Z[list(order)]) ** 2))
    D = Z + Z[list(best)]
    expected = (1 - np.sqrt(np.linalg.eigvalsh(D.T @ D / 6)[-1])) / 2
    assert _coupling(Z, np.full(6, 1 / 6)) == pytest.approx(expected)
    assert _coupling(Z, np.arange(1.0, 7.0) / 21) == 0.0
    assert _coupling(Z, np.full(6, 1 / 6), largest=5) == 0.0
    assert _coupling(Z, np.full(6, 1 / 6), largest=6) > 0
    symmetric = retentivity(np.r_[half, -half])
    assert (symmetric.lower, symmetric.method) == (pytest.approx(0.5), "descent and coupling")
    assert retentivity(X).method == "branch and bound"


def test_suprema_are_searched_from_both_poles():
    p = np.full(2, 0.5)
    Z = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    for c in ([1.0, 0.0], [-1.0, 0.0], [-2.0, -2.0], [3.0, 3.0]):
        c = np.array(c)
        best = np.linalg.norm(c) / np.sqrt(0.5)  # of c.s / sqrt(|s|^2 / 2), at s = c
        assert _search(Z, p, c, 0, np.random.default_rng(0)) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("count", [3, 64])
def test_starts_are_the_best_of_those_listed(count):
    rng, again = np.random.default_rng(2), np.random.default_rng(2)
    X = np.random.default_rng(3).random((10, 3))
    p = np.arange(1.0, 11.0) / 55
    Z = whiten(X, p)
    np.testing.assert_allclose(Z.T * p @ Z, np.eye(3), atol=1e-12)
    mean = -(p @ X)
    against = (p * (X @ mean)) @ Z
    np.testing.assert_allclose(Z @ against, X @ mean)  # the direction -E x of X
    some = Z[again.choice(10, min(10, count), replace=False)]
    V = [against, *-some, *some, *np.eye(3), *-np.eye(3), -Z.mean(0),
         *again.normal(size=(count, 3))]  # fmt: skip
    V = np.array([v / np.linalg.norm(v) for v in V])
    order = np.argsort(shares(Z, p, V), kind="stable")[:count]
    found = _starts(X, Z, p, count, rng)
    np.testing.assert_allclose(found, V[order], atol=1e-12)


def test_descents_on_the_sphere_never_ascend():
    rng = np.random.default_rng(4)
    p = np.full(30, 1 / 30)
    Z = whiten(rng.standard_normal((30, 5)) + 0.2, p)
    ends = []
    for start in (V := rng.standard_normal((12, 5))):
        v, before = start / np.linalg.norm(start), np.inf
        while before - shares(Z, p, v) > 1e-14:
            before = shares(Z, p, v)
            v = v - (p * np.maximum(Z @ v, 0)) @ Z
            v /= np.linalg.norm(v)
        ends.append(shares(Z, p, v))
    V = V / np.linalg.norm(V, axis=1, keepdims=True)
    for part in (slice(0, 1), slice(0, 12)):
        value, v = _descend(Z, p, V[part])
        assert value == pytest.approx(min(ends[part]), rel=1e-6)
        assert (value, 1.0) == (pytest.approx(shares(Z, p, v)), pytest.approx(np.linalg.norm(v)))
    one = V[0] - (p * np.maximum(Z @ V[0], 0)) @ Z
    assert _descend(Z, p, V[:1], 1)[0] == pytest.approx(shares(Z, p, one / np.linalg.norm(one)))


@pytest.mark.parametrize("seed", range(3))
def test_suprema_are_as_large_as_those_of_many_directions(seed):
    rng = np.random.default_rng(seed)
    p = rng.random(7)
    p /= p.sum()
    Z, c = whiten(rng.standard_normal((7, 3)), p), rng.choice([-1.0, 1.0], 7)
    S = np.maximum(rng.standard_normal((100_000, 3)) @ Z.T, 0)
    grid = np.abs(S @ c) / np.sqrt(np.maximum(S**2 @ p, 1e-12))
    found = _search(Z, p, c, 400, rng)
    assert 1 - 1e-9 <= found / grid.max() < 1.02


def test_fresh_margins_are_means_less_three_errors():
    rng, again = np.random.default_rng(5), np.random.default_rng(5)
    X = np.random.default_rng(6).standard_normal((4, 3))
    signed = np.array([1.0, -1.0, 1.0, -1.0])[:, None] * X
    p = np.array([0.4, 0.3, 0.2, 0.1])
    terms, lengths = [], []
    for _ in range(20):
        for z in again.normal(size=(5, 3)):
            gates = (X @ z >= 0).astype(float)
            s = (gates * p) @ signed
            lengths.append(np.linalg.norm(s))
            psi = s / lengths[-1] if lengths[-1] else 0 * s
            terms.append(gates * (signed @ psi))
    lower = np.min(np.mean(terms, axis=0) - 3 * np.std(terms, axis=0) / 10)
    upper = np.mean(lengths) + 3 * np.std(lengths) / 10
    assert _fresh(rng, X, signed, p, 5) == (pytest.approx(lower), pytest.approx(upper))


def test_the_margin_of_one_example_is_found_at_once():
    found = margin(np.array([[1.0, 0.0]]), [1], features=50, iterations=1, drop_prob=0.5)
    assert found.status == "converged"
    assert found.gap == pytest.approx(0.0, abs=1e-15)
    assert found.weights.tolist() == [1.0]


def test_norms_take_rounding_below_zero():
    X = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0]])
    C = np.diag([4.0, 0.5, -1e-9])
    assert positive_norm(X, C) == pytest.approx(np.sqrt(1 / 4 + 4 / 0.5 + 1 / 0.5))
    with pytest.raises(InputError, match="no negative eigenvalue"):
        positive_norm(X, np.diag([4.0, 0.5, -1e-5]))
    assert positive_norm(X + np.eye(3)[2], C) == np.inf


@pytest.mark.parametrize("sample", [[0, -1], [0, 4], [], [[0]], [0.5], [3]])
def test_samples_are_rows_of_positive_weight(sample):
    with pytest.raises(InputError, match="sample must"):
        rademacher(np.eye(4), sample=sample, weights=[1.0, 1.0, 1.0, 0.0], draws=2)


def test_directions_have_length_one_and_targets_the_shape_of_predictions():
    rng = np.random.default_rng(7)
    for columns in (1, 2, 3):
        X = 5 * rng.standard_normal((9, columns))
        assert np.linalg.norm(retentivity(X).direction) == pytest.approx(1.0)
    net = TwoLayer(np.ones((2, 4)), np.ones((3, 4)))
    for Y in (np.ones((9, 1)), np.ones((1, 2)), np.ones((8, 2))):
        with pytest.raises(InputError, match="Y must be 9 x 2"):
            net.objective(X, Y, Dropout(0.5))
