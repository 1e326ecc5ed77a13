"""What can be said about smaller networks, checked on PyTorch modules."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from overt.theorems import _oracles as oracles
from overt.theorems.base import EXACT, Residuals, relative, theorem


@theorem(
    "compress-expected-loss",
    source="Structured dropout, Lemma 3.1, over masks of a fixed number of survivors",
    claim="A random sub-network of k of d units, survivors scaled by d/k, has the expected squared "
    "loss |y - f|^2 + (d - k) / (k (d - 1)) (d sum_i |u_i|^2 a_i^2 - |sum_i u_i a_i|^2)",
    assumes="units are removed before the last layer",
)
def expected_loss(scale: int, rng: np.random.Generator) -> Residuals:
    """Cut out every sub-network of that width."""
    from overt.nn.compression.graph import build_graph
    from overt.nn.compression.remove_units import Cut, shrink
    from overt.nn.data.batches import Inputs

    (torch, seq), d, k = oracles.seeded_torch(rng), 6 + scale, 3
    model = seq(
        torch.nn.Linear(4, d), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(d, 3)
    )
    x, y = torch.randn(8, 4).double(), torch.randn(8, 3).double()
    found = build_graph(model, Inputs((x,)))
    (group,) = found.groups
    losses = []
    for chosen in combinations(range(d), k):
        small = shrink(model, found, Cut({group: group.units[list(chosen)]}, scaled=True))
        losses.append(float(((y - small(x)) ** 2).sum(1).mean()))
    a, U = torch.relu(model[0](x)), model[3].weight
    flows = ((U**2).sum(0) * a**2).sum(1).mean()
    total = ((a @ U.T) ** 2).sum(1).mean()
    added = (d - k) / (k * (d - 1)) * (d * flows - total)
    yield relative(float(((y - model(x)) ** 2).sum(1).mean() + added), np.mean(losses))
    return EXACT, f"all {len(losses)} sub-networks of {k} of {d} units, cut out"


@theorem(
    "compress-low-rank",
    source="Eckart and Young 1936, Mirsky 1960",
    claim="Two layers of rank r in place of W change every output by at most s_(r+1) |x|, and "
    "some output by exactly that",
)
def low_rank(scale: int, rng: np.random.Generator) -> Residuals:
    """Rewrite a layer and try many inputs, among them the worst."""
    from overt.nn.compression import compress

    (torch, seq), m, n = oracles.seeded_torch(rng), 9 * scale, 7 * scale
    model = seq(torch.nn.Linear(n, m))
    small, report = compress(model, 0.6, torch.randn(2, n).double(), by="spectrum")
    (change,) = report.changes
    _, s, right = np.linalg.svd(model[0].weight.numpy())
    x = torch.as_tensor(np.concatenate([rng.standard_normal((500, n)), right]))
    ratio = ((small(x) - model(x)).norm(dim=1) / x.norm(dim=1)).numpy()
    yield relative(float(ratio.max()), float(s[change.after]))
    yield relative(change.operator_error, float(s[change.after]))
    return EXACT, f"{len(x)} inputs, rank {change.after} of {min(m, n)}"


@theorem(
    "compress-data-rank",
    source="Izenman 1975, reduced-rank regression",
    claim="With data, two layers of rank r along the outputs' principal directions make the least "
    "mean squared error of any affine map of rank r: the sum of the trailing variances",
)
def data_rank(scale: int, rng: np.random.Generator) -> Residuals:
    """Compare with the spectrum of the outputs, and with the rewriting that sees weights alone."""
    from overt.nn.compression import compress

    (torch, seq), m, n = oracles.seeded_torch(rng), 8 * scale, 8 * scale
    model = seq(torch.nn.Linear(n, m))
    mixed = rng.standard_normal((300, n)) @ rng.standard_normal((n, n)) + rng.standard_normal(n)
    x = torch.as_tensor(mixed)
    small, report = compress(model, {"0": 0.6}, x[:2], [(x,)], "spectrum")
    (change,) = report.changes
    y = model(x)
    error = float(((small(x) - y) ** 2).sum(1).mean())
    s = np.linalg.svd((y - y.mean(0)).numpy() / np.sqrt(len(y)), compute_uv=False)
    least = float(np.sum(s[change.after :] ** 2))
    blind, _ = compress(model, {"0": 0.6}, x[:2], by="spectrum")
    worse = float(((blind(x) - y) ** 2).sum(1).mean())
    yield relative(error, least) + max(0.0, error - worse)
    return 1e-8, f"rank {change.after} of {m}; weights alone: {worse / least:.1f} times that"
