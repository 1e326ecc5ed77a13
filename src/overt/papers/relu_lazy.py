"""Thesis, chapter 5: the margin of Assumption 2, and what Theorems 14 and 15 prove from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt import _check
from overt._check import Floats, InputError, Seed, doubles, generator, number, whole
from overt.relu.training import labels
from overt.results import Result

FRESH = 20
"""Features on which a margin is measured, as a multiple of those that chose the map."""

SMALLEST = 1e-30
"""Margins below this need widths beyond the range of floating-point numbers."""


@dataclass(frozen=True, repr=False, eq=False)
class Margin(Result):
    """The margin gamma of Assumption 2 between two estimates.

    Attributes
    ----------
    lower
        The margin of an explicit map psi, on features z that did not choose it, three standard
        errors off: what Theorems 14 and 15 may be used with. Not above 0 if none was found.
    upper
        The value of a dual point on the same features, three standard errors added.
    weights
        The dual point: how much each example matters, (samples,).
    """

    lower: float
    upper: float
    weights: Floats


def margin(
    X: Floats,
    y: Any,
    *,
    drop_prob: float = 0.0,
    features: int = 1000,
    seed: Seed = 0,
) -> Margin:
    """gamma = max over psi, |psi(z)| <= 1, of min_i q E_z y_i <psi(z), x_i> 1[z.x_i >= 0].

    q = 1 - drop_prob and z ~ N(0, I). (Assumption 2 calls psi linear; a bounded linear map is 0,
    any map is meant.) By duality gamma / q = min over probabilities p of E_z |s_p(z)|,
    s_p(z) = sum_i p_i y_i x_i 1[z.x_i >= 0], and psi = s_p / |s_p| is the best answer to p: its
    margins are the gradient in p. The dual is minimized on `features` samples of z; both sides are
    then measured on new ones, and hold for whatever p was found. It is the margin of these rows: a
    law from which they are a sample has a smaller one.

    Parameters
    ----------
    X, y
        Inputs of norm 1, samples x features, and their labels, -1 or 1.
    """
    from scipy.optimize import minimize

    X = doubles("X", X, ndim=2)
    norms = np.linalg.norm(X, axis=1)
    off = np.abs(norms - 1).max()
    if not off <= 1e-6:
        raise InputError(
            f"rows of X must have norm 1, got norms from {norms.min():.4g} to {norms.max():.4g}; "
            "divide each row by its norm"
        )
    q = 1 - _check.drop_prob(drop_prob)
    rng = generator(seed)
    count = whole("features", features, 2)
    signs = labels(y, len(X))
    signed = signs[:, None] * X

    def answer(gates: Floats, p: Floats) -> tuple[Floats, Floats]:
        """Return |s_p(z)|, and y_i <psi(z), x_i> 1[z.x_i >= 0] for psi = s_p / |s_p|."""
        s = gates @ (p[:, None] * signed)
        lengths = np.linalg.norm(s, axis=1)
        divisors = np.where(lengths > 0, lengths, 1)
        psi = s / divisors[:, None]
        margins = gates * (psi @ signed.T)
        return lengths, margins

    def sampled_gates(n: int) -> Floats:
        z = rng.standard_normal((n, X.shape[1]))
        return np.where(z @ X.T >= 0, 1.0, 0.0)

    def dual(p: Floats, gates: Floats) -> tuple[float, Floats]:
        lengths, margins = answer(gates, p)
        slope = margins.mean(axis=0)
        return float(lengths.mean()), slope

    n = len(X)
    simplex = {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like}
    found = minimize(
        dual,
        np.full(n, 1 / n),
        args=(sampled_gates(count),),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * n,
        constraints=[simplex],
    )
    p = np.maximum(found.x, 0)
    p /= p.sum()
    total = FRESH * count
    lengths, margins = answer(sampled_gates(total), p)
    error = 3 / np.sqrt(total)
    least = margins.mean(axis=0)
    least -= error * margins.std(axis=0)
    upper = lengths.mean() + error * lengths.std()
    lower = q * float(least.min())
    return Margin(lower, q * float(upper), p)


@dataclass(frozen=True, repr=False, eq=False)
class Guarantee(Result):
    """What Theorems 14 and 15 say about a run of Algorithm 4 with given width and steps.

    Attributes
    ----------
    full_error
        4 lam^2 / (eta T): bound on the mean over iterates of the expected error of the full
        network (Theorem 14).
    subnetwork_error
        12 lam^2 / (eta T) + 7.1 ln(2/delta) / T: bound on the mean error of the sub-networks
        visited, with probability 1 - delta (Theorem 15).
    lam, max_norm
        lam = 5 ln(2 eta T) / gamma + sqrt(44 ln(24 eta c sqrt(m) T^2)) / gamma, and
        c = sqrt(d) + max(1/(14 gamma^2), 2 sqrt(ln m)) + 1.
    displacement
        7 lam / (2 gamma sqrt(m)): how far a row may move (Lemma 13).
    needed_width
        2401 lam^2 / gamma^6, which `width` must reach for any of this to be proved.
    applies
        Whether it does.
    vacuous
        Whether the bounds hold trivially (full_error at least 1) or nothing is proved.
    """

    full_error: float
    subnetwork_error: float
    lam: float
    max_norm: float
    displacement: float
    needed_width: float
    applies: bool
    vacuous: bool
    margin: float
    width: float
    steps: float
    learning_rate: float


def guarantee(
    *,
    margin: float,
    dimension: int,
    width: float,
    steps: float,
    learning_rate: float = math.log(2),
    delta: float = 0.05,
) -> Guarantee:
    """Return the bounds of Theorems 14 and 15 for `steps` steps at this width.

    Assumes inputs of norm 1, the (q, gamma)-margin assumption (see `margin`), a learning
    rate of at most ln 2, and first weights no longer than c - 1. Theorem 15 prints 6 ln(1/delta)/T
    where its proof gives 2/(3 - e) = 7.1 times it; and it spends delta twice, on Lemma 13 and on a
    martingale, so that each has half of it here.
    """
    gamma, eta, T = _checked(margin, learning_rate, steps)
    m = number("width", width, 1.0)
    delta = number("delta", delta, exclusive=True)
    if delta >= 1:
        raise InputError(f"delta must lie in (0, 1), got {delta!r}")
    c = math.sqrt(whole("dimension", dimension)) + 1
    row = 2 * math.sqrt(math.log(m))
    c += max(1 / (14 * gamma**2), row)
    time = max(2 * eta * T, 1.0)
    lam = 5 * math.log(time) / gamma
    inside = math.log(24 * eta * c)
    inside += math.log(m) / 2 + 2 * math.log(T)
    lam += math.sqrt(44 * max(inside, 0.0)) / gamma
    full = 4 * lam**2 / (eta * T)
    needed = 2401 * lam**2 / gamma**6
    return Guarantee(
        full,
        3 * full + 7.1 * math.log(2 / delta) / T,
        lam,
        c,
        7 * lam / (2 * gamma * math.sqrt(m)),
        needed,
        m >= needed,
        m < needed or full >= 1,
        gamma,
        m,
        T,
        eta,
    )


def required(
    *,
    epsilon: float,
    margin: float,
    dimension: int,
    learning_rate: float = math.log(2),
    delta: float | None = None,
) -> Guarantee:
    """Return the smallest width and number of steps for which the error is proved to be epsilon.

    Of the full network by Theorem 14, or of sub-networks by Theorem 15 if `delta` is given. Width
    and steps enter their own conditions through logarithms, so they are found by iteration.
    """
    epsilon = number("epsilon", epsilon, exclusive=True)
    gamma, eta, _ = _checked(margin, learning_rate, 1)
    width = steps = 1.0
    for _ in range(500):
        found = guarantee(
            margin=gamma,
            dimension=dimension,
            width=width,
            steps=steps,
            learning_rate=eta,
            delta=0.05 if delta is None else delta,
        )
        error = found.full_error if delta is None else found.subnetwork_error
        if found.applies and error <= epsilon:
            return found
        # Both maps grow slower than their argument, and neither number ever falls.
        needed_steps = steps * (error / epsilon)
        if math.inf in (found.needed_width, needed_steps):
            break
        width = max(width, math.ceil(found.needed_width))
        steps = max(steps, math.ceil(needed_steps))
    raise InputError(
        f"no width and steps were found for epsilon {epsilon:g} and margin {gamma:g}; "
        "they exceed the range of floating-point numbers"
    )


def _checked(
    margin: float, learning_rate: float, steps: float
) -> tuple[float, float, float]:
    gamma = number("margin", margin, exclusive=True)
    eta = number("learning_rate", learning_rate, exclusive=True)
    if not SMALLEST <= gamma <= 1:
        raise InputError(f"margin must lie between {SMALLEST:g} and 1, got {margin!r}")
    if eta > math.log(2) * (1 + 1e-12):
        raise InputError(f"learning_rate must be at most ln 2, got {learning_rate!r}")
    return gamma, eta, number("steps", steps, 1.0)
