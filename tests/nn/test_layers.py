"""Every noise layer: identity in evaluation, its stated moments in training, PyTorch's conventions.

A layer is a row of a table; a property is a test that runs on every row.
"""

import copy
import itertools

import numpy as np
import pytest
import torch
from helpers import assert_mean_within_standard_errors
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.checkpoint import checkpoint

from overt import DropBlock, InputError
from overt.nn import (
    CovarianceDropout,
    DropBlock1d,
    DropBlock2d,
    DropBlock3d,
    DropConnectLinear,
    Dropout,
)
from overt.nn.layers.masks import MaskCovariance
from overt.noise.blocks import Sliding

MU = np.array([0.5, 0.7, 0.9])
SD = np.sqrt(MU * (1 - MU))
K = np.array([[1, 0.4, 0.1], [0.4, 1, 0.2], [0.1, 0.2, 1]]) * np.outer(SD, SD)

# What to build with a seed, and the shape of an input.
UNIT_LAYERS = {
    "dropout": (lambda s: Dropout(0.3, seed=s), (4, 6)),
    "dropout-time": (lambda s: Dropout(0.3, shared_axes=1, seed=s), (4, 5, 3)),
    "dropout-channels": (
        lambda s: Dropout(0.3, shared_axes=(2, 3), seed=s),
        (4, 3, 2, 2),
    ),
    "block-1d": (lambda s: DropBlock1d(0.3, 3, seed=s), (4, 2, 7)),
    "block-sliding": (lambda s: DropBlock2d(0.3, 2, seed=s), (4, 2, 4, 5)),
    "block-uniform": (
        lambda s: DropBlock2d(0.3, 3, uniform=True, seed=s),
        (4, 2, 4, 5),
    ),
    "block-grid": (
        lambda s: DropBlock2d(0.3, 2, placement="grid", seed=s),
        (4, 2, 4, 5),
    ),
    "block-oblong": (lambda s: DropBlock2d(0.3, (1, 3), seed=s), (4, 2, 4, 5)),
    "block-larger-than-map": (lambda s: DropBlock2d(0.3, 9, seed=s), (4, 2, 4, 5)),
    "block-all-channels": (
        lambda s: DropBlock2d(0.3, 2, shared_axes=1, seed=s),
        (4, 3, 3, 3),
    ),
    "block-3d": (lambda s: DropBlock3d(0.3, 2, seed=s), (4, 1, 3, 2, 3)),
    "covariance-gaussian": (lambda s: CovarianceDropout(MU, K, seed=s), (4, 3)),
    "covariance-channels": (
        lambda s: CovarianceDropout(MU, K, axis=1, seed=s),
        (4, 3, 2),
    ),
}
WEIGHT_LAYERS = {
    "connect": (lambda s: DropConnectLinear(6, 3, drop_prob=0.3, seed=s), (4, 6)),
    "connect-per-sample": (
        lambda s: DropConnectLinear(6, 3, drop_prob=0.3, per_sample=True, seed=s),
        (4, 6),
    ),
}
LAYERS = UNIT_LAYERS | WEIGHT_LAYERS

every_layer = pytest.mark.parametrize(
    ("build", "shape"), LAYERS.values(), ids=LAYERS.keys()
)
every_unit_layer = pytest.mark.parametrize(
    ("build", "shape"), UNIT_LAYERS.values(), ids=UNIT_LAYERS.keys()
)


def sequence(layer, x, n=3):
    return [layer(x) for _ in range(n)]


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def like(build, seed):
    """Build a layer whose parameters do not depend on torch's generator."""
    torch.manual_seed(0)
    return build(seed)


@every_unit_layer
def test_eval_gives_back_the_input_itself(build, shape):
    x = torch.randn(shape)
    assert build(None).eval()(x) is x
    assert build(3).eval()(x) is x


