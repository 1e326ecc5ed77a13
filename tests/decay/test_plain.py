"""Ways out of minima and other parts of decay, against the same written plainly."""

import numpy as np
import pytest

from overt import Entries, InputError
from overt.decay import ApproximateRankSet, escaping, layers, two_by_two
from overt.decay.escaping import _Way

WAYS = [(0.25, 3, 0.02), (0.1, 4, 0.01)]


def power(S, p):
    values, Q = np.linalg.eigh(S)
    return (Q * np.maximum(values, 0) ** p) @ Q.T


def pulled(A, k, y, depth, lam):
    """f_k(A) = -(A_k - y_k) P_A(E_k) - 2 lam L A."""
    E = np.zeros((2, 2))
    E[k] = 1.0
    P = sum(power(A @ A.T, (depth - i) / depth) @ E @ power(A.T @ A, (i - 1) / depth)
            for i in range(1, depth + 1))  # fmt: skip
    return -(A[k] - y) * P - 2 * lam * depth * A


def derivative(f, x, h=1e-6):
    return np.stack([(f(x + e) - f(x - e)) / (2 * h) for e in h * np.eye(len(x))], axis=-1)


@pytest.mark.parametrize(("epsilon", "depth", "lam"), WAYS)
def test_moves_are_those_of_balanced_weights(epsilon, depth, lam):
    way = _Way(epsilon, depth, lam)
    for x in (np.array([1.2, 0.4, 0.6]), np.array([0.9, 0.2, 1.1])):
        A = escaping._matrices(x[None])[0]
        np.testing.assert_allclose(np.linalg.svd(A, compute_uv=False), x[:2])
        assert np.arctan2(2 * A[0, 0], A[0, 1] - A[1, 0]) / 2 == pytest.approx(x[2])
        J = derivative(lambda x: escaping._matrices(x[None])[0].ravel(), x)
        one, eps = way._moves(x[None])[0]
        ones = [pulled(A, (i, i), 1.0, depth, lam) for i in (0, 1)]
        np.testing.assert_allclose(J @ one, np.mean(ones, axis=0).ravel(), atol=1e-7)
        np.testing.assert_allclose(J @ eps, pulled(A, (1, 0), epsilon, depth, lam).ravel(),
                                   atol=1e-7)  # fmt: skip
        slope, noise = way._linear(x)
        mean = lambda x: np.array([2 / 3, 1 / 3]) @ way._moves(x[None])[0]  # noqa: E731
        np.testing.assert_allclose(slope, derivative(mean, x), atol=1e-7)
        away = np.stack([one, eps]) - mean(x)
        expected = 2 / 3 * np.outer(away[0], away[0]) + 1 / 3 * np.outer(away[1], away[1])
        np.testing.assert_allclose(noise, expected, atol=1e-12)


def hamiltonian(way, y):
    f = way._moves(y[None, :3])[0]
    return np.log(np.array([2 / 3, 1 / 3]) @ np.exp(f @ y[3:]))


@pytest.mark.parametrize(("epsilon", "depth", "lam"), WAYS)
def test_ends_of_the_way_are_linear(epsilon, depth, lam):
    way = _Way(epsilon, depth, lam)
    assert way.low[1] > way.high[1]  # the minimum has the larger second value
    for end in (way.low, way.high):
        mean = np.array([2 / 3, 1 / 3]) @ way._moves(end[None])[0]
        np.testing.assert_allclose(mean, 0, atol=1e-8)
    J, noise = way._linear(way.low)
    np.testing.assert_allclose(J @ way.Sigma + way.Sigma @ J.T, -noise, atol=1e-9)
    slowest = -np.linalg.eigvals(J).real.max()
    J, noise = way._linear(way.high)
    np.testing.assert_allclose(way.v @ J, way.mu * way.v, atol=1e-7)
    assert way.mu > 0
    assert np.linalg.norm(way.v) == pytest.approx(1)
    assert way.v @ way.way > 0
    assert way.noise == pytest.approx(way.v @ noise @ way.v)
    assert (way.before, way.after) == (pytest.approx(np.log(50) / slowest),
                                       pytest.approx(np.log(50) / way.mu))  # fmt: skip
    tau = np.array([-1.0, -0.25, 0.0, 0.5, 1.0])
    np.testing.assert_allclose(way.clock(tau), [-way.before, -way.before / 4, 0.0, way.after / 2,
                                                way.after])  # fmt: skip
    line = way.straight(tau)
    s = 1 / (1 + np.exp(-way.mu * way.clock(tau)))
    np.testing.assert_allclose(line[:, :3], way.low + s[:, None] * way.way)
    size = 2 * way.mu * s * (1 - s) * (way.v @ way.way) / way.noise
    np.testing.assert_allclose(line[:, 3:], size[:, None] * way.v)
    length = np.linalg.norm(way.way)
    np.testing.assert_allclose(way.units, [length] * 3 + [way.mu * length / way.noise] * 3)
    np.testing.assert_allclose(way.origin, [*way.low, 0, 0, 0])


