"""What a row chose last says more of what it chooses next.

    u_a + d_a = u_a + S_a V' (D^-1 + V S_a V')^-1 (y - V u_a),  V and y those of its latest entries

is the mean of a row that observes these again with precisions
D = diag(r_a c_b WEIGHT RECENT exp(-age_b / SPAN) / sigma^2), age_b = how many came later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from overt._types import Array, Floats, Ints
from overt.completion.forms.pairs import WEIGHT
from overt.completion.kernels.full import unpack
from overt.entries import Entries

if TYPE_CHECKING:
    from overt.completion.forms.negative import NegativeForm

RECENT = 2.0
SPAN = 10.0
LATEST = 30
"""The latest entry counts so many times more, by a third as much after SPAN; entries looked at."""

BLOCK = 256
"""Rows that are solved for at once."""


def shifts(form: NegativeForm, entries: Entries, times: Array) -> Floats:
    """Return d of every row of a finished form, 0 where the times of its entries are all equal."""
    rows, cols, age = latest(entries, times)
    starts = np.searchsorted(rows, np.arange(entries.shape[0] + 1))
    counts = np.diff(starts)
    values = entries.values
    found = np.zeros((entries.shape[0], form.means[0].shape[1]))
    (r, c), (U, V) = form.precisions, form.means
    for some in np.array_split(touched := np.flatnonzero(counts), -(-len(touched) // BLOCK) or 1):
        slots = np.arange(counts[some].max(initial=0))
        inside = slots < counts[some][:, None]
        at = np.where(inside, starts[some][:, None] + slots, 0)
        b = cols[at]
        scale = r[some][:, None] * c[b] * WEIGHT * RECENT / form.noise
        root = np.sqrt(inside * scale * np.exp(-age[0][at] / SPAN))[..., None]
        W = root * V[b]
        S = unpack(form.spread.tables[0][some]).astype(float)
        SW = S @ W.transpose(0, 2, 1)
        error = root[..., 0] * values[age[1][at]] - (W @ U[some][..., None].astype(float))[..., 0]
        G = np.eye(len(slots)) + W @ SW
        found[some] = (SW @ np.linalg.solve(G, error[..., None]))[..., 0]
    return found


def latest(entries: Entries, times: Array) -> tuple[Ints, Ints, tuple[Ints, Ints]]:
    """Return rows and columns of each row's latest entries, and (how many came later, which)."""
    order = np.lexsort((-np.asarray(times, dtype=float), entries.rows))
    rows = np.asarray(entries.rows)[order]
    t = np.asarray(times)[order]
    first = np.searchsorted(rows, rows)
    new = np.append(True, (t[1:] != t[:-1]) | (rows[1:] != rows[:-1]))
    place = np.arange(len(rows))
    later = np.maximum.accumulate(np.where(new, place, 0)) - first
    told = t[np.searchsorted(rows, rows, side="right") - 1] != t[first]
    kept = told & (place - first < LATEST)
    order = order[kept]
    return rows[kept], np.asarray(entries.cols)[order], (later[kept], order)
