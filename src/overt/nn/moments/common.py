"""What rows and outputs have in common, and how that makes sampled numbers better.

A table (rows x outputs) is the sum of what all cells have in common, of what a row has, of what an
output has, and of a rest. Errors of samples are spread over these parts, and what is sought is not
in the same way, so that each part is shrunk by itself: with p cells' worth of freedom, s^2 the
variance of errors and t^2 that of what is sought, the share t^2 / (t^2 + s^2) of it is believed, t
found from the part itself (James and Stein 1961). No cell is moved by more than LIMIT standard
errors (the limited translation of Efron and Morris 1972), so that one cell apart stays apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LIMIT = 2.0
"""Standard errors that a cell may be moved by."""


def energies(table: Any) -> Any:
    """Return the sums of squares of the four parts of tables along the last two axes."""
    rows, outputs = table.shape[-2:]
    common, of_row, of_output = table.mean((-2, -1)), table.mean(-1), table.mean(-2)
    first = rows * outputs * np.vdot(common, common)
    row = outputs * np.vdot(of_row, of_row) - first
    output = rows * np.vdot(of_output, of_output) - first
    return np.array([first, row, output, np.vdot(table, table) - first - row - output])


def believed(d: Any, s: float, spread: Any) -> tuple[Any, float]:
    """Return the part of a table d to believe, and the standard error that is left of a cell.

    `s` is the standard error of a cell of d, `spread` the share of its square in each part. What
    all have in common is believed, as is a part that holds no more than two cells' worth; the error
    of two cells is what shrinking leaves of a part at least.
    """
    rows, outputs = d.shape
    common = d.mean()
    row, output = (d.mean(axis, keepdims=True) - common for axis in (1, 0))
    found, left = common, spread[0]
    parts = (row, rows - 1), (output, outputs - 1), (d - common - row - output, 0)
    for (part, p), energy, share in zip(parts, energies(d)[1:], spread[1:], strict=True):
        p = p or (rows - 1) * (outputs - 1)
        off = max(p - 2, 0) * s * s * share * d.size / max(p, 1)
        kept = 1 - off / energy if energy > off else float(not off)
        found, left = found + kept * part, left + max(kept, min(1.0, 2 / max(p, 1))) * share
    return d + np.clip(found - d, -LIMIT * s, LIMIT * s), s * float(np.sqrt(left))
