"""Implicit bias of dropout, Figure 3: stochastic dropout reaches the exact optimum and balances."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from overt._figures import COLORS, canvas, draw_band, draw_objective
from overt.experiments.base import Findings, Params, Row
from overt.experiments.verdicts import Finding, above, mean_interval, together
from overt.linear import LinearNetwork, inverse_decay
from overt.noise import Dropout

DECAY = 10.0
"""Singular values are exp(-i / DECAY); the paper says only that they decay exponentially."""


def target(outputs: int, inputs: int) -> np.ndarray[Any, Any]:
    """Return M with random singular subspaces and an exponentially decaying spectrum."""
    rng, k = np.random.default_rng(0), min(outputs, inputs)
    left = np.linalg.qr(rng.standard_normal((outputs, k)))[0]
    right = np.linalg.qr(rng.standard_normal((inputs, k)))[0]
    return left * np.exp(-np.arange(k) / DECAY) @ right.T


def run(params: Params, seed: int) -> dict[str, Any]:
    """Train from many seeds and compare with the exact optimum."""
    M = target(params["outputs"], params["inputs"])
    lam = params["strength"]
    net = LinearNetwork(M, params["width"], Dropout(lam / (1 + lam)))
    trace = net.train(
        params["steps"],
        inverse_decay(4e-3 * 80 / params["inputs"], params["steps"] / 10),
        range(seed, seed + params["seeds"]),
        records=30,
    )
    best = net.solve()
    return {
        "steps_seen": trace.steps.tolist(),
        "objective": trace.objective.tolist(),
        "imbalance": trace.imbalance.tolist(),
        "optimum": best.objective,
        "gap": best.certificate.relative_gap,
    }


def check(rows: list[Row]) -> Findings:
    """Check that the mean over seeds ends at the optimum, never below it, and is balanced."""
    for row in rows:
        objective, imbalance = np.array(row["objective"]), np.array(row["imbalance"])
        excess = objective[:, -1].mean() / row["optimum"] - 1
        below = objective.min() < row["optimum"] * (1 - 1e-8)
        falling = objective[:, -1].mean() < 0.99 * objective[:, -2].mean()
        yield Finding(
            f"width {row['width']}, lam = {row['strength']:g}: within 2 per cent of the optimum",
            not below and (excess <= 0.02 or (falling and "inconclusive")),
            f"mean of {len(objective)} runs ends {excess:.2%} above; imbalance "
            f"{imbalance.max(1).mean():.1e} -> {imbalance[:, -1].mean():.1e}",
            "converges; variance of |u_i||v_i| goes to 0",
        )
    for width in sorted({row["width"] for row in rows}):
        settings = sorted((r for r in rows if r["width"] == width), key=lambda r: r["strength"])
        steps = np.array([_balanced_after(row) for row in settings], dtype=float)
        gains = [mean_interval(np.log(a / b)) for a, b in pairwise(steps)]
        yield Finding(f"width {width}: the larger lam, the sooner the units are balanced",
                      together(*(above(gain, 0) for gain in gains)),
                      "half of the peak imbalance after "
                      + ", ".join(f"{n:,.0f} +- {e:,.0f}" for n, e in zip(
                          steps.mean(1), steps.std(1, ddof=1), strict=True)) + " steps",
                      "faster for larger lam")  # fmt: skip


def _balanced_after(row: Row) -> list[float]:
    """Return the step at which each run's imbalance is down to half of its peak."""
    found = []
    for curve in np.array(row["imbalance"]):
        peak = int(curve.argmax())
        low = np.flatnonzero(curve[peak:] <= 0.5 * curve[peak])
        found.append(max(row["steps_seen"][peak + low[0]] if len(low) else row["steps"], 1))
    return found


def plot(rows: list[Row]) -> Any:
    """Draw the objective beside the optimum, and the imbalance, for each setting."""
    widths = sorted({row["width"] for row in rows})
    strengths = sorted({row["strength"] for row in rows})
    figure, axes = canvas(
        3.2 * (len(strengths) + 1),
        2.9 * len(widths),
        len(widths),
        len(strengths) + 1,
        squeeze=False,
    )
    for row in rows:
        i, j = widths.index(row["width"]), strengths.index(row["strength"])
        draw_objective(axes[i][j], row["steps_seen"], row["objective"], row["optimum"])
        axes[i][j].set_title(f"width {row['width']}, $\\lambda$ = {row['strength']:g}")
        color = COLORS[j]
        draw_band(
            axes[i][-1], row["steps_seen"], row["imbalance"], color,
            label=f"$\\lambda$ = {row['strength']:g}",
        )  # fmt: skip
        axes[i][-1].set(yscale="log", title="variance of $|u_i||v_i|$")
        axes[i][-1].legend()
    axes[0][0].legend()
    for panel in axes[-1]:
        panel.set_xlabel("step")
    return figure
