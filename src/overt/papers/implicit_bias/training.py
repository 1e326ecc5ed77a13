"""Sections 4 to 6: no spurious minima, the solver, and what dropout reaches."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from overt import equalize, penalty
from overt._figures import COLORS, GREEN, ORANGE, canvas, draw_band, draw_objective
from overt.linear import LinearNetwork, TiedAutoencoder, inverse_decay
from overt.linear.landscape import landscape
from overt.noise import Dropout
from overt.papers.descent import descend, slope_and_curvature, tied_objective
from overt.papers.evidence import DESCENT, EXACT, relative
from overt.papers.figures import (
    Finding,
    Findings,
    Params,
    Row,
    Rows,
    above,
    column_of_each,
    mean_interval,
    rows_with,
    together,
    values_of,
)
from overt.papers.implicit_bias.tied import (
    EXTENT,
    TARGET,
    WIDTH,
    corners,
    draw_levels,
    inequality,
    surface,
    symmetric,
)
from overt.papers.oracles import with_spectrum
from overt.papers.records import Residuals, Rng, figure, statement
from overt.papers.trajectories import log_steps, trajectory


@statement("Lemma 4.1", "4.1")
def equalized_optimum(rng: Rng) -> Residuals:
    r"""Local optima are equalized.

    Every local minimum of the tied dropout problem has equal column norms, so its penalty is
    (lam/r) |U|^4.

    TeX: Every local minimum of the tied dropout problem has equal column norms, so its penalty
    is $(\lambda/r) |U|^4$.
    """
    for width, prob in [(2, 0.2), (3, 0.5), (4, 0.4)]:
        drop = Dropout(prob)
        F = rng.standard_normal((4, 4))
        M = F @ F.T
        objective = tied_objective(M, drop.strength, width)
        for _ in range(2):
            start = rng.standard_normal(4 * width)
            _, theta = descend(objective, start)
            U = theta.reshape(4, width)
            share = np.sum(U**2) / width
            equalized = drop.strength * width * share**2
            yield relative(penalty.tied(U, drop), equalized)
            yield equalize.imbalance(U, U) / share**2
    return DESCENT, "all of 6 descents from random starts"


@statement("Theorem 4.3", "4.2")
def tied_landscape(rng: Rng) -> Residuals:
    r"""No spurious minima.

    The tied dropout problem has no spurious local minima: descent from any random start ends at
    the global optimum.

    Assumes: nothing on the drop probability; the bound printed on lam is not needed.

    TeX: The tied dropout problem has no spurious local minima: descent from any random start
    ends at the global optimum. \[\nabla F(U)=0,\
    \nabla^2F(U)\succeq0\;\Longrightarrow\;F(U)=\min F\]
    """
    for lam in (0.1, 1.0, 10.0):
        M = symmetric(rng, [3.0, 2.5, 1.0, 0.2])
        drop = Dropout(lam / (1 + lam))
        net = TiedAutoencoder(M, 3, drop)
        best = net.solve().objective
        objective = tied_objective(M, lam, 3)
        for _ in range(4):
            value, _ = descend(objective, rng.standard_normal(12))
            yield relative(value, best)
    return DESCENT, "the worst of 12 descents, lam from .1 to 10"


@statement("Theorem 4.3, saddles", "4.2")
def strict_saddle(rng: Rng) -> Residuals:
    r"""Saddles are strict, for any strength.

    Every equalized critical point but the global minimum has negative curvature, for any
    dropout strength.

    Assumes: tied weights and isotropic inputs; the printed theorem also asks for small lam.

    TeX: Every equalized critical point but the global minimum has negative curvature, for any
    dropout strength. \[\nabla F(U)=0,\ U\ \text{equalized},\ F(U)>\min
    F\;\Longrightarrow\;\lambda_{\min}(\nabla^2F(U))<0\]
    """
    for lam in (0.2, 2.0, 20.0):  # the paper proves it for small ones
        m = rng.uniform(0.2, 3.0, 4)
        view = landscape(symmetric(rng, m), 3, lam)
        objective = tied_objective(view.M, lam, 3)
        largest = m.max()
        # The global minimum comes first; every other point must bend down.
        for place, point in enumerate(view.points):
            theta = point.U.ravel()
            slope, lowest = slope_and_curvature(objective, theta)
            yield slope / largest
            missed = point.curvature - min(lowest, 0.0)
            yield abs(missed) / largest
            if place > 0:
                yield 2e-6 + lowest / largest
    return 1e-6, "slope and curvature of all critical points by differences"


@statement("Lemma D.1", "D")
def critical_below_target(rng: Rng) -> Residuals:
    r"""Critical points lie below the target.

    At every critical point of the tied problem M - UU' is positive semi-definite.

    Assumes: M positive semi-definite.

    TeX: At every critical point of the tied problem $M - UU^\top $ is positive semi-definite.
    """
    for lam in (0.2, 5.0):
        eigenvalues = rng.uniform(0.2, 3, 4)
        M = symmetric(rng, eigenvalues)
        objective = tied_objective(M, lam, 3)
        for point in landscape(M, 3, lam).points:
            rest = M - point.U @ point.U.T
            yield -np.linalg.eigvalsh(rest)[0]
            _, gradient = objective(point.U.ravel())
            yield np.linalg.norm(gradient)
    return 1e-8, "all critical points: their gradients, and eigenvalues of M - UU'"


@statement("Remark 5.2", "5")
def hadamard_equalizer(rng: Rng) -> Residuals:
    r"""The universal equalizer.

    For a width of 2^k the right singular vectors times a scaled Hadamard matrix equalize.

    Printed: The paper has the scale 2^((1-k)/2) at each doubling, which leaves a matrix that is
    not orthogonal from width 4 on; it is 2^(-1/2).

    TeX: For a width of $2^k$ the right singular vectors times a scaled Hadamard matrix
    equalize. \[Q=V H_{2^k},\qquad
    H_{2n}=2^{-1/2}\begin{pmatrix}H_n&H_n\\H_n&-H_n\end{pmatrix}\]
    """
    printed = math.inf
    for doublings in range(2, 4):
        U = rng.standard_normal((5, 2**doublings))
        _, _, right = np.linalg.svd(U)
        Z = np.ones((1, 1))
        as_printed = Z
        for k in range(2, doublings + 2):
            Z = np.block([[Z, Z], [-Z, Z]])
            Z /= math.sqrt(2)
            doubled = [[as_printed, as_printed], [-as_printed, as_printed]]
            as_printed = np.block(doubled)
            as_printed *= 2 ** ((1 - k) / 2)
        yield inequality(U, right.T @ Z)
        off = inequality(U, right.T @ as_printed)
        printed = min(printed, off)
    return EXACT, "orthogonality and differences of the norms", printed


STARTS = ([[0.2, -1.4]], [[-1.6, 1.3]])


def run_paths(params: Params, seed: int) -> dict[str, Any]:
    """Follow dropout from two starts and find where it ends."""
    lam = params["strength"]
    net = TiedAutoencoder([[TARGET]], WIDTH, Dropout(lam / (1 + lam)))
    steps = log_steps(params["steps"], 120)
    rate = inverse_decay(0.02, 400)

    def train(*args: Any, init: Any, **options: Any) -> Any:
        return net.train(*args, init=init[0], **options)

    paths = []
    for number, start in enumerate(STARTS):
        first = [np.array(start)]
        points = trajectory(train, first, steps, rate, seed + 1000 * number)
        paths.append([weights[0][0].tolist() for _, weights in points])
    best = net.solve()
    return {
        "paths": paths,
        "corner": float(np.abs(best.U).mean()),
        "optimum": best.objective,
        "final": [net.objective(np.array([path[-1]])) for path in paths],
    }


def check_paths(rows: Rows) -> Findings:
    """Check that both runs end at an equalized global optimum."""
    for row in rows:
        ends = np.abs([path[-1] for path in row["paths"]])
        corner = row["corner"]
        off = np.abs(ends - corner)
        equalized = off.max() <= 0.1 * corner
        worst = max(row["final"])
        excess = worst / row["optimum"] - 1
        yield Finding(
            f"lam = {row['strength']:g}: ends at a global, equalized optimum",
            excess <= 0.02 and equalized,
            f"|u_i| in {ends.min():.3f}..{ends.max():.3f}, exact {corner:.3f}; "
            f"objective {excess:.2%} above the optimum",
            "converges, parallel to (+-1, +-1)",
        )


def plot_paths(rows: Rows) -> Any:
    """Plot both paths on the objective's contours."""
    picture, axes = column_of_each(rows, 3.8, 3.9)
    axis = np.linspace(-EXTENT, EXTENT, 61)
    (panels,) = axes
    for row, panel in zip(rows, panels, strict=True):
        height = surface(axis, row["strength"])
        draw_levels(panel, axis, height)
        for path in row["paths"]:
            x, y = np.transpose(path)
            panel.plot(x, y, color="white", lw=0.9)
            panel.scatter(x[0], y[0], color=ORANGE, zorder=3)
        ends = corners(row["corner"])
        panel.scatter(*ends, color=GREEN, edgecolors="black", zorder=3)
        panel.set_title(f"$\\lambda$ = {row['strength']:g}")
    return picture


