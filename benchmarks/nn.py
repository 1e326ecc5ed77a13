"""PyTorch: DropBlock against max-pooled seeds, the penalty against sampling, one pass against many.

The algorithms of torchvision and timm are written out, so that all sides run on the same tensor in
the same process.
"""

from __future__ import annotations

import copy
import time
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from benchmarks.equal_time import equal_time
from benchmarks.harness import Table, seconds, verdict
from overt.nn import (
    DropBlock2d,
    audit,
    explicit_penalty,
    mc_moments,
    predictive_moments,
    without_noise,
)


def run() -> list[Table]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [
            dropblock(),
            realized(),
            training_step(),
            deep_training_step(),
            gradients(),
            gradient_biases(),
            convergence(),
            one_pass(),
            deep_accuracy(),
            audits(),
            *equal_time(),
        ]
    finally:
        torch.set_num_threads(threads)


def dropblock() -> Table:
    table = Table(
        "DropBlock: time against max-pooling a seed mask (torchvision's algorithm), one thread",
        (
            "tensor",
            "block",
            "overt ms",
            "uniform ms",
            "grid ms",
            "max-pool ms",
            "ratio",
            "<= 1",
        ),
    )
    for shape, block in (
        ((32, 64, 14, 14), 7),
        ((32, 64, 9, 13), 5),
        ((8, 32, 56, 56), 7),
    ):
        x = torch.randn(shape)
        layers = [
            DropBlock2d(0.1, block),
            DropBlock2d(0.1, block, uniform=True),
            DropBlock2d(0.1, block, placement="grid"),
        ]
        calls = [lambda layer=layer, x=x: layer(x) for layer in layers]
        times = seconds(*calls, lambda x=x, b=block: seed_inside(x, 0.1, b))
        ratio = times[0] / times[3]
        row = [1e3 * t for t in times]
        table.rows.append(
            ("x".join(map(str, shape)), block, *row, ratio, verdict(ratio <= 1))
        )
    table.notes.append(
        "Even blocks, which the max-pooling algorithm does not take, cost the same: the mask is a "
        "running minimum by doubling on bytes."
    )
    return table


def realized() -> Table:
    names = ("overt", "overt, uniform", "overt, grid", "torchvision's", "timm's")
    table = Table(
        "DropBlock: the share of a map that is dropped, by nominal drop probability",
        ("map", "block", "nominal", *names),
    )
    for block in (3, 7):
        ones = torch.ones(64, 4, 14, 14)
        for nominal in (0.1, 0.25, 0.5):
            layers = (
                DropBlock2d(nominal, block, seed=0),
                DropBlock2d(nominal, block, uniform=True, seed=0),
                DropBlock2d(nominal, block, placement="grid", seed=0),
                lambda x, p=nominal, b=block: seed_inside(x, p, b),
                lambda x, p=nominal, b=block: seed_everywhere(x, p, b),
            )
            shares = [
                torch.cat([layer(ones) for _ in range(30)]).eq(0).double().mean().item()
                for layer in layers
            ]
            table.rows.append(("14x14", block, nominal, *shares))
    table.notes.append("1,920 maps of 4 channels: shares are known to about .005.")
    return table


