"""Section 2: networks with tied weights, equalization and the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from scipy.ndimage import minimum_filter

from overt import equalize, penalty
from overt._check import Floats
from overt.linear import TiedAutoencoder
from overt.noise import Dropout
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, EXACT, relative
from overt.papers.figures import Finding, Findings, Params, Rows, column_of_each
from overt.papers.records import Residuals, Rng, figure, statement


def inequality(U: Floats, Q: Floats) -> float:
    """Return how far Q is from orthogonal, or the columns of U Q from equal norms."""
    turned = U @ Q
    norms = np.sum(turned**2, axis=0)
    unequal = norms / norms.mean() - 1
    skewed = Q.T @ Q - np.eye(len(Q))
    largest = max(np.abs(skewed).max(), np.abs(unequal).max())
    return float(largest)


@statement("Theorem 2.2", "2")
def equalizer(rng: Rng) -> Residuals:
    r"""Every weight matrix can be equalized.

    Every weight matrix has a rotation of its hidden units after which all columns have the same
    norm.

    TeX: Every weight matrix has a rotation of its hidden units after which all columns have the
    same norm. \[\forall\,U\ \exists\,Q\in O(d):\quad
    \|(UQ)_i\|^2=\frac{\|U\|_F^2}{d}\quad(i=1,\ldots,d)\]
    """
    shapes = [(3, 5, 3), (6, 4, 4), (4, 7, 2), (5, 5, 1), (8, 12, 5)]
    for rows, width, rank in shapes:
        s = rng.exponential(size=rank)
        U = oracles.with_spectrum(rng, rows, width, s)
        Q = equalize.equalizer(U)
        yield inequality(U, Q)
    return EXACT, "orthogonality and differences of the norms, wide, tall, low rank"


def symmetric(rng: Rng, eigenvalues: Sequence[float] | Floats) -> Floats:
    """Return a symmetric matrix with these eigenvalues and random eigenvectors."""
    n = len(eigenvalues)
    Q, _ = np.linalg.qr(rng.standard_normal((n, n)))
    return Q * eigenvalues @ Q.T


@statement("Theorem 2.4", "2")
def tied_optimum(rng: Rng) -> Residuals:
    r"""The tied optimum in closed form.

    With tied weights the global optimum shrinks the r largest eigenvalues by one common amount
    and cuts at zero.

    Assumes: E[x x'] = I; negative eigenvalues of the target count as zero.

    Printed: The whole matrix is shrunk in print, which can leave more than r directions; only
    the r largest eigenvalues take part.

    TeX: With tied weights the global optimum shrinks the $r$ largest eigenvalues by one common
    amount and cuts at zero.
    \[\mu_i^\star=\left(\mu_i-\frac{\lambda\sum_{j\le\rho}\mu_j}{r+\lambda\rho}\right)_+\quad(i\le
    r),\qquad \mu_i^\star=0\quad(i>r)\]
    """
    for width in (4, 2, 1):
        M = symmetric(rng, [3.0, 2.0, 0.4, -1.0])
        lam = float(rng.uniform(0.2, 1.5))
        objective = descent.tied_objective(M, lam, width)
        size = 4 * width
        lowest, theta = descent.best_descent(objective, size, 4, rng)
        U = theta.reshape(4, width)
        drop = Dropout(lam / (1 + lam))
        best = TiedAutoencoder(M, width, drop).solve()
        yield relative(best.objective, lowest)
        found = best.U @ best.U.T
        apart = relative(found, U @ U.T)
        yield apart**2
    # The printed map, at the last width: one.
    values, vectors = np.linalg.eigh(M)
    shrinkage = lam * values[-1] / (1 + lam)
    shrunk = values - shrinkage
    kept = np.maximum(shrunk, 0)
    printed = vectors * kept @ vectors.T
    apart = relative(printed, U @ U.T)
    detail = "objective and map of the best of 4 descents; printed has rank 2 for r = 1"
    return DESCENT, detail, apart**2


TARGET = 2.0
WIDTH = 2
EXTENT = 2.0


def run_landscape(params: Params, seed: int) -> dict[str, Any]:
    """Evaluate the objective on a grid and find its lowest points."""
    lam = params["strength"]
    axis = np.linspace(-EXTENT, EXTENT, params["points"])
    objective = surface(axis, lam)
    spacing = float(axis[1] - axis[0])
    best = TiedAutoencoder([[TARGET]], WIDTH, Dropout(lam / (1 + lam))).solve()
    low = np.argwhere(objective <= (3 * spacing) ** 2)
    off = np.linalg.norm(axis[low], axis=1) - np.sqrt(TARGET)
    lowest_near = objective == minimum_filter(objective, 3)
    thin = (len(axis) - 1) // 60  # of the surface a row keeps what the picture needs
    return {
        "spacing": spacing,
        "lowest": float(objective.min()),
        "circle": bool(lam == 0 and np.abs(off).max() <= 2 * spacing),
        "axis": axis[::thin].tolist(),
        "objective": np.round(objective[::thin, ::thin], 4).tolist(),
        "minima": axis[np.argwhere(lowest_near)].tolist() if lam else [],
        "predicted_corner": float(np.abs(best.U).mean()),
        "predicted_objective": best.objective,
    }


def check_landscape(rows: Rows) -> Findings:
    """Check that the only minima are the four equalized points that Theorem 2.4 predicts."""
    for row in rows:
        lam = row["strength"]
        if lam == 0:
            yield Finding(
                "without dropout the minima form a circle of radius sqrt(2)",
                row["circle"],
                f"lowest grid value {row['lowest']:.2g}",
            )
            continue
        corner = row["predicted_corner"]
        minima = np.array(row["minima"])
        spacing = row["spacing"]
        near = len(minima) == 4
        if near:
            off = np.abs(minima - corners(corner).T)
            near = off.max() <= spacing
        excess = row["lowest"] - row["predicted_objective"]
        yield Finding(
            f"lam = {lam:g}: four minima, all equalized, where Theorem 2.4 puts them",
            near and 0 <= excess <= 20 * spacing**2,
            f"{len(minima)} minima at |u_i| = {np.abs(minima).mean():.4f}, predicted {corner:.4f}",
            "parallel to (+-1, +-1)",
        )


def plot_landscape(rows: Rows) -> Any:
    """Plot the surface above its contours for each strength."""
    picture, axes = column_of_each(rows, 3.8, 3.9)
    for row, panel in zip(rows, axes[0], strict=True):
        draw_levels(panel, row["axis"], row["objective"])
        panel.set_title(f"$\\lambda$ = {row['strength']:g}")
        if row["strength"]:
            ends = corners(row["predicted_corner"])
            panel.scatter(*ends, c="white", edgecolors="black", zorder=3)
        else:
            angle = np.linspace(0, 2 * np.pi, 200)
            radius = np.sqrt(TARGET)
            x = radius * np.cos(angle)
            y = radius * np.sin(angle)
            panel.plot(x, y, "w--", lw=1.2)
    return picture


def draw_levels(axes: Any, axis: Any, objective: Any) -> None:
    """Draw contours of the objective on a square of weights."""
    height = np.sqrt(np.minimum(objective, 8.0))
    axes.contourf(axis, axis, np.transpose(height), levels=24)
    axes.set(
        aspect="equal",
        xlabel="$u_1$",
        ylabel="$u_2$",
    )


def surface(axis: Floats, lam: float) -> Floats:
    """(m - a^2 - b^2)^2 + the penalty of (a, b), which is that of (a, 0) plus that of (0, b)."""
    drop = Dropout(lam / (1 + lam))
    single = [penalty.tied(np.array([[a, 0.0]]), drop) for a in axis]
    loss = (TARGET - axis[:, None] ** 2 - axis[None, :] ** 2) ** 2
    return np.asarray(loss + np.add.outer(single, single))


def corners(corner: float) -> Any:
    """Return the four equalized points, coordinates x points, in lexicographic order."""
    ends = product((-corner, corner), repeat=2)
    return np.array(list(ends)).T


figure(
    "dropout-fig1",
    "Figure 1",
    "2",
    """Dropout's landscape for two hidden units.

    Dropout turns the circle of minima into four equalized ones, which shrink as it grows.
    """,
    run=run_landscape,
    check=check_landscape,
    plot=plot_landscape,
)