figure(
    "dropout-fig2",
    "Figure 2",
    "5",
    """Dropout finds the equalized optimum.

    Dropout converges to an equalized global optimum from any start, for every strength.
    """,
    run=run_paths,
    check=check_paths,
    plot=plot_paths,
)


DECAY = 10.0
"""Singular values are exp(-i / DECAY); the paper says only that they decay exponentially."""


def run_seeds(params: Params, seed: int) -> dict[str, Any]:
    """Train from many seeds and compare with the exact optimum."""
    m = params["outputs"]
    n = params["inputs"]
    lam = params["strength"]
    spectrum = np.exp(-np.arange(min(m, n)) / DECAY)
    M = with_spectrum(np.random.default_rng(0), m, n, spectrum)
    net = LinearNetwork(M, params["width"], Dropout(lam / (1 + lam)))
    rate = inverse_decay(4e-3 * 80 / n, params["steps"] / 10)
    seeds = range(seed, seed + params["seeds"])
    trace = net.train(params["steps"], rate, seeds, records=30)
    best = net.solve()
    return {
        "steps_seen": trace.steps.tolist(),
        "objective": trace.objective.tolist(),
        "imbalance": trace.imbalance.tolist(),
        "optimum": best.objective,
    }


def check_seeds(rows: Rows) -> Findings:
    """Check that the mean over seeds ends at the optimum, never below it, and is balanced."""
    for row in rows:
        objective = np.array(row["objective"])
        imbalance = np.array(row["imbalance"])
        means = objective.mean(axis=0)
        *_, before, last = means
        optimum = row["optimum"]
        excess = last / optimum - 1
        above_optimum = objective.min() >= optimum * (1 - 1e-8)
        verdict: Any = excess <= 0.02
        if not verdict and last < 0.99 * before:
            verdict = "inconclusive"  # still falling
        yield Finding(
            f"width {row['width']}, lam = {row['strength']:g}: within 2% of the optimum",
            together(verdict, above_optimum),
            f"mean of {len(objective)} runs ends {excess:.2%} above; imbalance "
            f"{imbalance.max(1).mean():.1e} -> {imbalance[:, -1].mean():.1e}",
            "converges; variance of |u_i||v_i| goes to 0",
        )
    yield _check_variance(rows)
    for width in values_of(rows, "width"):
        settings = rows_with(rows, width=width)
        settings.sort(key=lambda row: row["strength"])
        balanced = [_balanced_after(row) for row in settings]
        steps = np.array(balanced, dtype=float)
        sooner = []
        for weaker, stronger in pairwise(steps):
            ratio = mean_interval(np.log(weaker / stronger))
            sooner.append(above(ratio, 0))
        means = steps.mean(axis=1)
        deviations = steps.std(axis=1, ddof=1)
        spread = zip(means, deviations, strict=True)
        yield Finding(
            f"width {width}: the larger lam, the sooner the units are balanced",
            together(*sooner),
            "half of the peak imbalance after "
            + ", ".join(f"{n:,.0f} +- {e:,.0f}" for n, e in spread)
            + " steps",
            "faster for larger lam",
        )


