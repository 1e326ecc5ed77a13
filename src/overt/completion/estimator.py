"""DropoutCompletion: a scikit-learn estimator of the missing entries of a matrix."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import RegressorTags
from sklearn.utils.validation import check_is_fitted

from overt._check import InputError, instance, whole
from overt._types import Seed
from overt.completion import fitting, incremental, plotting, ratings_file, recommending, scoring
from overt.completion.alignment import with_features
from overt.completion.answering import Answers
from overt.completion.engines import make_engine
from overt.completion.explaining import Explanation, explain
from overt.completion.forms.model import FactorModel, Fit
from overt.completion.forms.strengths import observed_pairs, refuse_dislikes
from overt.completion.index import EntryIndex
from overt.completion.recommending import NewRow
from overt.completion.settings import RANKING, Settings, fresh_seed
from overt.completion.storage import checkpoints, models
from overt.completion.tables import read_entries
from overt.entries import Entries, observed
from overt.entries.frames import is_frame, is_table
from overt.entries.identifiers import UNKNOWN, warn_unknown
from overt.results import Status

Path = str | os.PathLike[str]


class DropoutCompletion(Answers, BaseEstimator):  # type: ignore[misc]
    """Complete a matrix of which some entries are observed.

    Entry (a, b) is explained by mean + row bias + column bias + u_a . v_b. `drop_prob`, with which
    factors would be dropped in training, shrinks them; by default it is learned.

    Parameters
    ----------
    n_factors
        Width; what is not needed is shrunken away. None is 32 (64 for rankings of 500,000 entries).
    drop_prob
        "learn" estimates the noise of every factor row, the priors and the residual variance.
        A number in [0, 1) (or one per factor) minimizes the dropout objective
        mean (y - u.v)^2 + lam mean sum_i U_ai^2 V_bi^2, lam = drop_prob / (1 - drop_prob), exactly.
        "auto" chooses that number on a held-out slice, then fits everything.
    biases
        Whether rows and columns have biases and the mean is taken out.
    ridge
        Coefficient of |U|^2 + |V|^2 beside the sum of squares (not with "learn").
    method
        "alternating" (exact solves), or "sgd", the thesis's algorithm, with `learning_rate` and
        `batch_size`; a sweep is then an epoch.
    max_sweeps, tol
        Stop after so many sweeps (default 100), or when the objective falls by less than `tol` in
        one: nats per rating with "learn" (default 7e-4), relative otherwise (default 1e-5; SGD
        always takes all its epochs).
    average
        With "learn": average predictions of so many draws; more accurate and slower. "auto" takes
        60 where that takes seconds (some 100,000 entries) and `max_sweeps` is not given.
    signals
        With "learn": whether which entries are observed tells what to expect of rows and columns;
        "auto" asks the evidence.
    clip
        Keep predictions in the range of the values; "auto" where 20 numbers make up most of them.
    seed, n_jobs, engine, memory_limit
        Int, Generator, or None for fresh entropy (`random_state` counts where it is given); number
        of threads (default: all cores; results do not depend on it); "local" or "threads", "dask"
        for the current `distributed.Client` or processes started here, or a scheduler's address;
        bytes, or as in "4GB": entries are then kept in mapped files, and factors must fit twice.

    Attributes
    ----------
    U_, V_
        Factors, (rows, n_factors) and (columns, n_factors).
    row_bias_, col_bias_, mean_
        Biases and mean; zero without `biases`.
    drop_prob_
        The drop probability used; with "learn", the one whose noise is as large as the learned.
    learned_drop_prob_
        With "learn", the same for each factor, most important first.
    noise_variance_, row_noise_, col_noise_
        Residual variance, and what multiplies it in each row and column (1 unless learned).
    objective_, n_sweeps_, average_, status_
        The objective after each sweep, their number, that of draws averaged, and how the fit ended.
    file_report_
        After fitting to a file: lines used, rejected lines with reasons, duplicates, columns;
        None otherwise.
    path_, faults_
        With "auto": (drop_prob, held-out RMSE) as tried; what a cluster lost, and did again.
    covariance_
        "full", "diagonal" (where full tables would take more than 2 GiB) or "dropout".

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

    file_report_: ratings_file.FileReport | None

    def __init__(
        self,
        n_factors: int | None = None,
        drop_prob: Any = "learn",
        biases: bool = True,
        ridge: float = 1e-6,
        method: str = "alternating",
        max_sweeps: int | None = None,
        tol: float | None = None,
        average: Any = "auto",
        signals: Any = "auto",
        clip: Any = "auto",
        learning_rate: float = 1.0,
        batch_size: int = 2000,
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
        self.method = method
        self.max_sweeps = max_sweeps
        self.tol = tol
        self.average = average
        self.signals = signals
        self.random_state = random_state
        self.clip = clip
        self.learning_rate = learning_rate
        self.batch_size = batch_size
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
        sample_weight: Any = None,
        *,
        checkpoint: Path | None = None,
        resume: bool = False,
    ) -> Self:
        """Fit to observed entries.

        X is `overt.Entries`, scipy sparse (rows x columns; stored zeros are ratings of zero), a
        dense array with NaN (or a mask) for missing entries, a data frame of three columns (row,
        column, value; predictions are then asked for by identifier), the path of a file or folder,
        or, with `y`, an (n, 2) array of (row, col) pairs, which cross-validation splits: indices,
        or identifiers if they are strings. An entry given twice counts twice; those of a file or a
        data frame are averaged, with a warning.

        With "learn", rows and columns may have features: an array, a sparse matrix or a data frame
        (numbers, categories, missing values) with a row for each, or, where entries have
        identifiers, a pair (identifiers, table) or a data frame whose index holds them.

        `sample_weight` says how often each entry counts (of a matrix: those of each row).
        `checkpoint` names a folder that keeps every sweep; `resume` goes on from it, on any engine.
        """
        tables = (row_features, col_features)
        if ratings_file.is_path(X):
            if y is not None:
                raise InputError("a file holds the values itself: leave out y")
            read = ratings_file.read_ratings(X, memory_limit=self.memory_limit)
            report = ratings_file.report(X, read)
            entries = read.entries
            if sample_weight is not None:
                entries = entries.repeated(sample_weight)
            self.fit_entries(entries, *tables, checkpoint, resume)
            self.file_report_ = report
            return self
        matrix = y is None and not isinstance(X, Entries)
        entries = read_entries(X, y, self.missing)
        if sample_weight is not None:
            by_row = matrix and (is_table(X) or not is_frame(X))
            entries = entries.repeated(sample_weight, by_row=by_row)
        return self.fit_entries(entries, *tables, checkpoint, resume)

    def fit_triplets(
        self,
        rows: Any,
        cols: Any,
        values: Any,
        *,
        shape: tuple[int, int] | None = None,
        on_sweep: Callable[[int, float], Any] = lambda sweeps, objective: None,
        **features: Any,
    ) -> Self:
        """Fit to three arrays; `on_sweep(sweeps done, objective)` may watch; features as in fit."""
        features["on_form"] = lambda form: on_sweep(len(form.history), form.history[-1])
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
        tables = (row_features, col_features)
        if settings.missing == "negative":
            refuse_dislikes(entries.values)
            entries = observed_pairs(entries)
        entries, given, encoders = with_features(entries, tables, allowed=settings.learned)
        kept = checkpoints.opened(checkpoint, entries, self.get_params(), given, resume)
        fit = fitting.fit_entries(settings, entries, given=given, checkpoint=kept, **how)
        chosen = None
        if fit.model.pairs is None and len(entries) <= RANKING:
            chosen = _ranking_model(settings, entries, fit)
        fit = replace(fit, model=replace(fit.model, encoders=encoders))
        return self._adopt(entries, fit, chosen)

    def _settings(self) -> Settings:
        given = self.get_params()
        return Settings(**given | {"seed": fresh_seed(self.seed, given.pop("random_state"))})

    def _adopt(self, entries: Any, fit: Fit, chosen: FactorModel | None) -> Self:
        """Take over a fit of these entries."""
        found = {
            "_fitted": fit.fitted or len(entries),
            "drop_prob_": fit.drop_prob,
            "learned_drop_prob_": fit.learned_drop_prob,
            "path_": fit.path,
            "faults_": fit.faults,
        }
        given = fit.model, chosen, entries, fit.objective, fit.status
        return self._show(*given, found)

    def _show(
        self,
        model: FactorModel,
        chosen: FactorModel | None,
        entries: Entries,
        objective: Sequence[float],
        status: Status,
        found: Mapping[str, Any] = MappingProxyType({}),
    ) -> Self:
        """Take over a model and the entries it knows, all at once: Ctrl-C cannot part them."""
        shown = {f"{name}_": value for name, value in model.shown().items()}
        shown |= found
        shown |= {
            "entries_": entries,
            "model_": model,
            "index_": EntryIndex(entries),
            "row_ids_": entries.row_ids,
            "col_ids_": entries.col_ids,
            "chosen_": chosen,
            "objective_": np.asarray(objective, dtype=float),
            "n_sweeps_": len(objective),
            "status_": status,
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

        `rows` alone may be Entries, or an (n, 2) array or frame of pairs. A model that was fitted
        with identifiers is asked by identifiers, any other by indices from 0; keys="id" and
        keys="index" say which explicitly. Entries mean what they say, identifiers or indices.

        A row or column that was never seen (an unknown identifier, an index of -1 or beyond the
        fitted shape) gets what is known of the other side, with a warning. `return_known` returns
        a mask of entries whose row and column are both known instead of the warning. `return_std`
        returns the standard deviation of a new observation: residual noise and uncertainty of the
        factors. Results come in the order (predictions, std, known).
        """
        model, index = self._asked(keys)
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
        return explain(*self._asked(keys), row, col)

    def fold_in(self, entries: Any, features: Any = None, *, keys: str = "auto") -> NewRow:
        """Return a new row with these entries, without refitting.

        Entries are {column: value}, a sparse row, or a pair (columns, values); columns never seen
        are left out, with a warning. `features` is one row like those of `row_features`, or
        {name: value}. `keys` says how columns are given, as in `predict`.
        """
        return recommending.fold_in(*self._asked(keys), entries, self._ranking, features)

    def partial_fit(self, X: Any, y: Any = None, sweeps: int = 2) -> Self:
        """Take in new entries: rows and columns they touch are solved again, the rest is held.

        Once there are a quarter more entries than at the last full fit, there is another one; until
        then `objective_` is empty. A model that averages samples is fitted again at every call:
        average=0 makes calls quick. An error or Ctrl-C leaves the model as it was.

        An entry that was known is replaced. New rows and columns may appear. The first call fits.
        Rows and columns are given as they were to `fit`: by index, or by identifier.
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y)
        whole("sweeps", sweeps)
        new = self.index_.aligned(observed(X, y), named=y is not None)
        if self.missing == "negative":
            refuse_dislikes(new.values)
        entries = incremental.merge(self.entries_, new)
        if self.model_.pairs is not None:
            entries = observed_pairs(entries)
        settings = self._settings().fitted(self.drop_prob_)
        if incremental.needs_refit(self.model_, entries, self._fitted):
            fit = fitting.refit(settings, self.model_, entries)
            chosen = None
            if self.chosen_ is not None:
                chosen = fitting.fit_chosen(settings, entries)
            return self._adopt(entries, replace(fit, path=self.path_), chosen)
        with make_engine(settings.engine, settings.n_jobs) as engine:
            given = (entries, new, self.ridge, sweeps, engine)
            model = incremental.extend(self.model_, *given)
            chosen = self.chosen_
            if chosen is not None:
                chosen = incremental.extend(chosen, *given)
        return self._show(model, chosen, entries, [], Status.FINISHED)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the negative root mean squared error on the entries of X (as in `fit`).

        The rows of a dense table, or of a sparse matrix with another number of rows than was
        fitted, are new rows, whatever their place: entries are predicted from the others of their
        row. With missing="negative" the score is nDCG@10 of the entries of X.
        """
        check_is_fitted(self)
        return scoring.score(self, X, y, sample_weight)

    def plot_path(self) -> Any:
        """Draw held-out error against drop probability, as tried by drop_prob="auto"."""
        check_is_fitted(self)
        return plotting.plot_path(self.path_, self.drop_prob_)

    def save(self, path: Path) -> None:
        """Write the model into a folder: model.safetensors and model.json."""
        check_is_fitted(self)
        given = self.get_params()
        for name in ("seed", "random_state"):  # generators are not kept
            given[name] = given[name] if isinstance(given[name], (int, np.integer)) else None
        found = (self.drop_prob_, self.learned_drop_prob_, self.path_, self._fitted)
        fit = Fit(self.model_, self.objective_.tolist(), self.status_, *found)
        models.save(path, given, self.entries_, fit, self.chosen_)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a model that `save` wrote; its predictions are the same bit for bit."""
        parameters, entries, fit, chosen = models.load(path)
        model = cls(**parameters)._adopt(entries, fit, chosen)
        model.file_report_ = None
        return model

    def _asked(self, keys: str = "auto") -> tuple[FactorModel, EntryIndex]:
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


def _ranking_model(settings: Settings, entries: Entries, fit: Fit) -> FactorModel | None:
    """Return the model that ranks, None after Ctrl-C: what was fitted before it is kept."""
    if fit.status is Status.INTERRUPTED:
        return None
    try:
        return fitting.fit_chosen(replace(settings, engine="local"), entries)
    except KeyboardInterrupt:
        return None