@every_layer
def test_same_seed_same_masks_whatever_torch_drew_meanwhile(build, shape):
    x = torch.randn(shape)
    one, two = like(build, 5), like(build, 5)
    first = sequence(one, x)
    torch.rand(17)
    assert equal(first, sequence(two, x))
    assert not torch.equal(first[0], first[1])
    assert not equal(first, sequence(like(build, 6), x))


@every_layer
def test_without_a_seed_torch_decides_and_there_is_no_state(build, shape):
    x, layer = torch.randn(shape), like(build, None)
    torch.manual_seed(3)
    first = sequence(layer, x)
    torch.manual_seed(3)
    assert equal(first, sequence(layer, x))
    assert not any("draws" in key for key in layer.state_dict())


@every_layer
def test_state_dict_restores_the_run(build, shape, tmp_path):
    x, layer = torch.randn(shape), like(build, 5)
    sequence(layer, x)
    save_file(
        {k: v.contiguous() for k, v in layer.state_dict().items()}, tmp_path / "layer"
    )
    restored = like(build, 5)
    restored.load_state_dict(load_file(tmp_path / "layer"))
    assert equal(sequence(layer, x), sequence(restored, x))


@every_layer
def test_deepcopy_continues_like_the_original(build, shape):
    x, layer = torch.randn(shape), like(build, 5)
    sequence(layer, x)
    assert equal(sequence(copy.deepcopy(layer), x), sequence(layer, x))


@every_layer
def test_double_precision_uses_the_same_masks(build, shape):
    x, layer = torch.randn(shape), like(build, 5)
    double = copy.deepcopy(layer).double()
    y = double(x.double())
    assert y.dtype == torch.float64
    torch.testing.assert_close(layer(x), y.float(), rtol=1e-5, atol=1e-5)


@every_layer
def test_bfloat16_autocast_keeps_the_format_of_the_network(build, shape):
    x, layer = torch.randn(shape), like(build, 5)
    model = nn.Sequential(nn.Linear(shape[-1], shape[-1]), layer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert torch.isfinite(model[0].weight.grad).all()


@every_layer
def test_meta_device_gives_the_shape(build, shape):
    for seed in (None, 5):
        layer = like(build, seed).to("meta")
        y = layer(torch.empty(shape, device="meta"))
        assert y.is_meta
        assert y.shape == like(build, seed)(torch.randn(shape)).shape


@pytest.mark.parametrize(
    ("build", "shape"),
    [case for case in UNIT_LAYERS.values() if len(case[1]) == 4],
    ids=[name for name, case in UNIT_LAYERS.items() if len(case[1]) == 4],
)
def test_channels_last_is_kept(build, shape):
    x = torch.randn(shape).to(memory_format=torch.channels_last)
    for seed in (None, 5):
        assert build(seed)(x).is_contiguous(memory_format=torch.channels_last)


@every_layer
def test_repr_tells_all_on_one_line(build, shape):
    text = repr(build(5))
    assert "\n" not in text
    assert "seed=5" in text
    assert "0.3" in text or "units=3" in text
    assert "seed" not in repr(build(None))


@every_layer
def test_gradients_reach_the_input(build, shape):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    layer = like(build, 5).double()

    def again(value):
        return copy.deepcopy(layer)(value)  # the same masks in every call

    assert torch.autograd.gradcheck(again, (x,))


@every_unit_layer
def test_law_is_that_of_the_draws(build, shape):
    """Mean 1 and Gamma, both within 5 standard errors, all pairs of units."""
    layer, n = build(11), 20_000
    draws = layer(torch.ones(n, *shape[1:])).double().flatten(1).numpy()
    assert_mean_within_standard_errors(draws, 1.0)
    one = torch.ones((), dtype=torch.float64)
    Gamma = layer.mask_covariance((1, *shape[1:])).dense(one).numpy()
    i, j = np.triu_indices(draws.shape[1])
    centered = draws - 1
    assert_mean_within_standard_errors(centered[:, i] * centered[:, j], Gamma[i, j])
    variance = layer.mask_covariance((1, *shape[1:])).relative_variance(
        torch.ones(()).double()
    )
    np.testing.assert_allclose(variance.flatten(), np.diag(Gamma), rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "shape"), WEIGHT_LAYERS.values(), ids=WEIGHT_LAYERS.keys()
)
def test_dropped_weights_leave_the_expected_output_alone(build, shape):
    layer, x = like(build, 11), torch.randn(shape)
    plain = copy.deepcopy(layer).eval()(x).detach().double().numpy()
    draws = np.stack([layer(x).detach().double().numpy() for _ in range(3000)])
    assert_mean_within_standard_errors(draws, plain)


