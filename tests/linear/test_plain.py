"""Parts of solvers against their formulas, entry by entry and by differences."""

import itertools
from fractions import Fraction
from types import SimpleNamespace

import cvxpy as cp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
import torch

import overt
from overt import InputError
from overt.linear import (
    blocks,
    descent,
    layers,
    proofs,
    proposals,
    sampling,
    tied,
    units,
    weights,
    whitening,
)
from overt.linear import training as linear_training
from overt.linear.bounds import (
    Leading,
    envelopes,
    numerical_rank,
    pairs_below,
    positive,
    relax,
    shrink,
    thresholded,
)
from overt.linear.descent import (
    _rounding,
    attains,
    descend,
    least_penalty,
    nudged,
    refine,
    settle,
)
from overt.linear.landscape import feasible_sets
from overt.linear.layers import _chained, _chains
from overt.linear.regression import DenseRegression
from overt.linear.shares import UnitShares
from overt.linear.sharing import sharing
from overt.linear.units import UnitNoise
from overt.linear.weights import _dual, best_map
from overt.spectral import KSupport, Schatten, SquaredNuclear

NOISES = [overt.Dropout(0.4), overt.DropBlock(0.4, 2, "sliding"), overt.CovarianceNoise(
    np.ones(3), np.array([[1.0, -0.4, 0.1], [-0.4, 0.7, 0.2], [0.1, 0.2, 0.5]]))]  # fmt: skip


def effect(noise, decay=0.0):
    net = overt.LinearNetwork(np.diag([3.0, 2.0, 1.0]), 3, noise, weight_decay=decay)
    return net.effect


def differences(f, at, h=1e-6):
    """The gradient of f by central differences."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[place] = h
        found[place] = (f(at + step) - f(at - step)) / (2 * h)
    return found


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
@pytest.mark.parametrize(("mu", "raised"), [(0.0, 1.0), (0.3, 1.0), (0.3, 2.5)])
def test_objective_of_factors_term_by_term(noise, mu, raised):
    rng = np.random.default_rng(0)
    task, (T, U, P) = effect(noise), rng.standard_normal((3, 3, 3))
    assert isinstance(task, UnitNoise)
    Gamma = noise.characteristic(3)

    def plain(U, P):
        total = sum((T[i, j] - U[i] @ P[j]) ** 2 for i in range(3) for j in range(3))
        for k, l in itertools.product(range(3), repeat=2):  # noqa: E741
            total += raised * Gamma[k, l] * (U[:, k] @ U[:, l]) * (P[:, k] @ P[:, l])
        return total + mu * (np.sum(U**2) + np.sum(P**2))

    value, (of_U, of_P) = task._value(T, U, P, mu, raised)
    assert value == pytest.approx(plain(U, P))
    np.testing.assert_allclose(of_U, differences(lambda Z: plain(Z, P), U), atol=1e-6)
    np.testing.assert_allclose(of_P, differences(lambda Z: plain(U, Z), P), atol=1e-6)
    best = task._partner(T, U, mu, raised)
    np.testing.assert_allclose(task._value(T, U, best, mu, raised)[1][1], 0, atol=1e-9)
    best = task._partner(T, U, mu)
    np.testing.assert_allclose(task._value(T, U, best, mu)[1][1], 0, atol=1e-9)
    U[:, 1] = 0  # a unit that carries nothing
    assert np.isfinite(task._partner(T, U, mu)).all()


@pytest.mark.parametrize(("m", "weak"), [((6.0, 4.0, 2.0), 1.0), ((6.0, 4.0, 2.0), 1e-12),
                                         ((0.0, 0.0, 0.0), 1.0)])  # fmt: skip
def test_factors_are_refined_in_units_of_the_target(monkeypatch, m, weak):
    """|diag(m) - U P'|^2 + <Gamma, U'U o P'P> + mu (|U|^2 + |P|^2) over m_1^2, P = U for a root."""
    rng, asked, m = np.random.default_rng(2), [], np.array(m)
    noise = overt.CovarianceNoise(np.ones(3), weak * NOISES[2].characteristic(3))
    net = overt.LinearNetwork(np.diag([3.0, 2.0, 1.0]), 3, noise, weight_decay=0.3)
    task, scale = net.effect, m[0] or 1.0
    T, mu, Gamma = np.diag(m) / scale, 0.3 / scale, noise.characteristic(3)

    def plain(U, P, raised=1.0):
        cost = np.sum((T - U @ P.T) ** 2) + mu * (np.sum(U**2) + np.sum(P**2))
        return cost + raised * np.sum(Gamma * (U.T @ U) * (P.T @ P))

    def partner(U, raised=1.0):
        K = U.T @ U + raised * Gamma * (U.T @ U) + mu * np.eye(3)
        return np.linalg.solve(K, U.T @ T).T

    start, better, Z = rng.standard_normal((3, 3, 3))
    B = start / np.sqrt(scale)
    ends = iter([better, 1e3 * better, better])

    def refine(*given):
        asked.append(given)
        return (next(ends),)

    monkeypatch.setattr(units, "refine", refine)
    U, P = task.best_factors(m, start, 0.1)
    np.testing.assert_allclose(U, np.sqrt(scale) * better)
    np.testing.assert_allclose(P, np.sqrt(scale) * partner(better), atol=1e-12)
    assert all(W is start for W in task.best_factors(m, start, 0.1))  # of a higher value
    value, starts, enough = asked[0]
    assert enough == pytest.approx(0.1 / scale**2)
    np.testing.assert_allclose(starts, [(B,), nudged(B)])
    raised = max(1.0, 1e-8 / np.abs(Gamma).max())
    found, (slope,) = value(Z)
    assert found == pytest.approx(plain(Z, partner(Z, raised), raised))
    least = differences(lambda U: plain(U, partner(U, raised), raised), Z)
    np.testing.assert_allclose(slope, least, atol=1e-6)
    at_start = plain(B, B) * scale**2
    assert all(W is start for W in task.best_factors(m, start, at_start * (1 + 1e-9)))  # enough
    assert len(asked) == 2
    spectrum = np.array([5.0, 3.0, 1.0])
    np.testing.assert_allclose(task.best_root(m, spectrum, 0.1), np.sqrt(scale) * better)
    value, ((root,), (other,)), enough = asked[2]
    np.testing.assert_allclose(root @ root.T, np.diag(spectrum) / scale, atol=1e-9)
    np.testing.assert_allclose([other], nudged(root))
    assert enough == pytest.approx(0.1 / scale**2)
    found, (slope,) = value(Z)
    assert found == pytest.approx(plain(Z, Z))
    np.testing.assert_allclose(slope, differences(lambda U: plain(U, U), Z), atol=1e-6)


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
def test_decayed_factors_have_equal_norms_and_the_same_map(noise):
    rng, task = np.random.default_rng(1), effect(noise, decay=0.2)
    U, V = rng.standard_normal((2, 3, 5))
    U[:, 2] = V[:, 3] = U[:, 4] = V[:, 4] = 0
    found = task._decayed(U, V)
    np.testing.assert_allclose(found[0] @ found[1].T, U @ V.T)
    for k in (0, 1):
        assert np.linalg.norm(found[0][:, k]) == pytest.approx(np.linalg.norm(found[1][:, k]))
    same = effect(noise)._decayed(U, V)
    assert same[0] is U
    assert same[1] is V


def test_penalties_that_cancel_are_sums_of_squares():
    """Units in pairs u, -u, whose noises are correlated such that what they add nearly cancels."""
    K = np.array([[1.0, 1.0 - 1e-9], [1.0 - 1e-9, 1.0]])
    noise = overt.CovarianceNoise(np.ones(2), K)
    net = overt.LinearNetwork(np.eye(2), 2, noise)
    u, v = np.array([[1.0, -1.0], [2.0, -2.0]]), np.array([[1.0, 1.0], [1.0, 1.0]])
    exact = 2 * 5.0 * 2.0 * 1e-9  # |u|^2 |v|^2 (1 + 1 - 2 (1 - 1e-9))
    assert net.effect.penalty(u, v) == pytest.approx(exact, rel=1e-6, abs=0)
    w = np.array([[1.0, 1.0], [2.0, 2.0]])
    assert net.effect.penalty(w, v) == pytest.approx(5.0 * 2.0 * (4 - 2e-9), rel=1e-12)


@pytest.mark.parametrize("rows", [None, 40])
def test_rounding_of_bounds_is_its_formula(rows):
    rng = np.random.default_rng(2)
    if rows is None:
        task = overt.LinearNetwork(rng.standard_normal((4, 7)), 3, overt.Dropout(0.3))
    else:
        X = rng.standard_normal((rows, 5))
        Y = X @ rng.standard_normal((5, 3)) + rng.standard_normal((rows, 3))
        task = overt.LinearNetwork(X=X, Y=Y, width=3, noise=overt.Dropout(0.3))
    task = task.effect.regression
    assert isinstance(task, DenseRegression)
    bound, loss, nuclear = 3.1, 0.7, 2.3
    size = max(*task.samples.inputs.shape, *task.T.shape, task.inputs)
    largest = np.sqrt(task.scale) if rows else np.linalg.norm(task.T, 2)
    lean = 2 * 30.0 * np.sqrt(task.residual) * nuclear
    terms = bound + 2 * largest * np.sqrt(min(task.T.shape) * loss) + lean
    expected = 8 * np.finfo(float).eps * np.sqrt(size) * terms
    assert task.rounding(bound, loss, nuclear) == pytest.approx(expected, rel=1e-9, abs=0)
    assert whitening.MENDED == 30.0


def test_slices_of_a_landscape_point_by_point():
    rng = np.random.default_rng(3)
    A = rng.standard_normal((3, 3))
    net = overt.TiedAutoencoder(A @ A.T, 2, overt.Dropout(0.3))
    found = net.landscape()
    center, first, second = rng.standard_normal((3, 3, 2))
    axis, values = found.slice(center, first, second, 1.5, 4)
    np.testing.assert_allclose(axis, [-1.5, -0.5, 0.5, 1.5])
    for (i, a), (j, b) in itertools.product(enumerate(axis), repeat=2):
        U = center + a * first + b * second
        norms = np.sum(U**2, axis=0)
        expected = np.sum((A @ A.T - U @ U.T) ** 2) + 0.3 / 0.7 * np.sum(norms**2)
        assert values[i, j] == pytest.approx(expected)


