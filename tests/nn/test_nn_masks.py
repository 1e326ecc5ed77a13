"""Masks of layers, drawn again and compiled, and their second moments, unit by unit."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from torch._subclasses.fake_tensor import FakeTensorMode

from overt import InputError
from overt.nn import (
    CovarianceDropout,
    DropBlock1d,
    DropBlock2d,
    DropConnectConv2d,
    DropConnectLinear,
    Dropout,
)
from overt.nn.layers import covariance, masks
from overt.nn.layers.mask_covariance import MaskCovariance


def mixed(seed, draws):
    """SplitMix64, twice."""
    z, most = seed, 2**64
    for value in (0, draws):
        z = (z + value + 0x9E3779B97F4A7C15) % most
        z = (z ^ z // 2**30) * 0xBF58476D1CE4E5B9 % most
        z = (z ^ z // 2**27) * 0x94D049BB133111EB % most
        z = z ^ z // 2**31
    return z // 2


def test_keys_are_mixed_by_splitmix():
    for seed, draws in itertools.product((0, 5, 2**63 - 1), (0, 1, 10**9)):
        assert masks._mix(seed, draws) == mixed(seed, draws)
    draws = torch.tensor(3)
    generator = torch.Generator().manual_seed(mixed(5, 3))
    kept = torch.empty(4, 2, dtype=torch.bool).bernoulli_(0.7, generator=generator)
    assert torch.equal(masks.keep_mask([4, 2], 0.3, draws.device, masks.Key(5, draws)), kept)
    generator = torch.Generator().manual_seed(mixed(5, 3))
    numbers = torch.empty(4, 2).normal_(generator=generator)
    assert torch.equal(masks.normal([4, 2], draws.device, masks.Key(5, draws)), numbers)
    nowhere = masks.Key(5, torch.tensor(3, device="meta"))
    assert masks.keep_mask([4, 2], 0.3, draws.device, nowhere).is_meta
    assert masks.normal([4, 2], draws.device, nowhere).is_meta


OPERATORS = {
    "keep_mask": (5, torch.tensor(0.3, dtype=torch.float64), [4, 2]),
    "normal": (5, [4, 2]),
    "block_mask": (5, torch.tensor(0.3, dtype=torch.float64), [4, 1], [5, 6], [2, 3]),
    "block_scale": (torch.tensor(0.3, dtype=torch.float64), [5, 6], [2, 3], True),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_what_compilers_take_them_for(name):
    operator = getattr(torch.ops.overt, name)
    given = (torch.tensor(3), *OPERATORS[name])
    real = operator(*given)
    fake = getattr(masks, f"_{name}_fake")(*given)
    assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
    assert torch.equal(real, operator(*given))
    single = masks._block_scale_op(torch.tensor(3), torch.tensor(0.3), [5], [2], False)
    assert single.dtype == torch.float32


def test_masks_are_the_same_compiled_or_not(monkeypatch):
    key, x = masks.Key(5, torch.tensor(3)), torch.ones(200, 2, 5, 6)
    eager = masks.keep_mask([4, 2], 0.3, x.device, key), masks.normal([4, 2], x.device, key)
    blocks = masks.inside_mask(x, key, 0.3, [200, 2], (5, 6), (2, 3))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for prob in (0.3, torch.tensor(0.3, dtype=torch.float64)):
        compiled = masks.keep_mask([4, 2], prob, x.device, key), masks.normal([4, 2], x.device, key)
        assert all(map(torch.equal, compiled, eager))
        again = masks.inside_mask(x, key, prob, [200, 2], (5, 6), (2, 3))
        assert all(map(torch.equal, again, blocks))
    torch.manual_seed(0)
    kept = masks.keep_mask([20_000], 0.3, x.device, None).double()
    assert float(kept.mean()) == pytest.approx(0.7, abs=0.02)
    free, scale = masks.inside_mask(x, None, 0.3, [200, 2], (5, 6), (2, 3))
    assert float(free.double().mean()) == pytest.approx(0.7, abs=0.03)
    assert torch.equal(scale, blocks[1])
    other, _ = masks.inside_mask(x, None, 0.3, [200, 2], (5, 6), (2, 3))
    assert not torch.equal(other, free)
    several = [masks.inside_mask(x, None, 0.3, [9], (5, 6), (2, 3))[0] for _ in range(150)]
    assert len({mask.numpy().tobytes() for mask in several}) == 150


def test_compilers_see_shapes_without_values(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with FakeTensorMode():
        x, key = torch.ones(3, 2, 5, 6), masks.Key(5, torch.zeros((), dtype=torch.int64))
        for given in (key, None):
            assert masks.keep_mask([4, 2], 0.3, x.device, given).shape == (4, 2)
            assert masks.normal([4, 2], x.device, given).shape == (4, 2)
            free, scale = masks.inside_mask(x, given, 0.3, [3, 2], (5, 6), (2, 3))
            assert (free.shape, scale.shape) == ((3, 2, 5, 6), (5, 6))


def entry(mask, a, b):
    """Gamma of two units, given by their places."""
    if any(p != q for k, (p, q) in enumerate(zip(a, b, strict=True))
           if k not in mask.axes and k not in mask.shared):  # fmt: skip
        return 0.0
    if mask.matrix is None:
        return mask.strength
    sizes = [mask.shape[k] for k in mask.axes]
    i, j = (np.ravel_multi_index([place[k] for k in mask.axes], sizes) for place in (a, b))
    return float(mask.matrix[i, j])


ROOT = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).double()
COVARIANCES = [
    MaskCovariance((3, 2), 0.4), MaskCovariance((3, 2), 0.4, shared=(1,)),
    MaskCovariance((3, 2, 2), 0.4, shared=(0, 2)), MaskCovariance((3, 1), 0.4, shared=(1,)),
    MaskCovariance((2, 6), matrix=ROOT @ ROOT.T, axes=(1,)),
    MaskCovariance((6, 2), matrix=ROOT @ ROOT.T, axes=(0,)),
    MaskCovariance((2, 3, 2), matrix=ROOT @ ROOT.T, axes=(1, 2)),
    MaskCovariance((2, 3, 2), matrix=ROOT @ ROOT.T, axes=(1, 2), shared=(0,)),
    MaskCovariance((2, 2, 3), matrix=ROOT @ ROOT.T, axes=(0, 2)),
]  # fmt: skip


@pytest.mark.parametrize("mask", COVARIANCES)
def test_second_moments_unit_by_unit(mask):
    like = torch.zeros((), dtype=torch.float64)
    places = list(itertools.product(*map(range, mask.shape)))
    Gamma = torch.tensor([[entry(mask, a, b) for b in places] for a in places], dtype=torch.float64)
    torch.testing.assert_close(mask.dense(like), Gamma)
    torch.testing.assert_close(mask.relative_variance(like).flatten(), Gamma.diagonal())
    flow = torch.randn(2, 3, *mask.shape).double()
    expected = (flow.flatten(2) @ Gamma).reshape(flow.shape)
    torch.testing.assert_close(mask.apply(flow), expected)
    h, R = torch.randn(5, *mask.shape).double(), torch.randn(4, len(places)).double()
    second = torch.einsum("ni,nj->ij", h.flatten(1), h.flatten(1)) / 5
    torch.testing.assert_close(mask.penalty(h, R), (Gamma * (R.T @ R) * second).sum())
    assert mask.independent == bool((Gamma == torch.diag(Gamma.diagonal())).all())


def test_latent_normals_have_the_covariance_of_the_masks():
    s, t, angle = np.array([0.3, -1.0, 0.0, 2.0]), np.array([0.7, 0.5, 0.0, -1.0]), np.array(
        [0.4, -1.1, 1.2, 0.9])  # fmt: skip
    expected = []
    for a, b, r in zip(s, t, np.sin(angle), strict=True):
        both = multivariate_normal.cdf([a, b], cov=[[1, r], [r, 1]])
        expected.append(both - norm.cdf(a) * norm.cdf(b))
    found = covariance._covariance(s, t, angle)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(covariance._solve(s, t, found), angle, atol=1e-9)


WRONG = [
    (lambda: CovarianceDropout([0.5, 1.2], np.eye(2), "bernoulli"), r"mean must lie in \(0, 1\]"),
    (lambda: CovarianceDropout([0.5, 0.5], np.diag([0.25, 0.2]), "bernoulli"),
     r"covariance\[1, 1\] must be mean \(1 - mean\) = 0.25 for 0/1 masks, got 0.2"),
    (lambda: CovarianceDropout([0.5, 0.9], [[0.25, 0.1], [0.1, 0.09]], "bernoulli"), "beyond what"),
    (lambda: CovarianceDropout([0.5] * 3, 0.25 * np.array(
        [[1, -0.49, -0.49], [-0.49, 1, -0.49], [-0.49, -0.49, 1]]), "bernoulli"), "normal copula"),
    (lambda: CovarianceDropout([1.0], [[1.0]], axis=0), "axis must be"),
    (lambda: CovarianceDropout([1.0], [[1.0]], axis=True), "axis must be"),
    (lambda: CovarianceDropout([1.0], [[1.0]], "cauchy"), "distribution must be one of"),
    (lambda: CovarianceDropout([1.0], [[1.0]])(torch.ones(2, 3)), "1 units along axis -1"),
    (lambda: CovarianceDropout([1.0], [[1.0]], axis=2)(torch.ones(2, 1)), "along axis 2"),
    (lambda: CovarianceDropout([1.0] * 2, np.eye(2), axis=-2)(torch.ones(2, 3)), "along axis -2"),
    (lambda: CovarianceDropout([1.0, 1e39], np.diag([0.1, 1e78])), "has to hold masks"),
    (lambda: CovarianceDropout([1.0, 1e-10], np.diag([0.1, 1e18])), "has to hold masks"),
    (lambda: DropConnectLinear(3, 2, per_sample=True)(torch.ones(3)), "must have a batch axis"),
    (lambda: DropConnectLinear(0, 2), "in_features must be"),
    (lambda: DropConnectLinear(2, 0), "out_features must be"),
    (lambda: DropBlock2d(0.3, 2).keep_prob((4,)), "sizes must be 2 numbers"),
    (lambda: DropBlock2d(0.3, 2)(torch.ones(2, 3, 4)), "x must have 4 axes"),
    (lambda: DropBlock2d(0.3, 2, shared_axes=2), "shared_axes must be 0"),
    (lambda: DropBlock2d(0.3, 2, placement="hex"), "placement must be one of"),
    (lambda: DropBlock1d(0.3, (2, 3)), "block_size must be one number or 1"),
    (lambda: DropConnectConv2d(4, 6, 3, groups=4), "groups must divide both"),
    (lambda: DropConnectConv2d(3, 6, 3, groups=2), "groups must divide both"),
    (lambda: DropConnectConv2d(4, 6, 0), "kernel_size must be"),
    (lambda: DropConnectConv2d(4, 6, (3, 0)), "kernel_size must be"),
    (lambda: DropConnectConv2d(4, 6, 3, stride=0), "stride must be"),
    (lambda: DropConnectConv2d(4, 6, 3, padding=-1), "padding must be"),
    (lambda: DropConnectConv2d(0, 6, 3), "in_channels must be"),
    (lambda: Dropout(1.0), "drop_prob"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_mistakes_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_units_that_are_never_dropped_stay_on():
    layer = CovarianceDropout([1.0, 0.5, 1.0], np.diag([0.0, 0.25, 0.0]), "bernoulli", seed=0)
    y = layer(torch.ones(500, 3))
    assert bool((y[:, [0, 2]] == 1).all())
    assert sorted(y[:, 1].unique().tolist()) == [0.0, 2.0]
    every = CovarianceDropout([1.0, 1.0], np.zeros((2, 2)), "bernoulli")
    assert bool((every(torch.ones(5, 2)) == 1).all())
    assert DropConnectConv2d(4, 6, 3, padding=0).padding == (0, 0)
    assert DropConnectConv2d(4, 6, 3, drop_prob=0.2).strength == pytest.approx(0.25)
    grid = DropBlock2d(0.3, 2, placement="grid").keep_prob((3, 4))
    assert torch.equal(grid, torch.full((3, 4), 0.7))


@pytest.mark.parametrize("placement", ["sliding", "grid"])
def test_blocks_are_cells_or_squares(placement):
    torch.manual_seed(0)
    layer = DropBlock2d(0.4, (2, 3), placement=placement, uniform=True, shared_axes=1)
    y = layer(torch.ones(6, 2, 5, 7))
    assert torch.equal(y[:, 0], y[:, 1])
    assert not torch.equal(y[0], y[1])
    kept = y[:, 0] > 0
    assert set(y.unique().tolist()) <= {0.0, float(torch.ones(()) / (1 - 0.4))}
    if placement == "grid":
        for i, j in itertools.product(range(5), range(7)):
            assert torch.equal(kept[:, i, j], kept[:, i // 2 * 2, j // 3 * 3])
    else:  # every dropped unit lies in a block that is dropped as far as the map goes
        for n, i, j in (~kept).nonzero().tolist():
            corners = itertools.product(range(i - 1, i + 1), range(j - 2, j + 1))
            assert any(not kept[n, max(a, 0) : a + 2, max(b, 0) : b + 3].any() for a, b in corners)
    start = 1 - (1 - 0.4) ** (1 / math.prod((2, 3)))
    assert 0 < start < 0.4
