"""Try to fool points that `robust_error(certify=True)` proved robust.

    python -m benchmarks.soundness [GROUP ...]

Certificates are made beside an attack of 10 gradients, at points near decision boundaries. Proved
points are then searched by `strongest` with 1,000 gradients and 1,500 queries. In plain networks
with two inputs all linear pieces are enumerated exactly, in odd ones a grid of the ball is tried.
Models that compute something else than their layers show must be refused, or certified rightly.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

from overt import InputError
from overt.robust import L1, L2, PGD, Linf, Threat, robust_error, strongest

Build = Callable[[int], nn.Module]
GRID = 101  # points of an axis
POINTS = 150  # of each model and threat; 30 of odd ones
HUNT = {"budget": 1000, "queries": 1500}


class Residual(nn.Module):
    """A residual block with functions in its forward."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.a, self.b, self.top = nn.Linear(d, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.a(x))
        h = h + functional.leaky_relu(self.b(h), 0.2)
        return self.top(h)


class Dense(nn.Module):
    """Layers that see all former ones, with arithmetic between them."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.a, self.b, self.top = (
            nn.Linear(d, 8),
            nn.Linear(d + 8, 8),
            nn.Linear(16, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x * 2 - 1).relu()
        second = self.b(torch.cat([x, first], 1) / 1.5).relu_()
        return -self.top(torch.cat([first, second], 1))


class Slices(nn.Module):
    """Views, sums and means."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.half = d // 2
        self.a, self.top = nn.Linear(self.half, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x[:, : self.half], x[:, -self.half :]
        h = torch.relu(self.a(left)) - torch.relu(self.a(right))
        return self.top(h) + x.mean(1, keepdim=True) * 0.5


def _mlp(*widths: int, slope: float = 0.0, classes: int = 3) -> Build:
    def build(d: int) -> nn.Module:
        layers: list[nn.Module] = []
        before = d
        for width in widths:
            unit = nn.LeakyReLU(slope) if slope else nn.ReLU()
            layers += [nn.Linear(before, width), unit]
            before = width
        return nn.Sequential(*layers, nn.Linear(before, classes))

    return build


def _normalized(d: int) -> nn.Module:
    net = nn.Sequential(
        nn.Linear(d, 12),
        nn.BatchNorm1d(12),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(12, 8),
        nn.BatchNorm1d(8, affine=False),
        nn.ReLU(inplace=True),
        nn.Linear(8, 3),
    )
    net(torch.randn(200, d))
    return net


def _convolutions(pool: nn.Module) -> Build:
    def build(d: int) -> nn.Module:
        net = nn.Sequential(
            nn.Unflatten(1, (1, 4, d // 4)),
            nn.Conv2d(1, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            pool,
            nn.Flatten(),
            nn.LazyLinear(6),
            nn.ReLU(),
            nn.Linear(6, 3),
        )
        net(torch.randn(50, d))
        return net

    return build


def _with_end(end: nn.Module) -> Build:
    return lambda d: nn.Sequential(*_mlp(10, 6)(d), end)


def _shared(d: int) -> nn.Module:
    again = nn.Linear(d, d)
    return nn.Sequential(again, nn.ReLU(), again, nn.ReLU(), nn.Linear(d, 3))


NETWORKS: dict[str, Build] = {
    "one hidden layer": _mlp(16),
    "two hidden layers": _mlp(12, 8),
    "four hidden layers": _mlp(8, 8, 8, 8),
    "ten classes": _mlp(20, classes=10),
    "one logit": _mlp(12, classes=1),
    "slope .1": _mlp(10, 6, slope=0.1),
    "slope .9": _mlp(10, 6, slope=0.9),
    "slope 1": _mlp(10, 6, slope=1.0),
    "slope -.5": _mlp(10, 6, slope=-0.5),
    "slope -3": _mlp(8, 6, slope=-3.0),
    "residual": Residual,
    "dense": Dense,
    "slices": Slices,
    "one layer twice": _shared,
    "batch normalization": _normalized,
    "log-softmax": _with_end(nn.LogSoftmax(1)),
    "softmax": _with_end(nn.Softmax(1)),
}
PICTURES: dict[str, Build] = {
    "convolutions": _convolutions(nn.Identity()),
    "max pooling": _convolutions(nn.MaxPool2d(2)),
    "max pooling, overlapping": _convolutions(nn.MaxPool2d(3, 1)),
    "average pooling": _convolutions(nn.AvgPool2d(2)),
    "adaptive pooling": _convolutions(nn.AdaptiveAvgPool2d(2)),
    "zero padding": _convolutions(nn.ZeroPad2d(1)),
}


# Models that compute something else than their layers show.


class OwnForward(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Scaled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(10 * x)


class Cubed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 3


class Sine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(3 * super().forward(x))


class TenTimes(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


def _is_needle(x: Tensor) -> Tensor:
    """Return where the third digit of the inputs is a 7: rare, and near to every input."""
    return (((x * 1000).round() % 10) == 7).all(1, keepdim=True)


class Needle(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(_is_needle(x), -super().forward(x), super().forward(x))


class NeedleOfCall(nn.Sequential):
    def __call__(self, x: Tensor) -> Tensor:
        return torch.where(_is_needle(x), -1, 1) * super().__call__(x)


class NeedleInTraining(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        if self.training:
            return torch.where(_is_needle(x), -1, 1) * logits
        return logits


class OfBatch(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0, keepdim=True))


class Wrapped(nn.Module):
    def __init__(self, net: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.change = net, change

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.change(x))


def _plain(d: int) -> nn.Sequential:
    net = _mlp(12, 8)(d)
    assert isinstance(net, nn.Sequential)
    return net


def _replaced(at: int, layer: Callable[[int], nn.Module]) -> Build:
    def build(d: int) -> nn.Module:
        net = _plain(d)
        net[at] = layer(d)
        return net

    return build


def _hooked(at: int | None, *, before: bool = False) -> Build:
    def build(d: int) -> nn.Module:
        net = _plain(d)
        part = net if at is None else net[at]
        if before:
            part.register_forward_pre_hook(lambda m, x: (torch.sin(5 * x[0]),))
        else:
            part.register_forward_hook(lambda m, x, out: torch.sin(3 * out))
        return net

    return build


def _patched(d: int) -> nn.Module:
    net = _plain(d)
    relu = net[1].forward
    net[1].forward = lambda x: 10 * relu(x)
    return net


def _inner_training(d: int) -> nn.Module:
    return nn.Sequential(NeedleInTraining(*_plain(d)).train())


def _nested(kind: type[nn.Sequential]) -> Build:
    return lambda d: kind(*_plain(d))


def _wrapped(change: Callable[[Tensor], Tensor]) -> Build:
    return lambda d: Wrapped(_plain(d), change)


def _normed(wrap: Callable[[nn.Module], nn.Module]) -> Build:
    return _replaced(0, lambda d: wrap(nn.Linear(d, 12)))


ODD: dict[str, Build] = {
    "Sequential, own forward": lambda d: nn.Sequential(
        nn.Linear(d, 8), OwnForward(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 3)
    ),
    "Sequential that scales": _nested(Scaled),
    "Sequential, needle": _nested(Needle),
    "Sequential, needle in __call__": _nested(NeedleOfCall),
    "needle in a part in training mode": _inner_training,
    "mean of the batch": _nested(OfBatch),
    "Linear, cubed": _replaced(0, lambda d: Cubed(d, 12)),
    "Linear, sine": _replaced(2, lambda d: Sine(12, 8)),
    "ReLU, ten times": _replaced(1, lambda d: TenTimes()),
    "slope 1.5": _mlp(10, 6, slope=1.5),
    "slope 10": _mlp(10, 6, slope=10.0),
    "hook": _hooked(0),
    "hook on ReLU": _hooked(1),
    "hook on the model": _hooked(None),
    "hook before": _hooked(None, before=True),
    "hook before ReLU": _hooked(3, before=True),
    "forward replaced": _patched,
    "weight norm": _normed(nn.utils.parametrizations.weight_norm),
    "spectral norm": _normed(nn.utils.parametrizations.spectral_norm),
    "pruned": _normed(lambda m: prune.random_unstructured(m, "weight", 0.5)),
    "ReLU6": _replaced(1, lambda d: nn.ReLU6()),
    "PReLU": _replaced(1, lambda d: nn.PReLU(init=2.0)),
    "GELU": _replaced(1, lambda d: nn.GELU()),
    "Softplus": _replaced(1, lambda d: nn.Softplus()),
    "clamped inputs": _wrapped(lambda x: x.clamp(0.2, 0.8)),
    "rounded inputs": _wrapped(lambda x: (x * 7).round() / 7),
    "ripple": _wrapped(lambda x: x + 0.02 * torch.sin(300 * x)),
    "squared inputs": _wrapped(lambda x: x * x),
    "sorted inputs": _wrapped(lambda x: x.sort(1).values),
    "branch": _wrapped(lambda x: x if float(x.detach().sum()) > 0 else -x),
    "scaled by a shape": _wrapped(lambda x: x * x.shape[1]),
    "scaled by the batch": _wrapped(lambda x: x * (1 + 0.5 * (x.shape[0] == 1))),
    "detached": _wrapped(lambda x: x.detach() + 0 * x),
}


def run(chosen: list[str]) -> None:
    """Print a line for each kind of model of the chosen groups, and totals."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    total = np.zeros(3, int)
    groups: tuple[tuple[str, dict[str, Build], tuple[int, ...], bool], ...] = (
        ("plane", NETWORKS, (2,), False),
        ("networks", NETWORKS, (6,), False),
        ("pictures", PICTURES, (16,), False),
        ("odd-plane", ODD, (2,), True),
        ("odd", ODD, (12,), True),
    )
    print(f"{'model':<44} {'proved':>7} {'of':>6} {'fooled':>7}", flush=True)
    for group, models, widths, odd in groups:
        if chosen and group not in chosen:
            continue
        start = time.process_time()
        part = np.zeros(3, int)
        for name, build in models.items():
            counts = np.zeros(3, int)
            refused = 0
            for d in widths:
                for found in _measure(name, build, d, odd=odd):
                    refused += found is None
                    counts += np.zeros(3, int) if found is None else found
            note = f"  refused {refused} times" if refused else ""
            print(f"{group + ', ' + name:<44} {_shown(counts)}{note}", flush=True)
            part += counts
        total += part
        spent = time.process_time() - start
        print(f"{'all of ' + group:<44} {_shown(part)}  {spent:.0f} s CPU", flush=True)
    print(f"{'total':<44} {_shown(total)}")


def _shown(counts: np.ndarray) -> str:
    proved, points, fooled = counts.tolist()
    return f"{proved:>7} {points:>6} {fooled:>7}"


def _measure(
    name: str, build: Build, d: int, *, odd: bool
) -> Iterator[np.ndarray | None]:
    """Yield (proved, points, fooled) for each threat, or None where the model is refused."""
    torch.manual_seed(d)
    model = build(d).eval()
    if "in training mode" in name:
        model[0].train()
    x = torch.rand(2000, d)
    with torch.no_grad():
        logits = model(x)
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    top = logits.topk(2, 1).values
    # Every third of the points nearest to a tie, so that some are fooled and some are not.
    count = 30 if odd else POINTS
    near = (top[:, 0] - top[:, 1]).argsort()[: 3 * count : 3]
    x, y = x[near], logits[near].argmax(1)
    box = (0.0, 1.0)
    size = 0.01 if odd else 0.04
    for threat in (Linf(size, box), L2(2 * size), L1(3 * size, box)):
        options = {"outputs": "probabilities"} if name == "softmax" else {}
        try:
            found = robust_error(
                model,
                x,
                y,
                threat,
                attack=PGD(threat, steps=10),
                certify=True,
                seconds=0.2,
                **options,
            )
        except InputError:
            yield None
            continue
        proved = torch.from_numpy(found.proved).nonzero().squeeze(1)
        fooled = 0
        if len(proved):
            fooled = _hunt(model, x[proved], y[proved], threat, options)
        yield np.array([len(proved), len(x), fooled])


def _hunt(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, options: dict[str, str]
) -> int:
    """Return how many points are fooled by anything that is tried."""
    enumerated = not isinstance(threat, L2) and _is_plain(model)
    fooled = torch.zeros(len(x), dtype=torch.bool)
    if x.shape[1] > 2 or not enumerated:
        found = strongest(model, x, y, threat, warn=False, **HUNT, **options)
        fooled = found.success
    # Other points of a batch, and inputs that end in 7, may change what the model says.
    with torch.no_grad():
        alone = torch.cat([_classes(model(point[None])) for point in x])
        sevens = (x * 100).floor() / 100 + 0.007
        near = threat.size(sevens.double() - x.double()) <= threat.radius
        fooled |= (alone != y) | (near & (_classes(model(sevens)) != y))
    if x.shape[1] == 2:
        for i in range(len(x)):
            search = _fooled_by_pieces if enumerated else _fooled_on_grid
            fooled[i] |= search(model, x[i], int(y[i]), threat)
    return int(fooled.sum())


def _is_plain(model: nn.Module) -> bool:
    """Return whether a model is a Sequential of linear layers and rectifiers."""
    kinds = (nn.Linear, nn.ReLU, nn.LeakyReLU)
    return type(model) is nn.Sequential and all(
        type(m) in kinds and not hasattr(m, "parametrizations") for m in model
    )


def _fooled_on_grid(model: nn.Module, x: Tensor, y: int, threat: Threat) -> bool:
    """Return whether any point of a grid is misclassified, the ball's corners among them."""
    axis = torch.linspace(-threat.radius, threat.radius, GRID)
    delta = torch.cartesian_prod(axis, axis)
    moved = _inside(x, delta, threat)
    with torch.no_grad():
        return bool((_classes(model(moved)) != y).any())


def _inside(x: Tensor, delta: Tensor, threat: Threat) -> Tensor:
    """Return the perturbed inputs that are allowed."""
    kept = delta[threat.size(delta) <= threat.radius]
    moved = x + kept
    allowed = threat.size(moved.double() - x.double()) <= threat.radius
    if threat.bounds is not None:
        allowed &= ((moved >= 0) & (moved <= 1)).all(1)
    return moved[allowed]


def _classes(logits: Tensor) -> Tensor:
    return (logits > 0).long().squeeze(1) if logits.shape[1] == 1 else logits.argmax(1)


def _fooled_by_pieces(model: nn.Sequential, x: Tensor, y: int, threat: Threat) -> bool:
    """Return whether a vertex of a linear piece of the network in the ball is misclassified.

    The ball is a polygon, cut into the pieces on which every unit keeps its sign. A lead is largest
    at a vertex.
    """
    r = threat.radius
    corners = {
        "linf": [(-r, -r), (r, -r), (r, r), (-r, r)],
        "l1": [(-r, 0), (0, -r), (r, 0), (0, r)],
    }[threat.name]
    polygon = x.double().numpy() + np.array(corners)
    if threat.bounds is not None:
        for k in range(2):
            unit = np.eye(2)[k]
            polygon = _clip(polygon, polygon @ unit)
            polygon = _clip(polygon, 1 - polygon @ unit)
    pieces = [(polygon, polygon)]  # vertices, and what the layers so far make of them
    for layer in model:
        if isinstance(layer, nn.Linear):
            W = layer.weight.detach().double().numpy()
            b = layer.bias.detach().double().numpy()
            pieces = [(v, z @ W.T + b) for v, z in pieces]
            continue
        slope = getattr(layer, "negative_slope", 0.0)
        for unit in range(pieces[0][1].shape[1]):
            pieces = [part for v, z in pieces for part in _halves(v, z, z[:, unit])]
        # On a piece each unit has one sign: that of its largest value.
        rectified = []
        for v, z in pieces:
            top = np.abs(z).argmax(0)
            positive = z[top, np.arange(z.shape[1])] > 0
            rectified.append((v, np.where(positive, z, slope * z)))
        pieces = rectified
    for _, z in pieces:
        if z.shape[1] == 1:
            z = np.hstack([np.zeros_like(z), z])
        others = np.delete(z, y, 1).max(1)
        scale = np.abs(z).max()
        if bool((others - z[:, y] > 1e-9 * scale).any()):
            return True
    return False


def _halves(v: np.ndarray, z: np.ndarray, side: np.ndarray) -> list[tuple]:
    """Return the two parts of a piece on which an affine function has one sign."""
    if (side >= 0).all() or (side <= 0).all():
        return [(v, z)]
    both = np.hstack([v, z])
    parts = [_clip(both, side), _clip(both, -side)]
    return [(part[:, :2], part[:, 2:]) for part in parts if len(part)]


def _clip(polygon: np.ndarray, side: np.ndarray) -> np.ndarray:
    """Return the part of a polygon where an affine function, given at its vertices, is >= 0."""
    out = []
    for k in range(len(polygon)):
        a, b = side[k - 1], side[k]
        if (a < 0) != (b < 0):
            share = a / (a - b)
            out.append(polygon[k - 1] + share * (polygon[k] - polygon[k - 1]))
        if b >= 0:
            out.append(polygon[k])
    return np.array(out)


if __name__ == "__main__":
    run(sys.argv[1:])
