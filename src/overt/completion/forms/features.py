"""Features of a side's rows: which entries are observed, and the features given by the user.

Row a has features f_a in blocks. Each block is reduced to its leading directions R,

    F = Q diag(sqrt e) R',   scores A = F R,

by one singular value decomposition over the rows that have entries. For the block "signals", F is
the 0/1 matrix of observed entries with every row divided by the square root of its count: what
SVD++ adds to a row, in closed form, and its mirror image for columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from overt._types import Array, Floats
from overt.completion.engines import Engine
from overt.completion.engines.threads import ALONE
from overt.completion.forms.problem import Grouped
from overt.completion.kernels.products import Product, Right, multiply

SIGNALS = "signals"
FEATURES = "features"
BLOCKS = (SIGNALS, FEATURES)
"""Names of the blocks, in the order of their scores."""

RANK = 100
"""Leading directions of a block that are used."""

DENSE = 1 << 21
"""Numbers of a block below which its decomposition is exact."""

OVERSAMPLING = 10
POWERS = 3
"""Of the randomized decomposition of larger ones."""

SMALLEST = 1e-5
"""Singular values below this part of the largest are left out."""


@dataclass(frozen=True, eq=False)
class Directions:
    """R of each block, (features, directions), and the mean scores of rows with entries.

    Where a row says nothing in a block it counts as the mean row.
    """

    parts: dict[str, Array]
    typical: dict[str, Floats]

    @cached_property
    def members(self) -> Floats:
        """Whether score i belongs to block j, (blocks, scores)."""
        sizes = [part.shape[1] for part in self.parts.values()]
        return np.repeat(np.eye(len(sizes)), sizes, axis=1)

    def scores(self, known: Mapping[str, Array], count: int = 1) -> Array:
        """Return all scores of rows of which some blocks' scores are known."""
        blocks = (known.get(name, np.tile(self.typical[name], (count, 1))) for name in self.parts)
        return np.concatenate([np.zeros((count, 0)), *blocks], axis=1)

    def arrays(self, side: int) -> dict[str, Array]:
        """Return the arrays to store."""
        kept = {f"directions_{name}_{side}": part for name, part in self.parts.items()}
        return kept | {f"typical_{name}_{side}": mean for name, mean in self.typical.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], side: int) -> Directions:
        """Rebuild them."""
        names = [name for name in BLOCKS if f"directions_{name}_{side}" in arrays]
        parts = {name: arrays[f"directions_{name}_{side}"] for name in names}
        return cls(parts, {name: arrays[f"typical_{name}_{side}"] for name in names})


NO_DIRECTIONS = Directions({}, {})


@dataclass(frozen=True, eq=False)
class Features:
    """Scores of every row of a side, and over those with entries K = A'A and A'1."""

    directions: Directions
    scores: Array
    active: Array
    K: Floats
    ones: Floats

    @classmethod
    def build(cls, blocks: Mapping[str, Any], active: Array, dtype: Any, seed: int) -> Features:
        """Reduce blocks of features, (count, features) each, over the rows that are active."""
        parts = {name: leading(_of(F, active), seed).astype(dtype) for name, F in blocks.items()}
        parts = {name: R for name, R in parts.items() if R.shape[1]}
        known = {name: np.asarray(blocks[name] @ R).astype(dtype) for name, R in parts.items()}
        typical = {name: A[active].mean(axis=0, dtype=np.float64) for name, A in known.items()}
        if SIGNALS in known:
            known[SIGNALS][~active] = typical[SIGNALS]
        return cls.scored(Directions(parts, typical), known, active, dtype)

    @classmethod
    def scored(
        cls, directions: Directions, known: Mapping[str, Array], active: Array, dtype: Any
    ) -> Features:
        """Take rows whose scores are known."""
        A = directions.scores(known, len(active)).astype(dtype)
        kept = A[active].astype(np.float64)
        return cls(directions, A, active, kept.T @ kept, kept.sum(axis=0))

    def without(self) -> Features:
        """Return the same rows without features."""
        return Features.scored(NO_DIRECTIONS, {}, self.active, self.scores.dtype)

    @property
    def given(self) -> Array:
        """Scores of the given features alone."""
        width = self.directions.parts.get(FEATURES, np.zeros((0, 0))).shape[1]
        return self.scores[:, self.scores.shape[1] - width :]

    @property
    def sizes(self) -> Floats:
        """Squared length of each row's given features, which identifies them in a checkpoint."""
        return np.sum(self.given.astype(np.float64) ** 2, axis=1)


