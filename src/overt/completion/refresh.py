"""New entries for a fitted model, without fitting everything again."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from overt import _check
from overt.completion.engine import make_engine
from overt.completion.fitting import Fit, equivalent_drop_prob
from overt.completion.fixed import Fixed
from overt.completion.learned import Learned
from overt.completion.model import Model, from_learned, from_point
from overt.completion.problem import Problem
from overt.completion.settings import Settings
from overt.entries import Entries
from overt.results import Status


def refresh(
    settings: Settings, model: Model, old: Entries, new: Entries, sweeps: int
) -> tuple[Entries, Fit]:
    """Merge new entries into old ones and solve again for the rows and columns they touch.

    `settings` has the drop probability that was fitted.
    """
    if model.draws is not None:
        warnings.warn(
            "partial_fit gives up the draws of `average`; fit again to draw anew", stacklevel=3
        )
    _check.whole("sweeps", sweeps)
    shape = (max(old.shape[0], new.shape[0]), max(old.shape[1], new.shape[1]))
    key = old.rows * shape[1] + old.cols
    kept = ~np.isin(key, new.rows * shape[1] + new.cols)
    entries = Entries(
        np.concatenate([old.rows[kept], new.rows]),
        np.concatenate([old.cols[kept], new.cols]),
        np.concatenate([old.values[kept], new.values]),
        shape,
    )
    problem = Problem.build(
        entries, model.n_factors, biases=model.biases, standard=False, precise=settings.ill_posed
    )
    form = _reopen(settings, model, problem)
    touched = (np.unique(new.rows), np.unique(new.cols))
    problem = replace(
        form.problem,
        by_row=replace(form.problem.by_row, chunks=[touched[0]]),
        by_col=replace(form.problem.by_col, chunks=[touched[1]]),
    )
    form.problem = problem
    with make_engine(settings.engine, settings.n_jobs) as engine:
        for _ in range(sweeps):
            for side in (0, 1):
                form.update(side, engine)
    limits = settings.limits(entries.values) if np.isfinite(model.low) else (-np.inf, np.inf)
    if isinstance(form, Learned):
        form.finish()
        updated = from_learned(form, limits, None)
        return entries, Fit(updated, form.history, Status.FINISHED, *equivalent_drop_prob(form))
    updated = from_point(form, limits, settings.ridge)
    return entries, Fit(updated, form.history, Status.FINISHED, settings.drop_prob)


def _reopen(settings: Settings, model: Model, problem: Problem) -> Learned | Fixed:
    """Turn a model back into a form, in the units of the values, with room for new rows."""
    for group in (problem.by_row, problem.by_col):
        group.values[:] += problem.center - model.center
    problem = replace(problem, center=model.center)
    means, tables = [], []
    for side in (0, 1):
        more = problem.shape[side] - model.shape[side]
        pick = np.append(np.arange(model.shape[side]), np.full(more, -1))
        means.append(model.means[side][pick].astype(problem.dtype))
        if model.spread != "dropout":
            tables.append(model.tables[side][pick].astype(problem.dtype))
    if model.spread == "dropout":
        return Fixed(problem, means, model.strength, settings.ridge)
    full = model.spread == "full"
    if full:
        i, j = np.tril_indices(problem.width)
        for w, table in zip(means, tables, strict=True):
            table += w[:, i] * w[:, j]
    return Learned(problem, means, tables, list(model.priors), model.noise, full)
