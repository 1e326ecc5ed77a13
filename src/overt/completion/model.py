"""A fitted completion model: what is needed to predict, and nothing of how it was fitted.

The prediction of entry (a, b) is center + u_a . v_b over factors and biases. Every array of rows
has one more row at its end: what is expected of a row never seen (its prior mean), so that index -1
stands for "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overt._types import Array, Floats, Ints
from overt.completion import kernels
from overt.completion.fixed import Fixed
from overt.completion.learned import Learned, Prior
from overt.completion.problem import Problem
from overt.completion.reference import pack, unpack
from overt.completion.sampled import Sampled
from overt.completion.sgd import Descent


@dataclass(frozen=True)
class Model:
    """Rows of both sides with their spread.

    Attributes
    ----------
    means
        (row side, column side), each (count + 1, width).
    spread
        "full": `tables` are packed row covariances. "diagonal": they are variances. "dropout":
        there are none, and `strength` (lam of each column) gives the spread of dropout.
    priors
        Of both sides, over the unknown columns of a row.
    draws
        Arrays like `means`, one per draw; predictions are averaged over them.
    """

    n_factors: int
    biases: bool
    center: float
    noise: float
    means: tuple[Array, Array]
    tables: tuple[Array, Array]
    spread: str
    strength: Floats
    priors: tuple[Prior, Prior]
    low: float
    high: float
    draws: tuple[Array, Array] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the completed matrix."""
        return len(self.means[0]) - 1, len(self.means[1]) - 1

    @property
    def width(self) -> int:
        """Number of columns of the factors, biases included."""
        return int(self.means[0].shape[1])

    def free(self, side: int) -> Ints:
        """Return the columns that are unknowns of a row of this side."""
        columns = np.arange(self.width)
        return np.delete(columns, self.n_factors + 1 - side) if self.biases else columns

    def predict(self, rows: Array, cols: Array) -> Floats:
        """center + u_a . v_b, within the scale's ends."""
        total, one = np.zeros(len(rows)), np.empty(len(rows))
        for U, V, weight in self._terms():
            kernels.dots(rows, cols, U, V, one)
            total += weight * one
        return np.clip(self.center + total, self.low, self.high)

    def variance(self, rows: Array, cols: Array) -> Floats:
        """Predictive variance: noise + Var(u.v) under the rows' spread."""
        out = np.empty(len(rows))
        U, V = self.means
        if self.spread == "full":
            kernels.spreads(rows, cols, U, V, *self.tables, out)
        elif self.spread == "diagonal":
            SU, SV = self.tables
            kernels.dots(rows, cols, U * U + SU, V * V + SV, out)
            exact = np.empty_like(out)
            kernels.dots(rows, cols, U * U, V * V, exact)
            out -= exact
        else:
            kernels.dots(rows, cols, U * U * self.strength, V * V, out)
        return np.maximum(out, 0) + self.noise

    def block(self, rows: Array, *, clip: bool = True) -> Floats:
        """Return the dense predictions of some rows for all known columns."""
        rows = np.asarray(rows)
        total = np.zeros((len(rows), self.shape[1]))
        for U, V, weight in self._terms():
            total += weight * (U[rows] @ V[:-1].T)
        total += self.center
        return np.clip(total, self.low, self.high, out=total) if clip else total

    def _terms(self) -> list[tuple[Array, Array, float]]:
        """Factors and weights of what is averaged: the learned means and all draws, half each.

        The means have no sampling noise and the draws have more factors; their errors differ, so
        that the two halves together do better than either.
        """
        if self.draws is None:
            return [(*self.means, 1.0)]
        U, V = self.draws
        return [(*self.means, 0.5), *((u, v, 0.5 / len(U)) for u, v in zip(U, V, strict=True))]

    def fold(self, partners: Array, values: Array, side: int = 0) -> tuple[Floats, Floats]:
        """Return mean and covariance of a row with these entries, everything else held."""
        free, prior = self.free(side), self.priors[side]
        W = self.means[1 - side][partners].astype(np.float64)
        second = W.T @ W + self.noise_of(1 - side, partners)
        noise = 1.0 if self.spread == "dropout" else self.noise
        P = prior.precision + second[np.ix_(free, free)] / noise
        right = W.T @ (np.asarray(values, dtype=float) - self.center)
        if self.biases:
            right = right - second[:, self.n_factors + 1 - side]
        w, S = np.ones(self.width), np.zeros((self.width, self.width))
        w[free] = np.linalg.lstsq(P, right[free] / noise + prior.precision @ prior.mean)[0]
        if self.spread != "dropout":
            S[np.ix_(free, free)] = np.linalg.inv(P)
        return w, S

    def influence(self, partners: Array, values: Array, col: int) -> Floats:
        """Return what each of a row's entries adds to its prediction for `col`.

        A row's mean is linear in its values: u = Prec^-1 (sum_b v_b (y_b - bias_b) / noise + ...),
        so entry b adds v_col' Prec^-1 v_b (y_b - center - bias_b) / noise.
        """
        free = self.free(0)
        W = self.means[1][partners].astype(np.float64)
        noise = 1.0 if self.spread == "dropout" else self.noise
        second = W.T @ W + self.noise_of(1, partners)
        P = self.priors[0].precision + second[np.ix_(free, free)] / noise
        residual = np.asarray(values, dtype=float) - self.center
        if self.biases:
            residual = residual - W[:, self.n_factors + 1]
        target = self.means[1][col].astype(np.float64)[free]
        return (W[:, free] @ np.linalg.lstsq(P, target)[0]) * residual / noise

    def noise_of(self, side: int, rows: Array) -> Floats:
        """Sum of the covariances of some rows of a side."""
        if self.spread == "full":
            total: Floats = unpack(self.tables[side][rows].sum(axis=0, dtype=np.float64))
            return total
        if self.spread == "diagonal":
            return np.diag(self.tables[side][rows].sum(axis=0, dtype=np.float64))
        W = self.means[side][rows].astype(np.float64)
        return np.diag(self.strength * (W**2).sum(axis=0))


