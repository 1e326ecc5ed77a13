"""What models draw, carried and drawn, and what comes back to its sources."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import bernoulli_patterns
from torch import nn
from torch.nn import functional

from overt.nn import (
    CovarianceDropout,
    DropBlock2d,
    DropConnectConv2d,
    DropConnectLinear,
    Dropout,
)
from overt.nn.layers.mask_covariance import MaskCovariance
from overt.nn.moments import bilinear, noises
from overt.nn.moments.adjoint import APART, SHARED, Source, Sources, _row_axes
from overt.nn.moments.carry import carry
from overt.nn.moments.entries import signs
from overt.nn.moments.tape import Law, Moment, Tape, Uncarried


class Run(nn.Module):
    """A forward pass given as a function."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixed(h, outputs=3):
    h = h.flatten(1)
    return (
        h @ torch.arange(float(outputs) * h.shape[1]).square().cos().reshape(-1, outputs).double()
    )


def by_masks(x, masks, prob, made):
    """Mean and covariance of what `made` makes of masked rows, over all masks."""
    outputs = torch.stack([mixed(made(x, m)) for m in masks])
    mean = torch.tensordot(prob, outputs, 1)
    return mean, torch.einsum("m,mno,mnp->nop", prob, outputs - mean, outputs - mean)


def patterns(n, keep):
    return tuple(torch.as_tensor(a) for a in bernoulli_patterns(np.full(n, keep)))


@pytest.mark.parametrize("p", [0.2, 0.6])
@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 2)])
def test_alpha_dropout_is_what_all_masks_give(shape, p):
    x, alpha = rows(*shape), -1.7580993408473766
    a = ((1 - p) * (1 + p * alpha**2)) ** -0.5
    b = -a * alpha * p
    channels = len(shape) == 3
    masks, prob = patterns(shape[1] if channels else 4, 1 - p)

    def made(x, z):
        z = z.reshape(1, -1, *[1] * (len(shape) - 2))
        return a * (x * z + alpha * (1 - z)) + b

    noise = functional.feature_alpha_dropout if channels else functional.alpha_dropout
    one = carry(Run(lambda x: mixed(noise(x, p, True))), x)
    mean, covariance = by_masks(x, masks, prob, made)
    torch.testing.assert_close(one.output.mean, mean)
    torch.testing.assert_close(one.covariances(), covariance)
    torch.manual_seed(0)
    seen = noise(x, p, True)
    kept, lost = a * x + b, torch.full_like(x, a * alpha + b)
    near = torch.minimum((seen - kept).abs(), (seen - lost).abs())
    assert float(near.max()) < 1e-6
    off = carry(Run(lambda x: mixed(noise(x, p, True))), x, active=())
    torch.testing.assert_close(off.output.mean, mixed(x))
    assert not off.output.noises


SHAPES = [("dropout", (2, 3, 4, 5), ()), ("dropout1d", (2, 3, 4), (1,)),
          ("dropout1d", (3, 4), (0,)),
          ("dropout2d", (2, 3, 4, 5), (1, 2)), ("dropout3d", (2, 3, 4, 2, 2), (1, 2, 3)),
          ("dropout3d", (3, 4, 2, 2), (0, 1, 2)), ("feature_dropout", (2, 3, 4), (1,)),
          ("alpha_dropout", (2, 3, 4), ()), ("feature_alpha_dropout", (2, 3, 4), (1,)),
          ("dropout2d", (2,), ())]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "axes"), SHAPES)
def test_masks_are_shared_along_maps(name, shape, axes):
    assert noises._shared(name, torch.zeros(shape)) == axes
    if len(shape) in (3, 4, 5) and name[-1] == "d" and len(axes) == len(shape) - 2:
        torch.manual_seed(0)
        seen = getattr(functional, name)(torch.ones(shape), 0.5, True) > 0
        assert bool((seen.flatten(2).all(2) | (~seen.flatten(2)).all(2)).all())