SHARING = {
    "units": (
        lambda axes: Dropout(0.3, shared_axes=axes),
        [(), 0, 1, (0, 1), -1, (0, 2, 3)],
    ),
    "sliding": (lambda axes: DropBlock2d(0.3, 2, shared_axes=axes), [(), 0, 1, (0, 1)]),
    "uniform": (
        lambda axes: DropBlock2d(0.3, 2, uniform=True, shared_axes=axes),
        [0, 1],
    ),
    "grid": (
        lambda axes: DropBlock2d(0.3, 2, placement="grid", shared_axes=axes),
        [0, (0, 1)],
    ),
}


@pytest.mark.parametrize("name", SHARING)
def test_masks_are_the_same_along_shared_axes_and_no_others(name):
    torch.manual_seed(0)
    make, cases = SHARING[name]
    for axes in cases:
        y = make(axes)(torch.ones(40, 30, 6, 8))
        shared = {axis % 4 for axis in (axes if isinstance(axes, tuple) else (axes,))}
        same = {axis for axis in range(4) if bool((y == y.narrow(axis, 0, 1)).all())}
        assert same == shared
    for axes in [] if name == "units" else [2, -1, (0, 3)]:
        with pytest.raises(InputError, match="shared_axes must be 0"):
            make(axes)


def test_dropconnect_shares_its_state_with_torch():
    plain, layer, x = nn.Linear(6, 3), DropConnectLinear(6, 3), torch.randn(2, 6)
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer.eval()(x), plain(x))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Dropout(1.0), "drop_prob"),
        (lambda: Dropout(0.5, seed=-1), "seed"),
        (lambda: Dropout(0.5, shared_axes="time"), "shared_axes"),
        (lambda: Dropout(0.5, shared_axes=1.0), "shared_axes"),
        (lambda: Dropout(0.5, shared_axes=[True]), "shared_axes"),
        (lambda: Dropout(0.5, shared_axes=3)(torch.ones(2, 3)), "shared_axes"),
        (lambda: Dropout(0.5)(torch.ones(2, 3, dtype=torch.int64)), "floating-point"),
        (lambda: Dropout(0.5)(np.ones((2, 3))), "torch.as_tensor"),
        (
            lambda: DropConnectLinear(3, 2, drop_prob=0.5).eval()([[1.0] * 3]),
            "torch.as_tensor",
        ),
        (lambda: DropBlock2d(0.5, 0), "block_size"),
        (lambda: DropBlock2d(0.5, (1, 2, 3)), "block_size"),
        (lambda: DropBlock2d(0.5, placement="random"), "placement"),
        (lambda: DropBlock2d(0.5, shared_axes=2), "shared_axes"),
        (lambda: DropBlock2d(0.5)(torch.ones(3, 4, 4)), "axes"),
        (lambda: CovarianceDropout([0.5, 0.0], np.eye(2)), "mean"),
        (lambda: CovarianceDropout([0.5, 0.5], np.eye(2))(torch.ones(2, 3)), "units"),
        (lambda: CovarianceDropout([0.5, 0.5], np.eye(2), axis=0), "axis"),
        (lambda: CovarianceDropout([1.0], [[1.0]], axis=0), "axis must be"),
        (lambda: CovarianceDropout([1.0], [[1.0]], axis=True), "axis must be"),
        (
            lambda: CovarianceDropout([1.0], [[1.0]])(torch.ones(2, 3)),
            "1 units along axis -1",
        ),
        (
            lambda: CovarianceDropout([1.0], [[1.0]], axis=2)(torch.ones(2, 1)),
            "along axis 2",
        ),
        (
            lambda: CovarianceDropout([1.0] * 2, np.eye(2), axis=-2)(torch.ones(2, 3)),
            "along axis -2",
        ),
        (
            lambda: CovarianceDropout([1.0, 1e39], np.diag([0.1, 1e78])),
            "has to hold masks",
        ),
        (
            lambda: CovarianceDropout([1.0, 1e-10], np.diag([0.1, 1e18])),
            "has to hold masks",
        ),
        (
            lambda: DropConnectLinear(3, 2, per_sample=True)(torch.ones(3)),
            "must have a batch axis",
        ),
        (lambda: DropConnectLinear(0, 2), "in_features must be"),
        (lambda: DropConnectLinear(2, 0), "out_features must be"),
        (lambda: DropBlock2d(0.3, 2)(torch.ones(2, 3, 4)), "x must have 4 axes"),
        (lambda: DropBlock2d(0.3, 2, shared_axes=2), "shared_axes must be 0"),
        (lambda: DropBlock2d(0.3, 2, placement="hex"), "placement must be one of"),
        (lambda: DropBlock1d(0.3, (2, 3)), "block_size must be one number or 1"),
    ],
)
def test_mistakes_are_named(wrong, message):
    with pytest.raises(InputError, match=message):
        wrong()


