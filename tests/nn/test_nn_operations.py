"""Every operation that noise goes through: all masks where it is affine, its Jacobian elsewhere."""

import numpy as np
import pytest
import torch
from helpers import assert_mean_within_standard_errors, bernoulli_patterns
from scipy import stats
from torch import nn
from torch.nn import functional

from overt.nn import CovarianceDropout, DropBlock1d, DropConnectLinear, Dropout
from overt.nn.moments.adjoint import Sources
from overt.nn.moments.carry import carry
from overt.nn.moments.entries import Bent, leaky_relu_moments, moments_of, relu_moments
from overt.nn.moments.tape import Moment, Tape

DROP, EPS = 0.3, 1e-4
torch.manual_seed(5)
W3, W4, B = torch.randn(3, 4).double(), torch.randn(4, 2).double(), torch.randn(2, 3).double()
K1, K2 = torch.randn(3, 2, 2).double(), torch.randn(1, 1, 2, 2).double()
EVEN = torch.tensor([[True, False, True], [False, False, True]])
COLS = torch.tensor([2, 0, 0])
ONES = torch.ones(6).double()
ATTENDS = nn.MultiheadAttention(3, 3, batch_first=True).double().requires_grad_(False)


class After(nn.Module):
    """x with noise, an operation, and a fixed map that mixes all entries of a row."""

    def __init__(self, noise, operation):
        super().__init__()
        self.noise, self.operation = noise, operation

    def forward(self, x):
        h = self.operation(self.noise(x)).flatten(1)
        return h @ torch.arange(3.0 * h.shape[1], dtype=h.dtype).square().cos().reshape(-1, 3)


class Called(nn.Module):
    """An operation as a module."""

    def __init__(self, operation):
        super().__init__()
        self.operation = operation

    def forward(self, x):
        return self.operation(x)


def overwritten(h):
    h = h.clone()
    h[:, 0, 1:] = h[:, 1, :2] * 3
    h[:, 1] = h[:, 1] + 2
    return h


def in_place(h):
    h = h.clone()
    h.mul_(B)
    h.sub_(1.5)
    h.neg_()
    return h.div_(4.0).add_(h, alpha=0.5)


def parts_in_place(h):
    q, k, v = (h.flatten(1) @ torch.eye(6).double()).chunk(3, 1)  # which lie in one memory
    q.mul_(3.0)
    k[:, 0].sub_(v[:, 1])
    return q + 2 * v


def changed(move):
    """An operation that makes a copy h, a view v of it, one w of v, and changes one of these."""

    def operation(x):
        h = x * 1.0
        v = h[:, :1]
        w = v[..., :2]
        return move({"h": h, "v": v, "w": w, "far": h[:, 1], "x": x})

    return operation


def buffered(read):
    def operation(h):
        b = torch.zeros(h.shape, dtype=h.dtype)
        early = b[:, 0]
        return read(b, early, h)

    return operation


