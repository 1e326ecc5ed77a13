"""Fixed dropout: exact alternating minimization of the objective that dropout descends.

    mean over entries of (y - u_a . v_b)^2 + lam sum_i U_ai^2 V_bi^2        (thesis, Proposition 3)

With V held, row a of U solves (sum_b v_b v_b' + lam diag(sum_b v_b o v_b)) u_a = sum_b y_ab v_b
over its entries, and the same for V: the objective never rises, nothing is sampled, and there is no
learning rate. Biases are columns that are never dropped. `ridge` adds ridge (|U|^2 + |V|^2) to the
sum over entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from overt._types import Array, Floats
from overt.completion import kernels
from overt.completion.engine import Engine, empty
from overt.completion.problem import Problem


@dataclass
class Fixed:
    """The fixed form's state; `step` is one sweep over both sides.

    `strength` is lam of each column: drop_prob / (1 - drop_prob) for factors, 0 for biases.
    """

    problem: Problem
    means: list[Array]
    strength: Floats
    ridge: float
    history: list[float] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        problem: Problem,
        drop_prob: float | Floats,
        ridge: float,
        seed: int,
        means: list[Array] | None = None,
    ) -> Fixed:
        """Return the state before the first sweep, from given means (a warm start) if any."""
        if means is None:
            rng = np.random.default_rng([seed, 0])
            rms = float(np.sqrt(np.mean(problem.by_row.values.astype(np.float64) ** 2))) or 1.0
            means = list(problem.start(rng, np.sqrt(rms / problem.n_factors)))
        strength = np.zeros(problem.width)
        probs = np.asarray(drop_prob, dtype=float)
        strength[: problem.n_factors] = probs / (1 - probs)
        return cls(problem, means, strength, ridge)

    def step(self, engine: Engine) -> float:
        """Solve for every row, then for every column; return the objective per rating."""
        error = 0.0
        for side in (0, 1):
            error = self.update(side, engine)
        size = sum(float(np.sum(w.astype(np.float64) ** 2)) for w in self._unknowns())
        self.history.append((error + self.ridge * size) / self.problem.n_ratings)
        return self.history[-1]

    def settled(self, tol: float) -> bool:
        """Return whether the last sweep lowered the objective by at most `tol` of itself."""
        return (
            len(self.history) > 1 and self.history[-2] - self.history[-1] <= tol * self.history[-1]
        )

    def _unknowns(self) -> list[Array]:
        return [self.means[side][:, self.problem.free(side)] for side in (0, 1)]

    def update(self, side: int, engine: Engine) -> float:
        """Solve for one side; return the summed squared error plus dropout penalty."""
        problem, group = self.problem, self.problem.grouped(side)
        free, none = problem.free(side), empty(problem.width)
        stats = np.zeros((problem.shape[side], 2))
        prior = (self.ridge * np.eye(len(free)), np.zeros(len(free)))
        shared = (self.means[1 - side], none, self.strength, *prior, 1.0, free)
        outputs = (self.means[side], none, none, stats)
        engine.run(kernels.solve_rows, group, shared, outputs, by_row=(none,))
        return float(stats[:, 0].sum())

    def finish(self) -> None:
        """Give rows without entries zeros; share each factor's norm between its two columns."""
        for side in (0, 1):
            empty = self.problem.grouped(side).counts == 0
            self.means[side][np.ix_(empty, self.problem.free(side))] = 0
        U, V = self.means
        k = self.problem.n_factors
        left, right = (np.linalg.norm(w[:, :k].astype(np.float64), axis=0) for w in (U, V))
        alive = (left > 0) & (right > 0)
        balance = np.sqrt(
            np.divide(right, left, where=alive, out=np.zeros(k)), where=alive, out=np.zeros(k)
        )
        U[:, :k] *= balance.astype(U.dtype)
        V[:, :k] *= np.divide(1, balance, where=alive, out=np.zeros(k)).astype(V.dtype)