def test_dropout_at_its_ends_and_in_evaluation():
    x = rows(2, 3)
    for p, training, mean in ((0.0, True, x), (1.0, True, 0 * x), (0.4, False, x)):
        one = carry(Run(lambda v, p=p, t=training: functional.dropout(v, p, t) + 0), x)
        torch.testing.assert_close(one.output.mean, mean)
        assert not one.output.noises
    drawn = carry(Run(lambda v: functional.dropout(v, 0.4, True)), x, drawn={"dropout"})
    ratio = drawn.output.mean / x
    assert sorted(ratio.round(decimals=6).unique().tolist()) in ([0.0, 1.666667], [0.0], [1.666667])
    assert drawn.drawn == ("dropout",)
    off = carry(Run(lambda v: functional.dropout(v, 0.4, True)), x, active=())
    torch.testing.assert_close(off.output.mean, x)
    assert off.drawn == ()
    two = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3), nn.Dropout(0.5)).double()
    torch.manual_seed(0)
    part = carry(two, x, drawn={"2"})
    assert (part.noises, part.drawn) == (("0", "2"), ("2",))
    J = two[1].weight.detach()
    kept = part.output.mean != 0
    before = (x[:, None] ** 2 * J**2).sum(2) * 4  # times (1 / .5)^2 where it is kept
    torch.testing.assert_close(part.variances(), before * kept)


@pytest.mark.parametrize(("low", "high"), [(1 / 8, 1 / 3), (0.2, 0.6)])
def test_leaking_slopes_are_uniform(low, high):
    x = rows(3, 4)
    one = carry(Run(lambda v: functional.rrelu(v, low, high, True) * 1), x)
    middle = (low + high) / 2
    torch.testing.assert_close(one.output.mean, torch.where(x > 0, x, middle * x))
    torch.testing.assert_close(
        one.variances(), torch.where(x > 0, 0, (high - low) ** 2 / 12 * x**2)
    )
    still = carry(Run(lambda v: functional.rrelu(v, low, high, False) * 1), x)
    torch.testing.assert_close(still.output.mean, torch.where(x > 0, x, middle * x))
    assert not still.output.noises
    drawn = carry(Run(lambda v: functional.rrelu(v, low, high, True) * 1), x, drawn={"rrelu"})
    slope = (drawn.output.mean / x)[x < 0]
    assert float(slope.min()) >= low - 1e-9
    assert float(slope.max()) <= high + 1e-9
    assert float(slope.max() - slope.min()) > 0
    torch.testing.assert_close(drawn.output.mean[x > 0], x[x > 0])


def test_noise_with_few_numbers_is_marked():
    for shape, few in (((2, 16, 3), True), ((2, 17, 3), False), ((2, 5, 3, 3), True)):
        noise = functional.dropout1d if len(shape) == 3 else functional.dropout2d
        one = carry(Run(lambda v, noise=noise: noise(v, 0.5, True)), rows(*shape))
        assert bool(one.tape.few) == few
    plain = carry(Run(lambda v: functional.dropout(v, 0.5, True)), rows(2, 3))
    assert not plain.tape.few
    for size, coarse in (((2, 1), True), ((1,), True), ((2, 2), False), ((), True)):
        one = carry(Run(lambda v, size=size: v * torch.rand(size, dtype=v.dtype)), rows(2, 2))
        assert bool(one.tape.coarse) == coarse


def test_the_generator_stays_where_nothing_is_drawn():
    x = rows(2, 3)
    net = Run(lambda v: v + torch.randn(v.shape, dtype=v.dtype))
    for given, moves in (({}, False), ({"active": ()}, False), ({"drawn": {"randn"}}, True)):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        carry(net, x, **given)
        assert torch.equal(torch.get_rng_state(), before) != moves


