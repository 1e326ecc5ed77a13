"""Every pair counts: unobserved pairs are zeros, which turns completion into ranking.

    y_ab ~ N(u_a . v_b, sigma^2 / (w_ab r_a c_b)),  w = 1 and y = 0 where unobserved,
    w = WEIGHT and y = strength where observed,  u_a ~ N(m, P^-1) and the same for v_b
    S_a^-1 = r_a / sigma^2 (sum_all c_b T_b + (WEIGHT - 1) sum_observed c_b T_b) + P,
    u_a = S_a (r_a WEIGHT / sigma^2 sum_observed c_b y_ab v_b + P m),  T_b = v_b v_b' + S_b
    m = mean of rows,  P^-1 = (sum_a ((u_a - m)(u_a - m)' + S_a) + nu eps 1) / (N + nu)

The first sum is one matrix for all rows, so that a sweep costs what the observed entries cost.
The objective is, per observed entry,

    1/2 sum over pairs of (log 2 pi sigma^2 + E error / sigma^2) + KL of both sides
    + nu/2 (eps tr P - log det P) of both sides,  nu = number of factors, eps = MIN_VARIANCE.

The precisions r_a and c_b fall like the square root of how much a row or column has chosen, since
its errors are larger. They are taken from the data once, so that every step is an exact block
minimization and the objective never rises.

Strengths run from .2 to 1: the smallest value has the strength .2, the largest 1. Counts, of which
some are many times larger than most, enter by their logarithms.

Popularity is mixed in:

    score_ab = (1 - q) x_ab + q p_b sum_b max(x_ab, 0),  x = U V',  p = shares of entries.

with q = .2. The fit starts with some entries hidden (set to 0), and continues with all entries.
Where counts alone, q = 1, rank the hidden ones higher by two standard errors, they are used.

Where times are known, what a row chose last says more of what it chooses next:

    u_a + d_a = u_a + S_a V' (D^-1 + V S_a V')^-1 (y - V u_a),  V and y of its latest entries

is the mean of a row that observes these again with precisions
D = diag(r_a c_b WEIGHT RECENT exp(-age_b / SPAN) / sigma^2), age_b = how many came later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from overt._check import Array, Floats, InputError, Ints
from overt.completion.engines import Engine, half_sweep
from overt.completion.features import NO_FEATURES
from overt.completion.kernels.rows import (
    FixedSide,
    RowPrior,
    pack,
    unpack,
    weighted_sum,
)
from overt.completion.learned import check_memory
from overt.completion.model import (
    FactorModel,
    Row,
    RowSums,
    add_squares,
    zero_tables,
)
from overt.completion.prior import Prior, RowNoise, Sums
from overt.completion.problem import CompletionProblem
from overt.entries import Entries


@dataclass(frozen=True)
class ImplicitOptions:
    """Numbers of the method, tuned on MovieLens 100K and parts of 1M."""

    tol: float = 5e-3
    """Fall of the objective in one sweep, in nats per observed entry, that means convergence."""

    weight: float = 2.0
    """Precision of an observed pair beside that of a zero."""

    min_strength: float = 0.2
    """Strength of the smallest value: observed, though not liked, is more than not observed."""

    count_ratio: float = 4.0
    """Values that reach this many times their median are counts, of which logarithms are taken."""

    count_quantile: float = 0.995
    """Quantile of counts that has the strength 1; the few above it do not set the scale."""

    precision_floor: float = 0.3
    """Part of the mean sum of squares that is added to every row's, for rows with few entries."""

    recent_weight: float = 2.0
    """Extra weight of a row's latest entry."""

    recent_span: float = 10.0
    """Later entries after which that weight falls to a third."""

    recent_entries: int = 30
    """Latest entries of a row that are weighted; the others' weight would be below a tenth."""

    popularity: float = 0.2
    """Share of popularity in the scores. MovieLens 100K and 1M are ranked as well or better with
    .1 to .25, and worse with .5; parts of 100K with 10,000 entries and more gain by it."""

    hidden_share: float = 0.2
    """Share of the entries that is hidden to find whether counts alone are better."""

    max_hidden: int = 2000
    """Number of hidden entries beyond which the choice is clear."""

    clear_errors: float = 2.0
    """Standard errors that make a difference clear."""


OPTIONS = ImplicitOptions()

MAX_DENSE_PAIRS = 1 << 20
"""Pairs up to which the starting singular vectors come from the dense matrix."""

MIN_NOISE = 1e-9
"""Smallest residual variance."""