def test_descents_of_tied_weights_start_in_turned_coordinates(monkeypatch):
    """R R' = (I + t C)^-1 for t = 0, and between the inverse eigenvalues of C."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((40, 3)) * [3.0, 1.0, 0.4]
    task = overt.TiedAutoencoder(X=X, width=2, noise=overt.Dropout(0.3)).effect
    C, seen = X.T @ X / 40, []
    monkeypatch.setattr(type(task), "_turned", lambda self, R, Z: seen.append((R, Z)) or (R @ Z,))
    U = rng.standard_normal((3, 2))
    ends = list(task._ends(U, 3, 10))
    assert len(ends) == 1 + 4 + 5
    values = np.linalg.eigvalsh(C)
    ts = [0.0, *np.geomspace(1 / values[-1], 1 / values[0], 3)]
    for t, (R, Z) in zip(ts, seen, strict=False):
        np.testing.assert_allclose(R @ R.T, np.linalg.inv(np.eye(3) + t * C), atol=1e-9)
        # Eigenvectors of K + K' = 2 C relative to I + t C, each at w'K w / w'C w = 1.
        W = scipy.linalg.eigh(2 * C, np.eye(3) + t * C)[1][:, :0:-1]
        W /= np.linalg.norm(W, axis=0)
        np.testing.assert_allclose(R @ Z @ Z.T @ R.T, W @ W.T, atol=1e-9)
        norms = np.linalg.norm(R @ Z, axis=0)
        assert norms[0] == pytest.approx(norms[1])
    again, ends = np.random.default_rng(0), np.log([ts[1], ts[-1]])
    for R, Z in seen[4:]:  # t at random, and weights up to ten times what fits best
        t, drawn = np.exp(again.uniform(*ends)), again.standard_normal((3, 2))
        np.testing.assert_allclose(R @ R.T, np.linalg.inv(np.eye(3) + t * C), atol=1e-9)
        W = R @ drawn
        fit = np.sum(W * (C @ W)) / np.sum((W.T @ W) * (W.T @ C @ W))
        np.testing.assert_allclose(Z, np.sqrt(fit) * 10 ** again.uniform(-1, 1) * drawn)


@pytest.mark.parametrize(("width", "plan"), [(25, tied.THOROUGH), (26, tied.QUICK)])
def test_tied_weights_are_searched_for_as_planned(monkeypatch, width, plan):
    X = np.random.default_rng(27).standard_normal((30, 4)) * [3.0, 1.0, 0.4, 0.2]
    task, asked, drawn = overt.TiedAutoencoder(X=X, width=width, noise=DROP).effect, [], []
    directions, (balances, tries, needed) = type(task)._directions, plan
    monkeypatch.setattr(type(task), "_directions",
                        lambda *given: drawn.append(1) or directions(*given))  # fmt: skip
    monkeypatch.setattr(type(task), "_turned", lambda self, R, Z: (R @ Z,))
    monkeypatch.setattr(tied, "descend", lambda value, start: start)
    monkeypatch.setattr(tied, "settle", lambda *given: asked.append(given) or given[1])
    (U,) = task.best_weights()
    ((_, (first,), ends, enough, agreeing, alike),) = asked
    assert first is U
    assert enough == attains(task.relaxation.bound)
    assert (len(list(ends)), agreeing) == (tries, needed)
    assert len(drawn) == balances + 1
    assert alike == 1 + len(drawn)  # all that are not random


def test_directions_of_tied_weights_are_those_that_lower_the_error():
    rng = np.random.default_rng(18)
    R, M = rng.standard_normal((2, 4, 4))
    C, M = R @ R.T, M - np.eye(4)
    task = overt.TiedAutoencoder(M, 3, overt.Dropout(0.3), second_moment=C).effect
    K, R = M @ C, rng.standard_normal((4, 4))
    _, W = scipy.linalg.eigh(K + K.T, np.linalg.inv(R @ R.T))
    W = W[:, :0:-1] / np.linalg.norm(W[:, :0:-1], axis=0)
    gain = np.diag(W.T @ K @ W)
    W, a = W[:, gain > 0], (gain / np.diag(W.T @ C @ W))[gain > 0]
    assert 0 < len(a) < 3
    U = R @ task._directions(K, R)
    np.testing.assert_allclose(U @ U.T, W * a @ W.T, atol=1e-9)
    for unit in (1e-16, 1e16):
        U = R @ task._directions(unit * K, R)
        np.testing.assert_allclose(U @ U.T / unit, W * a @ W.T, atol=1e-9)
    Z = rng.standard_normal((4, 3))
    monkeypatched = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tied, "descend", lambda *given: monkeypatched.append(given) or (2 * Z,))
        np.testing.assert_allclose(task._turned(R, Z), [2 * R @ Z])
    value, (start,) = monkeypatched[0]
    assert start is Z
    found, (slope,) = value(Z)
    assert found == pytest.approx(task.value(R @ Z)[0])
    np.testing.assert_allclose(slope, differences(lambda Z: task.value(R @ Z)[0], Z), rtol=1e-4)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("noise", [overt.Dropout(0.3), overt.DropConnect(0.3)])
def test_an_input_that_is_always_zero_changes_nothing(noise, width):
    rng = np.random.default_rng(19)
    X, Y, M = rng.standard_normal((20, 3)), rng.standard_normal((20, 2)), np.ones((2, 3))
    wide, C = np.insert(X, 1, 0.0, axis=1), X.T @ X / 20
    moment = np.insert(np.insert(C, 1, 0.0, axis=0), 1, 0.0, axis=1)
    for given, more in (
        ({"X": X, "Y": Y}, {"X": wide, "Y": Y}),
        ({"target": M, "second_moment": C},
         {"target": np.insert(M, 1, 1e6, axis=1), "second_moment": moment}),
    ):  # fmt: skip
        plain, found = (overt.LinearNetwork(**task, width=width, noise=noise).solve()
                        for task in (given, more))  # fmt: skip
        assert found.objective == pytest.approx(plain.objective, rel=1e-9)
        assert found.status == plain.status
        assert np.abs(found.V[1]).max() < 1e-12


def test_weights_decay_once_a_step_whether_tied_or_not(monkeypatch):
    asked = []
    monkeypatch.setattr(units, "masks", lambda *given, decay, **more: asked.append(decay))
    monkeypatch.setattr(
        "overt.linear.weights.masks", lambda *given, decay, **more: asked.append(decay)
    )
    for net in (overt.LinearNetwork(np.eye(3), 2, DROP, weight_decay=0.3),
                overt.LinearNetwork(np.eye(3), 2, overt.DropConnect(0.2), weight_decay=0.4),
                overt.TiedAutoencoder(np.eye(3), 2, DROP, weight_decay=0.5)):  # fmt: skip
        net.effect.steps(np.random.default_rng(0))
    assert asked == [(0.3, 0.3), (0.4, 0.4), (0.5, 0.0)]
    trace = NET.train(1000, 1e-6, records=5, gradient="expected")
    assert trace.steps.tolist() == [0, 1, 10, 100, 1000]


def test_steps_are_taken_in_blocks_until_one_diverges():
    asked = []

    def kernel(Ut, Vt, x, y, z, rates, decay):
        asked.append((x.shape, y.shape, z.shape, rates.tolist(), decay.tolist()))
        Ut += 1.0
        return len(rates) - (len(asked) == 3)

    samples = sampling.samples_of_target(np.ones((2, 3)), None)
    advance = sampling.masks(kernel, samples, DROP, (4,), np.random.default_rng(0),
                             batch_size=5, decay=(0.1, 0.2))  # fmt: skip
    block = 100_000 // ((2 + 3 + 4) * 5)
    U, V = np.zeros((2, 4)), np.zeros((3, 4))
    rates = np.arange(5.0 * block)
    assert advance([U, V], rates) == 3 * block - 1
    assert [given[3] for given in asked] == [rates[k : k + block].tolist() for k in
                                             (0, block, 2 * block)]  # fmt: skip
    assert {given[:3] for given in asked} == {((block, 5, 3), (block, 5, 2), (block, 5, 4))}
    assert asked[0][4] == [0.1, 0.2]
    assert (U == 3.0).all()
    assert not V.any()
    asked.clear()
    assert advance([U, V], rates[:0]) == 0
    assert asked[0][:3] == ((0, 5, 3), (0, 5, 2), (0, 5, 4))
    assert len(asked) == 1
    large = sampling.samples_of_target(np.ones((2, 200_000)), None)
    one = sampling.masks(kernel, large, DROP, (4,), np.random.default_rng(0))
    asked.clear()
    assert one([U, np.zeros((200_000, 4))], rates[:2]) == 2
    assert len(asked) == 2  # a step at a time


SHARES = [
    (np.array([0.5, 0.5, 0.5, 0.5]), 0.0), (np.array([0.9, 0.1, 0.4, 2.0]), 0.0),
    (np.array([0.9, 0.1, 0.4, 2.0]), 0.6), (np.array([2.9, 1.1, 1.4, 2.0]), -0.2),
    (np.array([0.0, 0.3, 0.0, 1.0]), 0.0), (np.array([9.0, 8.0, 12.0, 7.0]), -1.4),
]  # fmt: skip


@pytest.mark.parametrize(("delta", "gamma"), SHARES)
def test_shares_of_units_solve_their_program(delta, gamma):
    """min |s - a|^2 + gamma |a|^2 + sum delta x^2, tails of x at least those of a."""
    units = UnitShares(delta, gamma)
    for s in (np.array([3.0, 2.0, 0.7]), np.array([1.0, 1.0, 1.0, 0.2]), np.array([2.0])):
        a, n = units.shrink(s), len(s)
        if gamma > -1:
            b, x = cp.Variable(4, nonneg=True), cp.Variable(4, nonneg=True)
            order = np.argsort(delta, kind="stable")
            wide = np.r_[s, np.zeros(4 - n)]
            goal = cp.sum_squares(wide) - 2 * wide @ b + (1 + gamma) * cp.sum_squares(b)
            goal = goal + cp.sum(cp.multiply(delta[order], x**2))
            tails = [cp.sum(x[k:]) >= cp.sum(b[k:]) for k in range(4)]
            tails += [b[n:] == 0] if n < 4 else []
            best = cp.Problem(cp.Minimize(goal), tails).solve(solver=cp.CLARABEL)
            shares = units.shares(a)
            np.testing.assert_allclose(b.value[:n], a, atol=2e-4)
            np.testing.assert_allclose(x.value[delta[order] > 0], shares[order][delta[order] > 0],
                                       atol=2e-4)  # fmt: skip
        else:
            w = 1 / np.sum(1 / delta)
            np.testing.assert_allclose(a, np.r_[s[0] / (1 + gamma + w), np.zeros(n - 1)])
            best = s[0] ** 2 * (gamma + w) / (1 + gamma + w) + np.sum(s[1:] ** 2)
            continue
        bound = units.bound(s)
        assert bound == pytest.approx(best, abs=1e-6)
        y = units.multipliers(s)
        assert np.all(np.diff(y[np.argsort(np.argsort(delta, kind="stable"))][order]) >= -1e-12)


def test_bounds_of_one_direction():
    units, s = UnitShares(np.array([9.0, 8.0, 12.0]), -1.4), np.array([3.0, 2.0])
    w = 1 / np.sum(1 / units.delta)
    expected = 9 * (w - 1.4) / (w - 0.4) + 4
    assert units.bound(s) == pytest.approx(expected)
    assert units.bound(s) <= expected
    assert UnitShares(np.array([0.3, 0.3]), -1.4).bound(s) == -np.inf
    for delta in np.random.default_rng(25).uniform(8, 12, (40, 3)):
        w = 1 / sum(1 / Fraction(x) for x in delta.tolist())
        cost = Fraction(-1.4) + w
        found = Fraction(UnitShares(delta, -1.4).bound(s)) - 4  # never above, and hardly below
        assert Fraction(1 - 1e-14) < found / (9 * cost / (1 + cost)) < Fraction(1 - 1e-16)


def test_objectives_count_as_zero_below_what_rounding_of_the_noise_leaves():
    for noise, expected in (
        (NOISES[2], 32 * np.finfo(float).eps / 1e-9), (overt.Dropout(0.9), 1e-10),
        (overt.CovarianceNoise(np.ones(3), 0.1 * NOISES[2].characteristic(3)),
         0.1 * 32 * np.finfo(float).eps / 1e-9),
        (overt.CovarianceNoise(np.ones(3), 5.0 * NOISES[2].characteristic(3)),
         32 * np.finfo(float).eps / 1e-9),
        (overt.CovarianceNoise(np.ones(3), 1e-7 * NOISES[2].characteristic(3)), 1e-10),
        (overt.DropBlock(0.4, 2, "sliding"), 1e-10),
    ):  # fmt: skip
        assert effect(noise).least == pytest.approx(expected, rel=1e-9, abs=0)


def test_bounds_that_cancel_are_less_what_rounding_may_have_added():
    one = np.ones(1)
    assert UnitShares(one).bound(one) == 0.5  # min (1 - a)^2 + a^2
    found = UnitShares(one, -0.5).bound(one)  # min (1 - a)^2 + a^2 / 2
    assert 1 / 3 - 1e-14 < found < 1 / 3 - 1e-16


def test_a_relaxation_is_its_best_bound_less_rounding():
    told = []

    class Task:
        residual = 0.3

        def rounding(self, *given):
            told.append(given)
            return 0.01

    top = Leading(np.eye(3), np.array([3.0, 2.0, 0.1]), np.eye(3), 0.7)
    costs = [UnitShares(np.full(3, lam)) for lam in (0.5, 1.0)]
    found = relax(lambda envelope: top, costs, Task(), 0.2)
    s = top.s - 0.2
    lam = 1.0 / 3  # of |A|_*^2; two values survive
    a = np.r_[s[:2] - lam * np.sum(s[:2]) / (1 + 2 * lam), 0.0]
    spent = np.sum(np.minimum(top.s, 0.2) * (2 * top.s - np.minimum(top.s, 0.2)))
    s = np.maximum(s, 0)
    value = np.sum((s - a) ** 2) + lam * np.sum(a) ** 2 + spent + 0.7 + 0.3
    assert found.bound == pytest.approx(value - 0.01)
    np.testing.assert_allclose(found.spectrum, a, atol=1e-12)
    assert found.rank == 2
    loss = np.sum((s - a) ** 2) + spent + 0.7
    assert told == [(pytest.approx(value), pytest.approx(loss), pytest.approx(np.sum(a)))]


def test_factors_are_looked_for_until_they_attain_the_bound(monkeypatch):
    rng, asked = np.random.default_rng(22), []
    X, Y = rng.standard_normal((2, 30, 4)) * [3.0, 2.0, 1.0, 1.0]
    task = overt.LinearNetwork(X=X, Y=Y, width=3, noise=NOISES[2]).effect
    U, P = rng.standard_normal((2, 3, 3))

    def best(self, *given):
        asked.append(given)
        return U, P

    monkeypatch.setattr(UnitNoise, "best_factors", best)
    found, ((m, start, enough),) = task.best_weights(), asked
    C, K = X.T @ X / 30, Y.T @ X / 30
    L = np.linalg.cholesky(C)
    left, s, right = np.linalg.svd(np.linalg.solve(L, K.T).T)
    residual = np.sum(Y**2) / 30 - np.sum(s**2)
    np.testing.assert_allclose(m, s[:3])
    assert enough == pytest.approx(task.relaxation.bound - residual - s[3] ** 2)
    np.testing.assert_allclose(start @ start.T, np.diag(task.relaxation.spectrum), atol=1e-9)
    A = left[:, :3] @ U @ P.T @ right[:3] @ np.linalg.inv(L)
    np.testing.assert_allclose(found[0] @ found[1].T, A, atol=1e-9)


@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_thresholds_of_blocks_raise_the_bound_most(block):
    pytest.importorskip("flint")
    from overt.linear.proposals import block_thresholds

    for s, w in (([3.0, 2.0, 1.0, 0.5], 0.7), ([3.0, 0.2, 0.1], 0.1), ([2.0, 2.0, 2.0, 1.0], 4.0),
                 ([0.8, 0.7, 0.3, 0.0], 1.0), ([1.0, 0.0], 2.0)):  # fmt: skip
        s, g = np.array(s), cp.Variable(len(s), nonneg=True)
        largest = cp.sum_largest(cp.square(g), min(block, len(s))) / w
        goal = np.sum(s**2) - cp.sum_squares(cp.pos(s - g)) - largest
        best = cp.Problem(cp.Maximize(goal)).solve(solver=cp.CLARABEL)
        found = block_thresholds(s, w, block)
        squares = np.sort(found**2)[::-1]
        reached = np.sum(s**2) - np.sum(np.maximum(s - found, 0) ** 2) - squares[:block].sum() / w
        assert reached == pytest.approx(best, abs=1e-6)
        assert not block_thresholds(s, 0.0, block).any()


def test_descents_know_no_units():
    """Weights times 2^40 and objectives times 2^30: the same steps, to the last bit."""

    def value(A, unit=1.0, scale=1.0):
        x = A / unit
        f = np.sum((x**2 - [[1.0, 2.0, 3.0]]) ** 2) + 0.1 * np.sum(x) ** 2
        slope = 4 * x * (x**2 - [[1.0, 2.0, 3.0]]) + 0.2 * np.sum(x)
        return scale * float(f), (scale / unit * slope,)

    start = np.array([[0.3, 0.2, 0.7]])
    (plain,) = descend(value, (start,))
    far, high = 2.0**40, 2.0**30
    (found,) = descend(lambda A: value(A, far, high), (far * start,))
    np.testing.assert_array_equal(found / far, plain)
    for goal in (0.0, 1.0):  # from nothing, which may cost nothing
        (found,) = descend(lambda A, g=goal: (np.sum((A - g) ** 2), (2 * (A - g),)), (0 * start,))
        np.testing.assert_allclose(found, goal, atol=1e-7)
    np.testing.assert_array_equal(NET.effect.regression.root, np.eye(3))


@pytest.mark.parametrize("as_operator", [False, True])
@pytest.mark.parametrize("noise", [overt.Dropout(0.9), overt.Dropout(0.05), overt.DropBlock(0.9, 2),
                                   overt.DropBlock(0.5, 10)])  # fmt: skip
def test_large_targets_give_what_dense_ones_give(noise, as_operator):
    """Values that decrease slowly, of which 8, 16 or all are looked at, and more of a block."""
    rng = np.random.default_rng(23)
    left, right = (np.linalg.qr(rng.standard_normal((n, 24)))[0] for n in (30, 24))
    M = left * np.linspace(3, 1, 24) @ right.T
    target = scipy.sparse.csr_array(M)
    if as_operator:
        target = scipy.sparse.linalg.aslinearoperator(target)
    found, plain = (overt.LinearNetwork(T, 20, noise) for T in (target, M))
    assert found.effect.regression.scale == pytest.approx(np.sum(M**2))
    for envelope in plain.effect.sharing.envelopes():
        top, s = found.effect.regression.leading(20, envelope), np.linspace(3, 1, 24)
        n = max(8, 1 + getattr(noise, "block_size", 1))
        while n < 20 and shrink(s[:n], envelope)[-1] > 0:
            n = min(2 * n, 20)
        np.testing.assert_allclose(top.s, s[:n])
        assert top.rest == pytest.approx(np.sum(s[n:] ** 2))
        part = left[:, :n] * s[:n] @ right[:, :n].T
        np.testing.assert_allclose(top.left * top.s @ top.right.T, part, atol=1e-9)
    U, V = rng.standard_normal((30, 20)), rng.standard_normal((24, 20))
    assert found.objective(U, V) == pytest.approx(plain.objective(U, V))
    assert found.effect.relaxation.bound == pytest.approx(plain.effect.relaxation.bound)


def test_targets_of_one_row_or_of_nothing():
    one = scipy.sparse.csr_array(np.array([[1.0, 0.0, 2.0]]))
    found, plain = (overt.LinearNetwork(T, 2, DROP).solve() for T in (one, one.toarray()))
    assert found.objective == pytest.approx(plain.objective)
    for shape in ((0, 3), (3, 0)):
        with pytest.raises(InputError, match="target must not be empty"):
            overt.LinearNetwork(scipy.sparse.csr_array(shape), 2, DROP)


def test_products_that_cancel_are_right_to_four_slices():
    """Of 600 terms of one sign, less their sum as a float: slices have 21 bits."""
    rng = np.random.default_rng(26)
    A, B = np.abs(rng.standard_normal((2, 600))), np.abs(rng.standard_normal((600, 2)))
    A, B = np.c_[A, np.ones(2)], np.r_[B, -(A @ B)[:1]]
    found = whitening.product(A, B)
    for j in range(2):
        pairs = zip(A[0].tolist(), B[:, j].tolist(), strict=True)
        exact = sum(Fraction(a) * Fraction(b) for a, b in pairs)
        assert 0 < abs(exact) < 1e-12
        assert abs(Fraction(found[0, j]) - exact) <= 2.0**-84 * 600 * A.max() * B[:-1].max()


def test_roots_are_looked_for_until_they_attain_the_bound(monkeypatch):
    M, asked = np.diag([3.0, 2.0, 1.0, -0.5]) + np.eye(4, k=1), []
    task = overt.TiedAutoencoder(M, 3, NOISES[2]).effect
    B = np.random.default_rng(27).standard_normal((3, 3))

    def best(self, *given):
        asked.append(given)
        return B

    monkeypatch.setattr(UnitNoise, "best_root", best)
    (U,), ((m, a, enough),) = task.best_weights(), asked
    values, W = np.linalg.eigh((M + M.T) / 2)
    np.testing.assert_allclose(m, values[:0:-1])
    np.testing.assert_allclose(a, task.relaxation.spectrum)
    rest = values[0] ** 2 + np.sum((M - M.T) ** 2) / 4
    assert enough == pytest.approx(task.relaxation.bound - rest)
    W = W[:, :0:-1]
    np.testing.assert_allclose(U @ U.T, W @ B @ B.T @ W.T, atol=1e-9)


@pytest.mark.parametrize("unit", [0.0, 1.0, 1e6])
def test_curvatures_are_differences_in_units_of_the_weights(unit):
    theta, asked = unit * np.array([3.0, 4.0]), []
    descent._rounding(lambda x: asked.append(x) or (0.0, x), theta)
    step = 1e-4 * (unit * np.sqrt(12.5) or 1.0)
    moves = step * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    np.testing.assert_allclose(np.array(asked) - theta, moves, atol=1e-6 * step)


@pytest.mark.parametrize(("size", "rounds"), [(2, True), (100, True), (101, False)])
def test_few_weights_are_taken_in_rounds(monkeypatch, size, rounds):
    seen, turn = [], descent._rounding
    monkeypatch.setattr(descent, "FIRST", 2)
    monkeypatch.setattr(descent, "_rounding", lambda *given: seen.append(1) or turn(*given))
    scale = np.logspace(0, 3, size)
    (found,) = descend(lambda x: (np.sum(scale * (x - 1) ** 2), (2 * scale * (x - 1),)),
                       (np.zeros(size),))  # fmt: skip
    np.testing.assert_allclose(found, 1.0, atol=1e-5)
    assert bool(seen) == rounds


def test_rounds_go_on_where_the_last_one_ended_and_end(monkeypatch):
    """One weight is zero and has no slope; the others go down a curved valley."""
    asked, begins, turn = [], [], descent._rounding

    def value(w):
        x, y, _ = w
        slope = [-400 * x * (y - x * x) - 2 * (1 - x), 200 * (y - x * x), 0.0]
        asked.append(100 * (y - x * x) ** 2 + (1 - x) ** 2 + 1.0)
        return asked[-1], (np.array(slope),)

    def rounding(flat, theta):
        found = turn(flat, theta)
        flat(theta)
        begins.append((len(asked), asked[-1]))
        return found

    monkeypatch.setattr(descent, "FIRST", 3)
    monkeypatch.setattr(descent, "ROUND", 2)
    monkeypatch.setattr(descent, "_rounding", rounding)
    start = (np.array([-1.2, 1.0, 0.0]),)
    (found,) = descend(value, start, max_steps=9)
    assert len(begins) == 3  # nine steps in rounds of two, the first of which is another
    for at, before in begins:
        assert asked[at] == pytest.approx(before, rel=1e-12)
    (found,) = descend(value, start)
    np.testing.assert_allclose(found, [1.0, 1.0, 0.0], atol=1e-5)


def test_floors_are_found_of_so_many_weights(monkeypatch):
    net = overt.LinearNetwork(np.diag([2.0, 1.0]), 2, DROP)
    monkeypatch.setattr("overt.linear.floor.LARGEST", 8)
    assert net.floor(1e-3, samples=2).flat >= 0
    monkeypatch.setattr("overt.linear.floor.LARGEST", 7)
    with pytest.raises(InputError, match="at most 7 weights, got 8"):
        net.floor(1e-3, samples=2)


@pytest.mark.parametrize(("seed", "unit"), [(0, 1.0), (1, 1e6), (2, 1e-6)])
def test_pairs_lie_below_the_matrix_and_touch_it(seed, unit):
    rng = np.random.default_rng(seed)
    R = rng.standard_normal((4, 4))
    Gamma = unit * (R @ R.T + seed)
    found = pairs_below(Gamma)
    assert len(found) >= 32
    top = np.linalg.eigvalsh(Gamma)[-1]
    for pair in found:
        least = np.linalg.eigvalsh(Gamma - np.diag(pair.delta) - pair.gamma)[0]
        assert -1e-10 * top <= least <= 1e-6 * top
    deltas = np.array([pair.delta[0] for pair in found])
    assert np.all(np.diff(deltas) >= 0)
    low, high = np.linalg.eigvalsh(Gamma)[:2]
    inner = np.arange(0.5, 32) / 32
    np.testing.assert_allclose(deltas[:32], low * inner, rtol=0, atol=1e-10 * unit)
    off = np.abs(deltas[32:, None] - (low + (high - low) * inner))
    assert np.all(off.min(axis=1) < 1e-10 * unit)
    assert pairs_below(np.diag([1.0, 2.0, 3.0, 1e13])) == []  # which rounding may hide


def test_envelopes_are_below_every_penalty():
    rng = np.random.default_rng(5)
    for noise in (overt.Dropout([0.2, 0.5, 0.3]), overt.DropBlock(0.5, 2, "sliding"),
                  overt.KeepExactly(2), NOISES[2]):  # fmt: skip
        Gamma = noise.characteristic(3)
        for weight, norm in envelopes(noise, 3):
            ratios = []
            for _ in range(200):
                U, P = rng.standard_normal((2, 3, 3))
                cost = np.sum(Gamma * (U.T @ U) * (P.T @ P))
                ratios.append(cost / max(weight * norm.matrix_value(U @ P.T), 1e-300))
            assert min(ratios) >= 1 - 1e-9
    ((weight, _),) = envelopes(overt.Dropout([0.2, 0.5, 0.3]), 3)
    assert weight == pytest.approx(1 / (0.8 / 0.2 + 1 + 0.7 / 0.3))
    assert envelopes(overt.Dropout([0.0, 0.5, 0.3]), 3)[0][0] == 0.0
    Gamma = NOISES[2].characteristic(3)
    small, other = envelopes(NOISES[2], 3)
    assert small[0] == pytest.approx(np.linalg.eigvalsh(Gamma)[0] / 3)
    assert other[0] == pytest.approx(1 / np.sum(np.linalg.inv(Gamma)))
    for size in (2, 3):
        noise = overt.DropBlock(0.5, size, "sliding")
        gamma = 1 / np.sum(np.linalg.inv(noise.characteristic(6)))
        (_, nuclear), (weight, norm) = envelopes(noise, 6)
        assert type(nuclear).__name__ == "SquaredNuclear"
        assert (norm.k, weight) == (size, pytest.approx(gamma))


def test_decay_leaves_a_target_of_thresholded_values():
    s = np.array([3.0, 1.0, 0.2])
    top = thresholded(Leading(np.eye(3), s, np.eye(3), 0.7), 0.5)
    np.testing.assert_allclose(top.s, [2.5, 0.5, 0.0])
    for a in ([2.0, 0.3, 0.0], [0.0, 0.0, 0.0], [2.5, 0.5, 0.0]):
        plain = np.sum((s - a) ** 2) + 2 * 0.5 * np.sum(a) + 0.7
        assert np.sum((top.s - a) ** 2) + top.rest == pytest.approx(plain)
    a = np.array([2.0, 1.0, 1e-13, 1e-15])
    for unit in (1e-100, 1.0, 1e100):
        assert positive(unit * a).tolist() == [True, True, True, False]
    assert not positive(np.zeros(2)).any()
    assert numerical_rank(np.array([2.0, 1e-6, 1e-8])) == 2
    assert numerical_rank(np.zeros(3)) == 0


@pytest.mark.parametrize("steep", [0, 3, 6])
def test_roots_of_second_moments(steep):
    rng = np.random.default_rng(6)
    X = np.linalg.qr(rng.standard_normal((30, 4)))[0] * np.logspace(0, -steep, 4)
    X = X @ np.linalg.qr(rng.standard_normal((4, 4)))[0] * [1.0, 1e3, 1.0, 1e-3]
    C = whitening.product(X.T, X) / 30
    scale = np.sqrt(np.diag(C))
    found, basis = whitening.of_data(X, 30)
    other, cut = whitening.of_moment(C)
    for root in (found, other):
        np.testing.assert_allclose(root.L @ root.L.T / np.outer(scale, scale),
                                   C / np.outer(scale, scale), atol=1e-12)  # fmt: skip
        # Right up to the inputs' condition, of which C has the square.
        sigma = np.linalg.svd(X / scale, compute_uv=False)
        within = 8 * np.finfo(float).eps * sigma[0] / sigma[-1]
        np.testing.assert_allclose(root.L_inverse @ root.L, np.eye(4), atol=within)
    assert (found.ill, other.ill) == (steep > 0, steep > 0)
    np.testing.assert_allclose(basis.T @ basis, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(np.sqrt(30) * basis @ found.L.T, X, atol=1e-9 * scale.max())
    assert cut.shape == (4, 0)
    flat = np.c_[X[:, 0], X[:, 1], X[:, 0] + X[:, 1]]
    assert whitening.of_data(flat, 30)[0].L.shape == (3, 2)
    for apart, rank in ((1e-14, 49), (2e-13, 50)):  # eigenvalues beside 4 n eps times the largest
        C = np.eye(50)
        C[3, 7] = C[7, 3] = 1 - apart
        assert whitening.of_moment(C)[0].L.shape == (50, rank)
    C = flat.T @ flat / 30
    root, cut = whitening.of_moment(C)
    assert (root.L.shape, cut.shape) == ((3, 2), (3, 1))
    size = np.sqrt(np.diag(C))
    limit = 4 * 3 * np.finfo(float).eps * np.linalg.eigvalsh(C / np.outer(size, size))[-1]
    assert np.linalg.norm(cut / size[:, None]) == pytest.approx(np.sqrt(limit), rel=1e-9, abs=0)
    for bad in (np.diag([1.0, -1.0]), np.zeros((2, 2)), np.array([[1.0, 2.0], [2.0, 1.0]])):
        with pytest.raises(InputError, match="positive semi-definite"):
            whitening.of_moment(bad)
    with pytest.raises(InputError, match="X must not be zero"):
        whitening.of_data(np.zeros((3, 2)), 3)
    for seen in (1.0, 1e6):
        with pytest.warns(UserWarning, match="directions that are zero"):
            whitening.tell_of_what_was_cut(2e-9 * seen, seen)
        whitening.tell_of_what_was_cut(0.9e-9 * seen, seen)


def test_data_have_the_rank_that_rounding_leaves():
    """As many directions as np.linalg.matrix_rank counts once every feature is of unit size."""
    rng, seen = np.random.default_rng(22), set()
    a, b, c = rng.standard_normal(40), rng.standard_normal(40), rng.standard_normal(60)
    for t in np.geomspace(1e-16, 1e-12, 25):
        X = np.outer(a, np.ones(60)) + t * np.outer(b, c)
        root, basis = whitening.of_data(X * np.geomspace(1, 1e6, 60), 40)
        rank = np.linalg.matrix_rank(X / np.linalg.norm(X, axis=0))
        assert (root.L.shape, basis.shape) == ((60, rank), (40, rank))
        seen.add(rank)
    assert len(seen) > 1


def test_products_are_rounded_once():
    rng = np.random.default_rng(7)
    A = rng.standard_normal((3, 40)) * np.logspace(0, -12, 40)
    B = np.linalg.pinv(A)
    found = whitening.product(A, B)
    for i, j in np.ndindex(3, 3):
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(A[i], B[:, j], strict=True))
        off = abs(Fraction(found[i, j]) - exact)
        assert off <= 2 * Fraction(np.spacing(abs(float(exact)))) + Fraction(1, 2**80)


def hessian(M, U, lam):
    """The second derivative of |M - U U'|^2 + lam sum |u_i|^4, from values of its gradient."""

    def gradient(u):
        U = u.reshape(len(M), -1)
        return (4 * (U @ U.T - M) @ U + 4 * lam * U * np.sum(U**2, axis=0)).ravel()

    u, h = U.ravel(), 1e-5
    return np.array([(gradient(u + h * e) - gradient(u - h * e)) / (2 * h) for e in np.eye(u.size)])


