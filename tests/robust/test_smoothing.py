"""Randomized smoothing: radii against closed forms, enumeration and samples."""

import itertools
from statistics import NormalDist

import numpy as np
import pytest
import torch
from robust_cases import points
from torch import nn

import overt
from overt import InputError
from overt.robust import Smoothed, smoothed
from overt.robust.certify import smoothing


def halfspace(w, b=0.0):
    """Two classes, the second where <w, x> > b."""
    w = torch.as_tensor(w, dtype=torch.float64)
    return lambda x: torch.stack([torch.zeros(len(x)), x @ w - b], 1)


def test_radii_of_a_linear_classifier_are_near_its_distances_and_below():
    # p = Phi(margin / (sigma |w|)), so that sigma Phi^-1(p) is the distance itself.
    w = np.array([1.0, -2.0, 0.5])
    x, sigma = points(40, 3), 0.7
    distance = np.abs(x.numpy() @ w) / np.linalg.norm(w)
    found = smoothed(halfspace(w), x, sigma, draws=4000)
    sure = found.predicted >= 0
    assert (found.predicted == (x.numpy() @ w > 0))[sure].all()
    assert (found.radius <= distance).all()
    share = np.array([NormalDist().cdf(d / sigma) for d in distance])
    error = np.sqrt(share * (1 - share) / 4000) + 1 / 4000
    assert (
        share - found.lower <= 8.5 * error
    ).all()  # three deviations and five of sampling
    assert (found.radius[~sure] == 0).all()
    assert (distance[~sure] < 0.1).all()


NOISES = [
    overt.Dropout(0.9),
    overt.Dropout((0.95, 0.9, 0.8, 0.95, 0.9)),
    overt.KeepExactly(1),
]


def probabilities(noise, d):
    """Every mask over d features with its probability."""
    masks = np.array(list(itertools.product((0.0, 1.0), repeat=d)))
    if isinstance(noise, overt.KeepExactly):
        return masks, (masks.sum(1) == noise.count) / d
    q = np.broadcast_to(noise.drop_prob, d)
    return masks, np.prod(np.where(masks == 1, 1 - q, q), 1)


@pytest.mark.parametrize("noise", NOISES, ids=["one", "each", "exactly"])
def test_certificates_of_masks_hold_for_every_change_by_enumeration(noise):
    d = 5
    masks, chance = probabilities(noise, d)
    model = halfspace(np.ones(d), -0.5)

    def share(v):  # exact probability of the class 1
        scaled = masks * v / noise.mean(d)
        return float(chance @ (model(torch.from_numpy(scaled)).argmax(1).numpy() == 1))

    x = torch.ones(1, d, dtype=torch.float64)
    found = smoothed(model, x, noise, draws=3000)
    k = int(found.radius[0])
    assert found.predicted[0] == 1
    assert found.norm == "l0"
    assert k >= 1
    assert found.lower[0] <= share(x.numpy()[0]) <= found.lower[0] + 0.02
    for changed in itertools.combinations(range(d), k):
        for values in itertools.product((-100.0, 0.0), repeat=k):
            v = x.numpy()[0].copy()
            v[list(changed)] = values
            assert share(v) > 0.5


@pytest.mark.parametrize("noise", NOISES, ids=["one", "each", "exactly"])
def test_the_radius_is_the_largest_that_the_worst_model_allows(noise):
    # A model that gives class 1 unless it sees a changed feature: p = 1, p' = P(all dropped).
    d = 5
    masks, chance = probabilities(noise, d)
    allowed = 0
    for k in range(1, d + 1):
        unseen = [
            chance @ (masks[:, list(c)] == 0).all(1)
            for c in itertools.combinations(range(d), k)
        ]
        allowed = k if min(unseen) > 0.5 + 1e-2 else allowed
    x = torch.ones(1, d, dtype=torch.float64)
    found = smoothed(lambda v: torch.stack([0 * v[:, 0], 0 * v[:, 0] + 1], 1), x, noise)
    assert found.radius[0] == allowed


