"""Section 4.3 and Figure 4-2: capacity of ReLU networks with dropout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from overt import penalty, relu
from overt._check import Floats
from overt.noise import Dropout
from overt.papers import oracles
from overt.papers.evidence import EXACT, relative
from overt.papers.figures import (
    Finding,
    Findings,
    Params,
    Rows,
    above,
    mean_interval,
    plot_curves,
    rows_with,
    together,
    values_of,
)
from overt.papers.records import Residuals, Rng, figure, statement
from overt.papers.relu_capacity import rademacher, retentivity


@statement("Proposition 6", "4.3", how="enumerated")
def relu_isotropic(rng: Rng) -> Residuals:
    r"""Isotropic inputs.

    In a two-layer ReLU network dropout adds lam/2 times the squared l2 path norm.

    Assumes: inputs are symmetric about 0 with E[x x'] = I.

    Printed: The main text drops the factor lam; the proposition in the appendix has it.

    TeX: In a two-layer ReLU network dropout adds $\lambda/2$ times the squared $\ell_2$ path
    norm.
    """
    d = 3
    drop = Dropout(0.2)
    printed = math.inf
    z, p = oracles.multipliers(d, 0.2)
    for _ in range(3):
        U, V, _, _ = oracles.two_layers(rng, d)
        X = rng.laplace(size=(20, len(V)))
        C = X.T @ X / len(X)
        X = X @ oracles.power(C, -0.5)
        both = np.concatenate([X, -X])
        hidden = np.maximum(both @ V, 0)
        changes = z[:, None] - 1
        added = changes * hidden @ U.T
        penalties = np.sum(added**2, axis=-1)
        exact = p @ penalties.mean(axis=1)
        stated = penalty.shallow(U, V, drop) / 2
        yield relative(stated, exact)
        without_lam = stated / drop.strength
        printed = min(printed, relative(without_lam, exact))
    return (
        EXACT,
        "all masks, laws of 40 points that are symmetric and isotropic",
        printed,
    )


@statement("Proposition 2", "4.3", how="enumerated")
def penalty_bounds_no_norm(rng: Rng) -> Residuals:
    r"""The penalty bounds no norm.

    For every C some law on the unit sphere and some unit w have E sigma(w.x)^2 = 1 and |w| > C:
    dropout's penalty alone bounds no norm of the weights.

    Printed: delta must be below 1/C^2, where the paper has C^2.

    TeX: For every $C$ some law on the unit sphere and some unit $w$ have $E \sigma(w \cdot x)^2
    = 1$ and $|w| > C$: dropout's penalty alone bounds no norm of the weights.
    """
    printed = 0.0
    for C in (0.5, 3.0, 50.0):
        net, points, p = relu.escaping_weights(C)
        active = net.activations(points)[:, 0]
        norms = np.linalg.norm(points, axis=1)
        yield abs(p @ active**2 - 1)
        yield np.abs(norms - 1).max()
        yield np.abs(p @ points).max()
        yield C - np.linalg.norm(net.V)
        printed = max(printed, C - 1 / C)  # |w| = 1/sqrt(delta) at delta = C^2
    return 1e-9, "moment 1, mean 0, norm 1, and |w| above C = 1/2, 3, 50", printed


SUPREMA = "exact suprema in 2 to 4 dimensions over random signs"


def _complexities(rng: Rng) -> Iterator[Any]:
    """Yield complexities, with exact suprema, for laws in the plane and beyond."""
    for n, d in ((16, 2), (8, 3), (6, 4)):
        for skew in (0.0, 0.3, 1.0):
            X = rng.standard_normal((n, d)) + skew
            mean = X[1:].mean(0)
            X[0] = -mean
            chosen = rng.integers(0, n, 10)
            for sample in (None, chosen):
                yield rademacher(X, 2.0, sample=sample, draws=200, seed=rng)


@statement("Theorem 12", "4.3", how="bound evaluated")
def relu_rademacher(rng: Rng) -> Residuals:
    r"""Rademacher upper bound.

    The Rademacher complexity of networks with sum |u_i| a_i <= alpha is at most 2 alpha
    |X|_(C+) / (n sqrt(beta)).

    Assumes: beta-retentive inputs, one output.

    TeX: The Rademacher complexity of networks with $\sum |u_i| a_i \le \alpha$ is at most $2
    \alpha |X|_{C+} / (n \sqrt{\beta})$.
    """
    for found in _complexities(rng):
        least = found.value - 5 * found.standard_error
        yield least - found.upper, least - found.upper / 10
    return 0.0, f"{SUPREMA}; null: a tenth of the bound"


@statement("Theorem 13", "4.3", how="bound evaluated")
def relu_rademacher_lower(rng: Rng) -> Residuals:
    r"""Rademacher lower bound.

    The same complexity is at least alpha |X|_(C+) / (2n), at every width.

    TeX: The same complexity is at least $\alpha |X|_{C+} / (2n)$, at every width.
    """
    for found in _complexities(rng):
        most = found.value + 5 * found.standard_error
        yield found.lower - most, 10 * found.lower - most
    return 0.0, f"{SUPREMA}; null: ten times the bound"


@statement("Corollary 2", "4.3", how="bound evaluated")
def relu_generalization(rng: Rng) -> Residuals:
    r"""Generalization.

    L <= Lhat + 16 alpha |X|_(C+) / (sqrt(beta) n) + 12 sqrt(log(2/delta)/(2n)) for all networks
    of the class at once, with probability 1 - delta.

    Assumes: labels in [-1, 1], independent samples, beta-retentive inputs.

    TeX: $L \le \hat{L} + 16 \alpha |X|_{C+} / (\sqrt{\beta} n) + 12 \sqrt{\log(2/\delta)/(2n)}$
    for all networks of the class at once, with probability $1 - \delta$.
    """
    # Nearly symmetric, so that no direction is cut off and the bound is not empty.
    half = rng.standard_normal((6, 2))
    lengths = rng.uniform(0.5, 1, (6, 1))
    mirrored = -half * lengths
    points = np.concatenate([half, mirrored])
    alpha = 1.5
    n = 40_000
    y = rng.choice((-1.0, 1.0), 12)
    C = points.T @ points / 12
    beta = retentivity(points).lower
    angles = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    x = np.cos(angles)
    directions = np.stack([x, np.sin(angles)])
    units = np.maximum(points @ directions, 0)
    squares = np.mean(units**2, axis=0)
    flows = np.sqrt(squares)
    units *= alpha / flows
    outputs = np.concatenate([units, -units], axis=1)  # (points, networks)
    g = np.clip(outputs, -1, 1)
    losses = (g - y[:, None]) ** 2
    broken = 0.0
    null = 0.0
    reached = 0.0
    for _ in range(100):
        uniform = np.full(12, 1 / 12)
        counts = rng.multinomial(n, uniform)
        gaps = losses.mean(0) - counts @ losses / n
        sample = np.sqrt(counts)[:, None] * points
        norm = relu.positive_norm(sample, C)
        bound = relu.risk_bound(0.0, alpha, norm, n, beta, delta=0.05)
        ratio = gaps.max() / bound.value
        broken += ratio > 1
        null += ratio > 0.01
        reached = max(reached, ratio)
    yield broken / 100
    detail = (
        f"share of samples in which some network breaks the bound; the largest gap reached "
        f"{reached:.2f} of it; null: a hundredth of the bound"
    )
    return 0.05, detail, None, null / 100


@statement("Corollary 3", "4.3", how="bound evaluated")
def relu_symmetrized(rng: Rng) -> Residuals:
    """Symmetrized data.

    With random signs the inputs are 1/2-retentive, their C is unchanged, and the risk is at
    most twice the symmetrized risk.

    TeX: With random signs the inputs are 1/2-retentive, their $C$ is unchanged, and the risk is
    at most twice the symmetrized risk.
    """
    for d in (2, 3, 5):
        X = rng.standard_normal((20, d))
        X = np.abs(X)
        y = rng.choice((-1.0, 1.0), len(X))
        both = np.concatenate([X, -X])
        pair = retentivity(both)
        alone = retentivity(X)
        yield 0.5 - pair.lower, 0.5 - alone.upper
        C = X.T @ X / len(X)
        mirrored_C = both.T @ both / len(both)
        yield np.abs(mirrored_C - C).max()
        U = rng.standard_normal((1, 6))
        V = rng.standard_normal((d, 6))
        net = relu.TwoLayer(U, V)
        labels = np.concatenate([y, y])
        symmetrized = net.clipped_error(both, labels)
        yield net.clipped_error(X, y) - 2 * symmetrized
        direct = relu.flows(U, net.activations(both))
        off = net.flows(X, symmetrized=True) - direct
        yield np.abs(off).max()
    detail = "lower side of the retentivity, C, risks and flows; null: inputs without their mirror"
    return 1e-9, detail


@statement("Lemma 10", "4.5.2", how="enumerated")
def loss_contraction(rng: Rng) -> Residuals:
    r"""Contraction.

    Clipping does not raise the Rademacher complexity, and the squared loss of clipped
    predictions raises it at most four times.

    Assumes: labels -1 and 1.

    Printed: the paper has the factor 2; (1 - z)^2 has the slope 4 at z = -1, and predictions -1
    and -.9 need 3.9.

    TeX: Clipping does not raise the Rademacher complexity, and the squared loss of clipped
    predictions raises it at most four times.
    \[\mathfrak{R}\left((y-\mathrm{clip}\,f)^2\right)\le4\,\mathfrak{R}(f)\]
    """
    n = 6
    largest = 0.0
    choices = product((-1.0, 1.0), repeat=n)
    signs = np.array(list(choices))
    for trial in range(5):
        y = rng.choice((-1.0, 1.0), n)
        f = rng.standard_normal((4, n))
        if trial == 0:
            f = y * np.array([[-1.0], [-0.9]])
        g = np.clip(f, -1, 1)
        complexity = []
        for F in (f, g, (y - g) ** 2):
            correlations = signs @ F.T / n
            suprema = correlations.max(axis=1)
            complexity.append(suprema.mean())
        plain, clipped, loss = complexity
        yield clipped / plain - 1
        yield loss / clipped / 4 - 1
        largest = max(largest, loss / clipped / 2 - 1)
    return 1e-12, "all signs for five classes of functions", largest


BATCH = 64


def run(params: Params, seed: int) -> dict[str, Any]:
    """Train networks of one width from independent starts, all at once, and measure them.

    The networks see the same batches, with dropout and random signs of their own.
    """
    import torch
    from torch.nn.functional import dropout

    x, y, x_test, y_test = task(params["data"])
    count = params["networks"]
    width = params["width"]
    # The same starts, orders and signs for every cell.
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int, inputs: int) -> Any:
        """Return weights that start as those of torch.nn.Linear."""
        sample = 2 * torch.rand(*shape, generator=generator) - 1
        return (sample / math.sqrt(inputs)).requires_grad_()

    V = uniform(x.shape[1], count * width, inputs=x.shape[1])
    U = uniform(count, width, inputs=width)
    signs = torch.ones(len(x), count)
    if params["symmetrized"]:
        signs -= 2.0 * torch.randint(0, 2, signs.shape, generator=generator)

    def activations(rows: Any, sign: Any) -> Any:
        """Return the hidden layers at inputs with signs, (points, networks, width)."""
        return torch.relu(sign[..., None] * (rows @ V).view(len(rows), count, width))

    optimizer = torch.optim.Adam([V, U], params["learning_rate"], fused=True)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for _ in range(params["epochs"]):
            order = torch.randperm(len(x), generator=generator)
            for rows in order.split(BATCH):
                h = dropout(activations(x[rows], signs[rows]), params["drop_prob"])
                error = torch.sum(h * U, 2) - y[rows, None]
                optimizer.zero_grad()
                torch.sum(error**2).div(len(rows)).backward()
                optimizer.step()

    def outputs(x: Any, signs: Any) -> tuple[Any, Any]:
        """Return outputs (points, networks), and squared activations summed over the points."""
        parts = zip(x.split(500), signs.split(500), strict=True)
        layers = (activations(rows, sign) for rows, sign in parts)
        found = [(torch.sum(h * U, 2), torch.sum(h**2, 0)) for h in layers]
        values, squares = zip(*found, strict=True)
        return torch.cat(values), sum(squares)

    with torch.no_grad():
        f, _ = outputs(x, signs)
        tests = [1.0, -1.0] if params["symmetrized"] else [1.0]
        found = [outputs(x_test, torch.full((len(x_test), count), s)) for s in tests]
        test = sum(torch.mean((g - y_test[:, None]) ** 2, 0) for g, _ in found)
        square = sum(squares for _, squares in found) / len(x_test)
        psi = (U.abs() * torch.sqrt(square / len(tests))).double()
        train = torch.mean((f - y[:, None]) ** 2, 0)
    gap = test / len(tests) - train
    return {
        "train_wrong": torch.mean((f * y[:, None] <= 0).double(), 0).tolist(),
        "gap": gap.tolist(),
        "alpha": [relu.capacity(part) for part in psi],
        "coadaptation": [relu.coadaptation(part) for part in psi],
        "n": len(x),
    }


def task(data: str) -> tuple[Any, Any, Any, Any]:
    """Return flat images and labels -1 and 1, training and test: odd digits of the toy are 1."""
    from overt.papers import models

    loaded = models.load(
        data, None if data == "digits" else (4, 7)
    )  # 4 and 7 are numbered 0 and 1
    y, y_test = (2.0 * (classes % 2) - 1 for classes in (loaded.y, loaded.y_test))
    return loaded.x.flatten(1), y, loaded.x_test.flatten(1), y_test


class Cells:
    """The rows with random signs or without, by width and drop probability."""

    def __init__(self, rows: Rows, symmetrized: bool) -> None:
        self.rows = rows_with(rows, symmetrized=symmetrized)
        self.widths = values_of(rows, "width")
        self.probs = values_of(rows, "drop_prob")
        self.label = "random signs" if symmetrized else "plain inputs"

    def values(self, name: str, width: int, drop_prob: float) -> Floats:
        """Return a measurement of each run."""
        (row,) = rows_with(self.rows, width=width, drop_prob=drop_prob)
        return np.array(row[name])

    def means(self, name: str) -> Floats:
        """Return the means over runs, (drop probabilities, widths)."""
        means = [
            [self.values(name, width, prob).mean() for width in self.widths]
            for prob in self.probs
        ]
        return np.array(means)

    def finding(
        self, name: str, more: Any, less: Any, claim: str, text: str
    ) -> Finding:
        """Compare cells (width, drop probability) of `more` with those of `less`, pair by pair."""
        shown = []
        verdicts = []
        for a, b in zip(more, less, strict=True):
            first = self.values(name, *a)
            second = self.values(name, *b)
            gain = first - second
            low, high = mean_interval(gain)
            shown.append(f"{gain.mean():+.3f} ({low:+.3f} to {high:+.3f})")
            verdicts.append(above((low, high), 0))
        verdict = together(*verdicts)
        claim = f"{self.label}: {claim}"
        return Finding(claim, verdict, ", ".join(shown), text)


def by_kind(rows: Rows) -> Iterator[Cells]:
    """Yield the cells with random signs and those of plain inputs."""
    for symmetrized in values_of(rows, "symmetrized"):
        yield Cells(rows, symmetrized)


def check(rows: Rows) -> Findings:
    """Check the order of the curves, and how well Theorem 12's quantity ranks the gaps."""
    from scipy.stats import spearmanr

    for cells in by_kind(rows):
        widths = cells.widths
        probs = cells.probs
        alpha = cells.means("alpha").ravel()
        gap = cells.means("gap").ravel()
        order = spearmanr(alpha, gap).statistic
        inside = np.clip(order, -0.999, 0.999)
        at = np.arctanh(inside)
        spread = np.sqrt(max(len(alpha) - 3, 1))  # of Fisher's z
        half = 1.96 / spread
        low = np.tanh(at - half)
        high = np.tanh(at + half)
        yield Finding(
            f"{cells.label}: a smaller alpha/sqrt(n) goes with a smaller gap",
            above((low, high), 0),
            f"Spearman {order:.3f} ({low:.2f} to {high:.2f}) over {len(alpha)} cells",
            "a smaller bound corresponds to a smaller gap",
        )
        plain = [(w, probs[0]) for w in widths]
        first = [(w, probs[1]) for w in widths]
        most = [(w, probs[-1]) for w in widths]
        narrow = [(widths[0], p) for p in probs]
        wide = [(widths[-1], p) for p in probs]
        spread = "a higher drop probability corresponds to less co-adaptation"
        for name, more, less, claim, text in (
            (
                "gap",
                plain,
                most,
                "the highest drop probability has a smaller gap than none",
                "increasing dropout rate decreases the generalization gap",
            ),
            ("gap", wide, narrow, "wider networks have a larger gap", "increases"),
            ("alpha", plain, most, "dropout lowers alpha at every width", ""),
            ("coadaptation", most, plain, "with dropout the flow is more even", spread),
            (
                "coadaptation",
                most,
                first,
                "a higher drop probability co-adapts less",
                spread,
            ),
            ("coadaptation", narrow, wide, "wider networks co-adapt more", "more"),
        ):
            yield cells.finding(name, more, less, claim, text)
        errors = [row["train_wrong"] for row in cells.rows]
        wrong = np.max(errors)
        yield Finding(
            f"{cells.label}: all networks fit the training labels",
            wrong == 0,
            f"training errors up to {100 * wrong:.2f} %",
            "trained networks achieve 100% training accuracy",
        )


def plot(rows: Rows) -> Any:
    """Plot co-adaptation, gap and alpha/sqrt(n) against the width, and the last two together."""
    panels = {}
    titles = {
        "coadaptation": "co-adaptation (1: all units alike)",
        "gap": "generalization gap",
        "alpha": "alpha",
    }
    measurements = titles.items()
    for cells, (name, title) in product(by_kind(rows), measurements):
        means = cells.means(name)
        curves = zip(cells.probs, means, strict=True)
        panels[f"{title}\n{cells.label}"] = [
            (f"drop {prob:g}", cells.widths, values) for prob, values in curves
        ]
    return plot_curves(panels, columns=3, xscale="log", xlabel="width")


figure(
    "thesis-fig4-2",
    "Figure 4-2",
    "4.6",
    """Co-adaptation, generalization gap and capacity of networks trained with dropout.

    Dropout lowers alpha and the generalization gap, and alpha ranks the gaps.
    """,
    run=run,
    check=check,
    plot=plot,
)


@statement("Section 4.3, flows", "4.3", how="bound evaluated")
def flows_and_penalty(rng: Rng) -> Residuals:
    r"""Flows and the penalty.

    sum_i |u_i| a_i <= sqrt(d_1 R/lam) for the penalty R = lam sum_i |u_i|^2 a_i^2.

    Printed: The paper has sqrt(d_1 R), with R defined with lam: four units with u = a = 1 at drop
    probability .2 have the sum 4 and the bound 2.

    TeX: $\sum_i |u_i| a_i \le \sqrt{d_1 R/\lambda}$ for the penalty $R = \lambda \sum_i |u_i|^2
    a_i^2$.
    """
    for trial in range(20):
        d = int(rng.integers(1, 8))
        drop = Dropout(rng.uniform(0.05, 0.9))
        U = rng.standard_normal((2, d))
        activations = np.ones((3, d))
        if trial % 2 == 0:
            activations = rng.exponential(size=(3, d))
        R = penalty.hidden(U, activations, drop)
        squares = np.mean(activations**2, axis=0)
        sizes = np.sqrt(squares)
        outgoing = np.linalg.norm(U, axis=0)
        flows = outgoing @ sizes
        bound = math.sqrt(d * R / drop.strength)
        yield flows / bound - 1, 10 * flows / bound - 1
    ones = np.ones((1, 4))
    R = penalty.hidden(ones, ones, Dropout(0.2))
    printed = 4 / math.sqrt(4 * R) - 1
    return 1e-12, "random layers; null: a tenth of the bound", printed
