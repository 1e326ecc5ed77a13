"""Pictures of a fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._check import InputError
from overt._types import Floats


def plot_path(path: Floats | None, chosen: float) -> Any:
    """Draw held-out error against drop probability."""
    from matplotlib.figure import Figure

    if path is None:
        raise InputError('there is a path only with drop_prob="auto"')
    order = np.argsort(path[:, 0])
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*path[order].T, marker="o")
    axes.axvline(chosen, ls="--", color="black", label=f"chosen: {chosen:g}")
    axes.set(xlabel="drop probability", ylabel="held-out RMSE")
    axes.legend()
    return figure
