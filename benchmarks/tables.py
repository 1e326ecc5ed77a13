"""Filling tables: DropoutImputer beside scikit-learn's imputers and SoftImpute, on fresh masks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer

from benchmarks.harness import Table
from overt.completion import DropoutImputer

SETS = ("iris", "wine", "breast_cancer", "diabetes", "linnerud", "digits")
SEED, CELLS, MASKS = 8201, 5000, (2, 30)
"""Masks are drawn until so many cells were removed, within these limits of their number."""
SLOW = 40
"""Columns beyond which IterativeImputer, which fits a regression for each, is left out."""


def run() -> list[Table]:
    """Compare on scikit-learn's tables with 20 and 50 per cent of the cells removed."""
    table = Table(
        "Tables: RMSE of removed cells in column deviations, mean of masks (CPU seconds)",
        (
            "table",
            "removed",
            "overt",
            "inside 90 %",
            "KNN",
            "Iterative",
            "SoftImpute",
            "best",
        ),
    )
    for name in SETS:
        whole = getattr(datasets, f"load_{name}")().data.astype(float)
        for share in (0.2, 0.5):
            table.rows.append((name, f"{share:.0%}", *_compared(whole, share)))
    return [table]


def _compared(whole: Any, share: float) -> list[str]:
    spread = np.where(whole.std(axis=0) > 0, whole.std(axis=0), 1.0)
    errors: dict[str, list[float]] = {}
    times: dict[str, list[float]] = {}
    inside = []
    count = int(np.clip(np.ceil(CELLS / (share * whole.size)), *MASKS))
    for seed in range(SEED, SEED + count):
        gone = np.random.default_rng(seed).random(whole.shape) < share
        given = np.where(gone, np.nan, whole)
        for name, fill in _ways(whole.shape[1]).items():
            start = time.process_time()
            filled = fill(given)
            times.setdefault(name, []).append(time.process_time() - start)
            if name == "overt":
                filled, std = filled
                inside.append(
                    np.mean(np.abs(filled - whole)[gone] <= 1.645 * std[gone])
                )
            off = ((filled - whole) / spread)[gone]
            errors.setdefault(name, []).append(float(np.sqrt(np.mean(off**2))))
    cells = {n: f"{np.mean(errors[n]):.3f} ({np.mean(times[n]):.2f})" for n in errors}
    best = min(errors, key=lambda n: float(np.mean(errors[n])))
    order = ("overt", "KNN", "Iterative", "SoftImpute")
    shown = [cells.get(n, "") for n in order]
    return [shown[0], f"{np.mean(inside):.2f}", *shown[1:], best]


def _ways(columns: int) -> dict[str, Any]:
    ways: dict[str, Any] = {
        "overt": lambda X: DropoutImputer().fit(X).transform(X, return_std=True),
        "KNN": lambda X: KNNImputer(keep_empty_features=True).fit_transform(X),
        "SoftImpute": soft_impute,
    }
    if columns <= SLOW:
        filler = IterativeImputer(random_state=0, keep_empty_features=True)
        ways["Iterative"] = filler.fit_transform
    return ways


def soft_impute(given: Any, steps: int = 100) -> Any:
    """Fill by soft-thresholded SVDs of the standardized table, threshold a tenth of the largest."""
    known = np.isfinite(given)
    center = np.nanmean(np.where(known.any(axis=0), given, 0.0), axis=0)
    scale = np.nanstd(np.where(known.any(axis=0), given, 0.0), axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    Z = np.where(known, (given - center) / scale, 0.0)
    filled, threshold = Z, 0.1 * np.linalg.norm(Z, 2)
    for _ in range(steps):
        u, s, v = np.linalg.svd(filled, full_matrices=False)
        filled = np.where(known, Z, (u * np.maximum(s - threshold, 0)) @ v)
    return np.where(known, given, filled * scale + center)
