"""The tour's chapter on half-empty matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from overt import datasets
from overt._html import Page
from overt.completion import DropoutCompletion


def chapter(page: Page, folder: Path, seed: int) -> bool:
    """Complete generated ratings in every way, with uncertainty, and show the learned noise."""
    page.section("Completing a half-empty matrix")
    page.text(
        "2,000 rows rate 400 columns on a scale from 1 to 5; 60,000 ratings exist, a tenth is held "
        "out. Dropping factors at random while fitting shrinks them. The first rows solve that "
        "objective exactly for a fixed drop probability; the last ones estimate the noise itself, "
        "and with it everything that one would tune."
    )
    ratings, _ = datasets.generate_ratings(2000, 400, 60_000, rank=4, noise=0.6, seed=seed)
    train, test = ratings.split(0.1, seed=seed)
    asked, truth = (test.rows, test.cols), test.values
    table, models = [], {}
    for name, settings in (
        ("no dropout", {"drop_prob": 0.0}),
        ("drop probability .3", {"drop_prob": 0.3}),
        ("chosen on a held-out slice", {"drop_prob": "auto"}),
        ("learned (the default)", {}),
        ("learned, 20 draws averaged", {"average": 20}),
    ):
        model = DropoutCompletion(12, max_sweeps=30, **settings, seed=seed)
        model.fit(train)
        predicted, std = model.predict(*asked, return_std=True)
        error = truth - predicted
        models[name] = model
        table.append(
            (
                name,
                float(np.sqrt(np.mean(error**2))),
                float(np.mean(np.abs(error) <= 1.6449 * std)),
                model.drop_prob_,
                model.n_sweeps_,
            )
        )
    baseline = float(np.sqrt(np.mean((truth - train.values.mean()) ** 2)))
    page.table(
        ("how", "held-out RMSE", "inside their 90 % interval", "drop probability", "sweeps"), table
    )
    page.text(f"Predicting the mean everywhere has an RMSE of {baseline:.3f}.", note=True)
    learned = models["learned (the default)"]
    page.figure(
        _figure(learned, asked, truth),
        "Left: the drop probability that would make each factor as noisy as it was found to be; "
        "the data have four factors, and the others are dropped almost always. Right: how often "
        "held-out ratings fall inside intervals of a given level; the diagonal is perfect.",
    )
    best = learned.recommend(0, 5)
    told = learned.explain(0, best.cols[0])
    page.table(
        ("recommended to row 0", "prediction"),
        [(f"column {c}", float(v)) for c, v in zip(best.cols, best.values, strict=True)],
    )
    page.text(
        f"Column {best.cols[0]} comes first because of this row's ratings of columns "
        + ", ".join(
            f"{c} ({y:g}: {added:+.2f})"
            for c, y, added in list(zip(told.cols, told.values, told.contributions, strict=True))[
                :4
            ]
        )
        + "."
    )
    rmse = {name: value for name, value, *_ in table}
    coverage = {name: value for name, _, value, *_ in table}
    return bool(
        rmse["learned (the default)"] < min(rmse["no dropout"], rmse["drop probability .3"])
        and abs(coverage["learned (the default)"] - 0.9) <= 0.03
    )


def _figure(model: DropoutCompletion, asked: Any, truth: Any) -> Any:
    from matplotlib.figure import Figure
    from scipy.special import ndtri

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    probs = np.asarray(model.learned_drop_prob_)
    left.bar(np.arange(1, len(probs) + 1), probs)
    left.set_xlabel("factor, most important first")
    left.set_ylabel("equivalent drop probability")
    rows, cols = asked
    predicted, std = model.predict(rows, cols, return_std=True)
    levels = np.linspace(0.05, 0.99, 30)
    inside = [np.mean(np.abs(truth - predicted) <= ndtri((1 + p) / 2) * std) for p in levels]
    right.plot(levels, inside, label="held-out ratings")
    right.plot([0, 1], [0, 1], "k--", lw=0.8)
    right.set_xlabel("level of the interval")
    right.set_ylabel("share inside")
    right.legend()
    return figure
