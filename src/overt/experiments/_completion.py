"""What the two experiments on matrix completion share: data, runs, error curves."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from overt import datasets
from overt.completion import DropoutCompletion
from overt.completion.kernels import dots
from overt.entries import Entries
from overt.experiments.base import Params


def load(name: str) -> Entries:
    """Return generated ratings, or MovieLens by size; "largest" is the largest present."""
    if name == "generated":
        return datasets.generate_ratings(300, 200, 8_000, rank=3, noise=0.5, seed=0)[0]
    if name == "largest":
        present = datasets.available()
        if not present:
            return load("generated")
        name = present[-1]
    return datasets.movielens(name)


def measure(params: Params, seed: int) -> dict[str, Any]:
    """Fit on nine tenths; return train and test RMSE after each sweep, with seconds."""
    ratings = load(params["data"])
    parts = dict(zip(("train", "test"), ratings.split(0.1, seed=0), strict=True))
    low, high = float(ratings.values.min()), float(ratings.values.max())
    curve: dict[str, list[float]] = {"times": [], "train": [], "test": [], "objective": []}
    method, drop_prob = params["method"], params["drop_prob"]
    model = DropoutCompletion(
        params["width"],
        drop_prob,
        method=method,
        max_sweeps=params["epochs"] if method == "sgd" else params["sweeps"],
        tol=0.0,
        learning_rate=params["learning_rate"],
        batch_size=params["batch_size"],
        seed=seed,
        n_jobs=1,
    )
    spent, last = 0.0, time.perf_counter()

    def watch(form: Any) -> None:
        nonlocal spent, last
        spent += time.perf_counter() - last
        curve["times"].append(spent)
        for which, part in parts.items():
            predicted = form.problem.center + _dots(part, *form.means)
            error = np.clip(predicted, low, high) - part.values
            curve[which].append(float(np.sqrt(np.mean(error**2))))
        curve["objective"].append(objective(form, parts["train"], drop_prob))
        last = time.perf_counter()

    model.fit_entries(parts["train"], on_form=watch)
    return {**curve, "entries": len(ratings)}


def objective(form: Any, entries: Entries, drop_prob: float) -> float:
    """Mean (y - u.v)^2 + lam sum_i U_ai^2 V_bi^2 over entries."""
    (U, V), p = form.means, form.problem
    error = entries.values - p.center - _dots(entries, U, V)
    squares = (w[:, : p.columns.n_factors].astype(float) ** 2 for w in (U, V))
    lam = drop_prob / (1 - drop_prob)
    return float(np.mean(error**2) + lam * np.mean(_dots(entries, *squares)))


def _dots(entries: Entries, U: Any, V: Any) -> Any:
    out = np.empty(len(entries))
    dots(entries.rows, entries.cols, U, V, out)
    return out
