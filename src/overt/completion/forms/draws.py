"""Draws of factors that are averaged over, and rows that were not fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from overt._types import Array, Floats
from overt.completion.forms.problem import CompletionProblem

MEANS_COUNT = 40
"""Draws that the learned means count like (chosen on parts of the data that are not reported)."""


class Draws(NamedTuple):
    """Draws of V, means of U given them, and the laws (m, P, sigma^2, H) of these means."""

    U: Array  # (draws, count + 1, width)
    V: Array
    mean: Floats  # (draws, unknowns)
    precision: Floats
    noise: Floats
    H: Floats  # (draws, scores, unknowns)

    @property
    def weight(self) -> float:
        """How much all draws together count beside the learned means: noise falls like 1/n."""
        return len(self.U) / (len(self.U) + MEANS_COUNT)

    @classmethod
    def stacked(cls, draws: Sequence[Mapping[str, Array]], problem: CompletionProblem) -> Draws:
        """Bring draws back to the units of the values; a row never seen is at its prior mean."""
        columns, U, V = problem.columns, *problem.columns.units(problem.scale)
        u = U[columns.free(0)]
        stack = {name: np.stack([draw[name] for draw in draws]) for name in draws[0]}
        unseen = [columns.filled(0, mean)[0] for mean in stack["mean"]]
        left = np.concatenate([stack.pop("U"), np.array(unseen)[:, None]], axis=1)
        seen = problem.by_col.counts > 0
        unseen = [draw[seen].mean(axis=0, dtype=np.float64) for draw in stack["V"]]
        right = np.concatenate([stack.pop("V"), np.array(unseen)[:, None]], axis=1)
        noise = stack["noise"][:, 0] * problem.scale**2
        return cls(
            (left * U).astype(problem.dtype), (right * V).astype(problem.dtype),
            stack["mean"] * u, stack["precision"] / u**2, noise, stack["H"] * u,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Row:
    """A row that was not fitted: mean and covariance, its noise, and its mean for each draw."""

    mean: Floats
    covariance: Floats
    variance: float
    drawn: Floats  # (draws, width)
