"""Parts of bounds on retentivity and complexity, against the same written plainly."""

from itertools import permutations, product

import numpy as np
import pytest

from overt import Dropout, InputError
from overt.relu import (
    TwoLayer,
    guarantee,
    kernels,
    margin,
    positive_norm,
    rademacher,
    rademacher_lower,
    required,
    retained_share,
    retention,
    retentivity,
    risk_bound,
    symmetrized_bound,
    train_lazy,
)
from overt.relu.complexity import _search
from overt.relu.margins import _fresh
from overt.relu.plane import largest_correlation, smallest_share
from overt.relu.retention import _branch_and_bound, _coupling, _descend, _starts, whiten


def shares(Z, p, V):
    return np.maximum(V @ Z.T, 0) ** 2 @ p


def cap(Z, p, axis, sign, place, half):
    """|g| cos(theta + rho) - f(v0) of a part of the cube's face, and f(v0) at its middle."""
    v = np.insert(np.array(place), axis, sign)
    v = v / np.linalg.norm(v)
    ends = [
        np.insert(np.add(place, half * np.array(c)), axis, sign)
        for c in product((-1, 1), repeat=len(v) - 1)
    ]
    rho = max(np.arccos(v @ e / np.linalg.norm(e)) for e in ends)
    f, g = shares(Z, p, v), 2 * (p * np.maximum(Z @ v, 0)) @ Z
    theta = np.arccos(g @ v / np.linalg.norm(g))
    return max(np.linalg.norm(g) * np.cos(min(theta + rho, np.pi)) - f, 0.0), f


def bound_of_caps(Z, p, level):
    """The least bound over the 4^level or 8^level parts of each face."""
    rank, half = Z.shape[1], 0.5**level
    places = list(product(np.arange(-1 + half, 1, 2 * half), repeat=rank - 1))
    parts = product(range(rank), (1.0, -1.0), places)
    return min(cap(Z, p, *part, half)[0] for part in parts)


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
    V = [
        against,
        *-some,
        *some,
        *np.eye(3),
        *-np.eye(3),
        -Z.mean(0),
        *again.normal(size=(count, 3)),
    ]
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
    assert margin(np.array([[1.0, 0.0]]), [1], features=50, iterations=1, tol=0.0).gap == 0.0
    found = margin(np.array([[1.0, 0.0]]), [1], features=50, iterations=1, drop_prob=0.5, tol=0.0)
    assert found.status == "converged"
    assert found.gap == pytest.approx(0.0, abs=1e-15)
    assert found.weights.tolist() == [1.0]
    assert (found.drop_prob, found.features) == (0.5, 50)


def test_norms_take_rounding_below_zero():
    X = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0]])
    C = np.diag([4.0, 0.5, -1e-9])
    assert positive_norm(X, C) == pytest.approx(np.sqrt(1 / 4 + 4 / 0.5 + 1 / 0.5))
    with pytest.raises(InputError, match="no negative eigenvalue"):
        positive_norm(X, np.diag([4.0, 0.5, -1e-5]))
    assert positive_norm(X + np.eye(3)[2], C) == np.inf
    assert positive_norm(X, np.zeros((3, 3))) == np.inf
    assert (
        positive_norm(X, np.diag([4.0, 1e-17, 1e-20])) == np.inf
    )  # of which none is left beside 4
    assert positive_norm(X[:, [0, 2, 2]], np.diag([4.0, 1e-17, 1e-20])) == pytest.approx(0.5)
    assert positive_norm(0 * X, np.zeros((3, 3))) == 0.0
    assert positive_norm(np.array([[-1e200, 1.0]]), np.eye(2)) == pytest.approx(1e200)
    assert positive_norm(np.array([[-2.0]]), np.eye(1)) == pytest.approx(2.0)
    assert symmetrized_bound(0.1, 1.0, 2.0, 10).retentivity == 0.5
    with pytest.raises(InputError, match="norm must be"):
        rademacher_lower(1.0, np.ones(2), 5)


