"""What users reported of `audit`: path norms."""

import pytest
import torch
from torch import nn

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
    return {m.name: m.value for m in report.measures if m.name.endswith("path norm")}, report


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
        assert found[f"l{p} path norm"] == pytest.approx(expected, rel=1e-5), report.skipped


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
        assert found[f"l{p} path norm"] == pytest.approx(expected, rel=1e-5), report.skipped


UNEVEN = {
    "windows cut at the edge": nn.AvgPool2d(3, stride=2, ceil_mode=True),
    "padding not counted": nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
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
