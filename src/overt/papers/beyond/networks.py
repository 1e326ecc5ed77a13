"""Bounds for audits, and what compression loses."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np

from overt._types import Floats
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, EXACT, relative
from overt.papers.records import Residuals, statement


@statement(how="enumerated")
def audit_class_floor(scale: int, rng: np.random.Generator) -> Residuals:
    r"""Cross-entropy cannot vanish under dropout.

    Cross-entropy under dropout before the last layer (d units) is at least drop_prob^d times
    the entropy of the classes, and for two classes no larger bound holds.

    TeX: Cross-entropy under dropout before the last layer ($d$ units) is at least
    $\mathtt{drop\_prob}^d$ times the entropy of the classes, and for two classes no larger
    bound holds.
    """
    from overt.linear import last_layer

    d, p = 2 + scale, float(rng.uniform(0.3, 0.7))
    y = np.array([0, 0, 0, 1, 1])
    frequencies = np.array([0.6, 0.4])
    floor = p**d * last_layer.class_entropy(frequencies)
    z, weight = oracles.masks(np.full(d, 1 - p))
    b = np.log(frequencies[1] / frequencies[0])
    signs = np.where(y == 1, 1.0, -1.0)
    for sure in (0.1, 1.0, 10.0, 100.0):
        margins = (
            z.sum(1)[:, None] * sure * signs + b
        )  # (masks, samples): logit of class 1
        losses = np.logaddexp(0, -signs * margins).mean(1)
        last = float(weight @ losses)
        yield (floor - last) / floor
    yield relative(last, floor)
    return DESCENT, f"all masks of {d} units, drop_prob {p:.2f}"


@statement(how="sampled")
def audit_class_size(scale: int, rng: np.random.Generator) -> Residuals:
    r"""Cross-entropy of bounded logits.

    Over logits with |centered logits|_* <= t sqrt(n) the least cross-entropy is max_e mean
    H((1-e) y + e pi) - e s_1 t.

    Assumes: classes of equal size to reach it.

    TeX: Over logits with $|\text{ centered } \text{ logits }|_* \le t \sqrt{n}$ the least
    cross-entropy is $\max_e$ mean $H((1-e) y + e \pi) - e s_1 t$.
    """
    from overt.linear import last_layer

    k = 2 + scale
    y = np.tile(np.eye(k), (2, 1))
    n, t = len(y), float(rng.uniform(0.3, 1.5))

    def objective(theta: Floats) -> tuple[float, Floats]:
        """Logits t sqrt(n) W / |W|_* for any W; the bias of equal classes is 0."""
        W = theta.reshape(n, k)
        W = W - W.mean(0)
        left, s, right = np.linalg.svd(W, full_matrices=False)
        size = s.sum()
        Z = t * math.sqrt(n) * W / size
        top = Z - np.logaddexp.reduce(Z, axis=1, keepdims=True)
        slope = (np.exp(top) - y) / n
        scaled = (
            t
            * math.sqrt(n)
            / size
            * (slope - np.sum(slope * W) / size * (left @ right))
        )
        return float(-np.sum(y * top) / n), (scaled - scaled.mean(0)).ravel()

    # The normalization is not smooth where a singular value is 0: take the best of many starts.
    best, _ = descent.best_descent(objective, n * k, 5, rng)
    frequencies = np.full(k, 1 / k)
    top = float(np.linalg.norm(y - frequencies, 2)) / math.sqrt(n)
    bound = last_layer.class_bound(frequencies, top, t, centered=True)
    yield relative(bound, best)
    return 1e-4, f"{n} samples of {k} classes, t = {t:.2f}"


@statement(how="symbolic", identity="algebra")
def compress_expected_loss(scale: int, rng: np.random.Generator) -> Residuals:
    r"""Random sub-networks of a fixed width.

    A random sub-network of k of d units, survivors scaled by d/k, has the expected squared loss
    |y - f|^2 + (d - k) / (k (d - 1)) (d sum_i |u_i|^2 a_i^2 - |sum_i u_i a_i|^2).

    Assumes: units are removed before the last layer.

    TeX: A random sub-network of $k$ of $d$ units, survivors scaled by $d/k$, has the expected
    squared loss $|y - f|^2 + (d - k) / (k (d - 1)) (d \sum_i |u_i|^2 a_i^2 - |\sum_i u_i
    a_i|^2)$.
    """
    from overt.nn.compression.graph import build_graph
    from overt.nn.compression.units import make_cut, shrink
    from overt.nn.data.batches import Inputs

    (torch, seq), d, k = oracles.seeded_torch(rng), 6 + scale, 3
    model = seq(
        torch.nn.Linear(4, d),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(d, 3),
    )
    x, y = torch.randn(8, 4).double(), torch.randn(8, 3).double()
    found = build_graph(model, Inputs((x,)))
    (group,) = found.groups
    losses = []
    for chosen in combinations(range(d), k):
        kept = {group: group.units[list(chosen)]}
        small = shrink(model, found, make_cut(model, found, kept, scaled=True))
        losses.append(float(((y - small(x)) ** 2).sum(1).mean()))
    a, U = torch.relu(model[0](x)), model[3].weight
    flows = ((U**2).sum(0) * a**2).sum(1).mean()
    total = ((a @ U.T) ** 2).sum(1).mean()
    added = (d - k) / (k * (d - 1)) * (d * flows - total)
    yield relative(float(((y - model(x)) ** 2).sum(1).mean() + added), np.mean(losses))
    return EXACT, f"all {len(losses)} sub-networks of {k} of {d} units, cut out"


@statement(how="sampled")
def compress_low_rank(scale: int, rng: np.random.Generator) -> Residuals:
    """Low rank in place of a layer.

    Two layers of rank r in place of W change every output by at most s_(r+1) |x|, and some
    output by exactly that.

    TeX: Two layers of rank $r$ in place of $W$ change every output by at most $s_{r+1} |x|$,
    and some output by exactly that.
    """
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


@statement(how="sampled")
def compress_data_rank(scale: int, rng: np.random.Generator) -> Residuals:
    """Low rank for given data.

    With data, two layers of rank r along the outputs' principal directions make the least mean
    squared error of any affine map of rank r: the sum of the trailing variances.

    TeX: With data, two layers of rank $r$ along the outputs' principal directions make the
    least mean squared error of any affine map of rank $r$: the sum of the trailing variances.
    """
    from overt.nn.compression import compress

    (torch, seq), m, n = oracles.seeded_torch(rng), 8 * scale, 8 * scale
    model = seq(torch.nn.Linear(n, m))
    mixed = rng.standard_normal((300, n)) @ rng.standard_normal(
        (n, n)
    ) + rng.standard_normal(n)
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
    return (
        1e-8,
        f"rank {change.after} of {m}; weights alone: {worse / least:.1f} times that",
    )