@pytest.mark.parametrize("seed", [None, 3])
def test_layers_that_drop_nothing_draw_nothing(seed):
    x = torch.ones(2, 3, 4, 4)
    for layer in (Dropout(0.0, seed=seed), DropBlock2d(0.0, 2, seed=seed)):
        before = torch.get_rng_state()
        assert layer.train()(x) is x
        assert torch.equal(torch.get_rng_state(), before)
        assert seed is None or int(layer.draws) == 0


def test_sizes_may_be_numpys_whole_numbers():
    assert DropConnectLinear(np.uint64(3), np.int8(2))(torch.ones(5, 3)).shape == (5, 2)
    for axes in (np.int64(1), [np.int8(1)], np.array([1])):
        assert Dropout(0.5, shared_axes=axes).shared_axes == (1,)


def entry(mask, a, b):
    """Gamma of two units, given by their places."""
    if any(
        p != q
        for k, (p, q) in enumerate(zip(a, b, strict=True))
        if k not in mask.axes and k not in mask.shared
    ):
        return 0.0
    if mask.matrix is None:
        return mask.strength
    sizes = [mask.shape[k] for k in mask.axes]
    i, j = (
        np.ravel_multi_index([place[k] for k in mask.axes], sizes) for place in (a, b)
    )
    return float(mask.matrix[i, j])


ROOT = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).double()
COVARIANCES = [
    MaskCovariance((3, 2), 0.4),
    MaskCovariance((3, 2), 0.4, shared=(1,)),
    MaskCovariance((3, 2, 2), 0.4, shared=(0, 2)),
    MaskCovariance((3, 1), 0.4, shared=(1,)),
    MaskCovariance((2, 6), matrix=ROOT @ ROOT.T, axes=(1,)),
    MaskCovariance((6, 2), matrix=ROOT @ ROOT.T, axes=(0,)),
    MaskCovariance((2, 3, 2), matrix=ROOT @ ROOT.T, axes=(1, 2)),
    MaskCovariance((2, 3, 2), matrix=ROOT @ ROOT.T, axes=(1, 2), shared=(0,)),
    MaskCovariance((2, 2, 3), matrix=ROOT @ ROOT.T, axes=(0, 2)),
]


