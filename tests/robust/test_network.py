"""Networks that torch.fx reads: certificates that hold, and refusals by name."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overt import InputError
from overt.robust import L1, L2, Linf, Square, robust_error, strongest
from overt.robust.certify.network import ReluNetwork

pytestmark = pytest.mark.filterwarnings("ignore::overt.robust.RobustnessWarning")


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.relu = nn.ReLU(inplace=True)
        self.top = nn.Linear(8, 3)

    def forward(self, x):
        x = x.view(x.size(0), -1)
        out = self.relu(self.first(x))
        out = self.second(out)
        out += x
        return self.top(self.relu(out))


class Wrapper(nn.Module):
    """Scales, splits, joins, and ends in a log-softmax."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 6), nn.LeakyReLU(0.1))
        self.side = nn.Linear(8, 4)
        self.top = nn.Linear(10, 3)
        self.register_buffer("scale", torch.tensor(1.5))

    def forward(self, x):
        x = 2 * (x.flatten(1) - 0.5) / self.scale
        both = torch.cat([self.net(x), F.relu(self.side(x))], 1)
        return F.log_softmax(F.dropout(self.top(both), training=self.training), dim=1)


class Densely(nn.Module):
    """Every layer sees all that came before."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 5), nn.Linear(13, 5), nn.Linear(18, 3)

    def forward(self, x):
        x = x.flatten(1)
        for layer in (self.a, self.b):
            x = torch.cat([x, layer(x).relu()], 1)
        return self.c(x)


def pooled(*more):
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 4)),
        nn.Conv2d(1, 3, 2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d((3, 2), stride=(1, 3)),
        nn.Flatten(),
        nn.Linear(6, 3),
        *more,
    )


NETWORKS = {
    "residual": Residual,
    "wrapper with log-softmax": Wrapper,
    "densely connected": Densely,
    "max pooling": pooled,
    "softmax": lambda: pooled(nn.Softmax(1)),
    "pooled vectors": lambda: nn.Sequential(
        nn.Linear(8, 9),
        nn.Unflatten(1, (1, 9)),
        nn.MaxPool1d(3),
        nn.Flatten(),
        nn.Linear(3, 2),
    ),
    "one logit": lambda: nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 1)),
}


def made(name):
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    x = torch.rand(12, 8)
    out = model(x)
    y = (out[:, 0] > 0).long() if out.shape[1] == 1 else out.argmax(1)
    return model, x, y, ({"outputs": "probabilities"} if name == "softmax" else {})


@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_that_is_read_computes_what_the_model_does(name):
    model, x, _, _ = made(name)
    network = ReluNetwork.trace(model, x)
    out = model(x).detach().double()
    if out.shape[1] == 1:
        out = torch.cat([0 * out, out], 1)
    out = out.log() if name == "softmax" else out
    torch.testing.assert_close(network.outputs(x.double()), out, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("threat", [Linf(0.06), L2(0.15), L1(0.3, (0.0, 1.0))], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_certified_points_are_fooled_by_nothing(name, threat):
    """Bounds alone and the program: neither proves what an attack or random points refute."""
    model, x, y, more = made(name)
    attack = Square(threat, queries=1)
    bounds = robust_error(
        model, x, y, threat, certify=True, seconds=0, attack=attack, **more
    )
    found = robust_error(model, x, y, threat, certify=True, attack=attack, **more)
    assert not (bounds.proved & ~found.proved).any()
    assert found.value == pytest.approx(found.upper)  # the program decides all points
    assert found.proved.any()
    fooled = strongest(model, x, y, threat, **more).success.numpy()
    for seed in range(200):
        region = threat.region(x)
        moved = region.perturbed(region.draw(seed, extreme=seed % 2 == 1, shared=False))
        out = model(moved)
        predicted = (out[:, 0] > 0).long() if out.shape[1] == 1 else out.argmax(1)
        fooled |= (predicted != y).numpy()
    assert not (found.proved & fooled).any()


def module(forward, **layers):
    class Given(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)
            for name, layer in layers.items():
                setattr(self, name, layer)

        def forward(self, x):
            return forward(self, x)

    torch.manual_seed(0)
    return Given().eval()


def twice(self, x):
    z = self.a(x)
    return self.b(self.act(z) + z)


REFUSED = {
    "sin": module(lambda self, x: self.b(torch.sin(self.a(x)))),
    "pow": module(lambda self, x: self.b(self.a(x) ** 2)),
    "mul of two values": module(lambda self, x: self.b(self.a(x) * x)),
    "truediv of two values": module(lambda self, x: self.b(1 / self.a(x))),
    "gt": module(lambda self, x: torch.where(x[:, :1] > 0.5, self.b(x), -self.b(x))),
    "Tanh": module(lambda self, x: self.b(self.act(self.a(x))), act=nn.Tanh()),
    "ReLU in place": module(twice, act=nn.ReLU(inplace=True)),
    "dropout that is switched on": module(
        lambda self, x: self.b(F.dropout(self.a(x), 1e-9))
    ),
    "slopes of at most 1": module(lambda self, x: self.b(F.leaky_relu(self.a(x), 3.0))),
    "torch.fx": module(lambda self, x: self.b(x) if x.sum() > 0 else self.b(-x)),
    "MaxPool1d with padding": module(
        lambda self, x: self.b(self.act(x[:, None])[:, 0]),
        act=nn.MaxPool1d(3, 1, 1),
    ),
    "softmax only where": module(lambda self, x: self.b(self.a(x).softmax(1))),
    "LayerNorm": module(lambda self, x: self.b(self.act(x)), act=nn.LayerNorm(8)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_modelled_is_refused_by_name(what):
    x = torch.rand(6, 8)
    with pytest.raises(InputError, match=f"certify.*{what}"):
        robust_error(
            REFUSED[what], x, [0] * 6, Linf(0.01), certify=True, budget=24, queries=0
        )


def test_relu_in_place_is_modelled_where_nothing_else_is_changed():
    layers = [nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 3)]
    model = nn.Sequential(*layers)
    x = torch.rand(6, 8)
    y = model(x).argmax(1)
    found = robust_error(model, x, y, Linf(0.01), certify=True, budget=24, queries=0)
    assert found.value == pytest.approx(found.upper)


def test_maxima_are_those_of_all_windows():
    """A tournament of pairs over windows of any size, against torch itself."""
    x = torch.randn(3, 2, 7, 6).double()
    for size, stride in itertools.product((1, 2, 3, (2, 3)), (1, 2, (1, 3))):
        model = nn.MaxPool2d(size, stride)
        network = ReluNetwork.trace(nn.Sequential(model, nn.Flatten()), x)
        torch.testing.assert_close(network.logits(x), model(x).flatten(1))
