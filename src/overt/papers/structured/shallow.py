"""The shallow experiments of structured dropout (section 5.1): x in R^100, y = M x in R^80."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import BLUE, GRAY, ORANGE, canvas
from overt._types import Floats
from overt.linear import LinearNetwork, inverse_decay
from overt.noise import DropBlock, DropConnect, Dropout, Noise
from overt.papers.figures import Finding, Findings, Params, Row
from overt.papers.records import Rng
from overt.papers.trajectories import log_steps, trajectory

MASKS = 200


def dataset(params: Params) -> tuple[Floats, Floats]:
    """Return (X, Y): normal inputs (with a common factor if correlated), M = U_true V_true'.

    M is scaled to unit Frobenius norm, which changes units only.
    """
    rng = np.random.default_rng(0)
    samples, inputs, outputs = params["samples"], params["inputs"], params["outputs"]
    rho = params.get("correlation", 0.0)
    X = np.sqrt(1 - rho) * rng.standard_normal((samples, inputs))
    X = X + np.sqrt(rho) * rng.standard_normal((samples, 1))
    left = rng.standard_normal((outputs, params["width"]))
    M = left @ rng.standard_normal((params["width"], inputs))
    return X, X @ (M / np.linalg.norm(M)).T


def follow(
    net: LinearNetwork, params: Params, seed: int, rate: float | None = None
) -> tuple[dict[str, Any], Floats, Floats]:
    """Train one run; at each record compare the sampled objective with the exact one.

    Return the records, and the last U and V.
    """
    (m, _), (n, _) = net.effect.shapes
    rng = np.random.default_rng(seed)
    scale = (1 / (m * n * net.width)) ** 0.25
    start = [scale * rng.standard_normal((size, net.width)) for size in (m, n)]
    start_rate = rate or 0.4 * (1 - params["drop_prob"]) / n
    schedule = inverse_decay(start_rate, params["steps"] / 8)
    records = []
    marks = log_steps(params["steps"], 16)
    for step, (U, V) in trajectory(net.train, start, marks, schedule, seed):
        losses = sampled_objective(net, U, V, rng)
        error = losses.std(ddof=1) / np.sqrt(len(losses))
        records.append((step, net.objective(U, V), losses.mean(), error))
    names = ("steps_seen", "exact", "sampled", "error")
    columns = np.transpose(records).tolist()
    return dict(zip(names, columns, strict=True)), U, V


def sampled_objective(net: LinearNetwork, U: Floats, V: Floats, rng: Rng) -> Floats:
    """Return the mean squared error over all data under each of many masks."""
    loss = net.effect.regression.loss
    if isinstance(net.noise, DropConnect):
        masks = net.noise.multipliers(V.shape, MASKS, rng)
        return np.array([loss(U, z * V) for z in masks])
    masks = net.noise.multipliers(net.width, MASKS, rng)
    return np.array([loss(U * z, V) for z in masks])


def network(params: Params, noise: Noise) -> LinearNetwork:
    """Return the network of a setting."""
    X, Y = dataset(params)
    return LinearNetwork(X=X, Y=Y, width=params["width"], noise=noise)


def run_dropblock(params: Params, seed: int) -> dict[str, Any]:
    """Train with DropBlock on a grid, and solve exactly."""
    net = network(params, DropBlock(params["drop_prob"], params["block_size"]))
    best = net.solve()
    records, U, V = follow(net, params, seed)
    return {
        **records,
        "bound": net.certify(U, V).lower_bound,
        "optimum": best.objective,
        "gap": best.certificate.relative_gap,
        "rank": best.rank,
        "spectrum": np.linalg.svd(U @ V.T, compute_uv=False).tolist(),
        "best_spectrum": best.spectrum.tolist(),
    }


def run_dropconnect(params: Params, seed: int) -> dict[str, Any]:
    """Train with DropConnect and with Dropout from the same start."""
    connect = network(params, DropConnect(params["drop_prob"]))
    dropout = network(params, Dropout(params["drop_prob"]))
    records, U, V = follow(connect, params, seed)
    twin, *_ = follow(dropout, params, seed)
    return {
        **records,
        "bound": connect.certify(U, V).lower_bound,
        "dropout_exact": twin["exact"],
        "dropout_sampled": twin["sampled"],
        "penalty": connect.penalty(U, V),
        "dropout_penalty": dropout.penalty(U, V),
        "optimum": connect.solve().objective,
        "dropout_optimum": dropout.solve().objective,
    }


def sampled_equals_exact(row: Row) -> Finding:
    """Check that masks average to the closed form at every record."""
    off = np.abs(np.subtract(row["sampled"], row["exact"])) / row["error"]
    return Finding(
        f"drop probability {row['drop_prob']:g}: the stochastic objective equals the exact one",
        off.max() <= 5,
        f"largest deviation over {len(off)} records: {off.max():.1f} s.e.",
        "curves coincide",
    )


def check_dropblock(rows: list[Row]) -> Findings:
    """Check Lemma 2.1 along the run and convergence to Theorem 2.7's minimum."""
    for row in rows:
        yield sampled_equals_exact(row)
        excess = row["exact"][-1] / row["optimum"] - 1
        above = min(row["exact"]) >= row["bound"] * (1 - 1e-8)
        yield Finding(
            f"drop probability {row['drop_prob']:g}: ends within 3 % of Theorem 2.7's minimum",
            -1e-8 <= excess <= 0.03 and above,
            f"{excess:.2%} above the optimum of rank {row['rank']} "
            f"(its gap to the proved bound: {row['gap']:.0e})",
            "converges",
        )


