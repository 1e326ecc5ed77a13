"""What is known of a side's rows before their values: who has entries where, and given features.

Row a has features f_a in blocks. Each block is reduced to its leading directions R,

    F = Q diag(sqrt e) R',   scores A = F R,

by one singular value decomposition over the rows that have entries. For the block "signals", F is
the 0/1 matrix of observed entries with every row divided by the square root of its count: what
SVD++ adds to a row, in closed form, and its mirror image for columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from overt._types import Array, Floats
from overt.completion.forms.problem import Grouped

SIGNALS, FEATURES = "signals", "features"
BLOCKS = (SIGNALS, FEATURES)
"""Names of the blocks, in the order of their scores."""

RANK = 100
"""Leading directions of a block that are kept."""

DENSE = 1 << 21
"""Numbers of a block below which its decomposition is exact."""

OVERSAMPLING, POWERS = 10, 3
"""Of the randomized decomposition of larger ones."""

EACH = 32
"""Bytes for each entry that the decomposition of signals takes."""

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
        """Return what storage keeps of them."""
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
        parts = {name: leading(F[active], seed).astype(dtype) for name, F in blocks.items()}
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


def who_has_what(group: Grouped) -> Any:
    """Return the 0/1 matrix of a side's observed entries, rows divided by sqrt(their count)."""
    shape, ones = (len(group.counts), group.n_others), np.ones(len(group.keys), np.float32)
    if group.mapped:
        entries = group.gathered.entries
        rows = sparse.csr_array((ones, entries[1].copy(), entries[0]), shape=shape)
    else:
        rows = sparse.csr_array((ones, (group.keys, group.others)), shape=shape)
    rows.sum_duplicates()
    rows.data[:] = 1
    return signal(rows)


def signal(rows: Any) -> Any:
    """Divide rows of a 0/1 matrix by the square root of their count."""
    counts = np.diff(rows.indptr)
    rows.data /= np.repeat(np.sqrt(counts), counts)
    return rows


def leading(F: Any, seed: int) -> Floats:
    """Return the leading right singular vectors of F, (features, directions)."""
    rank = min(RANK, *F.shape)
    if F.shape[0] * F.shape[1] <= DENSE or rank < RANK:
        dense = F.toarray() if sparse.issparse(F) else np.asarray(F)
        _, roots, R = np.linalg.svd(dense.astype(np.float64), full_matrices=False)
    else:
        from sklearn.utils.extmath import randomized_svd

        _, roots, R = randomized_svd(
            F, rank, n_oversamples=OVERSAMPLING, n_iter=POWERS, random_state=seed
        )
    keep = roots[:rank] > SMALLEST * max(roots[0], 1e-300)
    return R[:rank][keep].T


NOTHING = Features.build({}, np.zeros(0, dtype=bool), np.float64, 0)
"""Features where there are none."""


def of_sides(
    groups: Sequence[Grouped], given: Sequence[Any], signals: bool, dtype: Any, seed: int
) -> tuple[Features, Features]:
    """Return both sides' features."""
    found = []
    group = groups[0]
    if signals and group.mapped and EACH * len(group.keys) > group.mapped:
        signals = False
        warnings.warn(
            f"signals of {len(group.keys):,} entries do not fit into memory_limit and are left out",
            stacklevel=2,
        )
    for group, table in zip(groups, given, strict=True):
        blocks = {SIGNALS: who_has_what(group)} if signals else {}
        if table is not None:
            blocks[FEATURES] = table
        found.append(Features.build(blocks, group.counts > 0, dtype, seed))
    return found[0], found[1]


def again(directions: Directions, given: Array, group: Grouped) -> Features:
    """Return features of rows with other entries; directions are held."""
    known, active = {}, group.counts > 0
    if SIGNALS in directions.parts:
        R = directions.parts[SIGNALS]
        more = np.zeros((group.n_others - len(R), R.shape[1]), R.dtype)
        known[SIGNALS] = np.asarray(who_has_what(group) @ np.concatenate([R, more]))
        known[SIGNALS][~active] = directions.typical[SIGNALS]
    if FEATURES in directions.parts:
        more = np.tile(directions.typical[FEATURES], (len(active) - len(given), 1))
        known[FEATURES] = np.concatenate([given, more])
    return Features.scored(directions, known, active, given.dtype)
