"""Dropout's predictive variance in one pass against Monte Carlo, and whether it is calibrated.

Networks of one to three hidden ReLU layers with dropout after each, trained on scikit-learn's
diabetes data (10 features, standardized target).
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np

from overt.experiments.base import Experiment, Findings, Params, Row, canvas, grid
from overt.experiments.verdicts import Finding

PASSES = (10, 30, 100, 300)


def run(params: Params, seed: int) -> dict[str, Any]:
    """Train one network; compare one pass with many, and intervals with held-out targets."""
    import torch

    from overt.nn import calibration, mc_moments, predictive_moments

    torch.manual_seed(seed)
    (x, y), (x_held, y_held), (x_test, y_test) = _data()
    model = _train(params, x, y)
    with torch.no_grad():
        start = time.perf_counter()
        mean, variance = predictive_moments(model, x_test)
        one_pass = time.perf_counter() - start
        start = time.perf_counter()
        reference = mc_moments(model, x_test, params["passes"], seed=seed)
        many = (time.perf_counter() - start) / params["passes"]
        sd, scale = reference.variance.sqrt(), reference.mean.norm()
        curve = []
        for n in PASSES:
            sampled = mc_moments(model, x_test, n, seed=seed + n)
            curve.append(float((sampled.variance.sqrt() - sd).norm() / sd.norm()))
        residual = float(((model(x_held) - y_held) ** 2).mean())
        calibrated = calibration(mean, variance, y_test, noise_variance=residual)
        by_sampling = calibration(
            reference.mean, reference.variance, y_test, noise_variance=residual
        )
    return {
        "mean_error": float((mean - reference.mean).norm() / scale),
        "sd_error": float((variance.sqrt() - sd).norm() / sd.norm()),
        "mc_sd_error": curve,
        "sd": sd.flatten()[:60].tolist(),
        "one_pass_sd": variance.sqrt().flatten()[:60].tolist(),
        "ratio_to_100": 100 * many / one_pass,
        "nominal": calibrated.nominal.tolist(),
        "observed": calibrated.observed.tolist(),
        "sampled_observed": by_sampling.observed.tolist(),
        "calibration_error": calibrated.error,
    }


def check(rows: list[Row]) -> Findings:
    """Check the errors of mean and standard deviation, and the calibration."""
    for row in rows:
        name = f"{row['hidden']} hidden layer(s), drop {row['drop_prob']:g}"
        noise = 3 / np.sqrt(row["passes"])
        bound = noise if row["hidden"] == 1 else 0.07
        same = np.abs(np.subtract(row["observed"], row["sampled_observed"])).max()
        yield Finding(
            f"{name}: one pass gives Monte Carlo's standard deviation"
            + (", exactly" if row["hidden"] == 1 else " to 7 per cent"),
            row["sd_error"] <= bound and row["mean_error"] <= bound,
            f"sd off by {row['sd_error']:.2%}, mean by {row['mean_error']:.2%} of "
            f"{row['passes']} passes; 100 passes are off by {row['mc_sd_error'][2]:.1%}",
        )
        yield Finding(f"{name}: intervals hold the same share of targets either way", same <= 0.05,
                      f"coverage differs by at most {same:.3f}; mean error against nominal "
                      f"{row['calibration_error']:.3f}")  # fmt: skip


def plot(rows: list[Row]) -> Any:
    """Draw standard deviations, the error against the number of passes, and calibration."""
    figure, (left, middle, right) = canvas(11, 3.6, 1, 3)
    for i, row in enumerate(rows):
        color = f"C{i}"
        label = f"{row['hidden']} hidden, drop {row['drop_prob']:g}"
        left.scatter(row["sd"], row["one_pass_sd"], s=8, color=color, label=label)
        middle.plot(PASSES, row["mc_sd_error"], marker="o", ms=3, color=color)
        middle.axhline(row["sd_error"], color=color, ls="--", lw=1)
        right.plot(row["nominal"], row["observed"], marker="o", ms=3, color=color)
    top = max(max(row["sd"]) for row in rows)
    left.plot([0, top], [0, top], color="0.75", lw=1, zorder=0)
    left.set(xlabel="standard deviation, Monte Carlo", ylabel="in one pass")
    left.legend(frameon=False, fontsize=8)
    middle.set(xscale="log", yscale="log", xlabel="Monte Carlo passes",
               ylabel="relative error of the sd", title="dashed: one pass")  # fmt: skip
    right.plot([0, 1], [0, 1], color="0.75", lw=1)
    right.set(xlabel="nominal coverage", ylabel="observed on held-out data")
    return figure


def _data() -> list[tuple[Any, Any]]:
    """Return inputs and targets for training, for the noise level, and for testing."""
    import torch
    from sklearn.datasets import load_diabetes

    raw = load_diabetes()
    order = np.random.default_rng(0).permutation(len(raw.target))
    X = raw.data[order] / raw.data.std(axis=0)
    y = (raw.target[order] - raw.target.mean()) / raw.target.std()
    x, t = torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    return [(x[a:b], t[a:b]) for a, b in ((0, 260), (260, 320), (320, len(x)))]


def _train(params: Params, x: Any, y: Any) -> Any:
    import torch

    parts: list[Any] = []
    widths = [x.shape[1]] + [params["width"]] * params["hidden"]
    for a, b in pairwise(widths):
        parts += [torch.nn.Linear(a, b), torch.nn.ReLU(), torch.nn.Dropout(params["drop_prob"])]
    model = torch.nn.Sequential(*parts, torch.nn.Linear(widths[-1], 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(params["steps"]):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model.eval()


EXPERIMENT = Experiment(
    id="nn-variance",
    title="Dropout's predictive variance in one pass",
    source="our own; structured dropout, Lemma 3.1 per input",
    claim="one pass gives the mean and variance of Monte Carlo dropout, exactly for one hidden "
    "layer and to a few per cent for three",
    grids={
        "toy": grid(hidden=[1, 3], drop_prob=0.2, width=32, steps=150, passes=2000),
        "paper": grid(hidden=[1, 2, 3], drop_prob=[0.1, 0.3], width=100, steps=300, passes=20_000),
    },
    differs={"paper": "our own figure"},
    run=run, check=check, plot=plot, needs={"torch": "torch"},
)  # fmt: skip