def test_coins_come_from_the_draws_they_are_made_of():
    law = Law(lambda v: min(max(v, 0.0), 1.0))
    assert (law.below(0.3), law.shifted(0.2).below(0.5)) == (0.3, pytest.approx(0.3))


def test_signs_are_fair_and_independent():
    torch.manual_seed(0)
    found = signs(torch.empty(4000, 3))
    assert sorted(found.unique().tolist()) == [-1.0, 1.0]
    assert float(found.mean(0).abs().max()) < 0.08
    assert float((found[:, 0] * found[:, 1]).mean().abs()) < 0.08
    assert signs(torch.empty(5, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("kind", ["variances", "mask", "dense"])
def test_covariances_of_sources_are_dense_products(kind):
    step, g = torch.zeros(2, 3, 2).double(), rows(4, 2, 3, 2)
    R = rows(2, 6, 6, seed=1)
    if kind == "variances":
        spread = rows(2, 3, 2, seed=2).square()
        K = torch.diag_embed(spread.flatten(1))
    elif kind == "mask":
        M = rows(3, 3, seed=3)
        spread = MaskCovariance((3, 2), matrix=M @ M.T, axes=(0,))
        K = spread.dense(step).expand(2, 6, 6)
    else:
        spread = K = R @ R.mT
    found = Source(step, spread).times(g)
    torch.testing.assert_close(found.flatten(2), torch.einsum("rij,krj->kri", K, g.flatten(2)))


def test_variances_along_directions_and_what_rests_add():
    tape = Tape(None, (), False, False, Sources({}))
    v, w, A, B = rows(2, 3).square(), rows(2, 2, seed=1).square(), rows(3, 4), rows(2, 4, seed=2)
    tangent = tape.source(v) @ A + tape.source(w, rest=True) @ B
    total, rest = tape.sources.parts(tangent)
    torch.testing.assert_close(rest, w @ B**2)
    torch.testing.assert_close(total, v @ A**2 + w @ B**2)
    K = torch.einsum("ri,ik,il->rkl", v, A, A) + torch.einsum("ri,ik,il->rkl", w, B, B)
    torch.testing.assert_close(tape.sources.covariances(tangent), K)
    d = rows(2, 4, seed=3)
    torch.testing.assert_close(
        tape.sources.along(tangent, d), torch.einsum("rk,rkl,rl->r", d, K, d)
    )
    empty = Tape(None, (), False, False, Sources({}))
    assert not empty.sources.variances(torch.ones(2, 3)).any()


def test_rows_of_sources_are_found_by_gradients():
    def step(*shape):
        return torch.zeros(*shape, requires_grad=True)

    R = 6
    own, last, whole, long, apart, dead = (
        step(R, 2), step(2, R), step(2, 2), step(2 * R, 2), step(R, 2), step(R, 2))  # fmt: skip
    none, late, first, both = step(0, R), step(R, R), step(R, R), step(R, 2 * R, R)
    y = own + last.T + torch.ones(R, 2) @ whole + long.reshape(R, 2, 2).sum(1) + 0 * dead
    y = y + none.sum() + (torch.arange(R) >= 4)[:, None] * late.T[:, :2]  # row 4 is the first
    y = y + first[:1].T + both[0].T[:, :2]  # of rows along the last axis the first place alone
    steps = [own, last, whole, long, apart, dead, none, late, first, both]
    sources = [Source(s, s) for s in steps]
    axes, sure = _row_axes(y, sources)
    assert axes == [0, 1, SHARED, 0, APART, 0, 1, 1, 1, 2]
    assert not sure  # the gradient of some is 0 wherever it was looked at
    for axis, source in zip(axes, sources, strict=True):
        silent = source.step is dead or source.step is none
        assert _row_axes(y, [source]) == ([axis], not silent)
    assert _row_axes(y, [*sources[:5], *sources[7:]])[1]
    assert _row_axes(y[:1], sources[:1]) == ([None], True)
    assert _row_axes(y[:3], sources[5:6])[1] is False


@pytest.mark.parametrize("places", [4, 8])
@pytest.mark.parametrize("alive", [0, 3])
def test_rows_along_another_axis_keep_their_variances(places, alive):
    """As many places as rows, or a multiple: one place counts, or the first rows do not."""
    x, W, on = (
        rows(4, places),
        rows(places, 3, seed=1),
        (torch.arange(4) >= alive).double()[:, None],
    )
    W[1:] = W[1:] if alive else 0.0
    net = nn.Sequential(Run(lambda v: v.T), nn.Dropout(0.3), Run(lambda v: (v.T @ W) * on))
    expected = torch.einsum("ri,ik,il->rkl", x**2 * 0.3 / 0.7, W, W) * on[:, :, None]
    torch.testing.assert_close(carry(net, x).covariances(), expected)


def test_layers_that_are_off_or_drawn():
    x = rows(2, 2, 4, 4)
    for layer in (Dropout(0.5, seed=1), DropBlock2d(0.3, 2, seed=1)):
        net = nn.Sequential(layer, nn.Flatten())
        off = carry(net, x, active=())
        torch.testing.assert_close(off.output.mean, x.flatten(1))
        drawn = carry(net, x, drawn={"0"})
        assert drawn.drawn == ("0",)
        assert bool((drawn.output.mean == 0).any())
        assert not drawn.variances().any()
        one = carry(net, x)
        law = layer.mask_covariance((2, 2, 4, 4))
        torch.testing.assert_close(one.variances().reshape(x.shape),
                                   x**2 * law.relative_variance(x))  # fmt: skip


LAYERS = {
    "units": lambda: Dropout(0.5, seed=1),
    "shared": lambda: Dropout(0.5, shared_axes=(1, 3), seed=1),
    "blocks": lambda: DropBlock2d(0.3, 2, seed=1),
    "covariance": lambda: CovarianceDropout([0.5, 1.0], 0.3 * np.eye(2) + 0.1, axis=1, seed=1),
    "weights": lambda: DropConnectLinear(4, 3, drop_prob=0.4, seed=1),
    "kernel": lambda: DropConnectConv2d(2, 3, 2, drop_prob=0.4, seed=1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_is_drawn_does_what_it_does_in_training(name):
    """By its own seed; what came before is carried through what it drew."""
    torch.manual_seed(0)
    layer, x = LAYERS[name]().double(), rows(2, 2, 4, 4)

    def trained(v):
        return copy.deepcopy(layer).train()(v)

    net = nn.Sequential(Run(lambda v: v + 0.5 * torch.randn_like(v)), layer)
    one = carry(net, x, drawn={"1"})
    J = torch.autograd.functional.jacobian(lambda v: trained(v).flatten(1), x)
    J = torch.stack([J[i, :, i].flatten(1) for i in range(2)])
    torch.testing.assert_close(one.output.mean, trained(x))
    torch.testing.assert_close(one.covariances(), 0.25 * J @ J.mT)
    torch.testing.assert_close(one.variances().flatten(1), 0.25 * (J * J).sum(2))
    assert one.drawn == ("1",)
    assert one.output.exact


def test_layers_that_drop_nothing_are_no_noise():
    for layer in (Dropout(0.0), DropBlock2d(0.0, 2), DropConnectLinear(4, 3, drop_prob=0.0),
                  DropConnectConv2d(2, 3, 2, drop_prob=0.0)):  # fmt: skip
        one = carry(nn.Sequential(layer.double(), nn.Flatten()), rows(2, 2, 4, 4))
        assert one.noises == ()
        assert not one.output.noises


def test_masks_of_random_tensors_have_all_covariances():
    """Cov = S + Gamma o (S + E[x] E[x]')."""
    x = rows(2, 3)
    net = nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 4), nn.Dropout(0.4)).double()
    one = carry(net, x)
    J = net[1].weight.detach()
    mean = x @ J.T + net[1].bias.detach()
    S = torch.einsum("ri,ki,li->rkl", x**2 * 0.3 / 0.7, J, J)
    Gamma = 0.4 / 0.6 * torch.eye(4).double()
    full = S + Gamma * (S + mean[:, :, None] * mean[:, None])
    torch.testing.assert_close(one.covariances().detach(), full)
    assert one.output.exact
    blocks = nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 4), nn.Unflatten(1, (2, 2)),
                           nn.Dropout1d(0.4), nn.Flatten()).double()  # fmt: skip
    blocks[1].load_state_dict(net[1].state_dict())
    Gamma = 0.4 / 0.6 * torch.kron(torch.eye(2), torch.ones(2, 2)).double()
    full = S + Gamma * (S + mean[:, :, None] * mean[:, None])
    torch.testing.assert_close(carry(blocks, x).covariances().detach(), full)


