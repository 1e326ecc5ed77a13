"""FGSM, BIM and PGD: the same ascent with different steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import final

from torch import Tensor

from overt._check import InputTypeError, number, whole
from overt.robust.ascent import Outcome, Problem, Steps, ascend
from overt.robust.attack import Attack
from overt.robust.schedule import Constant, Cosine, Schedule


@final
@dataclass(frozen=True)
class FGSM(Attack):
    """One step of the whole radius in the direction of steepest ascent.

    For Linf that is the fast gradient sign method (Goodfellow et al. 2015).
    """

    @property
    def length(self) -> int:
        """Number of gradients of a run."""
        return 1

    def run(
        self, problem: Problem, start: Tensor, steps: int, escape: Callable[[], Tensor]
    ) -> Outcome:
        """Attack one batch."""
        radius = problem.region.threat.radius
        how = Steps(steps, Constant(radius), early_exit=self.early_exit)
        return ascend(problem, start, how, escape)


@final
@dataclass(frozen=True)
class BIM(Attack):
    """Steps of equal length along the steepest direction (Kurakin et al. 2017).

    step_size is 2.5 radius / steps if not given.
    """

    _: KW_ONLY
    steps: int = 10
    step_size: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("steps", self.steps)
        if self.step_size is not None:
            number("step_size", self.step_size)

    @property
    def length(self) -> int:
        """Number of gradients of a run."""
        return self.steps

    def run(
        self, problem: Problem, start: Tensor, steps: int, escape: Callable[[], Tensor]
    ) -> Outcome:
        """Attack one batch."""
        how = Steps(steps, Constant(self.step_size), early_exit=self.early_exit)
        return ascend(problem, start, how, escape)


@final
@dataclass(frozen=True)
class PGD(Attack):
    """Projected gradient ascent with steps that shorten.

    Parameters
    ----------
    steps
        Number of gradients of each run.
    schedule
        Lengths of the steps: Cosine(), Halving(), Decay(size, factor, every) or Constant(size).
    momentum
        Share of the last move that is added to the next.
    normalize
        Whether steps go along the steepest direction of the threat's norm; otherwise along the
        gradient itself, whatever its length, as in the thesis's Algorithm 5.
    """

    _: KW_ONLY
    steps: int = 50
    schedule: Schedule = Cosine()  # noqa: RUF009  (immutable)
    momentum: float = 0.0
    normalize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("steps", self.steps)
        number("momentum", self.momentum)
        if not isinstance(self.schedule, Schedule):
            raise InputTypeError(
                "schedule must be Cosine(), Halving(), Decay(...) or Constant(...), "
                f"got {self.schedule!r}"
            )

    @property
    def length(self) -> int:
        """Number of gradients of a run."""
        return self.steps

    def run(
        self, problem: Problem, start: Tensor, steps: int, escape: Callable[[], Tensor]
    ) -> Outcome:
        """Attack one batch."""
        how = Steps(steps, self.schedule, self.momentum, self.normalize, self.early_exit)
        return ascend(problem, start, how, escape)
