"""Models whose last layers are not what they seem: no exact value and no bound that is false."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from overt.nn import DropConnectLinear
from overt.nn.auditing import audit


class Tokens(nn.Module):
    """A layer on each of five tokens; subclasses arrange them."""

    def __init__(self, last=None, outputs=3):
        super().__init__()
        self.first, self.drop = nn.Linear(6, 8), nn.Dropout(0.4)
        self.last = last or nn.Linear(8, outputs)

    def hidden(self, x):
        return torch.relu(self.first(x))


class Flattened(Tokens):
    def forward(self, x):
        h = self.drop(self.hidden(x))
        return self.last(h.view(-1, 8)).view(len(x), -1)


class NoiseOnTokens(Tokens):
    def forward(self, x):
        h = self.drop(self.hidden(x).view(-1, 8))
        return self.last(h).view(len(x), -1)


class Pooled(Tokens):
    def forward(self, x):
        return self.last(self.hidden(x)).mean(1)


class CalledAgain(Tokens):
    def forward(self, x):
        output = self.last(self.drop(self.hidden(x)).mean(1))
        self.drop(x)
        return output


class Matrix(Tokens):
    def forward(self, x):
        return self.drop(self.hidden(x)).flatten(1) @ self.last.weight.repeat(1, 5).T


class AlwaysOn(Tokens):
    def forward(self, x):
        return functional.dropout(self.last(self.drop(self.hidden(x))).mean(1), 0.3)


class BatchStatistics(Tokens):
    def forward(self, x):
        output = self.last(self.drop(self.hidden(x))).mean(1)
        return functional.batch_norm(output, None, None, training=True)


class Written(Tokens):
    def forward(self, x):
        output = self.last(self.drop(self.hidden(x)).mean(1))
        output[:, 0] = output[:, 1].clone() ** 2
        return output


class Divisor(Tokens):
    def forward(self, x):
        return torch.div(
            torch.ones(3), 2 + self.last(self.drop(self.hidden(x))).mean(1).sigmoid()
        )


class WithoutGradient(Tokens):
    @torch.no_grad()
    def forward(self, x):
        return self.last(self.drop(self.hidden(x)).mean(1))


class Gated(Tokens):
    """The gate is made where no function is seen."""

    def forward(self, x):
        gate = torch.from_numpy(np.tanh(x.detach().numpy()[:, 0, :3]))
        return self.last(self.drop(self.hidden(x)).mean(1)) * gate


def data(model, rows=40):
    torch.manual_seed(1)
    x = torch.randn(rows, 5, 6)
    with torch.no_grad():
        return x, torch.randn_like(model.eval()(x))


def sampled(model, x, y, draws=2000):
    """Return the noisy objective and its standard error by brute force."""
    model.train()
    with torch.no_grad():
        found = [
            float(((model(x) - y) ** 2).flatten(1).sum(1).mean()) for _ in range(draws)
        ]
    return float(np.mean(found)), float(np.std(found) / np.sqrt(draws))


@pytest.mark.parametrize(
    ("build", "head"),
    [
        (Flattened, True),
        (Matrix, True),
        (WithoutGradient, True),
        (NoiseOnTokens, False),
        (CalledAgain, False),
        (AlwaysOn, False),
        (lambda: Pooled(DropConnectLinear(8, 3, drop_prob=0.4)), False),
    ],
)
def test_objectives_are_those_of_sampled_masks(build, head):
    torch.manual_seed(0)
    model = build()
    x, y = data(model)
    report = audit(model, [(x, y)], "squared")
    value, error = sampled(model, x, y)
    assert abs(report.objective - value) <= 5 * np.hypot(error, report.objective_error)
    assert (report.head is not None) is head
    if head:
        assert report.noises[0].exact
        assert report.head.lower_bound < value
    else:
        assert "the last layer" in dict(report.skipped)


@pytest.mark.parametrize("split", [80, 20])
def test_errors_of_masks_that_a_batch_shares(split):
    torch.manual_seed(0)
    model = Pooled(DropConnectLinear(8, 3, drop_prob=0.4))
    x, y = data(model, 80)
    value, error = sampled(model, x, y)
    batches = list(zip(x.split(split), y.split(split), strict=True))
    found = [audit(model, batches, "squared", seed=seed) for seed in range(12)]
    scores = [(r.objective - value) / np.hypot(r.objective_error, error) for r in found]
    assert np.std(scores) < 2  # above 3 if rows are taken for independent


@pytest.mark.parametrize("build", [BatchStatistics, Written, Divisor, Gated])
def test_no_bound_is_taken_from_what_is_not_affine(build):
    torch.manual_seed(0)
    model = build()
    report = audit(model, [data(model)], "squared")
    assert report.head is None
    assert "the last layer" in dict(report.skipped)
    assert not report.noises[0].exact


def test_tokens_do_not_limit_the_rank_of_the_outputs():
    torch.manual_seed(0)
    model = Flattened(outputs=1)
    x, _ = data(model, 200)
    y = torch.relu(x[..., 0])
    report = audit(model, [(x, y)], "squared")
    assert report.head.rank_limit == 5
    free = nn.Sequential(
        nn.Flatten(), nn.Linear(30, 40), nn.ReLU(), model.drop, nn.Linear(40, 5)
    )
    same = audit(free, [(x, y)], "squared")  # five outputs and 40 units, as they are
    assert report.head.lower_bound == pytest.approx(same.head.lower_bound, rel=1e-6)


def test_functional_dropout_that_stays_on_is_named():
    report = audit(AlwaysOn(), [data(AlwaysOn())], "squared")
    assert "samples in evaluation mode too" in dict(report.skipped)["forward"]
