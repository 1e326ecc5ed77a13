"""Propagated moments against enumeration over all masks, operation by operation."""

import itertools

import pytest
import torch
from nn_enumerated import Noisy, enumerated_moments
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from overt import InputError
from overt.nn import explicit_penalty, mc_moments, predictive_moments, without_noise
from overt.nn.graph.record import op_info, record
from overt.nn.graph.state import untouched
from overt.nn.moments.propagate import decompose
from overt.nn.moments.registry import EXACT_OPERATIONS

A = torch.linspace(-1.0, 2.0, 12).reshape(3, 4).sin()
B = torch.linspace(0.5, 2.5, 6).reshape(2, 3).cos()
KERNEL = torch.linspace(-1.0, 1.0, 4).reshape(1, 1, 2, 2).exp()
PLACES = torch.tensor([2, 0, 2])
FLAGS = torch.tensor([[True, False, True], [False, False, True]])


def a(like):
    return A.to(like)


def b(like):
    return B.to(like)


def image(x, noise):
    """Return a noisy image of 1 x 1 x 2 x 4."""
    return noise.dropout(torch.cat([x, x.flip(0)[:, :1]], 1).reshape(1, 1, 2, 4))


def column(h):
    return h.reshape(len(h), -1)


# Functions of x (2 x 3, positive and negative) and noise that are exact. Spellings by position and
# by keyword, and with numbers, scalars and tensors where an operation takes them.
EXACT = {
    "dropout": lambda x, n: n.dropout(x),
    "dropout, p": lambda x, n: n.dropout(x, p=0.2),
    "coin": lambda x, n: x * n.coin(2, 3, p=0.3),
    "coin of a row": lambda x, n: x * n.coin(2, 1, p=0.3),
    "coin of all": lambda x, n: x * n.coin(1, p=0.3),
    "rand": lambda x, n: x * n.rand(2, 3) @ a(x),
    "randn": lambda x, n: (x + n.randn(2, 3)) @ a(x),
    "rand_like": lambda x, n: x + 2 * n.rand_like(x),
    "randn_like": lambda x, n: x + 2 * n.randn_like(x),
    "copy": lambda x, n: copied(n.dropout(x)),
    "add number": lambda x, n: n.dropout(x) + 1.5,
    "add alpha": lambda x, n: torch.add(b(x), n.dropout(x), alpha=2),
    "add broadcast": lambda x, n: n.dropout(x)[:1] + b(x),
    "sub": lambda x, n: b(x) - n.dropout(x),
    "sub alpha": lambda x, n: torch.sub(n.dropout(x), b(x), alpha=3),
    "sub other=": lambda x, n: torch.sub(n.dropout(x), other=b(x)),
    "rsub": lambda x, n: 1 - n.dropout(x),
    "neg": lambda x, n: -n.dropout(x),
    "mul": lambda x, n: n.dropout(x) * b(x),
    "mul other=": lambda x, n: torch.mul(n.dropout(x), other=b(x)),
    "mul twice": lambda x, n: n.dropout(n.dropout(x), 0.3),
    "mul by itself": lambda x, n: (h := n.dropout(x)) * h.clone(),
    "div": lambda x, n: n.dropout(x) / (1.5 + b(x)),
    "div number": lambda x, n: n.dropout(x) / 3,
    "pow 2": lambda x, n: n.dropout(x) ** 2,
    "pow 2.0": lambda x, n: n.dropout(x) ** 2.0,
    "pow 3": lambda x, n: n.dropout(x).pow(exponent=3),
    "relu": lambda x, n: F.relu(n.dropout(x)),
    "tanh": lambda x, n: torch.tanh(n.dropout(x)) @ a(x),
    "where": lambda x, n: torch.where(FLAGS, n.dropout(x), b(x)),
    "where random": lambda x, n: torch.where(n.coin(2, 3) > 0.5, x, b(x)),
    "masked_fill": lambda x, n: n.dropout(x).masked_fill(FLAGS, 2.5),
    "masked_fill value=": lambda x, n: n.dropout(x).masked_fill(mask=FLAGS, value=2.5),
    "masked_scatter": lambda x, n: n.dropout(x).masked_scatter(FLAGS, b(x)),
    "mm": lambda x, n: n.dropout(x) @ a(x),
    "mm mat2=": lambda x, n: torch.mm(n.dropout(x), mat2=a(x)),
    "mm of two": lambda x, n: n.dropout(x) @ n.dropout(x).t(),
    "bmm": lambda x, n: torch.bmm(n.dropout(x)[None], a(x)[None])[0],
    "mv": lambda x, n: torch.mv(n.dropout(x), a(x)[:, 0])[:, None],
    "dot": lambda x, n: torch.dot(n.dropout(x)[0], a(x)[:, 0])[None, None],
    "addmm": lambda x, n: torch.addmm(a(x)[0], n.dropout(x), a(x), alpha=0.5, beta=2),
    "addmm random start": lambda x, n: torch.addmm(
        n.dropout(x), x, a(x)[:, :3], beta=2
    ),
    "baddbmm": lambda x, n: torch.baddbmm(
        b(x)[None], n.dropout(x)[None], a(x)[None, :, :3]
    )[0],
    "linear": lambda x, n: F.linear(n.dropout(x), a(x).t(), bias=a(x)[0]),
    "two layers": lambda x, n: (
        n.dropout(F.linear(n.dropout(x[:1]), a(x).t())) @ a(x).t()
    ),
    "convolution": lambda x, n: column(F.conv2d(image(x, n), KERNEL.to(x), padding=1)),
    "convolution, bias=": lambda x, n: column(
        F.conv2d(image(x, n), KERNEL.to(x), bias=x[0, :1], stride=(1, 2))
    ),
    "convolution transposed": lambda x, n: column(
        F.conv_transpose2d(image(x, n), KERNEL.to(x))
    ),
    "batch norm": lambda x, n: F.batch_norm(
        n.dropout(x), b(x)[0], b(x)[0] ** 2, weight=b(x)[1], bias=b(x)[0]
    ),
    "avg_pool2d": lambda x, n: column(F.avg_pool2d(image(x, n), 2, stride=1)),
    "avg_pool2d padding=": lambda x, n: column(F.avg_pool2d(image(x, n), 2, padding=1)),
    "adaptive_avg_pool2d": lambda x, n: column(
        F.adaptive_avg_pool2d(image(x, n), (1, 2))
    ),
    "adaptive_avg_pool2d uneven": lambda x, n: column(
        F.adaptive_avg_pool2d(image(x, n), (1, 3))
    ),
    "upsample_nearest2d": lambda x, n: column(
        F.interpolate(image(x, n), scale_factor=2)
    ),
    "sum": lambda x, n: n.dropout(x).sum(1, keepdim=True),
    "sum of all": lambda x, n: n.dropout(x).sum()[None, None],
    "mean": lambda x, n: n.dropout(x).mean(dim=1, keepdim=True),
    "mean of all": lambda x, n: n.dropout(x).mean()[None, None],
    "cumsum": lambda x, n: n.dropout(x).cumsum(dim=1),
    "cat": lambda x, n: torch.cat([n.dropout(x), b(x)], dim=1),
    "stack": lambda x, n: torch.stack((b(x), n.dropout(x)), dim=1).flatten(1),
    "split": lambda x, n: n.dropout(x).split(2, dim=1)[1],
    "split sizes": lambda x, n: n.dropout(x).split([1, 2], dim=1)[1],
    "chunk": lambda x, n: n.dropout(x).chunk(3, 1)[2] * 2,
    "unbind": lambda x, n: n.dropout(x).unbind(1)[2][:, None],
    "view": lambda x, n: n.dropout(x).view(3, 2) * 2,
    "reshape": lambda x, n: n.dropout(x).t().reshape(2, 3) * 2,
    "permute": lambda x, n: n.dropout(x).permute(1, 0) * 2,
    "transpose": lambda x, n: n.dropout(x).transpose(dim0=0, dim1=1) * 2,
    "t": lambda x, n: n.dropout(x).t() * 2,
    "squeeze": lambda x, n: n.dropout(x)[None].squeeze(0),
    "unsqueeze": lambda x, n: n.dropout(x).unsqueeze(2).flatten(1),
    "expand": lambda x, n: (
        n.dropout(x)[:, :1].expand(2, 5) @ A[:, 0].to(x).repeat(2)[:5, None]
    ),
    "repeat": lambda x, n: n.dropout(x).repeat(1, 2) @ b(x).reshape(6, 1),
    "select": lambda x, n: n.dropout(x)[:, 1][:, None],
    "slice": lambda x, n: n.dropout(x)[:, 1:],
    "index": lambda x, n: n.dropout(x)[:, PLACES] @ a(x),
    "index_select": lambda x, n: n.dropout(x).index_select(dim=1, index=PLACES) @ a(x),
    "gather": lambda x, n: n.dropout(x).gather(1, PLACES.expand(2, 3)) @ a(x),
    "embedding": lambda x, n: F.embedding(PLACES[:2], n.dropout(x).t()),
    "index_put": lambda x, n: n.dropout(x).index_put((PLACES[:1] - 1,), b(x)[:1]),
    "index_put accumulate=": lambda x, n: b(x).index_put(
        (PLACES * 0,), n.dropout(x)[[0, 1, 1]], accumulate=True
    ),
    "index_add": lambda x, n: b(x).index_add(1, PLACES, n.dropout(x), alpha=2),
    "index_copy": lambda x, n: b(x).index_copy(1, PLACES[:2], n.dropout(x)[:, :2]),
    "scatter": lambda x, n: n.dropout(x).scatter(1, PLACES[:2].expand(2, 2), b(x)),
    "scatter_add": lambda x, n: b(x).scatter_add(1, PLACES.expand(2, 3), n.dropout(x)),
    "select_scatter": lambda x, n: n.dropout(x).select_scatter(
        b(x)[:, 0], dim=1, index=1
    ),
    "slice_scatter": lambda x, n: n.dropout(x).slice_scatter(
        b(x)[:, :2], dim=1, start=1
    ),
    "view in place": lambda x, n: written_through_a_view(n.dropout(x)),
    "fill": lambda x, n: filled(n.dropout(x)),
    "flip": lambda x, n: n.dropout(x).flip(1),
    "roll": lambda x, n: n.dropout(x).roll(1, dims=1),
    "tril": lambda x, n: n.dropout(x).tril(),
    "triu": lambda x, n: n.dropout(x).triu(diagonal=1),
    "diagonal": lambda x, n: n.dropout(x).diagonal()[:, None] * 2,
    "diag_embed": lambda x, n: n.dropout(x).diag_embed().flatten(1),
    "trace": lambda x, n: n.dropout(x)[:, :2].trace()[None, None],
    "pad": lambda x, n: F.pad(n.dropout(x), (1, 2), value=0.7),
    "reflection_pad1d": lambda x, n: F.pad(n.dropout(x), (2, 1), mode="reflect"),
    "reflection_pad2d": lambda x, n: column(
        F.pad(image(x, n), (1, 1, 1, 1), mode="reflect")
    ),
    "replication_pad2d": lambda x, n: column(
        F.pad(image(x, n), (1, 1, 1, 1), mode="replicate")
    ),
    "pixel_shuffle": lambda x, n: column(
        F.pixel_shuffle(n.dropout(x.reshape(1, 6, 1, 1)[:, :4]), 2)
    ),
    "pixel_unshuffle": lambda x, n: column(F.pixel_unshuffle(image(x, n), 2)),
    "unfold": lambda x, n: n.dropout(x).unfold(1, 2, 1).flatten(1),
    "im2col": lambda x, n: column(F.unfold(image(x, n), 2)),
    "col2im": lambda x, n: column(F.fold(F.unfold(image(x, n), 2), (2, 4), 2)),
    "detach": lambda x, n: n.dropout(x).detach() * 2,
    "clone": lambda x, n: n.dropout(x).clone(),
    "to": lambda x, n: n.dropout(x).to(torch.float64),
    "mm by name": lambda x, n: torch.mm(input=n.dropout(x), mat2=a(x)),
    "where by name": lambda x, n: torch.where(
        condition=x > 0, input=n.dropout(x), other=b(x)
    ),
    "cumsum by place": lambda x, n: torch.cumsum(n.dropout(x), 1),
    "cumsum by name": lambda x, n: torch.cumsum(input=n.dropout(x), dim=1),
    "flip by name": lambda x, n: torch.flip(input=n.dropout(x), dims=(1,)),
    "select by name": lambda x, n: torch.select(input=n.dropout(x), dim=1, index=2),
    "tril by name": lambda x, n: torch.tril(input=n.dropout(x), diagonal=1),
    "residual": lambda x, n: (h := n.dropout(x)) + h @ a(x)[:, :3],
    "residual, dropout": lambda x, n: (h := n.dropout(x)) + n.dropout(h @ a(x)[:, :3]),
    "zero": lambda x, n: zeroed(n.dropout(x)),
    "rand >= p": lambda x, n: x * n.compare("ge", 2, 3, p=0.3) / 0.7,
    "rand > p": lambda x, n: torch.where(n.compare("gt", 2, 3, p=0.3), x, b(x)),
    "rand < p": lambda x, n: x.masked_fill(n.compare("lt", 2, 3, p=0.3), 0.5),
    "rand <= p": lambda x, n: x * n.compare("le", 2, 1, p=0.3).to(x) @ a(x),
    "sqrt": lambda x, n: torch.sqrt(n.dropout(x).abs() + 1),
    "log1p": lambda x, n: torch.log1p(torch.exp(n.dropout(x))),
    "sin, cos, erf": lambda x, n: (
        torch.sin(h := n.dropout(x)) + torch.cos(h) * torch.erf(h)
    ),
    "clamp": lambda x, n: n.dropout(x).clamp(min=-0.5, max=1.0),
}
ENTRYWISE = (
    "celu elu gelu hardsigmoid hardswish hardtanh leaky_relu mish sigmoid silu softplus"
)
for _function in (getattr(F, name) for name in ENTRYWISE.split()):
    EXACT[_function.__name__] = lambda x, n, f=_function: f(n.dropout(x)) @ a(x)


