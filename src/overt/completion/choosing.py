"""Which drop probability to take, asked of entries that are held out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from overt._check import InputError
from overt._types import Array, Floats
from overt.completion.engines import Engine
from overt.completion.forms import descend
from overt.completion.forms.fixed import FixedForm
from overt.completion.forms.problem import CompletionProblem
from overt.completion.settings import Settings
from overt.entries import Entries
from overt.results import Status

if TYPE_CHECKING:
    from overt.completion.forms import Form

PATH = (0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)
"""Drop probabilities tried by "auto", each started from the one before."""

BEYOND = (0.8, 0.9, 0.95)
"""Those tried where the largest of PATH is the best."""

PATIENCE = 2
"""Worse probabilities in a row after which "auto" stops trying."""

PATH_TOL = 1e-4
"""Relative fall of the objective in one sweep below which a trial of "auto" has settled."""


def choose_drop_prob(
    settings: Settings, entries: Entries, engine: Engine
) -> tuple[Settings, Floats]:
    """Try a path of drop probabilities, each warm-started, on a held-out tenth."""
    order = np.random.default_rng([settings.seed, 1]).permutation(len(entries))
    held = np.sort(order[: len(entries) // 10])
    kept = np.sort(order[len(entries) // 10 :])
    if not len(held):
        raise InputError(f'drop_prob="auto" needs at least 10 entries, got {len(entries)}')
    holdout = entries.take(held)
    problem = CompletionProblem.build(
        entries.take(kept), settings.factors(len(entries)), biases=settings.biases, standard=False
    )
    tol = settings.tol_or(PATH_TOL)
    tried: dict[float, float] = {}

    def attempt(drop_prob: float, means: list[Array] | None) -> list[Array]:
        form = FixedForm.start(problem, drop_prob, settings.ridge, settings.seed, means)
        if descend(form, engine, settings.sweeps, tol) is Status.INTERRUPTED:
            raise KeyboardInterrupt
        tried[drop_prob] = rmse(form, holdout)
        return [w.copy() for w in form.means]

    def worse_in_a_row() -> int:
        errors = list(tried.values())
        return len(errors) - 1 - int(np.argmin(errors))

    first = means = attempt(PATH[0], None)
    for drop_prob in PATH[1:]:
        means = attempt(drop_prob, means)
        if worse_in_a_row() >= PATIENCE:
            break
    if min(tried, key=tried.__getitem__) == PATH[0]:
        for drop_prob in BEYOND:
            first = attempt(drop_prob, first)
            if worse_in_a_row():
                break
    best = min(tried, key=tried.__getitem__)
    return replace(settings, drop_prob=best), np.array(sorted(tried.items(), reverse=True))


def rmse(form: Form, holdout: Entries) -> float:
    """Return the root mean squared error of a form's means on entries that took no part."""
    (U, V), problem = form.means, form.problem
    product = np.einsum("ei,ei->e", U[holdout.rows], V[holdout.cols])
    error = problem.center + problem.scale * product - holdout.values
    return float(np.sqrt(np.mean(error**2)))
