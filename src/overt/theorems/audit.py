"""What holds for every network with noise before its last layer, and how norm measures compare."""

from __future__ import annotations

import math

import numpy as np

from overt._types import Floats
from overt.theorems import _descent as descent
from overt.theorems import _oracles as oracles
from overt.theorems.base import DESCENT, Residuals, relative, theorem


@theorem(
    "audit-last-layer",
    source="Structured dropout, Proposition 3.3",
    claim="With a bias, the objective of a network whose last hidden layer (width d) has dropout "
    "is at least min_A |Y - mean - A|^2 + (lam/d) |A|_*^2, and free features reach it",
    assumes="d >= outputs to reach it",
    correction="the proposition omits 1/d, and has no bias",
)
def last_layer(scale: int, rng: np.random.Generator) -> Residuals:
    """Descend over last layer, bias and all features at once."""
    from overt.linear import last_layer
    from overt.spectral import SquaredNuclear

    n, k, d = 6 * scale, 3, 4 + scale
    lam = float(rng.uniform(0.3, 1.5))
    Y = oracles.with_spectrum(rng, n, k, [3.0, 2.0, 0.8]) + rng.normal(1, 1, k)

    def objective(theta: Floats) -> tuple[float, Floats]:
        b, (U, G) = theta[:k], descent.factors(theta[k:], k, d)
        E = Y - b - G @ U.T
        u, g = np.sum(U * U, 0), np.sum(G * G, 0)
        gradient = [-E.sum(0), (lam * g * U - E.T @ G).ravel(), (lam * u * G - E @ U).ravel()]
        return float(np.sum(E * E) + lam * u @ g), 2 * np.concatenate(gradient)

    best, _ = descent.best_descent(objective, k + (k + n) * d, 6, rng)
    R = np.asarray(np.linalg.qr(np.hstack([np.ones((n, 1)), Y]), mode="r"))
    target = last_layer.free_target(R, slice(1, 1 + k), centered=True)
    bound, *_ = last_layer.squared_bound(target, k, [(lam / d, SquaredNuclear())])
    printed, *_ = last_layer.squared_bound(target, k, [(lam, SquaredNuclear())])
    yield relative(bound, best)
    return DESCENT, f"descent over {n} x {d} features, last layer and bias", relative(printed, best)


@theorem(
    "audit-class-floor",
    source="overt (new)",
    claim="Cross-entropy under dropout before the last layer (d units) is at least drop_prob^d "
    "times the entropy of the classes, and for two classes no larger bound holds",
)
def class_floor(scale: int, rng: np.random.Generator) -> Residuals:
    """Enumerate the masks of networks whose units are ever more sure."""
    from overt.linear import last_layer

    d, p = 2 + scale, float(rng.uniform(0.3, 0.7))
    y = np.array([0, 0, 0, 1, 1])
    frequencies = np.array([0.6, 0.4])
    floor = p**d * last_layer.class_entropy(frequencies)
    z, weight = oracles.masks(np.full(d, 1 - p))
    b = np.log(frequencies[1] / frequencies[0])
    signs = np.where(y == 1, 1.0, -1.0)
    for sure in (0.1, 1.0, 10.0, 100.0):
        margins = z.sum(1)[:, None] * sure * signs + b  # (masks, samples): logit of class 1
        losses = np.logaddexp(0, -signs * margins).mean(1)
        last = float(weight @ losses)
        yield (floor - last) / floor
    yield relative(last, floor)
    return DESCENT, f"all masks of {d} units, drop_prob {p:.2f}"


@theorem(
    "audit-class-size",
    source="overt (new)",
    claim="Over logits with |centered logits|_* <= t sqrt(n) the least cross-entropy is "
    "max_e mean H((1-e) y + e pi) - e s_1 t",
    assumes="classes of equal size to reach it",
)
def class_size(scale: int, rng: np.random.Generator) -> Residuals:
    """Descend over logits of the nuclear norm t sqrt(n)."""
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
        scaled = t * math.sqrt(n) / size * (slope - np.sum(slope * W) / size * (left @ right))
        return float(-np.sum(y * top) / n), (scaled - scaled.mean(0)).ravel()

    # The normalization is not smooth where a singular value is 0: take the best of many starts.
    best, _ = descent.best_descent(objective, n * k, 5, rng)
    frequencies = np.full(k, 1 / k)
    top = float(np.linalg.norm(y - frequencies, 2)) / math.sqrt(n)
    bound = last_layer.class_bound(frequencies, top, t, centered=True)
    yield relative(bound, best)
    return 1e-4, f"{n} samples of {k} classes, t = {t:.2f}"


@theorem(
    "audit-norm-measures",
    source="Thesis, section 1.1.1",
    claim="The spectral measure (1.2) is never worse than the PAC-Bayes measure (1.3) up to a "
    "constant, (k+1)/k, which orthogonal weights need",
    assumes="the width in (1.3) is the largest number of rows of a weight",
)
def norm_measures(scale: int, rng: np.random.Generator) -> Residuals:
    """Compare the measures on random chains and on chains of orthogonal weights."""
    ratio = 0.0
    for _ in range(20 * scale):
        k, d = int(rng.integers(1, 5)), int(rng.integers(2, 9))
        weights = [rng.normal(size=(d, d)) * rng.exponential(size=(d, 1)) for _ in range(k + 1)]
        for chosen in (weights, [np.linalg.qr(W)[0] for W in weights]):
            constant = spectral_measure(chosen) / pac_bayes_measure(chosen) / ((k + 1) / k)
            yield max(constant - 1, 0.0)
            ratio = max(ratio, constant)
    yield 1 - ratio  # the constant is reached
    return 1e-12, "random and orthogonal chains, up to 5 layers"


def spectral_measure(weights: list[Floats]) -> float:
    """prod |W_i|_2 (sum (|W_i'|_(2,1) / |W_i|_2)^(2/3))^(3/2), eq. 1.2 without 1/sqrt(n)."""
    norms = [float(np.linalg.norm(W, 2)) for W in weights]
    rows = [float(np.linalg.norm(W, axis=1).sum()) for W in weights]
    ratios = sum((a / s) ** (2 / 3) for a, s in zip(rows, norms, strict=True))
    return math.prod(norms) * ratios**1.5


def pac_bayes_measure(weights: list[Floats]) -> float:
    """prod |W_i|_2 (d k^2 sum |W_i|_F^2 / |W_i|_2^2)^(1/2), eq. 1.3 without 1/sqrt(n)."""
    norms = [float(np.linalg.norm(W, 2)) for W in weights]
    stable = sum((float(np.linalg.norm(W)) / s) ** 2 for W, s in zip(weights, norms, strict=True))
    k = len(weights) - 1
    d = max(len(W) for W in weights)
    return math.prod(norms) * math.sqrt(d * k**2 * stable)