def seed_inside(x: torch.Tensor, drop_prob: float, block: int) -> torch.Tensor:
    """Return torchvision's algorithm: seeds inside the map, max-pooled; batch rescaling."""
    n, c, h, w = x.shape
    inside = (n, c, h - block + 1, w - block + 1)
    seeds = torch.empty(inside).bernoulli_(_gamma(x, drop_prob, block))
    return _masked(x, functional.pad(seeds, [block // 2] * 4), block)


def seed_everywhere(x: torch.Tensor, drop_prob: float, block: int) -> torch.Tensor:
    """Return timm's fast algorithm: the same gamma, seeds anywhere; batch rescaling."""
    seeds = torch.empty_like(x).bernoulli_(_gamma(x, drop_prob, block))
    return _masked(x, seeds, block)


def _gamma(x: torch.Tensor, drop_prob: float, block: int) -> float:
    h, w = x.shape[2:]
    fitting = (h - block + 1) * (w - block + 1)
    return min(drop_prob * h * w / (block**2 * fitting), 1.0)


def _masked(x: torch.Tensor, seeds: torch.Tensor, block: int) -> torch.Tensor:
    """Drop the units within half a block of a seed."""
    dropped = functional.max_pool2d(seeds, block, stride=1, padding=block // 2)
    h, w = x.shape[2:]
    keep = 1 - dropped[..., :h, :w]
    return x * keep * (keep.numel() / (keep.sum() + 1e-7))


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 10)
    )


def training_step() -> Table:
    table = Table(
        "784-1024-10: a training step with the penalty against one with sampled dropout, CPU time",
        ("loss", "batch", "sampled ms", "penalty ms", "ratio", "<= 1"),
    )
    for loss in ("squared", "cross_entropy"):
        for batch in (32, 128, 512):
            model = mlp()
            net = without_noise(model, loss=loss)
            x, y = torch.rand(batch, 784), torch.randint(10, (batch,))
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
            plain = step(model, optimizer, x, y, loss, with_penalty=False)
            ours = step(net, optimizer, x, y, loss, with_penalty=True)
            sampled, penalized = seconds(
                plain, ours, repeat=60, clock=time.process_time
            )
            ratio = penalized / sampled
            row = (
                loss,
                batch,
                1e3 * sampled,
                1e3 * penalized,
                ratio,
                verdict(ratio <= 1),
            )
            table.rows.append(row)
    return table


def deep_training_step() -> Table:
    table = Table(
        "Noise that meets non-linearities: a training step with one probe of the penalty, and the "
        "moments of ten outputs, against sampled steps and passes, CPU time",
        ("network", "sampled ms", "penalty ms", "ratio", "<= 3", "moments / pass"),
    )
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        64, 4, 128, 0.1, "gelu", batch_first=True, norm_first=True
    )
    networks = {
        "784-512-512-10": (
            nn.Sequential(
                nn.Linear(784, 512),
                nn.ReLU(),
                nn.Dropout(0.5),
                nn.Linear(512, 512),
                nn.ReLU(),
                nn.Dropout(0.5),
                nn.Linear(512, 10),
            ),
            torch.rand(64, 784),
        ),
        "CNN, two dropouts": (
            nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1),
                nn.ReLU(),
                nn.Dropout(0.2),
                nn.Conv2d(16, 32, 3, padding=1),
                nn.ReLU(),
                nn.AvgPool2d(2),
                nn.Flatten(),
                nn.Dropout(0.5),
                nn.Linear(32 * 14 * 14, 10),
            ),
            torch.rand(32, 1, 28, 28),
        ),
        "transformer, 2 layers": (
            nn.Sequential(
                nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
                nn.Flatten(),
                nn.Linear(16 * 64, 10),
            ),
            torch.randn(32, 16, 64),
        ),
    }
    for name, (model, x) in networks.items():
        y = torch.randint(10, (len(x),))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        plain = step(model, optimizer, x, y, "cross_entropy", with_penalty=False)
        net = without_noise(model, loss="cross_entropy")
        ours = step(net, optimizer, x, y, "cross_entropy", with_penalty=True)
        sampled, penalized = seconds(plain, ours, repeat=40, clock=time.process_time)
        with torch.no_grad():
            moments, one = seconds(
                lambda m=model, x=x: predictive_moments(m, x),
                lambda m=model, x=x: m(x),
                repeat=9,
                clock=time.process_time,
            )
        ratio = penalized / sampled
        row = (
            name,
            1e3 * sampled,
            1e3 * penalized,
            ratio,
            verdict(ratio <= 3),
            moments / one,
        )
        table.rows.append(row)
    return table


def step(net, optimizer, x, y, loss, *, with_penalty):
    target = functional.one_hot(y, 10).float()

    def call():
        net.train()
        optimizer.zero_grad()
        out = net(x)
        if loss == "squared":
            objective = ((out - target) ** 2).sum(1).mean()
        else:
            objective = functional.cross_entropy(out, y)
        if with_penalty:
            objective = objective + net.penalty
        objective.backward()
        optimizer.step()

    return call


