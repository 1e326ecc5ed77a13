"""The ensemble: its budget, its stages, its strength."""

from functools import cache

import numpy as np
import pytest
import torch
from robust_cases import blobs, points, small_mlp
from torch import nn

from overt.robust import (
    L1,
    L2,
    PGD,
    Linf,
    RobustnessWarning,
    adversarial_train,
    robust_error,
    strongest,
)


@pytest.mark.parametrize("budget", [24, 60, 200, 1000])
@pytest.mark.parametrize("kind", [L1, L2, Linf])
def test_the_ensemble_never_exceeds_its_budget(kind, budget):
    """A radius at which nothing is found, so that every stage runs to its end."""
    model, x = small_mlp(classes=10), points(4, 6)
    y = model(x).argmax(1)
    found = strongest(model, x, y, kind(1e-6), budget=budget, queries=0, warn=False)
    assert not found.success.any()
    assert found.gradients <= budget * len(x)


def test_stages_add_up_to_what_was_found_and_spent(tmp_path):
    model, x = small_mlp(classes=4), points(80, 6)
    y = model(x).argmax(1)
    y[:5] = (y[:5] + 1) % 4  # wrong to begin with
    found = robust_error(model, x, y, L2(0.3), budget=100, queries=100)
    assert sum(stage.points for stage in found.stages) == round(80 * found.value) - 5
    assert sum(stage.gradients for stage in found.stages) == found.gradients
    assert sum(stage.queries for stage in found.stages) == found.queries
    assert all(stage.attack in found.table() for stage in found.stages)
    for name in ("found.json", "found.npz"):
        assert type(found).load(found.save(tmp_path / name)) == found


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_logit_scale_does_not_blind_the_reflected_losses(scale):
    model, x = small_mlp(dtype=torch.float32), points(150, 6, dtype=torch.float32)
    y = model(x).argmax(1)
    base = strongest(model, x, y, L2(0.8), budget=100).robust_accuracy
    scaled = lambda v: scale * model(v)  # noqa: E731
    assert (
        abs(strongest(scaled, x, y, L2(0.8), budget=100).robust_accuracy - base) <= 0.01
    )
    if scale > 1:
        with pytest.warns(RobustnessWarning, match="saturated at"):
            blind = PGD(L2(0.8), steps=50, loss="cross_entropy")(scaled, x, y)
        assert blind.robust_accuracy > base + 0.04


def test_more_freedom_never_hurts_the_attacker():
    model, x = small_mlp(seed=3), points(100, 6)
    y = model(x).argmax(1)
    rates = [
        float(strongest(model, x, y, L2(r), budget=100).success.double().mean())
        for r in (0.2, 0.5, 1.0)
    ]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]
    once = PGD(L2(0.5), steps=4)(model, x, y).success
    often = PGD(L2(0.5), steps=4, restarts=5)(model, x, y).success
    assert bool((often | ~once).all())


def case(n=30):
    model, x = small_mlp(), points(n, 6)
    return model, x, model(x).argmax(1)


def test_targets_of_single_points_follow_them():
    model, x, y = case(40)
    target = (y + 1) % 3
    found = strongest(model, x, y, L2(0.8), target=target, budget=120)
    assert torch.equal(found.success, model(found.x).argmax(1) == target)
    alone = PGD(L2(0.8), steps=30, target=target)
    assert found.success.sum() >= 0.9 * alone(model, x, y).success.sum()
    curve = robust_error(model, x, y, L2(0.8), radii=[0.2, 0.5], attack=alone)
    assert curve.value == pytest.approx(
        float(alone(model, x, y).success.double().mean()), abs=0.05
    )


@cache
def weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
    adam = torch.optim.Adam(model.parameters(), 0.02)
    adversarial_train(model, blobs(300), None, epochs=12, optimizer=adam)
    return model.state_dict()


def trained(dtype=torch.float32):
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
    model.load_state_dict(weights())
    x, y = blobs(80)
    return model.to(dtype), x, y


def test_random_models_are_scored_over_fresh_draws():
    model, x, y = trained()

    def noisy(v):
        return model(v + 0.15 * torch.randn_like(v))

    torch.manual_seed(0)
    with pytest.warns(RobustnessWarning, match="the model is random"):
        found = strongest(noisy, x, y, Linf(0.1), budget=24, queries=0)
    fresh = (
        torch.stack([noisy(found.x).argmax(1) != y for _ in range(400)])
        .double()
        .mean(0)
    )
    spread = float((fresh * (1 - fresh)).mean() / 100 / len(x)) ** 0.5
    assert abs(float(fresh.mean()) - (1 - found.robust_accuracy)) <= 5 * spread * 1.2
    assert torch.equal(found.success, found.rate > 0.5)
    error = robust_error(noisy, x, y, Linf(0.1), samples=8, budget=24, queries=0)
    assert error.warnings == ()  # no warning of what it recommends
    assert error.interval[0] < error.value < error.interval[1]
    assert error.value >= 1 - found.robust_accuracy - 0.08
    with pytest.warns(
        RobustnessWarning, match="the model is random"
    ):  # one point, few outputs
        PGD(Linf(0.1), steps=2)(lambda v: nn.functional.dropout(model(v)), x[:1], y[:1])


