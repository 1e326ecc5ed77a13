"""The tour's chapter on half-empty matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from overt import datasets
from overt._figures import canvas
from overt._html import Page
from overt._types import Floats
from overt.completion import DropoutCompletion
from overt.entries import Entries

LEARNED = "learned (the default)"
WAYS: dict[str, dict[str, Any]] = {
    "no dropout": {"drop_prob": 0.0},
    "drop probability .3": {"drop_prob": 0.3},
    "chosen on a held-out slice": {"drop_prob": "auto"},
    LEARNED: {},
    "learned, 20 draws averaged": {"average": 20},
}
LEVEL = 0.9
"""Of the intervals in the table."""


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
    train, holdout = ratings.split(0.1, seed=seed)
    models = {
        name: DropoutCompletion(12, max_sweeps=30, **settings, seed=seed).fit(train)
        for name, settings in WAYS.items()
    }
    judged = {name: _judge(model, holdout) for name, model in models.items()}
    page.table(
        ("how", "held-out RMSE", "inside their 90 % interval", "drop probability", "sweeps"),
        [(name, *judged[name], m.drop_prob_, m.n_sweeps_) for name, m in models.items()],
    )
    baseline = float(np.sqrt(np.mean((holdout.values - train.values.mean()) ** 2)))
    page.text(f"Predicting the mean everywhere has an RMSE of {baseline:.3f}.", note=True)
    page.figure(
        _figure(models[LEARNED], holdout),
        "Left: the drop probability that would make each factor as noisy as it was found to be; "
        "the data have four factors, and the others are dropped almost always. Right: how often "
        "held-out ratings fall inside intervals of a given level; the diagonal is perfect.",
    )
    _recommend(page, models[LEARNED])
    rmse, covered = judged[LEARNED]
    fixed = min(judged["no dropout"][0], judged["drop probability .3"][0])
    return bool(rmse < fixed and abs(covered - LEVEL) <= 0.03)


def _judge(model: DropoutCompletion, holdout: Entries) -> tuple[float, float]:
    """Return the root mean squared error, and the share inside their intervals."""
    predicted, std = model.predict(holdout, return_std=True)
    error = holdout.values - predicted
    return float(np.sqrt(np.mean(error**2))), _coverage(error, std, LEVEL)


def _coverage(error: Floats, std: Floats, level: float) -> float:
    return float(np.mean(np.abs(error) <= ndtri((1 + level) / 2) * std))


def _recommend(page: Page, model: DropoutCompletion) -> None:
    """Recommend to one row, and say why."""
    best = model.recommend(0, 5)
    told = model.explain(0, best.cols[0])
    page.table(
        ("recommended to row 0, most likely first", "predicted rating"),
        [(f"column {c}", float(v)) for c, v in zip(best.cols, best.values, strict=True)],
    )
    reasons = list(zip(told.cols, told.values, told.contributions, strict=True))[:4]
    named = ", ".join(f"{c} ({y:g}: {added:+.2f})" for c, y, added in reasons)
    page.text(
        "The order is by how likely the row is to rate the column, the rating by what it is likely "
        f"to be. The predicted rating of column {best.cols[0]} comes from this row's ratings of "
        f"columns {named}."
    )


def _figure(model: DropoutCompletion, holdout: Entries) -> Any:
    figure, (left, right) = canvas(9, 3.6, 1, 2)
    probs = np.asarray(model.learned_drop_prob_)
    left.bar(np.arange(1, len(probs) + 1), probs)
    left.set(xlabel="factor, most important first", ylabel="equivalent drop probability")
    predicted, std = model.predict(holdout, return_std=True)
    levels = np.linspace(0.05, 0.99, 30)
    inside = [_coverage(holdout.values - predicted, std, level) for level in levels]
    right.plot(levels, inside, label="held-out ratings")
    right.plot([0, 1], [0, 1], "k--", lw=0.8)
    right.set(xlabel="level of the interval", ylabel="share inside")
    right.legend()
    return figure
