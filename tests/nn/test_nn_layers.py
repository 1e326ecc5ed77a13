"""Every layer: identity in evaluation, its stated moments in training, and PyTorch's habits."""

import copy

import numpy as np
import pytest
import torch
from helpers import assert_mean_within_standard_errors
from safetensors.torch import load_file, save_file
from torch import nn

from overt import InputError
from overt.nn import (
    CovarianceDropout,
    DropBlock1d,
    DropBlock2d,
    DropBlock3d,
    DropConnectConv2d,
    DropConnectLinear,
    Dropout,
    advance,
    schedules,
)

MU = np.array([0.5, 0.7, 0.9])
SD = np.sqrt(MU * (1 - MU))
K = np.array([[1, 0.4, 0.1], [0.4, 1, 0.2], [0.1, 0.2, 1]]) * np.outer(SD, SD)

# What to build with a seed, and the shape of an input.
UNIT_LAYERS = {
    "dropout": (lambda s: Dropout(0.3, seed=s), (4, 6)),
    "dropout-time": (lambda s: Dropout(0.3, shared_axes=1, seed=s), (4, 5, 3)),
    "dropout-channels": (lambda s: Dropout(0.3, shared_axes=(2, 3), seed=s), (4, 3, 2, 2)),
    "dropout-scheduled": (
        lambda s: Dropout(schedules.Linear(0.3, 0.6, steps=10), seed=s),
        (4, 6),
    ),
    "block-1d": (lambda s: DropBlock1d(0.3, 3, seed=s), (4, 2, 7)),
    "block-sliding": (lambda s: DropBlock2d(0.3, 2, seed=s), (4, 2, 4, 5)),
    "block-uniform": (lambda s: DropBlock2d(0.3, 3, uniform=True, seed=s), (4, 2, 4, 5)),
    "block-grid": (lambda s: DropBlock2d(0.3, 2, placement="grid", seed=s), (4, 2, 4, 5)),
    "block-oblong": (lambda s: DropBlock2d(0.3, (1, 3), seed=s), (4, 2, 4, 5)),
    "block-larger-than-map": (lambda s: DropBlock2d(0.3, 9, seed=s), (4, 2, 4, 5)),
    "block-all-channels": (lambda s: DropBlock2d(0.3, 2, shared_axes=1, seed=s), (4, 3, 3, 3)),
    "block-3d": (lambda s: DropBlock3d(0.3, 2, seed=s), (4, 1, 3, 2, 3)),
    "covariance-gaussian": (lambda s: CovarianceDropout(MU, K, seed=s), (4, 3)),
    "covariance-bernoulli": (lambda s: CovarianceDropout(MU, K, "bernoulli", seed=s), (4, 3)),
    "covariance-channels": (lambda s: CovarianceDropout(MU, K, axis=1, seed=s), (4, 3, 2)),
}
WEIGHT_LAYERS = {
    "connect": (lambda s: DropConnectLinear(6, 3, drop_prob=0.3, seed=s), (4, 6)),
    "connect-per-sample": (
        lambda s: DropConnectLinear(6, 3, drop_prob=0.3, per_sample=True, seed=s),
        (4, 6),
    ),
    "connect-conv": (
        lambda s: DropConnectConv2d(4, 6, 3, padding=1, groups=2, drop_prob=0.3, seed=s),
        (4, 4, 5, 5),
    ),
}
LAYERS = UNIT_LAYERS | WEIGHT_LAYERS

every_layer = pytest.mark.parametrize(("build", "shape"), LAYERS.values(), ids=LAYERS.keys())
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
    save_file({k: v.contiguous() for k, v in layer.state_dict().items()}, tmp_path / "layer")
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
    variance = layer.mask_covariance((1, *shape[1:])).relative_variance(torch.ones(()).double())
    np.testing.assert_allclose(variance.flatten(), np.diag(Gamma), rtol=1e-6)


@pytest.mark.parametrize(("build", "shape"), WEIGHT_LAYERS.values(), ids=WEIGHT_LAYERS.keys())
def test_dropped_weights_leave_the_expected_output_alone(build, shape):
    layer, x = like(build, 11), torch.randn(shape)
    plain = copy.deepcopy(layer).eval()(x).detach().double().numpy()
    draws = np.stack([layer(x).detach().double().numpy() for _ in range(3000)])
    assert_mean_within_standard_errors(draws, plain)