AFFINE = {
    "spread": lambda h: h[:, :1] * B,
    "matmul-spread": lambda h: (h @ W3[:, :3])[:, :1] * B,
    "spread-columns": lambda h: B * h[:, :, 1:2],
    "spread-sum": lambda h: h[:, :1] + B,
    "add": lambda h: torch.add(h, B, alpha=2) + 1,
    "add-broadcast": lambda h: h[:, :1] + B,
    "sub-broadcast": lambda h: B - h[:, 1:],
    "sub": lambda h: torch.sub(B, h, alpha=3) - h,
    "rsub": lambda h: torch.rsub(h, B, alpha=2),
    "one-minus": lambda h: 1 - h,
    "neg": lambda h: -h,
    "mul": lambda h: B * h * 2,
    "div": lambda h: h / B / 3,
    "twice": lambda h: h + 2 * h.flip(-1),
    "sum": lambda h: h.sum(1),
    "sum-keepdim": lambda h: h.sum(-1, keepdim=True),
    "sum-all": lambda h: h.sum((1, 2), keepdim=True),
    "mean": lambda h: h.mean(2),
    "mean-pair": lambda h: torch.mean(h, dim=(1, 2), keepdim=True),
    "cumsum": lambda h: h.cumsum(2),
    "center": lambda h: h - h.mean(-1, keepdim=True),
    "matmul": lambda h: h @ W3,
    "rmatmul": lambda h: W4 @ h,
    "matvec": lambda h: h @ W3[:, 0],
    "bmm": lambda h: torch.bmm(h, W3.expand(len(h), 3, 4)),
    "addmm": lambda h: torch.addmm(h[:, 0], h[:, 1], W3[:, :3], beta=0.5, alpha=2),
    "addmm-nothing": lambda h: torch.addmm(h[:, 0], h[:, 1], W3[:, :3], beta=0),
    "addmv": lambda h: torch.addmv(B[0, 0], h[:, 0], W3[:, 1], alpha=2)[:, None],
    "baddbmm": lambda h: torch.baddbmm(h[:, :1], h, W3[:, :3].expand(len(h), 3, 3), beta=3),
    "einsum": lambda h: torch.einsum("nij,jk->nki", h, W3),
    "einsum-one": lambda h: torch.einsum("nij->nj", h),
    "einsum-three": lambda h: torch.einsum("nij,jk,kl->nil", h, W3, W4),
    "linear": lambda h: functional.linear(h, W3.T, W3[0]),
    "conv1d": lambda h: functional.conv1d(h, K1, K1[:, 0, 0], padding=1),
    "conv1d-stride": lambda h: functional.conv1d(h, K1, stride=2),
    "conv1d-groups": lambda h: functional.conv1d(h, K1[:2, :1], groups=2),
    "conv2d": lambda h: functional.conv2d(h[:, None], K2, B[0, :1]),
    "conv-transpose": lambda h: functional.conv_transpose1d(h, K1[:2]),
    "avg-pool": lambda h: functional.avg_pool1d(h, 2, 1),
    "adaptive-pool": lambda h: functional.adaptive_avg_pool1d(h, 2),
    "upsample": lambda h: functional.interpolate(h, scale_factor=2, mode="linear"),
    "reshape": lambda h: h.reshape(-1, 3, 2)[:, 1:],
    "view": lambda h: (h[:, :1] + B).view(len(h), 6),
    "transpose": lambda h: h.transpose(1, 2)[:, 0],
    "permute": lambda h: h.permute(0, 2, 1)[:, :2],
    "T": lambda h: h.mT[:, 1],
    "flip": lambda h: h.flip(2)[..., :1],
    "roll": lambda h: h.roll(1, 2)[..., :2],
    "unsqueeze": lambda h: (h.unsqueeze(1) * B.unsqueeze(1))[:, 1],
    "expand": lambda h: h[:, :1].expand(-1, 2, -1) * B,
    "repeat": lambda h: h.repeat(1, 2, 1)[:, 1:3],
    "repeat-interleave": lambda h: h.repeat_interleave(2, 1)[:, 1:],
    "slice": lambda h: h[:, 1, 1:],
    "index": lambda h: h[..., COLS],
    "mask": lambda h: h[:, EVEN],
    "index-select": lambda h: h.index_select(2, COLS),
    "gather": lambda h: h.gather(2, COLS.expand(len(h), 2, 3)),
    "unbind": lambda h: 2 * h.unbind(1)[1] - h.unbind(1)[0],
    "chunk": lambda h: h.chunk(2, 1)[1],
    "split": lambda h: h.split([1, 2], 2)[1],
    "cat": lambda h: torch.cat([h[:, 1:], B.expand(len(h), 2, 3), h], 1),
    "stack": lambda h: torch.stack([h[:, 1], h[:, 0], B[:1].expand(len(h), 3)], 2),
    "pad": lambda h: functional.pad(h, (1, 2), value=5.0),
    "pad-circular": lambda h: functional.pad(h, (1, 0), mode="circular"),
    "masked-fill": lambda h: h.masked_fill(EVEN, 7.0),
    "masked-fill-named": lambda h: h.masked_fill(mask=EVEN, value=7.0),
    "index-fill": lambda h: h.index_fill(2, COLS[:2], 5.0),
    "index-fill-named": lambda h: h.index_fill(2, COLS[:1], value=5.0),
    "pad-named": lambda h: functional.pad(h, (1, 0), mode="constant", value=2.0),
    "pad-places": lambda h: functional.pad(h, (0, 1), "constant", 2.0),
    "where": lambda h: torch.where(EVEN, h, B),
    "where-spread": lambda h: torch.where(EVEN, h[:, :1], B),
    "where-spread-other": lambda h: torch.where(EVEN, B, h[..., 1:2]),
    "where-both": lambda h: torch.where(EVEN, h, 2 * h.flip(1)),
    "method-where": lambda h: h.where(EVEN, torch.tensor(3.0).double()),
    "tril": lambda h: h.tril(),
    "diagonal": lambda h: h.diagonal(dim1=1, dim2=2),
    "overwritten": overwritten,
    "in-place": in_place,
    "parts-in-place": parts_in_place,
    "changed-itself": changed(lambda t: t["w"].mul_(3.0) + t["w"]),
    "changed-elsewhere": changed(lambda t: t["w"].mul_(3.0)[:, 0] + t["far"][:, :2]),
    "changed-copy": changed(lambda t: t["h"].mul_(3.0) + t["x"]),
    "changed-then-seen": changed(lambda t: t["h"].mul_(3.0)[:, 0] + t["h"][:, 1]),
    "buffer": buffered(lambda b, v, h: b.copy_(h)[:, 0] + b[:, 1]),
    "copied": lambda h: torch.empty(len(h), 2, 3).double().copy_(h) * 2,
    "detach": lambda h: h + h.detach().flip(1),
    "batch-norm-bare": lambda h: functional.batch_norm(h, B[:, 0], B[:, 1] ** 2 + 1),
    "filled": lambda h: h * (h * 1.0).fill_(3.0) + torch.full_like(h, 2.0),
    "zeroed": lambda h: h + (2 * h).zero_(),
    "lerp": lambda h: torch.lerp(h, B.expand_as(h), 0.3),
}
ENTRYWISE = {
    "relu": torch.relu,
    "leaky": lambda h: functional.leaky_relu(h, 0.2),
    "abs": torch.abs,
    "square": torch.square,
    "self-product": lambda h: h * h,
    "cube": lambda h: h**3,
    "clamp": lambda h: h.clamp(-0.4, 0.9),
    "exp": torch.exp,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "elu": functional.elu,
    "softplus": functional.softplus,
    "hardswish": functional.hardswish,
    "sin": torch.sin,
    "tanh-in-place": lambda h: h.clone().tanh_(),
    "elu-in-place": lambda h: functional.elu(h.clone(), inplace=True),
}
SMOOTH = {
    "sqrt": lambda h: (h.abs() + 1).sqrt(),
    "log": lambda h: (h * h + 0.5).log(),
    "reciprocal": lambda h: 1 / (h * h + 1),
    "quotient": lambda h: h[:, 0] / (h[:, 1] ** 2 + 2),
    "product": lambda h: h[:, 0] * h[:, 1],
    "gated": lambda h: torch.sigmoid(h @ W3[:, :3]) * h,
    "glu": lambda h: functional.glu(h, 1),
    "random-matmul": lambda h: h @ h.mT,
    "einsum-both": lambda h: torch.einsum("nij,nkj->nik", h, 2 * h + 1),
    "softmax": lambda h: h.softmax(-1),
    "softmax-masked": lambda h: h.masked_fill(EVEN, -torch.inf).softmax(-1),
    "softmin": lambda h: functional.softmin(h, -1),
    "softmax-dim": lambda h: functional.softmax(h, 1),
    "log-softmax": lambda h: h.log_softmax(2),
    "logsumexp": lambda h: h.logsumexp(2),
    "layer-norm": lambda h: functional.layer_norm(h, (3,), B[0], B[1]),
    "layer-norm-two": lambda h: functional.layer_norm(h, (2, 3)),
    "group-norm": lambda h: functional.group_norm(h, 1, B[:, 0], B[:, 1]),
    "instance-norm": lambda h: functional.instance_norm(h),
    "rms-norm": lambda h: functional.rms_norm(h, (3,), B[0]),
    "batch-norm": lambda h: functional.batch_norm(h, B[:, 0], B[:, 1] ** 2 + 1, B[:, 2], B[:, 1]),
    "normalize": lambda h: functional.normalize(h, dim=-1),
    "max-pool": lambda h: functional.max_pool1d(h, 2, 1),
    "amax": lambda h: h.amax(2),
    "amin": lambda h: h.amin(1),
    "max": lambda h: h.max(2).values,
    "min": lambda h: h.min(1)[0],
    "maximum": lambda h: torch.maximum(h, B),
    "minimum": lambda h: torch.minimum(h[:, 0], h[:, 1]),
    "sort": lambda h: h.sort(2).values * B,
    "topk": lambda h: h.topk(2, 2).values[..., 1],
    "norm": lambda h: h.norm(dim=2),
    "var": lambda h: h.var(2),
    "prod": lambda h: h.prod(2),
    "prelu": lambda h: functional.prelu(h, B[:, 0]),
    "attention": lambda h: functional.scaled_dot_product_attention(h, 2 * h, h + B),
    "causal": lambda h: functional.scaled_dot_product_attention(
        h @ W3[:, :3], h, h, is_causal=True),
    "attention-mask": lambda h: functional.scaled_dot_product_attention(
        h, h, h.flip(2), attn_mask=torch.tensor([[0.0, 0.4], [-0.3, 0.2]]).double(), scale=0.7),
    "to-itself": lambda h: ATTENDS(h, h, h, need_weights=False)[0],
    "weights": lambda h: ATTENDS(h, h, h)[1],
    "index-copy": lambda h: h * 2 + h.index_copy(2, torch.tensor([2, 0, 1]), 3 * h),
    "power": lambda h: (B.abs() + 1) ** h,
    "both-powers": lambda h: (h.abs() + 1) ** h.flip(1),
    "unknown": lambda h: torch.cross(h[:, 0], 2 * h[:, 1], dim=-1),
}  # fmt: skip


