"""From validated parameters and entries to a fitted model: which kind is fitted, and how.

The kinds are `learned.LearnedFit` (with `averaged.SampledFit` after it), `implicit.ImplicitFit` and
`fixed.FixedFit`. Each is improved sweep by sweep, and has

    kind, state                    its name in a checkpoint, and the attributes to store
    problem, means, history        both sides' rows, and the objective after each sweep
    step(engine)                   make one sweep
    settled(tol)                   whether the last sweep changed too little to continue
    model(...)                     the fitted model
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from overt import _check
from overt._check import Floats, InputError, InputTypeError, Ints
from overt._running import ClusterLostError, Meter, checked_engine, meter
from overt.completion import averaged, fixed, implicit, learned
from overt.completion.averaged import AveragedModel, SampledFit
from overt.completion.engines import Engine, half_sweep, make_engine
from overt.completion.features import GivenFeatures, both_features
from overt.completion.fixed import FixedFit
from overt.completion.implicit import (
    ImplicitFit,
    ImplicitModel,
    Strengths,
    choose_popularity,
    hide_entries,
    observed_pairs,
)
from overt.completion.kernels.rows import FixedSide
from overt.completion.learned import LearnedFit, equivalent_drop_prob
from overt.completion.memory import n_bytes
from overt.completion.model import MAX_FULL_BYTES, FactorModel, Fit
from overt.completion.problem import Columns, CompletionProblem, Grouped
from overt.completion.storage import SweepCheckpoint
from overt.entries import Entries
from overt.results import Status

Model = FactorModel | AveragedModel | ImplicitModel
OnStep = Callable[[Any], None]


@dataclass(frozen=True)
class Defaults:
    """Values that parameters take when users leave them open."""

    sweeps: int = 100
    """Sweeps after which to stop."""

    factors: int = 32
    """Number of factors."""

    ranking_factors: int = 64
    """Number of factors of a ranking with many entries: MovieLens 1M gains by it, 100K does not."""

    many_entries: int = 500_000
    """Entries from which a ranking has these."""

    samples: int = 60
    """Posterior samples of average="auto"."""

    min_samples: int = 20
    """With fewer, sampling noise outweighs their gain (MovieLens 100K): "auto" then takes none."""

    min_sampled_entries: int = 1000
    """Entries below which "auto" takes no samples."""

    sampling_work: float = 2e10
    """Multiplications that the samples of "auto" may take: some ten seconds on one core."""

    min_single_precision: float = 0.01
    """Smallest drop probability whose equations are sound in single precision. Below it rows with
    few entries are fitted exactly by factors that grow until the ridge stops them."""

    growth: float = 1.25
    """Times the entries of the last full fit after which `partial_fit` makes another one: all fits
    together then cost at most five times the last."""


DEFAULTS = Defaults()

MAX_RATING_LEVELS = 20
"""Different numbers that a rating scale has at most."""

RATING_SHARE = 0.9
"""Share of the values that these numbers must make up."""

RATING_SAMPLE = 50_000
"""Values that are looked at to decide."""

MANY_EQUAL = 20
"""Entries from which equal values are no accident."""

DROP_PROBS = (0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)
"""Drop probabilities tried by "auto", each started from the one before."""

LARGER_DROP_PROBS = (0.8, 0.9, 0.95)
"""Tried where the largest of DROP_PROBS is the best."""

PATIENCE = 2
"""Worse probabilities in a row after which "auto" stops trying."""

PATH_TOL = 1e-4
"""Relative fall of the objective in one sweep below which a trial of "auto" has converged."""


@dataclass(frozen=True)
class Settings:
    """The estimator's parameters, checked."""

    n_factors: int | None
    drop_prob: Any
    biases: bool
    ridge: float
    max_sweeps: int | None
    tol: float | None
    average: Any
    signals: Any
    clip: Any
    seed: int
    n_jobs: int | None
    engine: str
    missing: str = "unknown"
    memory_limit: Any = None

    def __post_init__(self) -> None:
        if self.n_factors is not None:
            _check.whole("n_factors", self.n_factors, maximum=10**5)
        if self.max_sweeps is not None:
            _check.whole("max_sweeps", self.max_sweeps)
        if self.tol is not None:
            object.__setattr__(self, "tol", _check.number("tol", self.tol))
        object.__setattr__(self, "ridge", _check.number("ridge", self.ridge))
        _check.whole("seed", self.seed, minimum=0)
        n_bytes(self.memory_limit)
        checked_engine(self.engine)
        _check.choice("missing", self.missing, ("unknown", "negative"))
        if not isinstance(self.biases, (bool, np.bool_)):
            raise InputTypeError(f"biases must be True or False, got {self.biases!r}")
        for name in ("clip", "signals"):
            given = getattr(self, name)
            if not isinstance(given, (bool, np.bool_)) and str(given) != "auto":
                raise InputError(f"{name} must be 'auto', True or False, got {given!r}")
        if isinstance(self.drop_prob, str):
            _check.choice("drop_prob", self.drop_prob, ("learn", "auto"))
        elif _check.plain_array("drop_prob", self.drop_prob).ndim:
            _check.drop_probs(self.drop_prob, self.factors(0))
        else:
            object.__setattr__(self, "drop_prob", _check.drop_prob(self.drop_prob))
        samples = 0
        if str(self.average) != "auto":
            samples = _check.whole("average", self.average, minimum=0)
        if self.missing == "negative" and (not self.learned or samples):
            raise InputError('missing="negative" needs drop_prob="learn" and average=0')
        if samples and not self.learned:
            raise InputError(
                'average needs drop_prob="learn", whose posterior is sampled'
            )

    @property
    def learned(self) -> bool:
        """Whether the noise is learned."""
        return isinstance(self.drop_prob, str) and self.drop_prob == "learn"

    @property
    def sweeps(self) -> int:
        """Number of sweeps after which to stop."""
        return DEFAULTS.sweeps if self.max_sweeps is None else self.max_sweeps

    def tol_or(self, default: float) -> float:
        """Return when to stop: as given, or the default of a kind of fit."""
        return default if self.tol is None else self.tol

    def ranking_factors(self, n_entries: int) -> int:
        """Return the number of factors of the model that ranks."""
        many = n_entries >= DEFAULTS.many_entries
        default = DEFAULTS.ranking_factors if many else DEFAULTS.factors
        return max(int(self.n_factors or 0), default)

    def factors(self, n_entries: int) -> int:
        """Return the number of factors for a fit of `n_entries`."""
        if self.n_factors is not None:
            return int(self.n_factors)
        return (
            self.ranking_factors(n_entries)
            if self.missing == "negative"
            else DEFAULTS.factors
        )

    def _affordable(self, entries: Entries) -> int:
        """Return the number of factors whose covariances fit into memory in single precision."""
        size = MAX_FULL_BYTES // (4 * sum(entries.shape))  # width (width + 1) / 2
        return max(1, int(np.sqrt(2 * size)) - 1 - 2 * self.biases)

    def samples(self, ratings: int, shape: tuple[int, int]) -> int:
        """Return how many samples to average; "auto" takes as many as take seconds."""
        if str(self.average) != "auto":
            return int(self.average)
        quick = self.max_sweeps is not None or ratings < DEFAULTS.min_sampled_entries
        if not self.learned or self.missing == "negative" or quick:
            return 0
        width = self.factors(ratings) + 2 * self.biases
        work = width**2 * (2 * ratings + width * sum(shape) / 3)
        affordable = int(DEFAULTS.sampling_work / work)
        return (
            min(DEFAULTS.samples, affordable)
            if affordable >= DEFAULTS.min_samples
            else 0
        )

    def limits(self, values: Floats) -> tuple[float, float]:
        """Return the range that predictions are clipped to."""
        if self.missing == "negative":
            return (0.0, 1.0) if self.clip else (-np.inf, np.inf)
        clip = is_rating_scale(values) if self.clip == "auto" else self.clip
        if not clip:
            return -np.inf, np.inf
        return float(values.min()), float(values.max())

    def problem(self, entries: Entries) -> CompletionProblem:
        """Return the problem of these entries."""
        negative = self.missing == "negative"
        n_factors = self.factors(len(entries))
        if self.learned and self.n_factors is None:
            # More factors than the smaller side has rows can only fit noise.
            n_factors = min(n_factors, *entries.shape, self._affordable(entries))
        given = not isinstance(self.drop_prob, str)
        return CompletionProblem.build(
            entries,
            Columns(n_factors, bool(self.biases) and not negative),
            standard=self.learned and not negative,
            precise=given
            and bool(np.min(self.drop_prob) < DEFAULTS.min_single_precision),
            memory_limit=n_bytes(self.memory_limit),
        )


