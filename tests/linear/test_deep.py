"""Deep linear networks: exact for exchangeable noises, an honest bound for any other."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize

import overt
from overt.linear import inverse_decay


def correlated(n, seed=0):
    A = np.random.default_rng(seed).standard_normal((n, n))
    return A @ A.T / n + 0.1 * np.eye(n)


def descend(net, restarts=8, seed=0):
    from overt.linear.descent import descend

    rng = np.random.default_rng(seed)
    T = net.effect.regression.T
    value, rank = partial(net.effect.whitened_value, T), T.shape[1]
    whitened = [(*net.shapes[0][:1], rank), *net.shapes[1:]]
    found = [
        descend(value, [0.6 * rng.standard_normal(shape) for shape in whitened])
        for _ in range(restarts)
    ]
    return min(value(*weights)[0] for weights in found)


def test_gradient_agrees_with_finite_differences():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((2, 3))
    net = overt.DeepLinearNetwork(M, (3, 2), (0.3, 0.6), second_moment=correlated(3))
    weights = [rng.standard_normal(W) for W in [(3, 3), (2, 3), (2, 2)]]
    _, gradients = net.effect.value(*weights)
    for layer, gradient in enumerate(gradients):
        for index in np.ndindex(gradient.shape):
            values = []
            for sign in (1, -1):
                moved = [W.copy() for W in weights]
                moved[layer][index] += sign * 1e-6
                values.append(net.effect.value(*moved)[0])
            assert (values[0] - values[1]) / 2e-6 == pytest.approx(
                gradient[index], abs=1e-6
            )


def test_objective_is_the_loss_plus_the_deep_penalty():
    rng = np.random.default_rng(0)
    M, C = rng.standard_normal((2, 3)), correlated(3)
    net = overt.DeepLinearNetwork(M, (4, 3), 0.4, second_moment=C)
    weights = [rng.standard_normal(shape) for shape in net.shapes]
    W = weights[2] @ weights[1] @ weights[0]
    loss = np.trace((M - W) @ C @ (M - W).T)
    expected = loss + overt.penalty.deep(weights, 0.4, C)
    assert net.objective(weights) == pytest.approx(expected, rel=1e-12)
    assert net.effect.value(*weights)[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_a_first_value_that_leads_gives_rank_one(seed):
    rng = np.random.default_rng(seed)
    M = np.outer(
        rng.standard_normal(3), rng.standard_normal(4)
    ) + 0.05 * rng.standard_normal((3, 4))
    net = overt.DeepLinearNetwork(M, (3, 4), 0.6, second_moment=correlated(4, seed))
    s = np.linalg.svd(M @ np.linalg.cholesky(correlated(4, seed)), compute_uv=False)
    assert s[0] - s[1] >= s[1] / net.nu  # thesis, Theorem 10
    best = net.solve()
    assert (best.status, best.rank) == ("optimal", 1)
    assert best.objective == pytest.approx(descend(net, seed=seed), rel=1e-8)
    assert best.certificate.relative_gap < 1e-10
    np.testing.assert_allclose(
        overt.equalize.equalization_gaps(best.weights, correlated(4, seed)),
        0,
        atol=1e-10,
    )


def test_single_output_is_pure_shrinkage_with_the_inverse_second_moment():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 4)) @ correlated(4), rng.standard_normal((50, 1))
    net = overt.DeepLinearNetwork(X=X, Y=y, widths=(3, 2), drop_prob=0.5)
    least_squares = np.linalg.lstsq(X, y, rcond=None)[0].T
    np.testing.assert_allclose(
        net.solve().product, least_squares / (1 + net.nu), rtol=1e-9
    )


@pytest.mark.parametrize("seed", range(8))
def test_no_descent_is_below_the_certified_optimum(seed):
    rng = np.random.default_rng(seed)
    layers = int(rng.integers(2, 5))
    widths = tuple(int(d) for d in rng.integers(1, 6, layers))
    M = rng.standard_normal((3, 4))
    net = overt.DeepLinearNetwork(
        M, widths, rng.uniform(0.05, 0.9, layers), second_moment=correlated(4, seed)
    )
    best = net.solve()
    assert best.status == "optimal"
    assert best.certificate.relative_gap <= 1e-9
    assert best.objective <= descend(net, restarts=4, seed=seed) * (1 + 1e-9)


def test_the_smallest_spurious_minimum_is_not_the_optimum():
    # Widths (2, 2), drop_prob 1/3: this critical point has objective 1.17, the optimum 1.002591.
    net = overt.DeepLinearNetwork(np.diag([1.0, 0.9]), (2, 2), 1 / 3)
    spurious = [
        np.array([[0.8, 0.0], [0.8, 0.0]]),
        np.full((2, 2), 0.25),
        np.array([[0.8, 0.8], [0.0, 0.0]]),
    ]
    assert net.objective(spurious) == pytest.approx(1.17, rel=1e-14)
    best = net.solve()
    assert (best.status, best.rank) == ("optimal", 2)
    assert best.objective == pytest.approx(1.002591, abs=5e-7)


D, K, B = overt.Dropout, overt.KeepExactly, overt.DropBlock


def random_covariance(d, seed=0):
    A = np.random.default_rng(seed).standard_normal((d, 2 * d))
    return overt.CovarianceNoise(np.ones(d), A @ A.T / (2 * d))


MIXTURES = {
    "Gaussian and keep two": ((4, 3), [D(0.3, gaussian=True), K(2)], "optimal"),
    "three kinds": ((4, 3, 5), [K(3), D(0.2), D(0.4)], "optimal"),
    "keep one": ((3, 4), [K(1), D(0.3)], "optimal"),
    "one rate per unit": ((3, 4), [D((0.1, 0.4, 0.6)), D(0.3)], None),
    "a unit without noise": ((3, 4), [D((0.0, 0.4, 0.6)), D(0.3)], None),
    "blocks": ((8, 4), [B(0.4, 2), D(0.3)], None),
    "any covariance": ((4, 3), [random_covariance(4), D(0.3)], "lower_bound"),
}


def enumerated(net, weights, noises, X):
    """E over all masks of the squared error, for noises given as (probability, multipliers)."""
    total = 0.0
    for chosen in product(*noises):
        A = np.eye(X.shape[1])
        for W, (_, mask) in zip(weights[:-1], chosen, strict=True):
            A = np.asarray(mask)[:, None] * (W @ A)
        total += np.prod([p for p, _ in chosen]) * np.sum((X - weights[-1] @ A) ** 2)
    return total


def test_a_noise_per_layer_is_averaged_over_all_masks():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((2, 3))
    net = overt.DeepLinearNetwork(M, (3, 2), noise=[K(2), D((0.5, 0.2))])
    weights = [rng.standard_normal(shape) for shape in net.shapes]
    two = [(1 / 3, np.array(z) * 1.5) for z in ((1, 1, 0), (1, 0, 1), (0, 1, 1))]
    drop = [
        (0.5 * (0.8 if b else 0.2), np.array([2 * a, 1.25 * b]))
        for a, b in product((0, 1), (0, 1))
    ]
    assert net.objective(weights) == pytest.approx(
        enumerated(net, weights, [two, drop], M)
    )


@pytest.mark.parametrize("name", MIXTURES)
def test_no_descent_is_below_the_bound_of_a_mixture(name):
    widths, noises, status = MIXTURES[name]
    M = np.random.default_rng(1).standard_normal((3, 4))
    net = overt.DeepLinearNetwork(M, widths, noise=noises, second_moment=correlated(4))
    best = net.solve()
    found = descend(net, restarts=6)
    assert best.certificate.lower_bound <= found * (1 + 1e-9)
    assert best.objective <= found * (1 + 1e-7)
    assert status is None or best.status == status
    again = net.certify(best.weights)
    assert again.objective == pytest.approx(best.objective, rel=1e-12)


@pytest.mark.parametrize(
    "noise", [D(0.4), D((0.1, 0.3, 0.4, 0.5, 0.6)), K(3), B(0.4, 5)]
)
def test_one_layer_of_any_noise_is_the_shallow_network(noise):
    M = np.random.default_rng(0).standard_normal((4, 3))
    deep = overt.DeepLinearNetwork(M, (5,), noise=noise).solve()
    shallow = overt.LinearNetwork(M, 5, noise).solve()
    assert deep.objective == pytest.approx(shallow.objective, rel=1e-9)
    assert deep.certificate.lower_bound <= shallow.objective * (1 + 1e-12)


def test_shares_are_those_of_the_units():
    net = overt.DeepLinearNetwork(np.diag([1.0, 0.9]), (2, 2), 1 / 3)
    best = net.solve()
    np.testing.assert_allclose(best.shares.sum(axis=1), 1)
    np.testing.assert_allclose(best.shares[:, 0], 0.552703, atol=1e-6)
    lambdas = best.shares / (best.shares + 0.25)
    np.testing.assert_allclose(
        best.spectrum, [1.0, 0.9] * np.prod(lambdas, axis=0), rtol=1e-10
    )


@pytest.mark.parametrize("seed", range(12))
def test_every_rank_certificate_survives_descents(seed):
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((4, 6))
    net = overt.DeepLinearNetwork(M, (5, 3), 0.6, second_moment=correlated(6, seed))
    best = net.solve()
    ranks = best.rank_certificate
    assert (ranks.least, ranks.most) == (best.rank, best.rank)
    assert ranks.statement == f"Every optimum has rank {best.rank}."
    assert ranks.bound_below > best.objective
    for rank in range(1, 4):
        limited = net.solve(rank=rank)
        assert np.linalg.matrix_rank(limited.product, tol=1e-9) <= rank
        assert limited.status == "optimal"
        assert net.bound(rank=rank) <= limited.objective * (1 + 1e-12)
        assert (limited.objective > best.objective * (1 + 1e-9)) == (rank < best.rank)


def test_narrow_layers_cannot_beat_the_bound_of_their_rank():
    M = np.diag([1.0, 0.9, 0.8])
    wide = overt.DeepLinearNetwork(M, (6, 6), 0.1)
    narrow = overt.DeepLinearNetwork(
        M, (6, 2, 6), (0.1, 0.0, 0.1)
    )  # rank two, no more noise
    assert wide.bound(rank=2) == pytest.approx(narrow.solve().objective, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"noise": [D(0.5)]}, overt.InputError),
        ({"noise": [D(0.5), None]}, TypeError),
        ({"noise": D(0.5), "drop_prob": 0.5}, overt.InputError),
        ({}, overt.InputError),
    ],
)
def test_wrong_noises_of_layers_are_refused(arguments, error):
    with pytest.raises(error, match="noise"):
        overt.DeepLinearNetwork(np.eye(2), (2, 2), **arguments)


def objective_over_all_masks(net, weights, M):
    """E|M x - W x|^2 for isotropic x, as a sum over the masks of Dropout and DropConnect."""
    parts = []
    for noise, W in zip(net.noise, weights, strict=False):
        shape = W.shape if noise.masks == "weights" else (len(W), 1)
        p = noise.drop_prob
        masks = [
            np.reshape(bits, shape) for bits in product([0, 1], repeat=np.prod(shape))
        ]
        parts.append([(W * z / (1 - p), np.where(z, 1 - p, p).prod()) for z in masks])
    total = 0.0
    for layers in product(*parts):
        A = np.eye(M.shape[1])
        for W, _ in layers:
            A = W @ A
        chance = np.prod([chance for _, chance in layers])
        total += chance * np.sum((M - weights[-1] @ A) ** 2)
    return total


C = overt.DropConnect


@pytest.mark.parametrize(
    ("widths", "noise"),
    [
        ((2, 2), [C(0.3), C(0.4)]),
        ((2, 3), [D(0.3), C(0.4)]),
        ((2, 2, 1), [D(0.0), C(0.4), C(0.2)]),
        ((2, 2, 2), [C(0.2), D(0.5), C(0.3)]),
    ],
)
def test_masked_weights_cost_what_the_sum_over_all_masks_says(widths, noise):
    rng = np.random.default_rng(0)
    M = rng.standard_normal((2, 2))
    net = overt.DeepLinearNetwork(M, widths, noise=noise)
    weights = [rng.standard_normal(shape) for shape in net.shapes]
    expected = objective_over_all_masks(net, weights, M)
    assert net.objective(weights) == pytest.approx(expected, rel=1e-12)
    assert net.effect.value(*weights)[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("noise", [[C(0.3), D(0.2)], [C(0.1), C(0.3), D(0.2)]])
def test_no_descent_goes_below_the_bound_of_masked_weights(noise):
    """The bound is exact where only the first layer's weights are masked."""
    M = np.diag([1.0, 0.9, 0.7])
    net = overt.DeepLinearNetwork(M, (3, 4, 3)[: len(noise)], noise=noise)
    best = net.solve()
    lowest = descend(net)
    assert best.certificate.lower_bound <= lowest * (1 + 1e-12)
    assert best.objective <= lowest * (1 + 1e-9)
    assert (best.status == "optimal") == (len(noise) == 2)