@pytest.mark.parametrize(("width", "values"), [(2, (4.0, 3.0, 1.0)), (3, (4.0, 3.5, 3.0, -1.0)),
                                               (1, (2.0, 1.0)), (4, (3.0, 2.0))])  # fmt: skip
def test_critical_points_are_all_found_with_their_curvature(width, values):
    rng, lam = np.random.default_rng(8), 0.4 / 0.6
    Q = np.linalg.qr(rng.standard_normal((len(values),) * 2))[0]
    M = Q * np.array(values) @ Q.T
    M = (M + M.T) / 2
    found = overt.TiedAutoencoder(M, width, overt.Dropout(0.4)).landscape()
    m, sets = np.array([v for v in values if v > 0]), []
    for size in range(min(width, len(m)) + 1):
        for kept in itertools.combinations(range(len(m)), size):
            alpha = lam * m[list(kept)].sum() / (width + lam * size)
            if all(m[i] > alpha for i in kept):
                sets.append(kept)
    assert sorted(p.directions for p in found.points) == sorted(sets)
    assert list(feasible_sets(m, width, lam)) == sorted(sets, key=lambda k: (len(k), k))
    assert [p.objective for p in found.points] == sorted(p.objective for p in found.points)
    top = np.maximum(np.array(values[:width]), 0)
    spread = top.sum() - width * top[-1]
    assert found.printed_limit == pytest.approx(width * top[-1] / spread if spread > 0 else np.inf)
    for p in found.points:
        norms = np.sum(p.U**2, axis=0)
        value = np.sum((M - p.U @ p.U.T) ** 2) + lam * np.sum(norms**2)
        assert p.objective == pytest.approx(value)
        slope = 4 * (p.U @ p.U.T - M) @ p.U + 4 * lam * p.U * norms
        np.testing.assert_allclose(slope, 0, atol=1e-8)
        H = hessian(M, p.U, lam)
        least, d = np.linalg.eigvalsh((H + H.T) / 2)[0], p.escape.ravel()
        assert p.curvature == pytest.approx(min(least, 0.0) if p.kind != "minimum" else least,
                                            abs=1e-4)  # fmt: skip
        assert d @ H @ d == pytest.approx(p.curvature, abs=1e-4)
        assert np.linalg.norm(d) == pytest.approx(1.0)
        assert (p.kind == "minimum") == (least > -1e-4)


