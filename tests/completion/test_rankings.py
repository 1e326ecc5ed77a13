"""Rankings: every pair counts, those not observed as zeros."""

import csv

import numpy as np
import pytest
import scipy.sparse

import overt
from overt.completion import DropoutCompletion
from overt.completion.engines import make_engine
from overt.completion.forms import implicit
from overt.completion.forms.implicit import RECENT, SPAN, WEIGHT, NegativeForm, Strengths
from overt.completion.forms.prior import LEAST_VARIANCE
from overt.completion.forms.problem import CompletionProblem
from overt.completion.kernels.full import unpack
from overt.completion.recommend import top


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
    return DropoutCompletion(4, missing="negative", tol=1e-9).fit(scipy.sparse.csr_array(table))


def start(table, k=3):
    rows, cols = np.nonzero(table)
    entries = overt.Entries(rows, cols, table[rows, cols] / 5, table.shape)
    problem = CompletionProblem.build(entries, k, biases=False, standard=False)
    return NegativeForm.start(problem, 0), entries


def dense_terms(form, table):
    """Weights r c w and targets of all pairs, as the model has them."""
    weights = np.where(table > 0, WEIGHT, 1.0) * np.outer(*form.precisions)
    return weights, table / 5


def test_a_half_sweep_is_the_dense_formula(table):
    form, _ = start(table)
    weights, Y = dense_terms(form, table)
    V, T = form.means[1].copy(), unpack(form.spread.tables[1].copy())
    P, m, noise = form.priors[0].precision, form.priors[0].mean, form.noise
    with make_engine("local", 1) as engine:
        _, error, logdets = form.update(0, engine)
    expected_error, expected_logdet = 0.0, 0.0
    for a in range(len(table)):
        A = np.einsum("b,bij->ij", weights[a], T)
        S = np.linalg.inv(A / noise + P)
        u = S @ ((weights[a] * Y[a]) @ V / noise + P @ m)
        np.testing.assert_allclose(form.means[0][a], u, atol=1e-9)
        second = np.outer(u, u) + S
        np.testing.assert_allclose(unpack(form.spread.tables[0][a]), second, atol=1e-9)
        expected_logdet += np.linalg.slogdet(S)[1]
        expected_error += np.sum(second * A) - 2 * (weights[a] * Y[a]) @ (V @ u)
        expected_error += weights[a] @ Y[a] ** 2
    assert error == pytest.approx(expected_error)
    assert logdets == pytest.approx(expected_logdet)


def test_the_objective_is_the_bound_and_never_rises(table):
    form, entries = start(table)
    weights, Y = dense_terms(form, table)
    with make_engine("local", 1) as engine:
        for _ in range(25):
            form.step(engine)
    assert np.diff(form.history).max() <= 1e-12
    (U, V), priors = form.means, form.priors
    SU, SV = (
        unpack(t) - np.einsum("ai,aj->aij", w, w)
        for t, w in zip(form.spread.tables, form.means, strict=True)
    )
    spread = np.einsum("ai,bij,aj->ab", U, SV, U) + np.einsum("bi,aij,bj->ab", V, SU, V)
    error = np.sum(weights * ((Y - U @ V.T) ** 2 + spread + np.einsum("aij,bij->ab", SU, SV)))
    bound = table.size * np.log(2 * np.pi * form.noise) / 2 + error / form.noise / 2
    for W, S, prior in zip(form.means, (SU, SV), priors, strict=True):
        n = W.shape[1]
        about = np.einsum("ai,aj->aij", W - prior.mean, W - prior.mean) + S
        logdet = np.linalg.slogdet(prior.precision)[1]
        bound += (np.sum(about * prior.precision) - len(W) * (logdet + n)) / 2
        bound -= np.linalg.slogdet(S)[1].sum() / 2
        bound += n * (LEAST_VARIANCE * np.trace(prior.precision) - logdet) / 2
    assert form.history[-1] * len(entries) == pytest.approx(bound, rel=1e-6)


def test_results_do_not_depend_on_threads(table):
    X = scipy.sparse.csr_array(table)
    one, two = (
        DropoutCompletion(3, missing="negative", max_sweeps=4, n_jobs=n).fit(X) for n in (1, 2)
    )
    assert np.array_equal(one.complete(), two.complete())


def hits(table, recommend, n=5, share=0.2):
    """Share of hidden choices among the first n."""
    rng = np.random.default_rng(1)
    hidden = (table > 0) & (rng.random(table.shape) < share)
    hidden[:, hidden.sum(axis=0) == (table > 0).sum(axis=0)] = False
    shown = np.where(hidden, 0, table)
    lists = recommend(scipy.sparse.csr_array(shown), shown)
    return np.mean([hidden[a, cols[:n]].mean() for a, cols in enumerate(lists) if hidden[a].any()])


