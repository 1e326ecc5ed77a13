"""Rankings: every pair counts, those not observed as zeros."""

import numpy as np
import pytest
import scipy.sparse

import overt
from overt.completion import DropoutCompletion


def choices(seed=0, m=120, n=60, groups=4):
    """Rows of a group choose mostly among its columns, popular ones more often."""
    rng = np.random.default_rng(seed)
    own = rng.integers(groups, size=m)[:, None] == np.arange(n) % groups
    taken = rng.random((m, n)) < (0.03 + 0.6 * own) * np.linspace(1, 0.5, n)
    taken[np.arange(n) % m, np.arange(n)] = True
    return np.where(taken, rng.integers(1, 6, (m, n)), 0).astype(float)


@pytest.fixture(scope="module")
def table():
    return choices()


@pytest.fixture(scope="module")
def chosen(table):
    return DropoutCompletion(4, missing="negative", tol=1e-9).fit(
        scipy.sparse.csr_array(table)
    )


def test_the_objective_never_rises(table):
    X = scipy.sparse.csr_array(table)
    model = DropoutCompletion(3, missing="negative", tol=0.0, max_sweeps=25).fit(X)
    assert len(model.objective_) == 25
    assert np.diff(model.objective_).max() <= 1e-12


def test_results_do_not_depend_on_threads(table):
    X = scipy.sparse.csr_array(table)
    one, two = (
        DropoutCompletion(3, missing="negative", max_sweeps=4, n_jobs=n).fit(X)
        for n in (1, 2)
    )
    assert np.array_equal(one.complete(), two.complete())


def hits(table, recommend, n=5, share=0.2):
    """Share of hidden choices among the first n."""
    rng = np.random.default_rng(1)
    hidden = (table > 0) & (rng.random(table.shape) < share)
    hidden[:, hidden.sum(axis=0) == (table > 0).sum(axis=0)] = False
    shown = np.where(hidden, 0, table)
    lists = recommend(scipy.sparse.csr_array(shown), shown)
    return np.mean(
        [hidden[a, cols[:n]].mean() for a, cols in enumerate(lists) if hidden[a].any()]
    )


def by_popularity(X, shown):
    counts = (shown > 0).sum(axis=0)
    return [np.argsort(np.where(row > 0, 1, -counts), kind="stable") for row in shown]


@pytest.mark.filterwarnings("ignore:all .* values are 1")
@pytest.mark.parametrize(
    "kwargs",
    [{"missing": "negative"}, {}, {"drop_prob": 0.3}],
    ids=["negative", "both", "fixed"],
)
@pytest.mark.parametrize("kind", ["ratings", "clicks", "counts"])
def test_ranks_above_popularity(table, kwargs, kind):
    if kind == "clicks":
        table = (table > 0).astype(float)
    if kind == "counts":
        table = np.where(table > 0, np.floor(np.exp(table)), 0)

    def recommend(X, shown):
        model = DropoutCompletion(4, max_sweeps=20, **kwargs).fit(X)
        lists = model.recommend_all(n=5)
        return [lists.cols[lists.rows == row] for row in range(X.shape[0])]

    assert hits(table, recommend) > hits(table, by_popularity) + 0.05


@pytest.mark.parametrize("rows", [120, 5])
def test_mere_popularity_is_ranked_by_counts(rows, tmp_path):
    rng = np.random.default_rng(0)
    shown = (
        rng.random((rows, 60)) < rng.permutation(0.8 / np.sqrt(1 + np.arange(60)))
    ) * 1.0
    model = DropoutCompletion(missing="negative").fit(scipy.sparse.csr_array(shown))
    model.save(tmp_path)
    again, counts = DropoutCompletion.load(tmp_path), shown.sum(axis=0)
    for row, best in enumerate(by_popularity(None, shown)[:5]):
        listed = again.recommend(row, 8).cols
        assert counts[listed].tolist() == counts[best[:8]].tolist()
    again.partial_fit(overt.Entries([0], [60], [1.0]))
    counts = np.append(counts, 1)
    listed = again.recommend(1, 8).cols
    assert np.all(np.diff(counts[listed]) <= 0)