ROWS_AT_ONCE = 256
"""Rows whose latest entries are solved for at once."""


@dataclass(frozen=True)
class Strengths:
    """(value - zero) / scale, of log(1 + value) where `log`, clipped to [.2, 1]."""

    zero: float
    scale: float
    log: bool

    @classmethod
    def of(cls, values: Floats) -> Strengths:
        """Return the strengths of such values; one value alone has the strength 1."""
        y = values[values != 0] if values.min() == 0 and values.max() > 0 else values
        high = np.quantile(y, OPTIONS.count_quantile)
        log = bool(y.min() >= 0 and high >= OPTIONS.count_ratio * np.median(y) > 0)
        if log:
            y = np.log1p(y)
        low = float(y.min())
        high = float(np.quantile(y, OPTIONS.count_quantile) if log else y.max())
        if low == high:
            return cls(low - 1, 1.0, log)
        scale = (high - low) / (1 - OPTIONS.min_strength)
        return cls(low - OPTIONS.min_strength * scale, scale, log)

    def __call__(self, values: Any) -> Floats:
        """Return the strengths of values."""
        y = np.asarray(values, dtype=float)
        if self.log:
            y = np.log1p(np.maximum(y, 0))
        return np.clip((y - self.zero) / self.scale, OPTIONS.min_strength, 1)

    def enter(self, entries: Entries) -> Entries:
        """Return observed pairs with their strengths; zeros are not observed."""
        entries = observed_pairs(entries)
        return replace(entries, values=self(entries.values))


def refuse_dislikes(values: Floats) -> None:
    """Refuse negative values for missing="negative", where they would count as weak likes."""
    if len(values) and values.min() < 0:
        raise InputError(
            'missing="negative" takes values as strengths of a choice, from 0, and what is absent '
            f'as 0; got {values.min():g}. Leave out what was rejected, or use missing="unknown"'
        )


def observed_pairs(entries: Entries) -> Entries:
    """Return entries without zeros, which are what absent strengths are, unless all are."""
    y = entries.values
    drops = y.min() == 0 and y.max() > 0
    return entries.take(np.flatnonzero(y != 0)) if drops else entries


@dataclass(frozen=True, eq=False)
class PrecisionRule:
    """r(x) = ((floor t + x) / t)^-1/2 for a row with sum of squares x; t is the mean x."""

    mean: float

    @classmethod
    def of(cls, square_sums: Floats) -> PrecisionRule:
        """Return r for rows with these sums; empty rows do not count."""
        return cls(float(square_sums[square_sums > 0].mean()))

    def __call__(self, square_sums: Any) -> Floats:
        """Return r for sums of squares."""
        size = OPTIONS.precision_floor + square_sums / self.mean
        return np.asarray(size**-0.5, dtype=np.float64)

    def of_rows(self, square_sums: Any) -> Floats:
        """Return r of rows, 0 for those without entries."""
        return np.where(square_sums > 0, self(square_sums), 0.0)


def with_all_pairs(prior: RowPrior, total: Array) -> RowPrior:
    """Return what rows share where every pair counts; `total` is the packed sum over all."""
    more = OPTIONS.weight - 1
    return prior._replace(
        background=total, table_weight=more, value_weight=OPTIONS.weight
    )


