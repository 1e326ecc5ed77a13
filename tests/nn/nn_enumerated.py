"""Functions with noise, and their moments by enumeration of all values of the noise."""

import itertools

import torch
from torch import nn
from torch.nn import functional


class TorchNoise:
    """Noise as models draw it."""

    def __init__(self, x):
        self.like = x

    def dropout(self, x, p=0.5):
        return functional.dropout(x, p, training=True)

    def coin(self, *shape, p=0.5):
        return torch.bernoulli(torch.full(shape, 0.0).to(self.like), p=p)

    def compare(self, name, *shape, p):
        return getattr(torch.rand(shape), name)(p)

    def rand(self, *shape):
        return torch.rand(shape, dtype=self.like.dtype)

    def randn(self, *shape):
        return torch.randn(shape, dtype=self.like.dtype)

    def rand_like(self, x):
        return torch.rand_like(x)

    def randn_like(self, x):
        return torch.randn_like(x)


class CountedNoise:
    """Notes the values that each number drawn can have, and replays one choice of them."""

    def __init__(self, x, choice=None):
        self.like = x
        self.choice = choice
        self.used = 0
        self.laws = []

    def _next(self, shape, values, weights):
        count = torch.Size(shape).numel()
        self.laws += [(values, weights)] * count
        if self.choice is None:
            picked = [values[0]] * count
        else:
            indices = self.choice[self.used : self.used + count]
            picked = [values[i] for i in indices]
        self.used += count
        return torch.tensor(picked, dtype=self.like.dtype).reshape(shape)

    def coin(self, *shape, p=0.5):
        return self._next(shape, (0.0, 1.0), (1 - p, p))

    def compare(self, name, *shape, p):
        return self.coin(*shape, p=p if name in ("lt", "le") else 1 - p) > 0

    def dropout(self, x, p=0.5):
        return x * self.coin(*x.shape, p=1 - p) / (1 - p)

    # Two points integrate polynomials up to the third degree exactly.
    def rand(self, *shape):
        return self._next(shape, (0.5 - 12**-0.5, 0.5 + 12**-0.5), (0.5, 0.5))

    def randn(self, *shape):
        return self._next(shape, (-1.0, 1.0), (0.5, 0.5))

    def rand_like(self, x):
        return self.rand(*x.shape)

    def randn_like(self, x):
        return self.randn(*x.shape)


class Noisy(nn.Module):
    """A model that is a function of x and noise."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x, TorchNoise(x))


def enumerated_moments(function, x):
    """Return mean and variance of function(x, noise), by all values of the noise."""
    dry = CountedNoise(x)
    function(x, dry)
    assert len(dry.laws) <= 12, "too much to enumerate"
    outputs = []
    weights = []
    for choice in itertools.product((0, 1), repeat=len(dry.laws)):
        outputs.append(function(x, CountedNoise(x, choice)).double())
        weight = 1.0
        for (_, probabilities), i in zip(dry.laws, choice, strict=True):
            weight *= probabilities[i]
        weights.append(weight)
    y = torch.stack(outputs)
    w = torch.tensor(weights, dtype=torch.float64).reshape(-1, *[1] * (y.ndim - 1))
    mean = (w * y).sum(0)
    return mean, (w * (y - mean) ** 2).sum(0)
