"""Mean and variance of a model's output, how they were obtained, and how far off they may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from overt._io import as_numpy
from overt.results import Result

LEVEL = 2.0
"""Standard errors in an error estimate, which should hold for about 95 of 100 outputs."""


@dataclass(frozen=True, repr=False, eq=False)
class Moments(Result):
    """Mean and variance of an output; unpacks as (mean, variance).

    Attributes
    ----------
    mean, variance
        Shaped like the output; the variance is (batch, outputs, outputs) if covariances were asked
        for.
    exact
        Whether both are exact: only affine maps follow the noise.
    method
        "propagated", "propagated and sampled" (samples correct what was propagated) or "sampled".
    propagated, drawn
        Names of the noises that were propagated, and of those that were sampled: ("all",) if the
        model cannot be propagated.
    linearized
        Operations that overt has no rule for, whose moments come from a few local samples.
    draws
        Number of samples; 0 if none were taken.
    mean_error, std_error
        Error estimates of mean and standard deviation, shaped like the output: the true value is
        no farther away in about 95 of 100 outputs.
    reason
        Why the model had to be sampled, in words; empty if it was propagated.
    """

    mean: Tensor
    variance: Tensor
    exact: bool
    propagated: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    linearized: tuple[str, ...] = ()
    draws: int = 0
    mean_error: Tensor | Any = None
    std_error: Tensor | Any = None
    reason: str = ""

    @property
    def method(self) -> str:
        """How the moments were obtained."""
        if not self.draws:
            return "propagated"
        return "propagated and sampled" if self.propagated else "sampled"

    @property
    def std(self) -> Any:
        """Standard deviations."""
        variance = self.variance
        if variance.shape != self.mean.shape:
            variance = variance.diagonal(0, -2, -1).reshape(self.mean.shape)
        return variance.clip(min=0) ** 0.5

    @property
    def reached(self) -> float | None:
        """The error estimates over the standard deviation: at most this in 90 of 100 outputs."""
        if self.mean_error is None:
            return None
        sd, *errors = (
            np.asarray(as_numpy(value.double() if hasattr(value, "double") else value)).ravel()
            for value in (self.std, self.mean_error, self.std_error)
        )
        varies = sd > 0
        relative = np.maximum(*errors)[varies] / sd[varies]
        return float(np.quantile(relative, 0.9)) if relative.size else 0.0

    def __iter__(self) -> Iterator[Any]:
        return iter((self.mean, self.variance))
