"""DropoutImputer: a scikit-learn imputer with the uncertainty of what it fills in.

A table has few columns and many rows, so that every column can be its own factor: the learned form
with V the identity. Row a is N(m, Sigma) as a whole, what is missing of it has the conditional mean
and covariance given what is observed, and

    m = mean of rows,  Sigma = (sum_a ((z_a - m)(z_a - m)' + S_a) + nu I) / (N + nu)

in units of the columns: the prior's update of the learned form, with nu rows of uncorrelated
columns. What descends is the negative log likelihood of the observed entries plus nu's part,
nu / 2 (log det Sigma + tr Sigma^-1), per observed entry. How many rows nu are is asked of the data:
entries are hidden for a while, and those nu are taken that predict them best. Rows need not be
Gaussian: where similar rows clearly tell more, these are asked too; see `neighbors`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from overt._check import InputTypeError, generator, number, plain_array, whole
from overt._types import Array, Floats, Seed
from overt.completion.forms.units import by_column
from overt.completion.kernels.full import fill_rows
from overt.completion.neighbors import Neighbors, calibrated
from overt.completion.settings import fresh_seed, rating_scale
from overt.entries import Entries
from overt.results import Status

ROWS = (300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
"""Numbers nu of rows of uncorrelated columns that are tried, until two in a row are worse."""

LEAST_ROWS, PER_COLUMN, DOUBT = 3.0, 0.25, 2.0
"""log nu is expected near that of LEAST_ROWS + PER_COLUMN times the columns, give or take DOUBT."""

FOLDS, ENOUGH, SOME, TRIALS = 10, 500, 400, 15
"""A tenth of the entries is hidden in a trial, of 400 rows; 500 in all are enough; its sweeps."""


class DropoutImputer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fill in what is missing of a table, column by column in its own unit.

    Nothing needs to be tuned, and columns need not be scaled. Observed entries stay as they are,
    and where at most 20 numbers make up nine tenths of a table, as in surveys or images, what is
    filled in stays within the range of its column.

    Parameters
    ----------
    max_sweeps, tol
        Stop after so many sweeps, or when filled entries change by less than `tol` of their
        column's spread (root mean square).
    seed
        Of the draws of `impute`; `random_state`, as in scikit-learn, counts where it is given.

    Attributes
    ----------
    mean_, covariance_
        Of rows, in the units of the columns.
    neighbor_weights_
        How much similar rows count beside mean and covariance, 0 where that does not help.
    prior_rows_
        The nu that was chosen: rows of uncorrelated columns that the covariance is averaged with.
    center_, scale_
        Robust centers and spreads by which columns were brought to one scale.
    objective_, n_sweeps_, status_
        The objective after each sweep, their number, and how the fit ended.

    Examples
    --------
    >>> import numpy as np
    >>> from overt.completion import DropoutImputer
    >>> x = np.linspace(0, 1, 50)
    >>> table = np.column_stack([x, 1000 * x, -x])
    >>> table[3, 1] = np.nan
    >>> filled, std = DropoutImputer().fit(table).transform(table, return_std=True)
    >>> bool(abs(filled[3, 1] - 1000 * x[3]) < 3 * std[3, 1])
    True
    """

    def __init__(
        self, *, max_sweeps: int = 100, tol: float = 1e-2, seed: Seed = 0, random_state: Any = None
    ) -> None:
        self.max_sweeps, self.tol, self.seed = max_sweeps, tol, seed
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the rows' mean and covariance from a table with NaN for what is missing."""
        whole("max_sweeps", self.max_sweeps)
        number("tol", self.tol)
        table, missing = self._table(X, reset=True)
        n = table.shape[1]
        empty = missing.all(axis=0)
        if empty.any():
            names = ", ".join(map(str, self.get_feature_names_out()[empty][:5]))
            warnings.warn(
                f"{np.count_nonzero(empty)} column(s) have no entry ({names}); they are filled "
                "with 0",
                stacklevel=2,
            )
        self.center_, self.scale_ = _scales(table, missing, empty)
        Z = self._enter(table, missing)
        self._range = _range(table, empty)
        nu, self._wider = _choose_rows(Z, missing)
        self.prior_rows_ = nu
        model = _Rows(np.zeros(n), np.eye(n))
        self.status_ = model.learn(Z, missing, nu, self.max_sweeps, self.tol)
        self._mean, self._precision = model.mean, _inverse(model.covariance)
        self._near = Neighbors.learn(Z, missing, self._mean, self._precision)
        self.neighbor_weights_ = self._near.weights
        self.mean_ = self.center_ + self.scale_ * model.mean
        self.covariance_ = model.covariance * np.outer(self.scale_, self.scale_)
        self.objective_, self.n_sweeps_ = np.array(model.history), len(model.history)
        return self

    def transform(self, X: Any, return_std: bool = False) -> Any:
        """Return the table with its missing entries filled; with `return_std` also how sure.

        Rows may be others than those fitted. The standard deviation of an observed entry is 0.
        """
        table, missing, Z, std = self._filled(X, np.empty((0, 0)))
        filled = self._leave(table, missing, Z + self._near.correction(Z))
        std = std * self._wider * self._near.narrower * self.scale_
        return (filled, std) if return_std else filled

    def impute(self, X: Any, n: int = 5, seed: Seed = None) -> list[Floats]:
        """Return `n` tables whose missing entries are drawn, together, from what they may be.

        Analyzing each and pooling the answers is multiple imputation. The draws are those of the
        rows given the learned mean and covariance.
        """
        rng = generator(fresh_seed(self.seed, self.random_state) if seed is None else seed)
        mean, tables = self._filled(X, np.empty((0, 0)))[2], []
        center, scale = mean + self._near.correction(mean), self._wider * self._near.narrower
        for _ in range(whole("n", n)):
            table, missing, Z, _ = self._filled(X, rng.standard_normal(mean.shape))
            tables.append(self._leave(table, missing, center + scale * (Z - mean)))
        return tables

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the columns, which are those that came in."""
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            names = [f"x{i}" for i in range(self.n_features_in_)]
        given = names if input_features is None else input_features
        return plain_array("input_features", given).astype(object)

    def _filled(self, X: Any, normals: Floats) -> tuple[Floats, Array, Floats, Floats]:
        check_is_fitted(self)
        table, missing = self._table(X, reset=False)
        Z = self._enter(table, missing)
        std, total = np.zeros_like(Z), np.zeros_like(self._precision)
        fill_rows(Z, missing, self._mean, self._precision, normals, std, total)
        return table, missing, Z, std

    def _table(self, X: Any, *, reset: bool) -> tuple[Floats, Array]:
        given: Any = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        try:
            with np.errstate(over="ignore"):  # what is beyond doubles is refused as infinite
                table = validate_data(self, X, reset=reset, **given)
        except Exception as error:
            raise InputTypeError(f"X must be a table of numbers: {error}") from None
        table = np.array(table, order="C")  # one layout, so that kernels are compiled once
        return table, np.isnan(table)

    def _enter(self, table: Floats, missing: Array) -> Floats:
        return np.where(missing, 0.0, (table - self.center_) / self.scale_)

    def _leave(self, table: Floats, missing: Array, Z: Floats) -> Floats:
        filled = np.clip(self.center_ + self.scale_ * Z, *self._range)
        return np.where(missing, filled, table)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64"]
        return tags


@dataclass
class _Rows:
    """Mean and covariance of rows, as far as they are learned."""

    mean: Floats
    covariance: Floats
    history: list[float] = field(default_factory=list)
    std: Floats = field(default_factory=lambda: np.zeros(0))  # of what the last sweep filled

    def learn(self, Z: Floats, missing: Array, nu: float, sweeps: int, tol: float) -> Status:
        """Fill rows and learn from them in turn, in place."""
        N, n = Z.shape
        for sweep in range(sweeps):
            P = _inverse(self.covariance)
            before, S, self.std = Z.copy(), np.zeros((n, n)), np.zeros_like(Z)
            logdets = fill_rows(Z, missing, self.mean, P, np.empty((0, n)), self.std, S)
            observed = Z.size - int(missing.sum())
            self.history.append(_objective(Z - self.mean, P, logdets, nu, observed))
            self.mean = Z.mean(axis=0)
            d = Z - self.mean
            self.covariance = (d.T @ d + S + nu * np.eye(n)) / (N + nu)
            change = np.sqrt(np.mean((Z - before)[missing] ** 2)) if missing.any() else 0.0
            if sweep > 1 and change <= tol:
                return Status.CONVERGED
        return Status.FINISHED


def _inverse(A: Floats) -> Floats:
    return np.asarray(np.linalg.inv(A), dtype=np.float64)


def _choose_rows(Z: Floats, missing: Array) -> tuple[float, float]:
    """Return the nu that predicts hidden entries best, and how much too sure it is of them."""
    rng = np.random.default_rng(0)
    some = np.sort(rng.permutation(len(Z))[:SOME])
    Z, missing = Z[some], missing[some]
    fold = np.where(missing, -1, rng.integers(FOLDS, size=Z.shape))
    hidden_once = max(1, int(np.count_nonzero(fold == 0)))
    trials = min(FOLDS, -(-ENOUGH // hidden_once))
    models = [_Rows(np.zeros(Z.shape[1]), np.eye(Z.shape[1])) for _ in range(trials)]
    expected = np.log(LEAST_ROWS + PER_COLUMN * Z.shape[1])
    costs: list[float] = []
    wider: list[float] = []
    for nu in ROWS:
        errors, spreads = [np.zeros(0)], [np.zeros(0)]
        for trial, model in enumerate(models):
            hidden = fold == trial
            filled = np.where(hidden, 0.0, Z)
            model.learn(filled, missing | hidden, nu, TRIALS, 1e-2)
            errors.append((filled - Z)[hidden])
            spreads.append(model.std[hidden])
        error, std = np.concatenate(errors), np.concatenate(spreads)
        wider.append(max(1.0, calibrated(error / std)) if len(error) else 1.0)
        misfit = len(error) / 2 * np.log(np.mean(error**2) + 1e-12) if len(error) else 0.0
        costs.append(float(misfit + (np.log(nu) - expected) ** 2 / (2 * DOUBT**2)))
        if len(costs) - int(np.argmin(costs)) > 2:
            break
    best = int(np.argmin(costs))
    return ROWS[best], wider[best]


def _scales(table: Floats, missing: Array, empty: Array) -> tuple[Floats, Floats]:
    if empty.all():
        return np.zeros(len(empty)), np.ones(len(empty))
    rows, cols = np.nonzero(~missing)
    units = by_column(Entries(rows, cols, table[rows, cols], table.shape))
    return np.where(empty, 0.0, units.center[:-1]), units.scale[:-1]


def _range(table: Floats, empty: Array) -> tuple[Floats, Floats]:
    """Return the least and largest value of columns, where the table's values are a scale."""
    low, high = np.full(len(empty), -np.inf), np.full(len(empty), np.inf)
    if not empty.all() and rating_scale(table[~np.isnan(table)]):
        low[~empty], high[~empty] = (f(table[:, ~empty], axis=0) for f in (np.nanmin, np.nanmax))
    return low, high


def _objective(d: Floats, P: Floats, logdets: float, nu: float, observed: int) -> float:
    """1/2 [log 2 pi + log det Sigma_oo + d_o'Sigma_oo^-1 d_o] summed over rows, with nu's part.

    det Sigma = det Sigma_oo det S, and d'P d at the conditional mean is d_o'Sigma_oo^-1 d_o.
    """
    logdet = -float(np.linalg.slogdet(P)[1])
    quadratic = float(np.einsum("ai,ij,aj->", d, P, d, optimize=True))
    total = observed * np.log(2 * np.pi) + len(d) * logdet - logdets + quadratic
    return (total + nu * (logdet + float(np.trace(P)))) / 2 / max(observed, 1)