def settled(values, first=10.0, enough=0.0, needed=2, alike=1):
    """What `settle` returns of descents that end at these values, and how many it looked at."""
    seen = []

    def ends():
        for value in values:
            seen.append(value)
            yield (np.array(value),)

    (best,) = settle(lambda v: (float(v), ()), (np.array(first),), ends(), enough, needed, alike)
    return float(best), len(seen)


def test_descents_settle_when_they_agree():
    assert settled([3.0, 3.0, 1.0]) == (3.0, 2)
    assert settled([3.0, 2.0, 3.0, 2.0, 1.0]) == (2.0, 4)
    assert settled([3.0, 3.0 * (1 + 0.9e-8), 1.0]) == (3.0, 2)
    assert settled([3.0, 3.0 * (1 + 1.1e-8), 1.0]) == (1.0, 3)
    assert settled([3.0, 3.0 * (1 - 0.9e-8), 1.0]) == (3.0 * (1 - 0.9e-8), 2)
    assert settled([3.0, 3.0 * (1 - 1.1e-8), 3.0, 1.0]) == (1.0, 4)
    assert settled([3.0, 3.0, 3.0, 1.0], alike=2) == (3.0, 3)  # the starts count as one
    assert settled([3.0, 3.0, 3.0, 1.0], needed=3) == (3.0, 3)
    assert settled([3.0, 1.0, 0.5], enough=1.0) == (1.0, 2)
    assert settled([3.0], first=1.0, enough=1.0) == (1.0, 0)
    assert settled([30.0, 20.0, 40.0]) == (10.0, 3)
    assert settled([]) == (10.0, 0)


