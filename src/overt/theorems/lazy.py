"""Thesis, chapter 5: the lemmas on networks near their random start, and Figure 5-1."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom

from overt import relu
from overt._intervals import clopper_pearson
from overt.theorems.base import Evidence, Residuals, theorem

DELTA = 0.3
"""Probability with which the lemmas may fail: a third of it each."""

T = 10
ANGLES = np.linspace(0, 2 * np.pi, T, endpoint=False)
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)])
"""The inputs: T points of the unit circle, so that w.x is Gaussian in the plane."""


def _start(rng: np.random.Generator, m: int, trials: int) -> tuple[np.ndarray, ...]:
    """Return w.x (trials, units, inputs) of Gaussian rows, signs a, and masks with q = 1/2."""
    products = rng.normal(size=(trials, m, 2)) @ CIRCLE
    signs = rng.choice((-1.0, 1.0), (trials, m, 1))
    return products, signs, rng.random((trials, m, T)) < 0.5


def _share(broken: np.ndarray, what: str) -> Evidence:
    """Return evidence that the share of broken trials is not above a third of delta."""
    low, _ = clopper_pearson(int(broken.sum()), len(broken), 0.999)
    detail = f"{what}: {broken.sum()} of {len(broken)} starts break it"
    return Evidence(float(low), DELTA / 3, detail)


@theorem(
    "lazy-start",
    source="Thesis, Lemma 14",
    claim="With probability 1 - delta/3, |g_t(W_1)| <= sqrt(2 ln(6T/delta)) at all T inputs",
    assumes="m >= 25 ln(6T/delta), inputs of norm 1",
)
def _lazy_start(scale: int, rng: np.random.Generator) -> Evidence:
    m = math.ceil(25 * math.log(6 * T / DELTA))
    products, signs, kept = _start(rng, m, 100 * scale)
    g = np.sum(signs * kept * np.maximum(products, 0), axis=1) / math.sqrt(m)
    return _share(np.abs(g).max(1) > math.sqrt(2 * math.log(6 * T / DELTA)), f"width {m}")


@theorem(
    "lazy-margin",
    source="Thesis, Lemma 15",
    claim="With probability 1 - delta/3, y <grad g_t(W_1), V> >= gamma - sqrt(2 ln(3T/delta)/m) "
    "at all T inputs, V the margin's map on the rows of W_1",
    assumes="the (q, gamma)-margin assumption; here x on the circle, y = 1, psi(z) = z/|z|, where "
    "gamma = q E|cos|/2 = q/pi",
)
def _lazy_margin(scale: int, rng: np.random.Generator) -> Evidence:
    m = 150
    w = rng.normal(size=(100 * scale, m, 2))
    along = w / np.linalg.norm(w, axis=2, keepdims=True) @ CIRCLE  # psi(w).x
    values = np.mean((rng.random(along.shape) < 0.5) * np.maximum(along, 0), axis=1)
    least = 0.5 / math.pi - math.sqrt(2 * math.log(3 * T / DELTA) / m)
    off = abs(values.mean() - 0.5 / math.pi) > 5 * values.std() / math.sqrt(values.size)
    return _share((values.min(1) < least) | off, f"width {m}")


@theorem(
    "lazy-flips",
    source="Thesis, Lemma 16",
    claim="With probability 1 - delta/3 at most mD + sqrt(m ln(3T/delta)/2) units change sign at "
    "any of T inputs while no row has moved by more than D",
    assumes="inputs of norm 1",
)
def _lazy_flips(scale: int, rng: np.random.Generator) -> Evidence:
    m = 200
    products, _, _ = _start(rng, m, 100 * scale)
    broken = np.zeros(len(products), dtype=bool)
    for D in (0.01, 0.1, 0.5):
        # The worst rows move straight against the input: |w.x| <= D.
        flips = (np.abs(products) <= D).sum(1).max(1)
        broken |= flips > m * D + math.sqrt(m * math.log(3 * T / DELTA) / 2)
    return _share(broken, "every row moved against the input")


@theorem(
    "subnetwork-width",
    source="Thesis, section 5.3, the width of sub-networks",
    claim="With probability 1 - delta the sub-networks of all T steps have at most qm + "
    "sqrt(m ln(T/delta)/2) units, which is half of the printed excess, sqrt(2 m ln(T/delta))",
)
def _width(scale: int, rng: np.random.Generator) -> Residuals:
    for _ in range(100 * scale):
        m, T = (int(10 ** rng.uniform(0, power)) for power in (6, 4))
        q, delta = rng.uniform(0.01, 0.99), 10 ** rng.uniform(-4, -0.5)
        beyond = binom.sf(q * m + math.sqrt(m * math.log(T / delta) / 2), m, q)
        yield -math.expm1(T * math.log1p(-beyond)) - delta
    return 0.0, "the binomial tail, exactly, to the power T"


@theorem(
    "logistic-linear",
    source="Thesis, equation 5.13, Figure 5-1 and Lemma 17",
    claim="For z <= 0, log(1 + e^-z) <= 1 - z/ln 2, so that the loss of <grad g, U> is at most "
    "c sqrt(m)/ln 2 + 1 for rows of U no longer than c",
)
def _logistic(scale: int, rng: np.random.Generator) -> Residuals:
    z = -np.concatenate([np.linspace(0, 50, 2001), 10.0 ** np.arange(2, 6)])
    yield float(np.max(np.logaddexp(0, -z) - (1 - z / math.log(2))))
    for _ in range(20 * scale):
        m, c = int(rng.integers(1, 30)), float(rng.exponential())
        W, x = rng.normal(size=(m, 3)), rng.normal(size=3)
        x /= np.linalg.norm(x)
        gradient = rng.choice((-1.0, 1.0), m)[:, None] * (W @ x > 0)[:, None] * x / math.sqrt(m)
        U = -c * gradient * math.sqrt(m)  # the worst rows of length c
        loss = float(np.logaddexp(0, -np.sum(gradient * U)))
        yield loss - (c * math.sqrt(m) / math.log(2) + 1)
    return 0.0, "2,005 values of z, and the worst rows of random networks"


@theorem(
    "dropout-training",
    source="Thesis, Theorems 14 and 15, by training",
    claim="The mean error of Algorithm 4's iterates is at most 4 lam^2/(eta T), that of the "
    "sub-networks visited at most 12 lam^2/(eta T) + 7.1 ln(2/delta)/T",
    assumes="two orthogonal inputs of opposite labels, of margin .4267 q; the width is 64, where "
    "the proof asks for more than 1e10",
)
def _training(scale: int, rng: np.random.Generator) -> Residuals:
    steps, drop_prob = 1_000_000, 0.1
    margin = (1 - drop_prob) * (1 + math.sin(math.pi / 4)) / 4
    found = relu.guarantee(margin=margin, dimension=2, width=64, steps=steps)
    run = relu.train_lazy(
        np.eye(2), [1.0, -1.0], width=64, drop_prob=drop_prob, steps=steps,
        learning_rate=math.log(2), records=41, seed=rng,
    )  # fmt: skip
    yield float(np.mean(run.full_error)) - found.full_error
    yield float(np.mean(run.visited_error)) - found.subnetwork_error
    bounds = f"{found.full_error:.2f} and {found.subnetwork_error:.2f}"
    return 0.0, f"mean over 41 records of {steps:,} steps, less the bounds, {bounds}"
