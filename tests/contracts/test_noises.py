"""Every noise: what it draws has the moments that it states, and networks with it."""

import pickle

import numpy as np
import pytest
from helpers import assert_mean_within_standard_errors, enumerate_masks, moments
from scipy.stats import kstest

import overt
from overt import CovarianceNoise, DropBlock, DropConnect, Dropout, KeepExactly

CORRELATED = [[0.5, 0.2, -0.1], [0.2, 0.4, 0.1], [-0.1, 0.1, 0.3]]

NOISES = {
    "dropout": (Dropout(0.3), 5),
    "dropout-nothing": (Dropout(0.0), 4),
    "dropout-nearly-all": (Dropout(0.9), 3),
    "dropout-per-unit": (Dropout([0.1, 0.5, 0.7, 0.0]), 4),
    "dropout-plane": (Dropout(0.2), (2, 3)),
    "dropout-per-unit-plane": (Dropout([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), (2, 3)),
    "gaussian": (Dropout(strength=0.7), 5),
    "gaussian-per-unit": (Dropout(strength=[0.1, 2.0, 0.0]), 3),
    "grid": (DropBlock(0.4, 3), 9),
    "grid-one-block": (DropBlock(0.4, 4), 4),
    "grid-block-of-one": (DropBlock(0.4, 1), 4),
    "grid-plane": (DropBlock(0.4, 2), (4, 6)),
    "sliding-odd": (DropBlock(0.4, 3, "sliding"), 8),
    "sliding-even": (DropBlock(0.4, 2, "sliding"), 6),
    "sliding-over-half": (DropBlock(0.3, 4, "sliding"), 6),
    "sliding-block-is-width": (DropBlock(0.3, 4, "sliding"), 4),
    "sliding-block-of-one": (DropBlock(0.3, 1, "sliding"), 4),
    "sliding-plane-odd": (DropBlock(0.4, 3, "sliding"), (5, 4)),
    "sliding-plane-even": (DropBlock(0.4, 2, "sliding"), (3, 4)),
    "sliding-plane-block-is-height": (DropBlock(0.4, 3, "sliding"), (3, 5)),
    "keep-exactly": (KeepExactly(2), 5),
    "keep-exactly-one": (KeepExactly(1), 4),
    "keep-exactly-all-but-one": (KeepExactly(3), 4),
    "keep-exactly-plane": (KeepExactly(3), (2, 3)),
    "dropconnect": (DropConnect(0.25), (2, 3)),
    "covariance": (CovarianceNoise([1.0, -2.0, 0.5], CORRELATED), 3),
    "covariance-diagonal": (CovarianceNoise([1.0, 2.0], np.diag([0.3, 0.1])), 2),
    "covariance-singular": (CovarianceNoise([1.0, 1.0], [[1.0, 1.0], [1.0, 1.0]]), 2),
    "covariance-zero": (CovarianceNoise([1.0, 3.0], np.zeros((2, 2))), 2),
    "covariance-plane": (
        CovarianceNoise(np.ones(4), np.diag([0.1, 0.2, 0.3, 0.4])),
        (2, 2),
    ),
}
CERTAIN = {"dropout-nothing", "covariance-zero"}
SLIDING = {name: case for name, case in NOISES.items() if name.startswith("sliding")}

every_noise = pytest.mark.parametrize(
    ("noise", "width"), NOISES.values(), ids=NOISES.keys()
)
every_random_noise = pytest.mark.parametrize(
    ("noise", "width"),
    [case for name, case in NOISES.items() if name not in CERTAIN],
    ids=[name for name in NOISES if name not in CERTAIN],
)
every_sliding_noise = pytest.mark.parametrize(
    ("noise", "width"), SLIDING.values(), ids=SLIDING.keys()
)


def shape_of(width):
    return width if isinstance(width, tuple) else (width,)


@every_noise
def test_sample_is_one_mask_per_draw(noise, width):
    assert noise.sample(width, seed=0).shape == (1, *shape_of(width))
    draws = noise.sample(width, 7, seed=0)
    assert draws.shape == (7, *shape_of(width))
    assert draws.dtype == np.float64


@every_noise
def test_masks_are_zeros_and_ones_unless_gaussian(noise, width):
    binary = np.isin(noise.sample(width, 50, seed=0), (0.0, 1.0))
    gaussian = isinstance(noise, CovarianceNoise) or getattr(noise, "gaussian", False)
    assert binary.all() == (not gaussian)


@every_noise
def test_same_seed_gives_the_same_masks(noise, width):
    draws = noise.sample(width, 20, seed=3)
    np.testing.assert_array_equal(draws, noise.sample(width, 20, seed=3))
    np.testing.assert_array_equal(
        draws, noise.sample(width, 20, np.random.default_rng(3))
    )


@every_random_noise
def test_other_seed_or_a_used_generator_gives_other_masks(noise, width):
    rng = np.random.default_rng(3)
    draws = noise.sample(width, 20, rng)
    assert not np.array_equal(draws, noise.sample(width, 20, rng))
    assert not np.array_equal(draws, noise.sample(width, 20, seed=4))


@every_random_noise
def test_no_seed_gives_fresh_masks(noise, width):
    assert not np.array_equal(noise.sample(width, 200), noise.sample(width, 200))


@every_noise
def test_multipliers_are_masks_divided_by_their_mean(noise, width):
    expected = noise.sample(width, 9, seed=1) / noise.mean(width).reshape(
        shape_of(width)
    )
    np.testing.assert_allclose(
        noise.multipliers(width, 9, seed=1), expected, rtol=1e-15
    )


@every_noise
def test_empirical_mean_agrees(noise, width):
    draws = noise.sample(width, 4000, seed=11).reshape(4000, -1)
    assert_mean_within_standard_errors(draws, noise.mean(width))
    # By the stated variance too: draws with heavy tails have large standard errors of their own.
    error = np.abs(draws.mean(axis=0) - noise.mean(width))
    assert np.all(error <= 5 * np.sqrt(np.diag(noise.covariance(width)) / 4000) + 1e-12)


@every_noise
def test_empirical_covariance_agrees(noise, width):
    centered = noise.sample(width, 4000, seed=12).reshape(4000, -1) - noise.mean(width)
    products = centered[:, :, None] * centered[:, None, :]
    assert_mean_within_standard_errors(products, noise.covariance(width))


@every_noise
def test_moments_equal_enumeration(noise, width):
    mean, covariance = moments(*enumerate_masks(noise, width))
    np.testing.assert_allclose(noise.mean(width), mean, rtol=1e-12)
    np.testing.assert_allclose(noise.covariance(width), covariance, rtol=0, atol=1e-13)


@every_noise
def test_characteristic_is_covariance_over_means(noise, width):
    mean, covariance = moments(*enumerate_masks(noise, width))
    expected = covariance / np.outer(mean, mean)
    np.testing.assert_allclose(
        noise.characteristic(width), expected, rtol=1e-11, atol=1e-12
    )


@every_noise
def test_characteristic_is_symmetric_positive_semidefinite(noise, width):
    Gamma = noise.characteristic(width)
    np.testing.assert_array_equal(Gamma, Gamma.T)
    values = np.linalg.eigvalsh(Gamma)
    assert values[0] >= -1e-13 * max(values[-1], 1)


@every_noise
def test_independent_tells_whether_the_characteristic_is_diagonal(noise, width):
    Gamma = noise.characteristic(width)
    assert noise.independent == (np.count_nonzero(Gamma - np.diag(np.diag(Gamma))) == 0)


@every_noise
def test_relative_variance_is_the_diagonal_of_the_characteristic(noise, width):
    diagonal = np.diag(noise.characteristic(width))
    np.testing.assert_allclose(noise.relative_variance(width), diagonal, rtol=1e-15)


@every_noise
def test_moments_are_the_callers_to_change(noise, width):
    for read in (
        noise.mean,
        noise.covariance,
        noise.characteristic,
        noise.relative_variance,
    ):
        before = read(width).copy()
        read(width)[...] = -7.0
        np.testing.assert_array_equal(read(width), before)


@pytest.mark.parametrize("name", ["gaussian", "covariance"])
def test_gaussian_masks_are_normal(name):
    noise, width = NOISES[name]
    standard = (noise.sample(width, 2000, seed=5) - noise.mean(width)) @ np.linalg.inv(
        np.linalg.cholesky(noise.covariance(width)).T
    )
    assert kstest(standard.ravel(), "norm").pvalue > 1e-4


@pytest.mark.parametrize(
    "noise", [Dropout(0.2), DropBlock(0.2, 2), DropConnect(0.2)], ids=str
)
def test_strength_is_the_odds_of_dropping(noise):
    assert noise.strength == pytest.approx(0.25, rel=1e-15)
    assert type(noise.strength) is float


def test_strength_per_unit():
    np.testing.assert_allclose(Dropout([0.2, 0.5]).strength, [0.25, 1.0], rtol=1e-15)
    assert isinstance(Dropout([0.2, 0.5]).strength, np.ndarray)


def test_gaussian_noise_keeps_its_moments_when_the_callers_arrays_change():
    mean, covariance = np.ones(2), np.eye(2)
    noise = CovarianceNoise(mean, covariance)
    mean[:] = covariance[:] = 9.0
    np.testing.assert_array_equal(noise.mean(2), [1.0, 1.0])
    np.testing.assert_array_equal(noise.covariance(2), np.eye(2))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_exactly_as_many_units_are_kept(count):
    assert (KeepExactly(count).sample(5, 200, seed=0).sum(axis=1) == count).all()
    with pytest.raises(
        overt.InputError, match="count must be at most the width 5, got 6"
    ):
        KeepExactly(6).mean(5)


def test_more_units_than_memory_holds_are_refused_at_once():
    with pytest.raises(overt.InputError, match=r"below 2\^31 units"):
        DropBlock(0.5, 2).sample((2**16, 2**15))


@every_sliding_noise
def test_sliding_average_drop_is_the_nominal_one(noise, width):
    assert 1 - noise.mean(width).mean() == pytest.approx(noise.drop_prob, abs=1e-12)


@pytest.mark.parametrize("drop_prob", [0.0, 1e-9, 0.05, 0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(
    ("width", "block_size"),
    [
        (1, 1),
        (5, 1),
        (5, 5),
        (7, 3),
        (8, 7),
        (30, 4),
        (100, 7),
        ((7, 7), 3),
        ((14, 14), 7),
    ],
    ids=str,
)
def test_seed_probability_inverts_the_average_drop(width, block_size, drop_prob):
    noise = DropBlock(drop_prob, block_size, "sliding")
    survival = (1 - noise.seed_probability(width)) ** block_counts(width, block_size)
    assert 1 - survival.mean() == pytest.approx(drop_prob, abs=1e-12)


def block_counts(width, block_size):
    """How many block positions cover each unit, counted one block at a time."""
    shape = shape_of(width)
    counts = np.zeros(shape)
    for start in np.ndindex(*(n - block_size + 1 for n in shape)):
        counts[tuple(slice(i, i + block_size) for i in start)] += 1
    return counts.ravel()


@pytest.mark.parametrize(
    ("width", "block_size"), [(9, 3), (9, 4), (5, 4), (4, 4), (6, 1)]
)
def test_sliding_survival_follows_the_count_of_covering_blocks(width, block_size):
    noise = DropBlock(0.4, block_size, "sliding")
    i, d, b = np.arange(1, width + 1), width, block_size
    counts = np.minimum.reduce([i, d - i + 1, np.full(d, b), np.full(d, d - b + 1)])
    keep = 1 - noise.seed_probability(width)
    np.testing.assert_allclose(noise.mean(width), keep**counts, rtol=1e-12)


@pytest.mark.parametrize("block_size", [2, 3, 5])
def test_seed_probability_tends_to_the_interior_formula_as_one_over_width(block_size):
    noise = DropBlock(0.5, block_size, "sliding")
    interior = 1 - 0.5 ** (1 / block_size)
    near, far = (noise.seed_probability(d) - interior for d in (300, 600))
    assert near > 0
    assert far / near == pytest.approx(0.5, rel=0.02)


def test_seed_probability_is_the_interior_formula_where_no_unit_is_near_a_border():
    assert DropBlock(0.5, 1, "sliding").seed_probability(6) == pytest.approx(
        0.5, rel=1e-14
    )
    assert DropBlock(0.3, 4, "sliding").seed_probability(4) == pytest.approx(
        0.3, rel=1e-14
    )


def test_grid_seed_probability_is_the_drop_probability():
    assert DropBlock(0.3, 2).seed_probability(8) == 0.3


@pytest.mark.parametrize("width", [(4, 6), (6, 3, 3)], ids=str)
def test_sliding_overlaps_are_products_over_the_axes(width):
    noise = DropBlock(0.4, 2, "sliding")
    keep = 1 - noise.seed_probability(width)
    counts = block_counts(width, 2)
    np.testing.assert_allclose(noise.mean(width), keep**counts, rtol=1e-12)


@pytest.mark.parametrize("base", [0.1, 0.5, 0.8])
@pytest.mark.parametrize(("width", "block_size"), [(1, 1), (12, 1), (12, 3), (64, 8)])
def test_at_width_keeps_with_equation_seven(base, width, block_size):
    adjusted = DropBlock(base, block_size).at_width(width)
    tb, b, d = 1 - base, block_size, width
    assert 1 - adjusted.drop_prob == pytest.approx(
        tb * b / (tb * b + (1 - tb) * d), rel=1e-13
    )
    assert adjusted.block_size == block_size


@pytest.mark.parametrize("width", [1, 7, 50])
def test_at_width_makes_the_strength_grow_with_the_width(width):
    assert Dropout(0.2).at_width(width).strength == pytest.approx(
        0.25 * width, rel=1e-12
    )
    assert DropBlock(0.2, 5).at_width(width).strength == pytest.approx(
        0.05 * width, rel=1e-12
    )
    grown = Dropout(strength=0.3).at_width(width)
    assert (grown.gaussian, grown.strength) == (
        True,
        pytest.approx(0.3 * width, rel=1e-12),
    )


@pytest.mark.parametrize("strength", [0.25, (0.0, 0.5, 3.0)])
def test_strength_and_drop_prob_say_the_same(strength):
    given = overt.Dropout(strength=strength)
    again = overt.Dropout(given.drop_prob)
    np.testing.assert_allclose(again.strength, strength, rtol=1e-12)
    np.testing.assert_allclose(
        given.relative_variance(3), again.relative_variance(3), rtol=1e-12
    )


SIZED = {
    "covariance": (
        CovarianceNoise([1.0, -2.0, 0.5], CORRELATED),
        4,
        "over 3 units but the width",
    ),
    "per unit": (
        Dropout([0.1, 0.2, 0.3]),
        4,
        "drop_prob has 3 entries but there are 4 units",
    ),
    "strengths": (
        Dropout(strength=[0.1, 0.2]),
        3,
        "strength has 2 entries but there are 3 units",
    ),
    "grid": (DropBlock(0.4, 2), 5, "must divide the width"),
    "sliding": (DropBlock(0.4, 6, "sliding"), 5, "at most the width"),
    "keep exactly": (KeepExactly(6), 5, "at most the width"),
}


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize(
    "asked", ["mean", "characteristic", "sample", "relative_variance"]
)
def test_other_widths_are_refused_by_every_method(name, asked):
    noise, width, message = SIZED[name]
    with pytest.raises(overt.InputError, match=message):
        getattr(noise, asked)(width)


def test_gaussian_noise_and_its_name():
    assert repr(Dropout(strength=0.4)) == "Dropout(strength=0.4)"
    assert repr(Dropout(0.25)) == "Dropout(drop_prob=0.25)"
    # Asymmetry counts against the largest entry.
    noise = CovarianceNoise(np.ones(2), [[1.0, 1e-12], [0.0, 1.0]])
    np.testing.assert_array_equal(noise.covariance(2), [[1.0, 0.5e-12], [0.5e-12, 1.0]])
    with pytest.raises(overt.InputError, match="must be symmetric"):
        CovarianceNoise(np.ones(2), [[1.0, 1e-9], [0.0, 1.0]])
    assert not CovarianceNoise(np.ones(2), np.zeros((2, 2))).covariance(2).any()
    for count in (0, -1, 1.5, "2"):
        with pytest.raises(overt.InputError, match="count must be"):
            KeepExactly(count)
    assert type(KeepExactly(np.int8(2)).count) is int
    with pytest.raises(overt.InputError, match="3 units but the width is 4"):
        SIZED["covariance"][0].covariance(4)


def test_covariances_are_taken_as_they_are_or_refused():
    rng = np.random.default_rng(6)
    root, mean = rng.normal(size=(3, 3)), np.array([0.5, -1.0, 2.0])
    noise = CovarianceNoise(mean, root @ root.T)
    np.testing.assert_allclose(noise.covariance(3), root @ root.T, rtol=1e-12)
    normal = np.random.default_rng(7).standard_normal((3, 3))
    drawn = np.linalg.solve(
        normal, noise.sample(3, 3, seed=7) - mean
    )  # the root's transpose
    np.testing.assert_allclose(drawn.T @ drawn, root @ root.T, rtol=1e-9)
    for K in (np.diag([-1e-13, 1e-2]), np.diag([1e-300, 0.0]), 0.1 * np.ones((2, 2))):
        np.testing.assert_array_equal(CovarianceNoise(np.ones(2), K).covariance(2), K)
    for K in (np.diag([-0.5, 1.0, 2.0]), np.diag([-1e-12, 1e-3, 1e-3]), -np.eye(3)):
        with pytest.raises(overt.InputError, match="positive semi-definite"):
            CovarianceNoise(np.ones(3), K)
    for unit in (1e-8, 1.0, 1e8):  # asymmetry counts beside the largest entry
        K = unit * np.array([[1.0, 0.5], [0.5 + 1e-11, 1.0]])
        np.testing.assert_allclose(
            CovarianceNoise(np.ones(2), K).covariance(2), (K + K.T) / 2
        )
        with pytest.raises(overt.InputError, match="must be symmetric"):
            CovarianceNoise(
                np.ones(2), unit * np.array([[1.0, 0.5], [0.5 + 1e-8, 1.0]])
            )
    with pytest.raises(overt.InputError, match="must be symmetric"):
        CovarianceNoise(np.ones(2), [[1.0, 0.5], [0.4, 1.0]])
    with pytest.raises(overt.InputError, match="got 0 at 1"):
        CovarianceNoise([1.0, 0.0], np.eye(2))
    with pytest.raises(overt.InputError, match="must be 2 x 2"):
        CovarianceNoise([1.0, 2.0], np.eye(3))
    for read in (
        Dropout(0.5).mean,
        KeepExactly(1).sample,
        DropConnect(0.5).characteristic,
    ):
        with pytest.raises(overt.InputError, match="width must be"):
            read(())


def test_units_that_are_never_dropped():
    for noise, width in ((DropBlock(0.0, 2, "sliding"), 4), (KeepExactly(1), 1)):
        assert (noise.sample(width, 9, seed=0) == 1).all()
        assert (noise.mean(width) == 1).all()
        assert not noise.characteristic(width).any()
    assert DropBlock(0.0, 2, "sliding").seed_probability(4) == 0


@pytest.mark.parametrize("name", ["dropout", "grid", "sliding-odd", "keep-exactly"])
def test_networks_travel_to_other_processes(name):
    noise, width = NOISES[name]
    target = np.diag([3.0, 2.0, 1.0])
    networks = (
        overt.LinearNetwork(target=target, width=width, noise=noise),
        overt.TiedAutoencoder(target=target, width=width, noise=noise),
    )
    for network in networks:
        copied = pickle.loads(pickle.dumps(network))  # noqa: S301
        assert copied.solve().objective == network.solve().objective
