"""Leaky-ReLU networks of the thesis, chapter 6: gradients, attack, training, margins."""

import math

import numpy as np
import pytest

from overt import InputError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from overt.papers import leaky_networks as leaky  # noqa: E402
from overt.papers.leaky_networks import (  # noqa: E402
    LeakyNetwork,
    reflected_ascent,
    train_online,
)
from overt.robust import L2, PGD, exact_error  # noqa: E402


def network(width=6, inputs=3, slope=0.4, seed=0, kappa=0.5):
    rng = np.random.default_rng(seed)
    return LeakyNetwork(
        rng.normal(size=(width, inputs)), kappa * rng.choice([-1.0, 1.0], width), slope
    )


def separable(n, seed, inputs=3, margin=0.5):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, inputs))
    y = np.where(x[:, 0] > 0, 1, -1)
    x[:, 0] += margin * y
    return x, y


def test_gradients_are_those_of_autograd():
    net, x = network(), np.array([0.3, -1.0, 2.0])
    W, v = (torch.tensor(a, requires_grad=True) for a in (net.W, x))
    z = W @ v
    value = torch.maximum(net.slope * z, z) @ torch.tensor(net.a)
    value.backward()
    assert np.isclose(value.item(), net.value(x))
    assert np.allclose(v.grad, net.input_gradient(x))
    assert np.allclose(W.grad, net.weight_gradient(x))


def test_the_printed_attack_is_pgd_with_the_reflected_loss_and_raw_steps():
    net = network()
    model = nn.Sequential(
        nn.Linear(3, 6, bias=False), nn.LeakyReLU(0.4), nn.Linear(6, 1, bias=False)
    )
    model.double()
    model[0].weight.data = torch.tensor(net.W)
    model[2].weight.data = torch.tensor(net.a)[None]
    x, y = separable(6, 3)
    size = 0.1
    general = PGD(
        L2(0.6),
        steps=29,
        schedule="constant",
        step_size=size,
        normalize=False,
        early_exit=False,
    )
    found = general(model, x, y, warn=False)
    for i in range(6):
        printed = reflected_ascent(net, x[i], int(y[i]), 0.6, size, 30)
        assert np.allclose(net.value(printed), net.value(found.x[i].numpy()))


def test_the_printed_training_learns_a_robust_network():
    x, y = separable(200, 4)
    net = network(width=8, seed=1)
    attack = lambda n, v, t: reflected_ascent(n, v, t, 0.2, n.attack_step_size(), 10)  # noqa: E731
    *_, last = train_online(net, zip(x, y, strict=True), 0.1, attack)
    before = leaky.beta_robust_error(net, x[:25], y[:25], 0.2).value
    after = exact_error(last.module(), x[:25], y[:25], L2(0.2)).value
    assert after < before or after == 0
    assert after <= 0.1


def test_separation_finds_the_margin():
    x, y = separable(60, 5)
    gamma, v = leaky.separation(x, y)
    assert np.isclose(np.linalg.norm(v), 1)
    assert np.isclose((y * (x @ v)).min(), gamma)
    rng = np.random.default_rng(0)
    others = rng.normal(size=(20_000, 3))
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    assert (y * (others @ x.T)).min(1).max() <= gamma + 1e-9
    with pytest.raises(InputError, match="separable"):
        leaky.separation(np.vstack([x, -x]), np.concatenate([y, y]))
    with pytest.raises(InputError, match="separable"):
        leaky.separation(np.zeros((2, 3)), [1, -1])


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_separation_does_not_depend_on_units(scale):
    x, y = np.array([[1e-3, 1.0], [-1e-3, 1.0]]), [1, -1]
    gamma, v = leaky.separation(scale * x, y)
    assert gamma == pytest.approx(1e-3 * scale, rel=1e-6)
    assert np.allclose(v, [1, 0], atol=1e-6)


def test_beta_of_choice():
    net, (x, y) = network(), separable(12, 6)
    errors = [
        leaky.beta_robust_error(net, x, y, 0.3, beta).value
        for beta in (0.0, 0.05, 0.5, None)
    ]
    assert errors[0] == exact_error(net.module(), x, y, L2(0.3)).value
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[2]
    assert errors[-1] == leaky.beta_robust_error(net, x, y, 0.3, net.beta(0.3)).value


PLAN = {
    "epsilon": 0.13,
    "margin": 1.1,
    "radius": 0.27,
    "reach": 2.3,
    "width": 13,
    "slope": 0.41,
    "kappa": 0.57,
    "omega": 3.7,
}


def test_the_plan_follows_the_corrected_formulas():
    plan = leaky.training_plan(**PLAN)
    root = 0.57 * np.sqrt(13)
    steps = 64 * 2.57**2 * (1 + 3.7 * 1.1 * 0.41 * root * 0.13)
    steps /= (1.1 - 0.27) ** 2 * 0.41**2 * 0.13**2
    assert plan.train_steps == math.ceil(steps)
    assert plan.train_step_size == pytest.approx(1 / (root**2 * 2.57**2))
    assert plan.attack_work == pytest.approx(8 * 0.27**2 * root**2 / 0.13)
    assert plan.attack_steps(3.1) == math.ceil(plan.attack_work * 3.1**2)
    assert plan.attack_steps(1e-9) == 1
    net = network(width=6, slope=0.4, kappa=0.5)
    assert net.attack_step_size() == pytest.approx(1 / (0.25 * 6 * np.sum(net.W**2)))
    assert net.beta(0.3) == pytest.approx(4 * 0.3 * 0.6 * 0.5 * math.sqrt(6))


def test_a_radius_beyond_the_margin_is_refused():
    with pytest.raises(InputError, match="below the margin"):
        leaky.training_plan(**(PLAN | {"radius": 1.1}))
