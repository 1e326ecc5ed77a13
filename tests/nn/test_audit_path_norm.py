"""Path norms in an audit: the norm over all paths of products of weights."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from overt import Dropout, penalty
from overt.nn import audit


def matrix(layer, shape):
    """The matrix of a linear layer, from its outputs on the basis, and its output shape."""
    size = torch.Size(shape).numel()
    with torch.no_grad():
        zero = layer(torch.zeros(1, *shape))
        columns = layer(torch.eye(size).reshape(size, *shape)) - zero
    return columns.reshape(size, -1).T.double(), zero.shape[1:]


def paths(layers, shape, p):
    """The p-norm over all paths of products of weights, by matrices of |weight|^p."""
    total = torch.ones(torch.Size(shape).numel(), dtype=torch.float64)
    for layer in layers:
        weights, shape = matrix(layer, shape)
        total = (weights.abs() ** p) @ total
    return float(total.sum()) ** (1 / p)


def reported(model, shape, outputs):
    torch.manual_seed(1)
    x, y = torch.randn(20, *shape), torch.randn(20, outputs)
    report = audit(model, (x, y), "mse")
    return {
        m.name: m.value for m in report.measures if m.name.endswith("path norm")
    }, report


def test_path_norms_are_those_of_matrices_of_weights():
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in pairwise((3, 4, 2, 2))]
    model = nn.Sequential(
        layers[0], nn.ReLU(), layers[1], nn.ReLU(), nn.Dropout(0.1), layers[2]
    )
    found, report = reported(model, (3,), 2)
    for p in (1, 2):
        assert found[f"l{p} path norm"] == pytest.approx(
            paths(layers, (3,), p), rel=1e-5
        )
    assert "path norm" not in dict(report.skipped)


def test_path_norms_go_through_batch_normalization_and_max_pooling():
    torch.manual_seed(0)
    conv, norm, head = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Linear(8, 1)
    norm.running_var.uniform_(0.5, 2)
    nn.init.uniform_(norm.weight, -1, 1)
    norm.eval()
    layers = [conv, norm, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), head]
    found, report = reported(nn.Sequential(*layers), (1, 4, 4), 1)
    sums = nn.AvgPool2d(
        2, divisor_override=1
    )  # every entry of a window may be the largest
    for p in (1, 2):
        expected = paths([conv, norm, sums, nn.Flatten(), head], (1, 4, 4), p)
        assert found[f"l{p} path norm"] == pytest.approx(expected, rel=1e-5), (
            report.skipped
        )


def test_the_squared_path_norm_is_the_penalty_of_dropout():
    """With uncorrelated inputs of unit variance the penalty of a linear network is lam psi_2^2."""
    torch.manual_seed(0)
    first, last = nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False)
    found, _ = reported(nn.Sequential(first, last), (3,), 2)
    U, V = last.weight.detach().numpy(), first.weight.detach().numpy().T
    value = penalty.shallow(U.astype(float), V.astype(float), Dropout(0.5))
    assert found["l2 path norm"] ** 2 == pytest.approx(float(value), rel=1e-5)


def test_an_operation_without_paths_is_named():
    model = nn.Sequential(nn.Linear(3, 3), nn.Softmax(1), nn.Linear(3, 2))
    found, report = reported(model, (3,), 2)
    assert not found
    assert dict(report.skipped)["path norm"] == "not defined through softmax"


class Biased(nn.Module):
    """Biases that are added by hand, in the ways people write it."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 6, bias=False)
        self.last = nn.Linear(6, 2, bias=False)
        self.bias = nn.Parameter(torch.randn(6))
        self.how = how

    def forward(self, x):
        h = self.first(x)
        match self.how:
            case "+":
                h = h + self.bias
            case "add":
                h = torch.add(self.bias, h)
            case "-":
                h = h - self.bias
            case "+=":
                h += self.bias
            case "number":
                h = h + 3.0
        return self.last(torch.relu(h))


@pytest.mark.parametrize("how", ["+", "add", "-", "+=", "number"])
def test_a_bias_that_is_added_by_hand_is_on_no_path(how):
    model = Biased(how)
    found, report = reported(model, (4,), 2)
    for p in (1, 2):
        expected = paths([model.first, model.last], (4,), p)
        assert found[f"l{p} path norm"] == pytest.approx(expected, rel=1e-5), (
            report.skipped
        )


POOLS = {
    "overlapping": nn.AvgPool2d(3, stride=1),
    "apart": nn.AvgPool2d(2),
    "with gaps": nn.AvgPool2d(2, stride=3),
    "padded": nn.AvgPool2d(3, stride=2, padding=1),
    "adaptive": nn.AdaptiveAvgPool2d(2),
}


@pytest.mark.parametrize("name", POOLS)
def test_path_norms_go_through_average_pooling_of_every_kind(name):
    torch.manual_seed(0)
    conv, pool = nn.Conv2d(1, 3, 3), POOLS[name]
    size = pool(conv(torch.zeros(1, 1, 8, 8))).numel()
    head = nn.Linear(size, 2)
    model = nn.Sequential(conv, nn.ReLU(), pool, nn.Flatten(), head)
    found, report = reported(model, (1, 8, 8), 2)
    for p in (1, 2):
        expected = paths([conv, pool, nn.Flatten(), head], (1, 8, 8), p)
        assert found[f"l{p} path norm"] == pytest.approx(expected, rel=1e-5), (
            report.skipped
        )


UNEVEN = {
    "windows cut at the edge": nn.AvgPool2d(3, stride=2, ceil_mode=True),
    "padding not counted": nn.AvgPool2d(
        3, stride=2, padding=1, count_include_pad=False
    ),
    "adaptive windows of two sizes": nn.AdaptiveAvgPool2d(4),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_a_path_norm_through_windows_of_several_sizes_is_not_guessed(name):
    torch.manual_seed(0)
    conv, pool = nn.Conv2d(1, 3, 3), UNEVEN[name]
    size = pool(conv(torch.zeros(1, 1, 8, 8))).numel()
    model = nn.Sequential(conv, nn.ReLU(), pool, nn.Flatten(), nn.Linear(size, 2))
    found, report = reported(model, (1, 8, 8), 2)
    assert not found
    assert "several sizes" in dict(report.skipped)["path norm"]
