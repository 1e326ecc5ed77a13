"""The landscape of deep networks: spurious minima, barriers, and where the rank jumps."""

from fractions import Fraction

import numpy as np
import pytest

import overt
from overt.linear import rank_jump

SMALLEST = overt.DeepLinearNetwork(np.diag([1.0, 0.9]), (2, 2), 1 / 3)


def moved(weights, size, rng):
    return [W + size * rng.standard_normal(W.shape) for W in weights]


def descend(net, weights, steps=4000, rate=0.05):
    run = net.train(steps, rate, 1, init=weights, gradient="expected", records=2)
    return [W[0] for W in run.weights], run.objective[0, -1]


def test_the_smallest_spurious_minimum_in_exact_arithmetic():
    """Gradient zero and objective 117/100 at rational weights, lam = 1/2: no rounding at all."""
    a, b = Fraction(4, 5), Fraction(1, 4)
    W1 = [[a, 0], [a, 0]]
    W2 = [[b, b], [b, b]]
    W3 = [[a, a], [0, 0]]
    target = [[Fraction(1), 0], [0, Fraction(9, 10)]]

    def times(A, B):
        return [
            [
                sum(x * y for x, y in zip(r, c, strict=True))
                for c in zip(*B, strict=True)
            ]
            for r in A
        ]

    def noisy(S):
        return [
            [x * (Fraction(3, 2) if i == j else 1) for j, x in enumerate(r)]
            for i, r in enumerate(S)
        ]

    def transposed(A):
        return [list(column) for column in zip(*A, strict=True)]

    def objective(W1, W2, W3):
        S = noisy(times(W1, transposed(W1)))
        S = noisy(times(times(W2, S), transposed(W2)))
        S = times(times(W3, S), transposed(W3))
        A = times(times(W3, W2), W1)
        cross = sum(
            t * x
            for r, q in zip(target, A, strict=True)
            for t, x in zip(r, q, strict=True)
        )
        square = sum(t * t for r in target for t in r)
        return square - 2 * cross + S[0][0] + S[1][1]

    base = objective(W1, W2, W3)
    assert base == Fraction(117, 100)
    # The objective is a polynomial of degree two in each entry: differences are exact derivatives.
    for layer in range(3):
        for i in range(2):
            for j in range(2):
                values = []
                for step in (1, -1):
                    weights = [[list(row) for row in W] for W in (W1, W2, W3)]
                    weights[layer][i][j] += step
                    values.append(objective(*weights))
                assert values[0] == values[1]  # gradient zero
                assert values[0] >= base  # no negative curvature along an entry


def test_descents_from_near_a_spurious_minimum_return_to_it():
    rng = np.random.default_rng(0)
    landscape = SMALLEST.landscape()
    first, second = landscape.minima
    assert (first.rank, first.spurious) == (1, True)
    assert (second.rank, second.spurious) == (2, False)
    assert landscape.best is second
    assert first.objective == pytest.approx(1.17, rel=1e-14)
    for _ in range(10):
        _, reached = descend(SMALLEST, moved(first.weights, 0.02, rng))
        assert reached == pytest.approx(first.objective, rel=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_every_local_minimum_is_critical_and_not_left_by_small_steps(seed):
    rng = np.random.default_rng(seed)
    s = np.sort(rng.uniform(0.6, 1.0, 3))[::-1]
    net = overt.DeepLinearNetwork(np.diag(s), (6, 5), rng.uniform(0.1, 0.4, 2))
    for minimum in net.landscape().minima:
        _, gradients = net.effect.value(*minimum.weights)
        assert max(np.abs(G).max() for G in gradients) < 1e-10
        assert net.objective(minimum.weights) == pytest.approx(
            minimum.objective, rel=1e-12
        )
        for _ in range(300):
            near = moved(minimum.weights, 10 ** rng.uniform(-5, -2.5), rng)
            assert net.objective(near) >= minimum.objective * (1 - 1e-12)
    best = net.landscape().best
    assert best.objective == pytest.approx(net.solve().objective, rel=1e-12)


def test_no_path_from_the_spurious_minimum_stays_below_its_barrier():
    """Straight paths, with units permuted and their signs flipped, to descents' better ends."""
    landscape = SMALLEST.landscape()
    first, best = landscape.minima
    assert landscape.barrier == pytest.approx(0.001324, abs=1e-6)
    rng = np.random.default_rng(0)
    lowest = np.inf
    for _ in range(200):
        signs = [rng.choice([-1.0, 1.0], 2) for _ in range(2)]
        ends = [W.copy() for W in best.weights]
        ends = [
            signs[0][:, None] * ends[0],
            signs[1][:, None] * ends[1] * signs[0],
            ends[2] * signs[1],
        ]
        t = np.linspace(0, 1, 400)
        path = [
            [(1 - x) * A + x * B for A, B in zip(first.weights, ends, strict=True)]
            for x in t
        ]
        lowest = min(lowest, max(SMALLEST.objective(weights) for weights in path))
    assert lowest >= first.objective + landscape.barrier


def test_one_layer_has_no_spurious_minima():
    net = overt.DeepLinearNetwork(np.diag([1.0, 0.9]), (3,), 0.3)
    (only,) = net.landscape().minima
    assert not only.spurious
    assert only.objective == pytest.approx(net.solve().objective, rel=1e-12)


def test_landscapes_that_are_not_known_are_refused():
    with pytest.raises(overt.InputError, match="every hidden layer"):
        overt.DeepLinearNetwork(np.eye(2), (2, 2), (0.5, 0.0)).landscape()
    with pytest.raises(overt.InputError, match="zero"):
        overt.DeepLinearNetwork(np.zeros((2, 2)), (2, 2), 0.5).landscape()


@pytest.mark.parametrize(
    ("layers", "width", "drop_prob"),
    [(2, 2, 0.5), (2, 10, 0.3), (3, 5, 0.2), (4, 50, 0.8)],
)
def test_the_rank_jumps_where_the_closed_form_says(layers, width, drop_prob):
    ratio = rank_jump((width,) * layers, drop_prob)
    for factor, rank in ((1 - 1e-6, 1), (1 + 1e-6, 2)):
        M = np.diag([1.0, ratio * factor])
        net = overt.DeepLinearNetwork(M, (width,) * layers, drop_prob)
        assert net.solve().rank == rank


def test_rank_one_for_every_target():
    assert rank_jump((2, 2), 0.7) == np.inf
    assert overt.DeepLinearNetwork(np.eye(2), (2, 2), 0.7).solve().rank == 1
    with pytest.raises(overt.InputError, match="equal"):
        rank_jump((2, 3), 0.5)


def test_the_drop_probability_of_a_rank_of_a_deep_network():
    M = np.diag([1.0, 0.95, 0.5, 0.3])
    for rank in (1, 2, 3):
        p = overt.drop_prob_for_rank(M, (8, 8), rank=rank)
        assert overt.DeepLinearNetwork(M, (8, 8), p).solve().rank == rank
        assert overt.DeepLinearNetwork(M, (8, 8), p * (1 - 1e-6)).solve().rank > rank
    assert overt.drop_prob_for_rank(M, (8, 8), rank=4) == 0.0
    with pytest.raises(overt.InputError, match="at most 2"):
        overt.drop_prob_for_rank(M, (8, 2), rank=3)