CLOSE = 0.1
"""Relative difference up to which two curves on a log scale coincide, as in Figure 4."""


def check_dropconnect(rows: list[Row]) -> Findings:
    """Check the corrected Theorem 4.1, and where DropConnect equals Dropout."""
    for row in rows:
        yield sampled_equals_exact(row)
        ratio = row["dropout_penalty"] / row["penalty"] - 1
        same = abs(row["dropout_optimum"] / row["optimum"] - 1)
        drop = f"drop probability {row['drop_prob']:g}"
        if row["correlation"] == 0:
            yield Finding(
                f"{drop}, uncorrelated inputs: Dropout's optimum, up to sampling",
                same <= CLOSE,
                f"optima differ by {same:.1%}, by sample correlations; at most {CLOSE:.0%} count "
                "as equal",
                "curves coincide",
            )
        else:
            yield Finding(
                f"{drop}, correlation {row['correlation']:g}: not Dropout's objective",
                abs(ratio) >= 0.05,
                f"Dropout's penalty at the same weights differs by {ratio:+.0%}, "
                f"the optimum by {same:.0%}",
                "claimed equal; corrected",
            )


def draw_run(axes: Any, row: Row, colors: tuple[str, str], name: str) -> None:
    """Plot what masks average to, with five standard errors, on the exact objective."""
    steps = np.maximum(row["steps_seen"], 1)
    error = 5 * np.array(row["error"])
    label = f"{name}, sampled (5 s.e.)"
    style = {"fmt": "o", "ms": 3.5, "color": colors[0], "label": label}
    axes.errorbar(steps, row["sampled"], yerr=error, **style)
    axes.plot(steps, row["exact"], color=colors[1], label=f"{name}, exact")
    axes.set(xscale="log", yscale="log", xlabel="step")


def plot_dropblock(rows: list[Row]) -> Any:
    """Plot sampled and exact objectives, the optimum, and the spectra."""
    picture, axes = canvas(3.8 * len(rows), 6.4, 2, len(rows), squeeze=False)
    for row, top, bottom in zip(rows, *axes, strict=True):
        draw_run(top, row, (ORANGE, BLUE), "DropBlock")
        top.axhline(row["optimum"], color="black", ls="--", lw=1, label="Theorem 2.7")
        top.set_title(f"drop probability {row['drop_prob']:g}")
        count = max(row["rank"] + 6, 12)
        trained = row["spectrum"][:count]
        bottom.plot(trained, "o", ms=4, color=ORANGE, label="after training")
        bottom.plot(row["best_spectrum"][:count], color=BLUE, label="exact optimum")
        bottom.set_xlabel("index of singular value")
    axes[0, 0].set_ylabel("objective")
    axes[1, 0].set_ylabel("singular value")
    for panel in axes[:, 0]:
        panel.legend()
    return picture


def plot_dropconnect(rows: list[Row]) -> Any:
    """Plot DropConnect's sampled and exact objective, and Dropout's beside it."""
    picture, axes = canvas(3.8 * len(rows), 3.6, 1, len(rows), squeeze=False)
    for row, panel in zip(rows, axes[0], strict=True):
        draw_run(panel, row, (ORANGE, BLUE), "DropConnect")
        steps = np.maximum(row["steps_seen"], 1)
        dropout = row["dropout_exact"]
        panel.plot(steps, dropout, color=GRAY, ls="--", label="Dropout, exact")
        panel.set_title(
            f"drop {row['drop_prob']:g}, correlation {row['correlation']:g}"
        )
    axes[0, 0].legend()
    axes[0, 0].set_ylabel("objective")
    return picture


DIFFERS = {
    "toy": "20 inputs, 16 outputs, width 10, 200 samples, 40,000 steps",
    "paper": "learning rates are not printed; 500,000 steps, one run",
}
DROPBLOCK: dict[str, Any] = {
    "run": run_dropblock,
    "check": check_dropblock,
    "plot": plot_dropblock,
    "differs": DIFFERS,
}
DROPCONNECT: dict[str, Any] = {
    "run": run_dropconnect,
    "check": check_dropconnect,
    "plot": plot_dropconnect,
    "differs": DIFFERS,
}


def sizes(**axes: Any) -> dict[str, dict[str, Any]]:
    """Return the settings at both sizes; a pair has one value for each."""
    given = {
        **axes,
        "samples": (200, 1000),
        "inputs": (20, 100),
        "outputs": (16, 80),
        "width": axes.get("width", (10, 50)),
        "steps": axes.get("steps", (40000, 500000)),
    }
    small = {k: v[0] if isinstance(v, tuple) else v for k, v in given.items()}
    large = {k: v[1] if isinstance(v, tuple) else v for k, v in given.items()}
    return {"toy": small, "paper": large}
