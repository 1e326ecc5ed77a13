"""Whether predicted intervals hold the share of targets that they should."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from overt import _check
from overt._check import InputError
from overt._types import Floats
from overt.results import Result


@dataclass(frozen=True, repr=False)
class Calibration(Result):
    """Nominal and observed coverage of central normal intervals.

    Attributes
    ----------
    nominal, observed
        Probabilities that the intervals claim, and shares of targets that they hold.
    error
        Mean absolute difference of the two.
    noise_variance
        The variance added to the predicted one.
    """

    nominal: Floats
    observed: Floats
    error: float
    noise_variance: float

    def plot(self, axes: Any, label: str = "") -> None:
        """Plot observed against nominal coverage on matplotlib axes."""
        axes.plot([0, 1], [0, 1], color="0.7", lw=1)
        axes.plot(self.nominal, self.observed, marker="o", ms=3, label=label or None)
        axes.set(
            xlabel="nominal coverage",
            ylabel="observed coverage",
            xlim=(0, 1),
            ylim=(0, 1),
        )
        axes.set_aspect("equal")


def calibration(
    mean: Any,
    variance: Any,
    target: Any,
    *,
    noise_variance: float = 0.0,
    levels: int = 19,
) -> Calibration:
    """Compare |target - mean| with normal intervals of the given variances.

    `noise_variance` is that of the targets around the truth, which dropout's variance does not
    contain; the residual variance on holdout data is a sound choice.
    """
    mean = _check.doubles("mean", mean)
    variance = _check.doubles("variance", variance)
    target = _check.doubles("target", target)
    if not mean.shape == variance.shape == target.shape:
        raise InputError(
            "mean, variance and target must have the same shape, got "
            f"{mean.shape}, {variance.shape} and {target.shape}"
        )
    added = _check.number("noise_variance", noise_variance)
    if variance.min() < 0:
        raise InputError("variance must not be negative")
    from scipy.special import ndtri

    nominal = np.arange(1, _check.whole("levels", levels) + 1) / (levels + 1)
    sigma = np.sqrt(variance + added)
    distance = np.abs(target - mean)
    observed = np.array(
        [np.mean(distance <= ndtri((1 + q) / 2) * sigma) for q in nominal]
    )
    error = float(np.mean(np.abs(observed - nominal)))
    return Calibration(nominal, observed, error, added)
