"""What is fitted: a problem, the forms it is given, and the model that a form leaves.

One loop sweeps any form until its objective stops falling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

from overt._types import Array
from overt.results import Status

if TYPE_CHECKING:
    from overt.completion.engines import Engine
    from overt.completion.forms.problem import CompletionProblem


class Form(Protocol):
    """Something that is improved sweep by sweep.

    `means` are the two sides' rows, `history` is the objective after each sweep.
    """

    kind: ClassVar[str]
    problem: CompletionProblem
    means: list[Array]
    history: list[float]

    def step(self, engine: Engine) -> float:
        """Make one sweep and return the objective."""

    def settled(self, tol: float) -> bool:
        """Return whether the last sweep changed too little to go on."""

    def arrays(self) -> dict[str, Array]:
        """Return what a checkpoint keeps beside means and history."""

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take back what `arrays` gave."""


def descend(
    form: Form,
    engine: Engine,
    max_sweeps: int,
    tol: float,
    on_sweep: Callable[[], None] = lambda: None,
) -> Status:
    """Sweep until the form has settled or `max_sweeps` were made."""
    try:
        while True:
            if form.settled(tol):
                return Status.CONVERGED
            if len(form.history) >= max_sweeps:
                return Status.FINISHED
            form.step(engine)
            on_sweep()
    except KeyboardInterrupt:
        if not form.history:
            raise
        return Status.INTERRUPTED