@pytest.mark.parametrize("first", [C(0.1), D(0.1)])
def test_two_layers_with_masked_weights_reach_their_formula(first):
    """max sum s^2 F, 1/F = 1 + alpha / y + beta / (x y), over shares by a generic optimizer."""
    s = np.array([1.0, 0.95, 0.9])
    net = overt.DeepLinearNetwork(np.diag(s), (4, 5), noise=[first, C(0.05)])
    alpha = first.strength / 4
    beta = (1 + first.strength) * C(0.05).strength / 20

    def left_over(theta):
        x, y = (np.exp(part) / np.exp(part).sum() for part in theta.reshape(2, 3))
        return np.sum(s**2 * (1 - 1 / (1 + alpha / y + beta / (x * y))))

    starts = np.random.default_rng(0).standard_normal((5, 6))
    lowest = min(minimize(left_over, start, tol=1e-12).fun for start in starts)
    assert net.solve().objective == pytest.approx(lowest, rel=1e-7)


def test_masked_weights_are_certified_where_rank_one_is_best():
    net = overt.DeepLinearNetwork(np.diag([1.0, 0.2]), (3, 2), noise=[C(0.4), C(0.5)])
    best = net.solve()
    assert best.status == "optimal"
    assert best.rank == 1


def test_masked_weights_are_trained_on_the_gradient_of_their_objective():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((2, 2))
    net = overt.DeepLinearNetwork(M, (2, 3), noise=[C(0.3), C(0.2)])
    start = [0.3 * rng.standard_normal(shape) for shape in net.shapes]
    options = {"steps": 1, "learning_rate": 0.1, "init": start}
    sampled = net.train(batch_size=200_000, **options)
    exact = net.train(gradient="expected", **options)
    for first, second in zip(sampled.weights, exact.weights, strict=True):
        # Standard errors are near .1 * 2 / sqrt(200,000) = 5e-4; the steps are near .1.
        np.testing.assert_allclose(first, second, atol=2.5e-3)