@pytest.mark.parametrize(("epsilon", "depth", "lam"), WAYS)
def test_equations_of_the_way_and_their_derivative(epsilon, depth, lam):
    way, rng = _Way(epsilon, depth, lam), np.random.default_rng(0)
    tau = np.linspace(-1, 1, 5)
    y = way.straight(tau) + 0.02 * rng.standard_normal((5, 6))
    slopes = way._slope(y)
    for point, slope in zip(y, slopes, strict=True):
        g = derivative(lambda z: hamiltonian(way, z), point)
        np.testing.assert_allclose(slope, [*g[3:], *-g[:3]], atol=1e-6)
        f = way._moves(point[None, :3])[0]
        w = np.array([2 / 3, 1 / 3]) * np.exp(f @ point[3:])
        np.testing.assert_allclose(way.shares(point[None])[0], w / w.sum())
    t, friction = way.clock(tau), 0.3
    found, jacobian = way._system(t, y, friction)
    across = np.linalg.svd(way.v[None])[2][1:]
    expected = [*(y[0, :3] - way.low - way.Sigma @ y[0, 3:])]
    for k in range(4):
        middle, h = (y[k] + y[k + 1]) / 2, t[k + 1] - t[k]
        push = np.r_[0.0, 0.0, 0.0, middle[3:]]
        expected += [*(y[k + 1] - y[k] - h * (way._slope(middle[None])[0] + friction * push))]
    expected += [*(across @ y[-1, 3:])]
    expected += [way.v @ (y[-1, :3] - way.high) + way.noise / (2 * way.mu) * (way.v @ y[-1, 3:])]
    expected += [way.v @ (y[2, :3] - way.low - way.way / 2)]
    np.testing.assert_allclose(found, expected, atol=1e-12)

    def residual(z):
        return way._system(t, z[:-1].reshape(y.shape), z[-1])[0]

    numeric = derivative(residual, np.append(y.ravel(), friction))
    np.testing.assert_allclose(jacobian.toarray(), numeric, atol=2e-4 * np.abs(numeric).max())
    action = 0.5 * y[0, 3:] @ way.Sigma @ y[0, 3:]
    action += (way.v @ y[-1, 3:]) ** 2 * way.noise / (4 * way.mu)
    for k in range(4):
        w = way.shares((y[k] + y[k + 1])[None] / 2)[0]
        action += (t[k + 1] - t[k]) * np.sum(w * np.log(w / np.array([2 / 3, 1 / 3])))
    assert way.action(tau, y) == pytest.approx(action)


def test_a_way_is_solved_or_given_up():
    way = _Way(0.25, 3, 0.025)
    tau = np.linspace(-1, 1, 41)
    start = way.straight(tau)
    with np.errstate(all="ignore"):
        assert way.solve(tau, start + 100.0) is None
    near = escaping._follow(lambda z: _Way(0.25, 3, 0.0259 * (1 - z**2)), 0.08)
    found, y = near
    again = found.solve(np.linspace(-1, 1, 201), y)
    np.testing.assert_allclose(again, y, atol=1e-7)  # little to do
    residual, _ = found._system(found.clock(np.linspace(-1, 1, 201)), y, 0.0)
    assert np.abs(residual).max() < 1e-5
    assert found.lam == pytest.approx(0.0259 * (1 - 0.08**2))


def test_the_time_of_a_jump_follows_its_action():
    found = escaping.escape(two_by_two(0.25), 3, 0.025)
    assert found.log_time(0.1) == pytest.approx(found.action / 0.1 - np.log(0.1))
    np.testing.assert_allclose(found.shares.sum(axis=1), 1)
    assert found.error < 1e-3 * found.action
    assert found.path.shape == (401, 2, 2)
    np.testing.assert_allclose(found.path[:, 0, 0], found.path[:, 1, 1])


PROBLEM = Entries([0, 0, 1, 2], [0, 1, 1, 3], [1.3, -2.1, 0.4, 1.7], (3, 4))


