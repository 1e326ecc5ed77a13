"""Draws of factors that are averaged over, and rows that were not fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from overt._types import Array, Bools, Floats
from overt.completion.forms.problem import CompletionProblem
from overt.completion.kernels import dots

PAIRS = 4000
BATCHES = 10
"""Pairs on which draws are compared with the learned means, and parts whose averages are."""


class Draws(NamedTuple):
    """Draws of V, means of U given them, and the laws (m, P, sigma^2, H) of these means.

    W are draws of U: how far the products W V' scatter is how uncertain a prediction is.
    """

    U: Array  # (draws, count + 1, width)
    V: Array
    W: Array
    mean: Floats  # (draws, unknowns)
    precision: Floats
    noise: Floats
    H: Floats  # (draws, scores, unknowns)
    share: Floats  # what each counts; the learned means count the rest of 1
    rows: Bools  # whether a row has entries, (count + 1); draws say nothing of those without
    cols: Bools

    @classmethod
    def stacked(
        cls,
        draws: Sequence[Mapping[str, Array]],
        problem: CompletionProblem,
        means: Sequence[Array],
    ) -> Draws:
        """Bring draws back to the units of the values; a row never seen is at its prior mean."""
        columns, U, V = problem.columns, *problem.columns.units(problem.scale)
        share = np.full(len(draws), together(draws, problem, means) / len(draws))
        u = U[columns.free(0)]
        stack = {name: np.stack([draw[name] for draw in draws]) for name in draws[0]}
        unseen = [columns.filled(0, mean)[0] for mean in stack["mean"]]
        left = np.concatenate([stack.pop("U"), np.array(unseen)[:, None]], axis=1)
        drawn = np.concatenate([stack.pop("W"), np.array(unseen)[:, None]], axis=1)
        seen = problem.by_col.counts > 0
        unseen = [draw[seen].mean(axis=0, dtype=np.float64) for draw in stack["V"]]
        right = np.concatenate([stack.pop("V"), np.array(unseen)[:, None]], axis=1)
        noise = stack["noise"][:, 0] * problem.scale**2
        return cls(
            (left * U).astype(problem.dtype),
            (right * V).astype(problem.dtype),
            (drawn * U).astype(problem.dtype),
            stack["mean"] * u,
            stack["precision"] / u**2,
            noise,
            stack["H"] * u,
            share,
            *(np.append(group.counts > 0, False) for group in (problem.by_row, problem.by_col)),
        )


def together(
    draws: Sequence[Mapping[str, Array]], problem: CompletionProblem, means: Sequence[Array]
) -> float:
    """Return what all draws together count beside the learned means: d^2 / (d^2 + e^2).

    Their average is off by e for want of draws, which batches of it tell, and the means by d, which
    is what more than e lies between the two; of both, this weight is the closest to the limit of
    many draws. It is taken over rows and columns as often as they have entries. One draw does not
    tell its e.
    """
    rows, partners = problem.by_row.sample(PAIRS)
    cols = np.roll(partners, PAIRS // 2)
    found = np.empty((len(draws) + 1, PAIRS))
    for (U, V), out in zip([means, *((d["U"], d["V"]) for d in draws)], found, strict=True):
        dots(rows, cols, U, V, out)
    batches = np.array_split(found[1:], min(BATCHES, len(draws)))
    each = np.array([batch.mean(axis=0) for batch in batches])
    apart = float(np.mean((found[1:].mean(axis=0) - found[0]) ** 2))
    if len(each) < 2 or not apart:
        return 0.0
    return max(0.0, 1 - float(each.var(axis=0, ddof=1).mean()) / len(each) / apart)


@dataclass(frozen=True, eq=False)
class Row:
    """A row that was not fitted: mean and covariance, its noise, and its mean for each draw."""

    mean: Floats
    covariance: Floats
    variance: float
    drawn: Floats  # (draws, width)
    spreads: Floats  # its covariance for each draw, (draws, width, width)
    count: int  # entries it was solved from
