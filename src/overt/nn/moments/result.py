"""Mean and variance of a model's output, how they were obtained, and how far off they may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from overt._plain import as_numpy
from overt.results import Result

LEVEL = 2.0
"""Standard errors to a stated error, which should hold in about 95 of 100 outputs."""


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
        "carried" (nothing calls for samples), "carried and sampled" (samples correct what was
        carried), or "sampled".
    carried, drawn
        The names of the noises that were carried, and of those that call for samples.
    linearized
        Operations that overt has no rule for, whose moments come from a few local draws.
    draws, checks
        How many samples were taken because something called for them, and how many to check (and
        where they show it, correct) what was carried; 0 if none.
    mean_error, std_error
        How far the mean and the standard deviation may be off, shaped like the output: in about 95
        of 100 outputs the true value is no farther away. None with covariances that were sampled.
    """

    mean: Tensor
    variance: Tensor
    exact: bool
    carried: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    linearized: tuple[str, ...] = ()
    draws: int = 0
    mean_error: Tensor | Any = None
    std_error: Tensor | Any = None
    checks: int = 0

    @property
    def method(self) -> str:
        """How the moments were obtained."""
        if not self.draws:
            return "carried"
        return "carried and sampled" if self.carried else "sampled"

    @property
    def std(self) -> Any:
        """Standard deviations."""
        variance = self.variance
        if variance.shape != self.mean.shape:
            variance = variance.diagonal(0, -2, -1).reshape(self.mean.shape)
        return variance.clip(min=0) ** 0.5

    @property
    def reached(self) -> float | None:
        """The stated errors over the standard deviation: at most this in 90 of 100 outputs."""
        if self.mean_error is None:
            return None
        sd, *errors = (
            np.asarray(as_numpy(value.double() if hasattr(value, "double") else value)).ravel()
            for value in (self.std, self.mean_error, self.std_error)
        )
        relative = np.maximum(*errors)[sd > 0] / sd[sd > 0]
        return float(np.quantile(relative, 0.9)) if relative.size else 0.0

    def __iter__(self) -> Iterator[Any]:
        return iter((self.mean, self.variance))
