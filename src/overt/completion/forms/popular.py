"""How much popularity counts beside what was learned, asked of entries that are hidden first.

    score_ab = (1 - q) x_ab + q p_b sum_b max(x_ab, 0),  x = U V',  p = shares of entries

Factors that fit mere chance rank worse than counts do. In doubt (two standard errors) counts are
taken; what was learned is, where it is clearly better and no mixture is clearly better still.
"""

from __future__ import annotations

import numpy as np

from overt._mapped import slices
from overt._types import Array, Floats, Ints
from overt.entries import Entries

MIXED = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Values of q that are tried."""

HIDDEN = 0.2
MOST = 2000
"""Share of the entries that is hidden, and how many at most."""

ERRORS = 2.0
"""Standard errors that make a difference clear."""


def blended(x: Floats, p: Floats, q: float) -> Floats:
    """Return scores of rows (count, columns), or of one."""
    total = np.maximum(x, 0).sum(axis=-1, keepdims=True)
    return (1 - q) * x + q * np.where(total > 0, total, 1) * p


def hide(count: int, seed: int) -> Ints:
    """Return which of so many entries are hidden, in order."""
    size = min(MOST, int(HIDDEN * count))
    return np.sort(np.random.default_rng([seed, 2]).choice(count, size, replace=False))


def choose(means: list[Array], entries: Entries, hidden: Ints) -> float:
    """Return q from where the hidden entries rank among all that their rows do not have."""
    counts = np.zeros(entries.shape[1])
    rows = np.unique(np.asarray(entries.rows)[hidden])
    beside = []  # entries of these rows
    for some in slices(len(entries), entries.rows, entries.cols):
        counts += np.bincount(entries.cols[some], minlength=len(counts))
        beside.append(some.start + np.flatnonzero(np.isin(entries.rows[some], rows)))
    counts -= np.bincount(entries.cols[hidden], minlength=len(counts))
    kept = np.setdiff1d(np.concatenate(beside), hidden)
    shares = counts / max(counts.sum(), 1)
    U, V = (w.astype(np.float64) for w in means)
    known, wanted = (_by_row(entries, at, rows) for at in (kept, hidden))
    gains = np.empty((len(rows), len(MIXED)))
    for i, a in enumerate(rows):
        x = V @ U[a]
        for j, q in enumerate(MIXED):
            scores = blended(x, shares, q)
            scores[known[i]] = -np.inf
            ranks = [_rank(scores, score) for score in scores[wanted[i]]]
            gains[i, j] = np.mean(1 / np.log2(2 + np.array(ranks)))
    if len(rows) < 2:
        return MIXED[-1]
    best = int(gains.mean(axis=0).argmax())
    for q in (-1, 0):
        better = gains[:, best] - gains[:, q]
        if better.mean() <= ERRORS * better.std(ddof=1) / np.sqrt(len(rows)):
            return MIXED[q]
    return MIXED[best]


def _rank(scores: Floats, score: float) -> float:
    """Return how many are above one of them, of equal ones half."""
    return (np.count_nonzero(scores > score) + np.count_nonzero(scores >= score) - 1) / 2


def _by_row(entries: Entries, at: Ints, rows: Ints) -> list[Ints]:
    """Return the columns that some of the entries have in each of some rows."""
    keys = np.asarray(entries.rows)[at]
    cols = np.asarray(entries.cols)[at]
    order = np.argsort(keys, kind="stable")
    ends = np.searchsorted(keys[order], [rows, rows + 1])
    return [cols[order[start:end]] for start, end in ends.T]
