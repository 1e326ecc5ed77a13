"""Matrix Market files, read by hand: a damaged one can crash scipy's reader with the process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError


def read_market(path: Path, lines: Iterator[str]) -> Any:
    """Return the matrix that lines hold: dense, or scipy sparse where they list coordinates."""
    banner = next(lines, "").lower().split()
    if banner[:2] != ["%%matrixmarket", "matrix"] or len(banner) != 5:
        raise InputError(f"{path} cannot be read as Matrix Market: see its first line")
    form, field, symmetry = banner[2:]
    coordinate = form == "coordinate"
    known = (form in ("coordinate", "array"), field in ("real", "integer", "pattern", "double"))
    if not all(known) or symmetry not in ("general", "symmetric", "skew-symmetric"):
        raise InputError(f"{path} must hold real numbers, it holds {' '.join(banner[2:])}")
    sizes = next(line for line in lines if line.strip() and not line.startswith("%"))
    rows, cols, *rest = map(int, sizes.split())
    table = np.loadtxt(lines, comments="%", ndmin=2)
    if not (0 < rows < 2**31 and 0 < cols < 2**31) or len(rest) != int(coordinate):
        raise InputError(f"{path} announces a matrix of {sizes.strip()[:60]}")
    if coordinate:
        return _coordinates(path, table, (rows, cols, *rest), field == "pattern", symmetry)
    return _listed(path, table.ravel(), (rows, cols), symmetry)


def _coordinates(
    path: Path, table: Any, sizes: tuple[int, ...], pattern: bool, symmetry: str
) -> Any:
    from scipy.sparse import coo_array

    rows, cols, count = sizes
    table = table.reshape(-1, 2 if pattern else 3) if not table.size else table
    if table.shape != (count, 2 if pattern else 3):
        raise InputError(f"{path} announces {count} entries, but holds {table.shape}")
    i, j = table[:, 0] - 1, table[:, 1] - 1
    for name, index, size in (("row", i, rows), ("column", j, cols)):
        if np.any((index < 0) | (index >= size) | (index != np.floor(index))):
            raise InputError(f"{path} holds an entry in no {name} of {rows} x {cols}")
    values = np.ones(count) if pattern else table[:, 2]
    if symmetry != "general":
        below = i != j
        sign = -1 if symmetry == "skew-symmetric" else 1
        i, j = np.append(i, j[below]), np.append(j, i[below])
        values = np.append(values, sign * values[below])
    places = i.astype(np.int64), j.astype(np.int64)
    if len(i) and max(places[0].max() + 1 - rows, places[1].max() + 1 - cols) > 0:
        raise InputError(f"{path} is {symmetry} but not square: {rows} x {cols}")
    return coo_array((values, places), shape=(rows, cols))


def _listed(path: Path, values: Any, shape: tuple[int, int], symmetry: str) -> Any:
    rows, cols = shape
    strict = int(symmetry == "skew-symmetric")
    count = rows * cols if symmetry == "general" else rows * (rows + 1 - 2 * strict) // 2
    if len(values) != count or (symmetry != "general" and rows != cols):
        raise InputError(f"{path} announces {rows} x {cols} numbers, but holds {len(values)}")
    if symmetry == "general":
        return values.reshape(cols, rows).T.copy()
    found = np.zeros(shape)
    found.T[np.triu_indices(rows, strict)] = values
    return found + (-1 if strict else 1) * np.tril(found, -1).T
