"""DropoutCompletion: a scikit-learn estimator of the missing entries of a matrix."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from overt._check import InputError, generator
from overt._types import Array, Seed
from overt.completion import answers, bounds, store
from overt.completion.answers import Completed, Explanation, NewRow, Recommendation
from overt.completion.fitting import Fit, fit_entries
from overt.completion.ratings import aligned
from overt.completion.refresh import refresh
from overt.completion.settings import Settings
from overt.entries import Entries, observed, pairs

Path = str | os.PathLike[str]


class DropoutCompletion(BaseEstimator):  # type: ignore[misc]
    """Complete a matrix of which some entries are observed.

    Entry (a, b) is explained by mean + row bias + column bias + u_a . v_b. How much the factors are
    shrunken is said by `drop_prob`, the probability with which factors would be dropped in
    training; by default it is learned, with nothing to tune.

    Parameters
    ----------
    n_factors
        Width of the factors; more than needed does little harm, they are shrunken away.
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
        Int, numpy Generator, or None for fresh entropy; workers (default: one for each core;
        results do not depend on them); "local" for threads of this process, "dask" for the cluster
        of the current `distributed.Client`, or for processes started here where there is none.

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
        self,
        n_factors: int = 32,
        drop_prob: Any = "learn",
        biases: bool = True,
        ridge: float = 1e-6,
        method: str = "alternating",
        max_sweeps: int | None = None,
        tol: float | None = None,
        average: int = 0,
        clip: Any = "auto",
        learning_rate: float = 1.0,
        batch_size: int = 2000,
        seed: Seed = 0,
        n_jobs: int | None = None,
        engine: str = "local",
    ) -> None:
        self.n_factors = n_factors
        self.drop_prob = drop_prob
        self.biases = biases
        self.ridge = ridge
        self.method = method
        self.max_sweeps = max_sweeps
        self.tol = tol
        self.average = average
        self.clip = clip
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.seed = seed
        self.n_jobs = n_jobs
        self.engine = engine

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to observed entries.

        X is scipy sparse (rows x columns; stored zeros are ratings of zero, absent entries are
        missing), a dense array with NaN (or a mask) for missing entries, a data frame of three
        columns (row, column, value; predictions are then asked for by identifier), or, with `y`, an
        (n, 2) array of (row, col) pairs, the form that cross-validation splits: indices, or
        identifiers if they are strings. An entry that is given twice counts as two observations.
        """
        return self.fit_entries(observed(X, y))

    def fit_triplets(
        self,
        rows: Any,
        cols: Any,
        values: Any,
        *,
        shape: tuple[int, int] | None = None,
        on_sweep: Callable[[int, float], None] | None = None,
    ) -> Self:
        """Fit to entries given as three arrays; `on_sweep(sweeps done, objective)` may watch."""
        return self.fit_entries(Entries(rows, cols, values, shape), on_sweep=on_sweep)

    def fit_entries(self, entries: Entries, **how: Any) -> Self:
        """Fit to checked triplets; `how` is what `overt.completion.fitting.fit_entries` takes."""
        return self.adopt(entries, fit_entries(self._settings(), entries, **how))

    def _settings(self) -> Settings:
        given = self.get_params()
        if self.seed is None or isinstance(self.seed, np.random.Generator):
            given["seed"] = int(generator(self.seed).integers(1 << 31))
        return Settings(**given)

    def adopt(self, entries: Entries, fit: Fit) -> Self:
        """Take over a fit of these entries."""
        model, k = fit.model, fit.model.n_factors
        self.entries_, self.model_ = entries, model
        self.index_ = answers.Index(entries)
        U, V = (w[:-1] for w in model.means)
        self.U_, self.V_ = U[:, :k], V[:, :k]
        zero = [np.zeros(count) for count in model.shape]
        self.row_bias_ = U[:, k] if model.biases else zero[0]
        self.col_bias_ = V[:, k + 1] if model.biases else zero[1]
        self.mean_ = model.center
        self.row_ids_, self.col_ids_ = entries.row_ids, entries.col_ids
        self.drop_prob_ = fit.drop_prob
        self.learned_drop_prob_ = fit.learned_drop_prob
        self.noise_variance_ = model.noise
        self.objective_ = np.asarray(fit.objective)
        self.n_sweeps_ = len(fit.objective)
        self.status_ = fit.status
        self.path_ = fit.path
        self.covariance_ = model.spread
        self.n_features_in_ = model.shape[1]
        return self

    def predict(self, rows: Any, cols: Any = None, return_std: bool = False) -> Any:
        """Return predictions for entries (rows[i], cols[i]); with `return_std` also their spread.

        `rows` alone may be an (n, 2) array of pairs. An index that was never seen (-1, or beyond
        the fitted shape) gets what is known of the other side. The standard deviation is that of a
        new observation: residual noise and uncertainty of the factors.
        """
        a, b = self._pairs(rows, cols)
        predicted = self.model_.predict(a, b)
        return (predicted, np.sqrt(self.model_.variance(a, b))) if return_std else predicted

    def complete(self, rows: Any = None) -> Completed:
        """Return the dense matrix (or some rows of it), computed block by block when read."""
        self._fitted()
        chosen = np.arange(self.model_.shape[0]) if rows is None else self.index_.rows(rows)
        return Completed(self.model_, chosen)

    def recommend(self, row: Any, n: int = 10, exclude_seen: bool = True) -> Recommendation:
        """Return the `n` columns with the largest predictions for a row, best first."""
        self._fitted()
        return answers.recommend(self.model_, self.index_, row, n, exclude_seen)

    def similar_items(self, col: Any, n: int = 10) -> Recommendation:
        """Return the columns whose predictions go most alike with those of `col` over rows."""
        self._fitted()
        return answers.similar(self.model_, self.index_, col, n)

    def explain(self, row: Any, col: Any) -> Explanation:
        """Return which of the row's observed entries drive its prediction for `col`."""
        self._fitted()
        return answers.explain(self.model_, self.index_, row, col)

    def fold_in(self, entries: Any) -> NewRow:
        """Return a new row with these entries, without refitting.

        Entries are {column: value}, a sparse row, or a pair (columns, values); columns that were
        never seen are left out.
        """
        self._fitted()
        return answers.fold_in(self.model_, self.index_, entries)

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
        new = aligned(new, self.entries_, (self.index_.rows, self.index_.cols))
        settings = self._settings()
        if not settings.learned:
            settings = replace(settings, drop_prob=self.drop_prob_)
        entries, fit = refresh(settings, self.model_, self.entries_, new, sweeps)
        entries = replace(entries, row_ids=new.row_ids, col_ids=new.col_ids)
        return self.adopt(entries, replace(fit, path=self.path_))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the negative root mean squared error on the entries of X (as in `fit`)."""
        self._fitted()
        given = observed(X, y)
        if y is not None:
            predicted = self.predict(X)
        elif given.row_ids is not None and given.col_ids is not None:
            predicted = self.predict(given.row_ids[given.rows], given.col_ids[given.cols])
        else:
            known = self.model_.shape
            a = np.where(given.rows < known[0], given.rows, -1)
            b = np.where(given.cols < known[1], given.cols, -1)
            predicted = self.model_.predict(a, b)
        return -float(np.sqrt(np.mean((predicted - given.values) ** 2)))

    def generalization_bound(self, delta: float = 0.05, constant: float = 1.5) -> bounds.Bound:
        """Return Theorem 11's bound for this model; `constant` is its K, 1 as printed."""
        self._fitted()
        return bounds.generalization_bound(self.model_, self.entries_, delta, constant)

    def weighted_trace_norm(self) -> float:
        """|diag(sqrt p) U V' diag(sqrt q)|_*, p and q the observed row and column frequencies."""
        self._fitted()
        return bounds.weighted_trace_norm(self.model_, self.entries_)

    def explicit_regularizer(self) -> float:
        """R = mean over entries of sum_i U_ai^2 V_bi^2, without lam."""
        self._fitted()
        return bounds.explicit_regularizer(self.model_, self.entries_)

    def plot_path(self) -> Any:
        """Draw held-out error against drop probability, as tried by drop_prob="auto"."""
        self._fitted()
        return answers.plot_path(self.path_, self.drop_prob_)

    def save(self, path: Path) -> None:
        """Write the model into a folder: model.safetensors and model.json."""
        self._fitted()
        drawn = isinstance(self.seed, np.random.Generator)
        store.save(path, copy(self).set_params(seed=None) if drawn else self)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a model that `save` wrote; its predictions are the same bit for bit."""
        model = cls()
        store.load(path, model)
        return model

    def _pairs(self, rows: Any, cols: Any) -> tuple[Array, Array]:
        self._fitted()
        if cols is None:
            rows, cols = pairs("without cols, rows", rows)
        a, b = self.index_.rows(rows), self.index_.cols(cols)
        if len(a) != len(b):
            raise InputError(f"rows and cols must have the same length, got {len(a)} and {len(b)}")
        return a, b

    def _fitted(self) -> None:
        from sklearn.exceptions import NotFittedError

        if not hasattr(self, "model_"):
            raise NotFittedError("this DropoutCompletion is not fitted; call fit first")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")
