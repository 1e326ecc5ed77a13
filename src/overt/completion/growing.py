"""Fits that grow: new entries change what they touch, and everything that all rows share.

Rows and columns with new entries are solved again; priors, effects of features and the noise are
estimated anew from sums over all rows, which change by what the touched rows change. Once there are
GROWTH times the entries of the last full fit there is another one, so that the cost of all fits is
a few times that of the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from overt._types import Array, Floats, Ints
from overt.completion.engines import Engine
from overt.completion.forms.features import FEATURES, NOTHING, Features, again
from overt.completion.forms.fixed import FixedForm
from overt.completion.forms.learned import LearnedForm
from overt.completion.forms.model import FactorModel
from overt.completion.forms.noise import expected
from overt.completion.forms.prior import Sums
from overt.completion.forms.problem import CompletionProblem, Grouped
from overt.completion.forms.spread import DropoutSpread
from overt.completion.ledger import Ledger
from overt.entries import Entries
from overt.entries.identifiers import UNKNOWN

GROWTH = 1.25
"""Times the entries of the last full fit after which there is another one."""

SAMPLE = 100
"""Held rows that are solved again to tell how far they are from where they would be."""


@dataclass(eq=False)
class Growing:
    """A model, its entries, and sums over its rows from which what they share is estimated.

    `fitted` is the number of entries at the last full fit, `drift` how far held rows are from where
    they would be.
    """

    model: FactorModel
    ledger: Ledger
    ridge: float
    fitted: int
    drift: float = 0.0

    def __post_init__(self) -> None:
        self._sums: list[Sums] = []
        self._features: list[Features] = []
        self._error = self.model.noise * len(self.ledger)

    def take(self, new: Entries, engine: Engine, sweeps: int) -> None:
        """Take in new entries; those that were known are replaced."""
        low, high = self.model.low, self.model.high
        if np.isfinite(low):
            low, high = min(low, float(new.values.min())), max(high, float(new.values.max()))
        self.model = replace(self.model, low=low, high=high, draws=None)
        learned = self.model.spread.learned
        touched = np.unique(new.rows), np.unique(new.cols)
        if learned:
            self._count(touched, -1)
        self.ledger.add(new)
        self.make_room()
        for _ in range(sweeps):
            for side in (0, 1):
                self._solve(side, touched[side], engine)
        if learned:
            self._count(touched, 1)
            self._learn()
        self.drift = self._drift(touched[0], engine)

    def _count(self, touched: tuple[Ints, Ints], sign: int) -> None:
        """Add to the sums what the touched rows and columns have (1), or take it away (-1)."""
        if not self._sums:
            for side in (0, 1):
                sums, known = self._sums_of(side, np.arange(self.model.shape[side]))
                self._sums.append(sums)
                self._features.append(known)
        for side, rows in enumerate(touched):
            rows = rows[rows < self.model.shape[side]]
            sums, known = self._sums_of(side, rows)
            old, all_ = self._sums[side], self._features[side]
            self._sums[side] = old.plus(sums, sign)
            K, ones = all_.K + sign * known.K, all_.ones + sign * known.ones
            self._features[side] = replace(all_, K=K, ones=ones)
        rows, cols, values = self.ledger.of_either(*touched)
        values = self.model.units.inward(np.minimum(cols, self.model.shape[1]), values)
        inside = (rows < self.model.shape[0]) & (cols < self.model.shape[1])
        self._error += sign * self._misfit(rows[inside], cols[inside], values[inside])

    def _sums_of(self, side: int, rows: Ints) -> tuple[Sums, Features]:
        """Return sums over those of some rows that have entries."""
        model, group = self.model, self._group(side, rows)
        known = again(model.directions[side], model.given[side][rows], group)
        active, free = rows[known.active], model.columns.free(side)
        W = model.means[side][active][:, free].astype(np.float64)
        S = model.spread.total(model.means, side, active, np.ones(len(active)))
        A = known.scores[known.active].astype(np.float64)
        sums = (len(active), W.sum(axis=0), W.T @ W, S[np.ix_(free, free)], A.T @ W, 0.0)
        return Sums(*sums), known

    def _group(self, side: int, rows: Ints) -> Grouped:
        """Return the entries of some rows of a side, numbered by their place among them."""
        keys, others, values = self.ledger.of(side, rows)
        shape = (len(rows), self.model.shape[1 - side])
        inside = others < shape[1]
        keys, others, values = keys[inside], others[inside], values[inside]
        values = self.model.units.inward(keys if side else others, values)
        given = np.searchsorted(rows, keys), others, values
        return Grouped.build(*given, shape, self.model.columns.width)

    def _misfit(self, rows: Array, cols: Array, values: Floats) -> float:
        """Sum of alpha_a beta_b E (y_ab - u_a . v_b)^2."""
        model = self.model
        fitted = np.einsum(
            "ei,ei->e", model.means[0][rows].astype(float), model.means[1][cols].astype(float)
        )
        square = (values - model.center - fitted) ** 2
        square += model.spread.product_variance(model.means, rows, cols)
        weights = model.noises[0].weights[rows] * model.noises[1].weights[cols]
        return float(weights @ square)

    def make_room(self) -> None:
        """Make room for new rows and columns, which start as one that was never seen."""
        model, shape = self.model, self.ledger.shape
        picks = [
            np.concatenate([np.arange(m), np.full(n - m, UNKNOWN), [UNKNOWN]])
            for m, n in zip(model.shape, shape, strict=True)
        ]
        if shape == model.shape and all(w.flags.writeable for w in model.means):
            return
        U, V = (w[pick] for w, pick in zip(model.means, picks, strict=True))
        left, right = (n.taken(pick) for n, pick in zip(model.noises, picks, strict=True))
        spread = model.spread
        if not isinstance(spread, DropoutSpread):
            spread = spread.taken(picks, spread.tables[0].dtype)
        self.model = replace(
            model, means=(U, V), noises=(left, right), spread=spread, given=self.features(shape),
            units=model.units.grown(shape[1]),
        )  # fmt: skip

    def features(self, shape: tuple[int, int]) -> tuple[Array, Array]:
        """Return scores of the given features of both sides, new rows at the mean."""
        found = []
        sides = zip(self.model.given, self.model.directions, shape, strict=True)
        for known, directions, count in sides:
            typical = directions.typical.get(FEATURES, np.zeros(0)).astype(known.dtype)
            found.append(np.concatenate([known, np.tile(typical, (count - len(known), 1))]))
        return found[0], found[1]

    def _solve(self, side: int, rows: Ints, engine: Engine, keep: bool = True) -> Array:
        """Solve for some rows of a side, everything else held; return their means."""
        form, model = self._form(side, rows), self.model
        if isinstance(form, FixedForm):
            form.update(side, engine)
        else:
            _, errors = form.update(side, engine)
            form.spread.add_means(side, form.means[side], -1)
            noise = model.noises[side]
            n = form.problem.grouped(side).counts.astype(float)
            if keep and not isinstance(model.spread, DropoutSpread):
                found = expected(noise.nu, n, np.maximum(errors, 0) / model.noise)
                noise.weights[rows], noise.variances[rows] = found
                model.spread.tables[side][rows] = form.spread.tables[side]
        if keep:
            model.means[side][rows] = form.means[side]
        return form.means[side]

    def _form(self, side: int, rows: Ints) -> LearnedForm | FixedForm:
        """Return a form of some rows of a side and the partners of their entries alone."""
        model, group = self.model, self._group(side, rows)
        partners, others = np.unique(group.others, return_inverse=True)
        dtype = model.means[0].dtype
        values = (group.values - model.center).astype(dtype)
        keys, picks = (group.keys, others), (rows, partners)
        if side == 1:
            keys, picks = keys[::-1], picks[::-1]
        shape = (len(picks[0]), len(picks[1]))
        by_row = Grouped.build(*keys, values, shape, group.width)
        by_col = Grouped.build(*keys[::-1], values, shape[::-1], group.width)
        problem = CompletionProblem(by_row, by_col, shape, model.columns, model.center, 1.0)
        means = [w[pick] for w, pick in zip(model.means, picks, strict=True)]
        if isinstance(model.spread, DropoutSpread):
            return FixedForm(problem, means, model.spread, self.ridge, [])
        spread = model.spread.taken(picks, dtype)
        for s, w in enumerate(means):
            spread.add_means(s, w)
        noises = [n.taken(pick) for n, pick in zip(model.noises, picks, strict=True)]
        known = [NOTHING, NOTHING]
        known[side] = again(model.directions[side], model.given[side][rows], group)
        priors, features = list(model.priors), (known[0], known[1])
        return LearnedForm(problem, means, spread, priors, model.noise, noises, features)

    def _learn(self) -> None:
        """Estimate priors, effects and the noise anew from the sums."""
        model = self.model
        pairs = zip(model.priors, self._sums, self._features, strict=True)
        left, right = (prior.learn(sums, known, False) for prior, sums, known in pairs)
        noise = max(self._error / len(self.ledger), 1e-12)
        means, tables = list(model.means), []
        for side, prior in enumerate((left, right)):
            scores = model.directions[side].scores({})
            given = prior.means(scores)[0], prior.covariances(scores)[0]
            means[side][-1], S = model.columns.filled(side, *given)
            tables.append(S)
        if not isinstance(model.spread, DropoutSpread):
            for table, S in zip(model.spread.tables, tables, strict=True):
                table[-1] = model.spread.to_row(S)
        self.model = replace(model, priors=(left, right), noise=noise)

    def _drift(self, touched: Ints, engine: Engine) -> float:
        """Return the root mean square by which held rows' predictions would change if solved."""
        held = np.setdiff1d(np.arange(self.model.shape[0]), touched)
        some = held[:: max(1, len(held) // SAMPLE)][:SAMPLE]
        if not len(some) or not len(self.ledger.of(0, some)[0]):
            return 0.0
        moved = self._solve(0, some, engine, keep=False).astype(float)
        group = self._group(0, some)
        change = (moved - self.model.means[0][some])[group.keys]
        V = self.model.means[1][group.others]
        return float(np.sqrt(np.mean(np.einsum("ei,ei->e", change, V) ** 2)))
