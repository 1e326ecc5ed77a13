"""Thesis, Theorems 14 and 15: the width and the number of steps that dropout provably needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from overt._check import InputError, number, whole
from overt.results import Result

SMALLEST = 1e-30
"""Margins below this need widths beyond the range of floating-point numbers."""


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

    Assumes inputs of norm 1, the (q, gamma)-margin assumption (see `overt.relu.margin`), a learning
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
    c += max(1 / (14 * gamma**2), 2 * math.sqrt(math.log(m)))
    lam = 5 * math.log(max(2 * eta * T, 1.0)) / gamma
    inside = math.log(24 * eta * c) + math.log(m) / 2 + 2 * math.log(T)
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
        needed = found.needed_width, steps * (error / epsilon)
        if math.inf in needed:
            break
        width, steps = (
            max(a, math.ceil(b)) for a, b in zip((width, steps), needed, strict=True)
        )
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