class EntryMatrix:
    """diag(left) X diag(right), known by its products; X is 1 where a side has entries, else 0."""

    def __init__(self, engine: Engine, sides: Sequence[Grouped], left: Array, right: Array) -> None:
        self._engine = engine
        self._sides = sides
        self._scales = (left, right)
        self.shape = (len(left), len(right))
        self.dtype = left.dtype

    @property
    def T(self) -> EntryMatrix:
        """The transpose."""
        return EntryMatrix(self._engine, self._sides[::-1], *self._scales[::-1])

    def __matmul__(self, M: Array) -> Array:
        left, right = (scale[:, None] for scale in self._scales)
        out = Product(np.zeros((self.shape[0], M.shape[1]), self.dtype))
        given = Right((right * M).astype(self.dtype))
        if len(self._sides[0].rows):
            self._engine.run(multiply, self._sides[0].gathered, (given,), (), out)
        return left * out.rows

    def dense(self) -> Array:
        """Return the matrix itself."""
        m, n = self.shape
        return self @ np.eye(n, dtype=self.dtype) if n <= m else (self.T @ np.eye(m)).T


def who_has_what(engine: Engine, sides: Sequence[Grouped], dtype: Any) -> EntryMatrix:
    """Return the 0/1 matrix of a side's observed entries, rows divided by sqrt(their count)."""
    shape = len(sides[0].counts), sides[0].n_others
    left, right = (np.ones(count, dtype) for count in shape)
    counts = EntryMatrix(engine, sides, left, right) @ right[:, None]
    left = (1 / np.sqrt(np.maximum(counts[:, 0], 1))).astype(dtype)
    return EntryMatrix(engine, sides, left, right)


def _of(F: Any, active: Array) -> Any:
    """Return the active rows; an EntryMatrix needs no filter: its inactive rows are zero."""
    return F if isinstance(F, EntryMatrix) else F[active]


def leading(F: Any, seed: int) -> Floats:
    """Return the leading right singular vectors of F, (features, directions)."""
    rank = min(RANK, *F.shape)
    if F.shape[0] * F.shape[1] <= DENSE or rank < RANK:
        dense = F.dense() if isinstance(F, EntryMatrix) else F
        dense = dense.toarray() if sparse.issparse(dense) else np.asarray(dense)
        _, roots, R = np.linalg.svd(dense.astype(np.float64), full_matrices=False)
    else:
        roots, R = _randomized(F, rank + OVERSAMPLING, seed)
    keep = roots[:rank] > SMALLEST * max(roots[0], 1e-300)
    return R[:rank][keep].T


def _randomized(F: Any, width: int, seed: int) -> tuple[Floats, Floats]:
    """Return leading singular values and right vectors, from the range of (F F')^q F Q."""
    A = F.T if F.shape[0] < F.shape[1] else F
    rng = np.random.default_rng([seed, 3])
    dtype = np.result_type(F.dtype, np.float32)
    Q = rng.normal(size=(A.shape[1], width)).astype(dtype)
    for _ in range(POWERS):
        Q = np.linalg.qr(A @ Q)[0]
        Q = np.linalg.qr(A.T @ Q)[0]
    Q = np.linalg.qr(A @ Q)[0]
    left, roots, right = np.linalg.svd((A.T @ Q).T, full_matrices=False)
    R = right if A is F else (Q @ left).T
    ends = np.abs(R).argmax(axis=1)
    return roots, R * np.sign(R[np.arange(len(R)), ends])[:, None]


NOTHING = Features.build({}, np.zeros(0, dtype=bool), np.float64, 0)
"""Features where there are none."""


def of_sides(
    groups: Sequence[Grouped],
    given: Sequence[Any],
    signals: bool,
    dtype: Any,
    seed: int,
    engine: Engine = ALONE,
) -> tuple[Features, Features]:
    """Return both sides' features."""
    found = []
    for sides, table in zip((groups, groups[::-1]), given, strict=True):
        blocks = {SIGNALS: who_has_what(engine, sides, dtype)} if signals else {}
        if table is not None:
            blocks[FEATURES] = table
        found.append(Features.build(blocks, sides[0].counts > 0, dtype, seed))
    return found[0], found[1]


def again(directions: Directions, given: Array, group: Grouped) -> Features:
    """Return features of rows with other entries; directions are fixed."""
    known = {}
    active = group.counts > 0
    if SIGNALS in directions.parts:
        R = directions.parts[SIGNALS]
        more = np.zeros((group.n_others - len(R), R.shape[1]), R.dtype)
        known[SIGNALS] = np.asarray(
            who_has_what(ALONE, (group,), R.dtype) @ np.concatenate([R, more])
        )
        known[SIGNALS][~active] = directions.typical[SIGNALS]
    if FEATURES in directions.parts:
        more = np.tile(directions.typical[FEATURES], (len(active) - len(given), 1))
        known[FEATURES] = np.concatenate([given, more])
    return Features.scored(directions, known, active, given.dtype)