@pytest.mark.parametrize("sample", [[0, -2], [0, 4], [], [[0]], [0.5], [3]])
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


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_searches_take_the_first_of_four_steps_that_helps(steps):
    """From both poles: towards M^+ b of length 1, all the way, half, a fifth or a twentieth."""
    rng, taken = np.random.default_rng(8), []
    for _ in range(25):
        p, c = rng.random(12), rng.choice([-1.0, 1.0, 2.0], 12)
        p /= p.sum()
        Z = whiten(rng.standard_normal((12, 3)), p)

        def ratio(v, Z=Z, p=p, c=c):
            spread = shares(Z, p, v)
            return c @ np.maximum(Z @ v, 0) / np.sqrt(spread) if spread > 1e-14 else 0.0

        ends = []
        for v in (c @ Z, -(c @ Z)):
            for _ in range(steps):
                on = Z @ v > 0
                b = np.sign(ratio(v)) * (c * on) @ Z
                peak = np.linalg.solve((Z.T * p * on) @ Z + 1e-10 * np.eye(3), b)
                v, peak = v / np.linalg.norm(v), peak / np.linalg.norm(peak)
                trials = [v + step * (peak - v) for step in (1.0, 0.5, 0.2, 0.05)]
                least = abs(ratio(v)) * (1 + 1e-10)
                better = [k for k in range(4) if abs(ratio(trials[k])) > least]
                if not better:
                    break
                taken.append(better[0])
                v = trials[better[0]]
            ends.append(abs(ratio(v)))
        for unit in (1.0, 1e-3):
            found = _search(Z, p, unit * c, 0, rng, steps)
            assert found == pytest.approx(unit * max(ends), rel=1e-6)
    assert not steps or set(taken) == {0, 1, 2, 3}


def test_guarantees_of_short_runs_and_narrow_networks():
    """Logarithms below zero count as zero, and a run of one step of one unit may do."""
    given = {"margin": 0.5, "dimension": 4, "width": 1.0, "steps": 1.0}
    found = guarantee(**given, learning_rate=0.2)
    lam = np.sqrt(44 * np.log(24 * 0.2 * 3.2857142857142856)) / 0.5  # c = 2 + 1 / (14 / 4) + 1
    assert (found.max_norm, found.lam) == (pytest.approx(3 + 2 / 7), pytest.approx(lam))
    found = guarantee(**given, learning_rate=0.01)
    assert (found.lam, found.needed_width, found.full_error) == (0.0, 0.0, 0.0)
    assert (found.applies, found.vacuous) == (True, False)
    least = required(epsilon=1e-3, margin=0.5, dimension=4, learning_rate=0.01)
    assert (least.width, least.steps) == (1.0, 1.0)
    for name in ("width", "steps"):
        with pytest.raises(InputError, match=name):
            guarantee(**given | {name: 0.9}, learning_rate=0.2)
    assert guarantee(**given, learning_rate=np.log(2) * (1 + 1e-12)).lam > 0  # ln 2 but rounded
    for refused in ({"learning_rate": np.log(2) + 1e-9}, {"delta": 1.0}):
        with pytest.raises(InputError, match=next(iter(refused))):
            guarantee(**given, **refused)
    narrow = guarantee(**given | {"width": 1e3, "steps": 1e9})
    assert (narrow.full_error < 1, narrow.applies, narrow.vacuous) == (True, False, True)


def test_edges_of_guarantees():
    """A width that is just the one needed applies; a bound of just 1 says nothing."""

    def settled(change, **given):
        for _ in range(60):
            found = guarantee(margin=0.5, dimension=4, learning_rate=0.5, **given)
            given |= change(found)
        return found

    found = settled(lambda f: {"width": f.needed_width}, width=1e9, steps=1e6)
    assert found.width == found.needed_width
    assert found.applies
    found = settled(lambda f: {"steps": f.steps * f.full_error}, width=1e12, steps=1e6)
    assert found.full_error == 1.0
    assert found.applies
    assert found.vacuous
    c = 2 + 1 / 14 + 1  # of one unit; logarithms are then just above 0
    given = {"margin": 1.0, "dimension": 4, "learning_rate": np.exp(1e-7) / (24 * c)}
    one = guarantee(**given, width=1.0, steps=1.0)
    assert (one.applies, one.full_error > 0) == (True, True)
    assert required(**given, epsilon=one.full_error).steps == 1.0


@pytest.mark.parametrize("epsilon", [0.9, 1e-2, 1e-12])
@pytest.mark.parametrize("gamma", [1.0, 0.3, 1e-5])
def test_widths_and_steps_are_the_least_that_are_whole(gamma, epsilon):
    given = {"margin": gamma, "dimension": 9, "learning_rate": 0.4}
    found = required(**given, epsilon=epsilon)
    assert found.applies
    assert found.full_error <= epsilon
    assert found.width <= max(1.0, found.needed_width * (1 + 1e-9)) + 1
    assert found.full_error >= epsilon * (1 - 1e-12) * (1 - 1 / found.steps)


