"""Ways out of minima and other parts of decay, against the same written plainly."""

from itertools import combinations
from types import SimpleNamespace

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import brentq

from overt import Entries, InputError
from overt.decay import (
    ApproximateRankSet,
    DeepLinearCompletion,
    annealing,
    baselines,
    closedness,
    entry_draws,
    escaping,
    existence,
    family,
    find_jumps,
    layers,
    minima,
    records,
    simulate,
    survival,
    two_by_two,
)
from overt.decay import landscape as landscape_of
from overt.decay import search as search_of
from overt.decay.annealing import AnnealedPath, Candidate
from overt.decay.baselines import nuclear_norm
from overt.decay.completion import _choose, _shed_to, _split
from overt.decay.descent import lbfgs
from overt.decay.escaping import _Way
from overt.decay.family import critical_points, epsilon_of
from overt.decay.jumping import _visits
from overt.decay.schedule import Phase, Schedule, effective
from overt.decay.search import Search, numerical_rank, polish, random_starts
from overt.decay.sgd import Weights
from overt.decay.verification import FittingRank, verify

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


def test_equations_of_the_way_and_their_derivative():
    way, rng = _Way(0.1, 4, 0.01), np.random.default_rng(0)
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
    assert np.abs(jacobian.toarray() - numeric).max() < 1e-2
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


class Stretch:
    """A way whose shape at z is quadratic in it; `lost` counts the calls that fail."""

    def __init__(self, z, asked, lost):
        self.lam, self.z, self._asked, self._lost = 1 - z, z, asked, lost
        self.origin, self.units = np.arange(6) + z, 1 + z * np.arange(6)

    def shape(self):
        return self.z + self.z**2 * np.arange(6)

    def straight(self, tau):
        return np.zeros((len(tau), 6))

    def solve(self, tau, guess):
        assert tau.tolist() == np.linspace(-1, 1, 201).tolist()
        self._asked.append((self.z, (guess[0] - self.origin) / self.units))
        if len(self._asked) - 1 in self._lost:
            return None
        return np.tile(self.origin + self.units * self.shape(), (len(tau), 1))


def test_a_way_is_followed_by_lines_through_its_last_two_shapes():
    asked = []
    way, y = escaping._follow(lambda z: Stretch(z, asked, [2, 4]), 0.1)
    z = 0.05 * np.cumprod([1, 1.3, 1.48, 1, 1, 1])
    z[3] = z[1] * (1 + 0.48 / 3)
    z[4] = min(0.1, z[3] * (1 + 1.6 * 0.16))
    z[5] = z[3] * (1 + 1.6 * 0.16 / 3)
    z = np.append(z, [z[5] * (1 + 1.6 * 1.6 * 0.16 / 3), 0.1])
    np.testing.assert_allclose([given for given, _ in asked], z)
    shapes = dict(enumerate(Stretch(x, None, []).shape() for x in z))
    for k, (b, a) in {2: (1, 0), 3: (1, 0), 4: (3, 1), 5: (3, 1), 6: (5, 3), 7: (6, 5)}.items():
        line = shapes[b] + (shapes[b] - shapes[a]) * (z[k] - z[b]) / (z[b] - z[a])
        np.testing.assert_allclose(asked[k][1], line)
    np.testing.assert_allclose(asked[1][1], shapes[0])
    assert (way.z, y[7].tolist()) == (0.1, (way.origin + way.units * way.shape()).tolist())
    quick = []
    escaping._follow(lambda z: Stretch(z, quick, []), 0.3)
    np.testing.assert_allclose([z for z, _ in quick[1:5]],
                               0.065 * np.cumprod([1, 1.48, 1.5, 1.5]))  # fmt: skip
    for lost, tries in (({0}, 1), ({*range(1, 99)}, 6)):
        asked.clear()
        with pytest.raises(InputError, match=r"above 0.95 here, .* got 0.9"):
            escaping._follow(lambda z, lost=lost: Stretch(z, asked, lost), 0.1)
        assert len(asked) == tries
    escaping._follow(lambda z: Stretch(z, asked, []), 0.05)  # where it begins
    assert len(asked) == tries + 1


def test_the_error_of_an_action_is_its_change_when_points_are_doubled(monkeypatch):
    actions = {401: 2.0, 201: 2.5}
    monkeypatch.setattr(_Way, "action", lambda self, tau, y: actions[len(tau)])
    found = escaping.escape(two_by_two(0.25), 3, 0.0258)
    assert (found.action, found.error) == (2.0, 0.5)
    assert (len(found.times), found.path.shape, found.shares.shape) == (401, (401, 2, 2), (401, 3))
    np.testing.assert_allclose(found.shares.sum(axis=1), 1.0)
    assert (found.epsilon, found.depth, found.weight_decay) == (0.25, 3, 0.0258)
    minimum, saddle = critical_points(0.25, 3, 0.0258, 2)
    ends = sorted((minimum, saddle), key=lambda A: -np.linalg.svd(A)[1][1])
    np.testing.assert_allclose([found.minimum, found.saddle], ends, atol=1e-9)


def test_the_time_of_a_jump_follows_its_action():
    found = escaping.Escape(2.0, *[None] * 9)
    assert found.log_time(0.1) == pytest.approx(2.0 / 0.1 - np.log(0.1))


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
    assert region.balance == pytest.approx(eps_1, rel=1e-9, abs=0)
    D = 2 * (C_1 + C**L) * C ** (L - 1) + lam**2 * C
    assert region.learning_rates(PROBLEM, L, width, decay) == pytest.approx({
        "bound": C_1 / (4 * D),
        "balance": 2 * lam * eps_1 / (4 * (C_1 + C**L) * C ** (L - 1) + lam**2 * eps_1),
        "rank": lam * alpha * eps_2 / (32 * n * (r + 1) * D), "overshoot": 2 * (r + 1) / lam,
    }, rel=1e-9, abs=0)  # fmt: skip
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
    region = ApproximateRankSet.for_problem(PROBLEM, 3, 5, 100.0, 2, slack=0.4, absorbing=True)
    lam, C_1 = 200.0, 2.1**2
    C = C_1 / lam
    alpha = lam**2 / (2 * (C_1 + C**3))
    root = lam * alpha * 0.4 / (32 * 5 * 3 * 3 * C * np.sqrt(2 * (C_1 + C**3)))
    assert root**2 > alpha * 0.4 / (4 * 3 * 2)
    assert region.balance == pytest.approx(alpha * 0.4 / (4 * 3 * 2))
    wide = ApproximateRankSet.for_problem(PROBLEM, 3, 5, 1e3, 7, slack=0.4, absorbing=True)
    assert wide.balance == pytest.approx(wide.alpha * 0.4 / (4 * 1 * 2))


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


