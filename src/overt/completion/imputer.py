"""DropoutImputer: a scikit-learn imputer with standard deviations and proper multiple imputation.

Rows of the table are independent N(m, Sigma), in units of the columns, and are learned by

    m = mean of filled rows,  Sigma = (sum_a ((z_a - m)(z_a - m)' + S_a) + nu I) / (N + nu)

where z_a has its missing entries filled by conditional means and S_a is their conditional
covariance: the EM algorithm with a prior that is worth nu rows of uncorrelated columns. It lowers
the negative log likelihood of the observed entries plus nu / 2 (log det Sigma + tr Sigma^-1).

How strong the prior is, and how wide intervals are, is judged by leave-one-out errors: every
observed entry is predicted from the other observed entries of its row by a model that was fitted
without that row. Missing entries are predicted the same way, so both have the same distribution if
entries are missing at random.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

import numpy as np
from scipy.special import ndtri
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from overt._check import (
    Array,
    Floats,
    InputTypeError,
    Ints,
    Seed,
    generator,
    number,
    seed_number,
    whole,
)
from overt.completion.kernels.table import fill_rows, leave_one_out
from overt.results import Status

MAX_STANDARDIZED = 1e100
"""Size of standardized values, whose squares and products must be finite; others are moved here."""

OBJECTIVE_ROUNDING = 1e-12
"""Nats per entry by which the objective may rise from rounding alone."""

NO_SAMPLES = np.empty((0, 0))
"""Makes `fill_rows` use conditional means."""


@dataclass(frozen=True)
class GaussianOptions:
    """How the strength nu of the prior is chosen, and how the posterior is sampled."""

    # Tried in this order until two in a row are worse; tables without noise need the last ones.
    prior_rows: tuple[float, ...] = (
        300.0,
        100.0,
        30.0,
        10.0,
        3.0,
        1.0,
        0.3,
        0.1,
        0.03,
        0.003,
    )
    # Leaving out a third of few rows misjudges nu: linnerud (20 rows, half of the entries removed)
    # has error 1.04 with 3 folds and .94 with 5. With many rows 3 folds are as good, and faster.
    folds_of_few_rows: int = 5
    folds_of_many_rows: int = 3
    many_rows: int = 100
    # With 1,000 rows the choice moved by at most one step on scikit-learn's six tables, and the
    # error by less than .1 %.
    max_rows: int = 500
    sweeps: int = 15
    tol: float = 1e-2
    # A stronger prior must not lose by more than this: errors of single tables are noisy.
    min_gain: float = 1e-3
    # By which shrinking a column must lower its error. Digits with 20 % removed: error .611
    # without shrinking, .593 with it. Without this limit, clean tables of 35 rows lose accuracy.
    min_standard_errors: float = 1.0
    # Standard deviations are scaled so that this share of leave-one-out errors is inside.
    level: float = 0.9
    # Autocorrelation left between two samples of mean and covariance, and limits of the steps.
    autocorrelation: float = 0.01
    min_steps: int = 4
    max_steps: int = 200


@dataclass(frozen=True)
class NeighborOptions:
    """How similar rows correct the Gaussian prediction; tuned on digits and five small tables."""

    counts: tuple[int, ...] = (5, 20)
    max_donors: int = 2000
    hidden_share: float = 0.1
    min_hidden: int = 50
    min_standard_errors: float = 2.0
    block: int = 256


GAUSSIAN = GaussianOptions()
NEIGHBORS = NeighborOptions()


class DropoutImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fill the missing entries of a numeric table, and say how uncertain they are.

    Nothing needs to be tuned and columns need not be scaled. Observed entries stay as they are.
    Columns without negative values get none, and columns with at most 20 values that repeat, as in
    surveys or images, keep to their range. The order of rows and columns does not matter.

    Intervals and multiple imputations assume that entries are missing at random: whether an entry
    is missing may depend on observed entries, but not on its own value.

    Parameters
    ----------
    max_sweeps, tol
        Stop after `max_sweeps` sweeps, with a warning, or when filled entries change by less than
        `tol` of their standard deviation (root mean square).
    seed
        Seed of `impute`; `random_state`, as in scikit-learn, is used instead where it is given.

    Attributes
    ----------
    mean_, covariance_
        Of rows, in the units of the columns.
    prior_rows_
        The chosen nu: rows of uncorrelated columns that the covariance is averaged with.
    neighbor_weights_
        Weights of corrections by similar rows, 0 where they do not clearly help.
    center_, scale_
        Robust means and standard deviations by which columns were standardized.
    objective_, n_sweeps_, status_
        The objective at each sweep (without those taken back), their number, how the fit ended.

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
        self,
        *,
        max_sweeps: int = 500,
        tol: float = 3e-3,
        seed: Seed = 0,
        random_state: Any = None,
    ) -> None:
        self.max_sweeps = max_sweeps
        self.tol = tol
        self.seed = seed
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the mean and covariance of rows. NaN and masked entries are missing."""
        whole("max_sweeps", self.max_sweeps)
        number("tol", self.tol)
        self._seed = seed_number(self.seed, self.random_state)
        table, missing = self._validated(X, reset=True)
        self._warn_of_empty_columns(missing)
        columns = [table[~missing[:, j], j] for j in range(table.shape[1])]
        self.center_, self.scale_ = np.array([robust_units(x) for x in columns]).T
        self._low, self._high = np.array([support(x) for x in columns]).T

        Z = self._standardized(table, missing)
        rows, self._cols = canonical_order(Z, missing)
        Z = np.ascontiguousarray(Z[np.ix_(rows, self._cols)])
        missing = np.ascontiguousarray(missing[np.ix_(rows, self._cols)])
        self._table = Z
        self._missing = missing

        self.prior_rows_, start = choose_prior_rows(Z, missing)
        model = GaussianRows(start)
        self.status_ = model.learn(
            Z.copy(), missing, self.prior_rows_, self.max_sweeps, self.tol
        )
        if self.status_ is not Status.CONVERGED:
            warnings.warn(
                f"not converged after max_sweeps={self.max_sweeps} sweeps: filled entries still "
                f"change by more than tol={self.tol:g} of their standard deviation. Increase "
                "max_sweeps or tol.",
                ConvergenceWarning,
                stacklevel=2,
            )
        self._model = model
        self._width, self._shrinkage = calibrate(Z, missing, model, self.prior_rows_)
        self._neighbors = Neighbors.learn(Z, missing, model)
        self.neighbor_weights_ = self._neighbors.weights
        original = np.argsort(self._cols)
        self.mean_ = self.center_ + self.scale_ * model.mean[original]
        covariance = model.covariance[np.ix_(original, original)]
        with np.errstate(
            over="ignore"
        ):  # infinite where squared units leave the range of floats
            self.covariance_ = covariance * np.outer(self.scale_, self.scale_)
        self.objective_ = np.array(model.history)
        self.n_sweeps_ = len(model.history)
        return self

    def transform(self, X: Any, return_std: bool = False) -> Any:
        """Return the table with its missing entries filled; with `return_std` also their std.

        Rows may be others than those fitted. The standard deviation of an observed entry is 0.
        """
        check_is_fitted(self)
        table, missing = self._validated(X, reset=False)
        Z, std = self._filled(table, missing)
        filled = self._in_units(table, missing, Z + self._neighbors.correction(Z))
        if not return_std:
            return filled
        original = np.argsort(self._cols)
        std *= self._width * self._neighbors.width
        return filled, std[:, original] * self.scale_

    def impute(self, X: Any, n: int = 5, seed: Seed = None) -> list[Floats]:
        """Return `n` tables whose missing entries are sampled: proper multiple imputation.

        Analyze each table, then pool the `n` answers by Rubin's rules. Each table has its own mean
        and covariance, sampled from their posterior given the fitted table by data augmentation.
        The prior is weaker here than in `transform`, because analyses of the sampled tables would
        inherit its shrinkage. With fewer than some 5 rows for each column samples are therefore
        wider than the errors (1.3 to 4 times on tables of 20 to 60 rows and 12 to 40 columns), and
        intervals from them cover too much; the deviations of `transform` hold there. Where
        `neighbor_weights_` are not 0, samples are moved and scaled to the corrected prediction,
        which approximates the posterior.
        """
        check_is_fitted(self)
        n = whole("n", n)
        rng = generator(self._seed if seed is None else seed)
        table, missing = self._validated(X, reset=False)
        gaussian, _ = self._filled(table, missing)
        prediction = gaussian + self._neighbors.correction(gaussian)
        samples = posterior_samples(
            self._table, self._missing, self._model, self.prior_rows_, rng
        )
        tables = []
        for mean, P in islice(samples, n):
            Z = self._standardized(table, missing)[:, self._cols]
            normals = rng.standard_normal(Z.shape)
            _fill(Z, missing[:, self._cols], mean, P, normals)
            Z = prediction + self._neighbors.width * (Z - gaussian)
            tables.append(self._in_units(table, missing, Z))
        return tables

    def _validated(self, X: Any, *, reset: bool) -> tuple[Floats, Array]:
        """Return the table as float64, and which of its entries are missing."""
        masked = np.ma.getmaskarray(X) if isinstance(X, np.ma.MaskedArray) else False
        try:
            with np.errstate(
                over="ignore"
            ):  # what is beyond float64 is refused as infinite
                table = validate_data(
                    self,
                    np.ma.getdata(X) if isinstance(X, np.ma.MaskedArray) else X,
                    reset=reset,
                    dtype=np.float64,
                    ensure_all_finite="allow-nan",
                )
        except Warning:
            raise
        except Exception as error:
            raise InputTypeError(
                f"X cannot be used as a table of numbers: {error}"
            ) from None
        table = np.array(table, order="C")
        table[masked & np.ones(table.shape, dtype=bool)] = np.nan
        return table, np.isnan(table)

    def _warn_of_empty_columns(self, missing: Array) -> None:
        empty = missing.all(axis=0)
        if empty.any():
            names = ", ".join(map(str, self.get_feature_names_out()[empty][:5]))
            warnings.warn(
                f"{np.count_nonzero(empty)} column(s) have no entry ({names}); they are filled "
                "with 0",
                stacklevel=3,
            )

    def _standardized(self, table: Floats, missing: Array) -> Floats:
        # Rounded, so that the same table in other units has the same bits.
        with np.errstate(over="ignore"):
            Z = (table - self.center_) / self.scale_
        Z = np.clip(Z, -MAX_STANDARDIZED, MAX_STANDARDIZED).round(9)
        return np.where(missing, 0.0, Z)

    def _filled(self, table: Floats, missing: Array) -> tuple[Floats, Floats]:
        """Return conditional means and their standard deviations, standardized and ordered."""
        Z = self._standardized(table, missing)[:, self._cols]
        missing = missing[:, self._cols]
        std = _fill(Z, missing, self._model.mean, self._model.precision)
        return np.where(missing, self._shrinkage * Z, Z), std

    def _in_units(self, table: Floats, missing: Array, Z: Floats) -> Floats:
        original = np.argsort(self._cols)
        filled = self.center_ + self.scale_ * Z[:, original]
        return np.where(missing, np.clip(filled, self._low, self._high), table)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64"]
        return tags