ALONE = (*ENTRYWISE, "add", "rsub", "one-minus", "neg", "mul", "div", "reshape", "transpose",
         "permute", "T", "flip", "roll", "slice", "chunk", "split", "pad", "masked-fill", "tril",
         "diagonal")  # fmt: skip
"""Each entry of these comes from one of its own."""
ONE_MAP = ("spread", "spread-columns", "spread-sum", "matmul-spread", "add-broadcast", "sum",
           "mean", "sub-broadcast", "cumsum", "matmul", "rmatmul", "einsum", "linear", "conv1d",
           "expand", "conv-transpose", "repeat", "repeat-interleave", "index", "index-select",
           "gather", "pad-circular", "where", "where-spread")  # fmt: skip
"""One linear map of independent entries: variances are sums over squared coefficients."""


def rows():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(2, 2, 3, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", [*AFFINE, *ENTRYWISE])
def test_right_after_dropout_it_is_what_all_masks_give(name):
    """Affine operations, and any function of single entries, which take two values each."""
    x, operation = rows(), {**AFFINE, **ENTRYWISE}[name]
    one = carry(After(nn.Dropout(DROP), operation), x)
    masks, prob = (torch.as_tensor(a) for a in bernoulli_patterns(np.full(6, 1 - DROP)))
    silent = After(nn.Identity(), operation)
    outputs = torch.stack([silent(x * m.reshape(2, 3) / (1 - DROP)) for m in masks])
    mean = torch.einsum("m,mno->no", prob, outputs)
    away = outputs - mean
    covariance = torch.einsum("m,mno,mnp->nop", prob, away, away)
    torch.testing.assert_close(one.output.mean, mean, rtol=1e-8, atol=1e-8)
    variance = covariance.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(one.variances(), variance, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(one.covariances(), covariance, rtol=1e-8, atol=1e-8)
    assert not one.drawn
    # What is said of the result itself, before it is mixed, is true.
    bare = carry(nn.Sequential(nn.Dropout(DROP), Called(operation)), x).output
    outputs = torch.stack([operation(x * m.reshape(2, 3) / (1 - DROP)) for m in masks])
    away = (outputs - torch.tensordot(prob, outputs, 1)).flatten(2)
    covariance = torch.einsum("m,mno,mnp->nop", prob, away, away)
    variance = covariance.diagonal(dim1=1, dim2=2)
    if bare.known:
        torch.testing.assert_close(bare.variance.flatten(1), variance, rtol=1e-8, atol=1e-8)
    if bare.independent:
        torch.testing.assert_close(covariance, torch.diag_embed(variance), rtol=0, atol=1e-8)
    if name in ALONE:
        assert bare.independent
    if name in (*ALONE, *ONE_MAP):
        assert bare.known


@pytest.mark.parametrize("name", ENTRYWISE)
def test_zeros_and_ones_right_after_dropout_are_what_both_values_give(name):
    """An entry is 2 x or 0, by a coin of its own: its variance is (f(2 x) - f(0))^2 / 4."""
    x = torch.tensor([[0.0, 0.5, -0.5, 1.0]]).double()
    one = carry(nn.Sequential(nn.Dropout(0.5), Called(ENTRYWISE[name])), x)
    low, high = (ENTRYWISE[name](v) for v in (0 * x, 2 * x))
    torch.testing.assert_close(one.output.mean, (low + high) / 2)
    torch.testing.assert_close(one.covariances(), torch.diag_embed((high - low) ** 2 / 4))


STALE = {
    "parent": changed(lambda t: t["w"].mul_(3.0) + t["v"][..., :2]),
    "grandparent": changed(lambda t: t["w"].mul_(3.0) + t["h"][:, :1, :2]),
    "child": changed(lambda t: t["h"].mul_(3.0)[:, :1, :2] + t["w"]),
    "sibling": changed(lambda t: t["h"][:, 0].mul_(3.0)[:, None] + t["v"]),
    "entries": changed(lambda t: t["w"].__setitem__((0, 0, 0), 5.0) or t["h"]),
    "twice": changed(lambda t: t["h"].mul_(3.0)[:, :1].add_(1.0) + t["h"]),
    "buffer": buffered(lambda b, v, h: v.copy_(h[:, 0]) + b[:, 0]),
    "buffer-view": buffered(lambda b, v, h: v.copy_(h[:, 0]) + b[:, 1]),
    "buffer-early": buffered(lambda b, v, h: b.copy_(h)[:, 0] + v),
}


@pytest.mark.parametrize("name", STALE)
def test_what_was_changed_under_another_name_is_drawn(name):
    assert carry(After(nn.Dropout(DROP), STALE[name]), rows()).drawn == ("noise",)


def blank(h):
    return torch.empty(h.shape, dtype=h.dtype)


NUMBERS = {  # draws, the law of each, and a comparison with the probability that it is true
    "rand": (lambda h: torch.rand(h.shape, dtype=h.dtype), stats.uniform(), lambda z: z < 0.3),
    "rand-cast": (
        lambda h: torch.rand(h.shape).to(h.dtype).clone().detach(),
        stats.uniform(),
        lambda z: z < 0.3,
    ),
    "rand-like": (torch.rand_like, stats.uniform(), lambda z: z >= 0.7),
    "randn": (lambda h: torch.randn(*h.shape, dtype=h.dtype), stats.norm(), lambda z: z > 0.3),
    "randn-like": (torch.randn_like, stats.norm(), lambda z: z <= -0.4),
    "uniform": (lambda h: blank(h).uniform_(-1, 3), stats.uniform(-1, 4), lambda z: z < 0.5),
    "normal": (lambda h: blank(h).normal_(0.2, 0.7), stats.norm(0.2, 0.7), lambda z: z > 0.5),
    "normal-size": (
        lambda h: torch.normal(0.2, 0.7, h.shape, dtype=h.dtype),
        stats.norm(0.2, 0.7),
        lambda z: z < 0.1,
    ),
    "exponential": (
        lambda h: blank(h).exponential_(2.0),
        stats.expon(scale=0.5),
        lambda z: z <= 0.4,
    ),
    "uniform-untold": (lambda h: blank(h).uniform_(), stats.uniform(), lambda z: z < 0.3),
    "uniform-to": (lambda h: blank(h).uniform_(to=3), stats.uniform(0, 3), lambda z: z > 0.5),
    "normal-untold": (lambda h: blank(h).normal_(), stats.norm(), lambda z: z > 0.5),
    "normal-named": (
        lambda h: blank(h).normal_(mean=0.2, std=0.7),
        stats.norm(0.2, 0.7),
        lambda z: z > 0.5,
    ),
    "normal-of": (lambda h: torch.normal(0 * h + 0.2, 0 * h + 0.7), stats.norm(0.2, 0.7), None),
    "exponential-untold": (lambda h: blank(h).exponential_(), stats.expon(), lambda z: z <= 0.4),
    "bernoulli-untold": (lambda h: blank(h).bernoulli_(), stats.bernoulli(0.5), None),
    "bernoulli": (lambda h: blank(h).bernoulli_(0.3), stats.bernoulli(0.3), None),
    "bernoulli-of": (lambda h: torch.bernoulli(0 * h + 0.3), stats.bernoulli(0.3), None),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_drawn_have_the_moments_of_their_law(name):
    draw, law, compare = NUMBERS[name]
    x, mix = rows(), After(nn.Identity(), lambda h: h)
    J = torch.autograd.functional.jacobian(mix, x)[0, :, 0].flatten(1)
    cases = [(draw, law.mean(), law.var())]
    if compare is not None:
        said = [c for c in compare.__code__.co_consts if isinstance(c, float)]  # or unsigned
        edge = law.cdf(next(c for c in said if compare(c - 1e-9) != compare(c + 1e-9)))
        prob = 1 - edge if bool(compare(torch.tensor(99.0))) else edge
        cases.append((lambda h: compare(draw(h)).to(h.dtype), prob, prob * (1 - prob)))
    for make, mean, variance in cases:

        class Noise(nn.Module):
            def forward(self, x, make=make):
                return x + x * make(x)

        one = carry(After(Noise(), lambda h: h), x)
        torch.testing.assert_close(one.output.mean, mix(x * (1 + mean)), rtol=1e-6, atol=1e-6)
        for i, row in enumerate(x):
            expected = variance * (J * row.flatten() ** 2) @ J.T
            torch.testing.assert_close(one.covariances()[i], expected, rtol=1e-6, atol=1e-6)
        assert not one.drawn


PAIRS = {  # of two tensors with noises of their own
    "product": lambda a, b: a * b,
    "mixed-product": lambda a, b: a * (b @ W3[:, :3]),
    "product-mixed": lambda a, b: (a @ W3[:, :3]) * b,
    "twice-mixed-product": lambda a, b: a * (b @ W3[:, :3] @ W3[:, 1:]),
    "product-twice-mixed": lambda a, b: (a @ W3[:, :3] @ W3[:, 1:]) * b,
    "sum": lambda a, b: a - 2 * b @ W3[:, :3],
    "dot": lambda a, b: (a * b).sum(1, keepdim=True),
    "einsum": lambda a, b: torch.einsum("ni,ni->n", a, b)[:, None],
    "bmm": lambda a, b: torch.bmm(a[:, None], b[:, :, None])[:, 0],
    "bmm-correlated": lambda a, b: torch.bmm(a[:, None], (b @ W3[:, :3])[:, :, None])[:, 0],
    "correlated-bmm": lambda a, b: torch.bmm((a @ W3[:, :3])[:, None], b[:, :, None])[:, 0],
    "outer": lambda a, b: a[:, :, None] @ b[:, None],
    "cat": lambda a, b: torch.cat([b, a], 1),
    "where": lambda a, b: torch.where(EVEN[0], a, b),
    "where-mixed": lambda a, b: torch.where(EVEN[0], a, b @ W3[:, :3] @ W3[:, 1:]),
    "mixed-where": lambda a, b: torch.where(EVEN[0], a @ W3[:, :3] @ W3[:, 1:], b),
    "cat-mixed": lambda a, b: torch.cat([b, a @ W3[:, :3] @ W3[:, 1:]], 1),
    "sum-mixed": lambda a, b: b + a @ W3[:, :3] @ W3[:, 1:],
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_noises_that_meet_are_what_all_masks_give(name):
    x = rows()

    class Both(nn.Module):
        def __init__(self, first, second):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            return PAIRS[name](self.first(x[:, 0]), self.second(x[:, 1]))

    one = carry(Both(nn.Dropout(DROP), nn.Dropout(0.6)), x)
    keep = np.repeat([1 - DROP, 0.4], 3)
    masks, prob = (torch.as_tensor(a) for a in bernoulli_patterns(keep))
    plain = Both(nn.Identity(), nn.Identity())
    scaled = (masks / torch.as_tensor(keep)).reshape(-1, 2, 3)
    outputs = torch.stack([plain(x * m).flatten(1) for m in scaled])
    mean = torch.einsum("m,mno->no", prob, outputs)
    away = outputs - mean
    covariance = torch.einsum("m,mno,mnp->nop", prob, away, away)
    torch.testing.assert_close(one.output.mean.flatten(1), mean, rtol=1e-9, atol=1e-9)
    found = one.variances().flatten(1)
    torch.testing.assert_close(found, covariance.diagonal(dim1=1, dim2=2), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(one.covariances(), covariance, rtol=1e-9, atol=1e-9)
    assert one.output.exact == ("correlated" not in name)


WEIGHTS = {
    "linear": (lambda h, W: functional.linear(h[:, 0], W, B[0, :2]), (2, 3)),
    "bias": (lambda h, b: functional.linear(h[:, 0], B.repeat(3, 1), b), (6,)),
    "conv1d-bias": (lambda h, b: functional.conv1d(h, K1.repeat(2, 1, 1), b), (6,)),
    "matmul": (lambda h, W: h @ W.T + 1, (2, 3)),
    "conv1d": (lambda h, W: functional.conv1d(h, W, B[0, :1], padding=1), (1, 2, 3)),
    "conv2d": (lambda h, W: functional.conv2d(h[:, None], W, B[0, :2]), (2, 1, 1, 3)),
    "batch-norm": (lambda h, W: functional.batch_norm(h.flatten(1), ONES, 2 * ONES, W), (6,)),
    "layer-norm": (lambda h, W: functional.layer_norm(h, (2, 3), W), (2, 3)),
    "embedding": (lambda h, W: functional.embedding(torch.tensor([[2, 0], [1, 1]]), W), (3, 2)),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_dropped_are_what_all_masks_give(name):
    operation, shape = WEIGHTS[name]
    W, x = torch.linspace(-1, 1.3, 6).double().reshape(shape), rows()

    class Dropped(nn.Module):
        def forward(self, x):
            return mixed(operation(x, functional.dropout(W, DROP, self.training)))

    def mixed(h):
        return After(nn.Identity(), lambda h: h)(h)

    one = carry(Dropped(), x)
    masks, prob = (torch.as_tensor(a) for a in bernoulli_patterns(np.full(6, 1 - DROP)))
    outputs = torch.stack([mixed(operation(x, W * m.reshape(shape) / (1 - DROP))) for m in masks])
    mean = torch.einsum("m,mno->no", prob, outputs)
    away = outputs - mean
    covariance = torch.einsum("m,mno,mnp->nop", prob, away, away)
    torch.testing.assert_close(one.output.mean, mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(one.covariances(), covariance, rtol=1e-8, atol=1e-8)
    assert not one.drawn


@pytest.mark.parametrize("name", [*ENTRYWISE, *SMOOTH])
def test_small_noise_goes_through_it_by_its_jacobian(name):
    """Var f(x + eps z) = eps^2 J J' to first order, whatever f does with its entries."""
    x, operation = rows(), {**ENTRYWISE, **SMOOTH}[name]

    def noise(x):
        return x + EPS * torch.randn_like(x)

    class Noise(nn.Module):
        def forward(self, x):
            return noise(x) if self.training else x

    model = After(Noise(), operation)
    one = carry(model, x)
    silent = After(nn.Identity(), operation)
    J = torch.autograd.functional.jacobian(silent, x)
    J = torch.stack([J[i, :, i].flatten(1) for i in range(len(x))])
    expected = EPS**2 * J @ J.mT
    torch.testing.assert_close(one.output.mean, silent(x), rtol=1e-5, atol=1e-5)
    scale = float(expected.abs().max())
    assert (one.covariances() - expected).abs().max() < 1e-3 * scale
    assert not one.drawn


CURVED = ("square", "cube", "exp", "tanh", "sigmoid", "gelu", "silu", "softplus", "sin", "log",
          "reciprocal", "quotient", "glu", "softmax", "softmax-masked", "softmin", "softmax-dim",
          "log-softmax")  # fmt: skip
SPREAD = (*ENTRYWISE, *CURVED, "sqrt", "product", "layer-norm", "layer-norm-two", "group-norm",
          "instance-norm", "rms-norm", "batch-norm", "prelu")  # fmt: skip


@pytest.mark.parametrize("name", dict.fromkeys(SPREAD))
def test_variances_of_entries_and_the_shift_of_means_to_second_order(name):
    """Var f_i = eps^2 |grad f_i|^2, E f - f = (eps^2 / 2) trace of the Hessian."""
    x, operation = rows(), {**ENTRYWISE, **SMOOTH}[name]

    class Noisy(nn.Module):
        def __init__(self, eps):
            super().__init__()
            self.eps = eps

        def forward(self, x):
            x = x + self.eps * torch.randn_like(x) if self.training else x
            return operation(x).flatten(1)

    plain = Noisy(0.0).eval()
    J = torch.autograd.functional.jacobian(plain, x)
    J = torch.stack([J[i, :, i].flatten(1) for i in range(len(x))])
    expected = EPS**2 * (J * J).sum(2)
    found = carry(Noisy(EPS), x).output.variance
    assert (found - expected).abs().max() <= 1e-5 * expected.max()
    if name in CURVED:
        h, bend = 1e-3, torch.zeros_like(plain(x))
        for step in h * torch.eye(6).double().reshape(6, 2, 3):
            bend += (plain(x + step) - 2 * plain(x) + plain(x - step)) / h**2
        shift = carry(Noisy(0.02), x).output.mean - plain(x)
        assert (shift - 0.02**2 / 2 * bend).abs().max() <= 3e-3 * shift.abs().max()


@pytest.mark.parametrize("f", [None, functional.gelu, torch.tanh], ids=["relu", "gelu", "tanh"])
def test_tiny_variances_do_not_turn_rounding_into_gradients(f):
    m = torch.linspace(-2, 2, 9).requires_grad_()
    value, slope, spread, rest = Bent.apply(m, torch.full((9,), 1e-10), f, True)
    plain = torch.relu(m) if f is None else f(m)
    (derivative,) = torch.autograd.grad(plain.sum(), m)
    off = m.detach().abs() > 0.1
    torch.testing.assert_close(value[off], plain[off], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(slope[off], derivative[off], rtol=1e-3, atol=1e-3)
    assert float(spread.max()) <= 2e-10
    (found,) = torch.autograd.grad((value + slope + rest)[off].sum(), m)
    assert float((found - derivative)[off].abs().max()) <= 2  # a second derivative, at most


@pytest.mark.parametrize("f", [None, functional.gelu, torch.tanh], ids=["relu", "gelu", "tanh"])
def test_gradients_in_training_are_those_of_what_is_returned(f):
    """Of value, slope and rest, by central differences; quadrature knows derivatives nearly."""
    m, v = torch.linspace(-1.4, 1.5, 12).double(), torch.linspace(0.2, 0.5, 12).double()
    close = 0.02 if f is torch.tanh else 1e-6
    for part in (0, 1, 3):
        x = m.clone().requires_grad_()
        (found,) = torch.autograd.grad(Bent.apply(x, v, f, True)[part].sum(), x)
        high, low = (Bent.apply(m + h, v, f, True)[part] for h in (1e-5, -1e-5))
        torch.testing.assert_close(found, (high - low) / 2e-5, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_rests_move_with_the_mean_from_twice_the_root_of_the_smallest_number(name, dtype):
    """Below that a rest's variance may be held at its least; above it moves by its formula."""
    floor, law = torch.finfo(dtype).tiny ** 0.5, stats.norm()

    def c(a):  # the rest of ReLU has variance v c(m / sd)
        value = a * law.cdf(a) + law.pdf(a)
        return (a * a + 1) * law.cdf(a) + a * law.pdf(a) - value**2 - law.cdf(a) ** 2

    for share, moves in ((1.8, False), (2.3, True)):
        if name == "relu":
            v = share * floor / c(0.5)
            m, rise = 0.5 * v**0.5, (c(0.501) - c(0.499)) / 0.002 / (2 * c(0.5) ** 0.5)
        else:  # v^2 f_2^2 / 2 as v is tiny, f_2 = (2 - m^2) phi, f_3 = -m (4 - m^2) phi
            m, phi = 0.5, law.pdf(0.5)
            v = (2 * share * floor) ** 0.5 / ((2 - m * m) * phi)
            rise = -v * m * (4 - m * m) * phi / 2**0.5
        mean = torch.tensor([m], dtype=dtype, requires_grad=True)
        f = None if name == "relu" else functional.gelu
        rest = Bent.apply(mean, torch.tensor([v], dtype=dtype), f, True)[3]
        (found,) = torch.autograd.grad(rest, mean)
        assert float(rest.detach()) == pytest.approx((share * floor) ** 0.5, rel=1e-4)
        assert float(found) == (pytest.approx(rise, rel=1e-3) if moves else 0)


def integrated(f, m, v, one_sided=False):
    """E f, Cov(x, f) / v and Var f for one normal, or log-normal, x by a fine sum."""
    z = torch.linspace(-9, 9, 36_001).double()
    w = torch.exp(-z * z / 2)
    w = w / w.sum()
    spread = np.log1p(v / m**2) ** 0.5 if one_sided else 0.0
    x = m * torch.exp(spread * z - spread**2 / 2) if one_sided else m + v**0.5 * z
    y = f(x)
    mean = w @ y
    return torch.stack([mean, w @ ((x - m) * y) / v, w @ (y - mean) ** 2])


NORMAL = {  # how moments are found, of what, to what accuracy, whether x is positive
    "relu": (relu_moments, torch.relu, 1e-6, False),
    "leaky": (
        lambda m, v: leaky_relu_moments(m, v, 0.2),
        lambda x: functional.leaky_relu(x, 0.2),
        1e-6,
        False,
    ),
    **{
        f.__name__: (lambda m, v, f=f: moments_of(f, m, v, one_sided=False), f, 2e-3, False)
        for f in (torch.tanh, torch.sigmoid, functional.gelu, functional.softplus, torch.square)
    },
    **{
        f.__name__: (lambda m, v, f=f: moments_of(f, m, v, one_sided=True), f, 2e-3, True)
        for f in (torch.sqrt, torch.log, torch.reciprocal)
    },
}


@pytest.mark.parametrize("name", NORMAL)
def test_value_slope_and_variance_of_functions_of_normal_numbers(name):
    found, f, close, positive = NORMAL[name]
    for m in (0.5, 2.0) if positive else (-1.5, 0.0, 0.7):
        for v in (0.01, 0.5):
            given = torch.tensor([m]).double(), torch.tensor([v]).double()
            got = torch.cat(found(*given))
            expected = integrated(f, m, v, positive)
            assert (got - expected).abs().max() <= close * (1 + expected.abs().max())


@pytest.mark.parametrize("name", [n for n, row in NORMAL.items() if not row[3]] + ["rrelu"])
def test_what_a_linear_map_leaves_out_is_added(name):
    """All of Var f(x), x normal with a large variance: the slope's part and the rest."""
    f = (lambda h: functional.rrelu(h, 0.1, 0.5, True)) if name == "rrelu" else NORMAL[name][1]

    class Noisy(nn.Module):
        def forward(self, x):
            return f(x + 0.7 * torch.randn_like(x)) if self.training else f(x)

    x = torch.tensor([[-1.5, 0.2, 0.9]]).double()
    one = carry(Noisy(), x)
    for i, m in enumerate(x[0].tolist()):
        if name == "rrelu":  # slopes have mean .3 and variance .4^2 / 12, apart from x
            mean, _, variance = integrated(lambda h: functional.leaky_relu(h, 0.3), m, 0.49)
            away, _, below = integrated(lambda h: h.clamp(max=0), m, 0.49)
            variance = variance + 0.4**2 / 12 * (below + away**2)
        else:
            mean, _, variance = integrated(f, m, 0.49)
        assert float(one.output.mean[0, i]) == pytest.approx(float(mean), rel=5e-3, abs=5e-3)
        assert float(one.variances()[0, i]) == pytest.approx(float(variance), rel=5e-3, abs=5e-3)


@pytest.mark.parametrize("name", [*AFFINE, *ENTRYWISE, *SMOOTH])
def test_variances_of_correlated_entries_are_the_diagonal_of_their_covariances(name):
    """Entries that were mixed twice are correlated in a way that only their sources know."""
    operation = {**AFFINE, **ENTRYWISE, **SMOOTH}[name]
    mix = torch.arange(36.0, dtype=torch.float64).square().cos().square().reshape(6, 6)
    mix = mix / mix.sum(0)
    noise = Called(lambda h: h + EPS * torch.randn_like(h))
    for before in (lambda h: h, lambda h: (h.flatten(1) @ mix @ mix).reshape(h.shape)):
        with torch.no_grad():
            one = carry(nn.Sequential(noise, Called(before), Called(operation)), rows().abs() + 0.1)
            found, expected = one.variances().flatten(1), one.covariances().diagonal(dim1=1, dim2=2)
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7 * float(expected.max()))
        assert float(expected.max()) > 0


SPREADS = [[0.25, 0.1, 0.0], [0.1, 0.25, -0.05], [0.0, -0.05, 0.1]]
PROBED = {  # noise of every kind, before a map that mixes
    "units": nn.Dropout(DROP), "channels": nn.Dropout1d(DROP), "alpha": nn.AlphaDropout(DROP),
    "leaking": nn.RReLU(), "own": Dropout(DROP),
    "blocks": DropBlock1d(DROP, 2), "correlated": CovarianceDropout([0.5, 0.5, 1.0], SPREADS),
    "numbers": Called(lambda h: h + torch.randn_like(h)),
    "coins": Called(lambda h: h * (torch.rand_like(h) < 0.7)),
    "twice": nn.Sequential(nn.Dropout(DROP), nn.Dropout1d(0.6)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*PROBED, *PAIRS])
def test_probes_have_the_covariances_of_what_is_carried(name):
    """One row many times over: each has a probe of its own."""
    torch.manual_seed(5)
    if name in PROBED:
        model = After(PROBED[name], lambda h: h).double()
    else:
        noises = nn.Dropout(DROP), nn.Dropout(0.6)
        model = After(nn.Identity(), lambda x: PAIRS[name](noises[0](x[:, 0]), noises[1](x[:, 1])))
        model.noises = nn.ModuleList(noises)
    x = rows()[:1]
    with torch.no_grad():
        expected = carry(model, x).covariances()[0]
    t = carry(model, x.expand(3000, -1, -1), probe=True).tangent.detach()
    assert_mean_within_standard_errors(t.numpy(), np.zeros(3))
    assert_mean_within_standard_errors((t[:, :, None] * t[:, None]).numpy(), expected.numpy())


@pytest.mark.parametrize("name", ["units", "channels", "alpha"])
def test_what_a_single_unit_adds_is_the_same_in_every_probe(name):
    x = rows()
    expected = carry(PROBED[name], x).variances()
    for _ in range(3):
        found = carry(nn.Sequential(PROBED[name]), x, probe=True).tangent.square()
        torch.testing.assert_close(found, expected)


UNTOLD = {name: {"p": 0.5} for name in ("dropout", "dropout1d", "alpha_dropout",
                                        "feature_alpha_dropout")}  # fmt: skip
UNTOLD["rrelu"] = {"lower": 1 / 8, "upper": 1 / 3}


@pytest.mark.parametrize("name", UNTOLD)
def test_noise_that_is_not_told_has_the_strength_that_torch_gives_it(name):
    noise = getattr(functional, name)
    told, untold = (carry(After(Called(lambda h, p=p: noise(h, **p, training=True)), lambda h: h),
                          rows()) for p in (UNTOLD[name], {}))  # fmt: skip
    torch.testing.assert_close(untold.output.mean, told.output.mean, rtol=0, atol=0)
    torch.testing.assert_close(untold.covariances(), told.covariances(), rtol=0, atol=0)
    assert float(told.variances().min()) > 0


OFF = {
    "native": lambda h: torch.native_dropout(h, train=True, p=0.3)[0],
    "mapped": lambda h: torch.vmap(
        lambda row: functional.dropout(row, 0.3, True), randomness="different")(h),
    "mapped-named": lambda h: torch.vmap(
        lambda row: torch.dropout(row, train=True, p=0.3), randomness="different")(h),
}  # fmt: skip


@pytest.mark.parametrize("name", OFF)
def test_draws_that_are_told_of_their_mode_can_be_off(name):
    x, model = rows(), Called(OFF[name])
    off = carry(model, x, active=())
    assert torch.equal(off.output.mean, x)
    assert not off.drawn
    assert not torch.equal(carry(model, x).output.mean, x)
    assert carry(model, x).drawn == off.noises


def test_probes_of_dropped_weights_have_their_covariances():
    """All rows see the same weights: many passes of one row."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Dropout(0.6), DropConnectLinear(6, 3, drop_prob=0.6)).double()
    x = rows()[:1].flatten(1)
    with torch.no_grad():
        expected = carry(model, x).covariances()[0]
        t = torch.cat([carry(model, x, probe=True).tangent for _ in range(450)])
    assert_mean_within_standard_errors(t.numpy(), np.zeros(3))
    assert_mean_within_standard_errors((t[:, :, None] * t[:, None]).numpy(), expected.numpy())


CHANNELS = [("dropout", 2), ("dropout", 3), ("dropout1d", 2), ("dropout1d", 3), ("dropout2d", 3),
            ("dropout2d", 4), ("dropout3d", 4), ("dropout3d", 5), ("feature_alpha_dropout", 4),
            ("feature_alpha_dropout", 2)]  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of channels that torch guesses
@pytest.mark.parametrize(("name", "axes"), CHANNELS)
def test_entries_of_a_row_share_the_coins_that_torch_lets_them_share(name, axes):
    torch.manual_seed(axes)
    x, drop = (
        torch.ones(2, 3, 2, 2, 2).double()[(..., *[0] * (5 - axes))],
        getattr(functional, name),
    )
    draws = torch.stack([drop(x, 0.5, True) for _ in range(64)]).flatten(2)
    same = (draws[:, :, :, None] == draws[:, :, None]).all(0)
    model = nn.Sequential(Called(lambda h: drop(h, 0.5, True)), nn.Flatten())
    found = carry(model, x)
    assert torch.equal(found.covariances() > 1e-9, same)
    drawn = [carry(model, x, drawn=found.noises).output.mean for _ in range(24)]
    draws = torch.stack(drawn)
    assert torch.equal((draws[:, :, :, None] == draws[:, :, None]).all(0), same)
    gone = carry(Called(lambda h: drop(h, 1.0, True)), x).output
    assert not gone.noises
    assert not bool(gone.mean.any())


@pytest.mark.parametrize("shape", [(), (1,), (2,), (4, 1), (1, 2), (1, 5), (4, 2)])
def test_noise_is_coarse_if_it_has_one_number_for_a_row(shape):
    one = carry(Called(lambda h: h + torch.rand(shape).sum()), rows())
    assert bool(one.tape.coarse) == (shape in [(), (1,), (2,), (4, 1)])


def test_slopes_that_are_not_drawn_are_those_between_their_bounds():
    noise, x = Called(lambda h: h + 0.7 * torch.randn_like(h)), rows()
    expected = carry(After(noise, nn.LeakyReLU(0.3)), x)
    leaking = After(noise, nn.RReLU(0.1, 0.5))
    found = carry(leaking, x, active=expected.noises)
    torch.testing.assert_close(found.output.mean, expected.output.mean)
    torch.testing.assert_close(found.output.variance, expected.output.variance)
    torch.testing.assert_close(found.covariances(), expected.covariances())


def test_padding_is_below_what_varies_most():
    sd = torch.tensor([[[0.0, 5.0]]]).double()
    noise = Called(lambda h: h + sd * torch.randn_like(h))
    found = carry(nn.Sequential(noise, nn.MaxPool1d(2, padding=1)), torch.zeros(1, 1, 2).double())
    torch.testing.assert_close(found.output.mean, torch.zeros(1, 1, 2).double())
    torch.testing.assert_close(found.output.variance, sd**2)


def test_covariances_are_worked_out_of_up_to_512_units():
    tape = Tape(None, (), False, False, Sources({}))
    few, many = [(1, 512), (9, 512), (1, 2, 256)], [(1, 513), (1, 2, 257), (4,)]
    for shape in (*few, *many):
        variance = torch.ones(shape)
        x = Moment(variance, 2 * variance, tape.later(lambda v=variance: tape.source(v)),
                   frozenset({"noise"}), known=False)  # fmt: skip
        found = tape.settled(x)
        assert found.known == (shape in few)
        assert torch.equal(found.variance, variance if shape in few else 2 * variance)