def test_steps_out_of_a_set_are_counted_one_by_one():
    region, weight_decay, rate = ApproximateRankSet(1, 1e-2, 0.25, 0.1, 5.0), 0.05, 0.6
    found = closedness(region, PROBLEM, 3, 4, weight_decay, rate, steps=5, runs=6, seed=7)
    counts = dict.fromkeys(("bound", "balance", "rank"), 0)
    for run in range(6):
        weights = region.boundary_point((3, 4), 3, 4, np.random.default_rng([7, run, 2]))
        for n in entry_draws(PROBLEM, 5, seed=7, run=run):
            one = PROBLEM.take(np.array([n]))
            slopes = layers.gradient(one, weights, weight_decay)
            before, weights = weights, [W - rate * g for W, g in zip(weights, slopes, strict=True)]
            for name, broken in region.violations(weights).items():
                counts[name] += broken and not region.violations(before)[name]
    assert all(counts.values())
    assert {name: getattr(found, name) for name in counts} == counts
    assert (found.steps, found.learning_rate) == (30, rate)
    rates = region.learning_rates(PROBLEM, 3, 4, weight_decay)
    assert found.allowed == min(rates.values())


def annealed(problem=PROBLEM, depth=3, width=4, seed=0):
    told = []
    path = AnnealedPath(problem, depth, width, np.random.default_rng(seed),
                        lambda *given: told.append(given))  # fmt: skip
    return path, told


def test_rates_and_decays_follow_the_size_of_the_problem():
    path, _ = annealed()
    curve = (3 * 4 / 2) ** (2 / 3) * 2 * (1 / 3 + 1 / 4)
    assert annealing.curvature((3, 4), 3) == pytest.approx(curve)
    assert path._rate == pytest.approx(0.5 / curve)
    top = 0.5 / (3 * 12 ** (1 / 3))
    np.testing.assert_allclose(path.decays, [top / 2**k for k in range(9, -1, -1)])
    rng = np.random.default_rng(0)
    for W, shape in zip(path.weights(), [(4, 4), (4, 4), (3, 4)], strict=True):
        np.testing.assert_allclose(W, rng.standard_normal(shape) / 2)


def test_phases_of_the_annealed_path(monkeypatch):
    path, _ = annealed()
    asked = []

    def run(self, *given, **more):
        asked.append((*given, *more.values()))

    monkeypatch.setattr(AnnealedPath, "_descend", run)
    rate, n = path._rate, len(PROBLEM)
    for lam in (1e-9, 0.03, 10.0):
        path.shed(lam)
    steps = [int(np.clip(3.0 / (2 * rate * lam), 60 * n, 400 * n)) for lam in (1e-9, 0.03, 10.0)]
    assert asked[0] == (20 * n, rate / 5, 1e-9, "warm-up")
    assert [a[:3] for a in asked[1:]] == [(s, rate, lam) for s, lam in
                                          zip(steps, (1e-9, 0.03, 10.0), strict=True)]  # fmt: skip
    assert steps[0] == 400 * n
    assert steps[2] == 60 * n
    asked.clear()
    path.settle(0.06)
    rank = path.rank()
    assert asked == [(150 * n, rate / 3, 0.06 / share, f"rank {rank}") for share in (30, 1000)]
    asked.clear()
    path.run(Phase(7, 0.1, 0.2))
    assert asked == [(7, 0.1, 0.2, "scheduled", False)]


def test_ranks_and_grades_are_those_of_the_product():
    path, _ = annealed()
    A = layers.product(path.weights())
    s = np.linalg.svd(A, compute_uv=False)
    assert path.rank() == np.sum(s > max(0.01 * s[0], 1e-3))
    found = path.candidate(0.3, PROBLEM, PROBLEM)
    assert (found.weight_decay, found.rank) == (0.3, path.rank())
    assert found.train_error == found.holdout_error == pytest.approx(
        layers.train_error(PROBLEM, A))  # fmt: skip
    path.branch()._state.F[:] = 0  # which is a copy
    other = path.branch()
    other.truncate(1)
    B = layers.product(other.weights())
    U, _, V = np.linalg.svd(A)
    np.testing.assert_allclose(B, s[0] * np.outer(U[:, 0], V[0]), atol=1e-12)
    assert other.rank() == 1
    np.testing.assert_allclose(layers.product(path.weights()), A)
    small, _ = annealed()
    small._state = Weights(layers.balanced(np.diag([1.0, 0.011, 0.009, 0.0])[:3], 3, 4))
    assert small.rank() == 2
    small._state = Weights(layers.balanced(np.diag([1e-2, 1.1e-3, 0.9e-3, 0.0])[:3], 3, 4))
    assert small.rank() == 2


def test_rates_are_halved_where_iterates_run_away():
    path, told = annealed()
    taken, states = [], []

    class State:
        def __init__(self, mark=0):
            self.mark = mark

        def copy(self):
            return State(self.mark)

        def descend(self, problem, draws, rate, lam):
            states.append((self.mark, len(draws), rate, lam))
            self.mark += 1
            return len(draws) if rate < 0.3 else 5

        def fold(self):
            taken.append(1)

    path._state, first = State(), path._rate
    path._descend(450_000, 0.8, 0.1, "note")
    assert states == [(0, 200_000, 0.8, 0.1), (0, 200_000, 0.4, 0.1), (0, 200_000, 0.2, 0.1),
                      (1, 200_000, 0.2, 0.1), (2, 50_000, 0.2, 0.1)]  # fmt: skip
    assert path._rate == first / 4
    assert told == [(5, "note")] * 2 + [(200_000, "note")] * 2 + [(50_000, "note")]
    assert len(taken) == 5
    for rate, halve in ((0.8, False), (0.9e-12, True)):
        path._state = State()
        path._state.descend = lambda *given: 0
        with pytest.raises(InputError, match="grew without bound"):
            path._descend(10, rate, 0.1, "note", halve=halve)