def test_moments_of_tapes_are_put_and_forgotten():
    assert str(Uncarried({"noise"}, "cross")) == "cross"
    tape = Tape(None, (), False, False, Sources({}))
    mean = torch.ones(2)
    noisy = Moment(mean, mean, tape.later(lambda: mean), frozenset({"noise"}))
    handle = tape.put(noisy)
    assert handle is not mean
    assert tape.get(handle) is noisy
    assert tape.get(mean) is None
    plain = tape.certain(mean)
    assert tape.put(plain) is mean
    assert tape.noisy([handle, mean]) == [noisy]
    own = torch.zeros(2)
    assert tape.put(noisy, own) is own
    assert tape.of(mean).variance.tolist() == [0.0, 0.0]
    assert not tape._affordable(SimpleNamespace(mean=torch.zeros(3)))
    assert tape._affordable(SimpleNamespace(mean=torch.zeros(3, 2, 256)))
    assert not tape._affordable(SimpleNamespace(mean=torch.zeros(3, 2, 257)))
    assert math.prod((2, 256)) == tape.settle


@pytest.mark.parametrize("variance", [0.0, 1e-25, 1e-21])
def test_tiny_variances_of_sources_have_no_gradient_in_a_probe(variance):
    v = torch.full((4,), variance, requires_grad=True)
    t = Tape(None, (), True, True, Sources({})).source(v)
    assert float(t.detach().abs().max()) < 1e-9
    assert not torch.autograd.grad(t.sum(), v)[0].any()


