"""Moments of models as they occur: against all masks, against sampling, and nothing in silence."""

import copy
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from nn_oracles import exact_moments, outputs_under_masks
from torch import nn
from torch.nn import functional

from overt.nn import (
    CovarianceDropout,
    DropBlock2d,
    DropConnectConv2d,
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


def gated(self, x):
    h = functional.dropout(self.a(x), 0.1, self.training)
    return self.c(
        functional.dropout(functional.silu(self.b(h)) * h, 0.1, self.training)
    )


def by_hand(self, x):
    h = hidden(self, x)
    keep = torch.rand(h.shape) > 0.4
    h = hidden_of(self.b, h * keep / 0.6)
    return self.c(h.masked_fill(torch.rand_like(h) < 0.2, 0.0) / 0.8)


def hidden_of(layer, h):
    return torch.relu(layer(h))


def in_place(self, x):
    h = self.a(x)
    h.relu_()
    functional.dropout(h, 0.3, True, inplace=True)
    h = self.b(h)
    h += 0.1
    h[:, :4] = h[:, 4:8]
    return self.c(torch.tanh(h))


def attention(self, x):
    q, k, v = self.qkv(x).chunk(3, -1)
    p = 0.2 if self.training else 0.0
    return self.c(functional.scaled_dot_product_attention(q, k, v, dropout_p=p).mean(1))


def stochastic_depth(self, x):
    h = self.a(x)
    for block in (self.b, self.b2):
        keep = h.new_empty((len(h), 1)).bernoulli_(0.8).div_(0.8)
        h = h + torch.relu(block(h)) * keep
    return self.c(h)


def floor_path(self, x):
    h = self.a(x)
    h = h + torch.relu(self.b(h)).div(0.8) * (0.8 + torch.rand(len(h), 1)).floor_()
    return self.c(torch.tanh(h))


def skipped(self, x):
    h = hidden(self, x)
    if not self.training or torch.rand(1) > 0.3:
        h = h + functional.dropout(hidden_of(self.b, h), 0.3, self.training)
    return self.c(torch.tanh(h))


def skipped_by_python(self, x):
    h = hidden(self, x)
    if not self.training or random.random() > 0.3:  # noqa: S311
        h = h + functional.dropout(hidden_of(self.b, h), 0.3, self.training)
    return self.c(h)


def dropped_weights(self, x):
    weight = functional.dropout(self.b.weight, 0.3, self.training)
    return self.c(torch.relu(functional.linear(hidden(self, x), weight, self.b.bias)))


def noisy(self, x):
    h = hidden(self, x)
    h = torch.tanh(self.b(h * (1 + 0.5 * torch.randn(len(h), 48))))
    return self.c(h + 0.3 * torch.randn_like(h))


def encoder():
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, 0.1, "gelu", batch_first=True, norm_first=True
    )
    return Net(
        lambda self, x: self.c(self.e(x).mean(1)),
        c=Linear(16, 4),
        e=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
    )


FLAT, IMAGE, TOKENS = (6, 20), (4, 3, 8, 8), (5, 7, 16)
CONV = (nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1))


def cnn(noise, *, activation=None, pool=None):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        activation or nn.ReLU(),
        noise,
        nn.Conv2d(8, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.Hardswish(),
        pool or nn.AvgPool2d(4),
        nn.Flatten(),
        nn.LazyLinear(4),
    )


CARRIED = {
    "deep": (lambda: mlp(nn.Dropout(0.3), Dropout(0.3), nn.Dropout(0.3)), FLAT),
    "alpha": (lambda: mlp(nn.AlphaDropout(0.2), nn.AlphaDropout(0.2)), FLAT),
    "feature-alpha": (
        lambda: cnn(nn.FeatureAlphaDropout(0.2), activation=nn.SELU()),
        IMAGE,
    ),
    "rrelu": (
        lambda: nn.Sequential(
            Linear(20, 48), nn.RReLU(), Linear(48, 48), nn.RReLU(), Linear(48, 4)
        ),
        FLAT,
    ),
    "gaussian": (lambda: two(noisy), FLAT),
    "by-hand": (lambda: two(by_hand), FLAT),
    "in-place": (lambda: two(in_place), FLAT),
    "gated": (lambda: two(gated), FLAT),
    "weights": (lambda: two(dropped_weights), FLAT),
    "attention": (lambda: Net(attention, qkv=Linear(16, 48), c=Linear(16, 4)), TOKENS),
    "batch-second": (
        lambda: Net(
            lambda s, x: s.c(s.m(x, x, x, need_weights=False)[0].mean(0)),
            m=nn.MultiheadAttention(16, 4, 0.2),
            c=Linear(16, 4),
        ),
        TOKENS,
    ),
    "encoder": (encoder, TOKENS),
    "layer-norm": (
        lambda: nn.Sequential(
            Linear(20, 48), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(48), Linear(48, 4)
        ),
        FLAT,
    ),
    "channels": (lambda: cnn(nn.Dropout2d(0.2)), IMAGE),
    "blocks": (lambda: cnn(DropBlock2d(0.2, 3)), IMAGE),
    "max-pool": (lambda: cnn(nn.Dropout(0.3), pool=nn.MaxPool2d(4)), IMAGE),
    "connect": (
        lambda: nn.Sequential(
            DropConnectLinear(20, 48, drop_prob=0.3), nn.Mish(), Linear(48, 4)
        ),
        FLAT,
    ),
    "recurrent": (
        lambda: Net(
            lambda s, x: s.c(s.r(s.d(x))[0][:, -1]),
            d=nn.Dropout(0.3),
            r=nn.GRU(16, 16, batch_first=True),
            c=Linear(16, 4),
        ),
        TOKENS,
    ),
}
DRAWN = {
    "stochastic-depth": (
        lambda: two(stochastic_depth, b2=Linear(48, 48)),
        FLAT,
        "bernoulli",
    ),
    "floor": (lambda: two(floor_path), FLAT, "rand"),
    "skipped": (lambda: two(skipped), FLAT, "rand"),
    "skipped-by-python": (
        lambda: two(skipped_by_python),
        FLAT,
        "noise that is not seen",
    ),
    "lstm": (
        lambda: Net(
            lambda s, x: s.c(s.r(x)[0][:, -1]),
            c=Linear(16, 4),
            r=nn.LSTM(16, 16, 2, dropout=0.4, batch_first=True),
        ),
        TOKENS,
        "r:lstm",
    ),
    "gumbel": (
        lambda: Net(
            lambda s, x: s.c(functional.gumbel_softmax(s.a(x))),
            a=Linear(20, 8),
            c=Linear(8, 4),
        ),
        FLAT,
        "gumbel_softmax",
    ),
}


