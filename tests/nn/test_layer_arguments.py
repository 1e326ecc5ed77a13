"""What layers, moments and penalties take as arguments, what they refuse, how layers print."""

import numpy as np
import pytest
import torch
from torch import nn

from overt import InputError
from overt.nn import (
    CovarianceDropout,
    DropBlock2d,
    DropConnectLinear,
    Dropout,
    explicit_penalty,
    predictive_moments,
)


def test_layers_and_outputs_that_cannot_be_are_refused():
    small = 1e-60  # less than single precision holds, which makes it 0
    for mean, covariance in (([small], [[small**2]]), ([1.0], [[1e40]])):
        with pytest.raises(InputError, match="covariance"):
            CovarianceDropout(mean, covariance)
    for wrong in (3, "logits"):
        with pytest.raises(InputError, match="output must be a function"):
            explicit_penalty(nn.Linear(2, 2), torch.ones(1, 2), output=wrong)


@pytest.mark.parametrize("units", [4, 64])
def test_covariances_in_single_precision_are_taken(units):
    """A A' of rank 3 and torch.cov of five samples were refused: an eigenvalue was -7e-7."""
    for seed in range(10):
        torch.manual_seed(seed)
        A = torch.randn(units, 3)
        for K in (A @ A.T, torch.cov(torch.randn(units, 5)).numpy()):
            layer = CovarianceDropout(torch.ones(units), K)
            torch.testing.assert_close(layer.covariance, torch.as_tensor(K))
    with pytest.raises(InputError, match="semi-definite"):
        CovarianceDropout([1.0, 1.0], torch.tensor([[1.0, 1.001], [1.001, 1.0]]))


REPRS = [
    (
        Dropout(0.3, shared_axes=1, seed=5),
        "Dropout(drop_prob=0.3, shared_axes=(1,), seed=5)",
    ),
    (Dropout(0.25), "Dropout(drop_prob=0.25)"),
    (
        DropBlock2d(0.3, (1, 3), shared_axes=1, seed=5),
        "DropBlock2d(drop_prob=0.3, block_size=(1, 3), placement=sliding, uniform=False, "
        "shared_axes=(1,), seed=5)",
    ),
    (
        DropBlock2d(0.3, 2, placement="grid"),
        "DropBlock2d(drop_prob=0.3, block_size=2, placement=grid)",
    ),
    (
        CovarianceDropout([0.5], [[0.25]], axis=1, seed=5),
        "CovarianceDropout(units=1, axis=1, seed=5)",
    ),
    (
        DropConnectLinear(6, 3, drop_prob=0.3, per_sample=True, seed=5),
        "DropConnectLinear(in_features=6, out_features=3, bias=True, "
        "drop_prob=0.3, per_sample=True, "
        "seed=5)",
    ),
    (
        DropConnectLinear(6, 3, False),
        "DropConnectLinear(in_features=6, out_features=3, bias=False, drop_prob=0.5, "
        "per_sample=False)",
    ),
]


@pytest.mark.parametrize(("layer", "text"), REPRS)
def test_layers_print_their_settings(layer, text):
    assert repr(layer) == text


@pytest.mark.parametrize(
    "make", [lambda: torch.eye(3).to_sparse(), lambda: np.eye(3), lambda: [[1.0]]]
)
def test_layers_take_dense_tensors(make):
    wrong = make()
    for layer in (
        Dropout(0.5),
        DropConnectLinear(3, 2),
        CovarianceDropout([0.5], [[0.25]]),
    ):
        with pytest.raises(InputError, match=r"dense torch\.Tensor"):
            layer(wrong)
    for shape in (3, (4,), "ab"):
        with pytest.raises(InputError, match="shape must be"):
            Dropout(0.5).mask_covariance(shape)


