"""`compress` with targets: the loss it uses, the labels it finds, and recovery."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from overt.nn import compress


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head((h + self.down(torch.relu(self.up(h)))).mean(1))


def test_recovery_trains_the_attention_that_is_returned():
    torch.manual_seed(0)
    model = Encoder()
    x, y = torch.randn(64, 5, 8), torch.randint(3, (64,))
    small, report = compress(
        model, {"up": 0.5}, x[:4], (x, y), by="flow", recover=30, learning_rate=1e-2
    )
    assert isinstance(small.attention, nn.MultiheadAttention)
    assert not torch.equal(
        small.attention.out_proj.weight, model.attention.out_proj.weight
    )
    with torch.no_grad():
        loss = float(functional.cross_entropy(small.eval()(x), y))
    assert report.after.loss == pytest.approx(loss, rel=1e-5)
    assert report.after.loss == pytest.approx(report.recovery.min(), rel=1e-5)


def bits(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    x = torch.randn(300, 4)
    return net, x, (x[:, :1] > 0).to(dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_the_loss_that_was_guessed_is_named_and_bits_are_not_numbers(dtype):
    net, x, y = bits(dtype)
    _, report = compress(
        net, 0.5, x[:4], (x, y if dtype.is_floating_point else y[:, 0])
    )
    with torch.no_grad():
        expected = functional.binary_cross_entropy_with_logits(net(x), y.float())
    assert report.loss == "logistic"
    assert report.loss_guessed
    assert report.before.loss == pytest.approx(float(expected), rel=1e-5)
    assert "logistic, guessed from the targets" in str(report)


def test_a_loss_that_was_given_is_named_and_not_guessed():
    net, x, y = bits(torch.float32)
    _, report = compress(net, 0.5, x[:4], (x, y), loss="mse")
    assert (report.loss, report.loss_guessed) == ("mse", False)
    assert "guessed" not in str(report)


def test_labels_of_a_dict_loader_judge_the_network():
    net, x, y = bits(torch.int64)
    batches = [
        {"input": x[i : i + 50], "labels": y[i : i + 50, 0]} for i in range(0, 300, 50)
    ]
    _, report = compress(net, 0.5, {"input": x[:4]}, batches, by="flow")
    with torch.no_grad():
        right = ((net(x) > 0) == (y == 1)).double().mean()
    assert report.before.accuracy == pytest.approx(float(right))
    assert report.before.loss is not None
