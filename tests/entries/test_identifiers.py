"""Whose number is it? Index or identifier, by one rule, and never silently wrong."""

import datetime
import warnings

import numpy as np
import pandas
import polars
import pytest

import overt
from overt.completion import DropoutCompletion
from overt.decay import DeepLinearCompletion


def ratings(seed=0, users=(5, 40), items=(100, 130)):
    """Return users, items and ratings, a low-rank matrix with every row different."""
    rng = np.random.default_rng(seed)
    a, b = (grid.ravel() for grid in np.meshgrid(np.arange(*users), np.arange(*items)))
    seen = rng.random(len(a)) < 0.5
    a, b = a[seen], b[seen]
    return a, b, 3 + np.sin(a) + np.cos(b) * (a % 3) + 0.1 * rng.standard_normal(len(a))


def quick(**settings):
    return DropoutCompletion(3, max_sweeps=5, average=0, **settings)


@pytest.fixture(scope="module")
def by_id():
    """A model that was fitted with integer identifiers, and its entries."""
    entries = overt.Entries.from_ids(*ratings())
    return quick().fit(entries), entries


FORMS = {
    "array": np.asarray,
    "list": lambda x: np.asarray(x).tolist(),
    "computed": lambda x: x + 0,
    "concatenated": lambda x: np.concatenate([x[:3], x[3:]]),
    "float": lambda x: np.asarray(x, dtype=float),
    "text": lambda x: [str(i) for i in np.asarray(x)],
    "pandas": pandas.Series,
    "polars": polars.Series,
}


@pytest.mark.parametrize("form", FORMS)
def test_an_identifier_means_the_same_in_every_container(by_id, form):
    model, entries = by_id
    rows, cols = entries.row_ids[entries.rows], entries.col_ids[entries.cols]
    assert np.array_equal(
        model.predict(FORMS[form](rows), FORMS[form](cols)), model.predict(entries)
    )


@pytest.mark.parametrize("form", FORMS)
def test_an_index_means_the_same_in_every_container(by_id, form):
    model, entries = by_id
    given = FORMS[form](entries.rows), FORMS[form](entries.cols)
    assert np.array_equal(model.predict(*given, keys="index"), model.predict(entries))


def test_indices_taken_for_identifiers_are_reported(by_id):
    """Some index is no identifier, unless indices and identifiers are the same."""
    model, entries = by_id
    with pytest.warns(UserWarning, match='if you gave indices, pass keys="index"'):
        model.predict(entries.rows, entries.cols)


def test_rows_and_cols_of_entries_are_plain_arrays():
    assert type(overt.Entries.from_ids(*ratings()).rows) is np.ndarray


def test_keys_are_one_rule_for_all_questions(by_id):
    model, entries = by_id
    row, col = int(entries.row_ids[4]), int(entries.col_ids[7])
    by_name, by_place = model.recommend(row, 3), model.recommend(4, 3, keys="index")
    assert np.array_equal(entries.col_ids[by_place.cols], by_name.cols)
    assert (
        model.complete([row], [col])[0, 0]
        == model.complete([4], [7], keys="index")[0, 0]
    )
    explained = model.explain(row, col), model.explain(4, 7, keys="index")
    assert explained[0].prediction == explained[1].prediction
    new = model.fold_in({col: 4.0}), model.fold_in({7: 4.0}, keys="index")
    assert np.array_equal(new[0].row.mean, new[1].row.mean)
    lists = model.recommend_all(n=2), model.recommend_all(n=2, keys="index")
    assert np.array_equal(entries.row_ids[lists[1].rows], lists[0].rows)


def test_a_model_without_identifiers_is_asked_by_index():
    entries = overt.Entries.from_ids(*ratings())
    model = quick().fit_triplets(entries.rows, entries.cols, entries.values)
    expected = model.predict(entries.rows, entries.cols)
    assert np.array_equal(
        model.predict(entries.rows, entries.cols, keys="index"), expected
    )
    with pytest.raises(overt.InputError, match='keys="id" needs a model'):
        model.predict([0], [0], keys="id")
    with pytest.raises(overt.InputError, match="keys must be one of"):
        model.predict([0], [0], keys="name")
    with pytest.raises(overt.InputError, match="whole numbers"):
        model.predict(["alice"], ["x"])