@pytest.mark.parametrize("absorbing", [False, True])
def test_constants_of_the_sets_are_those_of_the_theorems(absorbing):
    L, width, decay, r, eps_2 = 4, 5, 0.13, 2, 0.31
    region = ApproximateRankSet.for_problem(PROBLEM, L, width, decay, r, slack=eps_2,
                                            absorbing=absorbing)  # fmt: skip
    lam, n, C_1 = 2 * decay, 5, 2.1**2
    C = C_1 / lam if absorbing else C_1 / (2 * lam)
    alpha = (lam**2 / (2 * (C_1 + C**L))) ** (1 / (L - 2))
    root = lam * alpha * eps_2 / (32 * n * L * (r + 1) * C ** ((L - 1) / 2)
                                  * np.sqrt(2 * (C_1 + C**L)))  # fmt: skip
    eps_1 = root**2
    if absorbing:
        eps_1 = min(eps_1, alpha * eps_2 / (4 * (n - r) * (L - 1)))
    assert (region.rank, region.slack) == (r, eps_2)
    assert (region.bound, region.alpha) == (pytest.approx(C), pytest.approx(alpha))
    assert region.balance == pytest.approx(eps_1)
    D = 2 * (C_1 + C**L) * C ** (L - 1) + lam**2 * C
    assert region.learning_rates(PROBLEM, L, width, decay) == pytest.approx({
        "bound": C_1 / (4 * D),
        "balance": 2 * lam * eps_1 / (4 * (C_1 + C**L) * C ** (L - 1) + lam**2 * eps_1),
        "rank": lam * alpha * eps_2 / (32 * n * (r + 1) * D), "overshoot": 2 * (r + 1) / lam,
    })  # fmt: skip
    first, then, log = region.absorption(PROBLEM, width, decay, 0.03, 1.9)
    assert first == pytest.approx(np.log(2 * 1.9 / eps_1) / (0.03 * lam))
    assert then == pytest.approx(np.log(4 * (n - r) * C / (alpha * eps_2)) / (2 * 0.03 * lam))
    assert log == pytest.approx(then * np.log10(r / 3))
    wide = ApproximateRankSet(7, 1e-3, 0.2, 0.1, 3.0)
    assert wide.absorption(PROBLEM, width, decay, 0.03, 1.9)[2] == 0.0
    assert wide.absorption(PROBLEM, width, decay, 0.03, 1.9)[1] == pytest.approx(
        np.log(4 * 3.0 / (0.1 * 0.2)) / (2 * 0.03 * lam))  # fmt: skip
    nothing = ApproximateRankSet(0, 1e-3, 0.2, 0.1, 3.0)
    with pytest.raises(InputError, match="rank must be at least 1, got 0"):
        nothing.absorption(PROBLEM, width, decay, 0.03, 1.9)


def test_the_balance_of_wide_absorbing_sets_is_the_lesser_one():
    region = ApproximateRankSet.for_problem(PROBLEM, 3, 5, 3.0, 2, slack=0.4, absorbing=True)
    lam, C_1 = 6.0, 2.1**2
    C = C_1 / lam
    alpha = lam**2 / (2 * (C_1 + C**3))
    root = lam * alpha * 0.4 / (32 * 5 * 3 * 3 * C * np.sqrt(2 * (C_1 + C**3)))
    assert region.balance == pytest.approx(min(root**2, alpha * 0.4 / (4 * 3 * 2)))


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_points_of_the_boundary_are_measured_there(rank):
    region = ApproximateRankSet(rank, 1e-6, 0.3, 0.05, 4.0)
    rng = np.random.default_rng(1)
    for _ in range(5):
        weights = region.boundary_point((4, 6), 3, 5, rng)
        assert [W.shape for W in weights] == [(5, 6), (5, 5), (4, 5)]
        found = region.measure(weights)
        squares = [np.linalg.svd(W, compute_uv=False) ** 2 for W in weights]
        soft = [np.sum(np.where(x < 0.05, x * (0.1 - x) / 0.05**2, 1.0)) for x in squares]
        assert found["rank"] == pytest.approx(max(soft))
        assert found["bound"] == pytest.approx(max(x.sum() for x in squares))
        assert found["balance"] < 1e-12
        assert region.contains(weights)
        assert found["bound"] <= 4.0
        for x in squares:
            last = 0.05 * (1 - np.sqrt(1 - 0.3 * (1 - 1e-6)))
            assert np.abs(x - last).min() < 1e-9
            assert np.count_nonzero(x > 1e-12) == rank + 1
        if rank:
            assert found["bound"] >= 0.04 * 0.9
    tilted = [1.01 * weights[0], *weights[1:]]
    gap = np.linalg.norm(tilted[0] @ tilted[0].T - tilted[1].T @ tilted[1], 2)
    assert region.measure(tilted)["balance"] == pytest.approx(gap)
    more = region.measure(tilted)["rank"] > rank + 0.3
    assert region.violations(tilted) == {"bound": False, "balance": True, "rank": more}
    big = [3.0 * W for W in region.boundary_point((4, 6), 3, 5, rng)]
    assert region.violations(big)["bound"] == (np.sum(big[0] ** 2) > 4.0)
    for given, message in (((0.5, 1.0), "slack must be below"), ((0.3, 0.0), "bound must be")):
        with pytest.raises(InputError, match=message):
            ApproximateRankSet(1, 1e-6, given[0], 0.05, given[1])
    for shape in ((4,), 4, (4, 6, 2)):
        with pytest.raises(InputError, match="shape must be"):
            region.boundary_point(shape, 3, 5, rng)
    assert layers.imbalance(weights) < 1e-9