def is_rating_scale(values: Floats) -> bool:
    """Return whether a few different numbers make up most of the values."""
    some = values[:: max(1, len(values) // RATING_SAMPLE)]
    counts = np.sort(np.unique(some, return_counts=True)[1])
    if len(some) <= MAX_RATING_LEVELS:
        return False
    return bool(counts[-MAX_RATING_LEVELS:].sum() >= RATING_SHARE * len(some))


@dataclass
class Run:
    """Engine, progress bar, callback and checkpoint of a running fit."""

    engine: Engine
    bar: Meter
    on_step: OnStep | None = None
    checkpoint: SweepCheckpoint | None = None

    def descend(self, fit: Any, max_sweeps: int, tol: float) -> Status:
        """Sweep until the fit has settled, from where a checkpoint has it."""
        if self.checkpoint is not None:
            self.checkpoint.restore(fit)
        try:
            return descend(fit, self.engine, max_sweeps, tol, self._report)
        except ClusterLostError as error:
            stored = "resume continues from its" if self.checkpoint else "there is no"
            done = f"{len(fit.history)} sweeps were done, and {stored} checkpoint"
            raise ClusterLostError(f"{error}; {done}") from None

    def sample(self, chain: SampledFit, count: int) -> bool:
        """Take samples; return False if Ctrl-C ends the chain earlier."""
        try:
            for _ in range(count):
                chain.step(self.engine)
                self.bar.advance(note="samples")
        except KeyboardInterrupt:
            return False
        return True

    def _report(self, fit: Any) -> None:
        self.bar.advance(note=f"objective {fit.history[-1]:.5f}")
        if self.on_step is not None:
            self.on_step(fit)
        if self.checkpoint is not None:
            self.checkpoint.write(fit)


def descend(
    fit: Any,
    engine: Engine,
    max_sweeps: int,
    tol: float,
    on_step: OnStep = lambda fit: None,
) -> Status:
    """Sweep until the fit has settled or `max_sweeps` were made; Ctrl-C ends it earlier."""
    try:
        while True:
            if fit.settled(tol):
                return Status.CONVERGED
            if len(fit.history) >= max_sweeps:
                return Status.FINISHED
            fit.step(engine)
            on_step(fit)
    except KeyboardInterrupt:
        if not fit.history:
            raise
        return Status.INTERRUPTED


def holdout_error(fit: Any, holdout: Entries) -> float:
    """Return the root mean squared error of a fit's means on entries that took no part."""
    U, V = fit.means
    product = np.einsum("ei,ei->e", U[holdout.rows], V[holdout.cols])
    error = fit.problem.center + fit.problem.scale * product - holdout.values
    return float(np.sqrt(np.mean(error**2)))


def fit_entries(
    settings: Settings,
    entries: Entries,
    *,
    on_step: OnStep | None = None,
    checkpoint: SweepCheckpoint | None = None,
    given: tuple[Any, Any] = (None, None),
) -> Fit:
    """Fit the kind of model that the settings name; see `DropoutCompletion`.

    `on_step` gets the fit after each sweep; `given` are features of the rows and of the columns, as
    numbers.
    """
    strengths = None
    if settings.missing == "negative":
        strengths = Strengths.of(entries.values)
        entries = strengths.enter(entries)
    problem = settings.problem(entries)
    samples = settings.samples(len(entries), entries.shape)
    engine_context = make_engine(settings.engine, settings.n_jobs)
    with engine_context as engine, meter("sweeps", settings.sweeps + samples) as bar:
        run = Run(engine, bar, on_step, checkpoint)
        if strengths is not None:
            return _fit_implicit(settings, entries, problem, strengths, run)
        if settings.learned:
            return _fit_learned(settings, entries, problem, run, given, samples)
        return _fit_fixed(settings, entries, problem, run)


def _fit_learned(
    settings: Settings,
    entries: Entries,
    problem: CompletionProblem,
    run: Run,
    given: tuple[Any, Any],
    samples: int,
) -> Fit:
    missingness = settings.signals is not False
    features = both_features(
        problem.sides, given, missingness, problem.dtype, settings.seed
    )
    certain = settings.signals is True
    fit = LearnedFit(problem, features, certain, settings.seed)
    status = run.descend(fit, settings.sweeps, settings.tol_or(learned.OPTIONS.tol))
    chain = None
    if samples and status is not Status.INTERRUPTED:
        chain = SampledFit(fit, settings.seed)
        if not run.sample(chain, averaged.OPTIONS.burn_in + samples):
            status = Status.INTERRUPTED
    base = fit.model(settings.limits(entries.values))
    for side, group in enumerate(problem.sides):
        # Sweeps take the mean for features that rows do not have; here they are unknown.
        rows = np.flatnonzero((group.counts > 0) & ~base.has_given(side))
        if len(rows):
            solve_rows(base, entries, side, rows, run.engine)
    drop_probs = equivalent_drop_prob(base, fit)
    if np.ptp(entries.values) == 0:
        base = _of_equal_values(base, entries)
    model: Model = base
    if chain is not None and chain.samples:
        model = AveragedModel.of_chain(base, chain)
    return Fit(model, fit.history, status, *drop_probs)


def _of_equal_values(model: FactorModel, entries: Entries) -> FactorModel:
    """Return a model whose noise is not zero: equal values show only that there are few others."""
    count = len(entries)
    value = entries.values[0]
    if count >= MANY_EQUAL:
        warnings.warn(
            f"all {count} values are {value:g}: there is nothing to predict but that; "
            'missing="negative" ranks what was chosen',
            stacklevel=6,
        )
    # Equal values have the scale 1.
    return replace(model, noise=max(model.noise, (value or 1.0) ** 2 / (count + 1)))


def _fit_implicit(
    settings: Settings,
    entries: Entries,
    problem: CompletionProblem,
    strengths: Strengths,
    run: Run,
) -> Fit:
    tol = settings.tol_or(implicit.OPTIONS.tol)
    popularity = 0.0
    status = Status.FINISHED
    hidden = hide_entries(len(entries), settings.seed)
    fit = ImplicitFit(problem.zeroed(hidden), settings.seed)
    if len(hidden):
        # The weight of popularity shows before convergence; the rest converges below.
        status = descend(fit, run.engine, settings.sweeps, 2 * tol)
        popularity = choose_popularity(fit, hidden)
        fit.take_problem(problem)
    if status is not Status.INTERRUPTED:
        fit.history = []
        status = run.descend(fit, settings.sweeps, tol)
    model = fit.model(settings.limits(entries.values), entries, strengths, popularity)
    drop_probs = equivalent_drop_prob(model.base, fit)
    return Fit(model, fit.history, status, *drop_probs)


def _fit_fixed(
    settings: Settings, entries: Entries, problem: CompletionProblem, run: Run
) -> Fit:
    drop_prob = settings.drop_prob
    path = None
    if isinstance(drop_prob, str):
        drop_prob, path = choose_drop_prob(settings, entries, run.engine)
    fit = FixedFit(problem, drop_prob, settings.ridge, settings.seed)
    status = run.descend(fit, settings.sweeps, settings.tol_or(fixed.TOL))
    model = fit.model(settings.limits(entries.values))
    return Fit(model, fit.history, status, drop_prob, None, path)


def choose_drop_prob(
    settings: Settings, entries: Entries, engine: Engine
) -> tuple[float, Floats]:
    """Return the drop probability that predicts a tenth best, and the errors of all tried ones.

    Each of a path of probabilities starts from the factors of the one before.
    """
    if len(entries) < 10:
        raise InputError(
            f'drop_prob="auto" needs at least 10 entries, got {len(entries)}'
        )
    train, holdout = entries.split(0.1, np.random.default_rng([settings.seed, 1]))
    problem = replace(settings, memory_limit=None).problem(train)
    tol = settings.tol_or(PATH_TOL)
    tried: dict[float, float] = {}

    def follow(drop_probs: Sequence[float], means: Any, patience: int) -> Any:
        """Try drop probabilities from some means, until as many in a row are worse."""
        for drop_prob in drop_probs:
            fit = FixedFit(problem, drop_prob, settings.ridge, settings.seed)
            if means is not None:
                fit.means = [w.copy() for w in means]
            if descend(fit, engine, settings.sweeps, tol) is Status.INTERRUPTED:
                raise KeyboardInterrupt
            means = fit.means
            tried[drop_prob] = holdout_error(fit, holdout)
            errors = list(tried.values())
            if len(errors) - 1 - np.argmin(errors) >= patience:
                break
        return means

    first = follow(DROP_PROBS[:1], None, 1)
    follow(DROP_PROBS[1:], first, PATIENCE)
    if min(tried, key=tried.__getitem__) == DROP_PROBS[0]:
        follow(LARGER_DROP_PROBS, first, 1)
    best = min(tried, key=tried.__getitem__)
    errors = train.values.mean() - holdout.values
    mean_error = float(np.sqrt(np.mean(errors**2)))
    if tried[best] >= mean_error:
        warnings.warn(
            f"no drop probability that was tried predicts better than the mean: on held-out "
            f"entries the best, {best:g}, has the error {tried[best]:.3g}, the mean "
            f'{mean_error:.3g}; take drop_prob="learn", or fewer n_factors',
            stacklevel=6,
        )
    return best, np.array(sorted(tried.items(), reverse=True))


def fit_ranking(settings: Settings, entries: Entries) -> ImplicitModel:
    """Fit the model of which entries are observed, which ranks beside a model of values."""
    settings = replace(
        settings,
        drop_prob="learn",
        average=0,
        missing="negative",
        max_sweeps=None,
        tol=None,
        n_factors=settings.ranking_factors(len(entries)),
    )
    fit = fit_entries(settings, entries)
    if fit.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    model: ImplicitModel = fit.model
    return model


def refit(settings: Settings, last: Model, entries: Entries) -> Fit:
    """Fit again, with more entries than the last model had; features are those it knows."""
    scores = last.base.resized(entries.shape).given
    left, right = (
        GivenFeatures.of(known, np.arange(len(known))) if known.shape[1] else None
        for known in scores
    )
    fit = fit_entries(settings, entries, given=(left, right))
    if fit.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    base = fit.model.base.with_features_of(last.base)
    model = base if fit.model is fit.model.base else replace(fit.model, base=base)
    return replace(fit, model=model)


def needs_refit(model: Model, entries: Entries, fitted: int) -> bool:
    """Whether to fit again: there is much more than was fitted, or samples are averaged.

    Samples given other entries cannot be corrected, and predictions without samples come from
    another model.
    """
    return isinstance(model, AveragedModel) or len(entries) >= DEFAULTS.growth * fitted


def merge_entries(old: Entries, new: Entries) -> Entries:
    """Return both in one matrix; an entry that was known is replaced by the new one."""
    m = max(old.shape[0], new.shape[0])
    n = max(old.shape[1], new.shape[1])
    known = old.rows * n + old.cols
    given = new.rows * n + new.cols
    stays = ~np.isin(known, given)
    rows, cols, values = (
        np.concatenate([mine[stays], more])
        for mine, more in (
            (old.rows, new.rows),
            (old.cols, new.cols),
            (old.values, new.values),
        )
    )
    row_ids = old.row_ids if new.row_ids is None else new.row_ids
    col_ids = old.col_ids if new.col_ids is None else new.col_ids
    times = None
    if old.times is not None and new.times is not None:
        times = np.concatenate([old.times[stays], new.times])
    elif old.times is not None:
        warnings.warn(
            f"the {len(new)} new entries have no times: lists no longer follow what their rows "
            "chose last",
            stacklevel=3,
        )
    return Entries(rows, cols, values, (m, n), row_ids, col_ids, times)


def extend_model(model: Any, entries: Entries, new: Entries, sweeps: int) -> Any:
    """Return the model of all `entries`, of which `new` are those that it does not know yet.

    The rows and columns with new entries are solved again in a copy; everything else is fixed,
    priors and noise included. No array of the given model is changed, so an error or Ctrl-C
    leaves it as it was.
    """
    base = model.base.resized(entries.shape)
    is_implicit = isinstance(model, ImplicitModel)
    if is_implicit:
        entries = model.strengths.enter(observed_pairs(entries))
        model = replace(model, base=base).with_entries(entries)
    elif np.isfinite(base.low):
        low = min(base.low, float(new.values.min()))
        high = max(base.high, float(new.values.max()))
        base = replace(base, low=low, high=high)
    with make_engine("local", 1) as engine:
        for half in range(2 * sweeps):
            side = half % 2
            touched = np.unique((new.rows, new.cols)[side])
            entered = np.isin(touched, (entries.rows, entries.cols)[side])
            base.forget(side, touched[~entered])
            rows = touched[entered]
            has_given = base.has_given(side)[rows]
            # A copy: sums over all pairs change with the rows.
            last = replace(model, base=base) if is_implicit else base
            for some in (rows[has_given], rows[~has_given]):
                if len(some):
                    solve_rows(last, entries, side, some, engine)
    return replace(model, base=base).with_entries(entries) if is_implicit else base


def solve_rows(
    model: Any, entries: Entries, side: int, rows: Ints, engine: Engine
) -> None:
    """Solve some rows of a side again, in place, all else fixed.

    Either all of them have features or none has; those without have a wider prior.
    """
    base: FactorModel = model.base
    keys = (entries.rows, entries.cols)
    chosen = np.flatnonzero(np.isin(keys[side], rows))
    partners, others = np.unique(keys[1 - side][chosen], return_inverse=True)
    places = np.searchsorted(rows, keys[side][chosen])
    dtype = base.means[side].dtype
    values = base.standardized(entries.values[chosen]).astype(dtype)
    counts = np.bincount(places, minlength=len(rows))
    width = base.columns.width
    group = Grouped(places, others, values, counts, len(partners), width)
    weights, partner_weights, prior = model.equations(side)
    fixed = FixedSide(
        base.means[1 - side][partners],
        base.second_moments(1 - side, partners),
        partner_weights[partners],
        np.zeros(base.columns.width),
    )
    centers, P = base.priors_of(side, rows, group, partners)
    tables = np.zeros((len(rows), fixed.tables.shape[1]), dtype)
    own = (base.means[side][rows], tables)
    shared = (fixed, prior._replace(precision=P))
    out, _ = half_sweep(engine, group.layout, shared, centers @ P, weights[rows], *own)
    base.write(side, rows, out, counts)