def place(matrix, loss=1.0, rank=1, isolated=True, dimension=0):
    return SimpleNamespace(matrix=np.asarray(matrix, float), loss=loss, rank=rank,
                           isolated=isolated, dimension=dimension)  # fmt: skip


def test_places_are_known_by_distance_and_continua_by_loss():
    graded = []
    search = Search(PROBLEM, 3, 0.01, lambda A, proof: graded.append(proof) or answers.pop(0))
    A = np.eye(3, 4)
    size = np.linalg.norm(A)
    answers = [place(A), place(2 * A)]
    assert search.add(A, "one") == 0
    far = np.zeros((3, 4))
    far[0, 1] = size
    assert search.add(A + 0.9e-5 * far, "two") == 0
    assert search.add(2 * A, "three") == 1
    assert graded == ["one", "three"]
    assert search._known(A + 0.9e-4 * far, 1e-4) == 0
    assert search._known(A + 1.1e-4 * far, 1e-4) is None
    answers[:] = [place(3 * A, 2.0, 1, False, 2), place(4 * A, 2.0 * (1 + 0.9e-7), 1, False, 2),
                  place(5 * A, 2.0, 1, False, 3), place(6 * A, 2.0 * (1 - 1.1e-7), 1, False, 2),
                  place(7 * A, 2.0, 2, False, 2), place(8 * A, 2.0, 1, True, 2)]  # fmt: skip
    assert [search.add(k * A, "") for k in range(3, 9)] == [2, 2, 3, 4, 5, 6]
    assert len(search.found) == 7
    for rank, loss, expected in ((1, 2.0, True), (2, 2.0, False), (1, 2.0 * (1 + 1.1e-7), False)):
        assert search._continues(2, rank, loss) == expected
    assert not search._continues(0, 1, 1.0)
    zero = Search(PROBLEM, 3, 0.01, None)
    zero.found = [place(np.zeros((3, 4)))]
    rms = np.sqrt(np.mean(PROBLEM.values**2))
    near = np.zeros((3, 4))
    near[0, 0] = 0.9e-4 * rms
    assert zero._known(near, 1e-4) == 0
    assert zero._known(near / 0.9 * 1.1, 1e-4) is None
    nothing = Search(Entries([0], [0], [0.0], (1, 1)), 3, 0.01, None)  # of size 1
    nothing.found = [place([[0.0]])]
    assert [nothing._known(np.array([[x]]), 1e-4) for x in (0.9e-4, 1.1e-4)] == [0, None]


@pytest.mark.parametrize("places", [1, 2, 9])
def test_descents_go_on_while_places_should_be_missing(monkeypatch, places):
    search = Search(PROBLEM, 3, 0.01, None)
    seen, ladders = [], []

    def end(start, ladder):
        seen.append(len(seen) % places)
        ladders.append(ladder)
        return seen[-1]

    monkeypatch.setattr(search, "_end", end)
    search.run(2, 8, np.random.default_rng(0))
    n = w = 0
    while n < 6 * 8 and (n <= w + 2 or w * (n - 1) / (n - w - 2) > w + 0.5):
        n += 8
        w = min(places, n)
    assert search.starts == {2: n}
    assert search.unseen[2] == pytest.approx(min(1.0, w * (w + 1) / (n * (n - 1))))
    assert ladders == [k % 4 == 3 for k in range(n)]


def test_starts_have_three_sizes():
    rng, again = np.random.default_rng(3), np.random.default_rng(3)
    size = np.sqrt(np.mean(PROBLEM.values**2)) ** (1 / 3)
    for k, weights in enumerate(random_starts(PROBLEM, 3, 2, 4, rng)):
        scale = size * 3.0 ** ((k % 3 - 1) / 3) / 2 ** (0.5 - 0.5 / 3)
        for W, shape in zip(weights, [(2, 4), (2, 2), (3, 2)], strict=True):
            np.testing.assert_allclose(W, scale * again.standard_normal(shape))


def test_polish_ends_at_critical_points_and_not_at_saddles():
    rng, problem = np.random.default_rng(4), two_by_two(0.25)
    for A in critical_points(0.25, 3, 0.01, 2):  # a minimum and a saddle
        weights = [W + 1e-4 * rng.standard_normal(W.shape) for W in layers.balanced(A, 3, 2)]
        values = np.linalg.eigvalsh(layers.hessian(problem, weights, 0.01))
        before = np.abs(layers.flatten(layers.gradient(problem, weights, 0.01))).max()
        after = polish(problem, weights, 0.01)
        slope = np.abs(layers.flatten(layers.gradient(problem, after, 0.01))).max()
        assert slope < 1e-12 if values[0] > -1e-6 * values[-1] else slope == before
    saddle = [0.3 * np.ones((1, 4)), 0.3 * np.ones((1, 1)), -0.3 * np.ones((3, 1))]
    values = np.linalg.eigvalsh(layers.hessian(PROBLEM, saddle, 0.02))
    assert values[0] < -1e-6 * values[-1]
    for W, V in zip(polish(PROBLEM, saddle, 0.02), saddle, strict=True):
        np.testing.assert_array_equal(W, V)
    assert [numerical_rank(np.diag([1.0, x])) for x in (1.1e-6, 0.9e-6)] == [2, 1]
    assert numerical_rank(np.diag([1e-4, 0.9e-9])) == 1
    assert numerical_rank(np.zeros((2, 2))) == 0


