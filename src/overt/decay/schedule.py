"""Learning rates and weight decays over time, as data, in one stated convention.

The loss is C(A) + weight_decay |theta|^2 with C(A) = (1/2N) sum (A_ij - y_ij)^2, and a step is

    theta <- (1 - 2 learning_rate weight_decay) theta - (learning_rate / 2) grad (A_ij - y_ij)^2.

The paper and PyTorch count differently; `effective` converts what they print:

    "loss"      One-way jumps, section 2.3, and overt everywhere     eta,   lam
    "appendix"  One-way jumps, eq 3: (1 - eta lam) theta - ...        eta,   lam / 2
    "pytorch"   torch.optim.SGD(lr=eta, weight_decay=lam) on the
                squared error without the half: grad + lam theta      2 eta, lam / 4

The paper's figures are reproduced by "pytorch" only (found by trial; the paper does not say).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from overt._check import InputError, InputTypeError, choice, number, whole

_FACTORS = {"loss": (1.0, 1.0), "appendix": (1.0, 0.5), "pytorch": (2.0, 0.25)}
CONVENTIONS = tuple(_FACTORS)


def effective(
    learning_rate: float, weight_decay: float, convention: str
) -> tuple[float, float]:
    """Return (learning_rate, weight_decay) in overt's convention, given another."""
    choice("convention", convention, CONVENTIONS)
    rate, decay = _FACTORS[convention]
    eta, lam = (
        number("learning_rate", learning_rate),
        number("weight_decay", weight_decay),
    )
    return rate * eta, decay * lam


def _pair(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise InputTypeError(
            f"{name} must be (learning_rate, weight_decay), got {value!r:.60}"
        )
    return value[0], value[1]


@dataclass(frozen=True)
class Phase:
    """A number of steps with one learning rate and one weight decay, in overt's convention."""

    steps: int
    learning_rate: float
    weight_decay: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", whole("steps", self.steps, minimum=0))
        rate = number("learning_rate", self.learning_rate, exclusive=True)
        decay = number("weight_decay", self.weight_decay)
        if 2 * rate * decay >= 1:
            raise InputError(
                "2 * learning_rate * weight_decay must be below 1, or a step turns the weights "
                f"around; got learning_rate {rate:g} and weight_decay {decay:g}"
            )
        object.__setattr__(self, "learning_rate", rate)
        object.__setattr__(self, "weight_decay", decay)


@dataclass(frozen=True)
class Schedule:
    """Phases one after another.

    >>> Schedule.constant(1000, learning_rate=0.2, weight_decay=0.1, convention="pytorch")
    Schedule(1000 x (0.4, 0.025))
    """

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        phases = tuple(self.phases) if isinstance(self.phases, Sequence) else ()
        if not phases or not all(isinstance(phase, Phase) for phase in phases):
            raise InputTypeError("phases must be a list of at least one Phase")
        object.__setattr__(self, "phases", phases)

    @classmethod
    def of(
        cls, phases: Sequence[tuple[int, float, float]], *, convention: str = "loss"
    ) -> Self:
        """Make a schedule from (steps, learning_rate, weight_decay) triples."""
        try:
            triples = [(steps, rate, decay) for steps, rate, decay in phases]
        except Exception:
            raise InputError(
                f"phases must be (steps, learning_rate, weight_decay) triples, got {phases!r}"
            ) from None
        return cls(
            tuple(
                Phase(n, *effective(rate, lam, convention)) for n, rate, lam in triples
            )
        )

    @classmethod
    def constant(
        cls,
        steps: int,
        learning_rate: float,
        weight_decay: float,
        *,
        convention: str = "loss",
    ) -> Self:
        """Keep one learning rate and weight decay."""
        return cls.of([(steps, learning_rate, weight_decay)], convention=convention)

    @classmethod
    def annealing(
        cls,
        noisy_steps: int = 5000,
        quiet_steps: int = 5000,
        *,
        warm_up: tuple[int, float, float] | None = (500, 0.03, 0.1),
        noisy: tuple[float, float] = (0.2, 0.1),
        quiet: tuple[float, float] = (0.02, 0.001),
        convention: str = "pytorch",
    ) -> Self:
        """Warm up, then jump in a noisy phase, then fit in a quiet one ([One-way jumps] Fig 1).

        `noisy` and `quiet` are (learning_rate, weight_decay); `warm_up` is (steps, learning_rate,
        weight_decay) or None. The defaults are the paper's values, hence the convention.
        """
        phases = [
            (noisy_steps, *_pair("noisy", noisy)),
            (quiet_steps, *_pair("quiet", quiet)),
        ]
        start = [] if warm_up is None else [warm_up]
        return cls.of([*start, *phases], convention=convention)

    @property
    def steps(self) -> int:
        """Number of steps in all."""
        return sum(phase.steps for phase in self.phases)

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain lists, in overt's convention."""
        return {
            "phases": [[p.steps, p.learning_rate, p.weight_decay] for p in self.phases]
        }

    def __repr__(self) -> str:
        parts = (
            f"{p.steps} x ({p.learning_rate:g}, {p.weight_decay:g})"
            for p in self.phases
        )
        return f"Schedule({', '.join(parts)})"


def cut_into_pieces(
    schedule: Schedule, cuts: Iterable[int]
) -> list[tuple[int, int, Phase]]:
    """Return (first step, last step + 1, phase), cut at phase ends and at the given steps."""
    result = []
    first = 0
    for phase in schedule.phases:
        last = first + phase.steps
        inside = [cut for cut in cuts if first < cut < last]
        for start, end in pairwise([first, *inside, last]):
            if end > start:
                result.append((start, end, phase))
        first = last
    return result
