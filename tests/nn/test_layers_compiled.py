"""Compiled layers: no graph break, the eager masks where a seed is set, one compilation."""

import shutil

import pytest
import torch
from torch import nn

from overt.nn import (
    CovarianceDropout,
    DropBlock2d,
    DropConnectLinear,
    Dropout,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself

LAYERS = {
    "dropout": (lambda s: Dropout(0.3, seed=s), (40, 6)),
    "shared": (lambda s: Dropout(0.3, shared_axes=1, seed=s), (40, 5, 3)),
    "sliding": (lambda s: DropBlock2d(0.3, 2, seed=s), (40, 2, 4, 5)),
    "uniform": (lambda s: DropBlock2d(0.3, 2, uniform=True, seed=s), (40, 2, 4, 5)),
    "grid": (lambda s: DropBlock2d(0.3, 2, placement="grid", seed=s), (40, 2, 4, 5)),
    "covariance": (
        lambda s: CovarianceDropout([1.0, 2.0], [[0.3, 0.1], [0.1, 0.4]], seed=s),
        (40, 2),
    ),
    "connect": (lambda s: DropConnectLinear(6, 3, drop_prob=0.3, seed=s), (40, 6)),
}


def pair(build, seed):
    torch._dynamo.reset()
    built = []
    for _ in range(2):
        torch.manual_seed(0)
        built.append(build(seed))
    return built


@pytest.mark.parametrize(("build", "shape"), LAYERS.values(), ids=LAYERS.keys())
def test_compiled_masks_are_the_eager_ones(build, shape):
    eager, other = pair(build, 5)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    x = torch.randn(shape)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), eager(x))
    eager.eval()
    other.eval()
    torch.testing.assert_close(compiled(x), eager(x))


@pytest.mark.parametrize("name", ["dropout", "sliding", "connect"])
def test_without_a_seed_a_compiled_layer_still_draws(name):
    build, shape = LAYERS[name]
    _, layer = pair(build, None)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.ones(shape)
    assert not torch.equal(compiled(x), compiled(x))


@pytest.mark.parametrize("kind", ["dropout", "sliding", "uniform", "grid"])
def test_a_compiled_layer_follows_its_drop_probability(kind):
    build = {
        "dropout": lambda s: Dropout(0.1, seed=s),
        "sliding": lambda s: DropBlock2d(0.1, 2, seed=s),
        "uniform": lambda s: DropBlock2d(0.1, 2, uniform=True, seed=s),
        "grid": lambda s: DropBlock2d(0.1, 2, placement="grid", seed=s),
    }[kind]
    eager, other = pair(build, 5)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    x = torch.ones(8, 2, 4, 4)
    for drop_prob in (0.1, 0.2, 0.35, 0.6):
        eager.drop_prob = other.drop_prob = drop_prob
        torch.testing.assert_close(compiled(x), eager(x))


@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"
)
def test_inductor_trains_with_the_eager_masks():
    """Forward and backward through torch's default compiler."""

    def build(seed):
        return nn.Sequential(
            DropBlock2d(0.3, 2, seed=seed),
            nn.Flatten(),
            nn.Linear(16, 8),
            Dropout(0.5, seed=seed),
        )

    eager, other = pair(build, 5)
    compiled = torch.compile(other, fullgraph=True)
    x = torch.randn(6, 1, 4, 4)
    for _ in range(2):
        a, b = eager(x), compiled(x)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        a.sum().backward()
        b.sum().backward()
    for p, q in zip(eager.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