@dataclass(frozen=True, eq=False)
class ImplicitModel:
    """A model whose predictions rank columns: unobserved pairs counted as zero."""

    has_std: ClassVar[bool] = False
    base: FactorModel
    strengths: Strengths
    rules: tuple[PrecisionRule, PrecisionRule]  # r of rows and c of columns
    precisions: tuple[Floats, Floats]  # r and c, 0 where there are no entries
    shares: Floats  # of the entries, by column
    popularity: float  # q
    recent: Floats  # d of each row, empty where times are not known

    def predict(self, rows: Array, cols: Array) -> Floats:
        """Return predicted strengths, clipped."""
        return self.base.predict(rows, cols)

    def block(self, rows: Array) -> Floats:
        """Return the predictions of some rows for all columns and an unseen one, not clipped."""
        return self.base.block(rows)

    def variance(self, rows: Array, cols: Array) -> Floats:
        """Refuse: predictions rank columns."""
        raise InputError(
            'return_std needs missing="unknown": with "negative" predictions rank columns, and '
            "no observed value is expected to be near them"
        )

    def row_sums(self, partners: Array, values: Array) -> RowSums:
        """Return the sums of a row's entries, unobserved pairs included."""
        y = self.strengths(values)
        r = float(self.rules[0](np.sum(y**2)))
        c = self.precisions[1][partners]
        weight = OPTIONS.weight
        more = self.base.weighted_moment(1, partners, (weight - 1) * c)
        W = self.base.means[1][partners].astype(np.float64)
        return RowSums(W, y, r * weight * c, r * (self._all_pairs[1] + more))

    @cached_property
    def _all_pairs(self) -> tuple[Floats, Floats]:
        """sum_a r_a T_a over all known rows, and sum_b c_b T_b over all known columns."""
        left, right = (
            self.base.weighted_moment(side, np.arange(len(c)), c)
            for side, c in enumerate(self.precisions)
        )
        return left, right

    def fold(self, partners: Array, values: Array, features: Any = None) -> Row:
        """Return a row with these entries, everything else fixed."""
        sums = self.row_sums(partners, values)
        return self.base.fold(partners, values, features, sums)

    def equations(self, side: int) -> tuple[Floats, Floats, RowPrior]:
        """Return precisions of a side's rows, weights of their partners, and what rows share."""
        base = self.base
        prior = base.priors[side].for_rows(base.columns, side)
        prior = with_all_pairs(prior, pack(self._all_pairs[1 - side]))
        return self.precisions[side] / base.noise, self.precisions[1 - side], prior

    def of_row(self, row: Row) -> ImplicitModel:
        """Return the model of a row that was not fitted alone, at position 0."""
        return replace(self, base=self.base.of_row(row), recent=np.zeros((0, 0)))

    def with_entries(self, entries: Entries) -> ImplicitModel:
        """Return the model with the precisions, shares and latest choices of these entries."""
        m, n = entries.shape
        squares = entries.values**2
        r = self.rules[0].of_rows(np.bincount(entries.rows, squares, m))
        c = self.rules[1].of_rows(np.bincount(entries.cols, squares, n))
        counts = np.bincount(entries.cols, minlength=n)
        model = replace(self, precisions=(r, c), shares=counts / counts.sum())
        if entries.times is None:
            return replace(model, recent=np.zeros((0, 0)))
        return replace(model, recent=recent_shifts(model, entries, entries.times))

    def rank_rows(self, rows: Array) -> Floats:
        """Return scores of known rows for all known columns, by what they chose last."""
        x = self.block(rows)[:, :-1]
        if len(self.recent):
            x = x + self.recent[rows] @ self.base.means[1][:-1].T
        return self.mix(x)

    def mix(self, x: Floats) -> Floats:
        """Mix popularity into predictions for all known columns; unchosen columns come last."""
        scores = mix_popularity(x, self.shares, self.popularity)
        chosen = self.shares > 0
        if chosen.all() or not chosen.any():
            return scores
        lowest = scores[..., chosen].min(axis=-1, keepdims=True)
        return np.where(chosen, scores, np.minimum(scores, lowest - 1e-9 * abs(lowest)))


def mix_popularity(x: Floats, shares: Floats, q: Any) -> Floats:
    """(1 - q) x + q p sum max(x, 0) for rows (count, columns), or for one."""
    total = np.maximum(x, 0).sum(axis=-1, keepdims=True)
    return (1 - q) * x + q * np.where(total > 0, total, 1) * shares