def _check_variance(rows: Rows) -> Finding:
    """Check that the mean variance of |u_i||v_i| never rises by more than a twentieth."""
    rises = []
    for row in rows:
        curve = np.mean(row["imbalance"], axis=0)
        lowest = np.minimum.accumulate(curve[:-1])
        rise = np.max(curve[1:] / lowest)
        rises.append((rise, row["width"], row["strength"]))
    shown = [f"{rise:.1f} (width {w}, lam {lam:g})" for rise, w, lam in rises]
    return Finding(
        "the variance of |u_i||v_i| falls monotonically",
        max(rises)[0] <= 1.05,
        "the mean curve rises by a factor of " + ", ".join(shown),
        "decreases monotonically",
    )


def _balanced_after(row: Row) -> list[float]:
    """Return the step at which each run's imbalance is down to half of its peak."""
    found = []
    for curve in np.array(row["imbalance"]):
        peak = int(curve.argmax())
        falling = curve[peak:]
        low = np.flatnonzero(falling <= 0.5 * falling[0])
        after = row["steps"]
        if len(low):
            after = row["steps_seen"][peak + low[0]]
        found.append(max(after, 1))
    return found


def plot_seeds(rows: Rows) -> Any:
    """Plot the objective beside the optimum, and the imbalance, for each setting."""
    widths = values_of(rows, "width")
    strengths = values_of(rows, "strength")
    rows_drawn = len(widths)
    columns = len(strengths) + 1
    size = (3.2 * columns, 2.9 * rows_drawn)
    picture, axes = canvas(*size, rows_drawn, columns, squeeze=False)
    for row in rows:
        line = widths.index(row["width"])
        *panels, balance = axes[line]
        place = strengths.index(row["strength"])
        steps = row["steps_seen"]
        label = f"$\\lambda$ = {row['strength']:g}"
        objective = row["objective"]
        draw_objective(panels[place], steps, objective, row["optimum"])
        panels[place].set_title(f"width {row['width']}, {label}")
        draw_band(balance, steps, row["imbalance"], COLORS[place], label)
        balance.set_yscale("log")
        balance.set_title("variance of $|u_i||v_i|$")
        balance.legend()
    axes[0, 0].legend()
    for panel in axes[-1]:
        panel.set_xlabel("step")
    return picture


figure(
    "dropout-fig3",
    "Figure 3",
    "6",
    """Dropout reaches the exact optimum.

    Dropout converges to the exact global optimum and equalizes, faster for larger lam.
    """,
    run=run_seeds,
    check=check_seeds,
    plot=plot_seeds,
)
