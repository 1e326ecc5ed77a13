"""Dropout with a fixed probability: the objective that it descends, solved exactly or by SGD.

    mean over entries of (y - u_a . v_b)^2 + lam sum_i U_ai^2 V_bi^2        (thesis, Proposition 3)

With V fixed, row a of U solves (sum_b v_b v_b' + lam diag(sum_b v_b o v_b)) u_a = sum_b y_ab v_b
over its entries, and the same for V: the objective never rises, nothing is sampled, and there is no
learning rate. Biases are columns that are never dropped. `ridge` adds ridge (|U|^2 + |V|^2) to the
sum over entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from overt._check import InputError
from overt._types import Array, Floats
from overt.completion.engines import Engine
from overt.completion.forms.noise import Plain
from overt.completion.forms.prior import Prior
from overt.completion.forms.problem import CompletionProblem
from overt.completion.forms.spread import DropoutSpread
from overt.completion.kernels import Drawn, Held, epoch, gram

TOL = 1e-5
"""Relative fall of the objective in one sweep below which it has settled."""

AWAY = 1e12
"""Loss, where values have variance 1, beyond which steps are too large."""


@dataclass(eq=False)
class _PointForm(Plain):
    """Factors without covariances, and what a model needs beside them."""

    problem: CompletionProblem
    means: list[Array]
    spread: DropoutSpread
    ridge: float
    history: list[float]

    @property
    def priors(self) -> tuple[Prior, Prior]:
        """Those of both sides' rows that the ridge stands for, where residuals have variance 1."""
        n = len(self.problem.columns.free(0))
        prior = Prior(np.zeros(n), self.ridge * np.eye(n))
        return prior, prior

    @property
    def noise(self) -> float:
        """Mean squared residual."""
        return self.problem.residual_variance(self.means)

    def arrays(self) -> dict[str, Array]:
        """Return nothing: means and history are all there is."""
        return {}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take nothing back."""
        del arrays


class FixedForm(_PointForm):
    """The exact form; `step` is one sweep over both sides."""

    kind: ClassVar[str] = "fixed"

    @classmethod
    def start(
        cls,
        problem: CompletionProblem,
        drop_prob: float | Floats,
        ridge: float,
        seed: int,
        means: list[Array] | None = None,
    ) -> FixedForm:
        """Return the form before the first sweep, from given means (a warm start) if any."""
        if means is None:
            k = problem.columns.n_factors
            rms = float(np.sqrt(problem.by_row.square / problem.n_ratings)) or 1.0
            means = problem.start(np.random.default_rng([seed, 0]), np.sqrt(rms / k))
        return cls(problem, means, DropoutSpread.start(problem.columns, drop_prob), ridge, [])

    def step(self, engine: Engine) -> float:
        """Solve for every row, then for every column; return the objective per rating."""
        error = 0.0
        for side in (0, 1):
            error = self.update(side, engine)
        free = self.problem.columns.free
        unknowns = (w[:, free(side)].astype(np.float64) for side, w in enumerate(self.means))
        size = sum(float(np.sum(w**2)) for w in unknowns)
        self.history.append((error + self.ridge * size) / self.problem.n_ratings)
        return self.history[-1]

    def settled(self, tol: float) -> bool:
        """Return whether the last sweep lowered the objective by at most `tol` of itself."""
        return (
            len(self.history) > 1 and self.history[-2] - self.history[-1] <= tol * self.history[-1]
        )

    def update(self, side: int, engine: Engine) -> float:
        """Solve for one side; return the summed squared error plus dropout penalty."""
        count = self.problem.shape[side]
        partners = self.problem.shape[1 - side]
        held = Held(self.means[1 - side], self.spread.strength, np.ones(partners))
        prior = self.priors[side].for_rows(self.problem.columns, side)
        out = Drawn(self.means[side], self.means[side].copy(), np.zeros((count, 2)))
        zeros = np.zeros((count, len(prior.free)))
        by_row = zeros, np.ones(count), zeros
        layout = self.problem.grouped(side).gathered
        engine.run(gram.draw_rows, layout, (held, prior), by_row, out)
        return float(out.stats[:, 0].sum())

    def finish(self) -> None:
        """Give rows without entries zeros; share each factor's norm between its two columns."""
        for side in (0, 1):
            empty = self.problem.grouped(side).counts == 0
            self.means[side][np.ix_(empty, self.problem.columns.free(side))] = 0
        U, V = self.means
        k = self.problem.columns.n_factors
        left, right = (np.linalg.norm(w[:, :k].astype(np.float64), axis=0) for w in (U, V))
        alive = (left > 0) & (right > 0)
        balance = np.sqrt(
            np.divide(right, left, where=alive, out=np.zeros(k)), where=alive, out=np.zeros(k)
        )
        U[:, :k] *= balance.astype(U.dtype)
        V[:, :k] *= np.divide(1, balance, where=alive, out=np.zeros(k)).astype(V.dtype)


@dataclass(eq=False)
class SGDForm(_PointForm):
    """The paper's own algorithm (thesis, section 4.6); `step` is one epoch.

    Minibatch SGD on the squared error with factors dropped at random, started as He et al. do.
    """

    drop_prob: float
    learning_rate: float
    batch_size: int
    seed: int
    kind: ClassVar[str] = "sgd"

    @classmethod
    def start(
        cls,
        problem: CompletionProblem,
        drop_prob: float,
        ridge: float,
        seed: int,
        learning_rate: float,
        batch_size: int,
    ) -> SGDForm:
        """Return factors of standard deviation sqrt(2 / n_factors)."""
        rng = np.random.default_rng([seed, 0])
        columns = problem.columns
        k = columns.n_factors
        sizes = [(count, columns.width) for count in problem.shape]
        means = [rng.normal(0, np.sqrt(2 / k), size).astype(problem.dtype) for size in sizes]
        if columns.biases:
            for side, w in enumerate(means):
                w[:, k + side] = 0
                w[:, k + 1 - side] = 1
        spread = DropoutSpread.start(columns, drop_prob)
        steps = (drop_prob, learning_rate, batch_size, seed)
        return cls(problem, means, spread, ridge, [], *steps)

    def step(self, engine: Engine) -> float:
        """Pass once over the entries in a new random order; return the mean batch loss."""
        rng = np.random.default_rng([self.seed, len(self.history) + 1])
        group = self.problem.by_row
        loss = epoch(
            rng.permutation(self.problem.n_ratings),
            group.keys,
            group.others,
            group.values,
            *self.means,
            self.problem.columns.n_factors,
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

    def finish(self) -> None:
        """Leave the factors where the last step left them; refuse those that have run away."""
        with np.errstate(over="ignore", invalid="ignore"):
            loss = self.history[-1] + self.noise
        if not loss < AWAY:
            raise InputError(
                f"the loss is {loss:.3g} after {len(self.history)} passes with learning_rate "
                f"{self.learning_rate:g}; take a smaller one"
            )