@dataclass
class GaussianRows:
    """Mean and covariance of rows, learned by the EM algorithm."""

    parameters: Floats  # the mean, and below it the covariance
    history: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, n: int) -> Self:
        """Return standardized, uncorrelated columns."""
        return cls(np.vstack([np.zeros(n), np.eye(n)]))

    @property
    def mean(self) -> Floats:
        """The mean of rows."""
        return self.parameters[0]

    @property
    def covariance(self) -> Floats:
        """The covariance of rows."""
        return self.parameters[1:]

    @property
    def precision(self) -> Floats:
        """The inverse of the covariance."""
        return np.asarray(np.linalg.inv(self.covariance), dtype=np.float64)

    def learn(
        self, Z: Floats, missing: Array, nu: float, max_sweeps: int, tol: float
    ) -> Status:
        """Fill rows and learn from them in turn; Z is filled in place.

        Every two sweeps the parameters are extrapolated (the SQUAREM scheme of Varadhan and Roland,
        2008). A jump that raises the objective is taken back, so the objective never rises.
        """
        trail = [self.parameters]
        fallback = trail[0]
        lowest = np.inf
        for _ in range(max_sweeps):
            before = Z.copy()
            objective, std = self._sweep(Z, missing, nu)
            if objective > lowest + OBJECTIVE_ROUNDING:
                self.parameters = fallback
                trail = [fallback]
                continue
            lowest = objective
            self.history.append(objective)
            trail.append(self.parameters)
            if len(trail) < 3:
                continue
            # Relative to the standard deviation: tables without noise need more sweeps.
            change = np.linalg.norm((Z - before)[missing])
            if change <= tol * np.linalg.norm(std):
                return Status.CONVERGED
            fallback = trail[2]
            self.parameters = extrapolate(*trail)
            trail = [self.parameters]
        return Status.FINISHED

    def _sweep(self, Z: Floats, missing: Array, nu: float) -> tuple[float, Floats]:
        """Fill rows, then learn from them.

        Returns the objective before the sweep and the standard deviations of filled entries.
        """
        N, n = Z.shape
        P = self.precision
        S = np.zeros((n, n))
        std = np.zeros((N, n))
        logdets = fill_rows(Z, missing, self.mean, P, NO_SAMPLES, std, S)
        observed = int(np.count_nonzero(~missing))
        objective = _objective(Z - self.mean, P, logdets, nu, observed)
        mean = Z.mean(axis=0)
        d = Z - mean
        covariance = (d.T @ d + S + nu * np.eye(n)) / (N + nu)
        self.parameters = np.vstack([mean, covariance])
        return objective, std

    def residuals(self, Z: Floats, missing: Array) -> tuple[Floats, Floats]:
        """Return leave-one-out residuals of observed entries, and their standard deviations."""
        Z = Z.copy()
        P = self.precision
        _fill(Z, missing, self.mean, P)
        residuals, std = leave_one_out(Z, missing, self.mean, P)
        return residuals, std


