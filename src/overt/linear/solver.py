"""Factors of two-layer networks: closed forms where there are any, descent from them elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from overt import equalize
from overt._types import Floats
from overt.linear.blocks import block_factors
from overt.linear.bounds import Envelope, shrink
from overt.linear.descent import Value, descend
from overt.linear.quadratic import Leading
from overt.noise import DropBlock, DropConnect, Dropout, Noise

Pair = tuple[Floats, Floats]

STARTS = 8
"""Descents tried where theory gives no factors that reach the bound."""


def proposals(top: Leading, envelope: Envelope, noise: Noise, width: int) -> list[Pair]:
    """Return factors (U, P) of the map that attains the envelope's bound, the best way known first.

    For Dropout with one probability and for DropConnect they are a global optimum.
    """
    a = shrink(top.s, envelope)
    kept = a > 1e-14 * max(float(a[0]), 1e-300)
    left, a, right = top.left[:, kept], a[kept], top.right[:, kept]
    if len(a) == 0:
        return [(np.zeros((len(left), width)), np.zeros((len(right), width)))]
    match noise:
        case DropBlock(placement="grid", block_size=b):
            return [block_factors(left, a, right, width, b, seed) for seed in range(STARTS)]
        case Dropout(drop_prob=tuple()):
            return [_shared_factors(left, a, right, noise.relative_variance(width))]
    return [equalize.balanced_factors(left, a, right, width)]


def closed_form(noise: Noise) -> bool:
    """Return whether the first proposal is a global optimum, whatever the width."""
    return isinstance(noise, DropConnect) or (
        isinstance(noise, Dropout) and not isinstance(noise.drop_prob, tuple)
    )


def refine(
    value: Value, starts: Sequence[Sequence[Floats]], reached: Callable[[float], bool]
) -> Sequence[Floats]:
    """Return the lowest point of descents from the starts, then from random ones of their size.

    Stops as soon as reached(objective): the bound is attained and nothing can be gained.
    """
    rng = np.random.default_rng(0)
    sizes = [np.sqrt(np.mean(W**2)) for W in starts[0]]
    random = [
        [size * rng.standard_normal(W.shape) for size, W in zip(sizes, starts[0], strict=True)]
        for _ in range(STARTS - len(starts))
    ]
    best, lowest = starts[0], value(*starts[0])[0]
    for start in [*starts, *random]:
        if reached(lowest):
            break
        found = descend(value, start)
        if value(*found)[0] < lowest:
            best, lowest = found, value(*found)[0]
    return best


def _shared_factors(left: Floats, a: Floats, right: Floats, strengths: Floats) -> Pair:
    """Return factors whose units carry shares of |A|_* inverse to their strengths, if possible.

    That attains |A|_*^2 / sum_i (1/lam_i); by Schur and Horn it is possible iff the spectrum
    majorizes the shares. Otherwise they are balanced, as a start for descent.
    """
    width = len(strengths)
    padded = np.concatenate([a, np.zeros(width - len(a))])
    if strengths.min() > 0:
        shares = (1 / strengths) / np.sum(1 / strengths) * a.sum()
        if equalize.majorization_excess(padded, shares) <= 1e-12 * a.sum():
            Q = equalize.schur_horn(padded, shares)[: len(a)]
            return (left * np.sqrt(a)) @ Q, (right * np.sqrt(a)) @ Q
    return equalize.balanced_factors(left, a, right, width)
