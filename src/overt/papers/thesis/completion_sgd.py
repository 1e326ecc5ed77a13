"""Completion by the thesis's own algorithm (section 4.6): SGD with factors dropped at random."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overt._check import Floats, InputError
from overt.entries import Entries

DIVERGED = 1e12
"""Loss beyond which steps are too large; values have variance near 1."""


def descend(
    entries: Entries,
    n_factors: int,
    drop_prob: float,
    learning_rate: float,
    batch_size: int,
    epochs: int,
    seed: int,
) -> Iterator[tuple[float, list[Floats]]]:
    """Yield the mean of the values and both sides' weights after each epoch.

    Rows are (factors, row bias, column bias), started as He et al. do; the other side's bias is
    pinned to 1. Gradients of a batch are all taken at its start.
    """
    rng = np.random.default_rng(seed)
    center = float(entries.values.mean())
    sides = []
    free = np.ones((2, n_factors + 2))
    for side, count in enumerate(entries.shape):
        deviation = np.sqrt(2 / n_factors)
        w = rng.normal(0, deviation, (count, n_factors + 2))
        w[:, n_factors + side] = 0
        w[:, n_factors + 1 - side] = 1
        free[side, n_factors + 1 - side] = 0
        sides.append(w)
    U, V = sides
    for epoch in range(epochs):
        order = rng.permutation(len(entries))
        total = 0.0
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            a = entries.rows[batch]
            b = entries.cols[batch]
            shape = (len(batch), n_factors)
            mask = np.ones((len(batch), n_factors + 2))
            kept = rng.random(shape) >= drop_prob
            mask[:, :n_factors] = kept / (1 - drop_prob)
            left = U[a]
            right = V[b]
            products = left * mask * right
            predicted = center + products.sum(axis=1)
            error = entries.values[batch] - predicted
            rate = 2 * learning_rate / len(batch)
            step = rate * error[:, None] * mask
            np.add.at(U, a, step * right * free[0])
            np.add.at(V, b, step * left * free[1])
            total += float(error @ error)
        if not total < DIVERGED * len(order):
            raise InputError(
                f"the loss is {total / len(order):.3g} after {epoch + 1} passes with "
                f"learning_rate {learning_rate:g}; take a smaller one"
            )
        yield center, sides
