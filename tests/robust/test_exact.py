import itertools

import numpy as np
import pytest
import torch
from robust_cases import points, small_mlp
from scipy.optimize import minimize
from torch import nn

from overt import InputError
from overt.robust import L1, L2, PGD, Linf, exact, robust_error, strongest, two_layer
from overt.robust.evaluate import interval
from overt.robust.two_layer import LeakyNetwork, algorithm_5, algorithm_6

THREATS = [L1(0.8), L2(0.5), Linf(0.25), L2(0.5, (-1.5, 1.5)), Linf(0.25, (-1.5, 1.5))]


def exactly(model, x, y, threat, **more):
    first, last = model[0], model[2]
    return exact.two_layer(
        first.weight.detach(), last.weight.detach(), x, y, threat,
        hidden_bias=first.bias.detach(), top_bias=last.bias.detach(), **more,
    )  # fmt: skip


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_attacks_come_close_to_the_exact_robust_error(threat, classes):
    model = small_mlp(4, 6, classes, seed=5)
    x = points(10, 4, seed=11).clamp(-1.5, 1.5)
    y = (model(x)[:, 0] > 0).long() if classes == 1 else model(x).argmax(1)
    truth = exactly(model, x, y, threat)
    found = strongest(model, x, y, threat, budget=400, warn=False)
    assert 0 < truth.value < 1
    assert not bool((found.success & ~torch.from_numpy(truth.fooled)).any())  # a proof is a proof
    assert abs(float(found.success.double().mean()) - truth.value) <= 0.01
    # The certificate, recomputed: witnesses are allowed and fool; the others are bounded.
    moved = torch.from_numpy(truth.x)
    assert float(threat.size(moved - x).max()) <= threat.radius * (1 + 1e-6)
    wrong = (model(moved)[:, 0] > 0).long() != y if classes == 1 else model(moved).argmax(1) != y
    assert np.array_equal(wrong.numpy(), truth.fooled)
    assert (truth.bound[~truth.fooled] < 0).all()
    assert not truth.undecided.any()


def test_exact_lead_equals_enumeration_of_activation_patterns():
    """A third oracle: solve one convex program for each pattern of active units."""
    rng = np.random.default_rng(0)
    W, A = rng.normal(size=(3, 2)), rng.normal(size=(2, 3))
    x = rng.normal(size=2)
    net = lambda v: A @ np.maximum(W @ v, 0)  # noqa: E731
    y = int(np.argmax(net(x)))
    for threat, norm in ((L2(0.7), 2), (Linf(0.4), np.inf)):
        best = -np.inf
        for pattern in itertools.product((0, 1), repeat=3):
            s = np.array(pattern)
            linear = (A[1 - y] - A[y]) * s @ W
            limits = [{"type": "ineq", "fun": lambda d, s=s: (2 * s - 1) * (W @ (x + d))}]
            limits.append(
                {
                    "type": "ineq",
                    "fun": lambda d, r=threat.radius, p=norm: r - np.linalg.norm(d, p),
                }
            )
            for begin in rng.uniform(-0.3, 0.3, (2, 2)):
                out = minimize(lambda d, g=linear: -g @ (x + d), begin, constraints=limits)
                d = out.x * min(1, threat.radius / max(np.linalg.norm(out.x, norm), 1e-12))
                f = net(x + d)
                best = max(best, f[1 - y] - f[y])
        truth = exact.two_layer(W, A, x[None], [y], threat, level=1e6)  # never decided early
        assert truth.lead[0] <= truth.bound[0] + 1e-9
        assert abs(truth.bound[0] - best) < 2e-3
        assert truth.bound[0] >= best - 1e-6


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


def test_algorithm_5_is_pgd_with_the_reflected_loss_and_raw_steps():
    from overt.robust import Constant

    net = network()
    model = nn.Sequential(
        nn.Linear(3, 6, bias=False), nn.LeakyReLU(0.4), nn.Linear(6, 1, bias=False)
    )
    model.double()
    model[0].weight.data = torch.tensor(net.W)
    model[2].weight.data = torch.tensor(net.a)[None]
    x, y = separable(6, 3)
    size = 0.1
    general = PGD(L2(0.6), steps=29, schedule=Constant(size), momentum=0.0, normalise=False,
                  early_exit=False)  # fmt: skip
    found = general(model, x, y, warn=False)
    for i in range(6):
        printed = algorithm_5(net, x[i], int(y[i]), 0.6, size, 30)
        assert np.allclose(net.value(printed), net.value(found.x[i].numpy()))


