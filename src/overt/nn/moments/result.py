"""Mean and variance of a model's output, and how they were obtained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from overt.results import Result


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
        "carried" (no sampling), "carried and drawn" (the noises in `drawn` were sampled `draws`
        times and all others carried), or "sampled".
    carried, drawn
        The names of the noises that were carried, and of those that were sampled.
    linearized
        Operations that overt has no rule for, whose moments come from a few local draws.
    draws
        How many passes were drawn; 0 if none.
    """

    mean: Any
    variance: Any
    exact: bool
    carried: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    linearized: tuple[str, ...] = ()
    draws: int = 0

    @property
    def method(self) -> str:
        """How the moments were obtained."""
        if not self.draws:
            return "carried"
        return "carried and drawn" if self.carried else "sampled"

    def __iter__(self) -> Iterator[Any]:
        return iter((self.mean, self.variance))
