"""Networks as people write them: nothing random is left out, no failure is a bare traceback."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from overt import InputError
from overt.nn import (
    audit,
    compress,
    explicit_penalty,
    mc_moments,
    predictive_moments,
    without_noise,
)

SE = 5.0


class Written(nn.Module):
    """A forward pass written as a function of the module and its inputs."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run, self.a, self.c = run, nn.Linear(6, 12), nn.Linear(12, 3)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args):
        return self.run(self, *args)


def mixed(self, x):
    h = torch.relu(self.a(x))
    if self.training:
        w = float(np.random.beta(1.0, 1.0))  # noqa: NPY002
        h = w * h + (1 - w) * h[torch.randperm(len(h))]
    return self.c(h)


def kept(self, x):
    h = torch.relu(self.a(x))
    if self.training:
        h = h[:, torch.rand(12).argsort()[:6]]
        return h @ self.c.weight[:, :6].T
    return h[:, :6] @ self.c.weight[:, :6].T


def cut(self, x):
    if self.training:
        x = x.clone()
        x[:, random.randrange(6)] = 0.0  # noqa: S311
    return self.c(torch.relu(self.a(x)))


def mapped(self, x):
    def row(x):
        return self.c(functional.dropout(torch.relu(self.a(x)), 0.3, self.training))

    return torch.vmap(row, randomness="different")(x)


def near(found, seen):
    """Compare moments with samples, stated errors (two standard errors each) included."""
    n, sd = len(seen), seen.std(0)
    kurtosis = ((seen - seen.mean(0)) / sd).pow(4).mean(0)
    of_mean = (found.mean_error.double() / 2).square() + sd**2 / n
    of_std = (found.std_error.double() / 2).square() + sd**2 * (kurtosis - 1) / (4 * n)
    assert bool(((found.mean - seen.mean(0)).abs() <= SE * of_mean.sqrt()).all())
    assert bool(((found.std - sd).abs() <= SE * of_std.sqrt()).all())


class Failing(nn.Module):
    def __init__(self, error, message):
        super().__init__()
        self.inner, self.error, self.message = nn.Linear(6, 3), error, message

    def forward(self, x, *_):
        if self.training:
            raise self.error(self.message)
        return self.inner(x)


CALLS = {
    "predictive_moments": predictive_moments,
    "mc_moments": mc_moments,
    "explicit_penalty": explicit_penalty,
    "without_noise": lambda model, x: without_noise(model).train()(x),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [ValueError, KeyError, RuntimeError])
def test_what_a_model_raises_is_said(call, error):
    with pytest.raises(
        InputError, match=rf"cannot be run on x of \(4, 6\).*{error.__name__}.*why"
    ):
        CALLS[call](Failing(error, "why\nand more"), torch.ones(4, 6))
    said = "" if error is KeyError else "no reason given"
    with pytest.raises(InputError, match=f"{error.__name__}: {said}"):
        CALLS[call](Failing(error, ""), (torch.ones(4, 6), torch.ones(3)))


def test_numbers_that_fit_no_more_are_said():
    model = nn.Sequential(nn.EmbeddingBag(9, 6), nn.Dropout(0.2), nn.Linear(6, 3))
    x, net = torch.arange(6).reshape(3, 2), without_noise(model).train()
    with torch.no_grad():
        for call in (
            predictive_moments,
            mc_moments,
            explicit_penalty,
            lambda _, x: net(x),
        ):
            for _ in range(2):
                call(model, x)
            with pytest.raises(InputError, match="cannot be run on x"):
                call(model, x + 90)


def cast(self, x):
    with torch.autocast("cpu", torch.bfloat16):
        h = functional.dropout(torch.relu(self.a(x)), 0.3, self.training)
        return self.c(
            functional.dropout(torch.tanh(self.b(h)), 0.3, self.training)
        ).float()


