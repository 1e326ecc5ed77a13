"""Exact sweeps over all directions v of the plane.

The points with v.z > 0 change only at the angles perpendicular to a point. Between two neighboring
critical angles the active set A is fixed and every quantity is a quadratic or linear form of v,
whose extrema on the arc have closed forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from overt._types import Floats

CHUNK = 2**22
"""Entries of the table (arcs x points) in memory at a time."""


@dataclass(frozen=True)
class Arcs:
    """Neighboring critical angles and what is active between them.

    start, width: (arcs,); active: (arcs, points); M = sum over active of p z z': (arcs, 2, 2).
    """

    start: Floats
    width: Floats
    active: Floats
    M: Floats


def arcs(Z: Floats, p: Floats) -> Iterator[Arcs]:
    """Yield all arcs of the circle, in chunks."""
    held = np.any(Z != 0, axis=1)
    angle = np.arctan2(Z[held, 1], Z[held, 0])
    start = np.unique(
        np.mod(np.concatenate([angle + np.pi / 2, angle - np.pi / 2]), 2 * np.pi)
    )
    width = np.diff(start, append=start[0] + 2 * np.pi)
    start, width = start[width > 1e-13], width[width > 1e-13]
    squares = p[:, None] * np.stack(
        [Z[:, 0] ** 2, Z[:, 0] * Z[:, 1], Z[:, 1] ** 2], axis=1
    )
    size = max(1, CHUNK // len(Z))
    for i in range(0, len(start), size):
        at, wide = start[i : i + size], width[i : i + size]
        active = (unit(at + wide / 2) @ Z.T > 0).astype(np.float64)
        entries = active @ squares
        M = entries[:, [0, 1, 1, 2]].reshape(-1, 2, 2)
        yield Arcs(at, wide, active, M)


def unit(angle: Floats) -> Floats:
    """Return (cos, sin) along a new last axis."""
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def inside(part: Arcs, v: Floats) -> Floats:
    """Return v or -v where it lies in its arc, else the arc's middle; v is (arcs, ..., 2)."""
    shape = (-1,) + (1,) * (v.ndim - 2)
    start, width = part.start.reshape(shape), part.width.reshape(shape)
    angle = np.arctan2(v[..., 1], v[..., 0])
    ahead = np.mod(angle - start, 2 * np.pi)
    behind = np.mod(angle + np.pi - start, 2 * np.pi)
    place = np.where(
        ahead <= width, ahead, np.where(behind <= width, behind, width / 2)
    )
    return unit(start + place)


def smallest_share(Z: Floats, p: Floats) -> tuple[float, Floats]:
    """Return min_v E sigma(v.z)^2 over unit vectors v of the plane, and the v that attains it.

    On an arc it is v'Mv: least at the smaller eigenvector of M if that lies inside, else at an end,
    where the next arc starts.
    """
    best, where = np.inf, np.zeros(2)
    for part in arcs(Z, p):
        vectors = np.linalg.eigh(part.M)[1]
        for v in (unit(part.start), inside(part, vectors[..., 0])):
            values = np.einsum("ki,kij,kj->k", v, part.M, v)
            k = int(np.argmin(values))
            if values[k] < best:
                best, where = float(values[k]), v[k]
    return max(best, 0.0), where


def largest_correlation(Z: Floats, p: Floats, counts: Floats) -> Floats:
    """Return max_v |sum_i c_i sigma(v.z_i)| / sqrt(E sigma(v.z)^2) for each row c of `counts`.

    On an arc it is |b.v| / sqrt(v'Mv), b = sum over active of c_i z_i: largest at M^+ b if that
    lies inside, else at an end; where M has rank one it is constant, as b lies in M's range.
    """
    best = np.zeros(len(counts))
    signed = (
        (counts[:, :, None] * Z).transpose(1, 0, 2).reshape(len(Z), -1)
    )  # (points, rows * 2)
    for part in arcs(Z, p):
        b = (part.active @ signed).reshape(len(part.start), len(counts), 2)
        # M is 2 x 2: its adjugate gives the direction of M^-1 b without dividing.
        adjugate = np.stack(
            [part.M[:, 1, 1], -part.M[:, 0, 1], -part.M[:, 1, 0], part.M[:, 0, 0]],
            axis=1,
        ).reshape(-1, 2, 2)
        peak = inside(part, b @ adjugate)
        for v in (peak, unit(part.start)[:, None]):
            along = np.abs(np.sum(b * v, axis=-1))
            spread = np.einsum("kri,kij,krj->kr", v, part.M, v)
            ratio = along / np.sqrt(np.where(spread > 1e-12, spread, np.inf))
            best = np.maximum(best, ratio.max(axis=0))
    return best
