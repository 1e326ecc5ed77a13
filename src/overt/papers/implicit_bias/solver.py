"""Section 5: the polynomial-time solver and dropout from two starts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from overt import equalize
from overt._figures import GREEN, ORANGE, canvas
from overt.linear import TiedAutoencoder, inverse_decay
from overt.noise import Dropout
from overt.papers.evidence import EXACT
from overt.papers.figures import Finding, Findings, Params, Row
from overt.papers.implicit_bias.tied import (
    EXTENT,
    TARGET,
    WIDTH,
    corners,
    inequality,
    surface,
)
from overt.papers.records import Residuals, Rng, figure, item, statement
from overt.papers.trajectories import log_steps, trajectory


@statement("Remark 5.2", "5", how="sampled")
def hadamard_equalizer(scale: int, rng: Rng) -> Residuals:
    r"""The universal equalizer.

    For a width of 2^k the right singular vectors times a scaled Hadamard matrix equalize.

    Printed: The paper has the scale 2^((1-k)/2) at each doubling, which leaves a matrix that is
    not orthogonal from width 4 on; it is 2^(-1/2).

    TeX: For a width of $2^k$ the right singular vectors times a scaled Hadamard matrix
    equalize. \[Q=V H_{2^k},\qquad
    H_{2n}=2^{-1/2}\begin{pmatrix}H_n&H_n\\H_n&-H_n\end{pmatrix}\]
    """
    printed = math.inf
    for doublings in range(2, 4 + scale // 2):
        width = 2**doublings
        U = rng.normal(size=(5, width))
        Z = np.ones((1, 1))
        for k in range(2, doublings + 2):
            Z = 2 ** ((1 - k) / 2) * np.block([[Z, Z], [-Z, Z]])
        right = np.linalg.svd(U)[2].T
        yield inequality(U, equalize.hadamard_equalizer(U))
        printed = min(printed, inequality(U, right @ Z))
    return EXACT, "orthogonality and differences of the norms", printed


STARTS = ([[0.2, -1.4]], [[-1.6, 1.3]])


def run_paths(params: Params, seed: int) -> dict[str, Any]:
    """Follow dropout from two starts and find where it ends."""
    lam = params["strength"]
    net = TiedAutoencoder([[TARGET]], WIDTH, Dropout(lam / (1 + lam)))
    steps = log_steps(params["steps"], 120)

    def train(*args: Any, init: Any, **options: Any) -> Any:
        return net.train(*args, init=init[0], **options)

    paths = []
    for number, start in enumerate(STARTS):
        points = trajectory(
            train,
            [np.array(start)],
            steps,
            inverse_decay(0.02, 400),
            seed + 1000 * number,
        )
        paths.append([weights[0][0].tolist() for _, weights in points])
    axis, best = np.linspace(-EXTENT, EXTENT, 61), net.solve()
    return {
        "paths": paths,
        "axis": axis.tolist(),
        "surface": np.round(surface(axis, lam), 4).tolist(),
        "corner": float(np.abs(best.U).mean()),
        "optimum": best.objective,
        "final": [net.objective(np.array([path[-1]])) for path in paths],
    }


def check_paths(rows: list[Row]) -> Findings:
    """Check that both runs end at an equalized global optimum."""
    for row in rows:
        ends = np.abs([path[-1] for path in row["paths"]])
        excess = max(row["final"]) / row["optimum"] - 1
        yield Finding(
            f"lam = {row['strength']:g}: ends at a global, equalized optimum",
            excess <= 0.02
            and np.abs(ends - row["corner"]).max() <= 0.1 * row["corner"],
            f"|u_i| in {ends.min():.3f}..{ends.max():.3f}, exact {row['corner']:.3f}; "
            f"objective {excess:.2%} above the optimum",
            "converges, parallel to (+-1, +-1)",
        )


def plot_paths(rows: list[Row]) -> Any:
    """Plot both paths on the objective's contours."""
    figure, axes = canvas(3.8 * len(rows), 3.9, 1, len(rows), squeeze=False)
    for row, panel in zip(rows, axes[0], strict=True):
        x, y = np.meshgrid(row["axis"], row["axis"], indexing="ij")
        panel.contourf(x, y, np.sqrt(np.minimum(row["surface"], 8.0)), levels=24)
        for path in row["paths"]:
            panel.plot(*np.transpose(path), color="white", lw=0.9)
            panel.scatter(*path[0], color=ORANGE, zorder=3)
        panel.scatter(
            *corners(row["corner"]), color=GREEN, edgecolors="black", zorder=3
        )
        panel.set(
            title=f"$\\lambda$ = {row['strength']:g}",
            xlabel="$u_1$",
            ylabel="$u_2$",
            aspect="equal",
            xlim=(-EXTENT, EXTENT),
            ylim=(-EXTENT, EXTENT),
        )
    return figure


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
    hours={"paper": 0.01},
    sizes={
        "toy": {
            "strength": [0.1, 0.5, 1.0],
            "steps": 20000,
        },
        "paper": {
            "strength": [0.1, 0.5, 1.0],
            "steps": 100000,
        },
    },
    differs={"toy": "20,000 steps", "paper": "steps and rate not printed: 100,000"},
    revision=2,
)

item(
    "Remark 5.1",
    "5",
    "Cost of Algorithm 3",
    how="not checked",
    open=(
        "an order of growth, each term the textbook cost of the step that it names; no "
        "run decides an O()"
    ),
)
item(
    "Algorithm 3",
    "5",
    "The polynomial-time solver",
    by=("shallow-optimum", "solver-shrinkage"),
)
item(
    "Section 5, comparison",
    "5",
    "Comparison with Cavazza et al. (I) to (IV)",
    how="not checked",
    open="(II) and (III) follow from the solver; no check compares the two papers",
)
