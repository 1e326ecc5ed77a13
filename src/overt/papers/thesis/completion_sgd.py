"""Completion by the thesis's own algorithm (section 4.6): SGD with factors dropped at random."""

from __future__ import annotations

import numpy as np

from overt._check import InputError
from overt._compiled import njit
from overt._types import Array
from overt.entries import Entries

DIVERGED = 1e12
"""Loss beyond which steps are too large; values have variance near 1."""


class SGDCompletion:
    """Factors and biases of a matrix, started as He et al. do; `step` is one epoch.

    Rows are (factors, row bias, column bias), in which the other side's bias is pinned to 1.
    """

    def __init__(
        self,
        entries: Entries,
        n_factors: int,
        drop_prob: float,
        learning_rate: float,
        batch_size: int,
        seed: int,
    ) -> None:
        self.entries = entries
        self.center = float(entries.values.mean())
        self.n_factors = n_factors
        self.drop_prob = drop_prob
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.seed = seed
        self.history: list[float] = []
        rng = np.random.default_rng([seed, 0])
        self.means = []
        for side, count in enumerate(entries.shape):
            w = rng.normal(0, np.sqrt(2 / n_factors), (count, n_factors + 2))
            w[:, n_factors + side] = 0
            w[:, n_factors + 1 - side] = 1
            self.means.append(w)

    def step(self) -> float:
        """Pass once over the entries in a new random order; return the mean batch loss."""
        rng = np.random.default_rng([self.seed, len(self.history) + 1])
        loss = epoch(
            rng.permutation(len(self.entries)),
            self.entries.rows,
            self.entries.cols,
            self.entries.values - self.center,
            *self.means,
            self.n_factors,
            self.drop_prob,
            self.learning_rate,
            self.batch_size,
            np.uint64(rng.integers(1 << 62)),
        )
        self.history.append(float(loss))
        if not loss < DIVERGED:
            raise InputError(
                f"the loss is {loss:.3g} after {len(self.history)} passes with learning_rate "
                f"{self.learning_rate:g}; take a smaller one"
            )
        return self.history[-1]


@njit(error_model="numpy")
def epoch(
    order: Array,
    rows: Array,
    cols: Array,
    values: Array,
    U: Array,
    V: Array,
    n_factors: int,
    drop_prob: float,
    learning_rate: float,
    batch_size: int,
    state: np.uint64,
) -> float:
    """Take one step for each batch of `order`, in place; return the mean squared error met.

    Gradients of a batch are all taken at its start: steps are stored and then applied.
    """
    width = U.shape[1]
    left = np.empty((batch_size, width), U.dtype)
    right = np.empty((batch_size, width), U.dtype)
    mask = np.ones(width)
    keep = 1 / (1 - drop_prob)
    threshold = np.uint64(drop_prob * 2.0**32)
    total = 0.0
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        rate = 2 * learning_rate / len(batch)
        for e in range(len(batch)):
            a = rows[batch[e]]
            b = cols[batch[e]]
            predicted = 0.0
            for i in range(width):
                if drop_prob > 0 and i < n_factors:
                    state ^= state << np.uint64(13)
                    state ^= state >> np.uint64(7)
                    state ^= state << np.uint64(17)
                    mask[i] = 0.0 if (state >> np.uint64(32)) < threshold else keep
                predicted += U[a, i] * V[b, i] * mask[i]
            error = values[batch[e]] - predicted
            total += error * error
            for i in range(width):
                left[e, i] = rate * error * V[b, i] * mask[i]
                right[e, i] = rate * error * U[a, i] * mask[i]
        for e in range(len(batch)):
            a = rows[batch[e]]
            b = cols[batch[e]]
            for i in range(width):
                pinned_left = n_factors < width and i == n_factors + 1
                pinned_right = n_factors < width and i == n_factors
                if not pinned_left:
                    U[a, i] += left[e, i]
                if not pinned_right:
                    V[b, i] += right[e, i]
    return total / len(order)
