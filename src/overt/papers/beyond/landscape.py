"""Shallow networks: the landscape for one rate per unit, and for any convex loss."""

from __future__ import annotations

import math

import numpy as np

from overt._types import Floats
from overt.linear import LinearNetwork
from overt.noise import Dropout
from overt.papers import descent
from overt.papers.evidence import DESCENT, EXACT, Evidence
from overt.papers.records import statement

CURVED = 1e-6
"""Curvatures below minus this are negative; differences of gradients err by about 1e-9."""


def _critical_point(rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Return a target, the strengths of the units, and weights with gradient 0.

    Units of one group have the same strength times size, alpha. They span singular directions of
    the target that no other group uses, with singular values alpha + (the group map's).
    """
    size, width = 0, 0
    groups = []
    for alpha in np.sort(rng.uniform(0.2, 2, int(rng.integers(1, 4)))):
        units = int(rng.integers(1, 4))
        columns = rng.normal(size=(units, units)) * rng.uniform(0.3, 1.5, (units, 1))
        groups.append((float(alpha), columns))
        size, width = size + units, width + units
    U, core, strengths = np.zeros((size + 1, width)), np.zeros((size + 1, size + 1)), []
    at = 0
    for alpha, columns in groups:
        here = slice(at, at + len(columns))
        U[here, here] = columns
        core[here, here] = alpha * np.eye(len(columns)) + columns @ columns.T
        strengths += list(alpha / np.sum(columns**2, axis=0))
        at += len(columns)
    core[-1, -1] = rng.uniform(0, 2.5)  # a direction that no unit uses
    left, right = (np.linalg.qr(rng.normal(size=core.shape))[0] for _ in range(2))
    weights = np.concatenate([(left @ U).ravel(), (right @ U).ravel()])
    return left @ core @ right.T, np.array(strengths), weights


@statement(how="sampled")
def shallow_landscape(scale: int, rng: np.random.Generator) -> Evidence:
    r"""Shallow dropout has no spurious minima.

    With one hidden layer, untied weights and any rate per unit, every critical point of
    |M - UV'|^2 + sum_i lam_i |u_i|^2 |v_i|^2 is a global minimum or has negative curvature.

    Assumes: rates above 0; inputs of any second moment.

    TeX: Every critical point of $|M - U V^\top|^2 + \sum_i \lambda_i |u_i|^2 |v_i|^2$, $\lambda_i >
    0$, is a global minimum or has a direction of negative curvature.
    """
    wrong = saddles = 0
    trials = 40 * scale
    for _ in range(trials):
        M, strengths, weights = _critical_point(rng)
        objective = descent.factor_objective(M, np.diag(strengths))
        slope, curvature = descent.slope_and_curvature(objective, weights)
        network = LinearNetwork(M, len(strengths), Dropout(strengths / (1 + strengths)))
        above = objective(weights)[0] / network.solve().objective - 1
        saddles += above > DESCENT
        wrong += slope > CURVED or above < -EXACT
        wrong += (
            curvature > -CURVED
            if above > DESCENT
            else above < EXACT and curvature < -CURVED
        )
    detail = (
        f"{trials} critical points, {saddles} of them above the optimum: all bend down, the others "
        "nowhere; null: every critical point is a minimum"
    )
    return Evidence(float(wrong), 0.0, detail, null=float(saddles))


def _weighted(weights: Floats, Y: Floats, lam: float, width: int) -> descent.Objective:
    """Return sum w (Y - UV')^2 + lam sum_i |u_i|^2 |v_i|^2 and its gradient."""

    def objective(theta: Floats) -> tuple[float, Floats]:
        U, V = descent.factors(theta, len(Y), width)
        E = weights * (Y - U @ V.T)
        u, v = np.sum(U**2, axis=0), np.sum(V**2, axis=0)
        gradient = [(lam * U * v - E @ V).ravel(), (lam * V * u - E.T @ U).ravel()]
        return float(np.sum(E * (Y - U @ V.T)) + lam * u @ v), 2 * np.concatenate(
            gradient
        )

    return objective


@statement(how="sampled")
def convex_landscape(scale: int, rng: np.random.Generator) -> Evidence:
    r"""Any convex loss, at enough width.

    For a convex loss l, every critical point of l(UV') + lam sum_i |u_i|^2 |v_i|^2 is a global
    minimum or has negative curvature if the width is at least min(outputs, inputs); below it there
    are spurious minima.

    Assumes: l with two continuous derivatives, one rate for all units.

    TeX: For a convex loss $l$ and a width of at least $\min(m, n)$, every critical point of
    $l(U V^\top) + \lambda \sum_i |u_i|^2 |v_i|^2$ is a global minimum or has a direction of
    negative curvature.
    """
    ends = []
    weights, Y = (
        rng.uniform(0.2, 3, (3, 4)) * (rng.random((3, 4)) < 0.7),
        rng.normal(size=(3, 4)),
    )
    objective = _weighted(weights, Y, 0.3, 3)
    for _ in range(8 * scale):
        value, theta = descent.descend(objective, rng.normal(size=21))
        for _ in range(3):
            # Equal norms |u_i| = |v_i| undo the drift along the symmetry that slows descent down.
            U, V = descent.factors(theta, 3, 3)
            ratio = np.sqrt(
                (np.linalg.norm(V, axis=0) + 1e-9) / (np.linalg.norm(U, axis=0) + 1e-9)
            )
            start = np.concatenate([(U * ratio).ravel(), (V / ratio).ravel()])
            value, theta = descent.descend(
                objective, start + 1e-6 * rng.normal(size=21)
            )
        ends.append(value)
    # One unit for two directions: each of the two fits of rank one is a minimum.
    narrow = _weighted(np.array([[1.0, 10], [10, 1]]), np.diag([1.0, 0.9]), 0.1, 1)
    minima = []
    for k, y in enumerate((1.0, 0.9)):
        point = np.zeros(4)
        point[[k, 2 + k]] = math.sqrt(y / 1.1)
        slope, curvature = descent.slope_and_curvature(narrow, point)
        minima.append(
            narrow(point)[0] if slope < CURVED and curvature > -CURVED else math.nan
        )
    detail = (
        f"{len(ends)} descents end at one value; null: one unit for two directions, minima at "
        f"{minima[0]:.4f} and {minima[1]:.4f}"
    )
    spread = (max(ends) - min(ends)) / min(ends)
    return Evidence(spread, DESCENT, detail, null=max(minima) / min(minima) - 1)