def test_masked_weights_on_correlated_inputs_are_refused():
    with pytest.raises(overt.InputError, match="uncorrelated"):
        overt.DeepLinearNetwork(
            np.eye(3), (3, 2), noise=[C(0.3), D(0.2)], second_moment=correlated(3)
        )


def test_one_hidden_layer_is_the_shallow_network():
    M = np.random.default_rng(0).standard_normal((4, 3))
    deep = overt.DeepLinearNetwork(M, (5,), 0.4).solve()
    shallow = overt.LinearNetwork(M, 5, overt.Dropout(0.4)).solve()
    assert deep.status == "optimal"
    assert deep.objective == pytest.approx(shallow.objective, rel=1e-12)


def test_one_noisy_layer_is_exact():
    M = np.random.default_rng(0).standard_normal((4, 3))
    best = overt.DeepLinearNetwork(M, (3, 5, 4), (0.0, 0.4, 0.0)).solve()
    assert best.status == "optimal"
    shallow = overt.LinearNetwork(M, 5, overt.Dropout(0.4)).solve()
    assert best.objective == pytest.approx(shallow.objective, rel=1e-12)


def test_narrowest_layer_caps_the_rank():
    M = np.random.default_rng(0).standard_normal((4, 4))
    best = overt.DeepLinearNetwork(M, (4, 2, 4), 0.0).solve()
    s = np.linalg.svd(M, compute_uv=False)
    assert best.rank == 2
    assert best.objective == pytest.approx(np.sum(s[2:] ** 2))


