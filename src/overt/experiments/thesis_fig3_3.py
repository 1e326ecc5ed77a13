"""Thesis, Figure 3-3: deep dropout equalizes a network with one output."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt import equalize
from overt.experiments._trajectories import log_steps, trajectory
from overt.experiments.base import Experiment, Finding, Findings, Params, Row, canvas, grid
from overt.linear import DeepLinearNetwork, inverse_decay


def run(params: Params, seed: int) -> dict[str, Any]:
    """Follow one run and record the equalization gap of every order."""
    width, hidden = params["width"], params["hidden"]
    rng = np.random.default_rng(seed)
    target = np.random.default_rng(0).standard_normal((1, width))
    net = DeepLinearNetwork(target, (width,) * hidden, params["drop_prob"])
    start = [rng.standard_normal(shape) / np.sqrt(shape[1]) for shape in net.shapes]
    grid = log_steps(params["steps"], 24)
    rate = inverse_decay(params["rate"], params["steps"] / 4)
    path = list(trajectory(net.train, start, grid, rate, 1000 * seed, batch_size=params["batch"]))
    best = net.solve()
    return {
        "steps_seen": [step for step, _ in path],
        "gaps": [[float(g) for g in equalize.equalization_gaps(w)] for _, w in path],
        "objective": [net.objective(w) for _, w in path],
        "optimum": best.objective,
        "map_error": best.certificate.distance,
        "solution_gaps": [float(g) for g in equalize.equalization_gaps(best.weights)],
    }


def check(rows: list[Row]) -> Findings:
    """Check that the gaps of all orders go to zero and the objective to its optimum."""
    gaps = np.array([row["gaps"] for row in rows])  # (runs, records, orders)
    excess = np.array([row["objective"][-1] / row["optimum"] - 1 for row in rows])
    first, last = gaps[:, 0].mean(axis=0), gaps[:, -1].mean(axis=0)
    yield Finding(
        "the equalization gap of every order goes to zero",
        np.all(last <= 0.05 * np.maximum(first, 0.1)),
        f"orders 1..{len(last)}: "
        + ", ".join(f"{a:.2g} -> {b:.1e}" for a, b in zip(first, last, strict=True)),
        "goes to 0",
    )
    yield Finding(
        "the objective reaches the optimum (Corollary 1, corrected)",
        np.all(excess >= -1e-9) and excess.mean() <= 0.02,
        f"mean of {len(rows)} runs ends {excess.mean():.2%} above",
    )
    yield Finding(
        "the exact solution is equalized",
        np.abs([row["solution_gaps"] for row in rows]).max() <= 1e-12,
        f"largest gap {np.abs([row['solution_gaps'] for row in rows]).max():.0e}",
    )


def plot(rows: list[Row]) -> Any:
    """Draw the gap of every order with its spread over runs."""
    from overt.linear.plots import draw_band

    figure, axes = canvas(6, 4)
    gaps = np.array([row["gaps"] for row in rows])
    shades = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08306b")
    for order in range(gaps.shape[2]):
        draw_band(
            axes, rows[0]["steps_seen"], np.maximum(gaps[:, :, order], 1e-12),
            shades[order % len(shades)], label=f"order {order + 1}",
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(1e-8, float(np.abs(gaps[:, -1]).min()) / 10))
    axes.set(xlabel="step", ylabel="equalization gap $R_l / LB_l - 1$")
    axes.legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    id="thesis-fig3-3",
    title="Deep dropout equalizes",
    source="Thesis, Figure 3-3",
    claim="with one output, dropout converges to equalized networks, in every order",
    grids={
        "toy": grid(run=[0, 1], width=4, hidden=3, drop_prob=0.5, steps=8000, batch=50, rate=0.1),
        "full": grid(run=list(range(50)), width=5, hidden=5, drop_prob=0.5, steps=10_000,
                     batch=1000, rate=0.05),
    },
    run=run, check=check, plot=plot,
    revision=2,
)  # fmt: skip