def built(build, shape):
    torch.manual_seed(0)
    random.seed(0)
    model, x = build(), torch.randn(shape)
    model.eval()(x)
    for p in model.parameters():
        p.data *= 1.5 if p.ndim == 2 else 1
    return model, x


def pooled(self, x):
    h = functional.dropout(self.a(x), 0.3, self.training)
    h = torch.baddbmm(h[:, :1], h, self.w.expand(len(h), 16, 16), beta=0.5, alpha=0.7)
    return self.c(torch.relu(self.b(h.mean(1)))).reshape(len(x), 2, 2).transpose(1, 2)


def layer_drop(self, x):
    h = hidden(self, x)
    if self.training and torch.rand([]) < self.p:
        return self.c(h)
    return self.c(functional.dropout(h, 0.3, self.training))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


def changed_in_a_view(h):
    h[:, :16].mul_(2.0)
    return h


CORNERS = {
    "function": Square.apply,
    "detach": lambda h: torch.tanh(h.detach()),
    "data": lambda h: torch.tanh(h.data),
    "view": changed_in_a_view,
    "vmap": lambda h: torch.vmap(torch.tanh)(h),
    "numpy": lambda h: torch.from_numpy(h.detach().numpy()) * 1.0,
    "position": lambda h: h * (h.argmax(-1, keepdim=True) > 3),
    "checkpoint": lambda h: torch.utils.checkpoint.checkpoint(
        torch.tanh, h, use_reentrant=False
    ),
    "named-results": lambda h: h * h.topk(3, -1).values.mean(-1, keepdim=True),
    "normal-around": lambda h: torch.normal(h, 0.5),
}


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
def test_one_probe_in_training_is_unbiased(loss):
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


def test_gradient_of_a_carried_penalty():
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


def test_moments_out_of_range_are_sampled_and_said():
    """The mean of a square root of numbers that are negative at times is not one to be carried."""

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


def tokens_left_out(self, x):
    ids = (x[:, :6] * 10).abs().long().clamp(max=29)
    return self.c(self.e(ids.masked_fill(torch.rand(ids.shape) < 0.3, 0)).flatten(1))


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, g):
        return 3 * g


BROUGHT = {
    "glu": (
        lambda: Net(glu, a=Linear(20, 48), d=nn.Dropout(0.3), c=Linear(24, 4)),
        False,
    ),
    "one output": (
        lambda: Net(
            lambda s, x: s.c(s.d(torch.relu(s.a(s.d(x))))).squeeze(-1),
            a=Linear(20, 48),
            d=nn.Dropout(0.3),
            c=Linear(48, 1),
        ),
        False,
    ),
    "ids": (lambda: Net(tokens_left_out, e=nn.Embedding(30, 4), c=Linear(24, 4)), True),
}


def test_a_probe_draws_each_noise_anew():
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


def test_noise_before_a_gradient_of_its_own_is_drawn_in_training():
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


def test_a_switch_of_a_model_is_asked_about_again():
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


LAYOUTS = {  # shapes of steps for R rows, and what of a step a row r sees
    "rows-first": (lambda R: (R, 3), lambda t, r, R: t[r]),
    "rows-last": (lambda R: (3, R), lambda t, r, R: t[:, r]),
    "square": (lambda R: (R, R), lambda t, r, R: t[:, r]),
    "rows-in-parts": (lambda R: (2, 3 * R), lambda t, r, R: t[:, 3 * r : 3 * r + 3]),
    "shared": (lambda R: (4,), lambda t, r, R: t),
    "shared-by-two": (lambda R: ((R + 1) // 2, 2), lambda t, r, R: t[r // 2]),
    "late": (lambda R: (R, 3), lambda t, r, R: t[r] * (r > 0)),
    "very-late": (lambda R: (R, R, 2), lambda t, r, R: t[:, r] * (r == R - 1)),
    "apart": (lambda R: (R, 2), lambda t, r, R: 0 * t[r]),
}


def test_few_samples_are_enough_where_they_hint_at_no_bias():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Dropout(0.5), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5)
    )
    x = torch.randn(6, 32)
    found = predictive_moments(model, x)
    assert found.draws == 64
    assert found.reached < predictive_moments(model, x, draws=0).reached
    assert torch.equal(found.mean, predictive_moments(model, x, draws=0).mean)


def test_more_samples_are_taken_where_the_first_hint_at_a_bias():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.Flatten())
    model.append(nn.Softplus())
    x = torch.rand(6, 3, 4, 4)
    found = predictive_moments(model, x, output=lambda y: (y - 1) ** 2 * 9)
    assert found.draws == 200
