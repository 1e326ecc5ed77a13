"""The annealed path of a deep linear network: noisy phases that shed rank, quiet ones that fit."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._check import InputError
from overt._types import Floats
from overt.decay import layers
from overt.decay.schedule import Phase
from overt.decay.simulation import Weights
from overt.entries import Entries

_LADDER = 9  # doublings of the weight decay, up to where even rank 1 does not pay
_EPOCHS = (60, 400)  # least and most passes over the entries in one noisy phase
_MEMORY = 3.0  # noisy phases last this many times 1 / (2 eta lam), the memory of weight decay
_QUIET = 150  # passes in each of the two quiet phases
_SHED = 0.01  # singular values below this share of the largest are shed
_PIECE = 200_000  # steps between two looks at the clock


@dataclass(frozen=True)
class Candidate:
    """A quiet fit that branched off the noisy path: its weight decay, rank and errors.

    Errors are mean squares relative to the mean square of the values.
    """

    weight_decay: float
    rank: int
    train_error: float
    holdout_error: float


class AnnealedPath:
    """SGD's weights on a problem; rates follow from the problem's size and halve on divergence.

    `count` is told of all steps that were taken, and what they were for.
    """

    def __init__(
        self, problem: Entries, depth: int, width: int, rng: np.random.Generator,
        count: Callable[[int, str], None],
    ) -> None:  # fmt: skip
        self._problem, self._depth, self._rng, self._count = problem, depth, rng, count
        shapes = layers.shapes(problem.shape, depth, width)
        self._state = Weights([rng.standard_normal(shape) / np.sqrt(width) for shape in shapes])
        self._rate = 0.5 / curvature(problem.shape, depth)
        self.decays = decays(problem.shape, depth)
        self._fresh = True

    def branch(self) -> AnnealedPath:
        """Return a copy that goes its own way."""
        other = copy(self)
        other._state = self._state.copy()
        return other

    def weights(self) -> list[Floats]:
        """Return the layers [W_1, ..., W_L]."""
        return [W.copy() for W in self._state.layers()]

    def rank(self) -> int:
        """Return how many singular values of the product have not been shed."""
        # The product's spectrum is that of a width x width core between orthonormal bases.
        core: Any = np.linalg.qr(self._state.G, mode="r")
        right: Any = np.linalg.qr(self._state.F, mode="r")
        for W in self._state.M[::-1]:
            core = core @ W
        s = np.linalg.svd(core @ right.T, compute_uv=False)
        return int(np.sum(s > max(_SHED * s[0], 1e-3)))

    def candidate(self, lam: float, train: Entries, judge: Entries) -> Candidate:
        """Grade the present weights."""
        A = layers.product(self.weights())
        return Candidate(
            lam, self.rank(), *(layers.train_error(part, A) for part in (train, judge))
        )

    def shed(self, lam: float) -> None:
        """Run the noisy phase at this weight decay."""
        if self._fresh:
            self._descend(20 * len(self._problem), self._rate / 5, lam, "warm-up")
            self._fresh = False
        memory = _MEMORY / (2 * self._rate * lam)
        low, high = (epochs * len(self._problem) for epochs in _EPOCHS)
        self._descend(int(np.clip(memory, low, high)), self._rate, lam, f"decay {lam:.2g}")

    def truncate(self, rank: int) -> None:
        """Keep the product's largest `rank` singular values, in balanced layers."""
        A, width = layers.product(self.weights()), self._state.F.shape[1]
        self._state = Weights(layers.balanced(A, self._depth, width, rank))

    def settle(self, lam: float) -> None:
        """Drop what is all but shed, then run the quiet phases that follow a noisy one."""
        self.truncate(self.rank())
        for share in (30, 1000):
            count = _QUIET * len(self._problem)
            self._descend(count, self._rate / 3, lam / share, f"rank {self.rank()}")

    def run(self, phase: Phase) -> None:
        """Run a phase of a given schedule as it is."""
        self._descend(
            phase.steps, phase.learning_rate, phase.weight_decay, "scheduled", halve=False
        )

    def _descend(
        self, count: int, rate: float, lam: float, note: str, *, halve: bool = True
    ) -> None:
        while count > 0:
            size = min(count, _PIECE)
            before = self._state.copy()
            draws = self._rng.integers(len(self._problem), size=size)
            taken = self._state.descend(self._problem, draws, rate, lam)
            self._state.fold()
            self._count(taken, note)
            if taken < size:
                if not halve or rate < 1e-12:
                    raise InputError(
                        "the iterates grew without bound: schedule's learning_rate is too large "
                        f"for values of unit size, got {rate:g}"
                    )
                self._state, self._rate, rate = before, self._rate / 2, rate / 2
                continue
            count -= size


def curvature(shape: tuple[int, int], depth: int) -> float:
    """Typical curvature of one entry's loss: (mn/r)^((L-1)/L) r (1/m + 1/n), at rank r = 2.

    For unit entries and r equal singular values s = sqrt(mn/r), row i of the last balanced layer
    has |G_i|^2 = s^(2/L) r/m, the middle ones have norm s^(1/L), and the end layers dominate.
    """
    m, n = shape
    return float((m * n / 2) ** ((depth - 1) / depth) * 2 * (1 / m + 1 / n))


def decays(shape: tuple[int, int], depth: int) -> list[float]:
    """Weight decays that double up to the one at which rank 1 costs what it explains.

    lam L s^(2/L) = C(0) = 1/2 for unit entries, s = sqrt(mn).
    """
    m, n = shape
    top = 0.5 / (depth * (m * n) ** (1 / depth))
    return [float(top * 2.0**-k) for k in range(_LADDER, -1, -1)]
