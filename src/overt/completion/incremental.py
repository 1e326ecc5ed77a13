"""New entries taken into a fitted model: the rows and columns they touch are solved again.

Everything else is fixed, priors and noise included. Once there are GROWTH times the entries of the
last full fit, or where the model averages samples, the caller fits again instead. No array of the
given model is changed, so an error or Ctrl-C on the way leaves it as it was.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from overt._types import Array, Floats, Ints
from overt.completion.engines import Engine
from overt.completion.forms.features import FEATURES, NOTHING, again
from overt.completion.forms.fixed import FixedForm
from overt.completion.forms.implicit import NegativeForm, observed_pairs, recent_shifts
from overt.completion.forms.learned import LearnedForm
from overt.completion.forms.model import FactorModel
from overt.completion.forms.noise import expected
from overt.completion.forms.problem import CompletionProblem, Grouped
from overt.completion.forms.spread import DropoutSpread, FullSpread
from overt.entries import Entries
from overt.entries.identifiers import UNKNOWN

GROWTH = 1.25
"""Times the entries of the last full fit after which there is another one: all fits together then
cost at most five times the last."""


def merge(old: Entries, new: Entries) -> Entries:
    """Return both in one matrix; an entry that was known is replaced by the new one."""
    shape = (max(old.shape[0], new.shape[0]), max(old.shape[1], new.shape[1]))
    kept = ~np.isin(old.rows * shape[1] + old.cols, new.rows * shape[1] + new.cols)
    times = None
    if old.times is not None and new.times is not None:
        times = np.concatenate([old.times[kept], new.times])
    elif old.times is not None:
        warnings.warn(
            f"the {len(new)} new entries have no times: lists no longer follow what their rows "
            "chose last",
            stacklevel=3,
        )
    return Entries(
        np.concatenate([old.rows[kept], new.rows]),
        np.concatenate([old.cols[kept], new.cols]),
        np.concatenate([old.values[kept], new.values]),
        shape,
        old.row_ids if new.row_ids is None else new.row_ids,
        old.col_ids if new.col_ids is None else new.col_ids,
        times,
    )


def needs_refit(model: FactorModel, entries: Entries, fitted: int) -> bool:
    """Whether to fit again: there is much more than was fitted, or samples are averaged.

    Samples given other entries cannot be corrected, and predictions without samples come from
    another model.
    """
    return model.draws is not None or len(entries) >= GROWTH * fitted


def extend(
    model: FactorModel, entries: Entries, new: Entries, ridge: float, sweeps: int, engine: Engine
) -> FactorModel:
    """Return the model of all `entries`, of which `new` are those that it does not know yet."""
    model = with_room(model, entries.shape)
    if np.isfinite(model.low) and model.pairs is None:
        low = min(model.low, float(new.values.min()))
        high = max(model.high, float(new.values.max()))
        model = replace(model, low=low, high=high)
    if model.pairs is not None:
        return _extend_pairs(model, observed_pairs(entries), new, sweeps, engine)
    touched = (_Touched.of(entries, 0, new.rows), _Touched.of(entries, 1, new.cols))
    for _ in range(sweeps):
        for side in (0, 1):
            _solve(model, side, touched[side], ridge, engine)
    return model


def with_room(model: FactorModel, shape: tuple[int, int]) -> FactorModel:
    """Return a copy with rows and columns added, which start as one that was never seen."""
    picks = [
        np.concatenate([np.arange(m), np.full(n - m, UNKNOWN), [UNKNOWN]])
        for m, n in zip(model.shape, shape, strict=True)
    ]
    spread = model.spread
    if not isinstance(spread, DropoutSpread):
        spread = spread.taken(picks, spread.tables[0].dtype)
    return replace(
        model,
        means=(model.means[0][picks[0]], model.means[1][picks[1]]),
        noises=(model.noises[0].taken(picks[0]), model.noises[1].taken(picks[1])),
        spread=spread,
        given=given_scores(model, shape),
    )


def given_scores(model: FactorModel, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Return scores of the given features of both sides, new rows at the mean."""
    found = []
    for known, directions, count in zip(model.given, model.directions, shape, strict=True):
        typical = directions.typical.get(FEATURES, np.zeros(0)).astype(known.dtype)
        found.append(np.concatenate([known, np.tile(typical, (count - len(known), 1))]))
    return found[0], found[1]


@dataclass(frozen=True, eq=False)
class _Touched:
    """The rows of a side that have new entries, and all entries in them."""

    rows: Ints
    keys: Ints  # of each entry, its row's place among `rows`
    others: Ints
    values: Floats

    @classmethod
    def of(cls, entries: Entries, side: int, keys: Ints) -> _Touched:
        rows = np.unique(np.asarray(keys))
        mine = entries.rows
        others = entries.cols
        if side == 1:
            mine, others = others, mine
        at = np.flatnonzero(np.isin(mine, rows))
        keys = np.searchsorted(rows, np.asarray(mine)[at])
        return cls(rows, keys, np.asarray(others)[at], entries.values[at])