def in_plane(Z, p, c):
    """Least share, largest correlation, and whether that is met where a point turns.

    Both functions are asked, at all directions that can be extreme: turns, middles between them,
    and what would be extreme if the points that are active there stayed so.
    """
    Z, p, c = (x[Z.any(axis=1)] for x in (Z, p, c))
    angle = np.arctan2(Z[:, 1], Z[:, 0])
    turns = np.sort(np.concatenate([angle + np.pi / 2, angle - np.pi / 2]) % (2 * np.pi))
    middles = (turns + np.append(turns[1:], turns[0] + 2 * np.pi)) / 2
    turns, middles = (np.stack([np.cos(a), np.sin(a)], axis=1) for a in (turns, middles))
    peaks = []
    for v in middles:
        on = Z @ v > 0
        M = (Z[on].T * p[on]) @ Z[on]
        peaks += [*np.linalg.eigh(M)[1].T, np.linalg.pinv(M) @ (c[on] @ Z[on])]
    V = np.concatenate([middles, peaks, -np.array(peaks), turns])
    V = V[V.any(axis=1)]
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    spread = shares(Z, p, V)
    ratios = np.abs(np.maximum(V @ Z.T, 0) @ c) / np.sqrt(np.where(spread > 1e-12, spread, np.inf))
    k = len(turns)
    return spread.min(), ratios.max(), ratios[-k:].max() > ratios[:-k].max() * (1 + 1e-6)


@pytest.mark.parametrize("chunk", [2**22, 12])
def test_sweeps_of_the_plane_are_exact(monkeypatch, chunk):
    monkeypatch.setattr("overt.relu.plane.CHUNK", chunk)
    rng, turns = np.random.default_rng(10), 0
    axes = np.array([[1.0, 0.0], [0.0, 2.0], [-1.5, 0.0], [0.0, -1.0], [1.0, 1.0]])
    tables = [axes, axes[:3], axes[[0, 0, 1, 2]], np.r_[axes[:4], np.zeros((2, 2))]]
    tables += [rng.standard_normal((n, 2)) for n in (2, 3, 4, 5, 6)]
    for Z in tables:
        p, counts = rng.random(len(Z)), rng.choice([-2.0, -1.0, 1.0], (30, len(Z)))
        p /= p.sum()
        share, v = smallest_share(Z, p)
        exact = [in_plane(Z, p, c) for c in counts]
        assert share == pytest.approx(exact[0][0], rel=1e-9, abs=1e-15)
        assert np.linalg.norm(v) == pytest.approx(1.0)
        assert shares(Z, p, v) == pytest.approx(share, abs=1e-15)
        for unit in (1.0, 1e-3):
            found = largest_correlation(Z, p, unit * counts)
            np.testing.assert_allclose(found, [unit * best for _, best, _ in exact], rtol=1e-9)
        turns += sum(at_turn for *_, at_turn in exact)
    assert turns > 4


@pytest.mark.parametrize("first", [1.0, None])  # bounds on the least share to begin with
@pytest.mark.parametrize("cells", [60, 124, 500, 3000])
def test_caps_that_cannot_hold_the_least_share_are_split_no_more(cells, first):
    rng = np.random.default_rng(11)
    p = np.full(30, 1 / 30)
    Z = whiten(rng.standard_normal((30, 3)) + 0.1, p)
    best = _descend(Z, p, _starts(Z, Z, p, 32, rng))[0]
    upper = first or best
    open_, half, closed, used = list(product(range(3), (1.0, -1.0), [(0.0, 0.0)])), 1.0, [], 0
    while True:
        found = [cap(Z, p, *part, half) for part in open_]
        used += len(found)
        upper = min(upper, *(f for _, f in found))
        split = [k for k, (bound, _) in enumerate(found) if bound < upper - 1e-6]
        closed += [bound for bound, _ in found if bound >= upper - 1e-6]
        if not split or used + 4 * len(split) > cells:
            break
        half /= 2
        open_ = [
            (*open_[k][:2], np.add(open_[k][2], half * np.array(c)))
            for k in split
            for c in product((-1, 1), repeat=2)
        ]
    expected = min([*closed, *(found[k][0] for k in split)])
    assert _branch_and_bound(Z, p, first or best, cells) == pytest.approx(expected, rel=1e-9)
    assert expected < best
    assert cells < 3000 or best - expected < 2e-6


def test_the_worse_half_of_descents_is_given_up(monkeypatch):
    """Twelve directions that stay where they are, of shares that change at the fiftieth step."""
    calls, later = [], np.full(12, 0.5)
    later[[5, 6]] = 0.2, 0.1

    def value(Z, p, V):
        rows = V.argmax(axis=1)
        calls.append(rows.tolist())
        f = 1 + rows / 100 - 1e-3 * len(calls)
        return np.where(len(calls) > 51, later[rows] - 1e-3 * len(calls) / 100, f), np.zeros_like(V)

    monkeypatch.setattr(retention, "_value", value)
    found, v = _descend(np.zeros((1, 12)), np.ones(1), np.eye(12), 60)
    assert calls[49] == list(range(12))
    assert calls[50] == list(range(6))
    assert v.argmax() == 5
    assert found == pytest.approx(0.2 - 61e-5)