def written_through_a_view(h):
    h = h.clone()
    part = h.view(2, 3, 1)[:, 0]
    part.mul_(2)
    part.add_(1)
    return h


def zeroed(h):
    h = h * 2
    h[:, 1].zero_()
    return h


def copied(h):
    out = torch.ones(2, 3, dtype=h.dtype)
    return out.copy_(h)


def filled(h):
    h = h.clone()
    h[:, 1].fill_(3.0)
    return h


# Not exact, or a rule does not know that it is: must not be said to be exact unless right.
OTHERS = {
    "four arguments": lambda x, n: torch.nan_to_num(n.dropout(x), 0.0, 0.5, -0.5),
    "products of the same noises": lambda x, n: (
        (h := n.dropout(x)) * (m := n.coin(2, 3)) @ a(x) + h * m @ a(x)
    ),
    "a coin made twice": lambda x, n: (
        (u := n.dropout(x[:, :1])) * u @ a(x)[:1] + u @ a(x)[1:2]
    ),
    "gram": lambda x, n: (h := n.dropout(x)) @ h.t(),
    "outer product with itself": lambda x, n: (h := n.dropout(x))[:, :, None].mul(
        h[:, None]
    )[0],
    "shared mask": lambda x, n: (m := n.coin(2, 1)) * (x * m).sum(1, keepdim=True),
    "relu after a sum": lambda x, n: F.relu(n.dropout(x) @ a(x)),
    "softmax": lambda x, n: torch.softmax(n.dropout(x), 1),
    "layer norm": lambda x, n: F.layer_norm(n.dropout(x), (3,)),
    "sort": lambda x, n: n.dropout(x).sort(1).values,
    "amax": lambda x, n: n.dropout(x).amax(1, keepdim=True),
    "prod": lambda x, n: n.dropout(x).prod(1, keepdim=True),
    "norm": lambda x, n: n.dropout(x).norm(dim=1, keepdim=True),
    "std": lambda x, n: n.dropout(x).std(1, keepdim=True),
    "maximum": lambda x, n: torch.maximum(h := n.dropout(x), h.flip(1)),
    "cdist": lambda x, n: torch.cdist(n.dropout(x), b(x)),
    "bilinear": lambda x, n: torch.einsum("ni,mi->nm", h := n.dropout(x), h),
    "sigmoid": lambda x, n: torch.sigmoid(n.dropout(x)),
    "cumprod": lambda x, n: n.dropout(x).cumprod(1),
    "fold of views": lambda x, n: n.dropout(x).as_strided((2, 2), (3, 1)),
    "logsumexp": lambda x, n: n.dropout(x).logsumexp(1, keepdim=True),
    "glu": lambda x, n: F.glu(image(x, n).reshape(2, 4)),
    "gelu": lambda x, n: F.gelu(n.dropout(x)),
    "index by noise": lambda x, n: x[n.coin(2, 1).long().flatten()],
}


