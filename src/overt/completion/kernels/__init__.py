"""Compiled kernels: pure functions of arrays, serial, releasing the GIL.

The kernels that update rows, in `full` and `gram`, are called as

    kernel(rows, entries, held, prior, shifts, precisions, [more], out, [cuts, sums])

and write one side's `rows` while the other side is fixed. `shifts` are P (m + g_a) and `precisions`
1 / noise of each row a of the side; sums[c] is a sum over the rows of chunk c,
rows[cuts[c]:cuts[c + 1]]. Entries are `Csr`, or `Blocks` where much is read of each partner.
Factors and biases are columns of the same arrays: a row is w = (factors, row bias, column bias), in
which the other side's bias is pinned to 1. `overt.completion.kernels.reference` holds the same
functions in plain NumPy. Numba does not see changes in another file, so what a kernel calls stands
in its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overt._compiled import njit
from overt._types import Array

OPTIONS = {"error_model": "numpy", "fastmath": {"contract", "nsz"}}

NOT_PINNED = -1
"""Stands for the pinned column where there are no biases."""


class Csr(NamedTuple):
    """Entries by row: row r has values[indptr[r]:indptr[r + 1]] at columns `indices` likewise."""

    indptr: Array
    indices: Array
    values: Array


class Blocks(NamedTuple):
    """Entries by chunk of rows; the entries of a chunk are sorted by partner.

    Entry e of chunk c, starts[c] <= e < starts[c + 1], lies in the chunk's row number slots[e]. A
    partner's table is then read once for all rows of a chunk, and tables in the order of memory.
    """

    starts: Array
    slots: Array
    partners: Array
    values: Array


class Held(NamedTuple):
    """The fixed side: means, (count, width), and their covariances as a kernel needs them.

    `spread` is packed second moments w w' + S in `learn_rows`, variances in `learn_variances`, the
    strength of dropout for each column in `draw_rows`. An entry counts as often as the `weights`
    of its partner say.
    """

    means: Array
    spread: Array
    weights: Array


class RowPrior(NamedTuple):
    """What all rows share: P, their unknown columns, the pinned one."""

    precision: Array
    free: Array
    pinned: int


class Learned(NamedTuple):
    """Rows with their covariances; `stats` are a row's expected squared error and log det S."""

    means: Array
    spread: Array
    stats: Array


class Drawn(NamedTuple):
    """Sampled rows, and the means of the laws that they were sampled from."""

    means: Array
    centers: Array
    stats: Array


@njit(**OPTIONS)
def group(keys: Array, others: Array, values: Array, count: int) -> tuple[Array, Array, Array]:
    """Sort triplets by key, keeping their order within a key: (indptr, indices, values)."""
    indptr = np.zeros(count + 1, np.int64)
    for key in keys:
        indptr[key + 1] += 1
    for i in range(count):
        indptr[i + 1] += indptr[i]
    place = indptr[:-1].copy()
    indices = np.empty(len(keys), np.int32)
    sorted_values = np.empty(len(keys), values.dtype)
    for e in range(len(keys)):
        at = place[keys[e]]
        indices[at] = others[e]
        sorted_values[at] = values[e]
        place[keys[e]] += 1
    return indptr, indices, sorted_values


@njit(**OPTIONS)
def block(
    keys: Array,
    others: Array,
    values: Array,
    chunk: Array,
    slot: Array,
    n_chunks: int,
    n_others: int,
) -> tuple[Array, Array, Array, Array]:
    """Sort triplets by chunk[key], then by other, as `Blocks` has them."""
    n = len(keys)
    starts = np.zeros(n_chunks + 1, np.int64)
    place = np.zeros(n_others + 1, np.int64)
    order = np.empty(n, np.uint32)
    for e in range(n):
        place[others[e] + 1] += 1
        starts[chunk[keys[e]] + 1] += 1
    for counts in (place, starts):
        for i in range(1, len(counts)):
            counts[i] += counts[i - 1]
    for e in range(n):
        order[place[others[e]]] = e
        place[others[e]] += 1
    at = starts.copy()
    slots = np.empty(n, slot.dtype)
    partners = np.empty(n, np.int32)
    sorted_values = np.empty(n, values.dtype)
    for i in range(n):
        e = order[i]
        c = chunk[keys[e]]
        slots[at[c]] = slot[keys[e]]
        partners[at[c]] = others[e]
        sorted_values[at[c]] = values[e]
        at[c] += 1
    return starts, slots, partners, sorted_values


@njit(**OPTIONS)
def dots(rows: Array, cols: Array, U: Array, V: Array, out: Array) -> None:
    """out_e = u_(rows e) . v_(cols e)."""
    for e in range(len(rows)):
        u = U[rows[e]]
        v = V[cols[e]]
        x = 0.0
        for i in range(U.shape[1]):
            x += float(u[i]) * float(v[i])
        out[e] = x


@njit(error_model="numpy")
def epoch(
    order: Array,
    rows: Array,
    cols: Array,
    values: Array,
    U: Array,
    V: Array,
    n_factors: int,
    drop_prob: float,
    learning_rate: float,
    batch_size: int,
    state: np.uint64,
) -> float:
    """Take one step for each batch of `order`, in place; return the mean squared error met.

    Gradients of a batch are all taken at its start: steps are stored and then applied.
    """
    width = U.shape[1]
    left = np.empty((batch_size, width), U.dtype)
    right = np.empty((batch_size, width), U.dtype)
    mask = np.ones(width)
    keep = 1 / (1 - drop_prob)
    threshold = np.uint64(drop_prob * 2.0**32)
    total = 0.0
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        rate = 2 * learning_rate / len(batch)
        for e in range(len(batch)):
            a = rows[batch[e]]
            b = cols[batch[e]]
            predicted = 0.0
            for i in range(width):
                if drop_prob > 0 and i < n_factors:
                    state ^= state << np.uint64(13)
                    state ^= state >> np.uint64(7)
                    state ^= state << np.uint64(17)
                    mask[i] = 0.0 if (state >> np.uint64(32)) < threshold else keep
                predicted += U[a, i] * V[b, i] * mask[i]
            error = values[batch[e]] - predicted
            total += error * error
            for i in range(width):
                left[e, i] = rate * error * V[b, i] * mask[i]
                right[e, i] = rate * error * U[a, i] * mask[i]
        for e in range(len(batch)):
            a = rows[batch[e]]
            b = cols[batch[e]]
            for i in range(width):
                pinned_left = n_factors < width and i == n_factors + 1
                pinned_right = n_factors < width and i == n_factors
                if not pinned_left:
                    U[a, i] += left[e, i]
                if not pinned_right:
                    V[b, i] += right[e, i]
    return total / len(order)