def test_shares_of_directions_with_tiny_entries():
    X = np.array([[1.0, 2.0], [1.0, -1.0]])
    for v in ([1e-200, 1.0], [1e-200, 1e200], [0.0, 1e-300]):
        assert retained_share(X, v) == pytest.approx(0.8)
    assert np.isnan(retained_share(X, [0.0, 0.0]))
    tiny, none = (retentivity([[x, 1.0], [1.0, -0.5], [-1.0, 0.3]]) for x in (1e-200, 0.0))
    assert tiny.upper == pytest.approx(none.upper)


def test_directions_are_those_above_rounding():
    X = np.ones((100, 2))
    X[:, 1] = np.tile([1e-14, -1e-14], 50)  # below 100 eps, above 2 eps
    assert whiten(X, np.full(100, 0.01)).shape == (100, 1)
    X[:, 1] *= 1e3
    for unit in (1.0, 1e-20, 1e20):
        assert whiten(unit * X, np.full(100, 0.01)).shape == (100, 2)


@pytest.mark.parametrize("columns", [2, 3])
def test_weights_need_not_sum_to_one(columns):
    rng = np.random.default_rng(12)
    X, weights = rng.standard_normal((8, columns)), rng.random(8)
    for w, same in ((weights / weights.sum(), 7 * weights), (None, np.full(8, 3.0))):
        one, other = (rademacher(X, weights=given, draws=6) for given in (w, same))
        for name in ("value", "standard_error", "lower", "upper", "retentivity"):
            assert getattr(one, name) == pytest.approx(getattr(other, name))


def test_rates_and_norms_are_positive_and_records_spread_evenly():
    X, y = np.eye(4), np.array([1, -1, 1, -1])
    for given in ({"learning_rate": 0.0}, {"max_norm": 0.0}):
        with pytest.raises(InputError, match=next(iter(given))):
            train_lazy(X, y, width=3, steps=5, **given)
    run = train_lazy(X, y, width=3, steps=100, records=5, seed=1)
    assert run.steps.tolist() == [0, 25, 50, 75, 100]
    nowhere = train_lazy(X, y, width=3, steps=9, holdout=(np.zeros((1, 4)), [1]), seed=1)
    assert not nowhere.flipped.any()  # at 0 no unit is active, before or after
    assert risk_bound(0.0, 1.0, np.inf, 5, 0.5).value == np.inf
    for rows in ([[1.0, 0.0], [0.6, 0.8]], np.array([[1.0, 0.0], [0.6, 0.8]], np.float32)):
        assert margin(rows, [1, 1], features=9).weights.shape == (2,)
        assert rademacher(rows, draws=3).n == 2


def test_laws_of_mean_zero_and_of_five_dimensions():
    X = np.r_[np.eye(3), -np.eye(3)]  # against whose mean no direction points
    Z = whiten(X, np.full(6, 1 / 6))
    V = _starts(X, Z, np.full(6, 1 / 6), 8, np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(V, axis=1), 1.0)
    found = retentivity(np.random.default_rng(0).standard_normal((20, 5)))
    assert (found.method, found.status) == ("descent and coupling", "interval")
    with pytest.raises(InputError, match="norm 1"):
        margin(np.diag([1.0, 2.0]), [1, 1])
    with pytest.raises(InputError, match="delta must be"):
        risk_bound(0.1, 1.0, 1.0, 10, 0.5, delta=0.0)


def test_masks_are_drawn_a_few_steps_at_a_time(monkeypatch):
    X, y, sizes = np.eye(4).tolist(), [1, -1, 1, -1], []
    given = {"width": 12, "steps": 15, "records": [4], "seed": 3}
    at_once, descend = train_lazy(X, y, **given), kernels.descend
    monkeypatch.setattr(kernels, "descend", lambda *a: sizes.append(len(a[5])) or descend(*a))
    for entries, expected in ((25, [2, 2, 2, 2, 2, 2, 2, 1]), (1, [1] * 15)):
        monkeypatch.setattr("overt.relu.training.MASK_ENTRIES", entries)
        sizes.clear()
        found = train_lazy(X, y, **given)
        assert sizes == expected
        np.testing.assert_allclose(found.W, at_once.W, atol=1e-10)
        np.testing.assert_allclose(found.loss, at_once.loss)


def test_no_law_retains_more_than_half():
    for seed in range(12):  # of which some would by rounding
        X = np.random.default_rng(seed).standard_normal((5 + seed, 1))
        found = retentivity(np.r_[X, -X])
        assert found.lower == found.upper == pytest.approx(0.5)
        assert found.upper <= 0.5