def test_the_nuclear_norm_is_the_least_that_fits():
    found = nuclear_norm(PROBLEM, tol=1e-8)
    A = cp.Variable((3, 4))
    seen = zip(PROBLEM.rows, PROBLEM.cols, PROBLEM.values, strict=True)
    fits = [A[i, j] == v for i, j, v in seen]
    best = cp.Problem(cp.Minimize(cp.normNuc(A)), fits).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(found[PROBLEM.rows, PROBLEM.cols], PROBLEM.values)
    assert np.linalg.svd(found, compute_uv=False).sum() == pytest.approx(best, rel=1e-5)
    more, factors = Entries.sample(np.random.default_rng(3).standard_normal((6, 5)), 10), []
    for problem, few in ((PROBLEM, 1), (PROBLEM, 2), (more, 12)):  # the rule of each step
        observed = np.zeros(problem.shape)
        observed[problem.rows, problem.cols] = problem.values
        B, D, rho = observed.copy(), np.zeros(problem.shape), 10 / np.linalg.norm(observed, 2)
        for _ in range(few):
            U, s, V = np.linalg.svd(B - D, full_matrices=False)
            M = (U * np.maximum(s - 1 / rho, 0)) @ V
            before, B = B, M + D
            B[problem.rows, problem.cols] = problem.values
            D = D + M - B
            primal, dual = np.linalg.norm(M - B), np.linalg.norm(B - before)
            factors += [2.0 if primal > 10 * dual else 0.5 if dual > 10 * primal else 1.0]
            rho, D = rho * factors[-1], D / factors[-1]
        np.testing.assert_allclose(nuclear_norm(problem, tol=1e-99, max_iterations=few), B)
    assert set(factors) == {0.5, 1.0, 2.0}


@pytest.mark.parametrize(("epochs", "blocks"), [(100, 5), (19, 1), (59, 2)])
def test_small_weights_descend_in_blocks_of_twenty_passes(monkeypatch, epochs, blocks):
    asked, errors = [], []

    def draws(problem, count, *, seed, run):
        asked.append((count, run))
        return np.zeros(count, int)

    monkeypatch.setattr(baselines, "entry_draws", draws)
    monkeypatch.setattr(layers, "train_error", lambda *_: errors.pop() if errors else 1.0)
    baselines.small_initialization(PROBLEM, epochs=epochs, learning_rate=1e-9)
    assert asked == [(80, k + 1) for k in range(blocks)]
    asked.clear()
    errors[:] = [1e-6]
    baselines.small_initialization(PROBLEM, epochs=epochs, learning_rate=1e-9)
    assert len(asked) == 1
    asked.clear()
    with np.errstate(all="ignore"):
        baselines.small_initialization(PROBLEM, epochs=epochs, learning_rate=1e9, init=10.0)
    assert len(asked) == 1


def test_schedules_are_cut_into_pieces():
    plan = Schedule((Phase(3, 0.1, 0.2), Phase(4, 0.3, 0.4)))
    first, second = plan.phases
    assert plan.pieces([0, 1, 3, 5, 9]) == [(0, 1, first), (1, 3, first), (3, 5, second),
                                            (5, 7, second)]  # fmt: skip
    assert [plan.phase_at(k) for k in (0, 2, 3, 6)] == [first, first, second, second]
    with pytest.raises(InputError, match="step must be below 7"):
        plan.phase_at(7)
    assert plan.steps == 7
    assert plan.until(5).to_dict() == {"phases": [[3, 0.1, 0.2], [2, 0.3, 0.4]]}
    assert plan.until(2).steps == 2
    assert repr(plan) == "Schedule(3 x (0.1, 0.2), 4 x (0.3, 0.4))"
    turns = Schedule.periodic(2, 5, warm_up=None, convention="loss")
    assert turns.to_dict() == {"phases": [[5, 0.1, 0.001], [5, 0.4, 0.1]] * 2}
    warm = Schedule.annealing(7, 8, convention="loss")
    assert warm.to_dict() == {"phases": [[500, 0.03, 0.1], [7, 0.2, 0.1], [8, 0.02, 0.001]]}
    assert Schedule.annealing(7, 8).phases[0] == Phase(500, 0.06, 0.025)
    assert effective(0.2, 0.1, "appendix") == (0.2, 0.05)
    for name in ("noisy", "quiet"):
        with pytest.raises(InputError, match=f"{name} must be"):
            Schedule.annealing(7, 8, **{name: (0.1,)})


def test_only_the_family_has_an_epsilon():
    # The largest decay of a curve may be at one of its ends, and below zero there is none.
    assert [existence(two_by_two(e), d, 2) for e, d in ((2.0, 3), (0.5, 4))] == [0.0, 0.0]
    assert existence(two_by_two(1000.0), 3, 1) > 0
    assert epsilon_of(two_by_two(0.25)) == 0.25
    for rows, cols, values, shape in (
        ([0, 1, 1], [0, 0, 1], [1, -0.25, 1], (2, 2)), ([0, 1, 1], [0, 0, 1], [1, 0, 1], (2, 2)),
        ([0, 1, 1], [0, 0, 1], [2.0, 0.25, 1.0], (2, 2)), ([0, 1, 0], [0, 0, 1], [1, 1, 1], (2, 2)),
        ([0, 1, 1], [0, 0, 1], [1.0, 0.25, 2.0], (2, 2)), ([0, 1], [0, 0], [1.0, 0.25], (2, 2)),
        ([0, 1, 1], [0, 0, 1], [1.0, 0.25, 1.0], (2, 3)),
    ):  # fmt: skip
        assert epsilon_of(Entries(rows, cols, values, shape)) is None


Fit = DeepLinearCompletion
SMALL = Schedule.constant(4, 0.01, 0.1)


def ran(**more):
    return simulate(PROBLEM, **({"depth": 3, "width": 2, "schedule": SMALL, "seeds": 2} | more))


