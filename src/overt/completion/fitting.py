"""From settings and entries to a model: which form is fitted, how, and what new entries change."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from overt._check import whole
from overt._cluster import ClusterLostError
from overt._progress import Meter, meter
from overt._types import Array, Floats
from overt.completion.choosing import choose_drop_prob, rmse
from overt.completion.engines import Engine, make_engine
from overt.completion.forms import descend, features, fixed, learned, negative, popular, recent
from overt.completion.forms.fixed import FixedForm, SGDForm
from overt.completion.forms.learned import LearnedForm, equivalent_drop_prob
from overt.completion.forms.model import FactorModel, Fit
from overt.completion.forms.negative import NegativeForm
from overt.completion.forms.problem import CompletionProblem
from overt.completion.forms.sampled import BURN_IN, SampledForm
from overt.completion.forms.spread import FullSpread
from overt.completion.forms.units import Units, choose, chosen
from overt.completion.growing import GROWTH, Growing
from overt.completion.ledger import Ledger
from overt.completion.settings import Settings
from overt.entries import Entries
from overt.results import Status

if TYPE_CHECKING:
    from overt.completion.forms import Form, PointForm
    from overt.completion.storage.checkpoints import SweepCheckpoint

MANY_ALIKE = 20
"""So many equal values are no accident."""


@dataclass
class _Run:
    """Who sweeps a form, who is told after each sweep, and where it is kept."""

    engine: Engine
    bar: Meter
    on_form: Callable[[Form], None] | None
    holdout: Entries | None
    checkpoint: SweepCheckpoint | None

    def descend(self, form: Form, max_sweeps: int, tol: float) -> Status:
        """Sweep until the form has settled, from where a checkpoint has it."""
        if self.checkpoint is not None:
            self.checkpoint.restore(form)
        try:
            return descend(form, self.engine, max_sweeps, tol, lambda: self._report(form))
        except ClusterLostError as error:
            kept = "resume goes on from its" if self.checkpoint else "there is no"
            done = f"{len(form.history)} sweeps were done, and {kept} checkpoint"
            raise ClusterLostError(f"{error}; {done}") from None

    def _report(self, form: Form) -> None:
        note = f"objective {form.history[-1]:.5f}"
        if self.holdout is not None:
            note += f", held-out RMSE {rmse(form, self.holdout):.4f}"
        self.bar.advance(note=note)
        if self.on_form is not None:
            self.on_form(form)
        if self.checkpoint is not None:
            self.checkpoint.write(form)


def fit_entries(
    settings: Settings, entries: Any, *, on_form: Callable[[Form], None] | None = None,
    holdout: Entries | None = None, checkpoint: SweepCheckpoint | None = None,
    given: tuple[Any, Any] = (None, None), table: bool = False,
) -> Fit:  # fmt: skip
    """Fit the form that the settings name; see `DropoutCompletion`.

    `on_form` gets the form after each sweep; `holdout` is only looked at; `given` are features of
    the rows and of the columns, as numbers; the columns of a `table` may have units of their own.
    """
    units = choose(settings.missing, settings.scale, entries, table)
    limits = _limits(settings, entries, units)
    entries = units.enter(entries)
    holdout = None if holdout is None else units.enter(holdout)
    fit = _fit_standard(settings, entries, limits, given, on_form, holdout, checkpoint)
    model = replace(fit.model, units=units)
    y = entries.values
    if model.spread.learned and model.pairs is None and np.ptp(y) == 0:
        # Values that are all the same say nothing of their noise beyond their number.
        count = len(entries)
        model = replace(model, noise=max(model.noise, (y[0] or 1.0) ** 2 / (count + 1)))
        if count >= MANY_ALIKE:
            warnings.warn(
                f"all {count} values are {y[0]:g}: there is nothing to predict but that; "
                'missing="negative" ranks what was chosen',
                stacklevel=4,
            )
    return replace(fit, model=model)


def _limits(settings: Settings, entries: Any, units: Units) -> tuple[float, float]:
    if units.kind == "strength":
        return (0.0, 1.0) if settings.clip else (-np.inf, np.inf)
    if units.kind == "columns" and settings.clip == "auto":
        return -np.inf, np.inf
    return settings.limits(entries.values)


def _fit_standard(
    settings: Settings, entries: Any, limits: tuple[float, float], given: tuple[Any, Any],
    on_form: Callable[[Form], None] | None, holdout: Entries | None,
    checkpoint: SweepCheckpoint | None,
) -> Fit:  # fmt: skip
    """Fit to values in the units of the model."""
    negatives = settings.missing == "negative"
    how: dict[str, Any] = {
        "n_factors": settings.factors(len(entries)), "biases": settings.biases and not negatives,
        "standard": settings.learned and not negatives, "precise": settings.ill_posed,
    }  # fmt: skip
    problem = CompletionProblem.build(entries, mapped=settings.mapped, **how)
    place = make_engine(settings.engine, settings.n_jobs)
    average = 0 if negatives else settings.draws(len(entries), entries.shape)
    total = settings.sweeps + average
    with place as engine, meter("sweeps", total) as bar:
        run = _Run(engine, bar, on_form, holdout, checkpoint)
        if negatives:
            fit = _fit_negative(settings, entries, problem, limits, run)
        elif settings.learned:
            fit = _fit_learned(settings, problem, limits, run, given, average)
        else:
            path = None
            if isinstance(settings.drop_prob, str):
                settings, path = choose_drop_prob(settings, entries, engine)
            fit = _fit_point(settings, problem, limits, run, path)
        return replace(fit, faults=tuple(engine.faults))


def _fit_learned(
    settings: Settings, problem: CompletionProblem, limits: tuple[float, float], run: _Run,
    given: tuple[Any, Any], average: int,
) -> Fit:  # fmt: skip
    groups = (problem.by_row, problem.by_col)
    signals, certain = settings.signals is not False, settings.signals is True
    known = features.of_sides(groups, given, signals, problem.dtype, settings.seed, run.engine)
    form = LearnedForm.start(problem, settings.seed, None, known, certain)
    status = run.descend(form, settings.sweeps, settings.tol_or(learned.TOL))
    draws: list[dict[str, Array]] = []
    if average and status is not Status.INTERRUPTED:
        chain = SampledForm.start(form, settings.seed)
        if run.descend(chain, len(form.history) + BURN_IN + average, 0.0) != "finished":
            status = Status.INTERRUPTED
        draws = chain.draws
    form.finish()
    found = equivalent_drop_prob(form)  # first: it takes memory for a while
    return Fit(FactorModel.from_form(form, limits, draws), form.history, status, *found)


def _fit_negative(
    settings: Settings, entries: Entries, problem: CompletionProblem,
    limits: tuple[float, float], run: _Run,
) -> Fit:  # fmt: skip
    """Settle without some entries first, which tell what popularity is to count, then with all."""
    tol, form, status = settings.tol_or(negative.TOL), None, Status.FINISHED
    hidden = popular.hide(len(entries), settings.seed)
    if hidden.any() and not settings.mapped:
        kept = entries.take(np.flatnonzero(~hidden))
        few = CompletionProblem.build(kept, problem.columns.n_factors, biases=False, standard=False)
        first = NegativeForm.start(few, settings.seed)
        # What popularity is to count shows before all has settled, and the rest settles below.
        status = descend(first, run.engine, settings.sweeps, 2 * tol, run.bar.advance)
        form = first.over(problem, popular.choose(first.means, entries, hidden))
        form.history += first.history if status is Status.INTERRUPTED else []
    form = form or NegativeForm.start(problem, settings.seed)
    if status is not Status.INTERRUPTED:
        status = run.descend(form, settings.sweeps, tol)
    form.finish()
    if entries.times is not None:
        form.recent = recent.shifts(form, entries, entries.times)
    found = equivalent_drop_prob(form)  # type: ignore[arg-type]
    model = replace(FactorModel.from_form(form, limits), pairs=form.pairs)
    return Fit(model, form.history, status, *found)


def _fit_point(
    settings: Settings, problem: CompletionProblem, limits: tuple[float, float], run: _Run,
    path: Floats | None,
) -> Fit:  # fmt: skip
    given = (problem, settings.drop_prob, settings.ridge, settings.seed)
    form: PointForm
    if settings.method == "sgd":
        form = SGDForm.start(*given, settings.learning_rate, settings.batch_size)
    else:
        form = FixedForm.start(*given)
    status = run.descend(form, settings.sweeps, settings.tol_or(fixed.TOL))
    form.finish()
    model = FactorModel.from_form(form, limits)
    return Fit(model, form.history, status, settings.drop_prob, None, path)


def grow(settings: Settings, growing: Growing, new: Entries, sweeps: int) -> Fit | None:
    """Take in new entries, by a full fit (which is returned) once they are many.

    `settings` has the drop probability that was fitted.
    """
    whole("sweeps", sweeps)
    model = growing.model
    if model.pairs is not None:
        growing.ledger.add(new)
        growing.ledger = Ledger(chosen(growing.ledger.entries))  # without what was unchosen
        return _grow_pairs(settings, growing, new, sweeps)
    if len(growing.ledger) + len(new) < GROWTH * growing.fitted:
        if model.draws is not None:
            warnings.warn(
                f"partial_fit gives up the {len(model.draws.U)} draws that were averaged; fit "
                "again to draw anew",
                stacklevel=3,
            )
        with make_engine(settings.engine, settings.n_jobs) as engine:
            growing.take(new, engine, sweeps)
        return None
    growing.ledger.add(new)
    entries, table = growing.ledger.entries, model.units.kind == "columns"
    given = [scores if scores.shape[1] else None for scores in growing.features(entries.shape)]
    fit = fit_entries(settings, entries, given=(given[0], given[1]), table=table)
    return replace(fit, model=fit.model.after(model))


def _grow_pairs(settings: Settings, growing: Growing, new: Entries, sweeps: int) -> Fit:
    """Solve again for the touched rows of a model in which every pair counts."""
    growing.make_room()
    model, spread = growing.model, growing.model.spread
    entries = model.units.enter(growing.ledger.entries)
    problem = CompletionProblem.build(
        entries, model.columns.n_factors, biases=False, standard=False
    )
    means = [w[:-1].astype(problem.dtype) for w in model.means]
    picks = [np.arange(len(w)) for w in means]
    if model.pairs is None or not isinstance(spread, FullSpread):
        raise TypeError("a model in which every pair counts has full covariances")
    spread = spread.taken(picks, problem.dtype)
    for side, w in enumerate(means):
        spread.add_means(side, w)
    rules = model.pairs.rows, model.pairs.cols
    given = problem, means, spread, list(model.priors), model.noise, rules
    form = NegativeForm(*given, popular=model.pairs.popular)
    form.problem = replace(
        problem,
        by_row=problem.by_row.only(np.unique(new.rows)),
        by_col=problem.by_col.only(np.unique(new.cols)),
    )
    with make_engine(settings.engine, settings.n_jobs) as engine:
        for _ in range(sweeps):
            for side in (0, 1):
                if len(form.problem.grouped(side).rows):  # none, where all that is new is zero
                    form.update(side, engine)
    form.problem = problem
    form.finish()
    if len(model.pairs.recent):
        if entries.times is not None:
            form.recent = recent.shifts(form, entries, entries.times)
        else:  # rows that have nothing new keep what was learned
            form.recent = np.zeros((entries.shape[0], model.pairs.recent.shape[1]))
            old = np.setdiff1d(np.arange(len(model.pairs.recent)), new.rows)
            form.recent[old] = model.pairs.recent[old]
    found = equivalent_drop_prob(form)  # type: ignore[arg-type]
    updated = FactorModel.from_form(form, (model.low, model.high))
    updated = replace(updated, units=model.units, pairs=form.pairs)
    return Fit(updated, form.history, Status.FINISHED, *found, fitted=growing.fitted)