def packed(self, x, lengths):
    given = pack_padded_sequence(
        self.d(x), lengths, batch_first=True, enforce_sorted=False
    )
    h, _ = self.r(given)
    return self.c(pad_packed_sequence(h, batch_first=True)[0][:, 0])


def leaves_early(self, x):
    h = functional.dropout(torch.relu(self.a(x)), 0.4, self.training)
    return self.c(h) if h.mean() > self.bound else self.c(torch.tanh(h)) - 1


def nodes(self, x):
    h = functional.dropout(torch.relu(self.a(x)), 0.3, self.training)
    return self.c(h.index_add(0, torch.tensor([1, 2, 3]), h[torch.tensor([3, 3, 0])]))


def one_number(self, x):
    return self.c(functional.dropout(torch.relu(self.a(x)), 0.3, self.training))[:, 0]


AUDITED = {
    "nodes": (nodes, 4),
    "one number": (one_number, 4),
    "one row": (one_number, 1),
}


def test_a_penalty_is_not_exact_where_noise_decides_what_runs():
    def run(self, x):
        h = self.d(torch.relu(self.a(x)))
        return self.c(h) if h.mean() > 0.25 else self.c(h) - 1

    torch.manual_seed(0)
    model, x = Written(run, d=nn.Dropout(0.4)), torch.randn(4, 6)
    (noise,) = audit(model, (x, model.eval()(x).detach()), "squared").noises
    assert (noise.name, noise.exact) == ("d", False)


def fixed(self, x):
    h = torch.relu(self.a(x))
    if self.training:
        h = h * functional.dropout(torch.ones(1, 12), 0.3)
    return self.c(torch.relu(self.b(h)))


def test_what_is_made_smaller_runs_in_training_mode():
    torch.manual_seed(0)
    model, x = Written(fixed, b=nn.Linear(12, 12)), torch.randn(4, 6)
    small, report = compress(model, {"b": 0.5}, x, by="flow")
    assert small.train()(x).shape == (4, 3)
    assert (small.a.out_features, small.b.out_features) == (12, 6)
    small, report = compress(model, 0.5, x, by="flow")
    assert small.train()(x).shape == (4, 3)
    assert "fewer units in training mode" in dict(report.skipped)["a"]


def reaching(self, x):
    h = torch.relu(self.a(x))
    return self.c(functional.linear(h, self.b.weight) if self.training else self.b(h))


def test_a_layer_that_training_mode_reaches_into_is_not_rewritten():
    torch.manual_seed(0)
    model, x = Written(reaching, b=nn.Linear(12, 12, bias=False)), torch.randn(4, 6)
    small, report = compress(model, 0.6, x, by="spectrum")
    assert small.train()(x).shape == (4, 3)
    assert isinstance(small.b, nn.Linear)
    assert "'Sequential' object has no attribute 'weight'" in dict(report.skipped)["b"]


def routed(self, x):
    weights = self.g(x)
    if self.training:
        weights = weights + torch.randn_like(weights)
    largest, at = weights.topk(2, -1)
    gates = torch.zeros_like(weights).scatter(-1, at, largest.softmax(-1))
    return self.c(torch.relu(self.a(x)) * gates.repeat(1, 3))


def widest(self, x):
    h = functional.dropout(self.a(x)[:, None].expand(-1, 12, -1), 0.3, self.training)
    if self.training and torch.rand(()) < 0.5:
        h = 1.1 * h
    return self.c(h.max(2).values)


@pytest.mark.parametrize("call", CALLS)
def test_weights_that_are_not_there_yet_are_no_noise(call):
    for empty in (nn.LazyLinear(3), nn.Linear(6, 3, device="meta")):
        with pytest.raises(InputError, match="must have its weights"):
            CALLS[call](nn.Sequential(nn.Dropout(0.3), empty), torch.ones(4, 6))


def scaled(self, x):
    if self.training:
        x = x + x.std(0) * torch.randn_like(x)
    return self.c(torch.relu(self.a(x)))