def test_noise_before_a_function_that_draws_is_drawn():
    lstm = nn.LSTM(4, 4, 2, dropout=0.4, batch_first=True)
    net = nn.Sequential(nn.Dropout(0.3), lstm, Run(lambda found: found[0][:, -1]))
    assert carry(net, torch.ones(3, 5, 4)).drawn == ("0", "1:lstm")


def test_tangents_of_deep_networks_do_not_nest():
    def deep(v):
        for _ in range(1500):
            v = v + 1.0
        return v @ W

    x, W = rows(2, 3), rows(3, 2, seed=1)
    one = carry(nn.Sequential(nn.Dropout(0.3), Run(deep)), x)
    expected = torch.einsum("ri,ik,il->rkl", x**2 * 0.3 / 0.7, W, W)
    torch.testing.assert_close(one.covariances(), expected)


def test_maxima_are_exact_only_where_units_are_dropped_alone():
    x = rows(1, 2, 2, 4).abs() + 0.1
    for noise, exact in ((nn.Dropout(0.3), True), (nn.Dropout2d(0.3), False)):
        one = carry(nn.Sequential(noise, nn.MaxPool2d(2), nn.Flatten()), x)
        assert one.output.exact == exact
    masks, prob = patterns(4, 0.7)
    window = x[0, 0, :, :2].flatten()
    values = (masks * window / 0.7).amax(1)
    mean = prob @ values
    one = carry(nn.Sequential(nn.Dropout(0.3), nn.MaxPool2d(2), nn.Flatten()), x)
    torch.testing.assert_close(one.output.mean[0, 0], mean)
    torch.testing.assert_close(one.variances()[0, 0], prob @ (values - mean) ** 2)
    kept = carry(nn.Sequential(nn.Dropout(0.3), nn.MaxPool2d(2), nn.Flatten()), x, active=())
    torch.testing.assert_close(kept.output.mean, functional.max_pool2d(x, 2).flatten(1))


