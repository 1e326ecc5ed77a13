"""`without_noise` under torch.compile: what users reported."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from overt.nn import without_noise

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 64),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(64, 9),
        nn.Tanh(),
        nn.Linear(9, 3),
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiling_without_noise_does_not_turn_it_into_sampled_dropout(backend):
    torch._dynamo.reset()
    x = torch.randn(64, 20)
    plain = without_noise(network(), loss="mse").train()
    net = without_noise(network(), loss="mse").train()
    compiled = torch.compile(net, backend=backend)
    torch.manual_seed(1)
    expected = plain(x)
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(net.penalty, plain.penalty)
    assert float(net.penalty) > 0


def test_a_compiled_training_step_has_the_penalty_of_its_own_batch():
    torch._dynamo.reset()
    net = without_noise(network(), loss="mse").train()
    plain = without_noise(network(), loss="mse").train()

    def loss(model, x, y):
        return functional.mse_loss(model(x), y) + model.penalty

    step = torch.compile(lambda x, y: loss(net, x, y), backend="eager")
    for scale in (1.0, 3.0):
        x, y = scale * torch.randn(64, 20), torch.randn(64, 3)
        torch.manual_seed(1)
        expected = loss(plain, x, y)
        torch.manual_seed(1)
        torch.testing.assert_close(step(x, y), expected)