class ImplicitFit:
    """All pairs of rows and columns that have entries; `step` is one sweep over both sides."""

    kind: ClassVar[str] = "negative"
    state: ClassVar[tuple[str, ...]] = (
        "means",
        "history",
        "tables",
        "priors",
        "noise",
    )
    features = (NO_FEATURES, NO_FEATURES)

    def __init__(self, problem: CompletionProblem, seed: int) -> None:
        """Start near the leading singular vectors."""
        check_memory(problem)
        k = problem.columns.n_factors
        pairs = float(np.prod(problem.shape))
        self.noise = float(problem.sides[0].values.sum(dtype=float)) / pairs
        self.priors = [Prior(np.zeros(k), P * np.eye(k)) for P in (1, 100)]
        self.means = [np.zeros((count, k), problem.dtype) for count in problem.shape]
        self.tables = zero_tables(problem)
        self.history: list[float] = []
        self.noises = [RowNoise.equal(count) for count in problem.shape]
        self.take_problem(problem)
        rng = np.random.default_rng([seed, 0])
        V = self.means[1]
        V[:] = rng.normal(0, 0.1 * self.noise**0.25, V.shape)
        leading = self._leading_vectors(seed)
        V[:, : leading.shape[1]] = leading
        add_squares(self.tables[1], V)

    def take_problem(self, problem: CompletionProblem) -> None:
        """Continue with other entries, from which precisions follow."""
        self.problem = problem
        left, right = (PrecisionRule.of(side.square_sums) for side in problem.sides)
        self.rules = (left, right)
        self.precisions = [
            rule(side.square_sums)
            for rule, side in zip(self.rules, problem.sides, strict=True)
        ]

    def _leading_vectors(self, seed: int) -> Floats:
        """Return V of the U V' nearest to the strengths, errors weighted by r_a c_b."""
        m, n = self.problem.shape
        k = self.means[0].shape[1]
        r, c = self.precisions
        side = self.problem.sides[0]
        values = side.values * np.sqrt(r[side.keys] * c[side.others])
        X = sparse.csr_array((values, (side.keys, side.others)), (m, n))
        if m * n <= MAX_DENSE_PAIRS:
            _, s, R = np.linalg.svd(X.toarray(), full_matrices=False)
        else:
            from sklearn.utils.extmath import randomized_svd

            _, s, R = randomized_svd(X, k, n_iter=2, random_state=seed)
        V = R[:k].T * np.sqrt(s[:k])
        return np.asarray(V * (n / m) ** 0.25 / np.sqrt(c)[:, None])

    def step(self, engine: Engine) -> None:
        """Sweep both sides, the priors and the noise; record the objective per entry."""
        cost = 0.0
        error = 0.0
        pairs = 1.0
        n = self.problem.columns.n_factors
        for side in (0, 1):
            moment, error, logdets = self._update_rows(side, engine)
            rows = self.problem.sides[side].rows
            pairs *= len(rows)
            first = self.means[side][rows].sum(axis=0, dtype=float)
            nothing = np.zeros((0, n))
            sums = Sums(len(rows), first, moment, np.zeros((n, n)), nothing, logdets)
            prior = self.priors[side].learn(sums, NO_FEATURES)
            self.priors[side] = prior
            cost += prior.cost(sums, NO_FEATURES) + prior.pseudo_cost
        self.noise = max(error / pairs, MIN_NOISE)
        misfit = (
            pairs * (np.log(2 * np.pi * self.noise) + error / pairs / self.noise) / 2
        )
        self.history.append(float((misfit + cost) / self.problem.n_ratings))

    def settled(self, tol: float) -> bool:
        """Return whether the last sweep changed the objective by at most `tol` nats per entry."""
        if len(self.history) < 2:
            return False
        before, now = self.history[-2:]
        return abs(before - now) <= tol

    def _update_rows(self, side: int, engine: Engine) -> tuple[Floats, float, float]:
        """Update one side; return its summed second moment, expected error and log dets."""
        problem = self.problem
        tables = self.tables
        other = 1 - side
        group = problem.sides[side]
        prior = self.priors[side]
        c = np.where(problem.sides[other].counts > 0, self.precisions[other], 0)
        shift = prior.precision @ prior.mean
        total = weighted_sum(c, tables[other])
        all_pairs = with_all_pairs(prior.for_rows(problem.columns, side), total)
        no_dropout = np.zeros(problem.columns.width)
        fixed = FixedSide(self.means[other], tables[other], c, no_dropout)
        r = self.precisions[side]
        shifts = np.tile(shift, (problem.shape[side], 1))
        own = (self.means[side], tables[side])
        shared = (fixed, all_pairs)
        out, moment = half_sweep(
            engine, group.layout, shared, shifts, r / self.noise, *own
        )
        errors, logdets = out.stats.T
        return unpack(moment), float(r @ errors), float(logdets.sum())

    def model(
        self,
        limits: tuple[float, float],
        entries: Entries,
        strengths: Strengths,
        popularity: float,
    ) -> ImplicitModel:
        """Return the fitted model of these entries; `popularity` is its share in the scores."""
        self._finish()
        base = FactorModel.of_fit(self, limits)
        model = ImplicitModel(
            base,
            strengths,
            self.rules,
            (np.zeros(0), np.zeros(0)),
            np.zeros(0),
            popularity,
            np.zeros((0, 0)),
        )
        return model.with_entries(entries)

    def _finish(self) -> None:
        """Turn second moments into covariances; a row without entries gets its prior.

        A column without entries gets what a column that nobody chose is: zeros everywhere.
        """
        left = self.priors[0]
        right = self.priors[1]
        all_rows = unpack(weighted_sum(self.precisions[0], self.tables[0]))
        scale = self.precisions[1].max() / self.noise
        S = np.linalg.inv(right.precision + scale * all_rows)
        mean = S @ right.precision @ right.mean
        empty = ((left.mean, left.covariance), (mean, S))
        for side, w in enumerate(self.means):
            add_squares(self.tables[side], w, -1)
            without = self.problem.sides[side].counts == 0
            w[without] = empty[side][0]
            self.tables[side][without] = pack(empty[side][1])