def moved(f, sd, x):
    """The moment of f of normal entries of mean x and deviations sd."""
    net = Run(lambda v: f(v + sd * torch.randn(v.shape, dtype=v.dtype)))
    return carry(net, x).output


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
def test_softmax_to_second_order(name):
    x, sd = rows(2, 4), 0.1 * rows(2, 4, seed=1).abs() + 0.1
    f = getattr(functional, name)
    found = moved(lambda v: f(v, -1), sd, x)
    for i in range(2):
        J = torch.autograd.functional.jacobian(lambda v: f(v, -1), x[i])
        second = torch.stack([
            torch.autograd.functional.hessian(lambda v, k=k: f(v, -1)[k], x[i]).diagonal()
            for k in range(4)
        ])  # fmt: skip
        torch.testing.assert_close(found.mean[i], f(x[i], -1) + second @ sd[i] ** 2 / 2)
        torch.testing.assert_close(found.variance[i], J**2 @ sd[i] ** 2)
    low = moved(lambda v: f(v.float(), -1, dtype=torch.float64), sd, x)
    torch.testing.assert_close((low.mean, low.variance), (found.mean, found.variance), rtol=1e-5,
                               atol=1e-7)  # fmt: skip
    hidden = moved(lambda v: f(v.masked_fill(torch.arange(4) == 2, -torch.inf), -1), sd, x)
    if name == "softmax":
        assert not hidden.mean[:, 2].any()
        kept = [0, 1, 3]
        torch.testing.assert_close(
            hidden.mean[:, kept], moved(lambda v: f(v, -1), sd[:, kept], x[:, kept]).mean
        )


NORMS = {
    "layer": (lambda v: functional.layer_norm(v, (4,)), True),
    "layer-eps": (lambda v: functional.layer_norm(v, (4,), eps=0.3), True),
    "rms": (lambda v: functional.rms_norm(v, (4,)), False),
    "group": (lambda v: functional.group_norm(v, 1), True),
}


@pytest.mark.parametrize("name", NORMS)
def test_normalizations_by_their_jacobian(name):
    """u = (x - mean) r, r by the expected variance; J = r (I - 1/d - u u'/d)."""
    f, center = NORMS[name]
    x, sd = rows(3, 4), 0.3 * rows(3, 4, seed=2).abs() + 0.1
    found = moved(f, sd, x)
    one = 1.0 if center else 0.0
    m = x - one * x.mean(1, keepdim=True)
    eps = {"layer-eps": 0.3, "rms": torch.finfo(torch.float64).eps}.get(name, 1e-5)
    spread = (sd**2 * (1 - one / 4) + m**2).mean(1, keepdim=True)
    r = (spread + eps) ** -0.5
    u = m * r
    torch.testing.assert_close(found.mean, u)
    for i in range(3):
        J = r[i] * (torch.eye(4).double() - one / 4 - torch.outer(u[i], u[i]) / 4)
        torch.testing.assert_close(found.variance[i], J**2 @ sd[i] ** 2)


