"""What used to be reported as robust and is not: rounding, masking, randomness, lost warnings."""

import json
from functools import cache

import numpy as np
import pytest
import torch
from robust_cases import blobs, linear_model, points, small_mlp
from torch import nn

from overt.robust import (
    L1,
    L2,
    PGD,
    Linf,
    RobustnessWarning,
    Square,
    Targeted,
    adversarial_train,
    robust_error,
    strongest,
)

KINDS = [L1, L2, Linf]


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


@pytest.mark.parametrize(("kind", "radius"), [(L1, 0.1), (L2, 0.05), (Linf, 0.02)])
def test_inputs_far_from_zero_are_no_safer(kind, radius):
    torch.manual_seed(0)
    model = nn.Linear(10, 2)
    x = 1000 + torch.rand(200, 10)
    with torch.no_grad():
        model.bias -= model(x).mean(0)  # so that the boundary passes through the points
    y = model(x).argmax(1)
    single = PGD(kind(radius), steps=20)(model, x, y)
    twin = nn.Linear(10, 2).double()
    twin.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
    double = PGD(kind(radius), steps=20)(twin, x.double(), twin(x.double()).argmax(1))
    assert 0.2 < double.robust_accuracy < 0.9
    assert abs(single.robust_accuracy - double.robust_accuracy) <= 0.05
    size = kind(radius).size(single.x.double() - x.double())
    assert float(size.max()) <= radius  # as stored, in exact numbers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_are_attacked_in_single_precision(dtype):
    model, x, y = trained()
    wide = strongest(model, x, y, Linf(0.15, (0.0, 1.0)), budget=40, warn=False)
    half = trained(dtype=dtype)[0]
    for given in (x, x.to(dtype)):
        found = strongest(half, given, y, Linf(0.15, (0.0, 1.0)), budget=40, warn=False)
        assert found.x.dtype == given.dtype
        assert abs(found.robust_accuracy - wide.robust_accuracy) <= 0.04
        assert float((found.x.double() - given.double()).abs().max()) <= 0.15
        assert torch.equal(found.success, half(found.x.to(dtype)).argmax(1) != y)


def test_warnings_of_every_radius_are_kept(tmp_path):
    model, x, y = trained()

    def fragile(v):  # breaks down far from the points that were given
        far = (v[:, None] - x).abs().amax(2).amin(1, keepdim=True) > 0.05
        return torch.where(far, torch.nan, model(v))

    with pytest.warns(RobustnessWarning, match="NaN or infinity") as seen:
        found = robust_error(
            fragile, x, y, Linf(0.2), radii=[0.001, 0.01], budget=24, queries=20
        )
    assert [str(w.message) for w in seen] == list(found.warnings)
    stored = json.loads(found.save(tmp_path / "attack.json").read_text())
    assert any("NaN or infinity" in text for text in stored["warnings"])
    quiet = robust_error(fragile, x, y, Linf(0.2), budget=24, queries=20, warn=False)
    assert any("NaN or infinity" in text for text in quiet.warnings)


def test_points_of_the_target_class_are_no_errors():
    model, x, y = trained()
    attack = PGD(Linf(0.01), steps=5, criterion=Targeted(1))
    found = robust_error(model, x, y, Linf(0.01), attack=attack)
    assert found.clean == 0
    assert found.value <= float((y != 1).double().mean())
    assert (
        robust_error(model, x[y == 1], y[y == 1], Linf(0.5), attack=attack).value == 0
    )


class Hiding(nn.Module):
    """A module that does not know of the one that it calls."""

    def __init__(self, net):
        super().__init__()
        self.parts = [net]

    def forward(self, v):
        return self.parts[0](v)


def test_modules_inside_functions_are_switched_and_left_alone():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)
    )
    x = points(86, 6, dtype=torch.float32)
    net(x)
    y = net.eval()(x).argmax(1)
    wanted = PGD(L2(0.8), steps=10)(net, x, y)
    net.train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    for model in (lambda v: net(v), net.forward, Hiding(net)):
        inside = PGD(L2(0.8), steps=10)(model, x, y)
        assert torch.equal(inside.x, wanted.x)
        assert torch.equal(inside.success, wanted.success)
    assert all(m.training for m in net.modules())
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    PGD(L2(0.8), steps=3)(lambda v: net(v), x[:1], y[:1])  # a single point


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(12,), (1, 3, 4), (3, 2, 2)])
def test_search_without_gradients_stays_inside_and_finds(kind, shape):
    model, x = (
        nn.Sequential(nn.Flatten(), linear_model(3, 12)),
        points(30, 12).view(30, *shape),
    )
    y, radius = model(x).argmax(1), {L1: 1.2, L2: 0.6, Linf: 0.3}[kind]
    threat = kind(radius, (-3.0, 3.0))
    x = x.clamp(-3, 3)
    found = Square(threat, queries=100)(model, x, y, warn=False)
    assert found.gradients == 0
    assert found.queries <= 101 * 30
    assert float(threat.size((found.x - x).flatten(1)).max()) <= radius
    assert found.x.abs().max() <= 3
    best = PGD(threat, steps=30)(model, x, y, warn=False)
    assert int(found.success.sum()) >= 0.7 * int(best.success.sum()) > 3
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    again = Square(threat, queries=100, batch_size=7)(
        model, x[order], y[order], warn=False
    )
    assert torch.equal(again.success, found.success[order])


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


def test_gradients_count_every_row_that_was_differentiated():
    model, x, y = trained()
    rows = []

    def counting(v):
        if v.requires_grad:
            rows.append(len(v))
        return model(v)

    found = PGD(Linf(0.1), steps=12, loss="reflected_greedy")(counting, x, y)
    assert found.gradients == sum(rows)
    assert np.isfinite(found.loss.numpy()).all()
