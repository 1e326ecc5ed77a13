"""DropoutCompletion: a scikit-learn estimator of the missing entries of a matrix."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import RegressorTags
from sklearn.utils.validation import check_is_fitted

from overt._check import (
    Floats,
    InputError,
    Ints,
    Seed,
    choice,
    instance,
    seed_number,
    whole,
)
from overt.completion import fitting, ratings_file
from overt.completion.averaged import AveragedModel
from overt.completion.features import align_features
from overt.completion.fitting import Model, Settings, is_rating_scale
from overt.completion.implicit import ImplicitModel, observed_pairs, refuse_dislikes
from overt.completion.model import Fit
from overt.completion.recommend import (
    PREDICTIONS_AT_ONCE,
    EntryIndex,
    Explanation,
    NewRow,
    Ranking,
    Recommendation,
    Recommendations,
    best_for_rows,
    explain,
    new_row,
    score_entries,
)
from overt.completion.storage import SweepCheckpoint, load_model, save_model
from overt.entries import Entries, observed
from overt.entries.frames import is_table
from overt.entries.identifiers import UNKNOWN, IdentifierIndex, warn_unknown
from overt.results import Status

MAX_RANKED_ENTRIES = 200_000
"""Entries up to which `fit` also fits the model that ranks: half a second for 100,000, a tenth or
less of the fit with its averaged samples."""

MIN_UNIT_ENTRIES = 5
"""Columns with fewer entries do not show their unit."""

MAX_UNIT_RATIO = 3.0
"""Columns have different units where their standard deviations differ by more than this (their
first and last tenth left out), or their centers by its square times a typical one. Hours of a day
and questions of a survey stay below it; the columns of wine and penguins are far above it."""

UNIT_FACTORS = 4
"""Factors that explain a matrix of one quantity: two products, and biases."""

UNIT_STEPS = 30
"""Times that they are fitted to the matrix with its missing entries filled."""

UNIT_SAMPLE_ROWS = 500
"""Rows that are looked at."""

UNIT_ROUNDING = 0.05
"""Errors below this part of a column's standard deviation are as good as none."""

MAX_TABLE_COLUMNS = 10
"""Columns up to which real values are a table rather than a matrix. The real tables on which
completion was no better than the column mean (iris, penguins, wages of males) have at most 5."""

MAX_TABLE_LEVELS = 20
"""Different values up to which a table may hold ratings, answers or clicks."""

Path = str | os.PathLike[str]


