"""Every penalty: equal to the average over all masks, to Monte Carlo, and to its identities."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import (
    anisotropic,
    assert_mean_within_standard_errors,
    bernoulli_patterns,
    central_differences,
    chain_product,
    deep_term_by_pivots,
    enumerate_masks,
    inputs_with_second_moment,
    square_root,
)

from overt import (
    CovarianceNoise,
    DropBlock,
    DropConnect,
    Dropout,
    InputError,
    KeepExactly,
    equalize,
    penalty,
    spectral,
)

WIDTH, INPUTS, SAMPLES, DRAWS = 6, 3, 8, 20_000


def gaussian_noise():
    root = 0.3 * np.random.default_rng(0).standard_normal((WIDTH, WIDTH))
    return CovarianceNoise(np.linspace(-1, 2, WIDTH), root @ root.T)


NOISES = {
    "dropout": Dropout(0.3),
    "dropout-nothing": Dropout(0.0),
    "dropout-per-unit": Dropout([0.0, 0.1, 0.3, 0.5, 0.7, 0.9]),
    "keep-exactly": KeepExactly(4),
    "grid": DropBlock(0.4, 2),
    "grid-one-block": DropBlock(0.4, 6),
    "sliding-odd": DropBlock(0.4, 3, "sliding"),
    "sliding-even": DropBlock(0.4, 4, "sliding"),
    "covariance": gaussian_noise(),
    "covariance-diagonal": CovarianceNoise(
        np.full(WIDTH, 0.5), np.diag(np.arange(1.0, 7.0))
    ),
}

every_noise = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES.keys())
every_law = pytest.mark.parametrize("law", ["isotropic", "anisotropic"])


class LastLayer:
    """Noise on H before the outputs H U', where H are features of a finite list of inputs.

    `explicit` is the penalty that overt states; the inputs have exactly the second moment that it
    is given, so that averages over the list are expectations.
    """

    def __init__(self, architecture, law):
        rng = np.random.default_rng(7)
        outputs = INPUTS if architecture == "tied" else 2
        C = None if law == "isotropic" else anisotropic(INPUTS, rng)
        X = inputs_with_second_moment(np.eye(INPUTS) if C is None else C, SAMPLES, rng)
        U, V = (
            rng.standard_normal((outputs, WIDTH)),
            rng.standard_normal((INPUTS, WIDTH)),
        )
        self.U, self.Y = U, rng.standard_normal((SAMPLES, outputs))
        match architecture:
            case "shallow":
                self.H = X @ V
                self.explicit = lambda noise: penalty.shallow(U, V, noise, C)
            case "tied":
                self.H = X @ U
                self.explicit = lambda noise: penalty.tied(U, noise, C)
            case "hidden":
                self.H = np.maximum(X @ V, 0)
                self.explicit = lambda noise: penalty.hidden(U, self.H, noise)

    def added_loss(self, multipliers):
        """Noisy minus clean squared error, (multipliers, samples)."""
        noisy = (self.H * multipliers[:, None, :]) @ self.U.T
        clean = self.H @ self.U.T
        return ((self.Y - noisy) ** 2).sum(-1) - ((self.Y - clean) ** 2).sum(-1)


every_architecture = pytest.mark.parametrize(
    "architecture", ["shallow", "tied", "hidden"]
)


@every_noise
@every_law
@every_architecture
def test_penalty_is_the_added_loss_averaged_over_all_masks(architecture, law, noise):
    network = LastLayer(architecture, law)
    masks, probabilities = enumerate_masks(noise, WIDTH)
    added = probabilities @ network.added_loss(masks / noise.mean(WIDTH)).mean(axis=1)
    assert network.explicit(noise) == pytest.approx(added, rel=1e-12, abs=1e-12)


@every_noise
@every_law
@every_architecture
def test_penalty_is_the_mean_of_the_sampled_added_loss(architecture, law, noise):
    network, rng = LastLayer(architecture, law), np.random.default_rng(3)
    added = network.added_loss(noise.multipliers(WIDTH, DRAWS, rng))
    samples = added[np.arange(DRAWS), rng.integers(SAMPLES, size=DRAWS)]
    assert_mean_within_standard_errors(samples, network.explicit(noise))


@every_noise
def test_predictive_variance_is_the_variance_over_all_masks(noise):
    network = LastLayer("hidden", "anisotropic")
    masks, probabilities = enumerate_masks(noise, WIDTH)
    outputs = (network.H * (masks / noise.mean(WIDTH))[:, None, :]) @ network.U.T
    spread = (outputs - network.H @ network.U.T) ** 2
    expected = np.tensordot(probabilities, spread, axes=1)
    variance = penalty.predictive_variance(network.U, network.H, noise)
    assert variance.shape == (SAMPLES, 2)
    np.testing.assert_allclose(variance, expected, rtol=1e-12, atol=1e-12)


@every_noise
def test_predictive_variance_is_that_of_sampled_outputs(noise):
    network = LastLayer("hidden", "isotropic")
    multipliers = noise.multipliers(WIDTH, 4000, seed=5)
    outputs = (network.H * multipliers[:, None, :]) @ network.U.T
    spread = (outputs - network.H @ network.U.T) ** 2
    expected = penalty.predictive_variance(network.U, network.H, noise)
    assert_mean_within_standard_errors(spread, expected)


@every_noise
def test_predictive_variances_add_up_to_the_hidden_penalty(noise):
    network = LastLayer("hidden", "anisotropic")
    variance = penalty.predictive_variance(network.U, network.H, noise)
    total = penalty.hidden(network.U, network.H, noise)
    assert variance.sum(axis=1).mean() == pytest.approx(total, rel=1e-12)


@every_noise
def test_shallow_penalty_ignores_rescaling_between_the_layers(noise):
    rng = np.random.default_rng(1)
    U, V = rng.standard_normal((2, WIDTH)), rng.standard_normal((INPUTS, WIDTH))
    scale = np.exp(rng.standard_normal(WIDTH))
    rescaled = penalty.shallow(U * scale, V / scale, noise)
    assert rescaled == pytest.approx(penalty.shallow(U, V, noise), rel=1e-12)


@every_noise
def test_shallow_penalty_is_quadratic_in_the_map(noise):
    rng = np.random.default_rng(2)
    U, V = rng.standard_normal((2, WIDTH)), rng.standard_normal((INPUTS, WIDTH))
    assert penalty.shallow(3 * U, V, noise) == pytest.approx(
        9 * penalty.shallow(U, V, noise), rel=1e-12
    )


@every_noise
def test_scaled_second_moment_scales_the_penalty(noise):
    rng = np.random.default_rng(2)
    U, V = rng.standard_normal((2, WIDTH)), rng.standard_normal((INPUTS, WIDTH))
    C = 2.5 * np.eye(INPUTS)
    expected = 2.5 * penalty.shallow(U, V, noise)
    assert penalty.shallow(U, V, noise, C) == pytest.approx(expected, rel=1e-12)


def test_no_noise_costs_nothing():
    rng = np.random.default_rng(2)
    U, V = rng.standard_normal((2, WIDTH)), rng.standard_normal((INPUTS, WIDTH))
    assert penalty.shallow(U, V, Dropout(0.0)) == 0
    assert penalty.deep([V.T, U], 0.0) == 0


INDUCING = {
    "dropout": Dropout(0.4),
    "grid-pairs": DropBlock(0.4, 2),
    "grid-one-block": DropBlock(0.4, 6),
    "dropconnect": DropConnect(0.4),
}


@pytest.mark.parametrize("noise", INDUCING.values(), ids=INDUCING.keys())
@every_law
def test_penalty_is_at_least_the_induced_norm(noise, law):
    rng = np.random.default_rng(4)
    weight, norm = spectral.induced(noise, WIDTH)
    C = np.eye(4) if law == "isotropic" else anisotropic(4, rng)
    geometry = np.diag(np.diag(C)) if isinstance(noise, DropConnect) else C
    for _ in range(30):
        U, V = rng.standard_normal((5, WIDTH)), rng.standard_normal((4, WIDTH))
        bound = weight * norm.matrix_value(U @ V.T @ square_root(geometry))
        assert penalty.shallow(U, V, noise, C) >= bound * (1 - 1e-12)


@pytest.mark.parametrize(
    "noise", [Dropout(0.4), DropConnect(0.4)], ids=["dropout", "dropconnect"]
)
def test_balanced_factors_attain_the_induced_norm(noise):
    A = np.random.default_rng(5).standard_normal((5, 4))
    U, V = equalize.equalize_product(A, WIDTH)
    weight, norm = spectral.induced(noise, WIDTH)
    expected = weight * norm.matrix_value(A)
    assert penalty.shallow(U, V, noise) == pytest.approx(expected, rel=1e-12)


def test_one_block_attains_the_induced_norm_with_any_factors():
    rng = np.random.default_rng(5)
    U, V = rng.standard_normal((5, WIDTH)), rng.standard_normal((4, WIDTH))
    noise = DropBlock(0.4, WIDTH)
    weight, norm = spectral.induced(noise, WIDTH)
    expected = weight * norm.matrix_value(U @ V.T)
    assert penalty.shallow(U, V, noise) == pytest.approx(expected, rel=1e-12)


class WeightMask:
    """DropConnect on the entries of V, with inputs of second moment C, correlated and positive."""

    drop_prob = 0.3

    def __init__(self, law):
        rng = np.random.default_rng(9)
        self.X = np.abs(rng.standard_normal((SAMPLES, 3)))
        if law == "isotropic":
            self.X = inputs_with_second_moment(np.eye(3), SAMPLES, rng)
        self.C = self.X.T @ self.X / SAMPLES
        self.U, self.V = rng.standard_normal((2, 2)), rng.standard_normal((3, 2))
        self.Y = rng.standard_normal((SAMPLES, 2))

    def added_loss(self, masks):
        noisy = (
            self.X
            @ (self.V * masks.reshape(-1, 3, 2) / (1 - self.drop_prob))
            @ self.U.T
        )
        clean = self.X @ self.V @ self.U.T
        return ((self.Y - noisy) ** 2).sum(-1) - ((self.Y - clean) ** 2).sum(-1)


@every_law
def test_dropconnect_is_the_added_loss_averaged_over_all_masks(law):
    net = WeightMask(law)
    masks, probabilities = enumerate_masks(DropConnect(net.drop_prob), (3, 2))
    added = probabilities @ net.added_loss(masks).mean(axis=1)
    explicit = penalty.dropconnect(net.U, net.V, net.drop_prob, net.C)
    assert explicit == pytest.approx(added, rel=1e-12)
    noise = DropConnect(net.drop_prob)
    assert penalty.shallow(net.U, net.V, noise, net.C) == explicit


@every_law
def test_dropconnect_is_the_mean_of_the_sampled_added_loss(law):
    net, rng = WeightMask(law), np.random.default_rng(3)
    added = net.added_loss(DropConnect(net.drop_prob).sample((3, 2), DRAWS, rng))
    samples = added[np.arange(DRAWS), rng.integers(SAMPLES, size=DRAWS)]
    explicit = penalty.dropconnect(net.U, net.V, net.drop_prob, net.C)
    assert_mean_within_standard_errors(samples, explicit)


def test_dropconnect_as_printed_is_off_where_features_are_correlated():
    net = WeightMask("anisotropic")
    printed = penalty.shallow(net.U, net.V, Dropout(net.drop_prob), net.C)
    corrected = penalty.dropconnect(net.U, net.V, net.drop_prob, net.C)
    assert abs(printed / corrected - 1) > 0.1


@pytest.mark.parametrize(
    "C", [None, np.diag([0.5, 2.0, 3.0])], ids=["identity", "diagonal"]
)
def test_dropconnect_equals_dropout_where_features_are_uncorrelated(C):
    net = WeightMask("isotropic")
    dropout = penalty.shallow(net.U, net.V, Dropout(net.drop_prob), C)
    assert penalty.dropconnect(net.U, net.V, net.drop_prob, C) == pytest.approx(
        dropout, rel=1e-13
    )


def test_dropconnect_on_the_last_layer_equals_dropout():
    net = WeightMask("anisotropic")
    masks, probabilities = enumerate_masks(DropConnect(net.drop_prob), (2, 2))
    H = net.X @ net.V
    noisy = H @ np.swapaxes(net.U * masks.reshape(-1, 2, 2) / (1 - net.drop_prob), 1, 2)
    added = ((net.Y - noisy) ** 2).sum(-1) - ((net.Y - H @ net.U.T) ** 2).sum(-1)
    dropout = penalty.hidden(net.U, H, Dropout(net.drop_prob))
    assert probabilities @ added.mean(axis=1) == pytest.approx(dropout, rel=1e-12)


def test_dropout_after_a_relu_costs_half_on_inputs_mirrored_about_zero():
    rng = np.random.default_rng(6)
    U, V = rng.standard_normal((2, 4)), rng.standard_normal((3, 4))
    X = inputs_with_second_moment(np.eye(3), SAMPLES, rng)
    H = np.maximum(np.vstack([X, -X]) @ V, 0)
    expected = penalty.hidden(U, H, Dropout(0.7))
    linear = penalty.shallow(U, V, Dropout(0.7))
    assert linear / 2 == pytest.approx(expected, rel=1e-12)


DEEP = {
    "one-hidden": ([3, 4, 2], [0.3]),
    "two-hidden": ([3, 2, 4, 2], [0.1, 0.6]),
    "three-hidden": ([2, 3, 2, 3, 1], [0.5, 0.0, 0.9]),
    "four-hidden": ([2, 2, 2, 2, 2, 3], [0.2, 0.3, 0.4, 0.5]),
}
every_deep_network = pytest.mark.parametrize(
    ("sizes", "probs"), DEEP.values(), ids=DEEP.keys()
)


def random_chain(sizes, law):
    rng = np.random.default_rng(8)
    weights = [
        rng.standard_normal((after, before)) for before, after in pairwise(sizes)
    ]
    return weights, None if law == "isotropic" else anisotropic(sizes[0], rng)


def noisy_maps(weights, masks, probs):
    """Network maps (n, outputs, inputs) under masks (n, all hidden units)."""
    cuts = np.cumsum([W.shape[0] for W in weights[:-1]])[:-1]
    maps = weights[0]
    for W, mask, prob in zip(
        weights[1:], np.split(masks, cuts, axis=1), probs, strict=True
    ):
        maps = W @ (mask[:, :, None] / (1 - prob) * maps)
    return maps


@pytest.mark.parametrize("per_layer", [True, False], ids=["per-layer", "one-for-all"])
@every_law
@every_deep_network
def test_deep_penalty_is_the_added_loss_averaged_over_all_masks(
    sizes, probs, law, per_layer
):
    weights, C = random_chain(sizes, law)
    probs = probs if per_layer else [0.4] * len(probs)
    keep = np.repeat(1 - np.array(probs), sizes[1:-1])
    masks, probabilities = bernoulli_patterns(keep)
    maps, clean = noisy_maps(weights, masks, probs), chain_product(weights)
    second = np.eye(sizes[0]) if C is None else C
    energy = np.einsum("noi,ij,noj->n", maps, second, maps)
    expected = probabilities @ energy - np.sum(clean @ second * clean)
    explicit = penalty.deep(weights, probs if per_layer else 0.4, C)
    assert explicit == pytest.approx(expected, rel=1e-12)


def test_deep_penalty_is_the_mean_of_the_sampled_added_loss():
    (sizes, probs), rng = DEEP["three-hidden"], np.random.default_rng(10)
    weights, C = random_chain(sizes, "anisotropic")
    keep = np.repeat(1 - np.array(probs), sizes[1:-1])
    maps = noisy_maps(
        weights, (rng.random((DRAWS, len(keep))) < keep).astype(float), probs
    )
    X = rng.standard_normal((DRAWS, sizes[0])) @ square_root(C)
    Y = rng.standard_normal((DRAWS, sizes[-1]))
    noisy = np.einsum("noi,ni->no", maps, X)
    added = ((Y - noisy) ** 2).sum(1) - ((Y - X @ chain_product(weights).T) ** 2).sum(1)
    assert_mean_within_standard_errors(added, penalty.deep(weights, probs, C))


@every_law
@every_deep_network
def test_deep_terms_equal_the_sums_over_pivots(sizes, probs, law):
    weights, C = random_chain(sizes, law)
    expected = [
        deep_term_by_pivots(weights, order, C) for order in range(1, len(weights))
    ]
    np.testing.assert_allclose(penalty.deep_terms(weights, C), expected, rtol=1e-12)


@every_law
@every_deep_network
def test_deep_terms_are_the_coefficients_of_the_strength(sizes, probs, law):
    weights, C = random_chain(sizes, law)
    terms, lam = penalty.deep_terms(weights, C), Dropout(0.35).strength
    total = sum(lam ** (order + 1) * term for order, term in enumerate(terms))
    assert penalty.deep(weights, 0.35, C) == pytest.approx(total, rel=1e-12)


@every_deep_network
def test_last_deep_term_is_the_squared_path_norm(sizes, probs):
    weights, _ = random_chain(sizes, "isotropic")
    last = penalty.deep_terms(weights)[-1]
    assert penalty.path_norm(weights) ** 2 == pytest.approx(last, rel=1e-12)


@every_law
def test_one_hidden_layer_is_the_shallow_network(law):
    (W, U), C = random_chain([3, 4, 2], law)
    shallow = penalty.shallow(U, W.T, Dropout(0.3), C)
    assert penalty.deep([W, U], 0.3, C) == pytest.approx(shallow, rel=1e-12)


@every_law
@every_deep_network
def test_deep_penalty_is_at_least_nu_times_the_squared_nuclear_norm(sizes, probs, law):
    weights, C = random_chain(sizes, law)
    W = chain_product(weights) @ square_root(np.eye(sizes[0]) if C is None else C)
    bound = spectral.nu(sizes[1:-1], 0.4) * np.linalg.norm(W, "nuc") ** 2
    assert penalty.deep(weights, 0.4, C) >= bound * (1 - 1e-12)


@pytest.mark.parametrize(
    "probs", [0.4, [0.1, 0.5, 0.8]], ids=["one-for-all", "per-layer"]
)
def test_equalized_rank_one_network_attains_the_bound(probs):
    u, v, widths = np.array([1.0, -2.0]), np.array([0.5, 1.0, 3.0]), [4, 2, 5]
    equal = [np.ones(d) / np.sqrt(d) for d in widths]
    weights = [np.outer(after, w) for w, after in pairwise([v, *equal, u])]
    expected = spectral.nu(widths, probs) * (u @ u) * (v @ v)
    assert penalty.deep(weights, probs) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0, 3.0])
def test_path_norm_is_the_sum_over_paths(order):
    (A, B, C), _ = random_chain([2, 3, 2, 2], "isotropic")
    paths = [
        abs(A[i, j] * B[k, i] * C[m, k])
        for j in range(2)
        for i in range(3)
        for k in range(2)
        for m in range(2)
    ]
    expected = sum(path**order for path in paths) ** (1 / order)
    assert penalty.path_norm([A, B, C], order) == pytest.approx(expected, rel=1e-12)


FACTOR_PROBS = {"one-for-all": 0.3, "per-factor": [0.1, 0.3, 0.8]}
every_factor_prob = pytest.mark.parametrize(
    "prob", FACTOR_PROBS.values(), ids=FACTOR_PROBS.keys()
)


def observed_entries():
    rng = np.random.default_rng(11)
    U, V = rng.standard_normal((4, 3)), rng.standard_normal((5, 3))
    return U, V, rng.integers(4, size=9), rng.integers(5, size=9)


@every_factor_prob
def test_completion_is_the_added_loss_averaged_over_all_masks(prob):
    U, V, rows, cols = observed_entries()
    noise, values = Dropout(prob), np.random.default_rng(0).standard_normal(9)
    masks, probabilities = enumerate_masks(noise, 3)
    predictions = (masks / noise.mean(3)) @ (U[rows] * V[cols]).T
    clean = (U[rows] * V[cols]).sum(axis=1)
    added = (values - predictions) ** 2 - (values - clean) ** 2
    explicit = penalty.completion(U, V, rows, cols, prob)
    assert explicit == pytest.approx(probabilities @ added.mean(axis=1), rel=1e-12)


@every_factor_prob
def test_completion_is_the_mean_of_the_sampled_added_loss(prob):
    U, V, rows, cols = observed_entries()
    rng = np.random.default_rng(0)
    pick = rng.integers(9, size=DRAWS)
    products, values = (U[rows] * V[cols])[pick], rng.standard_normal(9)[pick]
    noisy = (products * Dropout(prob).multipliers(3, DRAWS, rng)).sum(axis=1)
    added = (values - noisy) ** 2 - (values - products.sum(axis=1)) ** 2
    assert_mean_within_standard_errors(
        added, penalty.completion(U, V, rows, cols, prob)
    )


@every_factor_prob
def test_completion_is_sensing_with_indicator_matrices(prob):
    U, V, rows, cols = observed_entries()
    indicators = np.zeros((9, 4, 5))
    indicators[np.arange(9), rows, cols] = 1
    sensing = penalty.sensing(U, V, indicators, prob)
    assert penalty.completion(U, V, rows, cols, prob) == pytest.approx(
        sensing, rel=1e-13
    )


@every_factor_prob
def test_sensing_is_the_added_loss_averaged_over_all_masks(prob):
    U, V, *_ = observed_entries()
    rng, noise = np.random.default_rng(1), Dropout(prob)
    A, y = rng.standard_normal((7, 4, 5)), rng.standard_normal(7)
    masks, probabilities = enumerate_masks(noise, 3)
    maps = np.array([U * m @ V.T for m in masks / noise.mean(3)])
    added = (y - np.einsum("kab,nab->kn", maps, A)) ** 2 - (
        y - np.sum(A * (U @ V.T), (1, 2))
    ) ** 2
    explicit = penalty.sensing(U, V, A, prob)
    assert explicit == pytest.approx(probabilities @ added.mean(axis=1), rel=1e-12)


def test_sampling_every_entry_once_is_the_scaled_shallow_penalty():
    U, V, *_ = observed_entries()
    rows, cols = (index.ravel() for index in np.indices((4, 5)))
    expected = penalty.shallow(U, V, Dropout(0.3)) / 20
    assert penalty.completion(U, V, rows, cols, 0.3) == pytest.approx(
        expected, rel=1e-13
    )


@pytest.mark.parametrize(
    "dtype", [np.int64, np.int32, np.uint8, list], ids=lambda d: d.__name__
)
def test_completion_takes_indices_of_any_whole_type(dtype):
    U, V, rows, cols = observed_entries()
    expected = penalty.completion(U, V, rows, cols, 0.3)
    given = [i.tolist() if dtype is list else i.astype(dtype) for i in (rows, cols)]
    assert penalty.completion(U, V, *given, 0.3) == expected
    tensors = torch.tensor(U), torch.tensor(V)
    assert float(penalty.completion(*tensors, *given, 0.3)) == pytest.approx(
        expected, rel=1e-14
    )


def test_the_last_row_is_known_and_the_next_is_not():
    U, V = np.ones((4, 3)), np.ones((5, 3))
    assert penalty.completion(U, V, [3], [4], 0.5) == pytest.approx(3.0)
    for rows, cols, message in (
        ([4], [4], "rows must lie in 0..3"),
        ([3], [5], "cols must lie"),
    ):
        with pytest.raises(InputError, match=message):
            penalty.completion(U, V, rows, cols, 0.5)


def random_arrays(*shapes):
    rng = np.random.default_rng(12)
    return [rng.standard_normal(shape) for shape in shapes]


C3 = anisotropic(3, np.random.default_rng(13))


def as_second_moment(like):
    return (
        torch.tensor(C3, dtype=like.dtype)
        if torch.is_tensor(like)
        else C3.astype(like.dtype)
    )


U_V = [(2, WIDTH), (3, WIDTH)]
U_H = [(2, WIDTH), (5, WIDTH)]
LAYERS = [(3, 3), (2, 3), (2, 2)]
ROWS, COLS = [0, 1, 1], [2, 0, 2]

FUNCTIONS = {
    "shallow": (lambda U, V: penalty.shallow(U, V, NOISES["dropout"]), U_V),
    "shallow-per-unit": (
        lambda U, V: penalty.shallow(U, V, NOISES["dropout-per-unit"]),
        U_V,
    ),
    "shallow-block": (lambda U, V: penalty.shallow(U, V, NOISES["sliding-odd"]), U_V),
    "shallow-second-moment": (
        lambda U, V: penalty.shallow(U, V, NOISES["covariance"], as_second_moment(U)),
        U_V,
    ),
    "shallow-dropconnect": (lambda U, V: penalty.shallow(U, V, DropConnect(0.3)), U_V),
    "tied": (
        lambda U: penalty.tied(U, NOISES["grid"], as_second_moment(U)),
        [(3, WIDTH)],
    ),
    "hidden": (lambda U, H: penalty.hidden(U, H, NOISES["dropout"]), U_H),
    "hidden-block": (lambda U, H: penalty.hidden(U, H, NOISES["grid"]), U_H),
    "predictive-variance": (
        lambda U, H: penalty.predictive_variance(U, H, NOISES["dropout"]),
        U_H,
    ),
    "predictive-variance-block": (
        lambda U, H: penalty.predictive_variance(U, H, NOISES["sliding-even"]),
        U_H,
    ),
    "dropconnect": (lambda U, V: penalty.dropconnect(U, V, 0.3), U_V),
    "dropconnect-second-moment": (
        lambda U, V: penalty.dropconnect(U, V, 0.3, as_second_moment(U)),
        U_V,
    ),
    "deep": (lambda *W: penalty.deep(W, [0.2, 0.5]), LAYERS),
    "deep-second-moment": (
        lambda *W: penalty.deep(W, 0.5, as_second_moment(W[0])),
        LAYERS,
    ),
    "deep-term-1": (lambda *W: penalty.deep_terms(W)[0], LAYERS),
    "deep-term-2": (
        lambda *W: penalty.deep_terms(W, as_second_moment(W[0]))[1],
        LAYERS,
    ),
    "completion": (
        lambda U, V: penalty.completion(U, V, ROWS, COLS, 0.3),
        [(2, 3), (3, 3)],
    ),
    "completion-per-factor": (
        lambda U, V: penalty.completion(U, V, ROWS, COLS, [0.1, 0.2, 0.3]),
        [(2, 3), (3, 3)],
    ),
    "sensing": (
        lambda U, V, A: penalty.sensing(U, V, A, 0.3),
        [(2, 3), (3, 3), (4, 2, 3)],
    ),
    "path-norm": (lambda *W: penalty.path_norm(W), LAYERS),
    "path-norm-1": (lambda *W: penalty.path_norm(W, 1), LAYERS),
}
every_function = pytest.mark.parametrize(
    ("function", "shapes"), FUNCTIONS.values(), ids=FUNCTIONS.keys()
)


@every_function
def test_numpy_and_torch_give_the_same_number(function, shapes):
    arrays = random_arrays(*shapes)
    tensor = function(*map(torch.tensor, arrays))
    assert torch.is_tensor(tensor)
    np.testing.assert_allclose(tensor.numpy(), function(*arrays), rtol=1e-13)


@every_function
def test_single_precision_stays_single(function, shapes):
    arrays = random_arrays(*shapes)
    exact = function(*arrays)
    single = [a.astype(np.float32) for a in arrays]
    for result in (function(*single), function(*map(torch.tensor, single)).numpy()):
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, exact, rtol=1e-4)


@every_function
def test_torch_gradient_is_the_slope_of_the_numpy_value(function, shapes):
    arrays = random_arrays(*shapes)
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    gradients = torch.autograd.grad(function(*tensors).sum(), tensors)
    for i, gradient in enumerate(gradients):
        slope = central_differences(
            lambda x, i=i: np.sum(function(*arrays[:i], x, *arrays[i + 1 :])), arrays[i]
        )
        scale = math.sqrt(np.mean(slope**2))
        np.testing.assert_allclose(
            gradient.numpy(), slope, rtol=1e-6, atol=1e-7 * scale
        )