@pytest.mark.parametrize("mask", COVARIANCES)
def test_second_moments_unit_by_unit(mask):
    like = torch.zeros((), dtype=torch.float64)
    places = list(itertools.product(*map(range, mask.shape)))
    Gamma = torch.tensor(
        [[entry(mask, a, b) for b in places] for a in places], dtype=torch.float64
    )
    torch.testing.assert_close(mask.dense(like), Gamma)
    torch.testing.assert_close(mask.relative_variance(like).flatten(), Gamma.diagonal())
    flow = torch.randn(2, 3, *mask.shape).double()
    expected = (flow.flatten(2) @ Gamma).reshape(flow.shape)
    torch.testing.assert_close(mask.apply(flow), expected)
    h, R = torch.randn(5, *mask.shape).double(), torch.randn(4, len(places)).double()
    second = torch.einsum("ni,nj->ij", h.flatten(1), h.flatten(1)) / 5
    torch.testing.assert_close(mask.penalty(h, R), (Gamma * (R.T @ R) * second).sum())
    assert mask.independent == bool((Gamma == torch.diag(Gamma.diagonal())).all())


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
            assert any(
                not kept[n, max(a, 0) : a + 2, max(b, 0) : b + 3].any()
                for a, b in corners
            )


BLOCKS = [
    (7, (14, 14), "sliding", False),
    (4, (9, 13), "sliding", False),
    (7, (14, 14), "sliding", True),
    (4, (9, 13), "sliding", True),
    (4, (9, 13), "grid", False),
]


@pytest.mark.parametrize("drop_prob", [0.1, 0.25, 0.5])
@pytest.mark.parametrize(("block", "size", "placement", "uniform"), BLOCKS)
def test_realized_fraction_and_mean(block, size, placement, uniform, drop_prob):
    layer = DropBlock2d(drop_prob, block, placement=placement, uniform=uniform, seed=0)
    y = layer(torch.ones(4000, 1, *size))[:, 0]
    dropped = (y == 0).double().numpy()
    assert_mean_within_standard_errors(dropped.mean((1, 2)), drop_prob)
    assert_mean_within_standard_errors(y.double().numpy(), 1.0)
    if uniform or placement == "grid":
        assert_mean_within_standard_errors(dropped, drop_prob)


@pytest.mark.parametrize(("block", "size"), [(3, (5, 4)), (2, (3, 4)), (3, (3, 5))])
def test_geometry_agrees_with_the_noise_of_the_core(block, size):
    ours = Sliding(0.4, size, (block, block), uniform=False)
    core = DropBlock(0.4, block, "sliding")
    np.testing.assert_allclose(ours.keep_prob().ravel(), core.mean(size), rtol=1e-12)
    np.testing.assert_allclose(
        ours.characteristic(), core.characteristic(size), rtol=1e-9
    )
    assert ours.seed_prob() == pytest.approx(core.seed_probability(size), rel=1e-12)


def test_drops_whole_blocks():
    y = DropBlock2d(0.2, 3, seed=1)(torch.ones(200, 1, 8, 8))[:, 0]
    hole = (y == 0).double()
    # Opening by a 3 x 3 square leaves a union of 3 x 3 squares as it is.
    eroded = -torch.nn.functional.max_pool2d(-hole[:, None], 3, stride=1)
    opened = torch.nn.functional.max_pool2d(
        torch.nn.functional.pad(eroded, (2, 2, 2, 2)), 3, stride=1
    )
    assert torch.equal(opened[:, 0], hole)
    assert hole.sum() > 0


# What users reported.


@every_layer
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_a_layer_with_a_seed_never_gives_a_wrong_gradient(
    build, shape, reentrant
):
    layer = build(0)
    x = torch.ones(shape, requires_grad=True)
    y = checkpoint(lambda v: layer(v) * v.sum(), x, use_reentrant=reentrant)
    with pytest.raises(InputError, match="seed"):
        y.sum().backward()