def extrapolate(start: Floats, first: Floats, second: Floats) -> Floats:
    """Return where two sweeps from `start` lead to, if their steps keep shrinking at this rate.

    The step length is that of SQUAREM, halved until the covariance is positive definite.
    """
    step = first - start
    bend = second - first - step
    bent = max(float(np.linalg.norm(bend)), 1e-300)
    length = float(np.linalg.norm(step)) / bent
    while length > 1:
        jump = start + 2 * length * step + length**2 * bend
        with suppress(np.linalg.LinAlgError):
            np.linalg.cholesky(jump[1:])
            return jump
        length = length / 2
    return second


def choose_prior_rows(Z: Floats, missing: Array) -> tuple[float, Floats]:
    """Return the nu with the least leave-one-out error, and parameters to start from.

    Rows are in canonical order, which is unrelated to their contents, so that the first rows are a
    random sample and every third row a random part.
    """
    Z = Z[: GAUSSIAN.max_rows]
    missing = missing[: GAUSSIAN.max_rows]
    observed = ~missing
    n = Z.shape[1]
    nu = 1.0
    parameters = GaussianRows.start(n).parameters
    if len(Z) < 2 or not observed.any():
        return nu, parameters
    models = [GaussianRows.start(n) for _ in range(fold_count(len(Z)))]
    least_error = np.inf
    worse = 0
    # Each model starts where the last candidate ended.
    for candidate in GAUSSIAN.prior_rows:
        residuals, _ = residuals_of_folds(Z, missing, models, candidate)
        error = float(np.mean(residuals[observed] ** 2))
        if error < least_error * (1 - GAUSSIAN.min_gain):
            least_error = error
            nu = candidate
            parameters = np.mean([model.parameters for model in models], axis=0)
            worse = 0
        else:
            worse += 1
            if worse == 2:
                break
    return nu, parameters