def gradients() -> Table:
    """The gradient of one probe: its variance, and its mean against two others."""
    table = Table(
        "64-128-128-10, two dropouts of .5, cross-entropy: the gradient of a step with one probe",
        (
            "trained, steps",
            "variance / sampled dropout's",
            "off the penalty's own gradient",
            "off sampled dropout's",
            "the penalty's off sampled dropout's",
        ),
    )
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )
    x, y = torch.randn(64, 64), torch.randint(10, (64,))
    net, weights = without_noise(model, loss="cross_entropy"), list(model.parameters())
    optimizer = torch.optim.Adam(weights, 1e-3)

    def flat(value):
        return torch.cat([g.flatten() for g in torch.autograd.grad(value, weights)])

    for steps in (0, 50, 100):
        for _ in range(min(steps, 50)):
            optimizer.zero_grad()
            functional.cross_entropy(model.train()(x), y).backward()
            optimizer.step()
        net.train()
        sampled = torch.stack(
            [flat(functional.cross_entropy(model(x), y)) for _ in range(2000)]
        )
        probed = torch.stack(
            [
                flat(functional.cross_entropy(net(x), y) + net.penalty)
                for _ in range(300)
            ]
        )
        penalty = explicit_penalty(model, x, y, loss="cross_entropy").value
        own = flat(functional.cross_entropy(model.eval()(x), y) + penalty)
        truth, mean = sampled.mean(0), probed.mean(0)
        off = [
            float((a - b).norm() / b.norm())
            for a, b in ((mean, own), (mean, truth), (own, truth))
        ]
        table.rows.append(
            (steps, float(probed.var(0).sum() / sampled.var(0).sum()), *off)
        )
    table.notes.append(
        "A probe's gradient leaves out how variances inside the network depend on the weights, and "
        "takes the loss itself at a draw of the linearized network; the penalty's own is that of "
        "the second-order expansion of cross-entropy, which is what it is off by. Distances are "
        "relative, and contain the error of 300 probes and 2,000 samples."
    )
    return table


def gradient_biases() -> Table:
    """The bias of a step's gradient by architecture, at initialization."""
    table = Table(
        "without_noise: bias of the gradient over its norm, 16 rows, at initialization",
        ("network", "loss", "bias", "at most"),
    )
    for name, (make, shape) in BIASED.items():
        for loss in ("mse", "cross_entropy"):
            torch.manual_seed(0)
            model = make()
            x = torch.randn(16, *shape)
            y = torch.randn(16, 3) if loss == "mse" else torch.randint(3, (16,))
            found = without_noise(model, loss=loss).gradient_bias(x, y, samples=400)
            table.rows.append((name, loss, found.value, found.upper))
    table.notes.append(
        "Against 400 passes with sampled noise; `gradient_bias` measures any model."
    )
    return table


def small_mlp(width: int, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs in (6, width):
        layers += [nn.Linear(inputs, width), *[nn.LayerNorm(width)] * norm, nn.ReLU()]
        layers += [nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(width, 3))


class SmallTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        options = {"dropout": 0.1, "batch_first": True, "activation": "gelu"}
        layer = nn.TransformerEncoderLayer(32, 4, 64, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.encoder(x).mean(1))


def last_layer() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))


BIASED = {
    "6-64-3, dropout .5 before the last layer": (last_layer, (6,)),
    "6-32-32-3, two dropouts of .5": (lambda: small_mlp(32), (6,)),
    "6-128-128-3, two dropouts of .5": (lambda: small_mlp(128), (6,)),
    "6-32-32-3, LayerNorm, two dropouts of .5": (
        lambda: small_mlp(32, norm=True),
        (6,),
    ),
    "transformer, 2 layers of 32, dropout .1": (SmallTransformer, (5, 32)),
}


def convergence() -> Table:
    """Equal steps from the same start on scikit-learn's digits; five seeds of the sampling."""
    table = Table(
        "Digits, 64-256-10: the dropout objective after 300 steps of SGD (batch 32), same start",
        (
            "loss",
            "sampled (mean of 5 seeds)",
            "its spread",
            "penalty",
            "equal or lower",
        ),
    )
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    for loss, rate in (("squared", 0.1), ("cross_entropy", 0.5)):
        torch.manual_seed(0)
        base = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10)
        )
        sampled = torch.tensor(
            [reached(base, x, y, loss, rate, seed) for seed in range(5)]
        )
        ours = reached(base, x, y, loss, rate, None)
        row = (loss, float(sampled.mean()), float(sampled.std()), ours)
        table.rows.append((*row, verdict(ours <= float(sampled.mean()))))
    table.notes.append(
        "The objective is exact for the squared loss; for cross-entropy it is the mean of 200 "
        "sampled passes, so that neither side is graded by the approximation it trains with."
    )
    return table