@every_layer
def test_checkpointing_a_layer_without_a_seed_gives_the_gradient(build, shape):
    layer = build(None)
    x = torch.randn(shape, requires_grad=True)
    torch.manual_seed(0)
    (plain,) = torch.autograd.grad((layer(x) ** 2).sum(), x)
    torch.manual_seed(0)
    again = checkpoint(lambda v: layer(v) ** 2, x, use_reentrant=False)
    (found,) = torch.autograd.grad(again.sum(), x)
    torch.testing.assert_close(found, plain)


@every_layer
def test_vmap_with_different_randomness_draws_a_mask_for_each_copy(build, shape):
    torch.manual_seed(0)
    layer = build(None)
    x = torch.ones(4000, 1, *shape[1:])
    y = torch.func.vmap(layer, randomness="different")(x)
    assert y.shape[:2] == (4000, 1)
    assert not torch.equal(y[0], y[1]) or not torch.equal(y[0], y[2])
    mean = y.double().mean(0)
    error = y.double().std(0) / 4000**0.5
    expected = copy.deepcopy(layer).eval()(x[0]).double()
    assert bool(((mean - expected).abs() <= 5 * error + 1e-6).all())


@every_layer
@pytest.mark.parametrize("training", [False, True])
def test_symbolic_tracing_keeps_the_layer(build, shape, training):
    model = nn.Sequential(build(None), nn.Flatten()).train(training)
    traced = torch.fx.symbolic_trace(model)
    x = torch.randn(shape)
    torch.manual_seed(3)
    expected = model(x)
    torch.manual_seed(3)
    torch.testing.assert_close(traced(x), expected)
    torch.testing.assert_close(traced.eval()(x), model.eval()(x))


@every_layer
@pytest.mark.parametrize("seed", [None, 5])
def test_an_empty_batch_gives_an_empty_batch(build, shape, seed):
    layer = build(seed)
    full = layer(torch.ones(shape))
    empty = layer(torch.ones(0, *shape[1:]))
    assert empty.shape == (0, *full.shape[1:])


@every_layer
@pytest.mark.parametrize("seed", [None, 5])
def test_a_layer_built_on_the_meta_device_gives_shapes_there(build, shape, seed):
    with torch.device("meta"):
        layer = build(seed)
    y = layer(torch.empty(shape, device="meta"))
    assert y.is_meta
    assert y.shape == build(seed)(torch.ones(shape)).shape
    assert all(t.is_meta for t in (*layer.parameters(), *layer.buffers()))


@pytest.mark.parametrize("name", WEIGHT_LAYERS)
def test_a_layer_from_the_meta_device_can_be_initialized(name):
    build, shape = LAYERS[name]
    with torch.device("meta"):
        layer = build(None)
    layer = layer.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(float("nan"))
    layer.reset_parameters()
    assert bool(layer(torch.ones(shape)).isfinite().all())


RATED = [name for name in LAYERS if not name.startswith("covariance")]


@pytest.mark.parametrize("name", RATED)
def test_setting_p_as_on_a_layer_of_torch_changes_what_is_dropped(name):
    build, _ = LAYERS[name]
    layer = build(None)
    assert layer.p == 0.3
    layer.p = 0.9
    assert layer.drop_prob == 0.9
    assert "0.9" in repr(layer)
    with pytest.raises(InputError, match="drop_prob"):
        layer.p = 1.5


def test_setting_p_of_a_layer_without_a_drop_probability_is_refused():
    layer = CovarianceDropout(MU, K)
    with pytest.raises(AttributeError, match="CovarianceDropout"):
        layer.p = 0.5


def test_a_layer_used_inside_a_transformation_leaves_nothing_behind():
    layer = DropBlock2d(0.31, 2, seed=0)
    x = torch.ones(2, 1, 4, 4)
    torch.func.functionalize(layer)(x)
    result = layer(x)
    assert not torch._is_functional_tensor(result)
