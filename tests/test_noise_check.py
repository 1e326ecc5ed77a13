"""A noise of one's own is checked before anything is claimed about it."""

import dataclasses

import numpy as np
import pytest

import overt
from overt.noise import Noise
from overt.results import Certificate

M = np.diag([3.0, 2.0, 1.0])


class OwnNoise(Noise):
    """Masks of mean one whose stated and sampled moments can be chosen apart."""

    def __init__(self, Gamma, draw=None, mean=None, shape=None):
        self.Gamma = np.array(Gamma, dtype=float)
        self.draw = draw
        self.mu = mean
        self.shape = shape

    def mean(self, width):
        return np.ones(width) if self.mu is None else self.mu

    def characteristic(self, width):
        return self.Gamma

    def sample(self, width, size=1, seed=None):
        rng = np.random.default_rng(seed)
        if self.draw is not None:
            return self.draw(rng, size, width)
        values, Q = np.linalg.eigh((self.Gamma + self.Gamma.T) / 2)
        root = Q * np.sqrt(np.maximum(values, 0.0))
        return 1 + rng.standard_normal((size, len(self.Gamma))) @ root.T


PAIRED = [[1.0, 0.5, 0.0], [0.5, 1.0, 0.5], [0.0, 0.5, 1.0]]


def independent_draw(rng, size, width):
    return 1 + rng.standard_normal((size, width))


WRONG = {
    "not positive semi-definite": OwnNoise(-np.eye(3), independent_draw),
    "symmetric": OwnNoise([[1.0, 0.9, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    "must be finite": OwnNoise(np.full((3, 3), np.nan), independent_draw),
    r"must be 3 x 3, got \(2, 2\)": OwnNoise(np.eye(2), independent_draw),
    "sampled masks have covariance": OwnNoise(PAIRED, independent_draw),
    "sampled masks have mean": OwnNoise(
        np.eye(3), lambda g, n, d: 2 + g.standard_normal((n, d))
    ),
    r"sample\(width, size, seed\) must return": OwnNoise(
        np.eye(3), lambda g, n, d: g.standard_normal((n, d + 1))
    ),
    "mean must not be zero": OwnNoise(
        np.eye(3), independent_draw, mean=np.array([1.0, 0.0, 1.0])
    ),
    r"mean\(width\) must have 3 entries": OwnNoise(
        np.eye(3), independent_draw, mean=np.ones(2)
    ),
}


@pytest.mark.parametrize(("words", "noise"), WRONG.items(), ids=WRONG.keys())
def test_a_wrong_noise_is_refused_in_words(words, noise):
    with pytest.raises(overt.InputError, match=words):
        overt.noise.check(noise, 3)
    with pytest.raises(overt.InputError, match=words):
        overt.LinearNetwork(M, 3, noise)
    with pytest.raises(overt.InputError, match=words):
        overt.TiedAutoencoder(M, 3, noise)


@pytest.mark.parametrize("words", [words for words in WRONG if "sample" not in words])
def test_penalty_refuses_the_noise_that_a_network_refuses(words):
    with pytest.raises(overt.InputError, match=words):
        overt.penalty.shallow(M, M, WRONG[words])


def test_a_noise_whose_sample_takes_no_seed_is_refused_in_words():
    class Seedless(OwnNoise):
        def sample(self, width, size=1):
            return np.ones((size, width))

    with pytest.raises(overt.InputError, match="sample must take"):
        overt.LinearNetwork(M, 3, Seedless(np.eye(3)))


class NotArrays(OwnNoise):
    """A noise one of whose methods returns something other than an array."""

    def __init__(self, method, value):
        super().__init__(np.eye(3))
        setattr(self, method, lambda *args, **kwargs: value)


@pytest.mark.parametrize("value", [None, [1.0, 1.0, 1.0], "ones", np.array(["a"])])
@pytest.mark.parametrize(
    "method", ["mean", "characteristic", "relative_variance", "sample"]
)
def test_a_noise_that_returns_no_array_of_numbers_is_refused_in_words(method, value):
    noise = NotArrays(method, value)
    words = rf"NotArrays: {method}\(.*\) must return a NumPy array of numbers, got"
    with pytest.raises(TypeError, match=words):
        overt.LinearNetwork(M, 3, noise)
    with pytest.raises(TypeError, match=words):
        overt.DeepLinearNetwork(M, (3, 3), noise=noise)


RIGHT = {
    "correlated": OwnNoise(PAIRED),
    "singular": OwnNoise(np.ones((3, 3))),
    "rarely dropped": OwnNoise(
        np.eye(3) * (0.001 / 0.999),
        lambda g, n, d: (g.random((n, d)) < 0.999).astype(float),
        mean=np.full(3, 0.999),
    ),
    "heavy tails": OwnNoise(
        np.eye(3) * 49.0,
        lambda g, n, d: (g.random((n, d)) < 0.02) / 0.02,
    ),
    "a subclass": type("Mine", (overt.Dropout,), {})(0.3),
}


@pytest.mark.parametrize("noise", RIGHT.values(), ids=RIGHT.keys())
def test_a_right_noise_passes_and_both_penalties_agree(noise):
    overt.noise.check(noise, 3)
    U, V = np.random.default_rng(0).standard_normal((2, 3, 3))
    net = overt.LinearNetwork(M, 3, noise)
    assert net.penalty(U, V) == pytest.approx(
        float(overt.penalty.shallow(U, V, noise)), rel=1e-12
    )


def test_units_on_a_plane_are_checked_too():
    overt.noise.check(overt.DropBlock(0.3, 2, "sliding"), (4, 5))
    overt.noise.check(overt.DropConnect(0.3), (4, 5))


def test_an_own_noise_shows_what_it_holds():
    class Ring(OwnNoise):
        pass

    assert repr(Ring(np.eye(2))).startswith("Ring(Gamma=")


def test_a_bound_above_the_objective_is_an_error_of_ours_not_a_certificate():
    with pytest.raises(
        overt.InternalError, match=r"lower bound 2\.0 is above the objective 1\.0"
    ):
        Certificate(1.0, 2.0, -1.0, -0.5, 0.0)
    assert Certificate(1.0, 1.0 + 1e-16, -1e-16, -1e-16, 0.0).gap < 0  # rounding


@pytest.mark.parametrize(
    "noise",
    [
        overt.Dropout(0.3),
        overt.Dropout([0.1, 0.2]),
        overt.Dropout(strength=0.7),
        overt.Dropout(strength=[0.1, 2.0]),
        overt.KeepExactly(1),
        overt.DropBlock(0.2, 2),
        overt.DropConnect(0.2),
    ],
    ids=repr,
)
def test_a_noise_can_be_copied_with_a_change(noise):
    assert dataclasses.replace(noise) == noise
    if hasattr(noise, "drop_prob"):
        changed = dataclasses.replace(noise, drop_prob=0.45)
        assert changed.drop_prob == 0.45
        assert getattr(changed, "gaussian", False) == getattr(noise, "gaussian", False)


def test_covariance_noises_with_the_same_moments_are_equal():
    first, second = (overt.CovarianceNoise([1.0, 2.0], np.eye(2)) for _ in range(2))
    other = overt.CovarianceNoise([1.0, 2.0], 2 * np.eye(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != other


def test_all_cores_train_a_network():
    net = overt.LinearNetwork(M, 3, overt.Dropout(0.5))
    run = net.train(steps=20, seeds=2, n_jobs=-1)
    assert run == net.train(steps=20, seeds=2, n_jobs=1)
