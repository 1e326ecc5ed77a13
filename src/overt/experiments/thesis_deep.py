"""Thesis, Figures 3-2 and 3-3: deep linear networks with dropout: spectra and equalization."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from overt import equalize
from overt._figures import BLUE, GRAY, ORANGE, canvas, draw_band
from overt.experiments._trajectories import log_steps, trajectory
from overt.experiments.base import Findings, Params, Row
from overt.experiments.verdicts import Finding, above, below, mean_interval, together
from overt.linear import DeepLinearNetwork, inverse_decay


def run_spectra(params: Params, seed: int) -> dict[str, Any]:
    """Train with minibatches, and compare the spectrum with the envelope's and the best known."""
    rng, d, rank = np.random.default_rng(0), params["size"], params["rank"]
    N = rng.standard_normal((d, rank)) @ rng.standard_normal((rank, d)) / np.sqrt(d)
    N = N + 0.02 * rng.standard_normal((d, d))
    net = DeepLinearNetwork(N, (d,) * params["hidden"], params["drop_prob"])
    rate = inverse_decay(params["rate"], params["steps"] / 4)
    seeds, batch = range(seed, seed + params["seeds"]), params["batch"]
    trace = net.train(params["steps"], rate, seeds, batch_size=batch, records=6)
    products, best = reduce(lambda product, W: W @ product, trace.weights), net.solve()
    return {
        "target": np.linalg.svd(N, compute_uv=False).tolist(),
        "trained": np.linalg.svd(products, compute_uv=False).tolist(),
        "solved": best.spectrum.tolist(),
        "objective": trace.objective[:, -1].tolist(),
        "best": best.objective,
        "bound": best.certificate.lower_bound,
    }


def check_spectra(rows: list[Row]) -> Findings:
    """Check that spectra shrink and lose rank as dropout grows, unevenly, above the bound."""
    rows = sorted(rows, key=lambda row: row["drop_prob"])
    target = np.array(rows[0]["target"])
    trained = np.array([np.mean(row["trained"], axis=0) for row in rows])
    rank = np.sum(trained > 0.02 * target[0], axis=1)
    several = [i for i, row in enumerate(rows) if row["drop_prob"] > 0 and rank[i] >= 2]
    # First less last shrinkage of the kept values, run by run, at each strength.
    grown = [(np.array(rows[i]["trained"]) - target) @ _ends(len(target), rank[i]) for i in several]
    uneven = [mean_interval(change, 1 - 0.05 / len(several)) for change in grown]
    low = min(min(row["objective"]) / row["bound"] for row in rows if row["bound"] > 0)
    close = max(np.mean(row["objective"]) / row["best"] - 1 for row in rows if row["drop_prob"])
    sizes = np.array([np.sum(row["trained"], axis=1) for row in rows])  # (drop_prob, runs)
    yield Finding("a higher drop probability shrinks the spectrum",
                  together(*(above(mean_interval(a - b), 0) for a, b in pairwise(sizes))),
                  "nuclear norms " + ", ".join(f"{value:.2f}" for value in trained.sum(axis=1)),
                  "shrinks")  # fmt: skip
    yield Finding("a higher drop probability thresholds the rank",
                  np.all(np.diff(rank) <= 0) and rank[-1] < rank[0],
                  "ranks " + ", ".join(map(str, rank)), "smaller rank")  # fmt: skip
    yield Finding("the shrinkage is not uniform over the kept values",
                  above((max(max(low, -high) for low, high in uneven), np.inf), 0),
                  "largest less smallest kept value, shrunk by: "
                  + ", ".join(f"{low:+.3f} to {high:+.3f}" for low, high in uneven),
                  "more sophisticated than nuclear-norm shrinkage")  # fmt: skip
    yield Finding(
        "training stays above the proved bound and ends within 5 per cent of the best known",
        low >= 1 - 1e-8 and close <= 0.05,
        f"lowest run {low - 1:.1%} above the bound; worst mean {close:.1%} above the best",
    )


def _ends(count: int, rank: int) -> Any:
    """Return the weights of the last kept value less the first."""
    return np.eye(count)[rank - 1] - np.eye(count)[0]


def plot_spectra(rows: list[Row]) -> Any:
    """Draw target, trained, best known and envelope spectra."""
    from overt import spectral

    figure, axes = canvas(3.1 * len(rows), 3.3, 1, len(rows), squeeze=False, sharey=True)
    for row, panel in zip(rows, axes[0], strict=True):
        count = min(2 * row["rank"] + 2, len(row["target"]))
        nu = spectral.nu((row["size"],) * row["hidden"], row["drop_prob"])
        envelope = spectral.SquaredNuclear().prox(row["target"], nu)
        panel.plot(row["target"][:count], color="black", lw=1, label="target")
        panel.plot(envelope[:count], color=GRAY, ls="--", label="convex envelope")
        panel.plot(row["solved"][:count], color=BLUE, label="best known")
        for i, s in enumerate(row["trained"]):
            label = "trained" if i == 0 else None
            panel.plot(s[:count], "o", ms=4, color=ORANGE, alpha=0.6, label=label)
        panel.set(title=f"drop probability {row['drop_prob']:g}", xlabel="index of singular value")
    axes[0][0].set_ylabel("singular value")
    axes[0][-1].legend()
    return figure


def run_gaps(params: Params, seed: int) -> dict[str, Any]:
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


def check_gaps(rows: list[Row]) -> Findings:
    """Check that the gaps of all orders go to zero and the objective to its optimum."""
    gaps = np.array([row["gaps"] for row in rows])  # (runs, records, orders)
    excess = np.array([row["objective"][-1] / row["optimum"] - 1 for row in rows])
    first, last = gaps[:, 0].mean(axis=0), gaps[:, -1].mean(axis=0)
    yield Finding("the equalization gap of every order falls to a twentieth",
                  together(*(below(mean_interval(g), 0.05 * max(f, 0.1))
                             for g, f in zip(gaps[:, -1].T, first, strict=True))),
                  f"orders 1..{len(last)}: "
                  + ", ".join(f"{a:.2g} -> {b:.1e}" for a, b in zip(first, last, strict=True)),
                  "goes to 0")  # fmt: skip
    yield Finding("the objective ends within 2 per cent of the optimum (Corollary 1, corrected)",
                  np.all(excess >= -1e-8) and excess.mean() <= 0.02,
                  f"mean of {len(rows)} runs ends {excess.mean():.2%} above")  # fmt: skip
    largest = np.abs([row["solution_gaps"] for row in rows]).max()
    yield Finding("the exact solution is equalized", largest <= 1e-12, f"largest gap {largest:.0e}")


def plot_gaps(rows: list[Row]) -> Any:
    """Draw the gap of every order with its spread over runs."""
    figure, axes = canvas(6, 4)
    gaps = np.array([row["gaps"] for row in rows])
    shades = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08306b")
    for order in range(gaps.shape[2]):
        curves, color = np.maximum(gaps[:, :, order], 1e-12), shades[order % len(shades)]
        draw_band(axes, rows[0]["steps_seen"], curves, color, label=f"order {order + 1}")
    bottom = max(1e-8, float(np.abs(gaps[:, -1]).min()) / 10)
    axes.set(yscale="log", ylim=(bottom, None), xlabel="step",
             ylabel="equalization gap $R_l / LB_l - 1$")  # fmt: skip
    axes.legend()
    return figure