SHARING = {
    "units": (lambda axes: Dropout(0.3, shared_axes=axes), [(), 0, 1, (0, 1), -1, (0, 2, 3)]),
    "sliding": (lambda axes: DropBlock2d(0.3, 2, shared_axes=axes), [(), 0, 1, (0, 1)]),
    "uniform": (lambda axes: DropBlock2d(0.3, 2, uniform=True, shared_axes=axes), [0, 1]),
    "grid": (lambda axes: DropBlock2d(0.3, 2, placement="grid", shared_axes=axes), [0, (0, 1)]),
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
    linear, conv = nn.Linear(6, 3), nn.Conv2d(4, 6, 3, padding=1, groups=2)
    ours = DropConnectLinear(6, 3), DropConnectConv2d(4, 6, 3, padding=1, groups=2)
    for plain, layer, x in zip(
        (linear, conv), ours, (torch.randn(2, 6), torch.randn(2, 4, 5, 5)), strict=True
    ):
        layer.load_state_dict(plain.state_dict())
        assert torch.equal(layer.eval()(x), plain(x))


def test_schedules_move_with_advance_and_are_saved(monkeypatch):
    layer = Dropout(schedules.Linear(0.0, 0.4, steps=4))
    model = nn.Sequential(nn.Linear(2, 2), layer)
    seen = []
    for _ in range(6):
        seen.append(layer.drop_prob)
        assert layer.rate.current == layer.drop_prob
        assert not layer.silent
        with monkeypatch.context() as compiled:  # compiled code reads a tensor
            compiled.setattr(torch.compiler, "is_compiling", lambda: True)
            assert isinstance(layer.rate.current, torch.Tensor)
            assert float(layer.rate.current) == layer.drop_prob
            assert Dropout(0.3).rate.current == 0.3
        advance(model)
    assert seen == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.4])
    other = nn.Sequential(nn.Linear(2, 2), Dropout(schedules.Linear(0.0, 0.4, steps=4)))
    other.load_state_dict(model.state_dict())
    assert other[1].drop_prob == pytest.approx(0.4)
    layer.drop_prob = 0.25
    assert layer.drop_prob == 0.25
    assert repr(layer.rate) == "0.25 by Linear(start=0.0, end=0.4, steps=4)"
    advance(model, 0)
    assert layer.drop_prob == pytest.approx(0.4)
    layer.drop_prob = 0.25
    assert [Dropout(p).silent for p in (0.0, 0.1)] == [True, False]
    with pytest.raises(InputError, match="model must be"):
        advance(3)
    assert copy.deepcopy(model).bfloat16()[1].drop_prob == 0.25


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (schedules.Curriculum(0.5, steps=10), {0: 0.0, 10: 0.5 * (1 - np.exp(-1)), 10**6: 0.5}),
        (schedules.Annealed(0.5, steps=10), {0: 0.5, 5: 0.25, 10: 0.0, 20: 0.0}),
        (schedules.Linear(0.1, 0.5, steps=4), {0: 0.1, 1: 0.2, 2: 0.3, 4: 0.5, 9: 0.5}),
        # theta(d) = tb b / (tb b + (1 - tb) d) with tb = .8, b = 5, d = 50
        (schedules.WidthAdjusted(0.2, width=50, block_size=5), {0: 1 - 4 / (4 + 10), 9: 10 / 14}),
    ],
)
def test_schedule_values(schedule, values):
    for step, value in values.items():
        assert schedule(step) == pytest.approx(value)


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
        (lambda: DropConnectLinear(3, 2, drop_prob=0.5).eval()([[1.0] * 3]), "torch.as_tensor"),
        (lambda: DropBlock2d(0.5, 0), "block_size"),
        (lambda: DropBlock2d(0.5, (1, 2, 3)), "block_size"),
        (lambda: DropBlock2d(0.5, placement="random"), "placement"),
        (lambda: DropBlock2d(0.5, shared_axes=2), "shared_axes"),
        (lambda: DropBlock2d(0.5)(torch.ones(3, 4, 4)), "axes"),
        (lambda: DropConnectConv2d(2, 2, 3, padding="same"), "padding"),
        (lambda: CovarianceDropout([0.5, 0.0], np.eye(2)), "mean"),
        (lambda: CovarianceDropout([0.5, 0.5], np.eye(2), "bernoulli"), "covariance"),
        (lambda: CovarianceDropout([0.5, 1.5], np.eye(2) * 0.25, "bernoulli"), "mean"),
        (
            lambda: CovarianceDropout([0.5, 0.9], [[0.25, 0.1], [0.1, 0.09]], "bernoulli"),
            "beyond",
        ),
        (lambda: CovarianceDropout([0.5, 0.5], np.eye(2))(torch.ones(2, 3)), "units"),
        (lambda: CovarianceDropout([0.5, 0.5], np.eye(2), axis=0), "axis"),
        (lambda: schedules.Linear(0.1, 1.2, 5), "end"),
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
    """An unsigned one divided by a signed one is a float to NumPy."""
    layer = DropConnectConv2d(np.int64(4), 2, 3, groups=np.uint64(2))
    assert layer.weight.shape == (2, 2, 3, 3)
    assert DropConnectLinear(np.uint64(3), np.int8(2))(torch.ones(5, 3)).shape == (5, 2)
    for axes in (np.int64(1), [np.int8(1)], np.array([1])):
        assert Dropout(0.5, shared_axes=axes).shared_axes == (1,)