def test_coordinates_fit_the_curvature():
    rng = np.random.default_rng(9)
    Q = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    values = np.array([1e-3, 2.0, -5.0, 300.0])
    H = Q * values @ Q.T
    turn = _rounding(lambda t: (0.5 * t @ H @ t, H @ t), rng.standard_normal(4))
    signs = np.linalg.eigvalsh(turn.T @ H @ turn)
    np.testing.assert_allclose(signs, [-1, 1, 1, 1], atol=1e-4)
    flat = _rounding(lambda t: (0.0, np.diag([1.0, 0.0]) @ t), np.ones(2))
    assert np.abs(flat).max() == pytest.approx(1e5, rel=1e-6)
    start = [size * rng.standard_normal((60, 50)) for size in (2.0, 1e-3)]
    moves = [(new - W) / np.std(W) for new, W in zip(nudged(*start), start, strict=True)]
    np.testing.assert_allclose([np.std(move) for move in moves], 0.03, rtol=0.1)
    assert not np.allclose(*moves)
    assert attains(2.0) == pytest.approx(2.0 * (1 + 1e-10), rel=1e-15)


@pytest.mark.parametrize("size", [3, 120])
def test_descents_end_where_slopes_vanish(size):
    rng = np.random.default_rng(10)
    scale, goal = np.logspace(0, 3, size), rng.standard_normal((size, 1))

    def value(A, B):
        r = np.r_[A, B] - goal
        g = 2 * scale[:, None] * r
        return float(np.sum(scale[:, None] * r * r)) + 1.0, (g[:1], g[1:])

    A, B = descend(value, (np.ones((1, 1)), np.ones((size - 1, 1))))
    np.testing.assert_allclose(np.r_[A, B], goal, atol=1e-4)


def test_random_starts_are_as_large_as_the_first(monkeypatch):
    seen = []
    monkeypatch.setattr(descent, "descend", lambda value, start: seen.append(start) or start)
    first = (np.full((20, 30), 2.0), np.full((30, 10), 0.5))
    values = iter(range(1000, 0, -1))
    refine(lambda *_: (float(next(values)), ()), [first, first], 0.0, tries=5)
    assert len(seen) == 5
    assert seen[0] is first
    for start in seen[2:]:
        for W, given, size in zip(start, first, (2.0, 0.5), strict=True):
            assert W.shape == given.shape
            assert np.sqrt(np.mean(W**2)) == pytest.approx(size, rel=0.15)


def test_the_least_penalty_of_a_map_is_stationary():
    rng = np.random.default_rng(11)
    R = rng.standard_normal((4, 4))
    Gamma, a = R @ R.T, np.array([2.0, 1.0])
    start = np.linalg.qr(rng.standard_normal((4, 2)))[0].T
    found = least_penalty(Gamma, a, [start])

    def cost(R):
        G = R.T @ (a[:, None] * R)
        return np.sum(Gamma * G * G)

    np.testing.assert_allclose(found @ found.T, np.eye(2), atol=1e-9)
    assert cost(found) < cost(start)
    for _ in range(6):  # no rotation of units lowers it to first order
        S = rng.standard_normal((4, 4))
        turn = [found @ scipy.linalg.expm(s * 1e-5 * (S - S.T)) for s in (1, -1)]
        assert abs(cost(turn[0]) - cost(turn[1])) / 2e-5 < 1e-3 * cost(found)


def test_the_least_penalty_is_looked_for_down_to_its_bound(monkeypatch):
    asked, Gamma, a = [], np.diag([70.0, 30.0, 50.0]), np.array([4.0, 2.0])
    monkeypatch.setattr(descent, "refine", lambda *given: asked.append(given) or given[1][0])
    start = np.linalg.qr(np.random.default_rng(26).standard_normal((3, 2)))[0].T
    np.testing.assert_allclose(least_penalty(Gamma, a, [start], 200.0, 5), start, atol=1e-12)
    ((value, ((first,), (other,)), enough, tries),) = asked
    G = start.T @ np.diag(a) @ start
    assert enough / value(first)[0] == pytest.approx(attains(200.0) / np.sum(Gamma * G * G))
    assert (first is start, np.shape(other), tries) == (True, (2, 3), 5)

    def plain(M):
        R = scipy.linalg.polar(M)[0]
        return np.sum(Gamma * (R.T @ np.diag(a) @ R) ** 2) / (70.0 * 4.0**2)

    M = 3 * np.random.default_rng(27).standard_normal((2, 3))
    found, (slope,) = value(M)
    assert found == pytest.approx(plain(M))
    np.testing.assert_allclose(slope, differences(plain, M), atol=1e-8)


@pytest.mark.parametrize("count", [1, 2])
def test_chains_of_a_deep_network(count):
    """|m|^2 - (m_1^2 + ... + m_count^2) / prod (1 + lam count / d) where count divides widths."""
    net = overt.DeepLinearNetwork(np.diag([3.0, 2.0, 1.0]), (4, 6), (0.3, 0.5))
    m, lams = np.array([1.0, 0.7, 0.3]), (0.3 / 0.7, 1.0)
    damping = np.prod([1 + lam * count / d for lam, d in zip(lams, (4, 6), strict=True)])
    weights = _chains(m[:count], 3, damping, (4, 6))
    assert [W.shape for W in weights] == [(4, 3), (6, 4), (3, 6)]
    product = weights[2] @ weights[1] @ weights[0]
    np.testing.assert_allclose(product, np.diag(np.r_[m[:count], np.zeros(3 - count)]) / damping)
    value, _ = net.effect.whitened_value(np.diag(m), *weights)
    assert value == pytest.approx(np.sum(m**2) - np.sum(m[:count] ** 2) / damping)
    left, right = np.linalg.qr(np.random.default_rng(12).standard_normal((3, 3)))[0], np.eye(3)
    chained = _chained(left[:, :2], np.array([2.0, 1.0]), right[:, :2], (4, 6))
    A = left[:, :2] @ np.diag([2.0, 1.0]) @ right[:, :2].T
    np.testing.assert_allclose(chained[2] @ chained[1] @ chained[0], A, atol=1e-12)
    quiet = overt.DeepLinearNetwork(np.eye(3), (4, 6), (0.3, 0.0))
    assert quiet.penalty(chained) == pytest.approx(0.3 / 0.7 / 4 * 9.0)
    assert quiet.effect.imbalance(*chained) == pytest.approx(0.0, abs=1e-12)
    zero = [np.zeros_like(W) for W in chained]
    assert quiet.effect.imbalance(*zero) == 0.0


@pytest.mark.parametrize(("values", "tried", "best"), [
    ((5.0, 4.0, 3.0, 6.0), [3, 2, 4], 3), ((1.0, 2.0, 3.0, 9.0), [3, 2, 1], 1),
    ((9.0, 4.0, 4.0, 1.0), [3, 2, 1], 2), ((9.0, 5.0, 4.0, 1.0), [3, 2, 4], 4),
])  # fmt: skip
def test_numbers_of_chains_are_tried_while_they_gain(monkeypatch, values, tried, best):
    task = overt.DeepLinearNetwork(np.diag([4.0, 3.0, 2.5, 0.1]), (4, 6), (0.3, 0.5)).effect
    m, lams, asked = np.array([1.0, 0.8, 0.3, 0.1]), (0.3 / 0.7, 1.0), []

    def chains(part, q, damping, widths):
        n = len(part)
        expected = np.prod([1 + lam * n / d for lam, d in zip(lams, (4, 6), strict=True)])
        assert (part.tolist(), q, tuple(widths)) == (m[:n].tolist(), 4, (4, 6))
        assert damping == pytest.approx(expected)
        asked.append(n)
        return [np.full((1, 1), n), np.full((1, 1), n)]

    def descend(value, start, tol):
        assert tol == 1e-10
        assert start == nudged(*[np.full((1, 1), asked[-1])] * 2)
        return [np.full((1, 1), asked[-1])]

    monkeypatch.setattr(layers, "_chains", chains)
    monkeypatch.setattr(layers, "descend", descend)
    found = task._best_chains(m, lambda W: (values[int(W[0, 0]) - 1], ()))
    gains = [np.sum(m[:n] ** 2) / np.prod([1 + lams[0] * n / 4, 1 + lams[1] * n / 6])
             for n in range(1, 5)]  # fmt: skip
    assert np.argmax(gains) == 1  # two chains come first
    assert found == [[best]]
    assert asked == tried