WRONG = [
    (lambda: minima(PROBLEM, 3, 1e200), "weight_decay must be at most"),
    (lambda: minima(PROBLEM, 3, 0.0), "weight_decay must be"),
    (lambda: minima(PROBLEM, 3, 0.1, starts=0), "starts must be"),
    (lambda: minima(PROBLEM, 1, 0.1), "depth must be"),
    (lambda: minima(np.eye(2), 3, 0.1), "problem must be overt.Entries"),
    (lambda: minima(Entries([0], [0], [1.0], (400, 400)), 3, 0.1), "too large to verify minima"),
    (lambda: existence(PROBLEM, 3, 4), "rank must be at most 3, got 4"),
    (lambda: existence(PROBLEM, 3, 0), "rank must be"),
    (lambda: escaping.escape(PROBLEM, 3, 0.01), "problem must be"),
    (lambda: escaping.escape(two_by_two(0.25), 2, 0.01), "depth must be"),
    (lambda: escaping.escape(two_by_two(0.25), 3, 0.02595), "weight_decay must be at most"),
    (lambda: escaping.escape(two_by_two(0.25), 3, 0.0), "weight_decay must be"),
    (lambda: two_by_two(0.0), "epsilon must be"),
    (lambda: critical_points(0.25, 3, 0.01, 3), "rank must be 1 or 2, got 3"),
    (lambda: critical_points(0.25, 3, 0.0, 2), "weight_decay must be"),
    (lambda: ran(width=0), "width must be"), (lambda: ran(depth=1), "depth must be"),
    (lambda: ran(schedule="annealing"), "schedule must be a Schedule"),
    (lambda: ran(records=[]), "records must hold at least one step"),
    (lambda: ran(alpha=0.0), "alpha must be"), (lambda: ran(init=1e51), "at most 1e50"),
    (lambda: ran(init=-1.0), "init must be"),
    (lambda: find_jumps(3), "runs must be what simulate returns, got int"),
    (lambda: find_jumps(ran(), confidence=1.0), "confidence must be between 0 and 1"),
    (lambda: find_jumps(ran(), threshold=0.1, floor=0.2), r"in \(0, threshold = 0.1\]"),
    (lambda: find_jumps(ran(), floor=0.0), "floor must be"),
    (lambda: find_jumps(ran(), rank=0), "rank must be"),
    (lambda: Fit(holdout=1.0).fit(PROBLEM), "holdout must be between 0 and 1"),
    (lambda: Fit(holdout=0.0).fit(PROBLEM), "holdout must be between 0 and 1"),
    (lambda: Fit(schedule=3).fit(PROBLEM), "schedule must be 'annealing' or a Schedule"),
    (lambda: Fit(restarts=0).fit(PROBLEM), "restarts must be"),
    (lambda: Fit(width=0).fit(PROBLEM), "width must be"),
    (lambda: Fit(tol=-1.0).fit(PROBLEM), "tol must be"),
    (lambda: Fit(depth=1).fit(PROBLEM), "depth must be"),
    (lambda: nuclear_norm(PROBLEM, tol=0.0), "tol must be"),
    (lambda: nuclear_norm(PROBLEM, max_iterations=0), "max_iterations must be"),
    (lambda: Schedule.constant(-1, 0.1, 0.1), "steps must be"),
    (lambda: Schedule.constant(5, -0.1, 0.1), "learning_rate must be"),
    (lambda: Schedule.periodic(0, 5), "periods must be"),
    (lambda: SMALL.pieces(3), "cuts must be a list of steps"),
    (lambda: SMALL.pieces([-1]), "cuts must be"), (lambda: SMALL.until(0), "step must be"),
    (lambda: layers.balanced(np.eye(2), 1), "depth must be"),
    (lambda: layers.balanced(np.ones(2), 3), "A must"),
    (lambda: layers.train_error(PROBLEM, np.eye(2)), r"A must be \(3, 4\) numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_mistakes_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_jumps_are_last_crossings():
    steps, nan = np.array([0, 10, 20, 30]), np.nan
    ratio = np.array([
        [0.5, 0.4, 0.01, 0.02], [0.01, 0.02, 0.01, 0.03], [0.5, 0.01, 0.5, 0.1],
        [0.5, 0.01, 0.01, 0.2], [0.5, 0.01, nan, nan], [nan] * 4, [0.1, nan, 0.01, 0.0],
    ])  # fmt: skip
    found = records.last_crossing(steps, ratio, 0.1)
    assert found.tolist() == [10, 0, -1, -1, -1, -1, 0]
    assert [_visits(row, 0.1, 0.05) for row in ratio[:4]] == [
        (True, False), (True, False), (True, True), (True, True),
    ]  # fmt: skip
    assert _visits(np.array([0.01, 0.5, 0.2]), 0.1, 0.05) == (False, False)  # before it was above
    s = np.array([[4.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
    assert records.spectral_ratio(s, 1).tolist() == [0.5, 0.0]
    assert records.spectral_ratio(s, 2).tolist() == [0.25, 0.0]
    share, low, high = survival(np.array([-1, 10, 0, 25]), steps, 0.9)
    assert share.tolist() == [0.75, 0.5, 0.5, 0.25]
    assert bool((low < share).all() and (share < high).all())
    nothing = survival(np.zeros(0, int), steps)
    assert np.isnan(nothing).all()
    assert len(nothing) == 3
    flat = simulate(Entries([0, 0], [0, 1], [1.0, 2.0], (1, 3)), 3, 2, SMALL, 2)
    assert flat.jump_step.tolist() == [0, 0]  # one singular value alone has rank 1


def test_seeds_are_whole_numbers_generators_or_nothing():
    root = int(np.random.default_rng(3).integers(2**63))
    again, drawn = ran(seed=root), ran(seed=np.random.default_rng(3))
    np.testing.assert_array_equal(again.singular_values, drawn.singular_values)
    assert (ran(seed=None).singular_values != ran(seed=None).singular_values).all()


def test_books_hold_what_weights_are():
    problem = Entries.sample(np.arange(12.0).reshape(3, 4), 7, seed=0)
    book = records.Book(problem, 3, np.array([0, 5]), 2, 0.3, True)
    rng = np.random.default_rng(5)
    weights = [rng.standard_normal(shape) for shape in ((3, 4), (3, 3), (3, 3))]
    book.write(5, 1, weights)
    book.write(4, 0, weights)  # not to be recorded
    runs = book.close([weights, weights], SMALL, True)
    A = layers.product(weights)
    s = np.linalg.svd(A, compute_uv=False)
    np.testing.assert_allclose(runs.singular_values[1, 1], s)
    np.testing.assert_allclose(runs.missing[1, 1], A[problem.missing])
    assert runs.train_error[1, 1] == pytest.approx(layers.train_error(problem, A))
    assert runs.test_error[1, 1] == pytest.approx(layers.test_error(problem, A))
    x = s ** (2 / 3)
    soft = np.where(x < 0.3, x * (0.6 - x) / 0.09, 1.0)
    assert runs.approximate_rank[1, 1] == pytest.approx(soft.sum())
    assert runs.imbalance[1, 1] == pytest.approx(layers.imbalance(weights))
    assert np.isnan(runs.train_error[0]).all()
    assert (runs.status, runs.phases.tolist()) == ("finished", [[4, 0.01, 0.1]])
    np.testing.assert_allclose(runs.ratio[1, 1], s[1] / s[0])
    assert records.Book.close(book, [weights] * 2, SMALL, False).status == "interrupted"
    book.diverged[0] = True
    assert book.close([weights] * 2, SMALL, True).status == "diverged"


class Path:
    """An annealed path whose ranks at each decay are given."""

    decays = (0.1, 0.2, 0.4, 0.8)

    def __init__(self, ranks, at=-1, log=None):
        self.ranks, self.at, self.log = ranks, at, [] if log is None else log

    def branch(self):
        return Path(self.ranks, self.at, self.log)

    def shed(self, lam):
        self.at = self.decays.index(lam)
        self.log.append(("shed", lam))

    def rank(self):
        return self.ranks[self.at]

    def truncate(self, rank):
        self.log.append(("truncate", self.at, rank))

    def settle(self, lam):
        self.log.append(("settle", self.at, lam))

    def candidate(self, lam, train, judge):
        return Candidate(lam, self.rank(), 0.1, 0.1 + 0.01 * self.at)

    def weights(self):
        return [self.at]


def test_rank_is_shed_up_to_the_chosen_decay_and_down_to_the_chosen_rank():
    def shed(ranks, rank, decay):
        path, lam = _shed_to(Candidate(decay, rank, 0.0, 0.0), Path(ranks))
        return path.at, lam, [step for step in path.log if step[0] == "truncate"]

    assert shed((5, 3, 2, 1), 2, 0.2) == (2, 0.4, [])
    assert shed((2, 2, 2, 2), 2, 0.4) == (2, 0.4, [])
    assert shed((5, 4, 1, 1), 2, 0.1) == (1, 0.4, [("truncate", 1, 2)])
    assert shed((5, 4, 4, 3), 2, 0.1) == (3, 0.1, [("truncate", 3, 2)])
    assert shed((2, 1, 1, 1), 2, 0.4) == (0, 0.2, [("truncate", 0, 2)])


def test_the_lowest_rank_within_the_tolerance_is_chosen():
    found = [(Candidate(0.1, rank, train, hold), rank) for rank, train, hold in
             ((3, 0.5, 1.0), (2, 0.6, 1.09), (1, 0.7, 1.2))]  # fmt: skip
    assert [_choose(found, tol, "holdout_error")[1] for tol in (0.05, 0.1, 0.3)] == [3, 2, 1]
    assert [_choose(found, tol, "train_error")[1] for tol in (0.1, 0.3, 0.5)] == [3, 2, 1]
    same = [(Candidate(0.1, 2, e, e), k) for k, e in enumerate((1.05, 1.0, 1.02))]
    assert _choose(same, 0.1, "train_error")[1] == 1
    zero = [(Candidate(0.1, 2, 0.0, 0.0), 0), (Candidate(0.1, 1, 0.9e-4, 0.0), 1)]
    assert _choose(zero, 0.1, "train_error")[1] == 1
    assert _choose(zero, 0.08, "train_error")[1] == 0


def test_a_path_branches_off_at_every_new_rank():
    model = Fit(restarts=2)
    model.path_, kept, made = [], [], []

    def start(problem):
        made.append(Path((3, 3, 2, 0)))
        return made[-1]

    model._anneal("all", "train", "judge", start, 0.0, kept)
    assert [(c.weight_decay, c.rank) for c in model.path_] == [(0.1, 3), (0.4, 2)]
    assert made[0].log == [("shed", 0.1), ("settle", 0, 0.1), ("shed", 0.2), ("shed", 0.4),
                           ("settle", 2, 0.4), ("shed", 0.8)]  # fmt: skip
    assert len(made) == 3
    assert [weights for _, weights in kept] == [[0], [0]]  # rank 3, of the lesser error
    nothing = []
    model._anneal("all", "train", "judge", lambda p: Path((0, 0, 0, 0)), 0.0, nothing)
    assert len(nothing) == 2


def test_entries_are_split():
    rng = np.random.default_rng(6)
    for holdout, count in ((0.25, 1), (0.5, 2), (0.99, 3), (0.01, 1)):
        train, judge = _split(PROBLEM, holdout, rng)
        assert (len(train), len(judge)) == (4 - count, count)
        both = sorted(zip([*train.rows, *judge.rows], [*train.cols, *judge.cols], strict=True))
        assert both == sorted(zip(PROBLEM.rows, PROBLEM.cols, strict=True))
        assert train.rows.tolist() == sorted(train.rows.tolist())
    with pytest.raises(InputError, match="at least 2 observed entries"):
        _split(PROBLEM.take(np.array([0])), 0.5, rng)


def plain_lbfgs(value, x, tol, steps):
    """Two loops over the last 12 pairs, Armijo's rule, parabolas between a tenth and a half."""
    pairs, (f, g) = [], value(x)
    for _ in range(steps):
        if np.abs(g).max() <= tol:
            break
        p, alphas = -g, []
        for s, y in reversed(pairs):
            alphas.append((s @ p) / (s @ y))
            p = p - alphas[-1] * y
        p = p * (pairs[-1][0] @ pairs[-1][1]) / (pairs[-1][1] @ pairs[-1][1]) if pairs else (
            p / max(1.0, np.linalg.norm(g)))  # fmt: skip
        for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
            p = p + (alpha - (y @ p) / (s @ y)) * s
        slope, step = g @ p, 1.0
        found = None
        while step > 1e-12:
            after = value(x + step * p)
            if after[0] <= f + 1e-4 * step * slope:
                found = x + step * p, *after
                break
            step *= min(0.5, max(0.1, -0.5 * slope * step / (after[0] - f - slope * step)))
        if found is None:
            if not pairs:
                break
            pairs = []
            continue
        s, y = found[0] - x, found[2] - g
        if s @ y > 1e-12 * (y @ y):
            pairs = [*pairs, (s, y)][-12:]
        x, f, g = found
    return x, f


@pytest.mark.parametrize(("steps", "scale"), [(1, 1.0), (3, 5.0), (30, 1.0), (400, 1.0)])
def test_the_compiled_descent_is_the_one_written_plainly(steps, scale):
    shapes = layers.shapes(PROBLEM.shape, 3, 2)
    theta = scale * np.random.default_rng(7).standard_normal(sum(m * n for m, n in shapes))

    def value(x):
        W = layers.unflatten(x, shapes)
        return layers.loss(PROBLEM, W, 0.02), layers.flatten(layers.gradient(PROBLEM, W, 0.02))

    sizes = np.array([shapes[0][1], *(m for m, _ in shapes)])
    given = (PROBLEM.rows, PROBLEM.cols, PROBLEM.values, 0.02, 1e-6, steps)
    found, f = lbfgs(theta, sizes, *map(np.ascontiguousarray, given[:3]), *given[3:])
    x, expected = plain_lbfgs(value, theta, 1e-6, steps)
    assert f == pytest.approx(expected, rel=1e-6)
    if steps < 100:
        np.testing.assert_allclose(found, x, atol=1e-6)
    else:
        assert np.abs(value(found)[1]).max() <= 1e-6


def test_compiled_descent_forgets_a_pair_without_curvature():
    """Where a step of descent finds the slope it came from, the next one would be endless."""
    one, sizes, lam = np.zeros(1, int), np.array([1, 1, 1]), 0.02

    def slope(w):  # of both layers at W_1 = W_2 = w
        return (w**2 - 1) * w + 2 * lam * w

    w = brentq(lambda w: slope(w - slope(w)) - slope(w), 0.3, 0.56, xtol=1e-16) + 1e-14
    entries = one, one, np.ones(1), lam, 1e-9
    after, _ = lbfgs(np.full(2, w), sizes, *entries, 1)
    assert 0 < slope(after[0]) - slope(w) < 1e-13
    stays, _ = lbfgs(np.full(2, w), sizes, *entries, 2)
    np.testing.assert_array_equal(stays, after)
    found, f = lbfgs(np.full(2, w), sizes, *entries, 100)
    np.testing.assert_allclose(found**2, 1 - 2 * lam, rtol=1e-7)
    assert f == pytest.approx(2 * lam**2 + 2 * lam * (1 - 2 * lam))
    assert np.isnan(lbfgs(np.full(2, np.nan), sizes, *entries, 10**12)[1])  # ends at once


@pytest.mark.parametrize("unit", [1e-4, 1e4])
def test_newton_steps_know_no_units(unit):
    """Values and decay in other units: layers in their root, and curvatures of 1 and 1e-3."""
    rng, (i, j) = np.random.default_rng(8), np.divmod(np.arange(4), 2)
    values, start = np.array([1.0, 0.0, 0.0, 2e-3]), layers.balanced(np.diag([1.0, 1.3e-3]), 2)
    start = [W + 1e-5 * rng.standard_normal((2, 2)) for W in start]
    found = polish(Entries(i, j, values, (2, 2)), start, 1e-4)
    # C(A) + 2 lam |A|_* with C of four entries is least where values are less by 8 lam.
    np.testing.assert_allclose(layers.product(found), np.diag([1 - 8e-4, 1.2e-3]), atol=1e-12)
    other = [np.sqrt(unit) * W for W in start]
    other = polish(Entries(i, j, unit * values, (2, 2)), other, unit * 1e-4)
    for W, V in zip(found, other, strict=True):
        np.testing.assert_allclose(V / np.sqrt(unit), W, atol=1e-6)


def test_newton_steps_that_overshoot_are_not_taken():
    problem, lam = Entries([0], [0], [1.0], (1, 1)), 0.04
    weights = [np.array([[0.676]]), np.array([[0.725]])]
    g = layers.flatten(layers.gradient(problem, weights, lam))
    H = layers.hessian(problem, weights, lam)
    beyond = layers.unflatten(layers.flatten(weights) - np.linalg.solve(H, g), [(1, 1), (1, 1)])
    worse = np.abs(layers.flatten(layers.gradient(problem, beyond, lam))).max()
    assert np.linalg.eigvalsh(H)[0] > 0
    assert worse > 2 * np.abs(g).max()
    for W, V in zip(polish(problem, weights, lam), weights, strict=True):
        np.testing.assert_array_equal(W, V)


def test_the_decay_of_some_descents_grows_on_a_ladder(monkeypatch):
    problem, asked = Entries([0, 1], [0, 1], [0.02, 0.03], (2, 2)), []
    size = np.sqrt(np.mean(problem.values**2))

    def run(problem, weights, lam, tol):
        asked.append((lam, tol))
        return weights

    monkeypatch.setattr(search_of, "descend", run)
    weights = [np.zeros((1, 2)), np.zeros((1, 1)), np.zeros((2, 1))]
    for lam in (0.01, 0.5e-4 * size):
        search = Search(problem, 3, lam, None)
        search.found = [place(np.zeros((2, 2)))]
        for ladder in (True, False):
            asked.clear()
            assert search._end(weights, ladder) == 0
            first = min(lam, 1e-4 * size)
            count = 2 + int(4 * np.log10(lam / first)) if ladder and first < lam else 1
            lams = np.geomspace(first, lam, count) if count > 1 else [lam]
            np.testing.assert_allclose([a for a, _ in asked], lams)
            assert {tol for _, tol in asked} == {1e-8 * size}


def test_a_rank_fits_at_a_cost_of_1e_10(monkeypatch):
    """The first of three starts of rank 2 that costs 1e-10 C(0) or less, and no rank below."""
    asked, edge, scale = [], 1e-10 * 5.0, 5.0
    costs = iter([scale, *[1.0000001 * edge] * 4, edge])
    monkeypatch.setattr(landscape_of, "_block_rank", lambda problem: 1)
    monkeypatch.setattr(layers, "cost", lambda problem, A: next(costs))

    def descend(problem, weights, lam, tol):
        asked.append((weights[0].shape[0], lam, tol))
        return weights

    monkeypatch.setattr(landscape_of, "descend", descend)
    found = landscape_of.smallest_fitting_rank(PROBLEM, starts=3)
    assert (found, found.at_least, next(costs, None)) == (2, 1, None)
    ladder = np.array([1e-3, 1e-5, 1e-7, 1e-9, 0.0]) * scale
    np.testing.assert_allclose(asked, [(rank, lam, 1e-8) for rank in (1, 1, 1, 2, 2)
                                       for lam in ladder])  # fmt: skip
    asked.clear()
    costs = iter([0.5, *[1.0] * 6])  # whatever fits nothing
    assert landscape_of.smallest_fitting_rank(PROBLEM, starts=3) == 3
    assert {(rank, tol) for rank, _, tol in asked} == {(1, 0.5e-8), (2, 0.5e-8)}


def subsets(n):
    return [rows for k in range(1, n + 1) for rows in combinations(range(n), k)]


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (4, 4)])
def test_the_rank_of_blocks_is_the_largest_of_all(shape):
    rng = np.random.default_rng(shape)
    for share in (0.6, 0.8, 0.95):
        A = rng.integers(-1, 2, (shape[0], 3)) @ rng.integers(-1, 2, (3, shape[1])) / 3
        A[0, 0] = 1.0
        A[(rng.random(shape) > share) & (np.arange(A.size).reshape(shape) > 0)] = np.nan
        blocks = [A[np.ix_(i, j)] for i in subsets(shape[0]) for j in subsets(shape[1])]
        ranks = [np.linalg.matrix_rank(block) for block in blocks if np.isfinite(block).all()]
        assert landscape_of._block_rank(Entries.from_matrix(A)) == max(ranks)


def test_blocks_of_many_rows_are_pairs_and_whole_columns():
    A = np.full((12, 13), np.nan)
    A[0, 0] = 1.0
    assert landscape_of._block_rank(Entries.from_matrix(A)) == 1
    A[:3, :3] = np.eye(3)
    assert landscape_of._block_rank(Entries.from_matrix(A)) == 2
    A[:, -3:] = np.random.default_rng(9).standard_normal((12, 3))
    for B in (A, A.T):
        assert landscape_of._block_rank(Entries.from_matrix(B)) == 3


@pytest.mark.parametrize(("lam", "dimension"), [(1e-8, 1), (1e-7, 0)])
def test_curvatures_are_flat_against_the_largest_one(lam, dimension):
    """W_1 = W_2, W_1 W_2 = 1 - 2 lam has the curvatures 2 - 4 lam and 4 lam."""
    problem, A = Entries([0], [0], [1.0], (1, 1)), np.array([[1 - 2 * lam]])
    found = verify(problem, A, 2, lam, FittingRank(1, 1), "")
    assert (found.dimension, found.isolated) == (dimension, dimension == 0)
    assert found.curvature == pytest.approx(2 - 4 * lam if dimension else 4 * lam)


@pytest.mark.parametrize(("tol", "limit"), [(0.1, 9.0), (0.05, 9.0), (1e-3, 0.0317), (1e-3, 1e-3),
                                            (1e-2, 0.0011), (0.03, 0.0012)])  # fmt: skip
def test_a_minimum_is_followed_while_it_is_verified(monkeypatch, tol, limit):
    rank_of, asked = iter([2] + [1] * 999), []
    monkeypatch.setattr(landscape_of, "numerical_rank", lambda B: next(rank_of))

    def polish(problem, weights, lam):
        asked.append((lam, layers.product(weights)[0, 0]))
        return [W * 1.1 ** (1 / 3) for W in weights]

    def verify(problem, B, depth, lam, known, proof):
        assert (B[0, 0], depth, known) == (pytest.approx(1.1 * asked[-1][1]), 3, 1)
        return SimpleNamespace(verified=lam <= min(limit, 1.0))

    monkeypatch.setattr(landscape_of, "polish", polish)
    monkeypatch.setattr(landscape_of, "verify", verify)
    found = landscape_of._follow(PROBLEM, 3, np.eye(3, 4) * [1, 0, 0, 0], 1, 1e-3, tol)
    low, growth, size, plain, first = 1e-3, 0.1, 1.0, [], True
    while growth > tol:
        plain.append((low * (1 + growth), size))
        if plain[-1][0] <= min(limit, 1.0) and not first:
            low, size, growth = plain[-1][0], 1.1 * size, min(2 * growth, 0.2)
        else:
            growth /= 2
        first = False
    assert found == low
    np.testing.assert_allclose(np.reshape(asked, (-1, 2)), np.reshape(plain, (-1, 2)))


def test_ends_of_descents_are_recognized(monkeypatch):
    monkeypatch.setattr(search_of, "descend", lambda problem, weights, lam, tol: weights)
    polished = []
    monkeypatch.setattr(search_of, "polish", lambda p, W, lam: polished.append(W) or W)
    weights = layers.balanced(np.outer([1.0, 2.0, 0.5], [1.0, 0.0, 1.0, 0.0]), 3, 2)
    loss = layers.loss(PROBLEM, weights, 0.01)
    search = Search(PROBLEM, 3, 0.01, lambda A, proof: place(A))
    far = place(9 * np.eye(3, 4), loss, 1, False, 1)
    search.found = [place(7 * np.eye(3, 4), loss, 1, True), far]
    assert search._end(weights, False) == 1  # a continuum of the same rank and loss
    assert not polished
    search.found = [place(7 * np.eye(3, 4), loss, 1, True)]
    assert search._end(weights, False) == 1
    assert [W.shape for W in polished[0]] == [(1, 4), (1, 1), (3, 1)]
    assert search._end(weights, False) == 1  # known by now


def test_the_family_is_answered_by_its_closed_form(monkeypatch):
    monkeypatch.setattr(landscape_of, "minima", None)
    for rank in (1, 2):
        expected = family.existence(0.25, 3, rank)
        assert existence(two_by_two(0.25), 3, rank) == expected
