"""Thesis, Figure 3-2: the spectrum of a deep linear network trained with dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt.experiments.base import Experiment, Finding, Findings, Params, Row, canvas, grid
from overt.linear import DeepLinearNetwork, inverse_decay


def run(params: Params, seed: int) -> dict[str, Any]:
    """Train with minibatches, and compare the spectrum with the envelope's and the best known."""
    rng, d, rank = np.random.default_rng(0), params["size"], params["rank"]
    N = rng.standard_normal((d, rank)) @ rng.standard_normal((rank, d)) / np.sqrt(d)
    N = N + 0.02 * rng.standard_normal((d, d))
    net = DeepLinearNetwork(N, (d,) * params["hidden"], params["drop_prob"])
    trace = net.train(
        params["steps"],
        inverse_decay(params["rate"], params["steps"] / 4),
        range(seed, seed + params["seeds"]),
        batch_size=params["batch"],
        records=6,
    )
    products = trace.weights[0]
    for W in trace.weights[1:]:
        products = W @ products
    best = net.solve()
    return {
        "target": np.linalg.svd(N, compute_uv=False).tolist(),
        "trained": np.linalg.svd(products, compute_uv=False).tolist(),
        "solved": np.linalg.svd(best.product, compute_uv=False).tolist(),
        "objective": trace.objective[:, -1].tolist(),
        "best": best.objective,
        "bound": best.certificate.lower_bound,
    }


def check(rows: list[Row]) -> Findings:
    """Check that spectra shrink and lose rank as dropout grows, unevenly, above the bound."""
    rows = sorted(rows, key=lambda row: row["drop_prob"])
    target = np.array(rows[0]["target"])
    trained = np.array([np.mean(row["trained"], axis=0) for row in rows])
    rank = np.sum(trained > 0.02 * target[0], axis=1)
    nuclear = trained.sum(axis=1)
    several = [i for i, row in enumerate(rows) if row["drop_prob"] > 0 and rank[i] >= 2]
    shrinkage = [(target - trained[i])[: rank[i]] for i in several]
    uneven = max(float(np.ptp(values) / values.mean()) for values in shrinkage)
    low = min(min(row["objective"]) / row["bound"] for row in rows if row["bound"] > 0)
    close = max(np.mean(row["objective"]) / row["best"] - 1 for row in rows if row["drop_prob"])
    yield Finding(
        "a higher drop probability shrinks the spectrum",
        np.all(np.diff(nuclear) < 0),
        "nuclear norms " + ", ".join(f"{value:.2f}" for value in nuclear),
        "shrinks",
    )
    yield Finding(
        "a higher drop probability thresholds the rank",
        np.all(np.diff(rank) <= 0) and rank[-1] < rank[0],
        "ranks " + ", ".join(map(str, rank)),
        "smaller rank",
    )
    yield Finding(
        "the shrinkage is not uniform over the kept values",
        uneven > 0.1,
        f"differs by up to {uneven:.0%} of its mean",
        "more sophisticated than nuclear-norm shrinkage",
    )
    yield Finding(
        "training stays above the proved bound and reaches the best solution known",
        low >= 1 - 1e-9 and close <= 0.05,
        f"lowest run {low - 1:.1%} above the bound; worst mean {close:.1%} above the best",
    )


def plot(rows: list[Row]) -> Any:
    """Draw target, trained, best known and envelope spectra."""
    from overt import spectral
    from overt.linear.plots import ACCENT, INK, QUIET

    figure, axes = canvas(3.1 * len(rows), 3.3, 1, len(rows), squeeze=False, sharey=True)
    for row, panel in zip(rows, axes[0], strict=True):
        count = min(2 * row["rank"] + 2, len(row["target"]))
        nu = spectral.nu((row["size"],) * row["hidden"], row["drop_prob"])
        envelope = spectral.SquaredNuclear().prox(row["target"], nu)
        panel.plot(row["target"][:count], color="black", lw=1, label="target")
        panel.plot(envelope[:count], color=QUIET, ls="--", label="convex envelope")
        panel.plot(row["solved"][:count], color=INK, label="best known")
        for i, s in enumerate(row["trained"]):
            label = "trained" if i == 0 else None
            panel.plot(s[:count], "o", ms=4, color=ACCENT, alpha=0.6, label=label)
        panel.set_title(f"drop probability {row['drop_prob']:g}", fontsize=10)
        panel.set_xlabel("index of singular value")
    axes[0][0].set_ylabel("singular value")
    axes[0][-1].legend(frameon=False, fontsize=8)
    return figure


EXPERIMENT = Experiment(
    id="thesis-fig3-2",
    title="Deep dropout shrinks and thresholds the spectrum",
    source="Thesis, Figure 3-2",
    claim="dropout on deep linear networks shrinks the spectrum and controls the rank",
    grids={
        "toy": grid(drop_prob=[0.0, 0.2, 0.4, 0.6], size=8, rank=3, hidden=2, steps=1500, batch=100,
                    rate=0.05, seeds=2),
        "full": grid(drop_prob=[0.0, 0.1, 0.2, 0.3, 0.4, 0.5], size=30, rank=10, hidden=2,
                     steps=6000, batch=1000, rate=0.05, seeds=50),
    },
    run=run, check=check, plot=plot,
)  # fmt: skip
