"""What rows that are alike know of a missing entry, beside the mean and covariance of all rows.

    z_aj + sum_k (w_k sum_b s_ab e_bj / (sum_b s_ab + 2 s)
                  + w'_k sum_b s_ab (z_bj - z_aj) / sum_b s_ab)

b are those of the k rows nearest to the filled row a that have column j, s_ab = exp(-2 d_ab / d_a)
with squared distances d (d_a the largest), s the mean of s_ab, and e_bj what the other entries of
row b do not tell of z_bj. Entries that are hidden give the weights w by least squares; where these
do not clearly predict better than 0 on the other half of them, they are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import ndtri

from overt._types import Array, Floats
from overt.completion.kernels.full import fill_rows, unexplained

NEAREST = (5, 20)
"""Numbers of rows that are asked."""

DONORS = 2000
"""Rows of a table that are kept to be asked."""

HIDDEN, FEWEST = 0.1, 50
"""Share of the entries that is hidden to learn weights, and how many are needed."""

CLEAR = 2.0
"""Standard errors by which weights must predict better."""

LEVEL = 0.9
"""Of the intervals that hold what they say."""

BLOCK = 256
"""Rows that ask at once."""


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Rows that are asked: filled, what is unexplained of them, which entries they have."""

    rows: Floats
    errors: Floats
    seen: Floats
    weights: Floats
    narrower: float = 1.0  # what multiplies standard deviations where they are asked

    @classmethod
    def learn(cls, Z: Floats, missing: Array, mean: Floats, P: Floats) -> Self:
        """Return neighbors from a table, its holes, and the mean and precision of rows."""
        rng = np.random.default_rng(0)
        some = np.sort(rng.permutation(len(Z))[:DONORS])
        full, _ = cls._asked(Z[some], missing := missing[some], mean, P)
        Z = full.rows
        hidden = (rng.random(Z.shape) < HIDDEN) & ~missing
        count = np.count_nonzero(hidden)
        if count < FEWEST:
            return full
        trial, std = cls._asked(Z.copy(), missing | hidden, mean, P)
        A = np.column_stack([part[hidden] for part in trial._parts(trial.rows)])
        y, half = (Z - trial.rows)[hidden], rng.random(count) < 1 / 2
        gains = [y[i] ** 2 - (y[i] - A[i] @ _weights(A[~i], y[~i])) ** 2 for i in (half, ~half)]
        gain = np.concatenate(gains)
        if not gain.mean() > CLEAR * gain.std() / np.sqrt(count):
            return full
        weights = _weights(A, y)
        narrower = calibrated((y - A @ weights) / std[hidden])
        return cls(full.rows, full.errors, full.seen, weights, narrower)

    @classmethod
    def _asked(cls, Z: Floats, missing: Array, mean: Floats, P: Floats) -> tuple[Self, Floats]:
        """Return rows to be asked, filled in place, without weights, and how sure they are."""
        std = np.zeros_like(Z)
        fill_rows(Z, missing, mean, P, np.empty((0, 0)), std, np.zeros_like(P))
        errors = unexplained(Z, missing, mean, P)
        return cls(Z, errors, 1.0 - missing, np.zeros(2 * len(NEAREST))), std

    def correction(self, Z: Floats) -> Floats:
        """Return what to add to filled rows where they were missing."""
        if not self.weights.any():
            return np.zeros_like(Z)
        parts = zip(self.weights, self._parts(Z), strict=True)
        return np.asarray(sum(w * part for w, part in parts))

    def _parts(self, Z: Floats) -> list[Floats]:
        """Return what is weighted: residuals and differences, for each number of neighbors."""
        parts = [np.empty_like(Z) for _ in range(2 * len(NEAREST))]
        squares, most = np.sum(self.rows**2, axis=1), min(max(NEAREST), len(self.rows))
        for start in range(0, len(Z), BLOCK):
            z = Z[start : start + BLOCK]
            d = np.maximum(np.sum(z**2, axis=1)[:, None] + squares - 2 * z @ self.rows.T, 0)
            near = np.argpartition(d, most - 1, axis=1)[:, :most]
            d = np.take_along_axis(d, near, 1)
            order = np.argsort(d, axis=1, kind="stable")
            near, d = (np.take_along_axis(x, order, 1) for x in (near, d))
            for i, k in enumerate(NEAREST):
                s = np.exp(-2 * d[:, :k] / np.maximum(d[:, :k][:, -1:], 1e-300))[:, None, :]
                b = near[:, :k]
                total = (s @ self.seen[b])[:, 0]
                told = (s @ self.errors[b])[:, 0] / (total + 2 * s.mean(axis=2))
                alike = (s @ (self.seen[b] * self.rows[b]))[:, 0] / np.maximum(total, 1e-300)
                parts[2 * i][start : start + BLOCK] = told
                parts[2 * i + 1][start : start + BLOCK] = np.where(total > 0, alike - z, 0)
        return parts


def calibrated(errors: Floats) -> float:
    """Return what makes standard deviations hold nine tenths of errors that are given in them."""
    return float(np.quantile(np.abs(errors), LEVEL) / ndtri((1 + LEVEL) / 2))


def _weights(A: Floats, y: Floats) -> Floats:
    """Least squares, with as much ridge as sqrt(N) entries of typical size."""
    ridge = np.sqrt(len(y)) * np.mean(A**2) + 1e-12
    return np.asarray(np.linalg.solve(A.T @ A + ridge * np.eye(A.shape[1]), A.T @ y))