def inputs(dtype):
    return torch.tensor([[0.8, -0.4, 1.3], [0.3, 1.1, -0.9]], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_exact_moments_are_those_of_all_masks(name, dtype):
    x = inputs(dtype)
    mean, variance = enumerated_moments(EXACT[name], x)
    found = predictive_moments(Noisy(EXACT[name]), x, draws=0)
    assert found.exact
    tol = 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(found.mean.double(), mean, rtol=tol, atol=tol)
    torch.testing.assert_close(found.variance.double(), variance, rtol=tol, atol=tol)


class ByKeyword(TorchFunctionMode):
    """Calls functions of torch with keywords after the first argument, where they take them."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        packet = getattr(torch.ops.aten, name, None)
        for overload in (
            packet.overloads() if packet is not None and len(args) > 1 else ()
        ):
            words = [
                argument.name
                for argument in getattr(packet, overload)._schema.arguments
            ]
            named = dict(zip(words[1:], args[1:], strict=False))
            if len(words) < len(args) or named.keys() & kwargs.keys():
                continue
            try:
                out = func(args[0], **named, **kwargs)
            except TypeError:  # not this overload, or a name of C++ only
                continue
            self.seen.add(name)
            return out
        return func(*args, **kwargs)


def test_exact_moments_are_the_same_by_keyword():
    x = inputs(torch.float64)
    spelling = ByKeyword()
    for name, function in EXACT.items():

        def by_keyword(x, noise, function=function):
            with spelling:
                return function(x, noise)

        found = predictive_moments(Noisy(by_keyword), x, draws=0)
        expected = predictive_moments(Noisy(function), x, draws=0)
        assert found.exact, name
        assert torch.equal(found.mean, expected.mean), name
        assert torch.equal(found.variance, expected.variance), name
    listed = "add bmm masked_fill index_add scatter gather roll sum pow unfold"
    assert set(listed.split()) <= spelling.seen


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_wrong_is_called_exact(name):
    x = inputs(torch.float64)
    mean, variance = enumerated_moments(OTHERS[name], x)
    try:
        found = predictive_moments(Noisy(OTHERS[name]), x, draws=0)
    except InputError:
        return
    if found.exact:
        torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.variance, variance, rtol=1e-9, atol=1e-9)


def test_every_operation_that_may_be_exact_is_enumerated():
    met = set()
    for function in EXACT.values():
        with untouched(Noisy(function)) as saved:
            recording = record(saved, inputs(torch.float32), None, decompose=decompose)
        met |= {op_info(call.func).name for call in recording.calls if call.noisy}
    # Masks of overt's own layers are enumerated in test_penalties.py.
    assert met | {"mask"} == EXACT_OPERATIONS


# -- networks -----------------------------------------------------------------------------------


class Attention(nn.Module):
    """Attention with dropout of the attention weights, as torch does it."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(3, 9)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        return self.head(x + F.scaled_dot_product_attention(q, k, v, dropout_p=0.3))


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 2))