def test_deep_weights_are_refined_in_units_of_the_target(monkeypatch):
    rng, asked = np.random.default_rng(24), []
    X, Y = rng.standard_normal((2, 40, 4)) * [3.0, 2.0, 1.0, 0.5]
    task = overt.DeepLinearNetwork(X=X, Y=Y, widths=(3, 5), drop_prob=(0.3, 0.5)).effect
    left, s, right = task.regression.svd
    weights = [rng.standard_normal(shape) for shape in ((3, 3), (5, 3), (3, 5))]

    def refine(*given, needed):
        asked.append((*given, needed))
        return weights

    monkeypatch.setattr(layers, "refine", refine)
    monkeypatch.setattr(type(task), "_best_chains", lambda self, m, value: m)
    found, ((value, (m,), enough, tries, needed),) = task._refined(), asked
    np.testing.assert_allclose(m, s[:3] / s[0])
    assert (tries, needed) == (3, 3)
    bound = task.relaxation.bound - task.regression.residual - s[3] ** 2
    assert enough == pytest.approx(bound / s[0] ** 2)
    assert value(*weights)[0] == task.whitened_value(np.diag(s[:3]) / s[0], *weights)[0]
    A = found[2] @ found[1] @ found[0]
    expected = s[0] * left[:, :3] @ weights[2] @ weights[1] @ weights[0] @ right[:, :3].T
    np.testing.assert_allclose(A, expected, atol=1e-9)
    for W, V in zip(found, weights, strict=True):
        assert np.linalg.norm(W) == pytest.approx(s[0] ** (1 / 3) * np.linalg.norm(V))


@pytest.mark.parametrize("batch", [1, 3])
def test_floors_step_by_step(batch):
    net, eta, count = overt.LinearNetwork(np.diag([2.0, 1.0]), 2, DROP), 0.01, 7
    found = net.floor(eta, batch_size=batch, samples=count, seed=5)
    U, V = net.effect.best_weights()
    theta = np.r_[U.ravel(), V.ravel()]

    def half(x):
        return net.objective(x[:4].reshape(2, 2), x[4:].reshape(2, 2)) / 2

    H = np.stack([differences(lambda x, k=k: differences(half, x, 1e-3)[k], theta, 1e-3)
                  for k in range(8)])  # fmt: skip
    h, Q = np.linalg.eigh((H + H.T) / 2)
    advance, moves = net.effect.steps(np.random.default_rng(5)), []
    for _ in range(count):
        weights = [U.copy(), V.copy()]
        advance(weights, np.ones(1))
        moves.append(theta - np.r_[weights[0].ravel(), weights[1].ravel()])
    noise = (np.array(moves) - np.mean(moves, axis=0)) @ Q
    stiff = h > 1e-6 * h[-1]
    costs = sum(noise[:, i] ** 2 * eta / (batch * (2 - eta * h[i])) for i in np.flatnonzero(stiff))
    costs = costs * count / (count - 1)
    assert (found.flat, found.curvature) == (np.sum(~stiff), pytest.approx(h[-1], rel=1e-4))
    assert 0 < found.flat < 8
    assert found.excess == pytest.approx(np.mean(costs), rel=1e-4)
    assert found.standard_error == pytest.approx(np.std(costs, ddof=1) / np.sqrt(count), rel=1e-4)
    assert found.optimum == pytest.approx(net.objective(U, V))
    assert found.objective == pytest.approx(found.optimum + found.excess)
    limit = 2 / found.curvature
    with pytest.raises(InputError, match="beyond which descent diverges"):
        net.floor(limit * 1.0001, samples=2)
    assert net.floor(limit * 0.999, samples=2).excess > 0


def test_sampled_gradients_are_those_of_masked_networks():
    net = overt.DeepLinearNetwork(np.diag([3.0, 2.0]), (3, 4), (0.3, 0.5)).effect
    rng = np.random.default_rng(13)
    weights = [rng.standard_normal(shape) for shape in net.shapes]
    x, y = rng.standard_normal((5, 2)), rng.standard_normal((5, 2))

    def loss(weights):
        again, a = np.random.default_rng(3), x
        for W, p in zip(weights[:-1], (0.3, 0.5), strict=True):
            a = (a @ W.T) * (again.random((5, len(W))) >= p) / (1 - p)
        return 0.5 * np.mean(np.sum((a @ weights[-1].T - y) ** 2, axis=1))

    found = net._sampled_gradients(weights, x, y, np.random.default_rng(3))
    for k, gradient in enumerate(found):
        numeric = differences(lambda W, k=k: loss([*weights[:k], W, *weights[k + 1 :]]), weights[k])
        np.testing.assert_allclose(gradient, numeric, atol=1e-6)
    huge = [1e60 * W for W in weights]
    with np.errstate(all="ignore"):
        assert net._sampled_gradients(huge, x, y, np.random.default_rng(3)) is None


def test_slices_hold_so_few_bits_that_products_are_exact():
    rng = np.random.default_rng(14)
    A = rng.standard_normal((4, 9)) * np.logspace(0, -20, 9)
    A[2] = 0
    for axis, bits in ((1, 20), (0, 24)):
        left = A
        for part in whitening._slices(A, bits, axis):
            largest = np.abs(left).max(axis=axis, keepdims=True)
            unit = 2.0 ** (np.ceil(np.log2(np.where(largest > 0, largest, 1.0))) - bits)
            whole = part / unit
            np.testing.assert_array_equal(whole, np.rint(whole))
            assert np.abs(whole).max() <= 2**bits
            assert np.abs(left - part).max(initial=0) <= unit.max() / 2
            np.testing.assert_array_equal(part, np.rint(left / unit) * unit)
            left = left - part
    assert len(whitening._slices(A, 20, 1)) == 4


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_dropped_weights_term_by_term(decay):
    rng = np.random.default_rng(15)
    R = rng.standard_normal((3, 3))
    C, M = R @ R.T, rng.standard_normal((2, 3))
    net = overt.LinearNetwork(M, 2, overt.DropConnect(0.3), second_moment=C, weight_decay=decay)
    task, lam, D = net.effect, 0.3 / 0.7, np.diag(C)
    U, V = rng.standard_normal((2, 2)), rng.standard_normal((3, 2))

    def plain(U, V):
        E = M - U @ V.T
        cost = sum(np.sum(U[:, k] ** 2) * np.sum(D * V[:, k] ** 2) for k in range(2))
        return np.trace(E @ C @ E.T) + lam * cost

    def whole(U, V):
        return plain(U, V) + decay * (np.sum(U**2) + np.sum(V**2))

    value, (of_U, of_V) = task.value(U, V)
    assert value == pytest.approx(whole(U, V))
    np.testing.assert_allclose(of_U, differences(lambda Z: whole(Z, V), U), atol=1e-5)
    np.testing.assert_allclose(of_V, differences(lambda Z: whole(U, Z), V), atol=1e-5)
    best = task._best_outputs(V * np.sqrt(D)[:, None])
    np.testing.assert_allclose(differences(lambda Z: plain(Z, V), best), 0, atol=1e-5)
    scaled = V * np.sqrt(D)[:, None]
    least, (slope,) = task._value_of_inputs(scaled)
    assert least == pytest.approx(plain(best, V))

    def after(Z):
        return plain(task._best_outputs(Z), Z / np.sqrt(D)[:, None])

    np.testing.assert_allclose(slope, differences(after, scaled), atol=1e-5)
    loss = lam * sum(np.sum(U[:, k] ** 2) * np.sum(D * V[:, k] ** 2) for k in range(2))
    assert task.penalty(U, V) == pytest.approx(loss)
    carried = [np.linalg.norm(U[:, k]) * np.sqrt(np.sum(D * V[:, k] ** 2)) for k in range(2)]
    assert task.imbalance(U, V) == pytest.approx(np.var(carried))


def test_the_best_map_of_dropped_weights_closes_its_gap():
    rng = np.random.default_rng(16)
    R = rng.standard_normal((3, 3))
    net = overt.LinearNetwork(rng.standard_normal((2, 3)), 4, overt.DropConnect(0.3),
                              second_moment=R @ R.T)  # fmt: skip
    task = net.effect.regression
    B, bound, N = best_map(task, 0.2)
    K = task.root / np.sqrt(task.input_variances)[:, None]
    value = np.sum((task.T - B @ K) ** 2) + 0.2 * np.linalg.norm(B, "nuc") ** 2
    assert value == pytest.approx(bound, rel=1e-10)
    np.testing.assert_allclose(N, task.T - B @ K, atol=1e-5)
    Z = cp.Variable((2, 3))
    goal = cp.sum_squares(task.T - Z @ K) + 0.2 * cp.square(cp.normNuc(Z))
    assert cp.Problem(cp.Minimize(goal)).solve(solver=cp.CLARABEL) == pytest.approx(value, rel=1e-5)
    found, factor = _dual(task.T, K, 0.2, 3 * N)
    size = np.sum((3 * N) ** 2) + np.linalg.norm(3 * N @ K.T, 2) ** 2 / 0.2
    inner = np.sum(3 * N * task.T)
    assert (found, factor) == (pytest.approx(inner**2 / size), pytest.approx(inner / size))
    assert found == pytest.approx(bound)
    assert _dual(task.T, K, 0.2, -N) == (0.0, 0.0)
    free, least, nothing = best_map(task, 0.0)
    np.testing.assert_allclose(free @ K, task.T, atol=1e-9)
    assert (least, nothing.any()) == (task.residual, False)


def projections_add_up(goal, k, b, rng):
    """Whether k projections of rank b are found whose sum is the goal: each in turn is the best."""
    n, before = len(goal), np.inf
    Q = np.linalg.qr(rng.standard_normal((k, n, b)))[0]
    P = Q @ Q.swapaxes(1, 2)
    while True:
        for j in range(k):
            v = np.linalg.eigh(goal - P.sum(0) + P[j])[1][:, n - b :]
            P[j] = v @ v.T
        off = np.linalg.norm(P.sum(0) - goal)
        if off < 1e-3 or off > 0.999 * before:
            return bool(off < 1e-3)
        before = off


def test_projections_add_up_where_theory_says():
    rng = np.random.default_rng(19)
    for n, k in itertools.product(range(1, 12), range(1, 6)):
        for b in range(1, n):
            found = projections_add_up(k * b / n * np.eye(n), k, b, rng)
            assert blocks._tight_fusion_frame(k, b, n) == found, (k, b, n)
            assert bool(blocks.attained(np.full(n, b / n), k)) == found, (k, b, n)
    for n, k, b in ((2, 2, 1), (3, 2, 1), (3, 4, 1), (4, 3, 3), (4, 4, 3), (4, 4, 2), (5, 2, 2),
                    (7, 3, 2), (7, 3, 5)):  # fmt: skip
        t = rng.uniform(0.45, 0.55, n)
        t *= b / t.sum()
        found = projections_add_up(k * np.diag(t), k, b, rng)
        assert blocks.attained(t, k) is found, (n, k, b)


