"""The networks that the figures train."""

import pytest

torch = pytest.importorskip("torch")

from overt.papers.models import Stack, features, mlp, residual_trunk  # noqa: E402
from overt.papers.thesis.subnetworks import FEATURES, TopLayers  # noqa: E402
from overt.robust import PGD, Linf, adversarial_train  # noqa: E402


def test_the_trunk_is_resnet_50():
    trunk = residual_trunk(3)
    # 25,557,032 parameters of the ImageNet network less its last layer, 2048 x 1000 + 1000.
    assert sum(p.numel() for p in trunk.parameters()) == 25_557_032 - 2_049_000
    assert features(trunk) == 2048
    small = residual_trunk(1, (1, 1), 4)
    assert small(torch.randn(2, 1, 8, 8)).shape == (2, features(small)) == (2, 32)


def test_the_smaller_trunk_is_resnet_18():
    # 11,689,512 parameters less the last layer, 512 x 1000 + 1000.
    trunk = residual_trunk(3, (2, 2, 2, 2), bottleneck=False)
    assert sum(p.numel() for p in trunk.parameters()) == 11_689_512 - 513_000
    assert features(trunk) == 512


def test_networks_side_by_side_train_as_they_do_alone():
    torch.manual_seed(0)
    x = torch.rand(2, 12, 5)
    y = torch.randint(2, (2, 12))
    alone = [mlp(5, 1, width=4) for _ in range(2)]
    stack = Stack(alone)

    def train(model, rate, x, y):
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        attack = PGD(Linf(0.1), steps=3)
        adversarial_train(model, [(x, y)], attack, epochs=5, optimizer=optimizer)

    train(stack, 2.0, x.flatten(0, 1), y.flatten())
    for k, network in enumerate(alone):
        train(network, 1.0, x[k], y[k])
        found = stack.unstacked()[k](x[k])
        assert torch.allclose(found, network(x[k]), atol=1e-5)


def test_a_step_of_the_top_layers_is_that_of_autograd():
    torch.manual_seed(0)
    width = 3000
    layers = TopLayers(width)
    x = torch.rand(8, FEATURES, requires_grad=True)
    y = torch.randint(10, (8,))
    mask = torch.rand(width) >= 0.7
    units = layers.units.clone().requires_grad_()
    bias = layers.bias.clone().requires_grad_()
    weights, shift, top = units.split([FEATURES, 1, 10], 1)
    h = torch.relu(x @ weights.T + shift.T) * mask / 0.3
    torch.nn.functional.cross_entropy(h @ top + bias, y).backward()
    slope = layers.step(mask, x.detach(), y, 1 / 0.3, 0.5)
    assert torch.allclose(slope, x.grad, atol=1e-7)
    assert torch.allclose(layers.units, units - 0.5 * units.grad, atol=1e-6)
    assert torch.allclose(layers.bias, bias - 0.5 * bias.grad, atol=1e-6)