def from_learned(form: Learned, limits: tuple[float, float], chain: Sampled | None) -> Model:
    """Bring a finished learned form back to the units of the values."""
    problem = form.problem
    units = _units(problem)
    i, j = np.tril_indices(problem.width)
    means, tables, priors = [], [], []
    for side in (0, 1):
        prior, free, c = form.priors[side], problem.free(side), units[side]
        scaled = Prior(prior.mean * c[free], prior.precision / np.outer(c[free], c[free]))
        unseen, S = np.ones(problem.width), np.zeros((problem.width, problem.width))
        unseen[free], S[np.ix_(free, free)] = scaled.mean, scaled.covariance
        table = form.tables[side] * (c[i] * c[j] if form.full else c * c).astype(problem.dtype)
        last = pack(S) if form.full else np.diag(S)
        means.append(_append(form.means[side] * c.astype(problem.dtype), unseen))
        tables.append(_append(table, last))
        priors.append(scaled)
    drawn = None
    if chain is not None and chain.draws:
        stacks = []
        for side in (0, 1):
            c = units[side].astype(problem.dtype)
            stack = np.empty((len(chain.draws), *means[side].shape), problem.dtype)
            for t, draw in enumerate(chain.draws):
                stack[t, :-1], stack[t, -1] = draw[side] * c, means[side][-1]
            stacks.append(stack)
        drawn = (stacks[0], stacks[1])
    return Model(
        problem.n_factors,
        problem.biases,
        problem.center,
        form.noise * problem.scale**2,
        (means[0], means[1]),
        (tables[0], tables[1]),
        "full" if form.full else "diagonal",
        np.zeros(problem.width),
        (priors[0], priors[1]),
        *limits,
        drawn,
    )


def from_point(form: Fixed | Descent, limits: tuple[float, float], ridge: float) -> Model:
    """Package factors that have no covariances."""
    problem = form.problem
    n = len(problem.free(0))
    unseen = [np.zeros(problem.width) for _ in (0, 1)]
    if problem.biases:
        for side, w in enumerate(unseen):
            w[problem.n_factors + 1 - side] = 1
    means = [_append(form.means[side], unseen[side]) for side in (0, 1)]
    strength = np.zeros(problem.width)
    strength[: problem.n_factors] = (
        form.strength[: problem.n_factors]
        if isinstance(form, Fixed)
        else form.drop_prob / (1 - form.drop_prob)
    )
    prior = Prior(np.zeros(n), ridge * np.eye(n))
    fitted = np.empty(problem.n_ratings)
    owner = np.repeat(np.arange(problem.shape[0]), problem.by_row.counts)
    kernels.dots(owner, problem.by_row.indices, *form.means, fitted)
    none = np.zeros((0, 0))
    return Model(
        problem.n_factors,
        problem.biases,
        problem.center,
        float(np.mean((problem.by_row.values - fitted) ** 2)),
        (means[0], means[1]),
        (none, none),
        "dropout",
        strength,
        (prior, prior),
        *limits,
    )


def _units(problem: Problem) -> tuple[Floats, Floats]:
    """Return what multiplies the columns of both sides to undo the scaling of the values."""
    k, s = problem.n_factors, problem.scale
    U, V = (np.full(problem.width, np.sqrt(s)) for _ in (0, 1))
    if problem.biases:
        U[k:], V[k:] = (s, 1), (1, s)
    return U, V


def _append(table: Array, row: Floats) -> Array:
    return np.concatenate([table, row[None].astype(table.dtype)])