@pytest.mark.parametrize("gradient", ["sampled", "expected"])
def test_training_reaches_the_optimum_and_stays_above_the_bound(gradient):
    M = np.outer([1.0, -0.5], [1.0, 0.5, 0.2])
    net = overt.DeepLinearNetwork(M, (3, 3), 0.3)
    run = net.train(3000, inverse_decay(0.1, 1000), 3, batch_size=32, gradient=gradient)
    assert run.objective.min() >= run.optimum * (1 - 1e-12)
    assert run.objective[:, -1].mean() <= 1.05 * run.optimum
    assert run.imbalance[:, -1].mean() < 0.1 * run.imbalance[:, 0].mean()
    assert [W.shape for W in run.weights] == [(3, *shape) for shape in net.shapes]
    with pytest.raises(AttributeError, match="weights"):
        _ = run.U


def test_data_minibatches_and_divergence():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 3))
    net = overt.DeepLinearNetwork(
        X=X, Y=X @ np.ones((3, 1)), widths=(3, 3), drop_prob=0.2
    )
    run = net.train(200, 0.05, 2, batch_size=10)
    assert run.objective[:, -1].mean() < run.objective[:, 0].mean()
    assert net.train(200, 50.0, 2).status == "diverged"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"widths": (), "drop_prob": 0.5}, "widths"),
        ({"widths": (2, 0), "drop_prob": 0.5}, r"widths\[1\]"),
        ({"widths": (2, 2), "drop_prob": [0.5]}, "one per hidden layer"),
        ({"widths": (2, 2), "drop_prob": 1.0}, r"\[0, 1\)"),
    ],
)
def test_bad_architectures_are_refused(arguments, message):
    with pytest.raises(overt.InputError, match=message):
        overt.DeepLinearNetwork(np.eye(2), **arguments)


