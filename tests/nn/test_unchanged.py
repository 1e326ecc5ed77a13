"""A call leaves the user's model bit for bit as it was: random models, calls, options, Ctrl-C."""

import copy
import os
import random
import signal
import time
import warnings

import numpy as np
import pytest
import torch
from test_graph import Wild, WritesParameters, prepared, snapshot
from torch import nn
from torch.nn import functional as F

from overt import InputError
from overt import nn as onn
from overt.nn import audit, compress  # first: the import of rich moves a generator
from overt.nn.data.models import preserve_rng

# How many random calls; more with OVERT_FUZZ=10000 in the environment.
CALLS = int(os.environ.get("OVERT_FUZZ", "60"))


class GrowsACache(nn.Module):
    def forward(self, x, cache):
        cache.append(x)
        return F.dropout(torch.stack(cache).sum(0))


class Branching(nn.Module):
    """Noise decides what runs, and an attribute is set."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.seen = None

    def forward(self, x):
        h = F.dropout(self.norm(self.linear(x)), 0.5)
        self.seen = h
        return h if float(h.sum()) > 0 else -h


class Failing(Wild):
    def forward(self, x):
        out = super().forward(x)
        if random.random() < 0.3:  # noqa: S311
            raise ValueError("no")
        return out


def seeded_layers():
    return nn.Sequential(
        nn.Linear(4, 4),
        onn.Dropout(0.3, seed=1),
        onn.DropConnectLinear(4, 4, seed=2),
        nn.Tanh(),
    )


def recurrent():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(2, 3, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, x):
            return self.rnn(x.reshape(len(x), 2, 2))[0][:, -1]

    return Last()


def bias_of_gradient(model, x, outputs):
    return onn.without_noise(model, loss="mse").gradient_bias(
        x, torch.zeros(len(x), outputs), samples=16
    )


class Attentive(nn.Module):
    """Torch's attention, which compress replaces, and noise from three generators."""

    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)
        self.mix = nn.Linear(4, 4)

    def forward(self, x):
        h = torch.stack([x, x * random.random()], 1) + np.random.rand()  # noqa: NPY002, S311
        return self.mix(self.attend(h, h, h)[0]).sum(1)


MODELS = (
    Wild,
    WritesParameters,
    Branching,
    Failing,
    seeded_layers,
    recurrent,
    Attentive,
)
CALLED = (
    lambda m, x, r: onn.predictive_moments(m, x, draws=r.choice((None, 0, 10))),
    lambda m, x, r: onn.predictive_moments(m, x, covariance=True, draws=5),
    lambda m, x, r: onn.predictive_moments(m, x, differentiable=True),
    lambda m, x, r: onn.mc_moments(m, x, r.choice((2, 20))),
    lambda m, x, r: onn.explicit_penalty(m, x, loss=r.choice(("squared", "logistic"))),
    lambda m, x, r: bias_of_gradient(m, x, r.choice((2, 4))),
    lambda m, x, r: onn.Predictive(m).interval(x),
    lambda m, x, r: audit(
        m, (x, targets(m, x)), r.choice(("squared", "logistic")), passes=5
    ),
    lambda m, x, r: compress(
        m,
        r.choice((0.3, 0.9)),
        x,
        r.choice((None, (x, targets(m, x)))),
        by=r.choice(("auto", "flow", "spectrum")),
        loss="mse",
    ),
)


def targets(model, x):
    """Return zeros of the outputs' shape, from a copy of the model."""
    with preserve_rng(), torch.no_grad():
        return torch.zeros_like(copy.deepcopy(model)(x))


def one_call(seed, interrupt=False):
    """Make one random call; return what differs afterwards."""
    r = random.Random(seed)  # noqa: S311
    torch.manual_seed(seed)
    random.seed(seed)
    model = prepared(r.choice(MODELS)())
    x = torch.randn(r.choice((2, 5)), 4)
    given = x.clone()
    before = snapshot(model)
    if interrupt:
        signal.setitimer(signal.ITIMER_REAL, r.uniform(0.001, 0.05))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # models that are far from linear
            r.choice(CALLED)(model, x, r)
    except (InputError, ValueError, KeyboardInterrupt):
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert torch.equal(x, given)
    after = snapshot(model)
    return {
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    }


def test_random_calls_leave_the_model_as_it_was():
    for seed in range(CALLS):
        assert not one_call(seed), seed


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this system")
def test_ctrl_c_at_a_random_time_leaves_the_model_as_it_was():
    def interrupt(number, frame):
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for seed in range(CALLS // 3):
            assert not one_call(seed, interrupt=True), seed
            time.sleep(0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_cache_that_a_pass_lengthens_keeps_its_length():
    cache = [torch.ones(2, 4)]
    for call in (onn.predictive_moments, onn.mc_moments, onn.explicit_penalty):
        call(GrowsACache(), (torch.ones(2, 4), cache))
    assert len(cache) == 1
    assert np.array_equal(cache[0].numpy(), np.ones((2, 4)))
