"""Drop probabilities that change during training: small objects, step -> drop_prob.

Pass one as the `drop_prob` of a layer and call `advance(model)` after each step (or each epoch,
with the schedule's `steps` counted in epochs).
"""

from __future__ import annotations

from dataclasses import dataclass

from overt import _check
from overt.nn.layers.base import DropSchedule

__all__ = ["DropSchedule", "Linear"]


@dataclass(frozen=True)
class Linear(DropSchedule):
    """From `start` to `end` in equal parts over `steps` steps, then constant.

    DropBlock's authors raise the drop probability from 0 this way; with end=0.0 the noise is
    annealed instead.

    Examples
    --------
    >>> from overt.nn import schedules
    >>> [schedules.Linear(0.0, 0.4, steps=4)(step) for step in (0, 2, 4, 9)]
    [0.0, 0.2, 0.4, 0.4]
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", _check.drop_prob(self.start, "start"))
        object.__setattr__(self, "end", _check.drop_prob(self.end, "end"))
        _check.whole("steps", self.steps)

    def __call__(self, step: int) -> float:
        """Return start + (end - start) min(step / steps, 1)."""
        return self.start + (self.end - self.start) * min(step / self.steps, 1.0)
