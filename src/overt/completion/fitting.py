"""From settings and entries to a model: which form is fitted, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from overt._check import InputError
from overt._progress import Meter, meter
from overt._types import Array, Floats
from overt.completion.checkpoint import Checkpoint
from overt.completion.descend import descend, sample
from overt.completion.engine import Engine, make_engine
from overt.completion.fixed import Fixed
from overt.completion.learned import Learned, balanced
from overt.completion.model import Model, from_learned, from_point
from overt.completion.problem import Problem
from overt.completion.reference import unpack
from overt.completion.sampled import Sampled
from overt.completion.settings import Settings
from overt.completion.sgd import Descent
from overt.entries import Entries
from overt.results import Status

PATH = (0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)
"""Drop probabilities tried by "auto", each started from the one before."""

BEYOND = (0.8, 0.9, 0.95)
"""Those tried where the largest of PATH is the best."""

PATIENCE = 2
"""Worse probabilities in a row after which "auto" stops trying."""


@dataclass(frozen=True)
class Fit:
    """A model and how it was reached."""

    model: Model
    objective: list[float]
    status: Status
    drop_prob: Any
    learned_drop_prob: Floats | None = None
    path: Floats | None = None


Watch = Callable[[int, float], None]


def fit_entries(
    settings: Settings,
    entries: Entries,
    *,
    on_sweep: Watch | None = None,
    on_form: Callable[[Any], None] | None = None,
    holdout: Entries | None = None,
    checkpoint: Checkpoint | None = None,
) -> Fit:
    """Fit the form that the settings name; see `DropoutCompletion`.

    After each sweep `on_sweep` gets (sweeps done, objective) and `on_form` the form itself.
    """
    limits = settings.limits(entries.values)
    problem = Problem.build(
        entries,
        settings.n_factors,
        biases=settings.biases,
        standard=settings.learned,
        precise=settings.ill_posed,
    )
    total = settings.sweeps + settings.average
    with make_engine(settings.engine, settings.n_jobs) as engine, meter("sweeps", total) as bar:
        watch = _Watch(problem, bar, on_sweep, on_form, holdout)
        if settings.learned:
            return _fit_learned(settings, problem, limits, engine, watch, checkpoint)
        if settings.method == "sgd":
            return _fit_sgd(settings, problem, limits, engine, watch)
        path = None
        if isinstance(settings.drop_prob, str):
            settings, path = _choose(settings, entries, engine)
        return _fit_fixed(settings, problem, limits, engine, watch, path, checkpoint)


class _Watch:
    """Reports each sweep to the terminal and to the caller."""

    def __init__(
        self,
        problem: Problem,
        bar: Meter,
        on_sweep: Watch | None,
        on_form: Callable[[Any], None] | None,
        holdout: Entries | None,
    ) -> None:
        self._problem, self._bar = problem, bar
        self._on_sweep, self._on_form, self._holdout = on_sweep, on_form, holdout

    def __call__(self, form: Any, objective: float, done: int) -> None:
        note = f"objective {objective:.5f}"
        if self._holdout is not None:
            h, p = self._holdout, self._problem
            U, V = form.means
            predicted = p.center + p.scale * np.einsum("ei,ei->e", U[h.rows], V[h.cols])
            note += f", held-out RMSE {np.sqrt(np.mean((predicted - h.values) ** 2)):.4f}"
        self._bar.advance(note=note)
        if self._on_sweep is not None:
            self._on_sweep(done, objective)
        if self._on_form is not None:
            self._on_form(form)


def _fit_learned(
    settings: Settings,
    problem: Problem,
    limits: tuple[float, float],
    engine: Engine,
    watch: _Watch,
    checkpoint: Checkpoint | None,
) -> Fit:
    form = Learned.start(problem, settings.seed)
    if checkpoint is not None:
        checkpoint.restore("learned", form)

    def swept() -> None:
        watch(form, form.history[-1], len(form.history))
        if checkpoint is not None:
            checkpoint.write("learned", form)

    tol = 5e-4 if settings.tol is None else settings.tol
    status = descend(form, engine, max_sweeps=settings.sweeps, tol=tol, on_sweep=swept)
    chain = None
    if settings.average and status is not Status.INTERRUPTED:
        chain = Sampled.start(form, settings.seed)
        if checkpoint is not None:
            checkpoint.restore("sampled", chain)

        def drawn() -> None:
            watch(chain, form.history[-1], len(form.history) + chain.steps)
            if checkpoint is not None:
                checkpoint.write("sampled", chain)

        if sample(chain, engine, draws=settings.average, on_sweep=drawn) is Status.INTERRUPTED:
            status = Status.INTERRUPTED
    form.finish()
    overall, each = equivalent_drop_prob(form)
    return Fit(from_learned(form, limits, chain), form.history, status, overall, each)


def _fit_fixed(
    settings: Settings,
    problem: Problem,
    limits: tuple[float, float],
    engine: Engine,
    watch: _Watch,
    path: Floats | None,
    checkpoint: Checkpoint | None,
) -> Fit:
    form = Fixed.start(problem, settings.drop_prob, settings.ridge, settings.seed)
    if checkpoint is not None:
        checkpoint.restore("fixed", form)

    def swept() -> None:
        watch(form, form.history[-1], len(form.history))
        if checkpoint is not None:
            checkpoint.write("fixed", form)

    tol = 1e-5 if settings.tol is None else settings.tol
    status = descend(form, engine, max_sweeps=settings.sweeps, tol=tol, on_sweep=swept)
    form.finish()
    model = from_point(form, limits, settings.ridge)
    return Fit(model, form.history, status, settings.drop_prob, None, path)


def _fit_sgd(
    settings: Settings,
    problem: Problem,
    limits: tuple[float, float],
    engine: Engine,
    watch: _Watch,
) -> Fit:
    form = Descent.start(
        problem, settings.drop_prob, settings.seed, settings.learning_rate, settings.batch_size
    )

    def swept() -> None:
        watch(form, form.history[-1], form.epoch)

    status = descend(form, engine, max_sweeps=settings.sweeps, tol=0.0, on_sweep=swept)
    if not np.isfinite(form.history[-1]):
        status = Status.DIVERGED
    return Fit(from_point(form, limits, settings.ridge), form.history, status, settings.drop_prob)


def _choose(settings: Settings, entries: Entries, engine: Engine) -> tuple[Settings, Floats]:
    """Try a path of drop probabilities, each warm-started, on a held-out tenth."""
    order = np.random.default_rng([settings.seed, 1]).permutation(len(entries))
    held, kept = np.sort(order[: len(entries) // 10]), np.sort(order[len(entries) // 10 :])
    if not len(held):
        raise InputError(f'drop_prob="auto" needs at least 10 entries, got {len(entries)}')
    test = entries.take(held)
    problem = Problem.build(
        entries.take(kept), settings.n_factors, biases=settings.biases, standard=False
    )
    tol = 1e-4 if settings.tol is None else settings.tol
    tried: dict[float, float] = {}

    def attempt(drop_prob: float, means: list[Array] | None) -> list[Array]:
        form = Fixed.start(problem, drop_prob, settings.ridge, settings.seed, means)
        if descend(form, engine, max_sweeps=settings.sweeps, tol=tol) is Status.INTERRUPTED:
            raise KeyboardInterrupt
        U, V = form.means
        predicted = problem.center + np.einsum("ei,ei->e", U[test.rows], V[test.cols])
        tried[drop_prob] = float(np.sqrt(np.mean((predicted - test.values) ** 2)))
        return [U.copy(), V.copy()]

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


def equivalent_drop_prob(form: Learned) -> tuple[float, Floats]:
    """Return the drop probability whose noise is as large as the learned one, and per factor.

    Fixed dropout gives the product of factor i a relative variance lam; the learned noise gives it
    (1 + a_i)(1 + b_i) - 1 with a_i and b_i the two sides' variance over squared mean, averaged over
    ratings, in the basis that makes both priors diagonal.
    """
    problem, k = form.problem, form.problem.n_factors
    bases = balanced(form)
    ratio, size = np.ones(k), np.ones(k)
    for side in (0, 1):
        counts = problem.grouped(side).counts.astype(float)
        W = form.means[side][:, :k].astype(np.float64) @ bases[side]
        squares = counts @ (W**2)
        S = unpack(counts @ form.tables[side]) if form.full else np.diag(counts @ form.tables[side])
        noise = np.diag(bases[side].T @ S[:k, :k] @ bases[side])
        ratio *= 1 + np.minimum(noise / np.maximum(squares, 1e-100), 1e12)
        size *= squares
    lam = np.maximum(ratio - 1, 0)
    overall = float(lam @ size / size.sum()) if size.sum() else 0.0
    return overall / (1 + overall), lam / (1 + lam)