@pytest.mark.parametrize("dead", [[1], [0, 1, 2]])
def test_outputs_that_do_not_vary_leave_the_others_alone(dead):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(4, 8),
        nn.Dropout(0.5),
        nn.ReLU(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    ).double()
    net[5].weight.data[dead] = 0
    x = torch.randn(3, 4).double()
    with torch.no_grad():
        for given in ({}, {"draws": 40}):
            found = predictive_moments(net, x, **given)
            assert not found.variance[:, dead].any()
            for part in (found.variance, found.mean_error, found.std_error):
                assert float(part[:, dead].max()) <= 1e-14  # rounding
                assert bool(part.isfinite().all())
            torch.testing.assert_close(
                found.mean[:, dead], net[5].bias[dead].expand(3, -1)
            )
            alive = [k for k in range(3) if k not in dead]
            assert bool((found.variance[:, alive] > 0).all())


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 3), (4, 2, 3, 3)])
def test_samples_drop_weights_of_their_own(shape):
    """The identity shows the weights of a sample, the same for all its tokens."""
    torch.manual_seed(0)
    layer = DropConnectLinear(3, 5, drop_prob=0.4, per_sample=True).double()
    x = (
        torch.eye(3).double().expand(*shape[:-2], 3, 3)
        if len(shape) > 2
        else torch.eye(3).double()
    )
    y = (layer(x) - layer.bias).detach()
    W = layer.weight.detach().T / 0.6
    assert y.shape == (*x.shape[:-1], 5)
    assert bool(((y.abs() < 1e-12) | ((y - W).abs() < 1e-12)).all())
    if len(shape) > 2:
        same = y.reshape(4, -1, 3, 5)
        assert bool((same == same[:, :1]).all())
        assert not bool((same[0] == same[1]).all())


@pytest.mark.parametrize("axis", [-4, -3, -2, -1, 1, 2, 3, 4])
def test_units_lie_along_their_axis_or_are_refused(axis):
    layer = CovarianceDropout([1.0] * 3, np.eye(3), axis=axis)
    for shape in (
        (),
        (3,),
        (3, 3),
        (3, 2),
        (2, 3, 3),
        (2, 3, 4),
        (2, 4, 3),
        (2, 3, 4, 5),
        (3,) * 4,
    ):
        sizes = dict(enumerate(shape)) | {
            i - len(shape): n for i, n in enumerate(shape)
        }
        fits = sizes.get(axis) == 3 and axis % len(shape) != 0
        try:
            seen = layer(torch.ones(shape)).shape == shape
            law = layer.mask_covariance(shape) if len(shape) > 1 else None
            assert law is None or law.axes == (axis % len(shape) - 1,)
        except InputError:
            seen = False
        assert seen == fits, (axis, shape)


def test_masks_of_double_precision_are_computed_in_it():
    layer = CovarianceDropout([0.7, 0.9], [[0.3, 0.1], [0.1, 0.2]], seed=0).double()
    y = layer(torch.ones(9, 2).double())
    assert bool((y.float().double() != y).any())


@pytest.mark.filterwarnings("ignore")  # torch says that nested tensors are new
def test_inputs_are_dense_and_hold_numbers():
    net, x = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)), torch.ones(2, 3)
    for odd in (x.to_sparse(), x.to("meta"), torch.nested.nested_tensor([x, x])):
        for given in (odd, (x, odd)):
            with pytest.raises(InputError, match="must be dense and hold numbers"):
                predictive_moments(net, given)


def test_batches_have_rows():
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2))
    for x in (torch.zeros(0, 3), torch.zeros(3), torch.tensor(1.0), torch.tensor(1)):
        with pytest.raises(InputError, match="batch axis and at least one row"):
            predictive_moments(net, x)
    words = nn.Sequential(nn.Embedding(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    assert predictive_moments(words, torch.tensor([0, 3])).mean.shape == (2, 2)
    with pytest.raises(InputError, match="batch axis and at least one row"):
        predictive_moments(words, torch.zeros(0, dtype=torch.int64))
