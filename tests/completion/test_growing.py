"""Fits that grow: sums that are kept, entries that are replaced, and where it all ends."""

import numpy as np
import pytest

from overt import Entries, datasets
from overt.completion import DropoutCompletion
from overt.completion.growing import Growing
from overt.completion.ledger import Ledger


@pytest.fixture(scope="module")
def ratings():
    return datasets.generate_ratings(150, 80, 4_000, rank=2, noise=0.4, scale=None, seed=0)[0]


def test_a_ledger_has_what_was_added_and_replaced(monkeypatch):
    rng = np.random.default_rng(0)
    table: dict[tuple[int, int], float] = {}
    ledger = None
    for part in range(6):
        a, b, y = rng.integers(0, 5 + part, 7), rng.integers(0, 4 + part, 7), rng.normal(size=7)
        a, b = np.unique(np.stack([a, b]), axis=1)
        new = Entries(a, b, y[: len(a)])
        table |= {(i, j): v for i, j, v in zip(a, b, new.values, strict=True)}
        if ledger is None:
            ledger = Ledger(new)
        else:
            monkeypatch.setattr("overt.completion.ledger.SHARE", part % 2)
            ledger.add(new)
        assert len(ledger) == len(table)
        for side, count in enumerate(ledger.shape):
            rows = rng.permutation(count)[:3]
            keys, others, values = ledger.of(side, rows)
            pairs = zip(keys, others, strict=True) if side == 0 else zip(others, keys, strict=True)
            expected = {pair: v for pair, v in table.items() if pair[side] in rows}
            assert dict(zip(pairs, values, strict=True)) == expected
    e = ledger.entries
    assert dict(zip(zip(e.rows, e.cols, strict=True), e.values, strict=True)) == table


@pytest.mark.parametrize("signals", [False, True])
def test_kept_sums_are_those_of_all_rows(ratings, signals):
    """After new entries the sums equal those computed from the model as it is."""
    model = DropoutCompletion(3, signals=signals, clip=False, average=0).fit(ratings)
    model.partial_fit([[3, 4], [3, 90], [160, 5], [7, 7]], [1.0, 2.0, 0.5, -1.0])
    kept = model._growing
    fresh = Growing(kept.model, Ledger(model.entries_), 0.0, 1)
    fresh._count((np.zeros(0, int), np.zeros(0, int)), 1)
    for side in (0, 1):
        for mine, theirs in zip(kept._sums[side][:5], fresh._sums[side][:5], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)
        K, ones = fresh._features[side].K, fresh._features[side].ones
        np.testing.assert_allclose(kept._features[side].K, K, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(kept._features[side].ones, ones, rtol=1e-6, atol=1e-6)
    e = model.entries_
    expected = kept._misfit(e.rows, e.cols, e.values)
    assert kept._error == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("batch", [37, 900])
def test_from_any_start_it_ends_where_a_full_fit_does(batch):
    truth = datasets.generate_ratings(150, 80, 6_000, rank=2, noise=0.4, scale=None, seed=0)[0]
    train, test = truth.split(0.2, seed=1)
    start = 10 if batch > 100 else 4_200
    model = DropoutCompletion(3, clip=False, average=0).fit(train.take(np.arange(start)))
    for at in range(start, len(train), batch):
        model.partial_fit(train.take(np.arange(at, min(at + batch, len(train)))))
    full = DropoutCompletion(3, clip=False, average=0).fit(train)
    assert model.score(test) > 1.01 * full.score(test)
    found, std = model.predict(test, return_std=True)
    assert np.std((test.values - found) / std) == pytest.approx(1, abs=0.1)
    assert model.drift_ < 0.2


def test_what_is_touched_alone_is_solved_and_drift_says_what_is_missed(ratings):
    model = DropoutCompletion(3, clip=False, average=0).fit(ratings)
    assert model.drift_ == 0
    before = model.U_.copy()
    model.partial_fit([[5, 6]], [3.0])
    moved = np.flatnonzero(np.any(before != model.U_, axis=1))
    assert moved.tolist() == [5]
    assert 0 < model.drift_ < 0.2
    assert len(model.objective_) == 0


def test_features_go_with_a_refit():
    rng = np.random.default_rng(0)
    X, V = rng.normal(size=(200, 3)), rng.normal(size=(3, 40))
    Y = X @ V + 0.3 * rng.normal(size=(200, 40))
    seen = rng.random(Y.shape) < 0.2
    seen[150:] = False
    rows, cols = np.nonzero(seen)
    few = rng.permutation(len(rows))[:400]
    given = Entries(rows[few], cols[few], Y[rows[few], cols[few]], (200, 40))
    model = DropoutCompletion(4, clip=False).fit(given, row_features=X)
    model.partial_fit(np.stack([rows, cols], axis=1), Y[rows, cols])
    assert len(model.objective_)
    assert np.sqrt(np.mean((model.complete()[150:] - Y[150:]) ** 2)) < 0.6
    found = model.fold_in({}, features=X[170]).predict(np.arange(40))
    np.testing.assert_allclose(found, model.complete([170])[0], atol=1e-6)
