"""Models that hide their gradients are noticed, and fooled all the same."""

from functools import cache

import pytest
import torch
from robust_cases import blobs, points, small_mlp
from torch import nn

from overt.robust import L2, PGD, Linf, RobustnessWarning, adversarial_train, strongest


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
