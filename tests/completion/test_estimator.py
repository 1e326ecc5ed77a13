"""DropoutCompletion as users meet it: inputs, answers, storage, errors."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import overt
from overt import datasets
from overt.completion import DropoutCompletion


class Frame:
    """The part of a data frame that fit uses."""

    def __init__(self, **columns):
        self._columns = columns

    @property
    def columns(self):
        return list(self._columns)

    def __getitem__(self, name):
        return self._columns[name]


@pytest.fixture(scope="module")
def ratings():
    return datasets.generate_ratings(80, 50, 1600, seed=0)[0]


@pytest.fixture(scope="module", params=["learn", "average", 0.2, "auto"])
def fitted(request, ratings):
    kwargs = (
        {"average": 4} if request.param == "average" else {"drop_prob": request.param}
    )
    model = DropoutCompletion(4, max_sweeps=15, **kwargs)
    return model.fit_triplets(
        ratings.rows, ratings.cols, ratings.values, shape=ratings.shape
    )


@pytest.fixture(scope="module", params=[0, 4])
def learned(request, ratings):
    """Models that know how uncertain rows are, without and with samples."""
    model = DropoutCompletion(4, max_sweeps=15, average=request.param)
    return model.fit(ratings)


@pytest.mark.parametrize("drop_prob", [0.2, "auto"])
def test_models_of_fixed_dropout_say_what_they_do_not_know(ratings, drop_prob):
    model = DropoutCompletion(3, drop_prob, max_sweeps=3).fit(ratings)
    assert len(model.recommend(3, 5, by="value").cols) == 5
    for ask in (
        lambda: model.predict([0], [0], return_std=True),
        lambda: model.fold_in({3: 5.0}),
        lambda: model.explain(3, 4),
        lambda: model.partial_fit(ratings),
    ):
        with pytest.raises(overt.InputError, match='need drop_prob="learn"'):
            ask()


def test_every_input_gives_the_same_model(ratings):
    given = (ratings.rows, ratings.cols, ratings.values)
    dense = np.full(ratings.shape, np.nan)
    dense[ratings.rows, ratings.cols] = ratings.values
    coo = scipy.sparse.coo_array(
        (ratings.values, (ratings.rows, ratings.cols)), ratings.shape
    )
    frame = Frame(user=ratings.rows, item=ratings.cols, rating=ratings.values)
    model = DropoutCompletion(3, max_sweeps=4)
    expected = clone(model).fit_triplets(*given).predict(ratings.rows, ratings.cols)
    pairs = np.column_stack([ratings.rows, ratings.cols])
    for fit in (
        lambda: clone(model).fit(coo.tocsr()),
        lambda: clone(model).fit(coo.tocsc()),
        lambda: clone(model).fit(dense),
        lambda: clone(model).fit(frame),
        lambda: clone(model).fit(pairs, ratings.values),
    ):
        np.testing.assert_allclose(fit().predict(pairs), expected, atol=1e-6)


def test_stored_zeros_are_ratings():
    X = scipy.sparse.csr_array(
        (np.array([0.0, 4.0, 4.0]), ([0, 0, 1], [0, 1, 1])), shape=(2, 2)
    )
    model = DropoutCompletion(1, 0.0).fit(X)
    assert model.mean_ == pytest.approx(8 / 3)


def test_identifiers_come_back():
    frame = Frame(
        who=np.array(["ann", "bob", "ann", "cid"]),
        what=np.array(["x", "x", "y", "z"]),
        value=np.array([1.0, 2.0, 3.0, 4.0]),
    )
    model = DropoutCompletion(1, max_sweeps=3).fit(frame)
    assert set(model.recommend("bob", 2).cols) == {"y", "z"}
    found, known = model.predict(["ann", "nobody"], ["z", "nothing"], return_known=True)
    assert np.isfinite(found).all()
    assert known.tolist() == [True, False]
    with pytest.raises(overt.InputError, match="'dora' was not among those fitted"):
        model.recommend("dora")


TEXT = Frame(
    who=np.array(["ann", "bob", "ann", "cid"], dtype=object),
    what=np.array(["x", "x", "y", 7], dtype=object),
    value=np.array([1.0, 2.0, 3.0, 4.0]),
)
NUMBERS = Frame(
    who=np.array([5.0, 70.0, 5.0]), what=np.array([9, 9, 3]), value=np.ones(3)
)


def test_identifiers_as_data_frames_hold_them():
    """Columns of objects, strings beside numbers, whole numbers as floats."""
    model = DropoutCompletion(1, max_sweeps=3).fit(TEXT)
    assert model.row_ids_.tolist() == ["ann", "bob", "cid"]
    assert model.col_ids_.tolist() == ["7", "x", "y"]
    given = np.array(["ann", "zoe"], dtype=object)
    expected, known = model.predict(given, ["7", "x"], return_known=True)
    mixed = np.array([7, "x"], dtype=object)
    found, _ = model.predict(["ann", "zoe"], mixed, return_known=True)
    assert np.array_equal(found, expected)
    assert known.tolist() == [True, False]
    pairs = np.column_stack([TEXT["who"], TEXT["what"]])
    assert model.score(TEXT) == model.score(pairs, TEXT["value"])
    model = DropoutCompletion(1, max_sweeps=3).fit(NUMBERS)
    assert model.row_ids_.tolist() == [5, 70]
    unknown, _ = model.predict([1], [9], return_known=True)
    found, known = model.predict(["70", "abc", "070"], [9] * 3, return_known=True)
    assert known.tolist() == [True, False, False]
    assert np.array_equal(found[1:], [*unknown, *unknown])
    assert model.predict(["70"], ["9"]) == model.predict([70], [9])


def test_partial_fit_knows_identifiers():
    model = DropoutCompletion(1, max_sweeps=3).fit(TEXT)
    new = Frame(who=["aaa", "ann"], what=["x", "new"], value=[5.0, 4.0])
    model.partial_fit(new)
    assert model.row_ids_.tolist() == ["ann", "bob", "cid", "aaa"]
    assert model.explain("aaa", "x").cols.tolist() == ["x"]
    assert set(model.explain("ann", "x").cols) == {"x", "y", "new"}
    model = DropoutCompletion(1, max_sweeps=3).fit(NUMBERS)
    model.partial_fit(np.array([[70, 3], [6, 9]]), [5.0, 4.0])
    assert model.row_ids_.tolist() == [5, 70, 6]
    assert model.explain(70, 9).values.tolist() in ([1.0, 5.0], [5.0, 1.0])
    with pytest.raises(overt.InputError, match="by identifiers"):
        model.partial_fit(np.ones((2, 2)))


def test_partial_fit_of_a_frame_means_indices_where_fit_did(ratings):
    model = DropoutCompletion(2, max_sweeps=3).fit(ratings.to_sparse())
    model.partial_fit(Frame(user=[17], item=[33], rating=[5.0]))
    assert model.entries_.rows[-1] == 17
    assert model.entries_.cols[-1] == 33
    with pytest.raises(
        overt.InputError, match="fitted by index must be an array of whole numbers"
    ):
        model.partial_fit(TEXT)


def test_masked_entries_are_missing():
    X = np.ma.array([[1.0, 2.0], [3.0, 99.0]], mask=[[0, 0], [0, 1]])
    assert DropoutCompletion(1, max_sweeps=2).fit(X).mean_ == pytest.approx(2.0)


def test_any_seed_of_the_library(ratings, tmp_path):
    model = DropoutCompletion(2, max_sweeps=2, seed=np.random.default_rng(3))
    first = model.fit(ratings.to_sparse()).U_
    again = DropoutCompletion(2, max_sweeps=2, seed=np.random.default_rng(3))
    assert np.array_equal(again.fit(ratings.to_sparse()).U_, first)
    model.save(tmp_path)
    assert DropoutCompletion.load(tmp_path).seed is None
    DropoutCompletion(2, max_sweeps=2, seed=None).fit(ratings.to_sparse())


def test_predictions_are_factors_plus_biases(fitted, ratings):
    if fitted.average:
        pytest.skip("an average of draws is not one product")
    a, b = ratings.rows[:50], ratings.cols[:50]
    raw = fitted.mean_ + fitted.row_bias_[a] + fitted.col_bias_[b]
    raw = raw + np.sum(fitted.U_[a] * fitted.V_[b], axis=1)
    np.testing.assert_allclose(fitted.predict(a, b), np.clip(raw, 1, 5), atol=1e-9)
    assert fitted.U_.shape == (80, 4)
    assert fitted.V_.shape == (50, 4)


def test_complete_is_predict_everywhere(fitted):
    rows, cols = (x.ravel() for x in np.indices((80, 50)))
    dense = fitted.complete()
    expected = fitted.predict(rows, cols).reshape(80, 50)
    assert type(dense) is np.ndarray
    np.testing.assert_allclose(dense, expected, atol=1e-6)
    np.testing.assert_allclose(fitted.complete([5, 2]), expected[[5, 2]], atol=1e-6)


def test_complete_does_not_depend_on_the_size_of_its_blocks(fitted, monkeypatch):
    whole = fitted.complete()
    monkeypatch.setattr("overt.completion.estimator.PREDICTIONS_AT_ONCE", 50 * 7)
    np.testing.assert_allclose(fitted.complete(), whole, rtol=1e-12)


def test_recommend_is_the_top_of_the_unseen(fitted, ratings):
    seen = set(ratings.cols[ratings.rows == 7])
    row = fitted.complete([7])[0]
    best = fitted.recommend(7, 5, by="value")
    unseen = [c for c in np.argsort(-row, kind="stable") if c not in seen]
    np.testing.assert_allclose(row[best.cols], row[unseen[:5]], atol=1e-6)
    assert not seen & set(best.cols.tolist())
    assert len(fitted.recommend(7, 1000).cols) == 50 - len(seen)
    assert len(fitted.recommend(7, 1000, exclude_seen=False).cols) == 50


def test_recommendations_beyond_the_scale_keep_their_order(ratings):
    """Predictions are clipped to 1..5; which of those above comes first is still known."""
    model = DropoutCompletion(4, 0.0, max_sweeps=15).fit(ratings.to_sparse())
    found = 0
    for row in range(20):
        best = model.recommend(row, 50, exclude_seen=False, by="value")
        raw = (
            model.mean_
            + model.row_bias_[row]
            + model.col_bias_
            + model.V_ @ model.U_[row]
        )
        assert (np.diff(raw[best.cols]) <= 1e-9).all()
        found += int(np.count_nonzero(best.values == 5.0) > 1)
    assert found > 0


def test_one_row_and_no_rows():
    model = DropoutCompletion(2, 0.3, max_sweeps=3).fit([[1.0, 2.0, 4.0]])
    assert model.complete([]).shape == (0, 3)


def test_explanation_adds_up(learned, ratings):
    told = learned.explain(7, 20)
    added = told.contributions.sum()
    assert told.baseline + added == pytest.approx(told.prediction)
    assert told.prediction == learned.predict([7], [20])[0]
    assert sorted(told.cols) == sorted(ratings.cols[ratings.rows == 7])


def test_explanation_is_the_derivative(ratings):
    """Changing one observed value moves the prediction by its contribution per unit of residual."""
    # After three sweeps all rows have the same noise: predictions are linear in the values.
    model = DropoutCompletion(3, max_sweeps=3, clip=False, average=0).fit(ratings)
    cols = ratings.cols[ratings.rows == 4]
    values = ratings.values[ratings.rows == 4]
    told = model.explain(4, 9)
    b = told.cols[0]
    base = model.fold_in((cols, values)).predict([9])[0]
    moved = model.fold_in((cols, values + (cols == b))).predict([9])[0]
    residual = told.values[0] - model.mean_ - model.col_bias_[b]
    # A new row's prior is wider than that of the row, so that it follows its values a bit more.
    assert (moved - base) * residual == pytest.approx(told.contributions[0], rel=0.1)


def test_fold_in_agrees_with_a_converged_row(ratings):
    model = DropoutCompletion(3, max_sweeps=400, tol=1e-12, clip=False).fit(ratings)
    chosen = ratings.rows == 4
    row = model.fold_in(
        dict(zip(ratings.cols[chosen], ratings.values[chosen], strict=True))
    )
    cols = np.arange(50)
    expected, expected_std = model.predict(np.full(50, 4), cols, return_std=True)
    found, std = row.predict(cols, return_std=True)
    # A new row's prior is wider, by the number of rows that taught it.
    np.testing.assert_allclose(found, expected, atol=4e-3)
    np.testing.assert_allclose(std, expected_std, rtol=2e-2)
    assert not set(row.recommend(5).cols) & set(ratings.cols[chosen])


def test_fold_in_of_nothing_is_the_prior(learned):
    if learned.average:
        pytest.skip("the average has draws of its own for a row never seen")
    cols = np.arange(50)
    found = learned.fold_in(([], [])).predict(cols)
    expected, known = learned.predict(np.full(50, 80), cols, return_known=True)
    assert not known.any()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_fold_in_takes_what_a_row_is_kept_in(ratings):
    model = DropoutCompletion(2, max_sweeps=3).fit(ratings.to_sparse())
    expected = model.fold_in({0: 5.0, 1: 2.0}).predict([3])
    sparse = scipy.sparse.csr_array(([5.0, 2.0], ([0, 0], [0, 1])), shape=(1, 50))
    assert np.array_equal(model.fold_in(sparse).predict([3]), expected)
    assert np.array_equal(model.fold_in(([0, 1], [5, 2])).predict([3]), expected)
    for entries in (
        {0: "x"},
        ([0], [[1.0]]),
        ([0, 1], [1.0]),
        5,
        {0: np.nan},
        sparse.T,
    ):
        with pytest.raises(
            overt.InputError, match=r"entries|sparse row|values must be"
        ):
            model.fold_in(entries)


def test_partial_fit_moves_towards_new_ratings(ratings):
    model = DropoutCompletion(3, max_sweeps=30)
    model.fit_triplets(ratings.rows, ratings.cols, ratings.values, shape=ratings.shape)
    untouched = model.predict([1], [1])
    cols = np.arange(20)
    model.partial_fit(np.column_stack([np.full(20, 80), cols]), np.full(20, 5.0))
    assert model.complete().shape == (81, 50)
    assert model.predict(np.full(20, 80), cols).mean() > model.mean_ + 0.3
    assert model.predict([1], [1]) == pytest.approx(untouched, abs=0.2)
    before = float(model.predict([80], [30])[0])
    model.partial_fit(np.column_stack([np.full(20, 80), cols]), np.full(20, 1.0))
    assert float(model.predict([80], [30])[0]) < before - 0.3


def test_saved_models_are_the_same_bit_for_bit(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = DropoutCompletion.load(tmp_path / "model")
    rows, cols = (x.ravel() for x in np.indices((80, 50)))
    assert np.array_equal(loaded.predict(rows, cols), fitted.predict(rows, cols))
    if fitted.drop_prob == "learn":
        found, expected = (
            m.predict(rows, cols, return_std=True)[1] for m in (loaded, fitted)
        )
        assert np.array_equal(found, expected)
    assert loaded.get_params() == fitted.get_params()
    if fitted.drop_prob == "learn":
        assert loaded.explain(3, 4).to_dict() == fitted.explain(3, 4).to_dict()
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["model.safetensors"]
    with pytest.raises(overt.InputError, match="no completion model"):
        DropoutCompletion.load(tmp_path)


def test_damaged_models_and_other_formats_are_refused(ratings, tmp_path):
    model = DropoutCompletion(2, max_sweeps=1).fit(ratings.to_sparse())
    model.save(tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content.replace(b", format 11", b", format 10"))
    with pytest.raises(overt.InputError, match="another format"):
        DropoutCompletion.load(tmp_path)
    for damaged, match in ((b"damaged", "cannot be read"), (content[:-9], "read")):
        path.write_bytes(damaged)
        with pytest.raises(overt.InputError, match=match):
            DropoutCompletion.load(tmp_path)


def test_score_and_grid_search(ratings):
    pairs = np.column_stack([ratings.rows, ratings.cols])
    search = GridSearchCV(
        DropoutCompletion(4, max_sweeps=15), {"drop_prob": [0.0, 0.6]}, cv=3
    ).fit(pairs, ratings.values)
    assert search.best_params_["drop_prob"] == 0.6
    model = search.best_estimator_
    error = model.predict(pairs) - ratings.values
    assert model.score(pairs, ratings.values) == pytest.approx(
        -np.sqrt(np.mean(error**2))
    )
    assert model.score(ratings.to_sparse()) == pytest.approx(
        model.score(pairs, ratings.values)
    )


def test_unseen_rows_get_the_column_biases(fitted):
    with pytest.warns(UserWarning, match=r"2 of 2 rows were never seen \(80, 5000\)"):
        found = fitted.predict([80, 5000], [3, 3])
    assert np.isfinite(found).all()
    assert np.ptp(found) == 0


def test_auto_keeps_its_path(ratings):
    model = DropoutCompletion(4, "auto", max_sweeps=20)
    model.fit_triplets(ratings.rows, ratings.cols, ratings.values)
    best = model.path_[np.argmin(model.path_[:, 1]), 0]
    assert model.drop_prob_ == best


def test_auto_goes_beyond_its_path_where_the_first_is_best():
    rng = np.random.default_rng(0)
    noise = overt.Entries.from_matrix(rng.normal(size=(30, 20)))
    model = DropoutCompletion(4, "auto", max_sweeps=10)
    with pytest.warns(UserWarning, match="predicts better than the mean"):
        model.fit(noise)  # in noise there is nothing better
    assert model.drop_prob_ > 0.7
    assert np.all(np.diff(model.path_[:, 0]) < 0)


def test_interrupt_keeps_what_was_computed(ratings):
    def stop(fit):
        if len(fit.history) == 3:
            raise KeyboardInterrupt

    model = DropoutCompletion(3, tol=0.0)
    model.fit_triplets(ratings.rows, ratings.cols, ratings.values, on_step=stop)
    assert model.status_ == "interrupted"
    assert model.n_sweeps_ == 3
    assert np.isfinite(model.predict(ratings.rows, ratings.cols)).all()


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"n_factors": 0}, "n_factors must be at least 1"),
        ({"drop_prob": 1.0}, "drop_prob must be a number"),
        ({"drop_prob": "learned"}, "drop_prob must be one of 'learn', 'auto'"),
        ({"average": 5, "drop_prob": 0.1}, "average needs"),
        ({"engine": "spark"}, "engine must be one of 'local', 'threads', 'dask'"),
        ({"clip": "no"}, "clip must be"),
        ({"clip": np.zeros(2)}, "clip must be"),
        ({"biases": "no"}, "biases must be True or False"),
        ({"ridge": -1}, "ridge must be"),
        ({"n_jobs": 0}, "n_jobs must be at least 1"),
    ],
)
def test_bad_settings_are_said(kwargs, match):
    with pytest.raises(overt.InputError, match=match):
        DropoutCompletion(**kwargs).fit_triplets([0, 1], [0, 1], [1.0, 2.0])


@pytest.mark.parametrize(
    ("X", "match"),
    [
        (np.full((2, 2), np.nan), "at least one observed entry"),
        (np.ones(3), "two-dimensional"),
        (np.array([[1.0, np.inf]]), "finite"),
        ("ratings.csv", "there is no file or folder ratings.csv"),
        (Frame(a=[1], b=[2]), "three columns"),
        (Frame(a=["x", None], b=[1, 2], v=[1.0, 2.0]), "1 missing identifier"),
        (Frame(a=[1.0, np.nan], b=[1, 2], rating=[1.0, 2.0]), "1 missing identifier"),
        (Frame(a=[1.5, 2.0], b=[1, 2], rating=[1.0, 2.0]), "whole numbers or strings"),
        (np.ones((2, 2)) * 1j, "Complex"),
        (scipy.sparse.coo_array(np.ones(3)), "two-dimensional"),
    ],
)
def test_bad_input_is_said(X, match):
    with pytest.raises(overt.InputError, match=match):
        DropoutCompletion().fit(X)


def test_bad_triplets_are_said():
    model = DropoutCompletion()
    with pytest.raises(overt.InputError, match="must be indices from 0"):
        model.fit_triplets([-1], [0], [1.0])
    with pytest.raises(overt.InputError, match="same length"):
        model.fit_triplets([0, 1], [0], [1.0])
    with pytest.raises(overt.InputError, match="shape must be at least"):
        model.fit_triplets([4], [0], [1.0], shape=(2, 2))
    with pytest.raises(overt.InputError, match="whole numbers"):
        model.fit_triplets([0.5], [0], [1.0])
    with pytest.raises(overt.InputError, match="if they are identifiers"):
        model.fit_triplets([0, 2_000_000_000], [0, 1], [1.0, 2.0])
    with pytest.raises(overt.InputError, match="below 2"):
        model.fit_triplets([0], [1 << 40], [1.0])
    with pytest.raises(overt.InputError, match="shape must be"):
        model.fit_triplets([0], [0], [1.0], shape=5)


def test_constant_and_tiny_data():
    for rows, cols, values in (
        ([0], [0], [3.0]),
        ([0, 1, 2], [0, 0, 1], [4.0, 4.0, 4.0]),
    ):
        for drop_prob in ("learn", 0.0, 0.5):
            model = DropoutCompletion(3, drop_prob, max_sweeps=5).fit_triplets(
                rows, cols, values
            )
            np.testing.assert_allclose(model.predict(rows, cols), values, atol=1e-3)
            if drop_prob == "learn":
                assert np.isfinite(model.predict(rows, cols, return_std=True)[1]).all()


# With targets y, X holds (row, column) pairs; without, X is the matrix itself.
NOT_PAIRS = "fits y to X of more than two columns"
NOT_WHOLE = "fits y to pairs that are neither whole numbers nor strings"
EXCLUDED = {
    **dict.fromkeys(
        (
            "check_complex_data",
            "check_dict_unchanged",
            "check_dont_overwrite_parameters",
            "check_dtype_object",
            "check_estimator_sparse_array",
            "check_estimator_sparse_matrix",
            "check_estimator_sparse_tag",
            "check_estimators_dtypes",
            "check_estimators_empty_data_messages",
            "check_estimators_pickle",
            "check_f_contiguous_array_estimator",
            "check_fit2d_1feature",
            "check_fit2d_1sample",
            "check_fit2d_predict1d",
            "check_fit_score_takes_y",
            "check_methods_sample_order_invariance",
            "check_methods_subset_invariance",
            "check_n_features_in_after_fitting",
            "check_pipeline_consistency",
            "check_regressor_data_not_an_array",
            "check_regressors_int",
            "check_regressors_no_decision_function",
            "check_regressors_train",
            "check_supervised_y_2d",
            "check_transformer_data_not_an_array",
            "check_transformer_general",
            "check_transformer_preserve_dtypes",
        ),
        NOT_PAIRS,
    ),
    **dict.fromkeys(
        (
            "check_estimators_fit_returns_self",
            "check_estimators_overwrite_params",
            "check_estimators_partial_fit_n_features",
            "check_fit_check_is_fitted",
            "check_fit_idempotent",
            "check_n_features_in",
            "check_positive_only_tag_during_fit",
            "check_readonly_memmap_input",
        ),
        NOT_WHOLE,
    ),
}


def test_scikit_learn_checks():
    from sklearn.utils.estimator_checks import check_estimator

    results = check_estimator(
        DropoutCompletion(2, max_sweeps=2),
        expected_failed_checks=EXCLUDED,
        on_fail=None,
        on_skip=None,
    )
    assert [r["check_name"] for r in results if r["status"] == "failed"] == []
    assert sum(r["status"] == "passed" for r in results) >= 12


def test_estimators_can_be_pickled_by_those_who_must(ratings):
    """joblib and dask move fitted estimators between processes."""
    import pickle

    model = DropoutCompletion(2, max_sweeps=2).fit(ratings.to_sparse())
    copy = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert np.array_equal(copy.predict([0], [1]), model.predict([0], [1]))


def test_fitting_again_gives_the_same(ratings):
    model = DropoutCompletion(3, max_sweeps=3, average=2)
    first = model.fit(ratings.to_sparse()).predict([0, 1], [1, 2])
    assert np.array_equal(model.fit(ratings.to_sparse()).predict([0, 1], [1, 2]), first)


def test_what_scikit_learn_users_look_for(ratings):
    pairs = np.column_stack([ratings.rows, ratings.cols])
    model = DropoutCompletion(2, max_sweeps=3, random_state=5).fit(
        pairs, ratings.values
    )
    seeded = DropoutCompletion(2, max_sweeps=3, seed=5).fit(pairs, ratings.values)
    assert np.array_equal(model.U_, seeded.U_)
    drawn = DropoutCompletion(2, max_sweeps=1, random_state=np.random.RandomState(0))
    assert np.isfinite(drawn.fit(pairs, ratings.values).U_).all()


def test_samples_are_averaged_where_that_takes_seconds(ratings):
    entries = ratings.take(np.arange(1200))
    model = DropoutCompletion(1).fit(entries)
    assert model.average_ == 60
    same = DropoutCompletion(1, average=60).fit(entries)
    assert np.array_equal(same.complete(), model.complete())
    assert DropoutCompletion(1, average=0).fit(entries).average_ == 0
    assert DropoutCompletion(1).fit(entries.take(np.arange(900))).average_ == 0
    for kwargs in (
        {"max_sweeps": 2},
        {"drop_prob": 0.5},
        {"missing": "negative", "max_sweeps": 2},
    ):
        assert DropoutCompletion(1, **kwargs).fit(entries).average_ == 0