@pytest.mark.parametrize(("condition", "unit"), [(1e2, 1e4), (1e4, 1e-4)])
def test_the_best_map_of_dropped_weights_closes_its_gap_soon(monkeypatch, condition, unit):
    """|T - B K|^2 + w |B|_*^2 at B is what weak duality proves at N, within some hundred steps."""
    rng, w, looks = np.random.default_rng(20), 1e-3, []
    monkeypatch.setattr(weights, "_dual", lambda *given: looks.append(1) or _dual(*given))
    R = rng.standard_normal((6, 6)) * np.geomspace(1, 1 / condition, 6)
    task = overt.LinearNetwork(unit * rng.standard_normal((4, 6)), 4, overt.DropConnect(0.3),
                               second_moment=R @ R.T).effect.regression  # fmt: skip
    B, bound, N = best_map(task, w)
    K = task.root / np.sqrt(task.input_variances)[:, None]
    value = np.sum((task.T - B @ K) ** 2) + w * np.linalg.norm(B, "nuc") ** 2
    assert value == pytest.approx(bound, rel=1e-11, abs=0)
    dual = 2 * np.sum(N * task.T) - np.sum(N**2) - np.linalg.norm(N @ K.T, 2) ** 2 / w
    assert dual == pytest.approx(bound, rel=1e-11, abs=0)
    assert len(looks) < 40
    monkeypatch.setattr(weights, "MAX_STEPS", weights.CHECKED)  # no more than a single look
    early, below, _ = best_map(task, w)
    cost = np.sum((task.T - early @ K) ** 2) + w * np.linalg.norm(early, "nuc") ** 2
    assert 0 < below < bound < cost < np.sum(task.T**2)


def test_bounds_of_dropped_weights_are_less_what_rounding_may_have_added(monkeypatch):
    rng, asked = np.random.default_rng(24), []
    X, Y = rng.standard_normal((9, 3)), rng.standard_normal((9, 2))
    net = overt.LinearNetwork(X=X, Y=Y, width=3, noise=overt.DropConnect(0.4))
    monkeypatch.setattr(DenseRegression, "rounding", lambda *given: asked.append(given[1:]) or 0.25)
    found, C = net.effect.relaxation, X.T @ X / 9
    (bound, loss, nuclear), A = asked[0], found.left
    assert found.bound == pytest.approx(bound - 0.25)
    assert bound == pytest.approx(net.solve().objective)
    least = np.linalg.lstsq(X, Y, rcond=None)[0].T
    assert loss == pytest.approx(np.trace((A - least) @ C @ (A - least).T), rel=1e-5)
    assert nuclear == pytest.approx(np.linalg.norm(A * np.sqrt(np.diag(C)), "nuc"))


def test_frames_of_projections_exist_where_theory_says():
    for k, b, n, expected in (
        (3, 1, 3, True), (2, 1, 3, False), (3, 2, 5, False), (4, 2, 5, True), (2, 3, 3, True),
        (5, 3, 5, True), (4, 3, 5, True), (3, 3, 5, False), (2, 2, 4, True), (1, 2, 4, False),
        (3, 2, 3, True), (2, 2, 3, False),
    ):  # fmt: skip
        assert blocks._tight_fusion_frame(k, b, n) == expected, (k, b, n)
    known = [n for n in range(1, 45) if blocks.hadamard(n) is not None]
    assert known == [1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 44]
    for n in known:
        H = blocks.hadamard(n)
        np.testing.assert_array_equal(H @ H.T, n * np.eye(n))
    for t, count, expected in (
        ([0.5, 0.5], 1, False), ([0.5, 0.5], 2, True), ([0.7, 0.3], 2, True),
        ([0.6, 0.7, 0.7], 2, False), ([0.4, 0.3, 0.3], 3, True), ([0.4, 0.3, 0.3], 2, False),
        ([0.6, 0.7, 0.7], 3, True), ([0.5] * 4, 4, True), ([0.4] * 5, 4, True),
        ([0.4] * 5, 3, False),
        ([0.9, 0.6, 0.4, 0.1], 2, True), ([0.9, 0.5, 0.4, 0.2], 2, False),
        ([0.9, 0.5, 0.3, 0.3], 3, None), ([0.9, 0.5, 0.3, 0.3], 4, True),
    ):  # fmt: skip
        assert blocks.attained(np.array(t), count) is expected, (t, count)


@pytest.mark.parametrize(("count", "size"), [(4, 2), (3, 2), (4, 1), (2, 3)])
def test_blocks_carry_the_map(count, size):
    a = np.array([3.0, 2.0, 1.5])
    left, right = np.eye(4)[:, :3], np.eye(3)
    U, V = blocks.block_factors(left, a, right, count * size, size)
    np.testing.assert_allclose(U @ V.T, left * a @ right.T, atol=1e-8)
    Gamma = np.kron(np.eye(count), np.ones((size, size)))
    cost, least = np.sum(Gamma * (U.T @ U) * (V.T @ V)), float(KSupport(size).value(a)) / count
    assert cost >= least * (1 - 1e-9)
    assert (cost <= least * (1 + 1e-6)) == blocks.attains_bound(a, count, size)
    assert blocks.attains_bound(np.zeros(0), count, size)


def test_occupancies_of_one_up_to_rounding_are_not_free():
    a = np.array([1.1, 0.7, 0.3, 0.3, 0.1, 0.1, 0.1])
    t = np.asarray(KSupport(5).occupancy(a))
    assert ((t < 1) & (t > 0.9)).any()
    assert [blocks.attains_bound(a, count, 5) for count in (2, 3)] == [False, True]
    U, V = blocks.block_factors(np.eye(7), a, np.eye(7), 20, 5)  # four blocks: by signs alone
    cost = sum(np.linalg.norm(U[:, k : k + 5] @ V[:, k : k + 5].T) ** 2 for k in (0, 5, 10, 15))
    assert cost == pytest.approx(float(KSupport(5).value(a)) / 4, rel=1e-12)


def test_the_best_symmetric_map_without_noise():
    """A C + C A = E[y x'] + E[x y']."""
    rng = np.random.default_rng(17)
    R, M = rng.standard_normal((2, 3, 3))
    C = R @ R.T
    task = overt.TiedAutoencoder(M, 2, overt.Dropout(0.3), second_moment=C).effect
    A = task.symmetric
    np.testing.assert_allclose(A, A.T, atol=1e-10)
    np.testing.assert_allclose(A @ C + C @ A, M @ C + C @ M.T, atol=1e-9)
    plain = overt.TiedAutoencoder(M, 2, overt.Dropout(0.3)).effect
    np.testing.assert_allclose(plain.symmetric, (M + M.T) / 2)
    top = plain._leading
    values = np.linalg.eigvalsh((M + M.T) / 2)[::-1]
    np.testing.assert_allclose(top.s, np.maximum(values[:2], 0))
    rest = np.sum(np.minimum(values[:2], 0) ** 2) + values[2] ** 2 + np.sum((M - M.T) ** 2) / 4
    assert top.rest == pytest.approx(rest)
    U = rng.standard_normal((3, 2))
    value, (slope,) = task.value(U)

    def whole(U):
        E = M - U @ U.T
        norms, inner = np.sum(U**2, axis=0), np.diag(U.T @ C @ U)
        return np.trace(E @ C @ E.T) + 0.3 / 0.7 * np.sum(norms * inner)

    assert value == pytest.approx(whole(U))
    np.testing.assert_allclose(slope, differences(whole, U), atol=1e-4)


