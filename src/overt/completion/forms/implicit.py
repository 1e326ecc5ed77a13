"""Every pair counts: what was not observed is a zero, which turns completion into ranking.

    y_ab ~ N(u_a . v_b, sigma^2 / (w_ab r_a c_b)),  w = 1 and y = 0 where unobserved,
    w = WEIGHT and y = strength where observed,  u_a ~ N(m, P^-1) and the same for v_b
    S_a^-1 = r_a / sigma^2 (sum_all c_b T_b + (WEIGHT - 1) sum_observed c_b T_b) + P,
    u_a = S_a (r_a WEIGHT / sigma^2 sum_observed c_b y_ab v_b + P m),  T_b = v_b v_b' + S_b
    m = mean of rows,  P^-1 = (sum_a ((u_a - m)(u_a - m)' + S_a) + nu eps 1) / (N + nu)

The first sum is one matrix for all rows, so that a sweep costs what the observed entries cost.
The objective is, per observed entry,

    1/2 sum over pairs of (log 2 pi sigma^2 + E error / sigma^2) + KL of both sides
    + nu/2 (eps tr P - log det P) of both sides,  nu = number of factors, eps = LEAST_VARIANCE.

The precisions r_a and c_b fall like the square root of how much a row or column has chosen, since
its errors are larger. They are taken from the data once, so that every step is an exact block
minimization and the objective never rises.

Strengths run from .2 to 1: the smallest value has the strength .2, the largest 1. Counts, of which
some are many times larger than most, enter by their logarithms.

Popularity is mixed in as far as entries that are hidden first ask for it:

    score_ab = (1 - q) x_ab + q p_b sum_b max(x_ab, 0),  x = U V',  p = shares of entries.

Use counts alone unless the model beats them by two standard errors; use the model alone unless a
mixture beats it by two.

Where times are known, what a row chose last says more of what it chooses next:

    u_a + d_a = u_a + S_a V' (D^-1 + V S_a V')^-1 (y - V u_a),  V and y of its latest entries

is the mean of a row that observes these again with precisions
D = diag(r_a c_b WEIGHT RECENT exp(-age_b / SPAN) / sigma^2), age_b = how many came later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from overt._check import InputError
from overt._types import Array, Floats, Ints
from overt.completion.engines import Engine
from overt.completion.forms.features import NOTHING
from overt.completion.forms.noise import Plain
from overt.completion.forms.prior import Prior, Sums
from overt.completion.forms.problem import CompletionProblem
from overt.completion.forms.spread import FULL_BYTES, FullSpread, full_bytes
from overt.completion.kernels import Held, Learned
from overt.completion.kernels.full import Everyone, learn_pairs, pack, unpack, weighted_sum
from overt.completion.memory import slices
from overt.entries import Entries

LEAST = 0.2
"""Strength of the smallest value: observed, though not liked, is more than not observed."""

SKEWED = 4
"""Values that reach this many times their median are counts, of which logarithms are taken."""

HIGH = 0.995
"""Quantile of counts that has the strength 1; the few above it do not set the scale."""


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
        log = bool(y.min() >= 0 and np.quantile(y, HIGH) >= SKEWED * np.median(y) > 0)
        if log:
            y = np.log1p(y)
        low = float(y.min())
        high = float(np.quantile(y, HIGH) if log else y.max())
        if low == high:
            return cls(low - 1, 1.0, log)
        scale = (high - low) / (1 - LEAST)
        return cls(low - LEAST * scale, scale, log)

    def __call__(self, values: Any) -> Floats:
        """Return the strengths of values."""
        y = np.asarray(values, dtype=float)
        if self.log:
            y = np.log1p(np.maximum(y, 0))
        return np.clip((y - self.zero) / self.scale, LEAST, 1)

    def enter(self, entries: Entries) -> Entries:
        """Return observed pairs with their strengths; zeros are not observed."""
        entries = observed_pairs(entries)
        return replace(entries, values=self(entries.values))

    def arrays(self) -> dict[str, Array]:
        """Return the arrays to store."""
        return {"strengths": np.array([self.zero, self.scale, self.log], dtype=float)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Strengths:
        """Rebuild from stored arrays."""
        zero, scale, log = arrays["strengths"].tolist()
        return cls(zero, scale, bool(log))


UNIT = Strengths(0.0, 1.0, log=False)
"""Strengths of values that are strengths already."""


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


MIXED = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Values of q that are tried."""