def test_weights_of_the_wrong_shape_are_refused():
    net = overt.DeepLinearNetwork(np.eye(2), (3,), 0.5)
    with pytest.raises(overt.InputError, match="shapes"):
        net.certify([np.ones((2, 2)), np.ones((2, 2))])


def test_weights_start_such_that_layers_keep_sizes():
    net = overt.DeepLinearNetwork(np.eye(2, 9), (4, 3), 0.3)
    run = net.train(1, 1e-12, seeds=[5], gradient="expected")
    rng = np.random.default_rng(5)
    for W, shape in zip(run.weights, ((4, 9), (3, 4), (2, 3)), strict=True):
        drawn = rng.standard_normal(shape) / np.sqrt((9 + 4 + 3) / 3)
        np.testing.assert_allclose(W[0], drawn, rtol=1e-6)


def test_every_sample_of_a_batch_has_a_mask_of_its_own():
    rng = np.random.default_rng(0)
    net = overt.DeepLinearNetwork(rng.standard_normal((2, 3)), (6, 5), 0.5)
    weights = [rng.standard_normal(shape) for shape in net.shapes]
    x, y = np.tile(
        rng.standard_normal((2, 1, 3)), (1, 4000, 1)
    )  # one sample, many times
    gradients = net.effect.sampled_gradients(
        weights, x, y[:, :2], np.random.default_rng(1)
    )
    kept = [
        np.abs(gradients[i]).sum(axis=axis) > 0 for i, axis in ((1, 0), (2, 0), (0, 1))
    ]
    assert all(
        units.all() for units in kept
    )  # one mask for all would leave units without gradient
    whole = net.effect.sampled_gradients(weights, x, y[:, :2], np.random.default_rng(2))
    for one, other in zip(gradients, whole, strict=True):
        assert np.linalg.norm(one - other) < 0.3 * np.linalg.norm(one)