@pytest.mark.parametrize("library", [pandas, polars])
def test_a_pivoted_frame_answers_for_the_right_person(library):
    users, items, values = ratings()
    long = library.DataFrame({"user": users, "item": items, "rating": values})
    if library is pandas:
        wide = long.pivot(index="user", columns="item", values="rating")
    else:
        wide = long.pivot(on="item", index="user", values="rating")
    model = quick().fit(wide)
    assert sorted(model.row_ids_) == sorted(set(users.tolist()))
    assert sorted(map(int, model.col_ids_)) == sorted(set(items.tolist()))
    close = model.complete()
    for user, item in ((5, 100), (17, 110), (39, 129)):
        at = (
            model.row_ids_.tolist().index(user),
            list(map(int, model.col_ids_)).index(item),
        )
        assert model.predict([user], [item])[0] == close[at]
    seen = set(items[users == 17].tolist())
    assert not seen & set(map(int, model.recommend(17, 10).cols))


def test_a_pivoted_frame_with_names_is_asked_by_names():
    users, items, values = ratings()
    frame = pandas.DataFrame({"user": users, "item": items, "rating": values})
    wide = frame.pivot(index="user", columns="item", values="rating")
    named = wide.rename(index=lambda u: f"u{u}")
    model, plain = quick().fit(named), quick().fit(wide)
    assert model.predict(["u17"], [110])[0] == plain.predict([17], [110])[0]
    assert plain.col_ids_.dtype.kind == "i"
    with pytest.warns(UserWarning, match="1 of 1 rows were never seen"):
        plain.predict([999], [110])


def test_two_lines_of_a_table_for_one_row_are_refused():
    table = pandas.DataFrame(np.ones((3, 4)), index=["a", "b", "a"])
    with pytest.raises(overt.InputError, match=r"'a' 2 times.*reset_index"):
        overt.Entries.from_frame(table)


DAY = pandas.Timestamp("2020-01-20")
SPELLINGS = {
    "Timestamp": DAY,
    "datetime64": np.datetime64("2020-01-20"),
    "datetime64 in ns": np.datetime64("2020-01-20", "ns"),
    "date": datetime.date(2020, 1, 20),
    "datetime": datetime.datetime(2020, 1, 20),
    "text": "2020-01-20",
    "text with midnight": "2020-01-20 00:00:00",
    "ISO with midnight": "2020-01-20T00:00:00",
}