def enumerated_mlp(model, x, noise):
    return model[3](noise.dropout(F.relu(model[0](x)), 0.3))


def cnn():
    head = [nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 2)]
    noisy = [nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout2d(0.4)]
    return nn.Sequential(*noisy, nn.Conv2d(3, 2, 2, padding=1), *head)


def enumerated_cnn(model, x, noise):
    h = F.relu(model[1](model[0](x)))
    h = h * noise.coin(len(x), 3, 1, 1, p=0.6) / 0.6
    return model[4:](h)


def enumerated_attention(model, x, noise):
    q, k, v = model.project(x).chunk(3, -1)
    p = torch.softmax(q @ k.mT / 3**0.5, -1)
    return model.head(x + noise.dropout(p, 0.3) @ v)


NETWORKS = {
    "MLP": (mlp, enumerated_mlp, (2, 3)),
    "CNN": (cnn, enumerated_cnn, (2, 1, 3, 4)),
    "attention": (Attention, enumerated_attention, (1, 3, 3)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_moments_of_all_masks(name):
    make, enumerated, shape = NETWORKS[name]
    torch.manual_seed(1)
    model = make().double()
    x = torch.randn(shape, dtype=torch.float64)
    model(x)  # gives batch norm statistics that are not 0 and 1
    found = predictive_moments(model, x, draws=0)
    model.eval()
    mean, variance = enumerated_moments(
        lambda x, n: enumerated(model, x, n).detach(), x
    )
    assert found.exact
    torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.variance, variance, rtol=1e-9, atol=1e-9)


def deep(model, x, noise):
    h = noise.dropout(F.relu(model[0](x)), 0.1)
    h = noise.dropout(F.relu(model[1](h)), 0.1)
    return model[2](h)


def test_deep_networks_are_approximate_and_say_so():
    """Within the 5 % of the standard deviation, and a tenth of it, that count as right."""
    torch.manual_seed(2)
    layers = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)]).double()
    layers.requires_grad_(False)
    x = torch.randn(1, 4, dtype=torch.float64)
    mean, variance = enumerated_moments(lambda x, n: deep(layers, x, n), x)
    found = predictive_moments(Noisy(lambda x, n: deep(layers, x, n)), x, draws=0)
    assert not found.exact
    sd = variance.sqrt()
    assert ((found.mean - mean).abs() / sd).median() < 0.1
    assert (found.variance.sqrt() / sd - 1).abs().median() < 0.05