@pytest.mark.parametrize("seed", [2, 5, 8])
def test_no_network_of_limited_rank_is_better_than_the_solution(seed):
    """With one probability per unit a solution of rank 15 was worse than one of rank 14."""
    rng = np.random.default_rng(seed)
    target = rng.standard_normal((20, 20))
    per_unit = overt.Dropout(tuple(rng.uniform(0.05, 0.9, 20)))
    noise = [overt.Dropout(0.3, gaussian=True), per_unit]
    net = overt.DeepLinearNetwork(target, (24, 20), noise=noise)
    limited = min(net.solve(rank=q).objective for q in range(1, 21))
    assert net.solve().objective <= limited * (1 + 1e-9)


@pytest.mark.parametrize("widths", [(3,), (4, 3)])
def test_targets_that_noise_costs_nothing_are_solved(widths):
    """KeepExactly has negative correlations: an optimum of 0 is known up to rounding only."""
    for seed in range(20):
        target = np.random.default_rng(seed).standard_normal((3, 1))
        best = overt.DeepLinearNetwork(
            target, widths, noise=overt.KeepExactly(2)
        ).solve()
        assert best.status == "optimal"
        assert best.objective == pytest.approx(0.0, abs=1e-9)


def test_the_best_map_of_a_limited_rank_says_nothing_of_all_ranks():
    net = overt.DeepLinearNetwork(np.diag([2, 1.9]), (6, 6), drop_prob=0.3)
    assert net.solve().rank_certificate.statement == "Every optimum has rank 2."
    assert net.solve(rank=1).rank_certificate is None


def test_correlated_noise_is_solved_as_well_as_descent_does():
    """The two-layer search left units of 1e-10 and 1e9, and the deep solver lost them."""
    sliding = overt.DropBlock(0.5, 3, placement="sliding")
    shallow = overt.LinearNetwork(np.eye(1), 4, sliding).solve()
    assert max(np.abs(shallow.U).max(), np.abs(shallow.V).max()) < 10
    deep = overt.DeepLinearNetwork(np.eye(1), (4,), noise=sliding).solve()
    assert deep.objective == pytest.approx(shallow.objective, rel=1e-9)
    net = overt.DeepLinearNetwork(
        np.eye(1), (2, 4), noise=[overt.Dropout(0.5), sliding]
    )
    run = net.train(8000, 0.05, 6, gradient="expected")
    assert net.solve().objective <= run.objective[:, -1].min() * (1 + 1e-9)


@pytest.mark.parametrize("p", [1e-6, 8.7e-10, 1e-13])
@pytest.mark.parametrize("widths", [(4,), (3, 5)])
def test_weak_noise_keeps_its_digits(p, widths):
    """The penalty was taken from 1 + lam, and came out below the bound."""
    net = overt.DeepLinearNetwork(14.8 * np.eye(2, 6), widths, drop_prob=p)
    best = net.solve()
    assert best.status == "optimal"
    assert best.certificate.relative_gap < 1e-9
    assert np.sum(best.shares, axis=1) == pytest.approx(1)
    added = sum(p / (1 - p) / d for d in widths)  # to first order in p
    assert net.nu == pytest.approx(added, rel=1e-5)
    assert best.objective == pytest.approx(2 * 14.8**2 * 2 * added, rel=1e-5)


@pytest.mark.parametrize(
    ("width", "keep"), [(4, 3), (5, 4), (6, 4), (7, 6), (8, 6), (9, 7)]
)
def test_a_map_of_rank_one_costs_nothing_where_a_fixed_number_of_units_survives(
    width, keep
):
    """Rounding took the optimum below 0, and no rank was left: an IndexError."""
    rng = np.random.default_rng(width)
    X = rng.standard_normal((30, 3))
    problems = [
        {"target": np.array([[1.0, 2.0]])},
        {"target": np.outer(rng.standard_normal(3), rng.standard_normal(3))},
        {"X": X, "Y": X @ rng.standard_normal((3, 1))},
    ]
    noise = overt.KeepExactly(keep)
    for problem in problems:
        for widths in ([width], [width, width]):
            net = overt.DeepLinearNetwork(widths=widths, noise=noise, **problem)
            best = net.solve()
            assert best.status == "optimal"
            assert best.rank == 1
            assert best.objective == pytest.approx(0.0, abs=1e-12)
            assert best.rank_certificate.statement == "Every optimum has rank 1."
