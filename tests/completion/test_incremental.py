"""Fits that grow: what is touched and replaced, when there is a full fit, what Ctrl-C leaves."""

import copy
import re
import sys

import numpy as np
import pytest

from overt import Entries, datasets
from overt.completion import DropoutCompletion


@pytest.fixture(scope="module")
def ratings():
    return datasets.generate_ratings(
        150, 80, 4_000, rank=2, noise=0.4, scale=None, seed=0
    )[0]


SETTINGS = [{"average": 0}, {"missing": "negative"}]


def stars(seed=0, count=400):
    rng = np.random.default_rng(seed)
    at = rng.choice(60 * 30, count, replace=False)
    return Entries(at // 30, at % 30, 1.0 + rng.integers(5, size=count), (60, 30))


def as_table(entries):
    pairs = zip(entries.rows.tolist(), entries.cols.tolist(), strict=True)
    return dict(zip(pairs, entries.values.tolist(), strict=True))


def test_entries_are_added_and_replaced():
    rng = np.random.default_rng(0)
    model, table = DropoutCompletion(2, max_sweeps=2), {}
    for part in range(6):
        a, b = rng.integers(0, 5 + part, 7), rng.integers(0, 4 + part, 7)
        a, b = np.unique(np.stack([a, b]), axis=1)
        new = Entries(a, b, rng.normal(size=len(a)))
        table |= as_table(new)
        model.partial_fit(new)
        assert as_table(model.entries_) == table


@pytest.mark.parametrize("batch", [37, 900])
def test_from_any_start_it_ends_where_a_full_fit_does(batch):
    truth = datasets.generate_ratings(
        150, 80, 6_000, rank=2, noise=0.4, scale=None, seed=0
    )[0]
    train, test = truth.split(0.2, seed=1)
    start = 10 if batch > 100 else 4_200
    model = DropoutCompletion(3, clip=False, average=0).fit(
        train.take(np.arange(start))
    )
    for at in range(start, len(train), batch):
        model.partial_fit(train.take(np.arange(at, min(at + batch, len(train)))))
    full = DropoutCompletion(3, clip=False, average=0).fit(train)
    assert model.score(test) > 1.01 * full.score(test)
    found, std = model.predict(test, return_std=True)
    assert np.std((test.values - found) / std) == pytest.approx(1, abs=0.1)


def test_what_is_touched_alone_is_solved(ratings):
    model = DropoutCompletion(3, clip=False, average=0).fit(ratings)
    before = model.U_.copy()
    model.partial_fit([[5, 6]], [3.0])
    moved = np.flatnonzero(np.any(before != model.U_, axis=1))
    assert moved.tolist() == [5]
    assert len(model.objective_) == 0


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_what_is_touched_is_solved_for_its_entries(settings):
    """Strengths of strengths entered a model with missing="negative"."""
    model = DropoutCompletion(3, **settings).fit(stars())
    new = Entries([5, 5, 5], [6, 7, 8], [5.0, 4.0, 5.0], (60, 30))
    model.partial_fit(new, sweeps=30)
    entries = model.entries_
    mine = entries.rows == 5
    row = model.fold_in((entries.cols[mine], entries.values[mine]))
    cols = np.arange(30)
    # The share of the row in the noise converges slowly.
    expected = model.predict(np.full(30, 5), cols)
    np.testing.assert_allclose(row.predict(cols), expected, atol=0.02)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_arrays_that_users_hold_are_not_changed(settings):
    model = DropoutCompletion(3, **settings).fit(stars())
    held = model.U_, model.V_, model.row_noise_
    before = copy.deepcopy(held)
    model.partial_fit([[5, 6], [7, 8]], [1.0, 1.0])
    for mine, then in zip(held, before, strict=True):
        assert np.array_equal(mine, then)
    assert not np.array_equal(model.U_, before[0])


def interrupted(call, at):
    """Run a call and press Ctrl-C at the `at`-th function of overt.completion; tell whether."""
    seen = 0

    def trace(frame, event, argument):
        nonlocal seen
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        # A compiled kernel ends before Python hears of Ctrl-C.
        if re.search(r"overt/completion/(?!kernels)", file) and not name.startswith(
            "<"
        ):
            seen += 1
            if seen == at:
                raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_an_interrupt_changes_nothing(settings):
    """Ctrl-C left sums without the touched rows, and the entries with the new ones."""
    model = DropoutCompletion(3, n_jobs=1, **settings).fit(stars())
    before, entries = model.complete(), as_table(model.entries_)
    new = Entries([5, 61], [6, 2], [2.0, 5.0])
    moments = 0
    for at in range(1, 2000, 7):
        again = copy.deepcopy(model)
        if not interrupted(lambda again=again: again.partial_fit(new), at):
            break
        moments += 1
        assert np.array_equal(again.complete(), before)
        assert as_table(again.entries_) == entries
        if moments % 5 == 0:  # and it goes on as if nothing had been
            expected = copy.deepcopy(model).partial_fit(new).complete()
            np.testing.assert_allclose(
                again.partial_fit(new).complete(), expected, atol=1e-12
            )
    assert moments > 5


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_quarter_more_entries_is_a_full_fit(settings):
    """With missing="negative" there never was one."""
    model = DropoutCompletion(3, **settings).fit(stars())
    model.partial_fit(stars(1, 20))
    assert model.n_sweeps_ == 0
    model.partial_fit(stars(2, 200))
    assert model.n_sweeps_ > 0
    fresh = DropoutCompletion(3, **settings).fit(model.entries_)
    np.testing.assert_allclose(model.complete(), fresh.complete(), atol=1e-9)


def test_averaged_samples_are_not_given_up():
    """One new entry tripled the error of a matrix with little noise."""
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * np.arange(24) / 24
    cols = np.array([np.ones(24), np.cos(angle), np.sin(angle), np.cos(2 * angle)])
    X = 50 + 8 * np.cumsum(rng.normal(size=(150, 4)), axis=0) / 12 @ cols
    hidden = rng.random(X.shape) < 0.3
    rows, columns = np.nonzero(~hidden)
    entries = Entries(rows, columns, X[rows, columns], X.shape)
    model = DropoutCompletion(8, average=30).fit(entries)
    before = np.sqrt(np.mean((model.complete() - X)[hidden] ** 2))
    a, b = (int(at[0]) for at in np.nonzero(hidden))
    model.partial_fit([[a, b]], [X[a, b]])
    assert model.average_ == 30
    assert np.sqrt(np.mean((model.complete() - X)[hidden] ** 2)) < 1.2 * before


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