def by_popularity(X, shown):
    counts = (shown > 0).sum(axis=0)
    return [np.argsort(np.where(row > 0, 1, -counts), kind="stable") for row in shown]


@pytest.mark.filterwarnings("ignore:all .* values are 1")
@pytest.mark.parametrize(
    "kwargs", [{"missing": "negative"}, {}, {"drop_prob": 0.3}], ids=["negative", "both", "fixed"]
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
    shown = (rng.random((rows, 60)) < rng.permutation(0.8 / np.sqrt(1 + np.arange(60)))) * 1.0
    model = DropoutCompletion(missing="negative").fit(scipy.sparse.csr_array(shown))
    assert model.model_.pairs.popular == 1
    model.save(tmp_path)
    again, counts = DropoutCompletion.load(tmp_path), shown.sum(axis=0)
    for row, best in enumerate(by_popularity(None, shown)[:5]):
        listed = again.recommend(row, 8).cols
        assert counts[listed].tolist() == counts[best[:8]].tolist()
    model.partial_fit(overt.Entries([0], [60], [1.0]))
    assert model.model_.pairs.popular == 1
    assert model.model_.pairs.shares.sum() == pytest.approx(1)


def test_memory_limit_does_not_change_a_ranking():
    """Counts were not mixed in, in silence, where entries were kept on disk."""
    rng = np.random.default_rng(0)
    shown = (rng.random((120, 60)) < rng.permutation(0.8 / np.sqrt(1 + np.arange(60)))) * 1.0
    X = scipy.sparse.csr_array(shown)
    plain, limited = (
        DropoutCompletion(missing="negative", memory_limit=limit).fit(X) for limit in (None, "1GB")
    )
    for row in range(20):
        assert plain.recommend(row).cols.tolist() == limited.recommend(row).cols.tolist()


def test_a_query_never_fits_a_second_model(monkeypatch):
    rng = np.random.default_rng(0)
    at = rng.choice(90 * 40, 600, replace=False)
    entries = overt.Entries(at // 40, at % 40, rng.integers(1, 6, 600), (90, 40))
    monkeypatch.setattr("overt.completion.estimator.RANKING", 500)
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
    shown = (rng.random((120, 60)) < rng.permutation(0.8 / np.sqrt(1 + np.arange(60)))) * 1.0
    shown *= rng.geometric(0.3, shown.shape)
    model = DropoutCompletion(4, max_sweeps=20).fit(scipy.sparse.csr_array(shown))
    counts, best = (shown > 0).sum(axis=0), by_popularity(None, shown)[0][:8]
    found = model.recommend(0, 8)
    assert counts[found.cols].tolist() == counts[best].tolist()
    assert found.by == model.recommend(0, 8, by="chosen").by
    assert found.by != model.recommend(0, 8, by="both").by


def test_popularity_counts_where_hidden_entries_say_so():
    entries = overt.Entries(*np.nonzero(np.ones((40, 30))), np.ones(1200), (40, 30))
    hidden = (entries.cols == 7) | (entries.cols == 3) & (entries.rows == 5)
    low, high = np.ones((30, 1)), np.ones((30, 1))
    low[7], high[7] = 0.5, 2.0
    # All else is known: where a hidden entry stands is told by the other hidden one of its row.
    at = np.flatnonzero(hidden)
    assert implicit.choose([np.ones((40, 1)), low], entries, at) == implicit.MIXED[-1]
    few = entries.take(np.flatnonzero((entries.cols % 2 == 0) | hidden))
    at = np.flatnonzero(few.cols == 7)
    assert implicit.choose([np.ones((40, 1)), high], few, at) == 0
    x = np.array([[2.0, -1, 2]])
    assert implicit.blended(x, np.array([0.5, 0.25, 0.25]), 0.5).tolist() == [[2.0, 0.0, 1.5]]


def test_strengths_of_stars_clicks_and_counts():
    stars = Strengths.of(np.array([1.0, 2, 3, 4, 5, 5]))
    np.testing.assert_allclose(stars([1, 3, 5]), [0.2, 0.6, 1.0])
    assert Strengths.of(np.ones(4))([1.0]) == 1
    assert Strengths.of(np.array([0.0, 7, 7]))([7.0]) == 1
    counts = Strengths.of(np.array([1.0] * 90 + [100.0] * 10))
    assert counts.log
    assert counts([1, 1e9]).tolist() == [pytest.approx(0.2), 1]


def test_zeros_that_are_stored_are_absent(table):
    dense = DropoutCompletion(2, missing="negative", max_sweeps=3).fit(table)
    sparse = DropoutCompletion(2, missing="negative", max_sweeps=3).fit(
        scipy.sparse.csr_array(table)
    )
    assert np.array_equal(dense.complete(), sparse.complete())


def test_questions_agree(chosen, table, tmp_path):
    row = chosen.fold_in(scipy.sparse.csr_array(table[[7]]))
    np.testing.assert_allclose(row.predict(range(60)), chosen.complete([7])[0], atol=1e-3)
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
        with pytest.raises(overt.InputError, match='return_std needs missing="unknown"'):
            asked.predict([0, 1], **({"cols": [2, 3]} if asked is chosen else {}), return_std=True)


def test_an_explanation_is_the_derivative(chosen, table):
    """Without one of its entries, the row's equations change by what it explains, at fixed r."""
    told = chosen.explain(7, 20)
    model, cols = chosen.model_, np.flatnonzero(table[7])
    W, values, weights, second = model._sums(cols, table[7, cols])
    P = model.priors[0].precision + second / model.noise
    u = np.linalg.solve(P, W.T @ (weights * values) / model.noise)
    assert told.contributions.sum() == pytest.approx(float(u @ model.means[1][20]))


def test_new_choices_are_taken_in(chosen, table, tmp_path):
    chosen.save(tmp_path)
    model = DropoutCompletion.load(tmp_path)
    before = model.predict([0], [np.flatnonzero(table[0] == 0)[-1]])
    new = scipy.sparse.csr_array(([5.0], ([0], [np.flatnonzero(table[0] == 0)[-1]])), (130, 61))
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
    with pytest.raises(overt.InputError, match="no entries"):
        model.similar_items(0)
    assert 0 not in model.similar_items(5, 100).cols


def test_rare_columns_do_not_look_alike():
    """Two columns with one entry each are not known to be similar."""
    table = choices(3)
    table[:, :2] = 0
    table[5, 0], table[9, 1] = 5, 5
    X = scipy.sparse.csr_array(table)
    for kwargs in ({}, {"missing": "negative"}):
        found = DropoutCompletion(4, **kwargs).fit(X).similar_items(0, 100)
        assert np.abs(found.values).max() < 0.9


def test_lists_for_everyone(chosen, table, tmp_path):
    lists = chosen.recommend_all(n=3)
    assert lists.rows.tolist() == np.repeat(np.arange(120), 3).tolist()
    for row in (0, 50):
        expected = chosen.recommend(row, 3)
        assert lists.cols[lists.rows == row].tolist() == expected.cols.tolist()
        np.testing.assert_allclose(lists.scores[lists.rows == row], expected.scores)
    chosen.recommend_all(tmp_path / "lists.csv", n=3)
    with (tmp_path / "lists.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["column"]) for line in lines] == lists.cols.tolist()
    assert [int(line["rank"]) for line in lines] == lists.ranks.tolist()
    some = chosen.recommend_all(n=2, rows=[4, 2], exclude=np.array([[4, lists.cols[12]]]))
    assert some.rows.tolist() == [4, 4, 2, 2]
    assert lists.cols[12] not in some.cols[:2]
    with pytest.raises(overt.InputError, match="csv"):
        chosen.recommend_all(tmp_path / "lists.txt")
    with pytest.raises(overt.InputError, match="fitted"):
        chosen.recommend_all(rows=[4, 2000])


def test_lists_for_everyone_as_parquet(chosen, tmp_path, monkeypatch):
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.setattr("overt.completion.recommend.BLOCK", 60 * 50)
    path = tmp_path / "it's.parquet"
    chosen.recommend_all(path, n=3)
    found = duckdb.read_parquet(str(path)).fetchnumpy()
    assert found["column"].tolist() == chosen.recommend_all(n=3).cols.tolist()


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


@pytest.mark.parametrize("kwargs", [{"drop_prob": 0.5}, {"average": 3}, {"missing": "maybe"}])
def test_settings_that_do_not_fit_are_refused(table, kwargs):
    with pytest.raises(overt.InputError, match="missing"):
        DropoutCompletion(2, **{"missing": "negative", **kwargs}).fit(table)


def test_too_many_rows_for_covariances_are_told(table, monkeypatch):
    monkeypatch.setattr("overt.completion.forms.implicit.FULL_BYTES", 1000)
    with pytest.raises(overt.InputError, match="fewer factors"):
        DropoutCompletion(4, missing="negative").fit(table)


def test_an_interrupt_before_popularity_is_asked_keeps_what_was_learned(monkeypatch):
    rng, steps, step = np.random.default_rng(0), [], NegativeForm.step
    clicks = overt.Entries(rng.integers(30, size=300), rng.integers(20, size=300), np.ones(300))

    def interrupted(form, engine):
        steps.append(form)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return step(form, engine)

    monkeypatch.setattr(NegativeForm, "step", interrupted)
    model = DropoutCompletion(2, missing="negative").fit(clicks)
    assert (model.status_, model.n_sweeps_) == ("interrupted", 2)
    assert len(model.recommend(0, 3).cols) == 3


def test_ties_are_listed_in_order():
    scores = np.array([1.0, 3, 2, 2, 2, 2, 2, -np.inf])
    assert top(scores, 4).tolist() == [1, 2, 3, 4]
    assert top(scores, 9).tolist() == [1, 2, 3, 4, 5, 6, 0]


def test_zeros_of_a_dense_table_are_recommended(table):
    """What is 0 in a table of choices was not chosen, and was not seen either."""
    X = (np.arange(40)[:, None] % 4 == np.arange(12) % 4).astype(float)
    X[::5] *= np.arange(12) > 5
    model = DropoutCompletion(3, missing="negative").fit(X)
    assert len(model.entries_) == X.sum()
    assert set(model.recommend(0, 1).cols % 4) == {0}
    assert model.score(scipy.sparse.csr_array(X)) > 0.9  # its own rows, by what was fitted
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


def test_what_came_last_is_observed_again(table, tmp_path):
    """Against the normal equations; ages count what is later; updates and files keep it."""
    rows, cols = np.nonzero(table)
    times = np.random.default_rng(0).integers(0, 9, len(rows))
    times[rows == 3] = 5  # says nothing of order
    entries = overt.Entries(rows, cols, table[rows, cols], table.shape, times=times)
    model = DropoutCompletion(3, missing="negative").fit(entries)
    pairs, V, U = model.model_.pairs, model.V_, model.U_
    assert not pairs.recent[3].any()
    for a in (0, 7):
        mine = np.flatnonzero(rows == a)
        age = np.array([np.count_nonzero(times[mine] > times[e]) for e in mine])
        mine, age = (x[np.argsort(age, kind="stable")][:30] for x in (mine, age))
        values = pairs.strengths(table[a, cols[mine]])
        squares = np.sum(pairs.strengths(table[a][table[a] > 0]) ** 2)
        D = pairs.rows(squares) * pairs.partners[cols[mine]] * WEIGHT / model.noise_variance_
        D = D * RECENT * np.exp(-age / SPAN)
        P = np.linalg.inv(unpack(model.model_.spread.tables[0][a]))
        W = V[cols[mine]]
        expected = np.linalg.solve(P + (W.T * D) @ W, P @ U[a] + W.T @ (D * values))
        np.testing.assert_allclose(U[a] + pairs.recent[a], expected, rtol=1e-5)
    model.save(tmp_path)
    loaded = DropoutCompletion.load(tmp_path)
    assert np.array_equal(loaded.entries_.times, times)
    assert np.array_equal(loaded.recommend(0).cols, model.recommend(0).cols)
    later = overt.Entries(
        [0], [int(np.flatnonzero(table[0] == 0)[0])], [5.0], table.shape, times=[99]
    )
    before = loaded.model_.pairs.recent.copy()
    loaded.partial_fit(later)
    assert loaded.entries_.times[-1] == 99
    assert np.abs(loaded.model_.pairs.recent[0] - before[0]).max() > 0
    with pytest.warns(UserWarning, match="have no times"):
        model.partial_fit(np.array([[0, later.cols[0]]]), [5.0])
    assert not model.model_.pairs.recent[0].any()
    assert model.model_.pairs.recent[7].any()


def test_lists_follow_what_came_last():
    """Rows that chose among the even columns first and among the odd ones later."""
    rng = np.random.default_rng(0)
    groups = np.where(np.arange(80) < 40, 0, 1)[:, None] == np.arange(30) % 2
    X = (rng.random((80, 30)) < 0.7) & groups
    X[40:60] = rng.random((20, 30)) < 0.35
    rows, cols = np.nonzero(X)
    entries = overt.Entries(rows, cols, np.ones(len(rows)), X.shape, times=cols % 2)
    model = DropoutCompletion(3, missing="negative").fit(entries)
    still = DropoutCompletion(3, missing="negative").fit_triplets(rows, cols, np.ones(len(rows)))
    share = [
        np.mean([np.mean(m.recommend(a, 5).cols % 2) for a in range(40, 60)])
        for m in (model, still)
    ]
    assert share[0] > share[1] + 0.05