def _solve(model: FactorModel, side: int, touched: _Touched, ridge: float, engine: Engine) -> None:
    """Solve for the touched rows of a side, into the arrays of the model."""
    form = _form(model, side, touched, ridge)
    if isinstance(form, FixedForm):
        form.update(side, engine)
    else:
        _, errors = form.update(side, engine)
        form.spread.add_means(side, form.means[side], -1)
        noise = model.noises[side]
        counts = form.problem.grouped(side).counts.astype(float)
        weights, variances = expected(noise.nu, counts, np.maximum(errors, 0) / model.noise)
        noise.weights[touched.rows] = weights
        noise.variances[touched.rows] = variances
        if not isinstance(model.spread, DropoutSpread):
            model.spread.tables[side][touched.rows] = form.spread.tables[side]
    model.means[side][touched.rows] = form.means[side]


def _form(
    model: FactorModel, side: int, touched: _Touched, ridge: float
) -> LearnedForm | FixedForm:
    """Return the form of the touched rows of a side and the partners of their entries alone."""
    dtype = model.means[0].dtype
    width = model.columns.width
    values = (touched.values - model.center).astype(dtype)
    partners, others = np.unique(touched.others, return_inverse=True)
    rows = touched.keys
    cols = others
    picks = (touched.rows, partners)
    if side == 1:
        rows, cols = cols, rows
        picks = (partners, touched.rows)
    shape = (len(picks[0]), len(picks[1]))
    by_row = Grouped.build(rows, cols, values, shape, width)
    by_col = Grouped.build(cols, rows, values, (shape[1], shape[0]), width)
    problem = CompletionProblem(by_row, by_col, shape, model.columns, model.center, 1.0)
    means = [w[pick] for w, pick in zip(model.means, picks, strict=True)]
    if isinstance(model.spread, DropoutSpread):
        return FixedForm(problem, means, model.spread, ridge, [])
    spread = model.spread.taken(picks, dtype)
    for s, w in enumerate(means):
        spread.add_means(s, w)
    noises = [n.taken(pick) for n, pick in zip(model.noises, picks, strict=True)]
    mine = Grouped.build(
        touched.keys,
        touched.others,
        touched.values,
        (len(touched.rows), model.shape[1 - side]),
        width,
    )
    features = [NOTHING, NOTHING]
    features[side] = again(model.directions[side], model.given[side][touched.rows], mine)
    known = (features[0], features[1])
    return LearnedForm(problem, means, spread, list(model.priors), model.noise, noises, known)


def _extend_pairs(
    model: FactorModel, entries: Entries, new: Entries, sweeps: int, engine: Engine
) -> FactorModel:
    """Solve for the touched rows and columns of a model in which every pair counts."""
    pairs = model.pairs
    spread = model.spread
    if pairs is None or not isinstance(spread, FullSpread):
        raise TypeError("a model in which every pair counts has full covariances")
    entries = pairs.strengths.enter(entries)
    problem = CompletionProblem.build(
        entries, model.columns.n_factors, biases=False, standard=False
    )
    means = [w[:-1].astype(problem.dtype) for w in model.means]
    spread = spread.taken([np.arange(len(w)) for w in means], problem.dtype)
    for side, w in enumerate(means):
        spread.add_means(side, w)
    rules = (pairs.rows, pairs.cols)
    given = (problem, means, spread, list(model.priors), model.noise, rules)
    form = NegativeForm(*given, popular=pairs.popular)
    form.problem = replace(
        problem,
        by_row=problem.by_row.only(np.unique(new.rows)),
        by_col=problem.by_col.only(np.unique(new.cols)),
    )
    for _ in range(sweeps):
        for side in (0, 1):
            if len(form.problem.grouped(side).rows):  # none, where all that is new is zero
                form.update(side, engine)
    form.problem = problem
    form.finish()
    if len(pairs.recent):
        form.recent = _recent(form, pairs.recent, entries, new)
    updated = FactorModel.from_form(form, (model.low, model.high))
    return replace(updated, pairs=replace(form.pairs, strengths=pairs.strengths))


def _recent(form: NegativeForm, old: Floats, entries: Entries, new: Entries) -> Floats:
    """Return what choices that came last change; without times, of rows without new entries."""
    if entries.times is not None:
        return recent_shifts(form, entries, entries.times)
    found = np.zeros((entries.shape[0], old.shape[1]))
    same = np.setdiff1d(np.arange(len(old)), new.rows)
    found[same] = old[same]
    return found
