"""Where SGD ends on the 2 x 2 problem: minima by rank, and how much noise it takes to get there.

One-way jumps, Figure 3 (the smaller epsilon, the longer the noisy phase must be), and the local
minima by rank against the weight decay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import BLUE, GRAY, ORANGE, canvas
from overt.decay import existence, minima, simulate, two_by_two
from overt.experiments.base import Findings, Params, Row, rows_with, values_of
from overt.experiments.jumps import WARM_UP, WIDTH, schedule
from overt.experiments.verdicts import Finding, above, below, mean_interval, together
from overt.theorems._descent import descend
from overt.theorems._oracles import chain
from overt.theorems.decay import network

RECOVERED = 0.1
"""Relative test error below which the missing entry counts as recovered."""

DECAYS = (0.025, 0.00025)
"""Where random descents try to find a minimum that is not on the list."""


def run_epsilon(params: Params, seed: int) -> dict[str, Any]:
    """Run t0 noisy steps (the warm-up included) and then the quiet phase, at depth 4."""
    noisy = params["noisy_steps"]
    start = [WARM_UP, (noisy - WARM_UP[0], 0.25, 0.1)] if noisy else []
    path = schedule(*start, (4000, 0.05, 0.001))
    given = (two_by_two(params["epsilon"]), 4, WIDTH, path, params["seeds"])
    runs = simulate(*given, records=[path.steps], balance=False, seed=seed)
    error = runs.test_error[:, -1]
    return {
        "test_error": error.tolist(),
        "mean": float(error.mean()),
        "standard_error": float(error.std(ddof=1) / np.sqrt(len(error))),
    }


def check_epsilon(rows: list[Row]) -> Findings:
    """Check that no noise fails, that some noise suffices for large epsilon, more for small."""
    table = {(row["epsilon"], row["noisy_steps"]): row["test_error"] for row in rows}
    epsilons, lengths = (sorted({key[i] for key in table}) for i in (0, 1))
    first = next(t for t in lengths if t)
    still = {e: table[e, 0] for e in epsilons}
    easy = {e: table[e, first] for e in epsilons if e >= 0.25}
    hard = [table[0.1, t] for t in lengths]
    gain = mean_interval(np.subtract(hard[0], hard[-1]))
    yield Finding(f"without a noisy phase the missing entry is not recovered (error above "
                  f"{RECOVERED:g})",
                  together(*(above(mean_interval(e), RECOVERED) for e in still.values())),
                  _means(still), "fails even for epsilon = 1")  # fmt: skip
    yield Finding(f"{first} noisy steps are enough for epsilon >= .25",
                  together(*(below(mean_interval(e), RECOVERED) for e in easy.values())),
                  _means(easy), "recovered")  # fmt: skip
    yield Finding("epsilon = .1 needs a longer noisy phase",
                  together(above(gain, 0), above(mean_interval(table[0.1, first]), RECOVERED)),
                  "error by noisy steps "
                  + ", ".join(f"{t}: {np.mean(e):.2f}" for t, e in zip(lengths, hard, strict=True)),
                  "larger t0 recovers smaller epsilon")  # fmt: skip


def _means(errors: dict[float, list[float]]) -> str:
    return "mean relative error " + ", ".join(f"{e:g}: {np.mean(v):.3f}" for e, v in errors.items())


def plot_epsilon(rows: list[Row]) -> Any:
    """Draw the relative test error against epsilon, one curve for each length."""
    figure, axes = canvas(6.4, 4.2)
    for noisy in values_of(rows, "noisy_steps"):
        line = sorted(rows_with(rows, noisy_steps=noisy), key=lambda r: r["epsilon"])
        x, mean, se = ([r[key] for r in line] for key in ("epsilon", "mean", "standard_error"))
        style = {"marker": "o", "ms": 3, "capsize": 2, "label": f"$t_0$ = {noisy}"}
        axes.errorbar(x, mean, yerr=[2 * s for s in se], **style)
    axes.set(xlabel=r"$\epsilon$", ylabel="test error / that of zeros", ylim=(-0.03, 1.05))
    axes.legend(title=f"{rows[0]['seeds']} seeds, 2 s.e.")
    return figure


def run_minima(params: Params, seed: int) -> dict[str, Any]:
    """Find the minima on a ladder of weight decays, and descend from random weights at two."""
    depth, problem = params["depth"], two_by_two(params["epsilon"])
    ladder = sorted({*np.geomspace(1e-5, 0.12, params["points"]), *DECAYS})
    points = []
    for lam in ladder:
        starts = 24 if lam in DECAYS else 1
        points += [
            {"weight_decay": float(lam), "rank": m.rank, "missing": float(m.matrix[0, 1]),
             "loss": m.loss, "curvature": m.curvature}
            for m in minima(problem, depth, lam, starts=starts, seed=seed, every=True)
        ]  # fmt: skip
    rng, ends = np.random.default_rng(seed), []
    for lam in DECAYS:
        objective, weights, size = network(problem, depth, 2, lam)
        for _ in range(params["descents"]):
            loss, theta = descend(objective, rng.standard_normal(size))
            ends.append((lam, loss, chain(weights(theta))[0, 1]))
    exists = {str(r): existence(problem, depth, r) for r in (1, 2)}
    return {"points": points, "ends": ends, "exists": exists}


def check_minima(rows: list[Row]) -> Findings:
    """Compare with random descents, and with the existence thresholds."""
    for row in rows:
        name = f"L = {row['depth']}, epsilon = {row['epsilon']:g}"
        listed = {(p["weight_decay"], p["loss"]) for p in row["points"]}
        off = [
            min(abs(loss / other - 1) for at, other in listed if at == lam)
            for lam, loss, _ in row["ends"]
        ]
        yield Finding(f"{name}: random descents end at the listed minima",
                      max(off) < 1e-6, f"{len(off)} descents, largest relative distance in loss "
                      f"{max(off):.0e}")  # fmt: skip
        limits = {int(r): lam for r, lam in row["exists"].items()}
        inside = all(p["weight_decay"] < limits[p["rank"]] for p in row["points"] if p["rank"])
        yield Finding(f"{name}: no rank-2 minimum above lam = {limits[2]:.4f}, no rank-1 above "
                      f"{limits[1]:.4f}", inside, "none found above")  # fmt: skip


def plot_minima(rows: list[Row]) -> Any:
    """Draw the missing entry and the loss of each rank's minimum against the weight decay."""
    figure, grid = canvas(3.3 * len(rows), 6, 2, len(rows), squeeze=False, sharex=True)
    colors = {0: GRAY, 1: ORANGE, 2: BLUE}
    for (upper, lower), row in zip(grid.T, rows, strict=True):
        for rank, mirrored in ((0, False), (1, False), (1, True), (2, False)):
            line = [p for p in row["points"] if (p["rank"], p["missing"] < 0) == (rank, mirrored)]
            lam, color = [p["weight_decay"] for p in line], colors[rank]
            style, label = (".:", "rank 1, mirrored") if mirrored else (".-", f"rank {rank}")
            for axes, key in ((upper, "missing"), (lower, "loss")):
                axes.plot(lam, [p[key] for p in line], style, ms=3, color=color, label=label)
        for rank in (1, 2):
            for axes in (upper, lower):
                axes.axvline(row["exists"][str(rank)], color=colors[rank], ls=":", lw=1)
        wanted = 1 / row["epsilon"]
        upper.axhline(wanted, color="black", ls=":", lw=0.8)
        upper.set(xscale="log", ylim=(-1.3 * wanted, 1.3 * wanted),
                  title=f"L = {row['depth']}, $\\epsilon$ = {row['epsilon']:g}")  # fmt: skip
        lower.set(yscale="log", xlabel="weight decay")
    grid[0, 0].set_ylabel("missing entry")
    grid[1, 0].set_ylabel("regularized loss")
    grid[0, 0].legend()
    return figure