def test_memory_limit_does_not_change_a_ranking():
    """Counts were not mixed in, in silence, where entries were kept on disk."""
    rng = np.random.default_rng(0)
    shown = (
        rng.random((120, 60)) < rng.permutation(0.8 / np.sqrt(1 + np.arange(60)))
    ) * 1.0
    X = scipy.sparse.csr_array(shown)
    plain, limited = (
        DropoutCompletion(missing="negative", memory_limit=limit).fit(X)
        for limit in (None, "1GB")
    )
    for row in range(20):
        assert (
            plain.recommend(row).cols.tolist() == limited.recommend(row).cols.tolist()
        )


def test_a_query_never_fits_a_second_model(monkeypatch):
    rng = np.random.default_rng(0)
    at = rng.choice(90 * 40, 600, replace=False)
    entries = overt.Entries(at // 40, at % 40, rng.integers(1, 6, 600), (90, 40))
    monkeypatch.setattr("overt.completion.estimator.MAX_RANKED_ENTRIES", 500)
    model = DropoutCompletion(3, average=0).fit(entries)
    for ask in (model, model.fold_in({1: 5.0})):
        with pytest.raises(overt.InputError, match=r"call prepare_ranking\(\) once"):
            ask.recommend(*([3] if ask is model else []))
    assert model.recommend(3, by="value").by == "predicted value"
    small = DropoutCompletion(3, average=0).fit(entries.take(np.arange(400)))
    small.partial_fit(entries.take(np.arange(400, 420)))
    assert small.recommend(3).by == model.prepare_ranking().recommend(3).by


def test_a_model_of_values_is_not_below_counts_either():
    rng = np.random.default_rng(0)
    shown = (
        rng.random((500, 60)) < rng.permutation(0.8 / np.sqrt(1 + np.arange(60)))
    ) * 1.0
    shown *= rng.geometric(0.3, shown.shape)
    model = DropoutCompletion(4, max_sweeps=20).fit(scipy.sparse.csr_array(shown))
    counts, best = (shown > 0).sum(axis=0), by_popularity(None, shown)[0][:8]
    found = model.recommend(0, 8)
    assert counts[found.cols].tolist() == counts[best].tolist()
    assert found.by == model.recommend(0, 8, by="chosen").by
    assert found.by != model.recommend(0, 8, by="both").by


def test_zeros_that_are_stored_are_absent(table):
    dense = DropoutCompletion(2, missing="negative", max_sweeps=3).fit(table)
    sparse = DropoutCompletion(2, missing="negative", max_sweeps=3).fit(
        scipy.sparse.csr_array(table)
    )
    assert np.array_equal(dense.complete(), sparse.complete())


def test_questions_agree(chosen, table, tmp_path):
    row = chosen.fold_in(scipy.sparse.csr_array(table[[7]]))
    np.testing.assert_allclose(
        row.predict(range(60)), chosen.complete([7])[0], atol=1e-3
    )
    assert row.recommend(5).cols.tolist() == chosen.recommend(7, 5).cols.tolist()
    told = chosen.explain(7, 20)
    assert told.baseline + told.contributions.sum() == pytest.approx(told.prediction)
    assert not set(chosen.recommend(7, 5, exclude=[1, 2]).cols) & {1, 2}
    assert set(chosen.recommend(7, 5, False, candidates=[3, 4]).cols) == {3, 4}
    chosen.save(tmp_path / "model")
    again = DropoutCompletion.load(tmp_path / "model")
    assert np.array_equal(again.complete(), chosen.complete())
    assert again.recommend(7) == chosen.recommend(7)
    assert "how likely it is chosen" in repr(chosen.recommend(7))
    values = chosen.predict([0, 1], [2, 3])
    assert ((values >= 0) & (values <= 1)).all()
    for asked in (chosen, row):
        with pytest.raises(
            overt.InputError, match='return_std needs missing="unknown"'
        ):
            asked.predict(
                [0, 1], **({"cols": [2, 3]} if asked is chosen else {}), return_std=True
            )


def test_new_choices_are_taken_in(chosen, table, tmp_path):
    chosen.save(tmp_path)
    model = DropoutCompletion.load(tmp_path)
    before = model.predict([0], [np.flatnonzero(table[0] == 0)[-1]])
    new = scipy.sparse.csr_array(
        ([5.0], ([0], [np.flatnonzero(table[0] == 0)[-1]])), (130, 61)
    )
    model.partial_fit(new)
    assert model.predict([0], [new.indices[0]]) > before + 0.03
    assert model.complete().shape == (130, 61)
    assert len(model.recommend(125, 3).cols) == 3


def test_new_rows_that_chose_nothing_are_taken_in(chosen, tmp_path):
    chosen.save(tmp_path)
    model = DropoutCompletion.load(tmp_path)
    model.partial_fit(overt.Entries([120], [60], [0.0]))
    assert model.complete().shape == (121, 61)
    assert np.isfinite(model.complete()).all()


def test_columns_nobody_chose_come_last(table):
    X = scipy.sparse.csr_array(np.hstack([np.zeros((120, 1)), table]))
    model = DropoutCompletion(3, missing="negative", max_sweeps=8).fit(X)
    for row in (3, 50, 90):
        assert model.recommend(row, 61).cols[-1] == 0


def test_lists_for_everyone(chosen):
    lists = chosen.recommend_all(n=3)
    assert lists.rows.tolist() == np.repeat(np.arange(120), 3).tolist()
    for row in (0, 50):
        expected = chosen.recommend(row, 3)
        assert lists.cols[lists.rows == row].tolist() == expected.cols.tolist()
        np.testing.assert_allclose(lists.scores[lists.rows == row], expected.scores)
    some = chosen.recommend_all(n=2, rows=[4, 2], exclude=lists.cols[12:13])
    assert some.rows.tolist() == [4, 4, 2, 2]
    assert lists.cols[12] not in some.cols[:2]
    with pytest.raises(overt.InputError, match="fitted"):
        chosen.recommend_all(rows=[4, 2000])


def test_what_is_ranked_by_is_said_and_can_be_chosen(table, tmp_path):
    model = DropoutCompletion(3, max_sweeps=5).fit(scipy.sparse.csr_array(table))
    before = dict(vars(model))
    best = model.recommend(3, 5)
    assert vars(model) == before  # a query fits nothing
    assert "chosen and how it is expected to be rated" in best.by
    np.testing.assert_allclose(best.values, model.predict([3] * 5, best.cols))
    assert np.all(np.diff(best.scores) <= 0)
    value = model.recommend(3, 5, by="value")
    assert value.by == "predicted value"
    assert np.all(np.diff(value.values) <= 0)
    model.save(tmp_path)
    assert DropoutCompletion.load(tmp_path).recommend(3, 5) == best
    with pytest.raises(overt.InputError, match="by must be one of"):
        model.recommend(3, by="magic")
    with pytest.raises(overt.InputError, match="none of the candidates"):
        model.recommend(3, candidates=[999])


@pytest.mark.parametrize(
    "kwargs", [{"drop_prob": 0.5}, {"average": 3}, {"missing": "maybe"}]
)
def test_settings_that_do_not_fit_are_refused(table, kwargs):
    with pytest.raises(overt.InputError, match="missing"):
        DropoutCompletion(2, **{"missing": "negative", **kwargs}).fit(table)


def test_too_many_rows_for_covariances_are_told(table, monkeypatch):
    monkeypatch.setattr("overt.completion.learned.MAX_FULL_BYTES", 1000)
    with pytest.raises(overt.InputError, match="fewer factors"):
        DropoutCompletion(4, missing="negative").fit(table)


def test_zeros_of_a_dense_table_are_recommended(table):
    """What is 0 in a table of choices was not chosen, and was not seen either."""
    X = (np.arange(40)[:, None] % 4 == np.arange(12) % 4).astype(float)
    X[::5] *= np.arange(12) > 5
    model = DropoutCompletion(3, missing="negative").fit(X)
    assert len(model.entries_) == X.sum()
    assert set(model.recommend(0, 1).cols % 4) == {0}
    assert (
        model.score(scipy.sparse.csr_array(X)) > 0.9
    )  # its own rows, by what was fitted
    with pytest.raises(overt.InputError, match="the 40 rows that were fitted, got 7"):
        model.score(X[:7])
    model.partial_fit(np.array([[1, 1]]), [0.0])  # not chosen any more
    assert 1 in model.recommend(1, 12).cols


def test_nothing_known_of_a_new_row_is_told(chosen):
    with pytest.warns(UserWarning, match=r"never seen \(1000000\); they are left out"):
        chosen.fold_in({10**6: 1.0})


def test_an_explanation_is_a_table(chosen, table):
    told = repr(chosen.explain(0, 1))
    assert told.startswith("prediction")
    assert "adds" in told


def test_lists_follow_what_came_last():
    """Rows that chose among the even columns first and among the odd ones later."""
    rng = np.random.default_rng(0)
    groups = np.where(np.arange(80) < 40, 0, 1)[:, None] == np.arange(30) % 2
    X = (rng.random((80, 30)) < 0.7) & groups
    X[40:60] = rng.random((20, 30)) < 0.35
    rows, cols = np.nonzero(X)
    entries = overt.Entries(rows, cols, np.ones(len(rows)), X.shape, times=cols % 2)
    model = DropoutCompletion(3, missing="negative").fit(entries)
    still = DropoutCompletion(3, missing="negative").fit_triplets(
        rows, cols, np.ones(len(rows))
    )
    share = [
        np.mean([np.mean(m.recommend(a, 5).cols % 2) for a in range(40, 60)])
        for m in (model, still)
    ]
    assert share[0] > share[1] + 0.05


def test_ties_are_listed_in_order():
    X = scipy.sparse.csr_array(np.array([[1.0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1]]))
    listed = DropoutCompletion(1, missing="negative").fit(X).recommend(0, 3).cols
    assert listed.tolist() == [1, 2, 3]


def test_strengths_do_not_depend_on_the_unit(table):
    """Stars from 1 to 5 or from 20 to 100 rank alike, and one value alone is a click."""
    X = scipy.sparse.csr_array(table)
    one = DropoutCompletion(3, missing="negative").fit(X)
    other = DropoutCompletion(3, missing="negative").fit(20 * X)
    np.testing.assert_allclose(one.complete(), other.complete(), atol=1e-9)
    clicks = [
        DropoutCompletion(3, missing="negative").fit((X > 0) * value).complete()
        for value in (1.0, 7.0)
    ]
    np.testing.assert_allclose(*clicks, atol=1e-9)


def test_times_are_stored_and_updated(table, tmp_path):
    rows, cols = np.nonzero(table)
    times = np.random.default_rng(0).integers(0, 9, len(rows))
    entries = overt.Entries(rows, cols, table[rows, cols], table.shape, times=times)
    model = DropoutCompletion(3, missing="negative").fit(entries)
    model.save(tmp_path)
    loaded = DropoutCompletion.load(tmp_path)
    assert np.array_equal(loaded.entries_.times, times)
    before = model.recommend(0)
    assert loaded.recommend(0) == before
    new = int(np.flatnonzero(table[0] == 0)[0])
    loaded.partial_fit(overt.Entries([0], [new], [5.0], table.shape, times=[99]))
    assert loaded.entries_.times[-1] == 99
    assert loaded.recommend(0) != before
    with pytest.warns(UserWarning, match="have no times"):
        model.partial_fit(np.array([[0, new]]), [5.0])


@pytest.mark.parametrize("sweep", [1, 2])
def test_an_interrupt_leaves_a_model(table, sweep):
    def stop(fit):
        if len(fit.history) == sweep:
            raise KeyboardInterrupt

    rows, cols = np.nonzero(table)
    entries = overt.Entries(rows, cols, table[rows, cols], table.shape)
    model = DropoutCompletion(2, missing="negative", tol=0.0)
    model.fit_entries(entries, on_step=stop)
    assert (model.status_, model.n_sweeps_) == ("interrupted", sweep)
    assert len(model.recommend(0, 3).cols) == 3