def test_radius_zero_is_free_and_probabilities_get_their_sentence():
    model, x, y = trained()
    found = PGD(L2(0.0), steps=9)(model, x, y)
    assert found.gradients == found.queries == 0
    wanted = strongest(model, x, y, Linf(0.15), budget=40, warn=False)

    def soft(v):
        return (8 * model(v)).softmax(1)

    with pytest.warns(RobustnessWarning, match="look like probabilities") as seen:
        strongest(soft, x, y, Linf(0.15), budget=40)
    assert len(seen) == 1
    found = strongest(soft, x, y, Linf(0.15), budget=40, outputs="probabilities")
    assert abs(found.robust_accuracy - wanted.robust_accuracy) <= 0.02


# Models that hide their gradients are noticed, and fooled all the same.


def test_ripples_are_seen_through():
    model, x, y = trained()
    threat = Linf(0.12, (0.0, 1.0))

    def rippled(v):
        return model(v + 0.004 * torch.sin(2000 * v))

    plain = strongest(model, x, y, threat, budget=120, warn=False)
    with pytest.warns(RobustnessWarning, match="gain far less than it promises"):
        found = strongest(rippled, x, y, threat, budget=120, queries=100)
    assert found.robust_accuracy <= plain.robust_accuracy + 0.03
    helped = strongest(
        rippled, x, y, threat, budget=120, queries=0, surrogate=model, warn=False
    )
    assert helped.robust_accuracy <= plain.robust_accuracy + 0.03


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        return v.clone()

    @staticmethod
    def backward(ctx, g):
        return torch.randn(g.shape, generator=torch.Generator().manual_seed(0)).to(g)


MASKS = {
    "inputs rounded": lambda net: lambda v: net((v * 7).round() / 7),
    "cast": lambda net: lambda v: net((v * 7 + 0.5).int().float() / 7),
    "logits rounded": lambda net: lambda v: net(v).round(),
    "random backward": lambda net: lambda v: net(Backward.apply(v)),
}


HIDDEN = {
    "detached": torch.detach,
    "data": lambda v: v.data,
    "shifted": lambda v: (
        v.detach() - (v - v.detach())
    ),  # the gradient has the wrong sign
}


@pytest.mark.parametrize("way", HIDDEN)
def test_gradients_are_found_behind_what_hides_them(way):
    model, x = (
        small_mlp(12, 16, dtype=torch.float32),
        points(40, 12, dtype=torch.float32),
    )
    y, threat = model(x).argmax(1), Linf(0.25)
    plain = strongest(model, x, y, threat, budget=100, queries=0, warn=False)
    with pytest.warns(RobustnessWarning):
        found = strongest(
            lambda v: model(HIDDEN[way](v)), x, y, threat, budget=200, queries=0
        )
    assert 0.2 < plain.robust_accuracy < 0.8
    assert found.robust_accuracy <= plain.robust_accuracy + 0.03
    assert torch.equal(found.success, model(found.x).argmax(1) != y)


@pytest.mark.parametrize("mask", MASKS)
def test_masked_models_are_fooled_without_their_gradients(mask):
    model, x, y = trained()
    masked = MASKS[mask](model)
    threat = Linf(0.25, (0.0, 1.0))
    steps = torch.linspace(-0.25, 0.25, 41)
    grid = torch.cartesian_prod(steps, steps)
    moved = (x[:, None] + grid).clamp(0, 1)
    wrong = (masked(moved.flatten(0, 1)).argmax(1).view(len(x), -1) != y[:, None]).any(
        1
    )
    with pytest.warns(RobustnessWarning):
        found = strongest(masked, x, y, threat, budget=60, queries=200)
    assert found.robust_accuracy <= 1 - float(wrong.double().mean()) + 0.05
    assert found.gradients <= 70 * len(x)


def test_masked_gradients_are_reported_with_their_share():
    model, x = small_mlp(), points(100, 6)

    def staircase(v):
        return model(torch.where(v[:, :1] > 0, v.round(), v))

    y = staircase(x).argmax(1)
    share = float((x[:, 0] > 0).double().mean())
    with pytest.warns(RobustnessWarning, match=f"zero or not a number at {share:.1%}"):
        found = PGD(Linf(0.6), steps=10)(staircase, x, y)
    assert torch.equal(found.flat, x[:, 0] > 0)
    assert bool(found.success[found.flat].any())  # the random start is not blind
    with pytest.warns(RobustnessWarning, match="the model is random"):
        PGD(L2(0.5), steps=2)(lambda v: model(v + 0.1 * torch.randn_like(v)), x, y)


def test_a_budget_of_numpys_unsigned_numbers_wrapped_around():
    model, x = small_mlp(), points(6, 6)
    y = model(x).argmax(1)
    threat = L2(0.3)
    wanted = strongest(model, x, y, threat, budget=40, queries=20, warn=False)
    found = strongest(
        model, x, y, threat, budget=np.uint64(40), queries=np.uint64(20), warn=False
    )
    assert found.gradients == wanted.gradients
    assert torch.equal(found.x, wanted.x)
