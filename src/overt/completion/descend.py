"""The one loop: sweep until the objective stops falling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from overt.completion.engine import Engine
from overt.completion.sampled import Sampled
from overt.results import Status


class Form(Protocol):
    """Something that is improved sweep by sweep."""

    history: list[float]

    def step(self, engine: Engine) -> float:
        """Make one sweep and return the objective."""

    def settled(self, tol: float) -> bool:
        """Return whether the last sweep changed too little to go on."""


def descend(
    form: Form,
    engine: Engine,
    *,
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


def sample(
    chain: Sampled,
    engine: Engine,
    *,
    draws: int,
    on_sweep: Callable[[], None] = lambda: None,
) -> Status:
    """Draw until there are `draws` draws after the burn-in."""
    try:
        while chain.steps < chain.burn_in + draws:
            chain.step(engine)
            on_sweep()
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    return Status.FINISHED