HIDDEN = 0.2
MOST = 2000
"""Share of the entries that is hidden, and how many at most."""

ERRORS = 2.0
"""Standard errors that make a difference clear."""


def blended(x: Floats, p: Floats, q: float) -> Floats:
    """Return scores of rows (count, columns), or of one."""
    total = np.maximum(x, 0).sum(axis=-1, keepdims=True)
    return (1 - q) * x + q * np.where(total > 0, total, 1) * p


def hide(count: int, seed: int) -> Ints:
    """Return the positions of the hidden entries among `count`, in order."""
    size = min(MOST, int(HIDDEN * count))
    return np.sort(np.random.default_rng([seed, 2]).choice(count, size, replace=False))


def choose(means: list[Array], entries: Entries, hidden: Ints) -> float:
    """Return q from where the hidden entries rank among all that their rows do not have."""
    counts = np.zeros(entries.shape[1])
    rows = np.unique(np.asarray(entries.rows)[hidden])
    beside = []  # entries of these rows
    for some in slices(len(entries), entries.rows, entries.cols):
        counts += np.bincount(entries.cols[some], minlength=len(counts))
        beside.append(some.start + np.flatnonzero(np.isin(entries.rows[some], rows)))
    counts -= np.bincount(entries.cols[hidden], minlength=len(counts))
    kept = np.setdiff1d(np.concatenate(beside), hidden)
    shares = counts / max(counts.sum(), 1)
    U, V = (w.astype(np.float64) for w in means)
    known, wanted = (_by_row(entries, at, rows) for at in (kept, hidden))
    gains = np.empty((len(rows), len(MIXED)))
    for i, a in enumerate(rows):
        x = V @ U[a]
        for j, q in enumerate(MIXED):
            scores = blended(x, shares, q)
            scores[known[i]] = -np.inf
            ranks = [_rank(scores, score) for score in scores[wanted[i]]]
            gains[i, j] = np.mean(1 / np.log2(2 + np.array(ranks)))
    if len(rows) < 2:
        return MIXED[-1]
    best = int(gains.mean(axis=0).argmax())
    for q in (-1, 0):
        better = gains[:, best] - gains[:, q]
        if better.mean() <= ERRORS * better.std(ddof=1) / np.sqrt(len(rows)):
            return MIXED[q]
    return MIXED[best]


def _rank(scores: Floats, score: float) -> float:
    """Return how many are above one of them, of equal ones half."""
    return (np.count_nonzero(scores > score) + np.count_nonzero(scores >= score) - 1) / 2


def _by_row(entries: Entries, at: Ints, rows: Ints) -> list[Ints]:
    """Return the columns that some of the entries have in each of some rows."""
    keys = np.asarray(entries.rows)[at]
    cols = np.asarray(entries.cols)[at]
    order = np.argsort(keys, kind="stable")
    ends = np.searchsorted(keys[order], [rows, rows + 1])
    return [cols[order[start:end]] for start, end in ends.T]


WEIGHT = 2.0
"""Precision of an observed pair beside that of a zero."""

FLOOR = 0.3
"""Part of the mean sum of squares that is added to every row's, so that few entries say enough."""


