"""Thesis, Algorithm 4: dropout training of the hidden layer with max-norm projection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt import _check
from overt._check import (
    Floats,
    InputError,
    Seed,
    bounded,
    doubles,
    generator,
    number,
    plain_array,
    record_steps,
    whole,
)
from overt._running import meter
from overt.results import Result, Status

MASK_ENTRIES = 2**22
"""Entries of the table of masks (steps x width) that are sampled at a time."""


@dataclass(frozen=True, repr=False, eq=False)
class LazyRun(Result):
    """The records of a run of Algorithm 4.

    Attributes
    ----------
    steps
        Steps taken before each record; the first is 0.
    full_error
        Misclassification of the full network f(x; q W_t) on the held-out points.
    visited_error
        That of the sub-network which the last step trained, by its mask B_t. Theorem 15 takes it
        one step earlier, g(W_t; x, B_t).
    unseen_error
        Mean over masks that training never samples.
    loss
        Mean logistic loss of the steps since the record before; NaN at 0.
    moved
        Largest distance of a row from its start.
    flipped
        Share of (unit, held-out point) pairs whose activation differs from the start's.
    projections
        How often a row was cut to max_norm, in all.
    W, a
        Final weights after scaling by q (width x inputs), and top layer (width,):
        f(x) = a . sigma(W x) / sqrt(width).
    """

    steps: Floats
    full_error: Floats
    visited_error: Floats
    unseen_error: Floats
    loss: Floats
    moved: Floats
    flipped: Floats
    projections: int
    max_norm: float
    W: Floats
    a: Floats
    status: Status

    def predict(self, X: Floats) -> Floats:
        """Return f(x) for the rows of X."""
        X = doubles("X", X, ndim=2)
        if X.shape[1] != self.W.shape[1]:
            raise InputError(f"X must have {self.W.shape[1]} columns, got {X.shape[1]}")
        return np.asarray(np.maximum(X @ self.W.T, 0) @ self.a / math.sqrt(len(self.a)))


@bounded
def train_lazy(
    X: Floats,
    y: Any,
    *,
    width: int,
    drop_prob: float = 0.5,
    steps: int = 10_000,
    learning_rate: float = 0.5,
    max_norm: float | None = None,
    holdout: tuple[Floats, Any] | None = None,
    masks: int = 10,
    records: int | Sequence[int] = 11,
    seed: Seed = 0,
) -> LazyRun:
    """Train f(x) = a . sigma(W x) / sqrt(m) by Algorithm 4 (thesis, section 5.2).

        w_r ~ N(0, I), a_r = +-1 fixed;  B_t ~ Bernoulli(q) per unit
        W <- project(W - eta grad l(y_t a'B_t sigma(W x_t) / sqrt(m)));  output q W

    with l(z) = log(1 + e^-z), q = 1 - drop_prob and rows projected on the ball of radius c. Every
    step samples one row of X with replacement. Theorems 14 and 15 assume |x| = 1 and eta <= ln 2.

    Parameters
    ----------
    X, y
        Training inputs (samples x features) and labels, -1 or 1.
    width, drop_prob, steps, learning_rate
        m, 1 - q, T and eta.
    max_norm
        c; sqrt(d) + 2 sqrt(ln m) + 1 if None, which the first weights obey with probability
        1 - 1/m, with 1 to spare.
    holdout
        Inputs and labels on which errors are measured; the training points if None.
    masks
        Number of masks that training does not use, for `unseen_error`.
    records
        Number of evenly spaced records, or their steps.
    seed
        Int or numpy Generator.
    """
    from overt.relu import kernels  # on first use: compiled code needs numba

    X = np.ascontiguousarray(doubles("X", X, ndim=2))
    y = labels(y, len(X))
    X_test, y_test = (X, y) if holdout is None else _pair(holdout)
    if X_test.shape[1] != X.shape[1]:
        raise InputError(
            f"holdout inputs must have {X.shape[1]} columns, got {X_test.shape[1]}"
        )
    m, T = whole("width", width), whole("steps", steps)
    q, eta = (
        1 - _check.drop_prob(drop_prob),
        number("learning_rate", learning_rate, exclusive=True),
    )
    default = math.sqrt(X.shape[1]) + 2 * math.sqrt(math.log(m)) + 1
    c = default if max_norm is None else number("max_norm", max_norm, exclusive=True)
    ends = sorted(
        {0, *record_steps(records, T, lambda count: np.linspace(0, T, count)), T}
    )

    start, order, noise, unseen = generator(seed).spawn(4)
    W, a = start.normal(size=(m, X.shape[1])), start.choice((-1.0, 1.0), m)
    first, watch = W.copy(), unseen.random((whole("masks", masks), m)) < q
    gates = X_test @ first.T > 0

    def measure(visited: Any) -> tuple[Any, ...]:
        Z = X_test @ W.T
        H = np.maximum(Z, 0)
        full, seen, others = (
            np.mean(y_test[:, None] * (H @ (a * b).T) <= 0)
            for b in (np.ones((1, m)), visited[None], watch)
        )
        moved = np.sqrt(np.max(np.sum((W - first) ** 2, axis=1)))
        return full, seen, others, moved, np.mean((Z > 0) != gates)

    table = [(*measure(noise.random(m) < q), math.nan)]
    done, shrunk, status = 0, 0, Status.FINISHED
    with meter("dropout", T) as bar:
        try:
            for end in ends[1:]:
                loss, since = 0.0, end - done
                while done < end:
                    size = min(end - done, max(1, MASK_ENTRIES // m))
                    drawn = noise.random((size, m)) < q
                    margins = np.empty(size)
                    rows = order.integers(0, len(X), size)
                    shrunk += kernels.descend(W, a, X, y, rows, drawn, eta, c, margins)
                    loss += float(np.logaddexp(0, -margins).sum())
                    done += size
                    bar.advance(size)
                table.append((*measure(drawn[-1]), loss / since))
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
    full, seen, others, moved, flipped, losses = np.array(table).T
    taken = np.array(ends[: len(table)], dtype=np.float64)
    return LazyRun(
        taken, full, seen, others, losses, moved, flipped, shrunk, c, q * W, a, status
    )


def _pair(holdout: Any) -> tuple[Floats, Floats]:
    """Return inputs and labels to measure errors on."""
    if not isinstance(holdout, (tuple, list)) or len(holdout) != 2:
        raise InputError(
            f"holdout must be a pair (inputs, labels), got {type(holdout).__name__}"
        )
    X = doubles("holdout", holdout[0], ndim=2)
    return X, labels(holdout[1], len(X))


def labels(y: Any, n: int) -> Floats:
    """Return y as n numbers, each -1 or 1."""
    values = plain_array("y", y)
    if values.shape != (n,):
        raise InputError(
            f"y must be {n} labels, each -1 or 1, got shape {values.shape}"
        )
    if values.dtype.kind not in "biuf" or not np.isin(values, (-1, 1)).all():
        seen = ", ".join(dict.fromkeys(repr(v) for v in values.tolist()))
        raise InputError(f"y must be {n} labels, each -1 or 1, got {seen:.60}")
    return values.astype(np.float64)