def reached(base, x, y, loss, rate, seed):
    model = copy.deepcopy(base)
    net = model if seed is not None else without_noise(model, loss=loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    torch.manual_seed(seed or 0)
    order = torch.Generator().manual_seed(1)
    for _ in range(300):
        rows = torch.randint(len(x), (32,), generator=order)
        step(net, optimizer, x[rows], y[rows], loss, with_penalty=seed is None)()
    with torch.no_grad():
        if loss == "squared":
            model.eval()
            plain = ((model(x) - functional.one_hot(y, 10)) ** 2).sum(1).mean()
            return float(plain + explicit_penalty(model, x).value)
        torch.manual_seed(7)
        model.train()
        return float(
            torch.stack(
                [functional.cross_entropy(model(x), y) for _ in range(200)]
            ).mean()
        )


def one_pass() -> Table:
    table = Table(
        "784-1024-10: predictive_moments against 100 Monte Carlo passes, CPU time",
        ("batch", "one pass ms", "100 passes ms", "ratio", ">= 50"),
    )
    model = mlp().eval()
    for batch in (1, 32, 256):
        x = torch.rand(batch, 784)
        with torch.no_grad():
            ours, sampled = seconds(
                lambda x=x: predictive_moments(model, x),
                lambda x=x: mc_moments(model, x, 100),
                repeat=5,
                clock=time.process_time,
            )
        ratio = sampled / ours
        table.rows.append(
            (batch, 1e3 * ours, 1e3 * sampled, ratio, verdict(ratio >= 50))
        )
    return table


def deep_accuracy() -> Table:
    table = Table(
        "Dropout after each of three hidden ReLU layers: carried moments against 20,000 passes",
        ("width", "drop_prob", "mean error", "sd error", "< 5 %"),
    )
    for width in (64, 128):
        for drop_prob in (0.1, 0.3, 0.5):
            torch.manual_seed(0)
            parts, sizes = [], (20, width, width, width)
            for a, b in pairwise(sizes):
                parts += [nn.Linear(a, b), nn.ReLU(), nn.Dropout(drop_prob)]
            model = nn.Sequential(*parts, nn.Linear(width, 5)).eval()
            x = torch.randn(50, 20)
            with torch.no_grad():
                mc = mc_moments(model, x, 20_000, seed=0)
                mean, variance = predictive_moments(model, x)
            sd = mc.variance.sqrt()
            errors = (
                float((mean - mc.mean).norm() / mc.mean.norm()),
                float((variance.sqrt() - sd).norm() / sd.norm()),
            )
            table.rows.append((width, drop_prob, *errors, verdict(max(errors) < 0.05)))
    return table


def audits() -> Table:
    """The price of an audit, tiny jobs included, where it is that of Python and not of numbers."""
    table = Table(
        "audit against one forward pass over the same data in batches of 256, CPU time",
        ("network", "rows", "audit ms", "pass ms", "passes", "<= 30"),
    )
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        64, 4, 128, 0.1, "gelu", batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for name, model, x in (
        ("8-32-3", dense(8, 32, 3), torch.randn(200, 8)),
        ("20-64-64-5", dense(20, 64, 64, 5), torch.randn(1000, 20)),
        ("64-256-10", dense(64, 256, 10), torch.randn(1797, 64)),
        ("784-1024-10", dense(784, 1024, 10), torch.randn(1024, 784)),
        ("784-512-512-10", dense(784, 512, 512, 10), torch.randn(1024, 784)),
        (
            "transformer, 2 layers",
            nn.Sequential(encoder, nn.Flatten(), nn.Linear(1024, 10)),
            torch.randn(256, 16, 64),
        ),
    ):
        y = torch.randint(list(model.eval().parameters())[-1].numel(), (len(x),))

        def passes(model=model, x=x):
            with torch.no_grad():
                for part in x.split(256):
                    model(part)

        ours, one = seconds(
            lambda m=model, x=x, y=y: audit(m, (x, y), "cross_entropy"),
            passes,
            repeat=9,
            clock=time.process_time,
        )
        table.rows.append(
            (name, len(x), 1e3 * ours, 1e3 * one, ours / one, verdict(ours / one <= 30))
        )
    return table


def dense(*sizes: int) -> nn.Sequential:
    parts = []
    for a, b in pairwise(sizes[:-1]):
        parts += [nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*parts, nn.Linear(*sizes[-2:]))
