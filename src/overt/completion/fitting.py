"""From settings and entries to a model: which form is fitted, how, and what new entries change."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from overt._check import InputError
from overt._parallel import ClusterLostError
from overt._progress import Meter, meter
from overt._types import Array, Floats
from overt.completion import incremental
from overt.completion.engines import Engine, make_engine
from overt.completion.forms import descend, features, fixed, implicit, learned
from overt.completion.forms.averaged import BURN_IN, SampledForm
from overt.completion.forms.fixed import FixedForm, SGDForm
from overt.completion.forms.implicit import NegativeForm, Strengths
from overt.completion.forms.learned import LearnedForm, equivalent_drop_prob
from overt.completion.forms.model import FactorModel, Fit
from overt.completion.forms.problem import CompletionProblem
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
    """Engine, progress bar, callback and checkpoint of a running fit."""

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
    settings: Settings,
    entries: Any,
    *,
    on_form: Callable[[Form], None] | None = None,
    holdout: Entries | None = None,
    checkpoint: SweepCheckpoint | None = None,
    given: tuple[Any, Any] = (None, None),
) -> Fit:
    """Fit the form that the settings name; see `DropoutCompletion`.

    `on_form` gets the form after each sweep; `holdout` is only looked at; `given` are features of
    the rows and of the columns, as numbers.
    """
    strengths = None
    if settings.missing == "negative":
        strengths = Strengths.of(entries.values)
        entries = strengths.enter(entries)
        holdout = None if holdout is None else strengths.enter(holdout)
    limits = _limits(settings, entries)
    fit = _fit_standard(settings, entries, limits, given, on_form, holdout, checkpoint)
    model = fit.model
    if model.pairs is not None and strengths is not None:
        model = replace(model, pairs=replace(model.pairs, strengths=strengths))
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


def _limits(settings: Settings, entries: Any) -> tuple[float, float]:
    if settings.missing == "negative":
        return (0.0, 1.0) if settings.clip else (-np.inf, np.inf)
    return settings.limits(entries.values)


def _fit_standard(
    settings: Settings,
    entries: Any,
    limits: tuple[float, float],
    given: tuple[Any, Any],
    on_form: Callable[[Form], None] | None,
    holdout: Entries | None,
    checkpoint: SweepCheckpoint | None,
) -> Fit:
    """Fit to values in the units of the model."""
    negatives = settings.missing == "negative"
    n_factors = settings.factors(len(entries))
    if settings.learned and settings.n_factors is None:
        # More factors than the smaller side has rows can only fit noise.
        n_factors = min(n_factors, *entries.shape)
    how: dict[str, Any] = {
        "n_factors": n_factors,
        "biases": settings.biases and not negatives,
        "standard": settings.learned and not negatives,
        "precise": settings.ill_posed,
    }
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
    settings: Settings,
    problem: CompletionProblem,
    limits: tuple[float, float],
    run: _Run,
    given: tuple[Any, Any],
    average: int,
) -> Fit:
    groups = (problem.by_row, problem.by_col)
    signals = settings.signals is not False
    certain = settings.signals is True
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
    settings: Settings,
    entries: Entries,
    problem: CompletionProblem,
    limits: tuple[float, float],
    run: _Run,
) -> Fit:
    """Settle without some entries first, which tell what popularity is to count, then with all."""
    tol = settings.tol_or(implicit.TOL)
    form = None
    status = Status.FINISHED
    hidden = implicit.hide(len(entries), settings.seed)
    if len(hidden):
        first = NegativeForm.start(problem.zeroed(hidden), settings.seed)
        # The weight of popularity shows before convergence; the rest converges below.
        status = descend(first, run.engine, settings.sweeps, 2 * tol, run.bar.advance)
        form = first.over(problem, implicit.choose(first.means, entries, hidden))
        form.history += first.history if status is Status.INTERRUPTED else []
    form = form or NegativeForm.start(problem, settings.seed)
    if status is not Status.INTERRUPTED:
        status = run.descend(form, settings.sweeps, tol)
    form.finish()
    if entries.times is not None:
        form.recent = implicit.recent_shifts(form, entries, entries.times)
    found = equivalent_drop_prob(form)  # type: ignore[arg-type]
    model = replace(FactorModel.from_form(form, limits), pairs=form.pairs)
    return Fit(model, form.history, status, *found)


def _fit_point(
    settings: Settings,
    problem: CompletionProblem,
    limits: tuple[float, float],
    run: _Run,
    path: Floats | None,
) -> Fit:
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


def fit_chosen(settings: Settings, entries: Entries) -> FactorModel:
    """Fit the model of which entries are observed, which ranks beside a model of values."""
    settings = replace(
        settings,
        drop_prob="learn",
        method="alternating",
        average=0,
        missing="negative",
        max_sweeps=None,
        tol=None,
        n_factors=settings.chosen_factors(len(entries)),
    )
    fit = fit_entries(settings, entries)
    if fit.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return fit.model


def refit(settings: Settings, last: FactorModel, entries: Entries) -> Fit:
    """Fit again, with more entries than the last model had; features are those it knows."""
    scores = incremental.given_scores(last, entries.shape)
    left, right = (known if known.shape[1] else None for known in scores)
    fit = fit_entries(settings, entries, given=(left, right))
    if fit.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return replace(fit, model=fit.model.after(last))


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