@dataclass(frozen=True, eq=False)
class Precisions:
    """r(x) = ((FLOOR t + x) / t)^-1/2 / level for a row with sum of squares x; t is the mean x."""

    typical: float
    level: float

    @classmethod
    def of(cls, sums: Floats) -> Precisions:
        """Return r with mean 1 over the rows that have entries."""
        typical = float(sums[sums > 0].mean())
        return cls(typical, float(cls(typical, 1.0)(sums[sums > 0]).mean()))

    def __call__(self, sums: Floats) -> Floats:
        """Return r for sums of squares."""
        return np.asarray((FLOOR + sums / self.typical) ** -0.5 / self.level, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class AllPairs:
    """Precisions r and c that a model needs to solve for a row, and c of every known column.

    Beside it what ranking does with popularity, and with what came last; see `popular`, `recent`.
    """

    rows: Precisions
    cols: Precisions
    partners: Floats  # 0 for columns without entries
    shares: Floats  # of the entries
    popular: float
    recent: Floats  # what rows chose last changes of their means, where that is known; see `recent`
    strengths: Strengths = UNIT  # of values

    def blended(self, x: Floats) -> Floats:
        """Return scores, from predictions for all known columns; what nobody chose comes last."""
        scores = blended(x, self.shares, self.popular)
        chosen = self.shares > 0
        if chosen.all() or not chosen.any():
            return scores
        lowest = scores[..., chosen].min(axis=-1, keepdims=True)
        return np.where(chosen, scores, np.minimum(scores, lowest - 1e-9 * abs(lowest)))

    def arrays(self) -> dict[str, Array]:
        """Return the arrays to store."""
        rules = [[rule.typical, rule.level] for rule in (self.rows, self.cols)]
        return {
            "pairs_rules": np.array(rules),
            "pairs_partners": self.partners,
            "pairs_shares": self.shares,
            "pairs_popular": np.array([self.popular]),
            "pairs_recent": self.recent,
        } | self.strengths.arrays()

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> AllPairs | None:
        """Rebuild from stored arrays, if there are any."""
        if "pairs_rules" not in arrays:
            return None
        rows, cols = (Precisions(*rule) for rule in arrays["pairs_rules"].tolist())
        popular = float(arrays["pairs_popular"][0])
        recent = arrays.get("pairs_recent", np.zeros((0, 0)))
        given = arrays["pairs_partners"], arrays["pairs_shares"], popular, recent
        return cls(rows, cols, *given, Strengths.from_arrays(arrays))


TOL = 5e-3
"""Fall of the objective in one sweep, in nats per observed entry, below which it has settled."""

SMALL = 1 << 20
"""Pairs up to which singular vectors come from the dense matrix."""

LEAST_NOISE = 1e-9
"""Residual variance that is never gone below."""


@dataclass(eq=False)
class NegativeForm(Plain):
    """All pairs of rows and columns that have entries; `step` is one sweep over both sides.

    `history` is the objective after each sweep; it says when to stop.
    """

    problem: CompletionProblem
    means: list[Array]
    spread: FullSpread
    priors: list[Prior]
    noise: float
    rules: tuple[Precisions, Precisions]
    history: list[float] = field(default_factory=list)
    popular: float = 0.0
    recent: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    kind: ClassVar[str] = "negative"

    def __post_init__(self) -> None:
        self.precisions = [
            rule(sums) for rule, sums in zip(self.rules, _sums(self.problem), strict=True)
        ]
        # Of all entries, also while only some rows are solved again.
        self.active = [self.problem.grouped(side).counts > 0 for side in (0, 1)]

    @classmethod
    def start(cls, problem: CompletionProblem, seed: int) -> NegativeForm:
        """Return the form before the first sweep, near the leading singular vectors."""
        k = problem.columns.n_factors
        pairs = float(np.prod(problem.shape))
        size = full_bytes(problem)
        if size > FULL_BYTES:
            raise InputError(
                f"{sum(problem.shape):,} rows and columns with {k} factors take {size >> 20} MiB "
                f"of covariances, {FULL_BYTES >> 20} are the limit; take fewer factors"
            )
        mean = float(problem.by_row.values.sum(dtype=float)) / pairs
        rules = [Precisions.of(sums) for sums in _sums(problem)]
        priors = [Prior(np.zeros(k), np.eye(k)), Prior(np.zeros(k), 100 * np.eye(k))]
        means = [np.zeros((count, k), problem.dtype) for count in problem.shape]
        form = cls(problem, means, FullSpread.start(problem), priors, mean, (rules[0], rules[1]))
        V = form._leading(seed)
        rng = np.random.default_rng([seed, 0])
        means[1][:] = rng.normal(0, 0.1 * mean**0.25, means[1].shape)
        means[1][:, : V.shape[1]] = V
        form.spread.add_means(1, means[1])
        return form

    def over(self, problem: CompletionProblem, popular: float) -> NegativeForm:
        """Return the form of a problem with more entries, continued from here."""
        rows, cols = (Precisions.of(sums) for sums in _sums(problem))
        given = self.means, self.spread, self.priors, self.noise, (rows, cols)
        return NegativeForm(problem, *given, popular=popular)

    def _leading(self, seed: int) -> Floats:
        """Return V of the U V' nearest to the strengths, errors weighted by r_a c_b."""
        from scipy import sparse

        (m, n), side, (r, c) = self.problem.shape, self.problem.by_row, self.precisions
        values = side.values * np.sqrt(r[side.keys] * c[side.others])
        X = sparse.csr_array((values, (side.keys, side.others)), (m, n))
        if m * n <= SMALL:
            _, s, R = np.linalg.svd(X.toarray(), full_matrices=False)
        else:
            from sklearn.utils.extmath import randomized_svd

            _, s, R = randomized_svd(X, self.means[0].shape[1], n_iter=2, random_state=seed)
        s = s[: self.means[0].shape[1]]
        R = R[: self.means[0].shape[1]]
        return np.asarray((R.T * np.sqrt(s)) * (n / m) ** 0.25 / np.sqrt(c)[:, None])

    def step(self, engine: Engine) -> float:
        """Sweep both sides, the priors and the noise; return the objective per entry."""
        cost = 0.0
        error = 0.0
        for side in (0, 1):
            moment, error, logdets = self.update(side, engine)
            rows = self.problem.grouped(side).rows
            n = self.problem.columns.n_factors
            N = len(rows)
            first = self.means[side][rows].sum(axis=0, dtype=float)
            sums = Sums(N, first, moment, np.zeros((n, n)), np.zeros((0, n)), logdets)
            prior = self.priors[side] = self.priors[side].learn(sums, NOTHING)
            cost += prior.cost(sums, NOTHING) + prior.pseudo_cost
        pairs = float(np.prod([len(self.problem.grouped(side).rows) for side in (0, 1)]))
        self.noise = max(error / pairs, LEAST_NOISE)
        misfit = pairs * (np.log(2 * np.pi * self.noise) + error / pairs / self.noise) / 2
        self.history.append(float((misfit + cost) / self.problem.n_ratings))
        return self.history[-1]

    def settled(self, tol: float) -> bool:
        """Return whether the last sweep changed the objective by at most `tol` nats per entry."""
        return len(self.history) > 1 and abs(self.history[-2] - self.history[-1]) <= tol

    def update(self, side: int, engine: Engine) -> tuple[Floats, float, float]:
        """Update one side; return its summed second moment, expected error and log dets."""
        problem = self.problem
        tables = self.spread.tables
        other = 1 - side
        group = problem.grouped(side)
        prior = self.priors[side]
        c = np.where(self.active[other], self.precisions[other], 0)
        shift = prior.precision @ prior.mean
        everyone = weighted_sum(c, tables[other])
        shared = Everyone(everyone, WEIGHT, prior.precision, shift, self.noise)
        held = Held(self.means[other], tables[other], c.astype(problem.dtype))
        out = Learned(self.means[side], tables[side], np.zeros((problem.shape[side], 2)))
        moments = np.zeros((group.blocked.n_chunks, tables[side].shape[1]))
        own = (self.precisions[side],)
        engine.run(learn_pairs, group.blocked, (held, shared), own, out, moments)
        error, logdets = out.stats.sum(axis=0)
        return unpack(moments.sum(axis=0)), float(error), float(logdets)

    def finish(self) -> None:
        """Leave covariances in the tables; a row without entries gets its prior.

        A column without entries gets what a column that nobody chose is: zeros everywhere.
        """
        for side, (w, table) in enumerate(zip(self.means, self.spread.tables, strict=True)):
            empty = self.problem.grouped(side).counts == 0
            prior = self.priors[side]
            mean = prior.mean
            S = prior.covariance
            if side == 1:
                U = self.means[0].astype(np.float64)
                r = self.precisions[0]
                everyone = (U.T * r) @ U + unpack(weighted_sum(r, self.spread.tables[0]))
                scale = self.precisions[1].max() / self.noise
                S = np.linalg.inv(prior.precision + scale * everyone)
                mean = S @ prior.precision @ prior.mean
            self.spread.add_means(side, w, -1)
            w[empty] = mean
            table[empty] = pack(S)

    @property
    def pairs(self) -> AllPairs:
        """The part of the form that a model needs to solve for a row."""
        partners = np.where(self.active[1], self.precisions[1], 0.0)
        counts = self.problem.by_col.counts
        return AllPairs(*self.rules, partners, counts / counts.sum(), self.popular, self.recent)

    def arrays(self) -> dict[str, Array]:
        """Return tables, priors, and noise."""
        kept = self.spread.arrays() | {"noise": np.array([self.noise])}
        for side, prior in enumerate(self.priors):
            kept |= prior.arrays(side)
        return kept

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take back tables, priors, and noise."""
        self.spread = self.spread.from_arrays(arrays)
        self.noise = float(arrays["noise"][0])
        self.priors[:] = [Prior.from_arrays(arrays, side) for side in (0, 1)]


def _sums(problem: CompletionProblem) -> list[Floats]:
    """Return the sum of squared values of each row, and of each column."""
    sides = (problem.by_row, problem.by_col)
    squares = [s.values.astype(float) ** 2 for s in sides]
    pairs = zip(sides, squares, strict=True)
    return [np.bincount(s.keys, y, len(s.counts)).astype(float) for s, y in pairs]


RECENT = 2.0
SPAN = 10.0
LATEST = 30
"""Extra weight of the latest entry, entries after which it falls to a third, entries used."""

BLOCK = 256
"""Rows that are solved for at once."""


def recent_shifts(form: NegativeForm, entries: Entries, times: Array) -> Floats:
    """Return d of every row of a finished form, 0 where the times of its entries are all equal."""
    rows, cols, age = latest_entries(entries, times)
    starts = np.searchsorted(rows, np.arange(entries.shape[0] + 1))
    counts = np.diff(starts)
    values = entries.values
    found = np.zeros((entries.shape[0], form.means[0].shape[1]))
    (r, c), (U, V) = form.precisions, form.means
    for some in np.array_split(touched := np.flatnonzero(counts), -(-len(touched) // BLOCK) or 1):
        slots = np.arange(counts[some].max(initial=0))
        inside = slots < counts[some][:, None]
        at = np.where(inside, starts[some][:, None] + slots, 0)
        b = cols[at]
        scale = r[some][:, None] * c[b] * WEIGHT * RECENT / form.noise
        root = np.sqrt(inside * scale * np.exp(-age[0][at] / SPAN))[..., None]
        W = root * V[b]
        S = unpack(form.spread.tables[0][some]).astype(float)
        SW = S @ W.transpose(0, 2, 1)
        error = root[..., 0] * values[age[1][at]] - (W @ U[some][..., None].astype(float))[..., 0]
        G = np.eye(len(slots)) + W @ SW
        found[some] = (SW @ np.linalg.solve(G, error[..., None]))[..., 0]
    return found


def latest_entries(entries: Entries, times: Array) -> tuple[Ints, Ints, tuple[Ints, Ints]]:
    """Return rows and columns of each row's latest entries, and (how many came later, which)."""
    order = np.lexsort((-np.asarray(times, dtype=float), entries.rows))
    rows = np.asarray(entries.rows)[order]
    t = np.asarray(times)[order]
    first = np.searchsorted(rows, rows)
    new = np.append(True, (t[1:] != t[:-1]) | (rows[1:] != rows[:-1]))
    place = np.arange(len(rows))
    later = np.maximum.accumulate(np.where(new, place, 0)) - first
    told = t[np.searchsorted(rows, rows, side="right") - 1] != t[first]
    kept = told & (place - first < LATEST)
    order = order[kept]
    return rows[kept], np.asarray(entries.cols)[order], (later[kept], order)