def calibrate(
    Z: Floats,
    missing: Array,
    model: GaussianRows,
    nu: float,
) -> tuple[float, Floats]:
    """Return the factor of standard deviations, and a factor of predictions per column.

    Both come from leave-one-out errors of rows that a copy of the model was not fitted to. The
    copies have the prior's share of the model, or their standard deviations would be wider.
    """
    if len(Z) < 2 or missing.all():
        return 1.0, np.ones(Z.shape[1])
    folds = fold_count(len(Z))
    # As many parts as hold `max_rows` rows are enough.
    count = min(folds, -(-GAUSSIAN.max_rows * folds // len(Z)))
    models = [GaussianRows(model.parameters) for _ in range(count)]
    residuals, std = residuals_of_folds(Z, missing, models, nu * (1 - 1 / folds), folds)
    observed = ~missing
    observed[np.arange(len(Z)) % folds >= count] = False
    if not observed.any():
        return 1.0, np.ones(Z.shape[1])
    width = calibration((residuals / std)[observed])
    return width, column_shrinkage(Z, residuals, observed)


def fold_count(rows: int) -> int:
    """Return the number of parts of which each is predicted from the others."""
    folds = GAUSSIAN.folds_of_few_rows
    if rows >= GAUSSIAN.many_rows:
        folds = GAUSSIAN.folds_of_many_rows
    return min(folds, rows)


def residuals_of_folds(
    Z: Floats,
    missing: Array,
    models: list[GaussianRows],
    nu: float,
    folds: int | None = None,
) -> tuple[Floats, Floats]:
    """Return leave-one-out residuals and their std, each model on its fold.

    Model k continues to learn from the rows outside fold k.
    """
    residuals = np.zeros(Z.shape)
    std = np.ones(Z.shape)
    fold = np.arange(len(Z)) % (folds or len(models))
    for k, model in enumerate(models):
        own = fold == k
        model.learn(Z[~own], missing[~own], nu, GAUSSIAN.sweeps, GAUSSIAN.tol)
        residuals[own], std[own] = model.residuals(Z[own], missing[own])
    return residuals, std


def column_shrinkage(Z: Floats, residuals: Floats, observed: Array) -> Floats:
    """Return factors of at most 1 for the predictions of each column, by least squares.

    Nearly constant columns, such as the border of an image, are predicted too boldly. The ridge is
    worth sqrt(n) entries, and the squared error must fall clearly, so that few entries change
    nothing.
    """
    prediction = np.where(observed, Z - residuals, 0.0)
    n = np.maximum(observed.sum(axis=0), 1)
    ridge = np.sum(prediction**2, axis=0) * (1 + 1 / np.sqrt(n)) + 1e-12
    excess = np.clip(-np.sum(prediction * residuals, axis=0) / ridge, 0, 1)
    gain = residuals**2 - (residuals + excess * prediction) ** 2
    standard_error = np.sqrt(np.sum(gain**2, axis=0))
    clear = np.sum(gain, axis=0) > GAUSSIAN.min_standard_errors * standard_error
    return np.where(clear, 1 - excess, 1.0)


def posterior_samples(
    Z: Floats,
    missing: Array,
    model: GaussianRows,
    nu: float,
    rng: np.random.Generator,
) -> Iterator[tuple[Floats, Floats]]:
    """Yield samples of (mean, precision) given the observed entries, by data augmentation.

    The table given mean and covariance, and these given the table, are sampled in turn:

        Sigma ~ inverse Wishart(N - p + nu, sum_a d_a d_a' + nu I)
        mean ~ N(mean of rows, Sigma / N)

    With N - p degrees of freedom, the variance of one column given the others has the posterior of
    Bayesian linear regression.
    """
    N, p = Z.shape
    # What predicts best is too strong a prior for regressions on the sampled tables. At least
    # p + 2 degrees of freedom remain, so that the covariance has an expectation.
    nu = min(nu, max(0.2, p * p / (4 * N)))
    nu = max(nu, 2.0 * p + 2 - N)
    # The chain forgets at the rate of missing information, at most about that of entries.
    share = np.clip(missing.mean(axis=0).max(), 0.01, 0.99)
    steps = int(np.ceil(np.log(GAUSSIAN.autocorrelation) / np.log(share)))
    steps = min(max(steps, GAUSSIAN.min_steps), GAUSSIAN.max_steps)
    burn_in = 2 * steps
    mean = model.mean
    P = model.precision
    while True:
        for _ in range(burn_in + steps):
            filled = Z.copy()
            _fill(filled, missing, mean, P, rng.standard_normal(Z.shape))
            center = filled.mean(axis=0)
            d = filled - center
            root = _wishart_root(N - p + nu, d.T @ d + nu * np.eye(p), rng)
            P = root @ root.T
            mean = center + np.linalg.solve(root.T, rng.standard_normal(p)) / np.sqrt(N)
        burn_in = 0
        yield mean, P


def _wishart_root(df: float, scatter: Floats, rng: np.random.Generator) -> Floats:
    """Return M with M M' ~ Wishart(df, scatter^-1), by Bartlett's decomposition."""
    p = len(scatter)
    A = np.tril(rng.standard_normal((p, p)), -1)
    A[np.diag_indices(p)] = np.sqrt(rng.chisquare(df - np.arange(p)))
    return np.asarray(np.linalg.solve(np.linalg.cholesky(scatter).T, A))


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Corrections of Gaussian predictions by similar rows.

        z_aj + sum_k (w_k sum_b s_ab e_bj / (sum_b s_ab + 2 s)
                      + w'_k sum_b s_ab (z_bj - z_aj) / sum_b s_ab)

    b runs over the k rows nearest to the filled row a in which column j is observed, s_ab =
    exp(-2 d_ab / d_a) with squared distances d (d_a the largest), s the mean of s_ab, and e_bj the
    leave-one-out residual of z_bj. The weights w are fitted by ridge regression to entries that
    are hidden, and are 0 unless they clearly predict better on the other half of them.
    """

    rows: Floats
    residuals: Floats
    observed: Floats
    weights: Floats
    width: float = 1.0  # factor of standard deviations

    @classmethod
    def learn(cls, Z: Floats, missing: Array, model: GaussianRows) -> Self:
        """Return donors from a table in canonical order, with weights where they help."""
        rng = np.random.default_rng(0)
        missing = missing[: NEIGHBORS.max_donors]
        donors, _ = cls._donors(Z[: NEIGHBORS.max_donors], missing, model)
        hidden = (rng.random(missing.shape) < NEIGHBORS.hidden_share) & ~missing
        count = np.count_nonzero(hidden)
        if count < NEIGHBORS.min_hidden:
            return donors
        trial, std = cls._donors(donors.rows, missing | hidden, model)
        A = np.column_stack([part[hidden] for part in trial._parts(trial.rows)])
        y = (donors.rows - trial.rows)[hidden]
        half = rng.random(count) < 1 / 2
        gain = np.empty(count)
        for test in (half, ~half):
            w = ridge_regression(A[~test], y[~test])
            gain[test] = y[test] ** 2 - (y[test] - A[test] @ w) ** 2
        standard_error = gain.std() / np.sqrt(count)
        if not gain.mean() > NEIGHBORS.min_standard_errors * standard_error:
            return donors
        weights = ridge_regression(A, y)
        width = calibration((y - A @ weights) / std[hidden]) / calibration(
            y / std[hidden]
        )
        return cls(donors.rows, donors.residuals, donors.observed, weights, width)

    @classmethod
    def _donors(
        cls, Z: Floats, missing: Array, model: GaussianRows
    ) -> tuple[Self, Floats]:
        """Return filled rows without weights, and the standard deviations of filled entries."""
        Z = Z.copy()
        P = model.precision
        std = _fill(Z, missing, model.mean, P)
        residuals, _ = leave_one_out(Z, missing, model.mean, P)
        return cls(
            Z, residuals, 1.0 - missing, np.zeros(2 * len(NEIGHBORS.counts))
        ), std

    def correction(self, Z: Floats) -> Floats:
        """Return what to add to the filled entries of rows."""
        total = np.zeros_like(Z)
        if self.weights.any():
            for weight, part in zip(self.weights, self._parts(Z), strict=True):
                total += weight * part
        return total

    def _parts(self, Z: Floats) -> list[Floats]:
        """Return mean residuals and differences of the nearest rows, for each number of rows."""
        from sklearn.neighbors import NearestNeighbors

        parts = [np.empty_like(Z) for _ in range(2 * len(NEIGHBORS.counts))]
        counts = [min(k, len(self.rows)) for k in NEIGHBORS.counts]
        finder = NearestNeighbors(n_neighbors=max(counts)).fit(self.rows)
        for start in range(0, len(Z), NEIGHBORS.block):
            block = slice(start, start + NEIGHBORS.block)
            z = Z[block]
            distances, nearest = finder.kneighbors(z)
            d = distances**2
            for i, k in enumerate(counts):
                b = nearest[:, :k]
                farthest = np.maximum(d[:, k - 1 : k], 1e-300)
                s = np.exp(-2 * d[:, :k] / farthest)[:, None, :]
                total = (s @ self.observed[b])[:, 0]
                residual = (s @ self.residuals[b])[:, 0]
                value = (s @ (self.observed[b] * self.rows[b]))[:, 0]
                parts[2 * i][block] = residual / (total + 2 * s.mean(axis=2))
                difference = value / np.maximum(total, 1e-300) - z
                parts[2 * i + 1][block] = np.where(total > 0, difference, 0)
        return parts


def canonical_order(Z: Floats, missing: Array) -> tuple[Ints, Ints]:
    """Return orders of rows and columns that depend on the contents of the table only.

    Rows and columns are sorted by hashes. The hash of a column is a sum over its rows of the mixed
    entry and row hash, and the other way around, so that it does not depend on any order; integer
    sums are exact. Three rounds also tell columns apart that hold the same values in other rows.
    """
    bits = np.where(missing, np.nan, Z + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    row_hash = np.zeros((len(Z), 1), np.uint64)
    col_hash = np.zeros((1, Z.shape[1]), np.uint64)
    for _ in range(3):
        col_hash = _mix64(_mix64(bits) + row_hash).sum(axis=0, keepdims=True)
        row_hash = _mix64(_mix64(bits) + col_hash).sum(axis=1, keepdims=True)
    rows = np.argsort(_mix64(row_hash[:, 0]), kind="stable")
    return rows, np.argsort(col_hash[0], kind="stable")


def _mix64(x: Any) -> Any:
    """Mix the bits of 64-bit integers (the finalizer of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def robust_units(x: Floats) -> tuple[float, float]:
    """Return mean and standard deviation, with outliers moved to 5 quartile distances."""
    if len(x) == 0:
        return 0.0, 1.0
    x = np.sort(x)  # sums are then the same to the last bit for any order of rows
    largest = float(np.abs(x).max())
    if largest == 0:
        return 0.0, 1.0
    # Squares of very large or small numbers leave the range of floating point. A power of two
    # changes no digit.
    unit = float(2.0 ** np.floor(np.log2(largest)))
    x = x / unit
    low, high = np.quantile(x, [0.25, 0.75])
    reach = 5 * (high - low)
    if reach > 0:
        x = np.clip(x, low - reach, high + reach)
    std = float(x.std())
    return float(x.mean()) * unit, std * unit if std > 0 else 1.0


def support(x: Floats) -> tuple[float, float]:
    """Return the range that filled entries of a column keep to.

    At most 20 values that repeat are a scale, which bounds the fills. Other columns stay at least 0
    if they are.
    """
    if len(x) == 0:
        return -np.inf, np.inf
    low = float(x.min())
    # Three entries per value: 20 different values in a column of 20 entries are not a scale.
    if len(np.unique(x)) <= min(20, len(x) / 3):
        return low, float(x.max())
    return 0.0 if low >= 0 else -np.inf, np.inf


def calibration(errors: Floats, level: float = GAUSSIAN.level) -> float:
    """Return the factor of standard deviations for which `level` of the errors are inside.

    `errors` are in units of the standard deviations; the interval is that of a normal distribution.
    """
    return float(np.quantile(np.abs(errors), level) / ndtri((1 + level) / 2))


def ridge_regression(A: Floats, y: Floats) -> Floats:
    """Return least-squares weights, with a ridge worth sqrt(N) entries of typical size."""
    ridge = np.sqrt(len(y)) * np.mean(A**2) + 1e-12
    gram = A.T @ A + ridge * np.eye(A.shape[1])
    return np.asarray(np.linalg.solve(gram, A.T @ y))


def _fill(
    Z: Floats, missing: Array, mean: Floats, P: Floats, normals: Floats = NO_SAMPLES
) -> Floats:
    """Fill rows in place; return the standard deviations of the filled entries."""
    std = np.zeros(Z.shape)
    fill_rows(
        Z, np.ascontiguousarray(missing), mean, P, normals, std, np.zeros(P.shape)
    )
    return std


def _objective(d: Floats, P: Floats, logdets: float, nu: float, observed: int) -> float:
    """1/2 [log 2 pi + log det Sigma_oo + d_o'Sigma_oo^-1 d_o] summed over rows, with nu's part.

    Per observed entry. det Sigma = det Sigma_oo det S, and d'P d at the conditional mean is
    d_o'Sigma_oo^-1 d_o.
    """
    logdet = -float(np.linalg.slogdet(P)[1])
    quadratic = float(np.sum(d @ P * d))
    total = observed * np.log(2 * np.pi) + len(d) * logdet - logdets + quadratic
    return (total + nu * (logdet + float(np.trace(P)))) / 2 / max(observed, 1)