def test_batch_statistics_are_those_of_the_batch_without_noise():
    x, sd = rows(5, 3), 0.2
    norm = nn.BatchNorm1d(3).double()
    norm.weight.data, norm.bias.data = rows(3, seed=3), rows(3, seed=4)
    norm.running_var[:], norm.running_mean[:] = 2.0, 0.5
    for training, statistics in ((False, "running"), (True, "as set")):
        norm.train(training)
        net = nn.Sequential(Run(lambda v: v + sd * torch.randn(v.shape, dtype=v.dtype)), norm)
        one = carry(net, x, statistics=statistics)
        spread = x.var(0, unbiased=False) if training else norm.running_var
        center = x.mean(0) if training else norm.running_mean
        scale = norm.weight / (spread + 1e-5).sqrt()
        torch.testing.assert_close(one.output.mean, (x - center) * scale + norm.bias)
        torch.testing.assert_close(one.output.variance, (sd * scale).square().expand(5, 3))
        assert one.output.exact != training


COMPARED = {
    "floor": (lambda v: torch.floor(torch.rand(v.shape, dtype=v.dtype) + 0.8), 0.8),
    "floor-in-place": (lambda v: (torch.rand(v.shape, dtype=v.dtype) + 0.3).floor_(), 0.3),
    "not": (lambda v: (~(torch.rand(v.shape, dtype=v.dtype) < 0.3)).to(v.dtype), 0.7),
    "tensor": (lambda v: (torch.rand(v.shape, dtype=v.dtype) < torch.tensor(0.3)).to(v.dtype), 0.3),
    "shifted": (lambda v: (torch.rand(v.shape, dtype=v.dtype) - 0.5 > 0.2).to(v.dtype), 0.3),
    "never": (lambda v: (torch.rand(v.shape, dtype=v.dtype) > 2).to(v.dtype), 0.0),
    "always": (lambda v: (torch.rand(v.shape, dtype=v.dtype) < 2).to(v.dtype), 1.0),
    "below-never": (lambda v: (torch.rand(v.shape, dtype=v.dtype) <= -1).to(v.dtype), 0.0),
    "above-always": (lambda v: (torch.rand(v.shape, dtype=v.dtype) >= -1).to(v.dtype), 1.0),
}


