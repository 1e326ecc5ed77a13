"""DropoutCompletion: a scikit-learn estimator of the missing entries of a matrix."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import RegressorTags
from sklearn.utils.validation import check_is_fitted

from overt._check import InputError, generator
from overt._frames import is_table
from overt._types import Seed
from overt.completion import bounds, evaluation, fitting, plotting, recommending
from overt.completion.answering import Answers
from overt.completion.forms.model import FactorModel, Fit
from overt.completion.index import EntryIndex
from overt.completion.recommending import Explanation, NewRow
from overt.completion.settings import Settings
from overt.completion.storage import models
from overt.entries import Entries, observed

Path = str | os.PathLike[str]


class DropoutCompletion(Answers, BaseEstimator):  # type: ignore[misc]
    """Complete a matrix of which some entries are observed.

    Entry (a, b) is explained by mean + row bias + column bias + u_a . v_b. How much the factors are
    shrunken is said by `drop_prob`, the probability with which factors would be dropped in
    training; by default it is learned, with nothing to tune.

    Parameters
    ----------
    n_factors
        Width of the factors; more than needed does little harm, they are shrunken away. None is
        32, and 64 for rankings of 500,000 entries or more.
    drop_prob
        "learn" estimates the noise of every factor row, the priors and the residual variance.
        A number in [0, 1) (or one per factor) minimizes the dropout objective
        mean (y - u.v)^2 + lam mean sum_i U_ai^2 V_bi^2, lam = drop_prob / (1 - drop_prob), exactly.
        "auto" chooses that number on a held-out slice, then fits everything.
    biases
        Whether rows and columns have biases and the mean is taken out.
    ridge
        Coefficient of |U|^2 + |V|^2 beside the sum of squares (not with "learn"): just enough to
        make rows with few entries well posed.
    method
        "alternating" (exact solves), or "sgd", the thesis's algorithm, with `learning_rate` and
        `batch_size`; a sweep is then an epoch.
    max_sweeps, tol
        Stop after so many sweeps (default 100), or when the objective falls by less than `tol` in
        one: nats per rating with "learn" (default 5e-4), relative otherwise (default 1e-5; SGD
        always takes all its epochs).
    average
        With "learn": average the predictions of so many draws of the factors; more accurate and
        slower.
    clip
        Whether predictions are kept within the range of the values; "auto" does where at
        most 20 different numbers make up nine tenths of them, as on a rating scale.
    seed, n_jobs, engine
        Int, numpy Generator, or None for fresh entropy; number of threads (default: one for each
        core; results do not depend on it); "local" for threads of this process, "dask" for the
        cluster of the current `distributed.Client`, or for processes started here.

    Attributes
    ----------
    U_, V_
        Factors, (rows, n_factors) and (columns, n_factors).
    row_bias_, col_bias_, mean_
        Biases and mean; zero without `biases`.
    drop_prob_
        The drop probability used; with "learn", the one whose noise is as large as the learned.
    learned_drop_prob_
        With "learn", the same for each factor (in the basis that makes both priors diagonal, most
        important first); a point of comparison with fixed dropout.
    noise_variance_
        Residual variance.
    objective_, n_sweeps_, status_
        The objective after each sweep, their number, and how the fit ended.
    path_
        With "auto": (drop_prob, held-out RMSE) in the order tried.
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

    def __init__(
        self, n_factors: int | None = None, drop_prob: Any = "learn", biases: bool = True,
        ridge: float = 1e-6, method: str = "alternating", max_sweeps: int | None = None,
        tol: float | None = None, average: int = 0, clip: Any = "auto", learning_rate: float = 1.0,
        batch_size: int = 2000, seed: Seed = 0, n_jobs: int | None = None, engine: str = "local",
        missing: str = "unknown", scale: Any = "auto",
    ) -> None:  # fmt: skip
        self.n_factors, self.drop_prob, self.biases, self.ridge = (
            n_factors,
            drop_prob,
            biases,
            ridge,
        )
        self.method, self.max_sweeps, self.tol, self.average = method, max_sweeps, tol, average
        self.clip, self.learning_rate, self.batch_size = clip, learning_rate, batch_size
        self.seed, self.n_jobs, self.engine = seed, n_jobs, engine
        self.missing, self.scale = missing, scale

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to observed entries.

        X is `overt.Entries`, scipy sparse (rows x columns; stored zeros are ratings of zero, absent
        entries are missing), a dense array with NaN (or a mask) for missing entries, a data frame
        of three columns (row, column, value; predictions are then asked for by identifier), or,
        with `y`, an (n, 2) array of (row, col) pairs, the form that cross-validation splits:
        indices, or identifiers if they are strings. An entry that is given twice counts as two
        observations.
        """
        table = y is None and not isinstance(X, Entries) and is_table(X)
        return self.fit_entries(observed(X, y), table=table)

    def fit_triplets(
        self, rows: Any, cols: Any, values: Any, *, shape: tuple[int, int] | None = None,
        on_sweep: Callable[[int, float], Any] = lambda sweeps, objective: None,
    ) -> Self:  # fmt: skip
        """Fit to entries given as three arrays; `on_sweep(sweeps done, objective)` may watch."""
        entries = Entries(rows, cols, values, shape)
        return self.fit_entries(entries, on_form=lambda f: on_sweep(len(f.history), f.history[-1]))

    def fit_entries(self, entries: Entries, **how: Any) -> Self:
        """Fit to Entries; `how` is what `overt.completion.fitting.fit_entries` takes."""
        return self._adopt(entries, fitting.fit_entries(self._settings(), entries, **how))

    def _settings(self) -> Settings:
        given = self.get_params()
        if self.seed is None or isinstance(self.seed, np.random.Generator):
            given["seed"] = int(generator(self.seed).integers(1 << 31))
        return Settings(**given)

    def _adopt(self, entries: Entries, fit: Fit) -> Self:
        """Take over a fit of these entries."""
        model, columns = fit.model, fit.model.columns
        self.entries_, self.model_, self.index_ = entries, model, EntryIndex(entries)
        self.chosen_: FactorModel | None = None
        U, V = (w[:-1] for w in model.means)
        k, (m, n) = columns.n_factors, model.shape
        self.U_, self.V_ = U[:, :k], V[:, :k]
        self.row_bias_ = U[:, k] if columns.biases else np.zeros(m)
        self.col_bias_ = V[:, k + 1] if columns.biases else np.zeros(n)
        self.mean_, self.noise_variance_ = model.center, model.noise
        self.row_ids_, self.col_ids_ = entries.row_ids, entries.col_ids
        self.drop_prob_, self.learned_drop_prob_ = fit.drop_prob, fit.learned_drop_prob
        self.objective_, self.n_sweeps_ = np.asarray(fit.objective), len(fit.objective)
        self.status_, self.path_ = fit.status, fit.path
        self.covariance_ = model.spread.name
        self.n_features_in_ = model.shape[1]
        return self

    def predict(self, rows: Any, cols: Any = None, return_std: bool = False) -> Any:
        """Return predictions for entries (rows[i], cols[i]); with `return_std` also their spread.

        `rows` alone may be Entries, or an (n, 2) array of pairs. An index that was never seen (-1,
        or beyond the fitted shape) gets what is known of the other side. The standard deviation is
        that of a new observation: residual noise and uncertainty of the factors.
        """
        model, index = self._asked()
        a, b = index.places(rows, cols)
        predicted = model.predict(a, b)
        return (predicted, np.sqrt(model.variance(a, b))) if return_std else predicted

    def explain(self, row: Any, col: Any) -> Explanation:
        """Return which of the row's observed entries drive its prediction for `col`."""
        return recommending.explain(*self._asked(), row, col)

    def fold_in(self, entries: Any) -> NewRow:
        """Return a new row with these entries, without refitting.

        Entries are {column: value}, a sparse row, or a pair (columns, values); columns that were
        never seen are left out.
        """
        return recommending.fold_in(*self._asked(), entries, self._ranking)

    def partial_fit(self, X: Any, y: Any = None, sweeps: int = 2) -> Self:
        """Take in new entries: rows and columns they touch are solved again, the rest is held.

        An entry that was known is replaced. New rows and columns may appear. The first call fits.
        Rows and columns are given as they were to `fit`: by index, or by identifier. `objective_`
        is empty afterwards, and draws of `average` are given up with a warning.
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y)
        new = observed(X, y)
        if y is None and new.row_ids is None and self.entries_.row_ids is not None:
            raise InputError(
                "this model knows rows and columns by identifiers; give partial_fit a data frame "
                "of three columns, or pairs of identifiers and their values"
            )
        settings = self._settings()
        if not settings.learned:
            settings = replace(settings, drop_prob=self.drop_prob_)
        new = self.index_.aligned(new)
        entries, fit = fitting.refresh(settings, self.model_, self.entries_, new, sweeps)
        return self._adopt(entries, replace(fit, path=self.path_))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the negative root mean squared error on the entries of X (as in `fit`).

        The rows of a dense table are new rows, whatever their place: every entry is predicted from
        the others of its row. With missing="negative" the score is nDCG@10 of the entries of X.
        """
        model, _ = self._asked()
        if y is None and not isinstance(X, Entries) and is_table(X):
            return -evaluation.table_error(self, observed(X))
        given = observed(X, y)
        if model.pairs is not None:
            return evaluation.ndcg(self, self.index_.aligned(given))
        error = self.predict(given if y is None else X) - given.values
        return -float(np.sqrt(np.mean(error**2)))

    def generalization_bound(self, delta: float = 0.05, constant: float = 1.5) -> bounds.Bound:
        """Return Theorem 11's bound for this model; `constant` is its K, 1 as printed."""
        check_is_fitted(self)
        return bounds.generalization_bound(self.model_, self.entries_, delta, constant)

    def weighted_trace_norm(self) -> float:
        """|diag(sqrt p) U V' diag(sqrt q)|_*, p and q the observed row and column frequencies."""
        check_is_fitted(self)
        return bounds.weighted_trace_norm(self.model_, self.entries_)

    def explicit_regularizer(self) -> float:
        """R = mean over entries of sum_i U_ai^2 V_bi^2, without lam."""
        check_is_fitted(self)
        return bounds.explicit_regularizer(self.model_, self.entries_)

    def plot_path(self) -> Any:
        """Draw held-out error against drop probability, as tried by drop_prob="auto"."""
        check_is_fitted(self)
        return plotting.plot_path(self.path_, self.drop_prob_)

    def save(self, path: Path) -> None:
        """Write the model into a folder: model.safetensors and model.json."""
        check_is_fitted(self)
        given = self.get_params()
        if isinstance(self.seed, np.random.Generator):
            given["seed"] = None
        found = (self.drop_prob_, self.learned_drop_prob_, self.path_)
        fit = Fit(self.model_, self.objective_.tolist(), self.status_, *found)
        models.save(path, given, self.entries_, fit, self.chosen_)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a model that `save` wrote; its predictions are the same bit for bit."""
        parameters, entries, fit, chosen = models.load(path)
        model = cls(**parameters)._adopt(entries, fit)
        model.chosen_ = chosen
        return model

    def _asked(self) -> tuple[FactorModel, EntryIndex]:
        check_is_fitted(self)
        return self.model_, self.index_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor"
        tags.regressor_tags = RegressorTags()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")