@pytest.mark.parametrize("source", ["pandas", "polars", "text", "text with midnight"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_date_is_found_in_every_spelling(source, spelling):
    a, b, values = ratings(users=(0, 8), items=(0, 20))
    days = pandas.date_range("2020-01-01", periods=20)[b]
    days = {
        "pandas": days,
        "polars": days.date.tolist(),
        "text": days.strftime("%Y-%m-%d"),
        "text with midnight": days.strftime("%Y-%m-%d 00:00:00"),
    }[source]
    library = polars if source == "polars" else pandas
    frame = library.DataFrame(
        {"sensor": [f"s{x}" for x in a], "day": days, "value": values}
    )
    model = quick().fit(
        overt.Entries.from_frame(frame, row="sensor", col="day", value="value")
    )
    column = model.predict([3], [19], keys="index")
    assert model.predict(["s3"], [SPELLINGS[spelling]]) == column


def test_dates_with_a_time_stay_different():
    ids = ["2020-01-20 08:00:00", "2020-01-20 20:00:00", "2020-01-20"]
    entries = overt.Entries.from_ids(["a"] * 3, ids, [1.0, 2.0, 3.0])
    model = DropoutCompletion(1, max_sweeps=1).fit(entries)
    known = model.predict(
        ["a"] * 3, ["2020-01-20T08:00", "2020-01-20 09:00", ids[2]], return_known=True
    )[1]
    assert known.tolist() == [True, False, True]


def test_unknown_identifiers_are_named(by_id):
    model, _ = by_id
    with pytest.warns(UserWarning, match=r"2 of 3 rows were never seen \(999, 888\)"):
        model.predict([5, 999, 888], [100, 100, 100])
    with pytest.warns(UserWarning, match=r"1 of 1 columns were never seen \(7\)"):
        model.predict([5], [7])
    with pytest.warns(UserWarning, match=r"1 of 2 candidates were never seen \(7\)"):
        assert model.recommend(
            5, exclude_seen=False, candidates={100, 7}
        ).cols.tolist() == [100]
    with pytest.warns(
        UserWarning, match=r"1 of 1 columns to exclude were never seen \(typo\)"
    ):
        model.recommend(5, exclude=["typo"])
    with pytest.warns(UserWarning, match=r"1 of 2 columns were never seen \(7\)"):
        model.fold_in({100: 4.0, 7: 3.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predicted, std, known = model.predict(
            [5, 999], [100, 7], return_std=True, return_known=True
        )
        assert known.tolist() == [True, False]
        assert len(predicted) == len(std) == 2


def test_negative_indices_are_refused(by_id):
    """-1 was an unknown row without a word, where NumPy would take the last one."""
    model, _ = by_id
    with pytest.raises(overt.InputError, match="rows must be indices from 0, got -1"):
        model.predict([-1], [0], keys="index")
    with pytest.raises(overt.InputError, match="cols must be indices from 0"):
        model.complete([0], [-2], keys="index")


def test_a_column_never_seen_is_not_the_last_one(by_id):
    model, entries = by_id
    last = int(entries.col_ids[-1])
    with pytest.warns(UserWarning, match="never seen"):
        found = model.complete([5, 9], [7, last])
    with pytest.warns(UserWarning, match="never seen"):
        expected = model.predict([5, 5, 9, 9], [7, last, 7, last])
    np.testing.assert_allclose(found.ravel(), expected)


def test_deep_completion_follows_the_rule():
    entries = overt.Entries.from_ids(
        ["b", "a", "b", "a"], [7, 7, 3, 3], [1.0, 2.0, 3.0, 6.0]
    )
    model = DeepLinearCompletion(width=1, seed=0).fit(entries)
    assert model.predict(["b"], ["7"])[0] == model.complete()[1, 1]
    with pytest.raises(overt.InputError, match=r"1 of 2 rows were never seen \(c\)"):
        model.predict(["a", "c"], [7, 7])


def test_identifiers_are_stored_as_they_are(tmp_path):
    """One long identifier does not make all others as wide, also after loading."""
    names = [f"user {i}" for i in range(20)] + ["x" * 500]
    model = quick().fit(overt.Entries.from_ids(names, names, np.arange(21.0)))
    model.save(tmp_path)
    loaded = DropoutCompletion.load(tmp_path)
    assert loaded.row_ids_.dtype == object
    assert loaded.row_ids_.tolist() == model.row_ids_.tolist()
    big = np.array([2**53, 2**53 + 1], dtype=np.uint64)
    pair = DropoutCompletion(1, max_sweeps=1).fit(
        overt.Entries.from_ids(big, [0, 1], [1.0, 2.0])
    )
    assert pair.predict(big, [0, 1], return_known=True)[1].all()


def test_predict_reads_a_frame_by_the_names_of_its_columns():
    """A frame of item and user was read as user and item."""
    users, items = np.divmod(np.arange(120), 10)
    values = (users * 3 + items * 5) % 7 + 1.0
    frame = pandas.DataFrame({"user": users, "item": items, "rating": values})
    model = DropoutCompletion(2, max_sweeps=2, average=0).fit(frame)
    asked = pandas.DataFrame({"item": [2, 5, 7], "user": [11, 3, 1]})
    expected = model.predict([11, 3, 1], [2, 5, 7])
    assert np.array_equal(model.predict(asked), expected)
    assert np.array_equal(model.predict(polars.from_pandas(asked)), expected)
    of_entries = model.predict(frame)
    assert np.array_equal(of_entries, model.predict(users, items))
    error = np.sqrt(np.mean((of_entries - values) ** 2))
    assert model.score(frame) == pytest.approx(-error)