@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_toss_coins(name):
    make, prob = COMPARED[name]
    x = rows(2, 3)
    one = carry(Run(lambda v: v * make(v)), x)
    torch.testing.assert_close(one.output.mean, prob * x, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(one.variances(), prob * (1 - prob) * x**2, rtol=1e-6, atol=1e-9)
    assert not one.drawn


@pytest.mark.parametrize("f", [
    lambda v: torch.floor(2 * torch.rand(v.shape, dtype=v.dtype)),
    lambda v: torch.floor(torch.rand(v.shape, dtype=v.dtype) + 1.5),
    lambda v: (functional.dropout(v, 0.5, True) > 0.1).to(v.dtype),
    lambda v: torch.div(functional.dropout(v, 0.5, True), 2, rounding_mode="floor"),
    lambda v: functional.dropout(v, 0.5, True) * float(functional.dropout(v, 0.5, True).sum()),
])  # fmt: skip
def test_what_needs_values_is_drawn(f):
    assert carry(Run(f), rows(2, 3)).drawn


def test_entries_stay_independent_only_where_all_parts_are():
    M = rows(3, 3, seed=5)

    def alone(v, p=0.3):
        return functional.dropout(v, p, True)

    def mixes(v, p=0.4):
        return functional.dropout(v, p, True) @ M

    cases = [
        (lambda v: torch.cat([alone(v), alone(v, 0.4)], 1), True),
        (lambda v: torch.cat([alone(v), mixes(v)], 1), False),
        (lambda v: torch.cat([mixes(v), alone(v)], 1), False),
        (lambda v: torch.cat([alone(v), v], 1), True),
        (lambda v: torch.cat([h := alone(v), h], 1), False),
        (lambda v: alone(v) + alone(v, 0.4), True), (lambda v: alone(v) + mixes(v), False),
        (lambda v: (h := alone(v)) + h, False), (lambda v: alone(v) - v, True),
        (lambda v: alone(v) * alone(v, 0.4), True), (lambda v: alone(v) * mixes(v), False),
        (lambda v: torch.where(v > 0, alone(v), alone(v, 0.4)), True),
        (lambda v: torch.where(v > 0, alone(v), mixes(v)), False),
        (lambda v: torch.where(v > 0, h := alone(v), h.flip(1)), False),
        (lambda v: alone(v)[:, 1:], True), (lambda v: alone(v)[:, [0, 0]], False),
        (lambda v: alone(v).T.reshape(2, 3), True), (lambda v: alone(v).relu(), True),
        (lambda v: mixes(v).relu(), False), (lambda v: alone(v).softmax(1), False),
        (lambda v: functional.pad(alone(v), (1, 0)), True),
        (lambda v: functional.pad(alone(v)[:, None], (1, 0), mode="circular")[:, 0], False),
        (lambda v: alone(v).masked_fill(v > 0, 2.0), True), (lambda v: alone(v).sum(1), False),
    ]  # fmt: skip
    for k, (f, expected) in enumerate(cases):
        one = carry(Run(f), rows(2, 3))
        assert one.output.independent == expected, k


def divided(name, x, *args, **named):
    """The divisor of an average, of a call with these arguments."""
    names = dict(zip(("input", "kernel_size", "stride", "padding"), (x, *args), strict=False))
    call = SimpleNamespace(
        name=name, named=lambda: names | named,
        argument=lambda i, key, default=None: ((x, *args)[i] if i <= len(args)
                                               else named.get(key, default)),
    )  # fmt: skip
    return bilinear._divisor(call, x)


def test_averages_divide_by_what_they_see():
    x = torch.zeros(2, 3, 8, 6)
    for name, args, named, expected in (
        ("mean", (), {}, 288.0), ("mean", (1,), {}, 3.0), ("mean", ((2, 3),), {}, 48.0),
        ("mean", (), {"dim": -1}, 6.0), ("mean", (), {"axis": 0}, 2.0), ("mean", ((),), {}, 288.0),
        ("avg_pool2d", (2,), {}, 4.0), ("avg_pool2d", ((2, 3),), {}, 6.0),
        ("avg_pool1d", (3,), {}, 3.0), ("avg_pool2d", (2,), {"padding": (0, 0)}, 4.0),
        ("avg_pool2d", (2,), {"padding": 1}, None), ("avg_pool2d", (2,), {"ceil_mode": True}, None),
        ("avg_pool2d", (2,), {"divisor_override": 3}, None),
        ("adaptive_avg_pool2d", (2,), {}, 12.0),
        ("adaptive_avg_pool2d", ((4, 3),), {}, 4.0), ("adaptive_avg_pool2d", ((4, None),), {}, 2.0),
        ("adaptive_avg_pool2d", (5,), {}, None), ("adaptive_avg_pool1d", (3,), {}, 2.0),
        ("interpolate", (3,), {}, None),
    ):  # fmt: skip
        assert divided(name, x, *args, **named) == expected, (name, args, named)


def test_averages_without_one_divisor_are_spread_by_signs():
    x, sd = rows(2, 1, 6), 0.3 * rows(2, 1, 6, seed=6).abs()
    found = moved(lambda v: functional.avg_pool1d(v, 3, 2, 1), sd, x)
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (16, 2, 1, 6), generator=generator)
    parts = [functional.avg_pool1d(sd * (2 * s - 1), 3, 2, 1) ** 2 for s in signs]
    even = moved(lambda v: functional.avg_pool1d(v, 3, 3), sd, x)
    torch.testing.assert_close(even.variance, functional.avg_pool1d(sd**2, 3, 3) / 3)
    assert even.known
    odd = moved(lambda v: functional.avg_pool1d(v, 3, 2, 1, ceil_mode=True), sd, x)
    torch.testing.assert_close(found.mean, functional.avg_pool1d(x, 3, 2, 1))
    assert not odd.known
    assert not found.known
    torch.testing.assert_close(found.variance, torch.stack(parts).mean(0))
