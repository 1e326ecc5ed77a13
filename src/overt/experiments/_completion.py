"""What the two experiments on matrix completion share: data, runs, error curves."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from overt import datasets
from overt.completion import DropoutCompletion
from overt.entries import Entries


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


def measure(
    name: str,
    method: str,
    drop_prob: float,
    width: int,
    sweeps: int,
    seed: int,
    rate: float,
    batch_size: int,
) -> dict[str, Any]:
    """Fit on nine tenths; return train and test RMSE after each sweep, with seconds."""
    ratings = load(name)
    train, test = ratings.split(0.1, seed=0)
    curve: dict[str, list[float]] = {"times": [], "train": [], "test": [], "objective": []}
    state: dict[str, Any] = {}
    model = DropoutCompletion(
        width,
        drop_prob,
        method=method,
        max_sweeps=sweeps,
        tol=0.0,
        learning_rate=rate,
        batch_size=batch_size,
        seed=seed,
        n_jobs=1,
    )
    spent, last = 0.0, time.perf_counter()

    def watch(form: Any) -> None:
        nonlocal spent, last
        spent += time.perf_counter() - last
        p = form.problem
        errors = []
        for rows, cols, values in state["parts"]:
            predicted = p.center + _dots(rows, cols, *form.means)
            errors.append(np.clip(predicted, low, high) - values)
        curve["times"].append(spent)
        for which, error in zip(("train", "test"), errors, strict=True):
            curve[which].append(float(np.sqrt(np.mean(error**2))))
        curve["objective"].append(objective(form, state["parts"][0], drop_prob))
        last = time.perf_counter()

    low, high = float(ratings.values.min()), float(ratings.values.max())
    state["parts"] = [(part.rows, part.cols, part.values) for part in (train, test)]
    last = time.perf_counter()
    model.fit_entries(train, on_form=watch)
    return {**curve, "entries": len(ratings)}


def objective(form: Any, entries: Any, drop_prob: float) -> float:
    """Mean (y - u.v)^2 + lam sum_i U_ai^2 V_bi^2 over entries."""
    rows, cols, values = entries
    (U, V), p = form.means, form.problem
    error = values - p.center - _dots(rows, cols, U, V)
    squares = (w[:, : p.n_factors].astype(float) ** 2 for w in (U, V))
    lam = drop_prob / (1 - drop_prob)
    return float(np.mean(error**2) + lam * np.mean(_dots(rows, cols, *squares)))


def _dots(rows: Any, cols: Any, U: Any, V: Any) -> Any:
    from overt.completion.kernels import dots

    out = np.empty(len(rows))
    dots(rows, cols, U, V, out)
    return out