def test_what_lies_on_the_edge_is_not_certified():
    """P(E) = 3/2 - p, in numbers that are stored exactly, is not above it."""
    cases = ((overt.KeepExactly(1), (0.75, 1.0)), (overt.Dropout(0.75), (0.75, 0.9375)))
    for noise, edges in cases:
        reach = smoothing._reach(noise, (4,))
        for k, p in enumerate(edges):
            assert (reach(p), reach(p + 1e-9)) == (k, k + 1)


def test_the_limit_covers_as_often_as_it_says():
    p, x = NormalDist().cdf(0.5), torch.full((200, 1), 0.5, dtype=torch.float64)
    found = smoothed(halfspace([1.0]), x, 1.0, draws=50, guesses=5, confidence=0.8)
    wrong = float(np.mean(found.lower > p))
    assert wrong <= 0.2 + 5 * (0.2 * 0.8 / 200) ** 0.5


@pytest.mark.parametrize("confidence", [0.9, 0.999])
def test_the_limit_of_a_class_that_is_always_seen_is_exact(confidence):
    """All of n samples: p^n >= 1 - confidence bounds p from one side."""
    x = torch.ones(4, 2, dtype=torch.float64)

    def second(v):
        return torch.stack([0 * v[:, 0], 0 * v[:, 0] + 1], 1)

    found = smoothed(second, x, 0.5, draws=60, confidence=confidence)
    limit = (1 - confidence) ** (1 / 60)
    np.testing.assert_allclose(found.lower, limit, rtol=1e-9)
    radius = 0.5 * NormalDist().inv_cdf(limit)
    np.testing.assert_allclose(found.radius, radius, rtol=1e-9)


def test_results_are_kept_and_shares_follow_the_classes(tmp_path):
    x = torch.tensor([[3.0], [0.01], [-3.0]])
    net = nn.Sequential(nn.Linear(1, 2), nn.Dropout()).train()
    found = smoothed(net, x, 0.5, seed=1)
    assert net.training
    again = smoothed(halfspace([1.0]), x.double(), 0.5, batch_size=7)
    assert again == smoothed(halfspace([1.0]), x.double(), 0.5)
    assert again.predicted.tolist() == [1, -1, 0]  # between the classes it abstains
    assert again.errors([1, 1, 1], [0.0, 0.5, 9.0]).round(2).tolist() == [
        0.67,
        0.67,
        1.0,
    ]
    assert Smoothed.load(found.save(tmp_path / "s.json")) == found


def test_nothing_is_certified_where_there_are_no_numbers():
    x = torch.ones(2, 3)
    found = smoothed(lambda v: torch.where(v != x[0], torch.nan, v), x, 0.1, draws=20)
    assert (found.predicted == -1).all()


@pytest.mark.parametrize(
    ("noise", "more", "message"),
    [
        (0.0, {}, "noise must be"),
        ("gauss", {}, "noise must be a positive number.*Dropout.*KeepExactly"),
        (overt.Dropout(strength=1.0), {}, "noise must be a positive number"),
        (
            overt.Dropout((0.5, 0.5)),
            {},
            "drop_prob has 2 entries but there are 3 units",
        ),
        (overt.KeepExactly(9), {}, "count"),
        (0.1, {"confidence": 1.0}, "confidence must lie between 0.5 and 1"),
        (0.1, {"draws": 0}, "draws must be"),
        (0.1, {"x": torch.ones(2, 3).int()}, "x must hold floating-point numbers"),
    ],
)
def test_mistakes_are_named(noise, more, message):
    x = more.pop("x", torch.ones(2, 3))
    with pytest.raises(InputError, match=message):
        smoothed(nn.Linear(3, 2), x, noise, **more)


def test_a_logit_that_is_infinite_is_a_vote_for_nobody():
    def model(v):
        return torch.stack([0 * v[:, 0], torch.where(v[:, 0] == 1, 0.0, torch.inf)], 1)

    found = smoothed(model, torch.ones(1, 2).double(), 0.5, draws=50, guesses=10)
    assert (found.predicted.tolist(), found.lower.tolist()) == ([-1], [0.0])
