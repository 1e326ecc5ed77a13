"""Models that run other operations in training mode than in evaluation mode."""

import torch
from torch import nn
from torch.nn import functional

from overt.nn import audit, compress


class Function(nn.Module):
    """A forward pass written as a function of the module and its inputs."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        self.a = nn.Linear(6, 12)
        self.c = nn.Linear(12, 3)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.run(self, x)


def test_an_audited_penalty_is_not_exact_where_noise_decides_what_runs():
    def run(self, x):
        h = self.d(torch.relu(self.a(x)))
        return self.c(h) if h.mean() > 0.25 else self.c(h) - 1

    torch.manual_seed(0)
    model = Function(run, d=nn.Dropout(0.4))
    x = torch.randn(4, 6)
    noise = audit(model, (x, model.eval()(x).detach()), "squared").noises[-1]
    assert (noise.name, noise.exact) == ("d", False)


def masked_by_a_row(self, x):
    h = torch.relu(self.a(x))
    if self.training:
        h = h * functional.dropout(torch.ones(1, 12), 0.3)
    return self.c(torch.relu(self.b(h)))


def test_a_compressed_model_runs_in_training_mode():
    torch.manual_seed(0)
    model = Function(masked_by_a_row, b=nn.Linear(12, 12))
    x = torch.randn(4, 6)
    small, report = compress(model, {"b": 0.5}, x, by="flow")
    assert small.train()(x).shape == (4, 3)
    assert (small.a.out_features, small.b.out_features) == (12, 6)
    small, report = compress(model, 0.5, x, by="flow")
    assert small.train()(x).shape == (4, 3)
    assert "fewer units in training mode" in dict(report.skipped)["a"]


def reads_a_weight(self, x):
    h = torch.relu(self.a(x))
    return self.c(functional.linear(h, self.b.weight) if self.training else self.b(h))


def test_a_layer_whose_weight_training_mode_reads_is_not_factored():
    torch.manual_seed(0)
    model = Function(reads_a_weight, b=nn.Linear(12, 12, bias=False))
    x = torch.randn(4, 6)
    small, report = compress(model, 0.6, x, by="spectrum")
    assert small.train()(x).shape == (4, 3)
    assert isinstance(small.b, nn.Linear)
    assert "'Sequential' object has no attribute 'weight'" in dict(report.skipped)["b"]
