"""The paper's own algorithm: minibatch SGD on the squared error with columns dropped at random.

Every example of a batch draws its own mask z over the factors and steps along the gradient of
mean over the batch of (y - sum_i u_i v_i z_i / (1 - drop_prob))^2 (thesis, section 4.6: He
initialization, learning rate 1, batches of 2000). Biases are never dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numba import njit

from overt._types import Array
from overt.completion.engine import Engine
from overt.completion.problem import Problem


@dataclass
class Descent:
    """The stochastic form's state; `step` is one epoch."""

    problem: Problem
    means: list[Array]
    drop_prob: float
    learning_rate: float
    batch_size: int
    seed: int
    epoch: int = 0
    history: list[float] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        problem: Problem,
        drop_prob: float,
        seed: int,
        learning_rate: float = 1.0,
        batch_size: int = 2000,
    ) -> Descent:
        """Return He-initialized factors (standard deviation sqrt(2 / n_factors))."""
        rng = np.random.default_rng([seed, 0])
        k = problem.n_factors
        means = [
            rng.normal(0, np.sqrt(2 / k), (count, problem.width)).astype(problem.dtype)
            for count in problem.shape
        ]
        if problem.biases:
            for side, w in enumerate(means):
                w[:, k + side], w[:, k + 1 - side] = 0, 1
        return cls(problem, means, drop_prob, learning_rate, batch_size, seed)

    def step(self, engine: Engine) -> float:
        """Pass once over the entries in a new random order; return the mean batch loss."""
        self.epoch += 1
        rng = np.random.default_rng([self.seed, self.epoch])
        group = self.problem.by_row
        owner = np.repeat(np.arange(len(group.counts)), group.counts)
        loss = epoch(
            rng.permutation(self.problem.n_ratings),
            owner,
            group.indices,
            group.values,
            *self.means,
            self.problem.n_factors,
            self.drop_prob,
            self.learning_rate,
            self.batch_size,
            np.uint64(rng.integers(1 << 62)),
        )
        self.history.append(float(loss))
        return self.history[-1]

    def settled(self, tol: float) -> bool:
        """Return False: all epochs are taken, unless the loss is no longer a number."""
        return bool(self.history) and not np.isfinite(self.history[-1])


@njit(nogil=True, cache=True, error_model="numpy")
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
            a, b = rows[batch[e]], cols[batch[e]]
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
            a, b = rows[batch[e]], cols[batch[e]]
            for i in range(width):
                pinned_left = n_factors < width and i == n_factors + 1
                pinned_right = n_factors < width and i == n_factors
                if not pinned_left:
                    U[a, i] += left[e, i]
                if not pinned_right:
                    V[b, i] += right[e, i]
    return total / len(order)
