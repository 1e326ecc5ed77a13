"""Where descents in the network of width r end, and how many such places were not seen yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from overt._types import Floats
from overt.decay import layers
from overt.entries import Entries

if TYPE_CHECKING:
    from overt.decay.verification import Minimum

_RANK = 1e-6  # singular values below this fraction of the largest count as zero
_NEAR = 1e-4  # relative distance at which the end of a descent is a known minimum
_SAME = 1e-5  # the same after Newton steps
_SAME_LOSS = 1e-7  # relative difference within a continuum of minima
_LADDER = 4  # every so many starts, the decay grows from a small one, which finds other minima
_MISSING = 0.5  # as many places expected unseen round to none: where the search stops
_MOST = 6  # times `starts` at which the search gives up
_TOL = 1e-8


class Search:
    """Minima found so far; `grade` verifies a critical point, and is asked once for each."""

    def __init__(
        self, problem: Entries, depth: int, lam: float, grade: Callable[[Floats, str], Minimum]
    ) -> None:
        self._problem, self._depth, self._lam, self._grade = problem, depth, lam, grade
        self._size = float(np.sqrt(np.mean(problem.values**2))) or 1.0
        self.found: list[Minimum] = []
        self.starts: dict[int, int] = {}
        self.unseen: dict[int, float] = {}

    def add(self, A: Floats, proof: str) -> int:
        """Grade a critical point unless it is known; return its number."""
        known = self._known(A, _SAME)
        if known is None:
            self.found.append(self._grade(A, proof))
            known = len(self.found) - 1
            m = self.found[known]
            if not m.isolated:  # one of each continuum
                same = [k for k in range(known) if self._continues(k, m.rank, m.loss)]
                if same and self.found[same[0]].dimension == m.dimension:
                    self.found.pop()
                    return same[0]
        return known

    def run(self, width: int, starts: int, rng: np.random.Generator) -> None:
        """Descend in the network of this width until hardly a place should be missing.

        n draws of w places: w (n-1) / (n-w-2) places are expected in all, and another draw is new
        with probability w (w+1) / (n (n-1)) (Boender and Rinnooy Kan 1983).
        """
        places: set[int] = set()
        n, w = 0, 0
        while n < _MOST * starts and (n <= w + 2 or w * (n - 1) / (n - w - 2) > w + _MISSING):
            for start in random_starts(self._problem, self._depth, width, starts, rng):
                places.add(self._end(start, ladder=n % _LADDER == _LADDER - 1))
                n += 1
            w = len(places)
        self.starts[width] = n
        self.unseen[width] = min(1.0, w * (w + 1) / (n * (n - 1)))

    def _end(self, weights: layers.Layers, ladder: bool) -> int:
        """Return the number of the place where a descent ends."""
        first = min(self._lam, 1e-4 * self._size)
        if ladder and first < self._lam:
            for lam in np.geomspace(first, self._lam, 2 + int(4 * np.log10(self._lam / first))):
                weights = descend(self._problem, weights, lam, _TOL * min(1, self._size))
        else:
            weights = descend(self._problem, weights, self._lam, _TOL * min(1, self._size))
        A = layers.product(weights)
        known = self._known(A, _NEAR)
        if known is not None:
            return known
        rank = numerical_rank(A)
        cost = layers.loss(self._problem, weights, self._lam)
        for k in range(len(self.found)):
            if not self.found[k].isolated and self._continues(k, rank, cost):
                return k
        weights = layers.balanced(A, self._depth, rank, rank)
        return self.add(layers.product(polish(self._problem, weights, self._lam)), "numeric")

    def _known(self, A: Floats, tol: float) -> int | None:
        for k, m in enumerate(self.found):
            if np.linalg.norm(A - m.matrix) <= tol * (np.linalg.norm(m.matrix) or self._size):
                return k
        return None

    def _continues(self, k: int, rank: int, loss: float) -> bool:
        m = self.found[k]
        return m.rank == rank and not m.isolated and abs(loss - m.loss) <= _SAME_LOSS * m.loss


def descend(
    problem: Entries, weights: layers.Layers, lam: float, tol: float = _TOL
) -> list[Floats]:
    """Return where L-BFGS from these weights ends."""
    from overt.decay.descent import lbfgs

    shapes = [(W.shape[0], W.shape[1]) for W in weights]
    sizes = np.array([shapes[0][1], *(m for m, _ in shapes)])
    # One memory layout, so that one kernel is compiled.
    entries = map(np.ascontiguousarray, (problem.rows, problem.cols, problem.values))
    theta, _ = lbfgs(layers.flatten(weights), sizes, *entries, float(lam), tol, 4000)
    return layers.unflatten(theta, shapes)


def polish(problem: Entries, weights: layers.Layers, lam: float) -> list[Floats]:
    """Take Newton steps, in the least-norm sense across the symmetry's flat directions."""
    shapes = [(W.shape[0], W.shape[1]) for W in weights]
    theta = layers.flatten(weights)
    for _ in range(8):
        W = layers.unflatten(theta, shapes)
        g = layers.flatten(layers.gradient(problem, W, lam))
        if np.abs(g).max() < 1e-14:
            break
        values, vectors = np.linalg.eigh(layers.hessian(problem, W, lam))
        if values[0] < -1e-6 * values[-1]:
            break  # a Newton step from here may go to a saddle
        inverse = np.where(values > 1e-9 * values[-1], 1 / np.maximum(values, 1e-300), 0)
        candidate = theta - vectors @ (inverse * (vectors.T @ g))
        after = layers.gradient(problem, layers.unflatten(candidate, shapes), lam)
        if np.abs(layers.flatten(after)).max() >= np.abs(g).max():
            break
        theta = candidate
    return layers.unflatten(theta, shapes)


def random_starts(
    problem: Entries, depth: int, rank: int, starts: int, rng: np.random.Generator
) -> Iterator[list[Floats]]:
    """Yield weights whose products have about the data's size, a third of it, or three times it."""
    size = (float(np.sqrt(np.mean(problem.values**2))) or 1.0) ** (1 / depth)
    for k in range(starts):
        scale = size * 3.0 ** ((k % 3 - 1) / depth) / rank ** (0.5 - 0.5 / depth)
        yield [scale * rng.standard_normal(s) for s in layers.shapes(problem.shape, depth, rank)]


def numerical_rank(A: Floats) -> int:
    """Count the singular values above a millionth of the largest."""
    s = np.linalg.svd(A, compute_uv=False)
    return int(np.sum(s > max(_RANK * s[0], 1e-9)))
