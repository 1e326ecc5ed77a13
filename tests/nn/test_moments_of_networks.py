"""Moments of models as they occur: against all masks, against sampling, and nothing in silence."""

import copy
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from nn_oracles import DropConnectConv2d, exact_moments, outputs_under_masks
from torch import nn
from torch.nn import functional

from overt.nn import (
    CovarianceDropout,
    DropBlock2d,
    DropConnectLinear,
    Dropout,
    explicit_penalty,
    mc_moments,
    predictive_moments,
    without_noise,
)

Linear = nn.Linear


class Net(nn.Module):
    """A forward pass written as a function of the module and its inputs."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.run(self, *args, **kwargs)


def mlp(*noises, width=48):
    sizes = [20] + [width] * len(noises)
    parts = [
        part
        for a, b, noise in zip(sizes, sizes[1:], noises, strict=False)
        for part in (Linear(a, b), nn.ReLU(), noise)
    ]
    return nn.Sequential(*parts, Linear(width, 4))


def hidden(self, x):
    return torch.relu(self.a(x))


def two(run, **parts):
    return Net(run, a=Linear(20, 48), b=Linear(48, 48), c=Linear(48, 4), **parts)


def by_hand(self, x):
    h = hidden(self, x)
    keep = torch.rand(h.shape) > 0.4
    h = hidden_of(self.b, h * keep / 0.6)
    return self.c(h.masked_fill(torch.rand_like(h) < 0.2, 0.0) / 0.8)


def hidden_of(layer, h):
    return torch.relu(layer(h))


FLAT, IMAGE, TOKENS = (6, 20), (4, 3, 8, 8), (5, 7, 16)


def built(build, shape):
    torch.manual_seed(0)
    random.seed(0)
    model, x = build(), torch.randn(shape)
    model.eval()(x)
    for p in model.parameters():
        p.data *= 1.5 if p.ndim == 2 else 1
    return model, x


def test_a_function_right_after_dropout_is_exact():
    """Kept or dropped, an entry takes two values, and any function is affine on two points."""
    torch.manual_seed(1)
    model = nn.Sequential(
        Linear(4, 3), nn.Dropout(0.3), nn.GELU(), Linear(3, 2)
    ).double()
    x = torch.randn(5, 4).double()
    mean, covariance = exact_moments(*outputs_under_masks(model, "1", x))
    found = predictive_moments(model, x, covariance=True)
    assert found.exact
    torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.variance, covariance, rtol=1e-9, atol=1e-9)


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor


def test_several_inputs_and_outputs():
    def run(self, ids, scale):
        h = functional.dropout(self.e(ids).mean(1) * scale, 0.4, self.training)
        return Answer(self.c(h), h)

    model = Net(run, e=nn.Embedding(30, 16), c=Linear(16, 4))
    inputs = {"ids": torch.randint(30, (6, 5)), "scale": torch.rand(6, 1)}
    found = predictive_moments(model, inputs, output=lambda o: o.logits)
    h = model.eval()(**inputs).hidden
    expected = 0.4 / 0.6 * (h**2) @ (model.c.weight**2).T
    torch.testing.assert_close(found.variance, expected)
    assert found.exact
    again = predictive_moments(model, tuple(inputs.values()), output=lambda o: o.logits)
    assert torch.equal(found.variance, again.variance)
    value = explicit_penalty(model, inputs, output=lambda o: o.logits).value
    torch.testing.assert_close(value, expected.sum(1).mean())


COVARIANCE = np.array([[0.5, 0.2, -0.1], [0.2, 0.4, 0.1], [-0.1, 0.1, 0.3]])
CHAINS = {
    "maps-between": (
        nn.Sequential(
            nn.Dropout(0.3), Linear(3, 4), Linear(4, 3), Dropout(0.4), Linear(3, 2)
        ),
        (2, 3),
        ("0", "3"),
    ),
    "channels-twice": (
        nn.Sequential(
            nn.Dropout2d(0.3),
            nn.Conv2d(2, 2, 2),
            nn.Dropout2d(0.4),
            nn.Flatten(),
            Linear(8, 2),
        ),
        (2, 2, 3, 3),
        ("0", "2"),
    ),
    "blocks-after-blocks": (
        nn.Sequential(
            DropBlock2d(0.3, 2),
            nn.Conv2d(1, 1, 2),
            nn.Identity(),
            DropBlock2d(0.3, 2),
            nn.Flatten(),
            Linear(4, 2),
        ),
        (2, 1, 3, 3),
        ("0", "3"),
    ),
    "covariance-twice": (
        nn.Sequential(
            CovarianceDropout([1.0, -2.0, 0.5], COVARIANCE),
            Linear(3, 3),
            CovarianceDropout(np.ones(3), COVARIANCE),
            Linear(3, 2),
        ),
        (2, 3),
        ("0", "2"),
    ),
    "connect-after-dropout": (
        nn.Sequential(
            nn.Dropout(0.3), Linear(3, 3), DropConnectLinear(3, 2, drop_prob=0.4)
        ),
        (2, 3),
        ("0", "2"),
    ),
    "connect-after-maps": (
        nn.Sequential(
            nn.Dropout(0.3),
            Linear(3, 4),
            Linear(4, 3),
            DropConnectLinear(3, 2, drop_prob=0.4),
        ),
        (2, 3),
        ("0", "3"),
    ),
    "connect-conv": (
        nn.Sequential(
            nn.Dropout(0.3),
            DropConnectConv2d(1, 1, 2, drop_prob=0.4),
            nn.Flatten(),
            Linear(2, 2),
        ),
        (2, 1, 2, 3),
        ("0", "1"),
    ),
}


def outputs_under_both(model, names, x):
    """Outputs under every pair of masks of two layers, one forward pass each."""
    from nn_oracles import Multiplied, all_multipliers

    first, second = names
    shape = tuple(x.shape[1:])
    multipliers, prob = all_multipliers(model.get_submodule(first), shape)
    outs, probs = [], []
    for m, p in zip(multipliers, prob, strict=True):
        fixed = copy.deepcopy(model)
        fixed.set_submodule(first, Multiplied(torch.as_tensor(m, dtype=x.dtype)))
        y, q = outputs_under_masks(fixed, second, x)
        outs.append(y)
        probs.append(p * q)
    return torch.cat(outs), torch.cat(probs)


@pytest.mark.parametrize(
    ("model", "shape", "names"), CHAINS.values(), ids=CHAINS.keys()
)
def test_noise_after_noise_with_affine_maps_between_is_exact(model, shape, names):
    torch.manual_seed(1)
    model, x = copy.deepcopy(model).double(), torch.randn(shape).double()
    for p in model.parameters():
        nn.init.normal_(p)
    mean, covariance = exact_moments(*outputs_under_both(model, names, x))
    found = predictive_moments(model, x, covariance=True)
    torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-9)
    terms = explicit_penalty(model, x).terms
    assert [t.name for t in terms] == list(names)
    assert found.exact == terms[0].exact
    sd = covariance.diagonal(dim1=1, dim2=2).sqrt()
    assert ((found.std - sd).abs() <= found.std_error + 1e-9).double().mean() > 0.7
    if (
        not found.exact
    ):  # second-order products of correlated entries count as independent
        return
    torch.testing.assert_close(found.variance, covariance, rtol=1e-9, atol=1e-9)
    total = covariance.diagonal(dim1=1, dim2=2).sum(1).mean()
    torch.testing.assert_close(sum(t.value for t in terms), total, rtol=1e-9, atol=1e-9)


class AlwaysOn(nn.Dropout):
    def forward(self, x):
        return functional.dropout(x, self.p, True)


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
def test_the_same_network_written_clumsily_gives_the_same_numbers():
    """A layer in two, units in another order, a unit more that does nothing, functions."""
    torch.manual_seed(0)
    a, b = Linear(5, 8).double(), Linear(8, 2).double()
    x = torch.randn(4, 5).double()
    plain = nn.Sequential(a, nn.ReLU(), nn.Dropout(0.3), b)
    order = torch.randperm(8)
    shuffled = copy.deepcopy(plain)
    shuffled[0].weight.data, shuffled[0].bias.data = a.weight[order], a.bias[order]
    shuffled[3].weight.data = b.weight[:, order]
    split = Net(
        lambda s, x: s.b(s.d(torch.cat([s.first(x), s.second(x)], 1))),
        b=b,
        first=nn.Sequential(Linear(5, 3), nn.ReLU()).double(),
        d=AlwaysOn(0.3),
        second=nn.Sequential(Linear(5, 5), nn.ReLU()).double(),
    )
    split.first[0].weight.data, split.first[0].bias.data = a.weight[:3], a.bias[:3]
    split.second[0].weight.data, split.second[0].bias.data = a.weight[3:], a.bias[3:]
    sums = Net(
        lambda s, x: (
            torch.matmul(s.d(a(x).clamp(min=0)).unsqueeze(1), b.weight.T).squeeze(1)
            + b.bias
        ),
        d=nn.Dropout(0.3),
    )
    expected, value = predictive_moments(plain, x), explicit_penalty(plain, x).value
    for twin in (shuffled, split, sums, torch.compile(plain), nn.DataParallel(plain)):
        found = predictive_moments(twin, x, covariance=False)
        torch.testing.assert_close(found.mean, expected.mean)
        torch.testing.assert_close(found.variance, expected.variance)
        torch.testing.assert_close(explicit_penalty(twin, x).value, value)


def test_inference_mode_and_no_grad_change_nothing():
    model, x = built(lambda: mlp(nn.Dropout(0.3), nn.Dropout(0.3)), FLAT)
    expected = predictive_moments(model, x)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            found = predictive_moments(model, x.clone())
        torch.testing.assert_close(found.variance, expected.variance.detach())
        assert not found.variance.requires_grad
    state = torch.get_rng_state()
    predictive_moments(model, x)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy", "logistic"])
def test_a_training_step_has_the_expected_penalty(loss):
    """Where the exact penalty is dear, and with seeded layers, whose masks move on."""
    noises = nn.Dropout(0.3), Dropout(0.3, seed=3)
    model, x = built(lambda: mlp(*noises), FLAT)
    expected = float(explicit_penalty(model, x, loss=loss).value.detach())
    net = without_noise(model, loss=loss).train()
    with torch.no_grad():
        draws = torch.stack([(net(x), net.penalty)[1] for _ in range(600)])
    assert abs(draws.mean() - expected) <= 5 * draws.std() / 600**0.5 + 0.02 * abs(
        expected
    )
    net(x)
    net.penalty.backward()
    assert all(
        p.grad is not None and p.grad.isfinite().all() for p in model[0].parameters()
    )


def test_the_gradient_of_a_propagated_penalty_is_that_of_differences():
    """Against central differences, with slopes, variances and adjoint depending on the weights."""
    model, x = built(lambda: mlp(nn.Dropout(0.3), nn.Dropout(0.3), width=6), FLAT)
    model, x = model.double(), x.double()
    explicit_penalty(model, x).value.backward()
    parameters = list(model.parameters())
    steps = [torch.randn_like(p) for p in parameters]
    pairs = [
        (p.grad, d)
        for p, d in zip(parameters, steps, strict=True)
        if p.grad is not None
    ]
    slope = sum((grad * d).sum() for grad, d in pairs)
    values = []
    for h in (1e-6, -1e-6):
        moved = copy.deepcopy(model)
        for p, d in zip(moved.parameters(), steps, strict=True):
            p.data += h * d
        values.append(explicit_penalty(moved, x).value.detach())
    torch.testing.assert_close(
        (values[0] - values[1]) / 2e-6, slope, rtol=1e-5, atol=1e-6
    )


def squared(self, x):
    h = functional.dropout(self.a(x), 0.3)
    return self.c(self.b(h) * (h + self.b(h)))


def test_moments_out_of_range_are_sampled_with_a_reason():
    """The mean of a square root of numbers that are negative at times cannot be propagated."""

    def run(self, x):
        h = functional.dropout(torch.ones_like(x), 0.5, self.training)
        return self.c((h.sum(-1, keepdim=True) - 21.5).log())

    model = Net(run, c=Linear(1, 2))
    with torch.no_grad():
        found = predictive_moments(
            model, torch.zeros(3, 20), output=lambda y: y.nan_to_num()
        )
    assert found.drawn
    assert torch.isfinite(found.variance).all()


def glu(self, x):
    return self.c(functional.glu(self.d(self.a(x)), 1))


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, g):
        return 3 * g


def test_a_training_step_samples_each_noise_anew():
    def run(self, x):
        h = torch.relu(self.a(x))
        if self.training:
            h = (
                h * torch.normal(1.0, 0.5, h.shape)
                + h.detach() * torch.empty_like(h).normal_()
            )
        return self.c(torch.tanh(h))

    model, x = built(lambda: Net(run, a=Linear(20, 48), c=Linear(48, 4)), FLAT)
    net = without_noise(model).train()
    probes = [(net(x), net.penalty.item())[1] for _ in range(400)]
    value = explicit_penalty(model, x).value.item()
    error = np.std(probes) / np.sqrt(len(probes))
    assert abs(np.mean(probes) - value) < 5 * error + 0.05 * value


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_keep_gradients(reentrant):
    def checkpointed(self, x):
        run = torch.utils.checkpoint.checkpoint
        return self.c(run(torch.tanh, self.d(self.a(x)), use_reentrant=reentrant))

    parts = {"a": Linear(20, 8), "d": nn.Dropout(0.3), "c": Linear(8, 2)}
    found = []
    for run in (checkpointed, lambda s, x: s.c(torch.tanh(s.d(s.a(x))))):
        net = without_noise(Net(run, **parts)).train()
        net.zero_grad()
        torch.manual_seed(0)
        (net(torch.ones(3, 20)).sum() + net.penalty).backward()
        found.append(parts["a"].weight.grad.clone())
    torch.testing.assert_close(*found)


def test_noise_before_a_custom_gradient_is_sampled_in_training():
    f = Straight.apply
    model, x = built(
        lambda: Net(
            lambda s, x: s.c(f(s.d(s.a(x)))),
            a=Linear(20, 8),
            d=nn.Dropout(0.3),
            c=Linear(8, 2),
        ),
        FLAT,
    )
    net = without_noise(model).train()
    with pytest.warns(UserWarning, match="own gradient"):
        out = net(x)
    assert "own gradient" in net.sampled
    assert float(net.penalty) == 0
    out.sum().backward()
    slope = model.c.weight.detach().sum(0) * 3
    kept = model.a.bias.grad / (slope / 0.7)  # how often each unit was kept
    torch.testing.assert_close(kept, kept.round(), atol=1e-3, rtol=0)
    assert float(kept.max()) > 0


def test_covariances_are_corrected_as_variances_are():
    model, x = built(lambda: two(by_hand), FLAT)
    with torch.no_grad():
        plain, joint = (
            predictive_moments(model, x),
            predictive_moments(model, x, covariance=True),
        )
    torch.testing.assert_close(joint.std, plain.std)
    torch.testing.assert_close(joint.mean_error, plain.mean_error)


def test_a_model_that_is_switched_between_calls_has_the_moments_of_what_it_is():
    def run(self, x):
        return self.a(x) + torch.randn(
            1 if getattr(self, "shared", False) else len(x), 1
        )

    model, x = built(lambda: Net(run, a=Linear(20, 4)), FLAT)
    for model.shared in (False, True):
        found = mc_moments(model, x, 64, seed=0)
        assert found.draws == 64
        np.testing.assert_allclose(found.std, 1, rtol=0.4)


def test_few_passes_may_agree_by_chance():
    def run(self, x):
        return self.a(x) * (2.0 if self.training and random.random() < 0.2 else 1.0)  # noqa: S311

    model, x = built(lambda: Net(run, a=Linear(20, 4)), FLAT)
    found = [mc_moments(model, x, 2).variance.any() for _ in range(20)]
    assert 0 < sum(map(bool, found)) < 20


def test_noise_that_rows_share_is_found_in_one_pass_of_ten():
    """Of many numbers, so that copies in a pass would see the same of it."""

    def run(self, x):
        return self.a(x) * (1 + (torch.rand(600).amin() < 0.1 / 600))

    for seed in range(20):  # of models that nothing is known of yet
        model, x = built(lambda: Net(run, a=Linear(20, 4)), FLAT)
        mc_moments(model, x, 2, seed=seed)


def test_one_random_number_behind_an_almost_linear_function_needs_no_samples():
    """It was sampled for being one, although its moments were right."""

    def run(self, x):
        scale = 1 + 0.1 * torch.rand(len(x), 1) if self.training else 1.05
        return self.c(torch.tanh(self.a(x) * scale))

    model, x = built(lambda: Net(run, a=Linear(20, 8), c=Linear(8, 4)), FLAT)
    found = predictive_moments(model, x)
    assert found.draws == 0
    sampled = mc_moments(model, x, 4000, seed=0)
    assert (
        (found.mean - sampled.mean).abs() <= found.mean_error + sampled.mean_error
    ).all()
    assert (
        (found.std - sampled.std).abs() <= found.std_error + sampled.std_error
    ).all()


def test_no_samples_are_taken_where_noise_hardly_moves_the_mean():
    """They would add their own noise to a better answer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Dropout(0.1), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 5)
    )
    assert predictive_moments(model, torch.randn(6, 64)).draws == 0