def test_algorithm_6_learns_a_robust_network():
    x, y = separable(200, 4)
    net = network(width=8, seed=1)
    attack = lambda n, v, t: algorithm_5(n, v, t, 0.2, n.attack_step_size(), 10)  # noqa: E731
    *_, last = algorithm_6(net, zip(x, y, strict=True), 0.1, attack)
    before = two_layer.beta_robust_error(net, x[:25], y[:25], 0.2).value
    after = exact.two_layer(last.W, last.a, x[:25], y[:25], L2(0.2), slope=0.4).value
    assert after < before or after == 0
    assert after <= 0.1


def test_plans_follow_the_corrected_formulas():
    given = {"epsilon": 0.1, "margin": 1.0, "radius": 0.25, "reach": 2.0, "width": 16}
    plan = two_layer.theorem_16(**given, slope=0.5, kappa=0.5, omega=3.0)
    assert plan.train_steps == int(
        np.ceil(64 * 2.25**2 * (1 + 3 * 0.5 * 2 * 0.1) / (0.75**2 * 0.25 * 0.01))
    )
    assert plan.train_step_size == pytest.approx(1 / (16 * 0.25 * 2.25**2))
    assert plan.beta == pytest.approx(4 * 0.25 * 0.5 * 2)
    assert plan.attack_steps(3.0) == int(np.ceil(8 * 0.0625 * 0.25 * 16 * 9 / 0.1))
    linear = two_layer.corollary_4(**given)
    assert linear.beta == 0
    assert linear.train_steps <= 128 * 2.25**2 / (0.75**2 * 0.01)
    chosen = two_layer.corollary_5(**given, beta=0.3, slope=0.5, omega=3.0)
    assert chosen.beta == pytest.approx(0.3)
    assert chosen.attack_work == pytest.approx(0.3**2 / (2 * 0.25 * 0.1))
    with pytest.raises(InputError, match="below the margin"):
        two_layer.corollary_4(**(given | {"radius": 1.0}))


def test_separation_finds_the_margin():
    x, y = separable(60, 5)
    gamma, v = two_layer.separation(x, y)
    assert np.isclose(np.linalg.norm(v), 1)
    assert np.isclose((y * (x @ v)).min(), gamma)
    rng = np.random.default_rng(0)
    others = rng.normal(size=(20_000, 3))
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    assert (y * (others @ x.T)).min(1).max() <= gamma + 1e-9
    with pytest.raises(InputError, match="separable"):
        two_layer.separation(np.vstack([x, -x]), np.concatenate([y, y]))


def test_robust_error_and_its_curve():
    model, x = small_mlp(seed=4), points(120, 6, seed=2)
    y = model(x).argmax(1)
    y[:6] = (y[:6] + 1) % 3
    one = robust_error(model, x, y, L2(0.5), budget=100, warn=False)
    curve = robust_error(model, x, y, L2(0.5), radii=[0.1, 0.25, 1.0], budget=100, warn=False)
    assert curve.radii.tolist() == [0.1, 0.25, 0.5, 1.0]
    assert (np.diff(curve.errors) >= 0).all()
    assert curve.clean == 0.05
    assert curve.value == curve.errors[2]
    assert curve.value >= one.value - 0.01
    assert one.interval[0] < one.value < one.interval[1]
    assert np.mean(curve.smallest <= 0.25) == curve.errors[1]
    own = robust_error(model, x, y, L2(0.5), attack=PGD(L2(9.0), steps=20), warn=False)
    assert own.value <= one.value + 0.01


def test_intervals_cover():
    from scipy.stats import binom

    for p in (0.0, 0.03, 0.5, 1.0):
        counts = np.arange(41)
        inside = [low <= p <= high for low, high in (interval(int(k), 40, 0.9) for k in counts)]
        assert binom.pmf(counts, 40, p)[inside].sum() >= 0.9


def test_a_tie_counts_as_the_prediction_does():
    """Dead units make all logits equal; attack and proof must then agree on who is fooled."""
    W, A, b = np.eye(2), np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.0, 0.0])
    model = lambda v: torch.relu(v @ torch.eye(2).double()) @ torch.from_numpy(A).T  # noqa: E731
    x = np.array([[-0.5, 0.2], [0.2, -0.5]])
    y = model(torch.from_numpy(x)).argmax(1)
    assert y.tolist() == [1, 0]
    truth = exact.two_layer(W, A, x, y, Linf(0.3), hidden_bias=b)
    found = strongest(model, x, y, Linf(0.3), budget=60, warn=False)
    assert truth.lead.tolist() == [0.0, 0.0]
    assert truth.fooled.tolist() == found.success.tolist() == [True, False]
    assert truth.undecided.tolist() == [False, True]  # class 0 wins the tie, and no more is proved
    assert truth.status == "finished"