DROP, SPARSE = overt.Dropout(0.3), scipy.sparse.csr_array(np.eye(3))
NET, TIED = overt.LinearNetwork(np.eye(3), 2, DROP), overt.TiedAutoencoder(np.eye(3), 2, DROP)
DEEP = overt.DeepLinearNetwork(np.eye(3), (2, 2), 0.3)
WRONG = [
    (lambda: overt.LinearNetwork(SPARSE, 2, DROP, second_moment=np.eye(3)), "need a dense target"),
    (lambda: overt.LinearNetwork(SPARSE, 2, DROP, input_noise=DROP), "need a dense target"),
    (lambda: overt.LinearNetwork(np.eye(3), 2, DROP, X=np.eye(3), Y=np.eye(3)), "give either"),
    (lambda: overt.LinearNetwork(width=2, noise=DROP), "give either target, or both"),
    (lambda: overt.LinearNetwork(X=np.eye(3), width=2, noise=DROP), "must be given together"),
    (lambda: overt.LinearNetwork(X=np.eye(3), Y=np.eye(3), width=2, noise=DROP,
                                 second_moment=np.eye(3)), "second_moment belongs to a target"),
    (lambda: overt.LinearNetwork(np.eye(2), 2, DROP, second_moment=np.diag([1.0, -1e-12])),
     "positive semi-definite and not zero, got variances from -1e-12 to 1"),
    (lambda: overt.LinearNetwork(1e-151 * np.eye(3), 2, DROP), "entries above 1e-150"),
    (lambda: overt.LinearNetwork(np.eye(3), 2, 0.3), "noise must be a noise such as"),
    (lambda: overt.LinearNetwork(np.eye(3), 0, DROP), "width must be"),
    (lambda: overt.LinearNetwork(np.eye(3), 2, DROP, weight_decay=-1.0), "weight_decay must be"),
    (lambda: overt.TiedAutoencoder(np.eye(3), 2, overt.DropConnect(0.3)), "must mask units"),
    (lambda: overt.TiedAutoencoder(np.ones((2, 3)), 2, DROP), "must be square for tied weights"),
    (lambda: overt.TiedAutoencoder(np.eye(3), 2, DROP, weight_decay=0.1).landscape(),
     "without weight decay"),
    (lambda: overt.TiedAutoencoder(np.eye(3), 2, overt.Dropout([0.1, 0.2])).landscape(),
     "one drop probability"),
    (lambda: overt.TiedAutoencoder(np.eye(3), 2, DROP, second_moment=np.diag([1., 2., 3.]))
     .landscape(), "isotropic inputs"),
    (lambda: TIED.landscape(max_points=0), "max_points must be"),
    (lambda: TIED.objective(np.eye(3)), "U must be 3 x 2"),
    (lambda: NET.objective(np.eye(3), np.eye(3)), "U must be|must be 3 x 2"),
    (lambda: NET.train(10, init=[np.ones((3, 2))] * 3), "init must be a pair"),
    (lambda: NET.train(10, init=np.ones((2, 3, 2))), "init must be a pair"),
    (lambda: NET.train(steps=0), "steps must be"), (lambda: NET.train(10, -1.0), "learning_rate"),
    (lambda: NET.train(10, 0.0), "learning_rate"),
    (lambda: NET.train(10, lambda t: -np.ones(len(t))), "one rate >= 0 for each step"),
    (lambda: NET.train(10, lambda t: np.ones(3)), "one rate >= 0 for each step"),
    (lambda: NET.train(10, batch_size=0), "batch_size must be"),
    (lambda: NET.train(10, gradient="exact"), "gradient must be one of"),
    (lambda: NET.train(10, init_scale=-1.0), "init_scale must be"),
    (lambda: overt.linear.inverse_decay(0.0, 5.0), "rate must be"),
    (lambda: overt.linear.inverse_decay(0.1, 0.0), "halving must be"),
    (lambda: overt.DeepLinearNetwork(np.eye(3), (), 0.3), "widths"),
    (lambda: overt.DeepLinearNetwork(np.eye(3), (2, 0), 0.3), "widths"),
    (lambda: overt.DeepLinearNetwork(np.eye(3), (2, 2), (0.3,)), "drop_prob"),
    (lambda: DEEP.objective([np.eye(3)] * 3), "weights|must be"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_mistakes_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_training_is_measured_at_its_records(scale):
    M = scale * np.diag([1.0, 0.5, 0.009])
    net = overt.LinearNetwork(M, 3, DROP)
    root = np.sqrt(scale)
    U, V = root * np.diag([1.0, 0.011, 0.009]), root * np.eye(3)
    trace = net.train(4, lambda t: 1e-12 / scale * np.ones(len(t)), init=(U, V),
                      gradient="expected", records=[2], seeds=2)  # fmt: skip
    assert trace.steps.tolist() == [0, 2, 4]
    assert trace.objective[0, 0] == pytest.approx(net.objective(U, V))
    assert trace.imbalance[1, 0] == pytest.approx(net.effect.imbalance(U, V))
    assert trace.rank.tolist() == [[2] * 3] * 2  # beyond a hundredth of the largest value
    rates = overt.linear.inverse_decay(0.2, 5.0)
    np.testing.assert_allclose(rates(np.array([0, 5, 15])), [0.2, 0.1, 0.05])
    start = net.train(1, 1e-12 / scale, seeds=3, gradient="expected")
    size = (np.sum(M**2) / 27) ** 0.25
    drawn = np.random.default_rng(2).standard_normal((3, 3))
    np.testing.assert_allclose(start.weights[0][2], size * drawn, rtol=1e-6)
    nothing = overt.LinearNetwork(np.zeros((3, 3)), 3, DROP)
    start = nothing.train(1, 1e-12, seeds=3, gradient="expected")
    np.testing.assert_allclose(start.weights[0][2], drawn, rtol=1e-6)
    lost = net.train(5, 1e9, seeds=1, gradient="expected")
    assert (lost.status, lost.diverged.tolist()) == ("diverged", [True])


def test_signs_are_orthogonal_where_that_is_known_how_and_else_drawn():
    for count in (3, 4):
        H = blocks._signs(count, 4, 0)
        np.testing.assert_array_equal(H @ H.T, 4 * np.eye(count))
    for count, width in ((5, 4), (3, 3)):
        found = blocks._signs(count, width, 7)
        expected = np.random.default_rng(7).choice([-1.0, 1.0], size=(count, width))
        np.testing.assert_array_equal(found, expected)
    assert np.ptp(found) == 2.0


def test_rounding_of_large_targets_is_a_share_of_them():
    S = scipy.sparse.random_array((30, 20), density=0.2, rng=np.random.default_rng(28))
    ones, other = (overt.LinearNetwork(c * S, 3, DROP).effect.regression for c in (1.0, 1e-6))
    share = ones.rounding(0.0, 0.0, 0.0) / scipy.sparse.linalg.norm(S) ** 2
    assert 1e-15 < share < 1e-13
    assert other.rounding(0.0, 0.0, 0.0) == pytest.approx(1e-12 * ones.rounding(0.0, 0.0, 0.0))


def test_norms_of_operators_are_summed_block_by_block():
    T = np.random.default_rng(8).standard_normal((3, 150))
    net = overt.LinearNetwork(scipy.sparse.linalg.aslinearoperator(T), 2, overt.Dropout(0.5))
    U, V = np.zeros((3, 2)), np.zeros((150, 2))
    assert net.objective(U, V) == pytest.approx(np.sum(T**2))


def test_shares_of_units_that_cost_nothing_together_have_no_bound():
    found = UnitShares(np.array([1e-20, 2.0]), -1.0)
    assert found.bound(np.array([3.0, 1.0])) == -np.inf


def test_lowered_envelopes_are_a_little_lower():
    Gamma = np.array([[2.0, 0.5], [0.5, 1.0]])
    slack = proposals.SLACK * 2.0
    for given, delta, gamma in (
        (UnitShares(np.array([0.5, 0.0]), 0.25), [0.5 - slack, 0.0], 0.25 - slack / 2),
        ((0.25, SquaredNuclear()), [0.5 - slack] * 2, -slack / 2),
        ((0.0, SquaredNuclear()), [0.0, 0.0], -slack / 2),
        ((0.25, Schatten(2.0)), [0.0, 0.0], 0.25 * (1 - 1e-9)),
    ):
        found = proposals._lowered(given, Gamma)
        np.testing.assert_allclose(found.delta, delta, rtol=1e-15)
        assert found.gamma == pytest.approx(gamma, rel=1e-14, abs=0)
    weight, norm = proposals._lowered((0.25, KSupport(2)), Gamma)
    assert (weight, norm) == (pytest.approx(0.25 * (1 - 1e-9), rel=1e-14), KSupport(2))


@pytest.mark.parametrize("noise", NOISES[1:])
def test_unlike_units_share_the_whole_map(noise):
    rng, share = np.random.default_rng(9), sharing(noise, 3)
    left, right = (np.linalg.qr(rng.standard_normal((n, 2)))[0] for n in (5, 4))
    for a in (np.array([3.0, 1.0]), np.array([2.0])):
        U, V = share.factors(left[:, : len(a)], a, right[:, : len(a)])
        assert (U.shape, V.shape) == ((5, 3), (4, 3))
        np.testing.assert_allclose(U @ V.T, (left[:, : len(a)] * a) @ right[:, : len(a)].T)
        np.testing.assert_allclose(np.linalg.norm(U, axis=0), np.linalg.norm(V, axis=0))
    for W, n in zip(share.factors(left[:, :0], np.zeros(0), right[:, :0]), (5, 4), strict=True):
        np.testing.assert_array_equal(W, np.zeros((n, 3)))


def test_covariances_that_rounding_alone_correlates_are_solved_exactly():
    """Units with costs of their own, and 1e-17 between them, as products of matrices leave it."""
    costs = np.array([0.2, 0.5, 1.0])
    S = np.random.default_rng(21).standard_normal((3, 3))
    noise = overt.CovarianceNoise(np.ones(3), np.diag(costs) + 1e-17 * (S + S.T - 2 * np.diag(S)))
    found, same = (overt.LinearNetwork(np.diag([3.0, 2.0, 1.0]), 3, law).solve()
                   for law in (noise, overt.Dropout(costs / (1 + costs))))  # fmt: skip
    assert found.status == "optimal"
    assert found.objective == pytest.approx(same.objective, rel=1e-12)


def test_units_that_vary_less_than_together_have_no_costs_of_their_own():
    """Gamma = diag(delta) + gamma 1 1' with delta_1 < 0: no weights go below the bound."""
    noise = overt.CovarianceNoise(np.ones(2), np.array([[0.25, 0.5], [0.5, 2.0]]))
    net = overt.LinearNetwork(np.diag([3.0, 2.0]), 2, noise)
    bound, rng = net.solve().certificate.lower_bound, np.random.default_rng(25)
    for _ in range(4):
        U, V = descend(net.effect.value, rng.standard_normal((2, 2, 2)))
        assert net.objective(U, V) >= bound * (1 - 1e-9)
    assert not sharing(noise, 2).exact


def test_envelopes_of_noise_that_moves_all_units_alike():
    for scales in np.random.default_rng(23).standard_normal((20, 2)):
        noise = overt.CovarianceNoise(np.ones(2), np.outer(scales, scales))
        weights = [weight for weight, _ in envelopes(noise, 2)]
        assert weights == [0.0, 0.0]  # whatever rounding makes of the least eigenvalue
    noise = overt.CovarianceNoise(np.ones(3), 0.5 * np.ones((3, 3)))
    (delta, _), (gamma, norm) = envelopes(noise, 3)
    assert delta == 0.0
    assert gamma == pytest.approx(0.5 * (1 - 1e-9), rel=1e-12)
    assert norm == Schatten(2.0)


def test_pairs_go_beyond_the_least_eigenvalue():
    Gamma = NOISES[2].characteristic(3)
    least = np.linalg.eigvalsh(Gamma)[0]
    found = pairs_below(Gamma)
    assert any(pair.delta[0] > least for pair in found)
    assert any(pair.delta[0] < least for pair in found)
    for pair in found:
        D = Gamma - np.diag(pair.delta) - pair.gamma
        assert np.linalg.eigvalsh(D)[0] >= -1e-12
        more = D - 1e-6 * abs(pair.gamma)
        assert np.linalg.eigvalsh(more)[0] < 0


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_optima_of_weights_and_floors_have_units(unit):
    M, C = np.array([[2.0, 0.3], [-0.4, 1.0]]), np.array([[1.0, 0.4], [0.4, 2.0]])
    one, other = (overt.LinearNetwork(c * M, 2, overt.DropConnect(0.3), second_moment=C)
                  for c in (1.0, unit))  # fmt: skip
    found = [net.solve().objective for net in (one, other)]
    assert found[1] == pytest.approx(unit**2 * found[0])
    assert found[0] < np.trace(M @ C @ M.T)
    flat = [overt.LinearNetwork(c * M, 3, overt.Dropout(0.3)).floor(1e-3 / c, samples=2).flat
            for c in (1.0, unit)]  # fmt: skip
    assert 0 < flat[0] == flat[1] < 12


def test_paths_say_which_blocks_attain_their_bounds():
    rng, seen = np.random.default_rng(11), []
    for _ in range(10):
        M = np.diag(rng.choice([1.0, 2.0, 2.5], 6))
        found = overt.path(M, width=[4, 6, 8], drop_probs=0.3, block_size=2)
        for d, a, told in zip((4, 6, 8), found.spectrum, found.attained, strict=True):
            assert told == blocks.attains_bound(a[positive(a)], d // 2, 2)
            seen.append((bool(told), blocks.attains_bound(a[positive(a)], d * 2, 2)))
    assert len({told for told, _ in seen}) == 2
    assert any(told != wider for told, wider in seen)


def test_samples_are_masked_by_noise_on_inputs():
    rng = np.random.default_rng(10)
    X, Y, M, L = (rng.standard_normal(shape) for shape in ((6, 3), (6, 2), (2, 3), (3, 3)))
    noise = overt.Dropout(0.4)
    for given in (sampling.Samples(sampling.DATA, X, Y, noise),
                  sampling.samples_of_target(M, None, noise),
                  sampling.samples_of_target(M, L, noise)):  # fmt: skip
        clean = sampling.Samples(given.kind, given.inputs, given.outputs)
        x, y = clean.batch(8, np.random.default_rng(1))
        z = sampling.multipliers(noise, 3, 8, np.random.default_rng(2))
        masked, same = given.batch(8, np.random.default_rng(1), np.random.default_rng(2))
        np.testing.assert_array_equal(masked, x * z)
        np.testing.assert_array_equal(same, y)
        if given.kind != sampling.DATA:
            np.testing.assert_allclose(y, x @ M.T)


def test_what_is_proved_is_given_as_numbers():
    C = torch.tensor([[2.0, 1.0], [0.0, 2.0]], requires_grad=True)
    effect = SimpleNamespace(weight_decay=0.0, regression=SimpleNamespace(given={"C": C}))
    np.testing.assert_array_equal(proofs._given(effect)["C"], [[2.0, 0.5], [0.5, 2.0]])


def test_two_projections_have_eigenvalues_in_pairs():
    assert blocks.attained(np.array([0.2, 0.3, 0.5, 0.5, 0.7, 0.8]), 2)
    assert not blocks.attained(np.array([0.2, 0.3, 0.5, 0.5, 0.6, 0.9]), 2)  # one pair of three


def test_exact_steps_go_along_half_the_gradient():
    W = np.array([[2.0, -1.0]])
    advance = linear_training.gradient_descent(lambda W: (float(np.sum(W**2)), [2 * W]))(None)
    assert advance([W], np.array([0.1, 0.5])) == 2
    np.testing.assert_allclose(W, 0.9 * 0.5 * np.array([[2.0, -1.0]]))