def test_covariances_are_those_of_all_masks():
    weight = a(torch.ones(1, dtype=torch.float64))
    x = inputs(torch.float64)
    found = predictive_moments(
        Noisy(lambda x, n: n.dropout(x) @ weight), x, covariance=True
    )
    assert found.variance.shape == (2, 4, 4)

    def variance_along(direction):
        return enumerated_moments(lambda x, n: n.dropout(x) @ (weight @ direction), x)[
            1
        ]

    eye = torch.eye(4, dtype=torch.float64)
    for i, j in itertools.product(range(4), repeat=2):
        # Var(p + q) - Var(p - q) = 4 Cov(p, q)
        difference = variance_along(eye[i] + eye[j]) - variance_along(eye[i] - eye[j])
        torch.testing.assert_close(found.variance[:, i, j], difference / 4)


def test_rows_that_share_noise_are_distinguished():
    def function(x, n):
        return x * n.coin(1, 3) @ a(x) + n.dropout(x) @ a(x)

    x = inputs(torch.float64)
    mean, variance = enumerated_moments(function, x)
    found = predictive_moments(Noisy(function), x, draws=0)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.variance, variance)


def test_outputs_centred_over_the_batch_have_their_variance():
    def function(x, n):
        h = n.dropout(x) @ a(x)
        return h - h.mean(0)

    x = inputs(torch.float64)
    mean, variance = enumerated_moments(function, x)
    found = predictive_moments(Noisy(function), x, draws=0)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.variance, variance)