class DropoutCompletion(BaseEstimator):  # type: ignore[misc]
    """Complete a matrix of which some entries are observed.

    Entry (a, b) is predicted by mean + row bias + column bias + u_a . v_b. The factors u and v are
    shrunk as if they were dropped at random in training; by default the amount is learned.

    Parameters
    ----------
    n_factors
        Number of factors; those that are not needed are shrunk to zero. None takes 32, and 64 for
        missing="negative" with 500,000 entries or more; fewer where the matrix has a smaller side,
        or more than 2 GiB of covariances with as many.
    drop_prob
        "learn" estimates the uncertainty of every row's factors, the priors and the noise. A number
        in [0, 1) (or one per factor) descends the dropout objective
        mean (y - u.v)^2 + lam mean sum_i U_ai^2 V_bi^2, lam = drop_prob / (1 - drop_prob): rows and
        columns are solved exactly in turn, which may end at a local minimum.
        "auto" chooses that number on a tenth left out of the fit, then fits all entries. Standard
        deviations (`return_std`) need "learn".
    biases
        Whether rows and columns have biases and the mean is subtracted.
    ridge
        Coefficient of |U|^2 + |V|^2 beside the sum of squares, where drop_prob is not "learn".
    max_sweeps
        Stop after this many sweeps over all entries. None takes 100.
    tol
        Stop when a sweep lowers the objective by less than this. With "learn" in nats per entry
        (None takes 7e-4, and 5e-3 for missing="negative"), otherwise relative (None takes 1e-5).
    average
        With "learn": number of posterior samples whose predictions are averaged; slower, more
        accurate where many factors matter a little, as with ratings. Where few explain all, errors
        can be a few per cent larger than with 0. "auto" takes 60 from 1,000 entries to about
        100,000, where that takes seconds, and none if max_sweeps is given.
    signals
        With "learn": whether the pattern of observed entries also predicts rows and columns. "auto"
        decides by the evidence.
    clip
        Whether predictions are clipped to the range of the values. "auto" does so for rating
        scales: values of which 20 different numbers make up nine tenths.
    seed
        Int, NumPy Generator, or None for fresh entropy.
    n_jobs
        Number of threads; None and -1 take all cores. Results do not depend on it.
    engine
        "local" for threads; "dask" for the current `distributed.Client`, or processes started here;
        or the address of a Dask scheduler.
    missing
        What an absent entry means. "unknown": nothing is known of it, and values are predicted.
        "negative": it was not chosen. Values (clicks, counts, ratings, from 0) then say how much a
        column is wanted, and predictions rank columns between 0 and 1.
    random_state
        Another name of `seed`, which it overrides.
    memory_limit
        Bytes, or text such as "4GB": entries are then stored in temporary files. Factors and
        covariances must fit into it twice.

    Attributes
    ----------
    U_, V_
        Factors, (rows, n_factors) and (columns, n_factors).
    row_bias_, col_bias_, mean_
        Biases and mean; zero without `biases`.
    drop_prob_
        The drop probability used; with "learn", the one that adds as much variance as was learned.
    learned_drop_prob_
        With "learn", the same for each factor, most important first.
    noise_variance_
        Variance of the residuals as learned before samples are taken (samples have their own, which
        `return_std` takes where they are averaged).
    row_noise_, col_noise_
        What multiplies it in each row and column; 1 unless learned.
    objective_, n_sweeps_
        The objective after each sweep, and their number.
    average_
        Number of posterior samples that are averaged.
    status_
        "converged", "finished" (after max_sweeps) or "interrupted".
    entries_, row_ids_, col_ids_
        The entries fitted (with those added by `partial_fit`) and their identifiers, if any.
    file_report_
        After fitting to a file: what `read_ratings` returned of it, with rejected lines and their
        reasons; None otherwise.
    path_
        With "auto": (drop_prob, holdout RMSE) as tried.

    Examples
    --------
    >>> import numpy as np
    >>> from overt.completion import DropoutCompletion
    >>> X = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0])
    >>> X[0, 2] = np.nan
    >>> model = DropoutCompletion(n_factors=1, drop_prob=0.0, biases=False).fit(X)
    >>> bool(abs(model.predict([0], [2])[0] - 3.0) < 1e-3)
    True
    """

    file_report_: ratings_file.RatingsFile | None
    ranking_model_: ImplicitModel | None
    entries_: Entries

    def __init__(
        self,
        n_factors: int | None = None,
        drop_prob: Any = "learn",
        biases: bool = True,
        ridge: float = 1e-6,
        max_sweeps: int | None = None,
        tol: float | None = None,
        average: Any = "auto",
        signals: Any = "auto",
        clip: Any = "auto",
        seed: Seed = 0,
        n_jobs: int | None = None,
        engine: str = "local",
        missing: str = "unknown",
        random_state: Any = None,
        memory_limit: Any = None,
    ) -> None:
        self.n_factors = n_factors
        self.drop_prob = drop_prob
        self.biases = biases
        self.ridge = ridge
        self.max_sweeps = max_sweeps
        self.tol = tol
        self.average = average
        self.signals = signals
        self.random_state = random_state
        self.clip = clip
        self.seed = seed
        self.n_jobs = n_jobs
        self.engine = engine
        self.missing = missing
        self.memory_limit = memory_limit

    def fit(
        self,
        X: Any,
        y: Any = None,
        row_features: Any = None,
        col_features: Any = None,
        *,
        checkpoint: Path | None = None,
        resume: bool = False,
    ) -> Self:
        """Fit to observed entries.

        X is `overt.Entries`, scipy sparse (rows x columns; stored zeros are ratings of zero), a
        dense array with NaN (or a mask) for missing entries, a data frame of three columns (row,
        column, value; predictions are then queried by identifier), the path of a file or folder,
        or, with `y`, an (n, 2) array of (row, col) pairs, which cross-validation splits: indices,
        or identifiers if they are strings. An entry given twice counts twice; duplicates of a file
        or a data frame are averaged, with a warning.

        With "learn", rows and columns may have features: an array, a sparse matrix or a data frame
        of numbers (NaN where missing) with a row for each, or, where entries have identifiers, a
        pair (identifiers, table) or a data frame whose index holds them. Categories are encoded
        first, for example by scikit-learn's OneHotEncoder.

        `checkpoint` names a folder in which every sweep is saved; `resume` continues from it, on
        any engine.
        """
        tables = (row_features, col_features)
        if ratings_file.is_path(X):
            if y is not None:
                raise InputError("a file holds the values itself: leave out y")
            read = ratings_file.read_ratings(X, memory_limit=self.memory_limit)
            ratings_file.warn_of_lines(X, read)
            self.fit_entries(read.entries, *tables, checkpoint, resume)
            self.file_report_ = read
            return self
        entries = read_entries(X, y, self.missing)
        return self.fit_entries(entries, *tables, checkpoint, resume)

    def fit_triplets(
        self,
        rows: Any,
        cols: Any,
        values: Any,
        *,
        shape: tuple[int, int] | None = None,
        **features: Any,
    ) -> Self:
        """Fit to three arrays, with features as in `fit`."""
        return self.fit_entries(Entries(rows, cols, values, shape), **features)

    def fit_entries(
        self,
        entries: Any,
        row_features: Any = None,
        col_features: Any = None,
        checkpoint: Any = None,
        resume: bool = False,
        **how: Any,
    ) -> Self:
        """Fit to Entries; `how` is what `overt.completion.fitting.fit_entries` takes."""
        self.file_report_ = None
        instance("entries", entries, Entries, "overt.Entries")
        settings = self._settings()
        if settings.missing == "negative":
            refuse_dislikes(entries.values)
            entries = observed_pairs(entries)
        tables = (row_features, col_features)
        entries, given, encoders = align_features(
            entries, tables, allowed=settings.learned
        )
        if checkpoint is None and resume:
            raise InputError("resume needs the folder of a checkpoint")
        if checkpoint is not None and not isinstance(checkpoint, SweepCheckpoint):
            parameters = self.get_params()
            checkpoint = SweepCheckpoint(
                checkpoint, entries, parameters, resume=resume, given=given
            )
        fit = fitting.fit_entries(
            settings, entries, given=given, checkpoint=checkpoint, **how
        )
        ranking_model = None
        if (
            not isinstance(fit.model, ImplicitModel)
            and len(entries) <= MAX_RANKED_ENTRIES
        ):
            ranking_model = _ranking_model(settings, entries, fit)
        base = replace(fit.model.base, encoders=encoders)
        model = base if fit.model is fit.model.base else replace(fit.model, base=base)
        fit = replace(fit, model=model, fitted=len(entries))
        return self._adopt(entries, fit, ranking_model)

    def _settings(self) -> Settings:
        given = self.get_params()
        random_state = given.pop("random_state")
        given["seed"] = seed_number(self.seed, random_state)
        return Settings(**given)

    def _adopt(
        self, entries: Entries, fit: Fit, ranking_model: ImplicitModel | None
    ) -> Self:
        """Take over a fit and its entries in one step, so that Ctrl-C cannot separate them."""
        model = fit.model
        base = model.base
        left, right = base.columns.units(base.scale)
        U = base.means[0][:-1] * left
        V = base.means[1][:-1] * right
        k = base.columns.n_factors
        biases = base.columns.biases
        shown = {
            "U_": U[:, :k],
            "V_": V[:, :k],
            "mean_": base.center,
            "noise_variance_": base.scale**2 * base.noise,
            "row_bias_": U[:, k] if biases else np.zeros(len(U)),
            "col_bias_": V[:, k + 1] if biases else np.zeros(len(V)),
            "row_noise_": base.noises[0].variances[:-1],
            "col_noise_": base.noises[1].variances[:-1],
            "n_features_in_": len(V),
            "average_": len(model.V) if isinstance(model, AveragedModel) else 0,
            "entries_": entries,
            "model_": model,
            "index_": EntryIndex(entries),
            "row_ids_": entries.row_ids,
            "col_ids_": entries.col_ids,
            "ranking_model_": ranking_model,
            "objective_": np.asarray(fit.objective, dtype=float),
            "n_sweeps_": len(fit.objective),
            "status_": fit.status,
            "drop_prob_": fit.drop_prob,
            "learned_drop_prob_": fit.learned_drop_prob,
            "path_": fit.path,
            "_fit": fit,
        }
        self.__dict__.update(shown)
        return self

    def predict(
        self,
        rows: Any,
        cols: Any = None,
        return_std: bool = False,
        *,
        keys: str = "auto",
        return_known: bool = False,
    ) -> Any:
        """Return predictions for entries (rows[i], cols[i]).

        `rows` alone may be Entries, an (n, 2) array of pairs, or a frame, whose columns go by their
        names as in `fit`, or else by place. A model that was fitted with identifiers is queried by
        identifiers, any other by indices from 0; keys="id" and keys="index" say which explicitly.
        Entries mean what they say, identifiers or indices.

        A row or column that was never seen (an unknown identifier, an index beyond the fitted
        shape) gets what is known of the other side, with a warning. `return_known` returns
        a mask of entries whose row and column are both known instead of the warning. `return_std`
        returns the standard deviation of a new observation: residual noise and uncertainty of the
        factors. Results come in the order (predictions, std, known).
        """
        model, index = self._query(keys)
        (a, b), (row_labels, col_labels) = index.find_pairs(rows, cols)
        if not return_known:
            then = "they get what is known of the other side"
            if keys == "auto" and index.rows.ids is not None:
                then += '; if you gave indices, pass keys="index"'
            warn_unknown("rows", row_labels, a, then)
            warn_unknown("columns", col_labels, b, then)
        results = [model.predict(a, b)]
        if return_std:
            results.append(np.sqrt(model.variance(a, b)))
        if return_known:
            results.append((a != UNKNOWN) & (b != UNKNOWN))
        return results[0] if len(results) == 1 else tuple(results)

    def explain(self, row: Any, col: Any, *, keys: str = "auto") -> Explanation:
        """Return which of the row's observed entries drive its prediction for `col`."""
        return explain(*self._query(keys), row, col)

    def fold_in(
        self, entries: Any, features: Any = None, *, keys: str = "auto"
    ) -> NewRow:
        """Return a new row with these entries, without refitting.

        Entries are {column: value}, a sparse row, or a pair (columns, values); columns never seen
        are left out, with a warning. `features` is one row as in `row_features`. `keys` says how
        columns are given, as in `predict`.
        """
        return new_row(*self._query(keys), entries, self._ranking, features)

    def complete(
        self, rows: Any = None, cols: Any = None, *, keys: str = "auto"
    ) -> Floats:
        """Return the dense matrix, or some rows and columns of one too large to be had at once.

        Rows and columns are given as in `predict`, or as slices of their order. Those never seen
        are predicted as `predict` does, with a warning.
        """
        model, index = self._query(keys)
        a = _find_or_slice(index.rows, rows)
        return _complete(model, a, _find_or_slice(index.cols, cols))

    def recommend(
        self,
        row: Any,
        n: int = 10,
        exclude_seen: bool = True,
        *,
        by: str = "auto",
        exclude: Any = (),
        candidates: Any = None,
        keys: str = "auto",
    ) -> Recommendation:
        """Return the `n` columns that suit a row best.

        They are ranked by how likely they are chosen (with missing="negative"), or by that and how
        they are expected to be rated, together: "both"; "value" and "chosen" take one of them. How
        likely is (1 - q) u.v + q p sum max(u.v, 0): p is the column's share of the entries, and q
        is .2, or 0 where entries are too few to hide some.
        What was chosen comes from a second model of the same entries, see `prepare_ranking`; where
        that shows no more than how often columns were chosen, these counts alone are taken (q = 1).
        `exclude` are columns to leave out, or an (n, 2) array of pairs (row, column); `candidates`
        are those to choose among. Those never seen are reported by a warning. `keys` says how rows
        and columns are given and returned, as in `predict`.
        """
        _, index = self._query(keys)
        index.rows.find_one(row)  # an unknown row is refused first
        ranking = self._ranking(by)
        how = ([row], n, exclude_seen, exclude, candidates)
        found = best_for_rows(ranking, index, *how)
        return Recommendation(found.cols, found.values, found.scores, found.by)

    def recommend_all(
        self,
        n: int = 10,
        *,
        rows: Any = None,
        by: str = "auto",
        exclude_seen: bool = True,
        exclude: Any = (),
        candidates: Any = None,
        keys: str = "auto",
    ) -> Recommendations:
        """Recommend to all rows (or those given), as `recommend` does, in blocks."""
        _, index = self._query(keys)
        ranking = self._ranking(by)
        how = (rows, n, exclude_seen, exclude, candidates)
        return best_for_rows(ranking, index, *how)

    def prepare_ranking(self) -> Self:
        """Fit the second model that `recommend` needs: of which entries are observed.

        `fit` does so itself where that takes a moment, up to 200,000 entries. A model with
        missing="negative" needs none.
        """
        model, _ = self._query()
        if not isinstance(model, ImplicitModel) and self.ranking_model_ is None:
            self.ranking_model_ = fitting.fit_ranking(self._settings(), self.entries_)
        return self

    def _ranking(self, by: str = "auto") -> Ranking:
        """Return by what to rank; see `prepare_ranking`."""
        model, _ = self._query()
        choice("by", by, ("auto", "both", "value", "chosen"))
        if isinstance(model, ImplicitModel):
            if by not in ("auto", "chosen"):
                raise InputError(
                    f'by={by!r} needs missing="unknown": this model has no values'
                )
            return Ranking("chosen", model, model, 0.0)
        middle = float(self.entries_.values.mean())
        if by == "value":
            return Ranking(by, model, None, middle)
        if self.ranking_model_ is None:
            raise InputError(
                "columns are ranked by a second model, of which entries are observed, and this fit "
                "left it out: call prepare_ranking() once, or rank by='value'"
            )
        if by == "auto":  # never below counts where nothing was learned beyond them
            by = "chosen" if self.ranking_model_.popularity == 1 else "both"
        return Ranking(by, model, self.ranking_model_, middle)

    def partial_fit(self, X: Any, y: Any = None, sweeps: int = 2) -> Self:
        """Add new entries: rows and columns with new entries are solved again, the rest is fixed.

        Once there are a quarter more entries than at the last full fit, there is another one; until
        then `objective_` is empty. A model that averages samples is fitted again at every call:
        average=0 makes calls quick. An error or Ctrl-C leaves the model as it was.

        An entry that was known is replaced. New rows and columns may appear. The first call fits.
        Rows and columns are given as they were to `fit`: by index, or by identifier.
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y)
        whole("sweeps", sweeps)
        new = self.index_.align(observed(X, y), named=y is not None)
        if self.missing == "negative":
            refuse_dislikes(new.values)
        entries = fitting.merge_entries(self.entries_, new)
        if self.missing == "negative":
            entries = observed_pairs(entries)
        settings = self._settings()
        ranking_model = self.ranking_model_
        if fitting.needs_refit(self.model_, entries, self._fit.fitted):
            fit = fitting.refit(settings, self.model_, entries)
            if ranking_model is not None:
                ranking_model = fitting.fit_ranking(settings, entries)
            fit = replace(fit, fitted=len(entries))
            return self._adopt(entries, fit, ranking_model)
        model = fitting.extend_model(self.model_, entries, new, sweeps)
        if ranking_model is not None:
            ranking_model = fitting.extend_model(ranking_model, entries, new, sweeps)
        fit = replace(self._fit, model=model, objective=[], status=Status.FINISHED)
        return self._adopt(entries, fit, ranking_model)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the negative root mean squared error on the entries of X (as in `fit`).

        The rows of a dense table or a sparse matrix are those that were fitted, in the same order;
        others are refused, as far as that shows (`fold_in` predicts new rows). Of entries that
        were fitted it is the training error. With missing="negative" the score is nDCG@10 of the
        entries of X.
        """
        check_is_fitted(self)
        return score_entries(self, X, y)

    def save(self, path: Path) -> None:
        """Write the model into a folder, as model.safetensors."""
        check_is_fitted(self)
        given = self.get_params()
        for name in ("seed", "random_state"):  # generators are not saved
            given[name] = (
                given[name] if isinstance(given[name], (int, np.integer)) else None
            )
        save_model(path, given, self.entries_, self._fit, self.ranking_model_)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a model that `save` wrote; its predictions are the same bit for bit."""
        parameters, entries, fit, ranking_model = load_model(path)
        model = cls(**parameters)._adopt(entries, fit, ranking_model)
        model.file_report_ = None
        return model

    def _query(self, keys: str = "auto") -> tuple[Model, EntryIndex]:
        check_is_fitted(self)
        return self.model_, self.index_.by(keys)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor"
        tags.regressor_tags = RegressorTags()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")


def _ranking_model(
    settings: Settings, entries: Entries, fit: Fit
) -> ImplicitModel | None:
    """Return the model that ranks; None after Ctrl-C, which keeps the model of values."""
    if fit.status is Status.INTERRUPTED:
        return None
    try:
        return fitting.fit_ranking(replace(settings, engine="local"), entries)
    except KeyboardInterrupt:
        return None


def _find_or_slice(side: IdentifierIndex, given: Any) -> Ints:
    """Return the positions of what users give: None is all of them."""
    if given is None or isinstance(given, slice):
        return np.arange(side.count)[given or slice(None)]
    found = side.find(given)
    warn_unknown(side.name, given, found, "they get what is known of the other side", 4)
    return found


def _complete(model: Model, rows: Ints, cols: Ints) -> Floats:
    """Return the dense predictions of some rows and columns, filled block by block."""
    base = model.base
    dense = np.empty((len(rows), len(cols)))
    step = max(1, PREDICTIONS_AT_ONCE // base.shape[1])
    for start in range(0, len(rows), step):
        block = model.block(rows[start : start + step])
        dense[start : start + step] = base.clip(block[:, cols])
    return dense


def read_entries(X: Any, y: Any, missing: str) -> Entries:
    """Return the observed entries of what users give, unless it is a table for the imputer."""
    entries = observed(X, y)
    matrix = y is None and not isinstance(X, Entries)
    if matrix and missing == "unknown" and is_table(X):
        check_table(entries)
    return entries


def check_table(entries: Entries) -> None:
    """Refuse a dense table whose columns have different units; warn of one with real values."""
    if different_units(entries):
        raise InputError(
            "the columns of X have different units or levels: DropoutImputer fills the holes of "
            "such tables; DropoutCompletion is for a matrix of one quantity (if X is one, pass "
            "overt.Entries.from_matrix(X))"
        )
    real = not is_rating_scale(entries.values)
    few_levels = len(np.unique(entries.values)) <= MAX_TABLE_LEVELS
    if real and not few_levels and entries.shape[1] <= MAX_TABLE_COLUMNS:
        warnings.warn(
            "X is a dense table of real values: DropoutImputer fills the holes of tables, often "
            "with smaller errors. If X is a matrix of one quantity, overt.Entries.from_matrix(X) "
            "avoids this warning",
            stacklevel=4,
        )


def different_units(entries: Entries) -> bool:
    """Return whether the columns of a table have different units, as far as they show."""
    counts = np.bincount(entries.cols, minlength=entries.shape[1])
    shown = counts >= MIN_UNIT_ENTRIES
    if np.count_nonzero(shown) < max(2, len(shown) // 2):
        return False
    Y = np.full(entries.shape, np.nan)
    Y[entries.rows, entries.cols] = entries.values
    Y = Y[:, shown]
    # Outliers are moved to 5 quartile distances from the quartiles.
    low, high = np.nanquantile(Y, [0.25, 0.75], axis=0)
    reach = np.where(high > low, 5 * (high - low), np.inf)
    Y = np.clip(Y, low - reach, high + reach)
    scale = np.nanstd(Y, axis=0)
    scale[scale == 0] = 1
    least, most = np.quantile(scale, [0.1, 0.9])
    distance = np.ptp(np.nanmean(Y, axis=0))
    typical = float(np.median(scale))
    if most <= MAX_UNIT_RATIO * least and distance <= MAX_UNIT_RATIO**2 * typical:
        return False
    return not _few_factors_explain(Y[:UNIT_SAMPLE_ROWS], typical)


def _few_factors_explain(Y: Floats, scale: float) -> bool:
    """Return whether a few factors leave errors of the same size in all columns.

    So they do in a matrix of one quantity and low rank, whose columns may differ as much as those
    of a table: there the largest columns would be explained first, and the others not at all.
    """
    seen = ~np.isnan(Y)
    if Y.shape[1] <= 2 * UNIT_FACTORS or not seen.any(axis=0).all():
        return False
    fitted = np.tile(np.nanmean(Y, axis=0), (len(Y), 1))
    for _ in range(UNIT_STEPS):
        U, s, V = np.linalg.svd(np.where(seen, Y, fitted), full_matrices=False)
        fitted = (U[:, :UNIT_FACTORS] * s[:UNIT_FACTORS]) @ V[:UNIT_FACTORS]
    left = np.sqrt(np.nanmean((Y - fitted) ** 2, axis=0))
    low, high = np.quantile(left, [0.1, 0.9])
    return bool(high <= MAX_UNIT_RATIO * max(low, UNIT_ROUNDING * scale))