def hide_entries(count: int, seed: int) -> Ints:
    """Return the positions of entries to hide among `count`."""
    size = min(OPTIONS.max_hidden, int(OPTIONS.hidden_share * count))
    return np.random.default_rng([seed, 2]).choice(count, size, replace=False)


def choose_popularity(fit: ImplicitFit, hidden: Ints) -> float:
    """Return q: 1 if the hidden entries clearly rank higher by counts alone."""
    side = fit.problem.sides[0]
    a = side.keys[hidden]
    b = side.others[hidden]
    all_counts = fit.problem.sides[1].counts
    counts = all_counts - np.bincount(b, minlength=len(all_counts))
    shares = counts / max(counts.sum(), 1)
    U, V = (w.astype(np.float64) for w in fit.means)
    csr = sparse.csr_array((side.values, (side.keys, side.others)), fit.problem.shape)
    mixtures = np.array([[OPTIONS.popularity], [1.0]])
    gains = []
    for row in np.unique(a):
        wanted = b[a == row]
        row_cols = csr.indices[csr.indptr[row] : csr.indptr[row + 1]]
        scores = mix_popularity(V @ U[row], shares, mixtures)
        targets = scores[:, wanted, None]
        scores[:, np.setdiff1d(row_cols, wanted)] = -np.inf
        above = (scores[:, None] > targets).sum(axis=2)
        equal = (scores[:, None] == targets).sum(axis=2) - 1
        gains.append(np.mean(1 / np.log2(2 + above + equal / 2), axis=1))
    each = np.array(gains)
    if len(each) < 2:
        return 1.0
    lost = each[:, 1] - each[:, 0]
    error = lost.std(ddof=1) / np.sqrt(len(each))
    return 1.0 if lost.mean() > OPTIONS.clear_errors * error else OPTIONS.popularity


def recent_shifts(model: ImplicitModel, entries: Entries, times: Array) -> Floats:
    """Return d of every row of a model, 0 where the times of its entries are all equal."""
    rows, cols, later, at_entry = latest_entries(entries, times)
    starts = np.searchsorted(rows, np.arange(entries.shape[0] + 1))
    counts = np.diff(starts)
    r, c = model.precisions
    base = model.base
    U, V = base.means
    found = np.zeros((entries.shape[0], U.shape[1]))
    touched = np.flatnonzero(counts)
    for start in range(0, len(touched), ROWS_AT_ONCE):
        some = touched[start : start + ROWS_AT_ONCE]
        slots = np.arange(counts[some].max())
        inside = slots < counts[some][:, None]
        at = np.where(inside, starts[some][:, None] + slots, 0)
        b = cols[at]
        precision = (
            r[some][:, None]
            * c[b]
            * OPTIONS.weight
            * OPTIONS.recent_weight
            / base.noise
        )
        decay = np.exp(-later[at] / OPTIONS.recent_span)
        root = np.sqrt(inside * precision * decay)[..., None]
        W = root * V[b]
        S = unpack(base.covariances[0][some]).astype(float)
        SW = S @ W.transpose(0, 2, 1)
        fitted = W @ U[some][..., None].astype(float)
        error = root * entries.values[at_entry[at]][..., None] - fitted
        G = np.eye(len(slots)) + W @ SW
        found[some] = (SW @ np.linalg.solve(G, error))[..., 0]
    return found


def latest_entries(entries: Entries, times: Array) -> tuple[Ints, Ints, Ints, Ints]:
    """Return rows and columns of each row's latest entries, how many came later, and which."""
    order = np.lexsort((-np.asarray(times, dtype=float), entries.rows))
    rows = np.asarray(entries.rows)[order]
    t = np.asarray(times)[order]
    first = np.searchsorted(rows, rows)
    differs = (t[1:] != t[:-1]) | (rows[1:] != rows[:-1])
    new = np.append(True, differs)
    place = np.arange(len(rows))
    later = np.maximum.accumulate(np.where(new, place, 0)) - first
    differ = t[np.searchsorted(rows, rows, side="right") - 1] != t[first]
    latest = differ & (place - first < OPTIONS.recent_entries)
    order = order[latest]
    return rows[latest], np.asarray(entries.cols)[order], later[latest], order