def test_variances_of_half_precision_outputs_do_not_overflow():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).half()
    x = torch.full((2, 6), 2000.0).half()
    sampled = mc_moments(model, x, 500, seed=0)
    propagated = predictive_moments(model, x)
    ratio = sampled.variance / propagated.variance
    # The relative error of a variance from n samples is about (2 / n)^.5.
    assert float((ratio - 1).abs().max()) < 5 * (2 / 500) ** 0.5


def two_dropouts(x, n):
    return n.dropout(n.dropout(x) @ a(x)) @ a(x).t()


def test_a_penalty_in_a_random_direction_has_the_expectation_of_all_masks():
    x = inputs(torch.float64)[:1]
    net = without_noise(Noisy(two_dropouts), loss="squared")
    torch.manual_seed(0)
    penalties = []
    for _ in range(1000):
        net(x)
        penalties.append(net.penalty.detach())
    penalties = torch.stack(penalties)
    _, variance = enumerated_moments(two_dropouts, x)
    error = penalties.std() / 1000**0.5
    assert (penalties.mean() - variance.sum()).abs() < 5 * error


def test_the_term_of_a_noise_is_what_it_adds_to_those_after_it():
    x = inputs(torch.float64)[:1]
    penalty = explicit_penalty(Noisy(two_dropouts), x)
    _, both = enumerated_moments(two_dropouts, x)
    _, second = enumerated_moments(lambda x, n: n.dropout(x @ a(x)) @ a(x).t(), x)
    assert [term.name for term in penalty.terms] == ["dropout", "dropout#2"]
    torch.testing.assert_close(penalty.terms[1].value, second.sum())
    torch.testing.assert_close(penalty.value, both.sum())


def test_certain_models_have_no_variance():
    found = predictive_moments(nn.Linear(3, 2), inputs(torch.float32))
    assert found.exact
    assert not found.variance.any()
    assert found.propagated == ()


@pytest.mark.parametrize("size", [1e4, 1e9])
def test_large_random_masks_before_a_softmax_are_sampled(size):
    model = Noisy(lambda x, n: torch.softmax(x - size * n.coin(2, 3), 1))
    found = predictive_moments(model, inputs(torch.float32))
    assert found.method == "sampled"
    assert "softmax" in found.reason
    with pytest.raises(InputError, match="softmax"):
        predictive_moments(model, inputs(torch.float32), draws=0)
