"""Thesis, section 4.3 and chapter 5: two-layer ReLU networks."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from overt import relu
from overt.relu import reference
from overt.theorems.base import Residuals, theorem


@theorem(
    "penalty-bounds-no-norm",
    source="Thesis, Proposition 2",
    claim="For every C some law on the unit sphere and some unit w have E sigma(w.x)^2 = 1 and "
    "|w| > C: dropout's penalty alone bounds no norm of the weights",
    correction="delta must be below 1/C^2, where C^2 is printed",
)
def _(scale: int, rng: np.random.Generator) -> Residuals:
    printed = 0.0
    for C in (0.5, 3.0, 50.0 * scale):
        net, points, p = relu.escaping_weights(C)
        moment = float(p @ net.activations(points)[:, 0] ** 2)
        off = np.abs(np.linalg.norm(points, axis=1) - 1).max() + np.abs(p @ points).max()
        yield max(abs(moment - 1), float(off), C - float(np.linalg.norm(net.V)))
        printed = max(printed, C - 1 / C)  # |w| = 1/sqrt(delta) at delta = C^2
    return 1e-9, "moment 1, mean 0, norm 1, and |w| above C = 1/2, 3, 50", printed


@theorem(
    "relu-rademacher",
    source="Thesis, Theorem 12",
    claim="The Rademacher complexity of networks with sum |u_i| a_i <= alpha is at most "
    "2 alpha |X|_(C+) / (n sqrt(beta))",
    assumes="beta-retentive inputs, one output",
)
def _(scale: int, rng: np.random.Generator) -> Residuals:
    nearest = math.inf
    for found in _complexities(scale, rng):
        yield max(found.value - 5 * found.standard_error - found.upper, 0.0)
        nearest = min(nearest, found.upper / found.value)
    return 0.0, (
        f"exact suprema in the plane over random signs; the bound is at least {nearest:.1f} times "
        "the complexity"
    )


@theorem(
    "relu-rademacher-lower",
    source="Thesis, Theorem 13",
    claim="The same complexity is at least alpha |X|_(C+) / (2n), at every width",
)
def _(scale: int, rng: np.random.Generator) -> Residuals:
    nearest = math.inf
    for found in _complexities(scale, rng):
        yield max(found.lower - found.value - 5 * found.standard_error, 0.0)
        nearest = min(nearest, found.value / found.lower)
    return 0.0, (
        f"exact suprema in the plane; the complexity is at least {nearest:.1f} times the bound"
    )


@theorem(
    "relu-generalization",
    source="Thesis, Corollary 2",
    claim="L <= Lhat + 16 alpha |X|_(C+) / (sqrt(beta) n) + 12 sqrt(log(2/delta)/(2n)) for all "
    "networks of the class at once, with probability 1 - delta",
    assumes="labels in [-1, 1], independent samples, beta-retentive inputs",
)
def _(scale: int, rng: np.random.Generator) -> Residuals:
    points = rng.normal(size=(12, 2))
    y = rng.choice((-1.0, 1.0), 12)
    C, beta, alpha = points.T @ points / 12, relu.retentivity(points).lower, 1.5
    angles = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    units = np.maximum(points @ np.stack([np.cos(angles), np.sin(angles)]), 0)
    units *= alpha / np.sqrt(np.mean(units**2, axis=0))
    g = np.clip(np.concatenate([units, -units], axis=1), -1, 1)  # (points, networks)
    losses = (g - y[:, None]) ** 2
    worst, failures, trials, n = 0.0, 0, 100 * scale, 40_000
    least = relu.risk_bound(0.0, alpha, math.sqrt(2 * n), n, beta, delta=0.05).value
    for _ in range(trials):
        counts = rng.multinomial(n, np.full(12, 1 / 12))
        gap = float(np.max(losses.mean(0) - counts @ losses / n))
        norm = relu.positive_norm(np.sqrt(counts)[:, None] * points, C)
        bound = relu.risk_bound(0.0, alpha, norm, n, beta, delta=0.05)
        worst, failures = max(worst, gap / bound.value), failures + (gap > bound.value)
    yield failures / trials
    return 0.05, (
        f"share of samples in which some network breaks the bound; the largest gap reached "
        f"{worst:.2f} of it, which is about {least:.2f} where losses go up to 4"
    )


@theorem(
    "relu-symmetrized",
    source="Thesis, Corollary 3",
    claim="With random signs the inputs are 1/2-retentive, their C is unchanged, and the risk is "
    "at most twice the symmetrized risk",
)
def _(scale: int, rng: np.random.Generator) -> Residuals:
    for d in (2, 3, 5):
        X = np.abs(rng.normal(size=(20 * scale, d)))
        both = np.concatenate([X, -X])
        yield 0.5 - relu.retentivity(both).lower
        yield float(np.abs(both.T @ both / len(both) - X.T @ X / len(X)).max())
        net = relu.TwoLayer(rng.normal(size=(1, 6)), rng.normal(size=(d, 6)))
        y = rng.choice((-1.0, 1.0), len(X))
        doubled = 2 * net.clipped_error(both, np.concatenate([y, y]))
        yield net.clipped_error(X, y) - doubled
        direct = np.abs(net.U[0]) * np.sqrt(np.mean(net.activations(both) ** 2, axis=0))
        yield float(np.abs(net.flows(X, symmetrized=True) - direct).max())
    return 1e-9, "proved lower side of the retentivity, C, risks and flows"


@theorem(
    "relu-margin",
    source="Thesis, Assumption 2",
    claim="The largest margin in gradient space is the minimum over p of q E|sum p_i y_i x_i "
    "1[z.x_i >= 0]|; for two inputs of opposite labels at an angle t it is "
    "q (t + (pi - t) sin(t/2)) / (2 pi)",
    correction="psi may be any bounded map, where linear is printed: a bounded linear map is 0",
)
def _(scale: int, rng: np.random.Generator) -> Residuals:
    printed = 0.0
    for angle in (0.3, 1.0, 2.0):
        X = np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
        exact = 0.5 * (angle + (math.pi - angle) * math.sin(angle / 2)) / (2 * math.pi)
        found = relu.margin(X, [1, -1], drop_prob=0.5, features=2000 * scale, tol=1e-4, seed=rng)
        yield max(found.lower - exact, exact - found.upper, 0.0)
        printed = max(printed, exact)
    return 0.005, "closed form outside the interval between psi's margin and the dual", printed


@theorem(
    "dropout-jensen",
    source="Thesis, Lemma 11",
    claim="The loss of the full network with weights q W is at most the mean loss of its "
    "sub-networks, l(y f(x; qW)) <= E_B l(y g(W; x, B))",
)
def _(scale: int, rng: np.random.Generator) -> Residuals:
    m, q = 8, 0.3
    for _ in range(20 * scale):
        W, a = 2 * rng.normal(size=(m, 3)), rng.choice((-1.0, 1.0), m)
        terms = a * np.maximum(W @ rng.normal(size=3), 0) / math.sqrt(m)
        mean = 0.0
        for bits in product((0, 1), repeat=m):
            chance = math.prod(q if b else 1 - q for b in bits)
            mean += chance * float(np.logaddexp(0, -terms @ bits))
        yield max(float(np.logaddexp(0, -q * terms.sum())) - mean, 0.0)
    return 1e-12, "all 256 masks enumerated"


@theorem(
    "dropout-regret",
    source="Thesis, Lemma 12",
    claim="Algorithm 4's mean loss is at most |W_1 - U|^2 / (eta T) + (2/T) sum_t l(y_t <grad "
    "g_t(W_t), U>) for every U with rows no longer than c",
    assumes="inputs of norm 1, eta <= ln 2",
)
def _(scale: int, rng: np.random.Generator) -> Residuals:
    m, d, T, eta, c = 12, 4, 60 * scale, math.log(2), 4.0
    X = rng.normal(size=(20, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y, a = np.sign(X[:, 0]), rng.choice((-1.0, 1.0), m)
    W = rng.normal(size=(m, d))
    W *= np.minimum(1, c / np.linalg.norm(W, axis=1, keepdims=True))
    U = W + rng.normal(size=(50, m, d)) * rng.uniform(0, 2, (50, 1, 1))
    U[0] = W + 2 * a[:, None] * np.eye(d)[0]
    U *= np.minimum(1, c / np.linalg.norm(U, axis=2, keepdims=True))
    distance = np.sum((U - W) ** 2, axis=(1, 2))
    losses, linear, margin = np.zeros(T), np.zeros((50, T)), np.empty(1)
    for t in range(T):
        i, b = rng.integers(20), rng.random(m) < 0.5
        gradient = (a * b * (W @ X[i] > 0))[:, None] * X[i] / math.sqrt(m)
        linear[:, t] = np.logaddexp(0, -y[i] * np.sum(gradient * U, axis=(1, 2)))
        reference.descend(W, a, X, y, np.array([i]), b[None], eta, c, margin)
        losses[t] = np.logaddexp(0, -margin[0])
    bound = distance / (eta * T) + 2 * linear.mean(1)
    slack = np.min(bound - losses.mean())
    yield float(max(0.0, -slack))
    return 1e-12, f"50 competitors, {T} steps; least slack {slack:.2f}"


@theorem(
    "dropout-iterations",
    source="Thesis, Theorems 14 and 15",
    claim="With m >= 2401 lam^2 / gamma^6 the mean error of the iterates is at most 4 lam^2 / "
    "(eta T), that of visited sub-networks 12 lam^2 / (eta T) + 7.1 ln(2/delta) / T",
    assumes="inputs of norm 1, the (q, gamma)-margin assumption, eta <= ln 2",
    correction="the last constant is 2/(3 - e) = 7.1, where 6 is printed, and delta is spent twice",
)
def _(scale: int, rng: np.random.Generator) -> Residuals:
    # From the martingale bound (3 - e) sum Q <= sum Q_t + ln(1/delta)/ln 2, and R <= 2 ln 2 Q.
    confidence, complexity = 2 / (3 - math.e), 4 * math.log(2) / (3 - math.e)
    yield max(0.0, confidence - 7.1, complexity - 12)
    for gamma, delta in product((0.03, 0.3), (None, 0.05)):
        found = relu.required(epsilon=0.1, margin=gamma, dimension=50, delta=delta)
        yield (found.full_error if delta is None else found.subnetwork_error) - 0.1
        yield found.needed_width / found.width - 1
        # Lemma 13 keeps every row within c: it may move by gamma^2 / 14 only.
        yield found.displacement - gamma**2 / 14
    detail = "constants of the proof, and the conditions at the smallest width and steps"
    return 1e-9, detail, confidence - 6


def _complexities(scale: int, rng: np.random.Generator) -> list[Any]:
    """Return exact Monte Carlo complexities for laws in the plane, symmetric and skewed."""
    found = []
    for skew in (0.0, 0.3, 1.0):
        X = rng.normal(size=(16 * scale, 2)) + skew
        X[0] = -X[1:].mean(0)
        sample = rng.integers(0, len(X), 10)
        found += [relu.rademacher(X, 2.0, sample=s, draws=400, seed=rng) for s in (None, sample)]
    return found
