"""Kinds of fit: a problem, the forms that solve it, and the model that a form leaves.

A form is improved sweep by sweep. It has

    kind                           its name in a checkpoint
    problem, means, history        what is fitted, both sides' rows, the objective after each sweep
    step(engine)                   make one sweep and return the objective
    settled(tol)                   whether the last sweep changed too little to continue
    arrays(), restore(arrays)      arrays of a checkpoint beside means and history
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from overt.results import Status

if TYPE_CHECKING:
    from overt.completion.engines import Engine
    from overt.completion.forms.averaged import SampledForm
    from overt.completion.forms.fixed import FixedForm, SGDForm
    from overt.completion.forms.implicit import NegativeForm
    from overt.completion.forms.learned import LearnedForm

    PointForm = FixedForm | SGDForm
    Form = PointForm | LearnedForm | NegativeForm | SampledForm


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
