"""Entries: every door that observed entries come in by, and what is said of what cannot."""

import dataclasses

import numpy as np
import pandas
import pytest
import scipy.sparse

from overt import Entries, InputError, datasets
from overt.completion import DropoutCompletion
from overt.entries import observed, pairs

TRIPLETS = ([0, 0, 2], [1, 3, 0], [5.0, 3.0, -1.0])


def same(found, expected):
    for name in ("rows", "cols", "values", "row_ids", "col_ids", "times", "truth"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert (mine is None) == (theirs is None), name
        assert mine is None or np.array_equal(mine, theirs), name
    assert found.shape == expected.shape


def dense():
    A = np.full((3, 4), np.nan)
    A[TRIPLETS[0], TRIPLETS[1]] = TRIPLETS[2]
    return A


DOORS = {
    "entries": lambda: Entries(*TRIPLETS, (3, 4)),
    "csr": lambda: scipy.sparse.csr_array((TRIPLETS[2], TRIPLETS[:2]), shape=(3, 4)),
    "csc": lambda: scipy.sparse.csc_matrix((TRIPLETS[2], TRIPLETS[:2]), shape=(3, 4)),
    "coo": lambda: scipy.sparse.coo_array((TRIPLETS[2], TRIPLETS[:2]), shape=(3, 4)),
    "dense": dense,
    "list": lambda: dense().tolist(),
    "masked": lambda: np.ma.masked_invalid(dense()),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_leads_to_the_same_entries(door):
    found = observed(DOORS[door]())
    order = np.lexsort((found.cols, found.rows))
    same(found.take(order), Entries(*TRIPLETS, (3, 4)))


def test_pairs_with_values_and_frames():
    given = np.array(TRIPLETS[:2]).T
    same(observed(given, TRIPLETS[2]), Entries(*TRIPLETS))
    same(observed(given.astype(float), TRIPLETS[2]), Entries(*TRIPLETS))
    named = [["b", "x"], ["a", "y"], ["b", "y"]]
    expected = Entries([1, 0, 1], [0, 1, 1], [1, 2, 3], None, ["a", "b"], ["x", "y"])
    same(observed(named, [1, 2, 3]), expected)
    who, what = zip(*named, strict=True)
    same(
        observed(pandas.DataFrame({"who": who, "what": what, "value": [1, 2, 3]})),
        expected,
    )
    same(Entries.from_ids(who, what, [1, 2, 3]), expected)


def test_entries_go_through_as_they_are():
    entries = Entries(*TRIPLETS)
    assert observed(entries) is entries


def test_the_shape_is_the_smallest_that_holds_them():
    assert Entries(*TRIPLETS).shape == (3, 4)
    assert Entries(*TRIPLETS, shape=(7, 9)).shape == (7, 9)
    assert Entries(*TRIPLETS, shape=np.array([7, 9])).shape == (7, 9)
    assert repr(Entries(*TRIPLETS)) == "Entries(3 of 3 x 4)"
    assert len(Entries(*TRIPLETS)) == 3


@pytest.mark.parametrize("kind", [np.int8, np.uint64, np.float32, list])
def test_indices_and_values_of_any_type_become_int64_and_float64(kind):
    rows, cols, values = (
        kind(np.abs(x)) if kind is list else np.abs(x).astype(kind) for x in TRIPLETS
    )
    entries = Entries(rows, cols, values)
    assert (entries.rows.dtype, entries.values.dtype) == (np.int64, np.float64)


def test_stored_zeros_and_booleans_are_observed():
    sparse = scipy.sparse.csr_array(([0.0, 2.0], ([0, 1], [0, 1])), shape=(2, 2))
    assert Entries.from_matrix(sparse).values.tolist() == [0.0, 2.0]
    assert Entries([0, 0], [0, 1], [True, False]).values.tolist() == [1.0, 0.0]


def test_an_entry_may_be_given_twice():
    entries = Entries([0, 0], [1, 1], [2.0, 3.0])
    assert len(entries) == 2
    assert entries.to_sparse().toarray().tolist() == [[0.0, 5.0]]


def test_identifiers_are_sorted_and_keep_their_times():
    entries = Entries.from_ids([70, 5, 70], ["x", "y", "y"], [1, 2, 3], times=[9, 8, 7])
    assert entries.row_ids.tolist() == [5, 70]
    assert entries.row_ids[entries.rows].tolist() == [70, 5, 70]
    assert entries.col_ids[entries.cols].tolist() == ["x", "y", "y"]
    assert entries.take([2, 0]).times.tolist() == [7, 9]


@pytest.mark.parametrize(
    "chosen", [[2, 0], np.array([2, 0]), np.array([True, False, True])]
)
def test_take_keeps_shape_identifiers_and_truth(chosen):
    truth = np.arange(12.0).reshape(3, 4)
    entries = Entries(*TRIPLETS, (3, 4), list("abc"), list("wxyz"), truth=truth)
    part = entries.take(chosen)
    assert sorted(part.values) == [-1.0, 5.0]
    assert part.shape == (3, 4)
    assert part.row_ids.tolist() == ["a", "b", "c"]
    assert np.array_equal(part.truth, truth)


def test_split_is_a_partition_that_the_seed_decides():
    entries = datasets.generate_ratings(30, 20, 200, seed=0)[0]
    train, holdout = entries.split(0.25, seed=4)
    assert (len(train), len(holdout)) == (150, 50)
    assert train.shape == holdout.shape == entries.shape
    keys = [(e.rows * 20 + e.cols).tolist() for e in (train, holdout, entries)]
    assert sorted(keys[0] + keys[1]) == sorted(keys[2])
    order = np.random.default_rng(4).permutation(200)
    same(holdout, entries.take(order[:50]))
    same(holdout, entries.split(0.25, seed=np.random.default_rng(4))[1])


def test_sample_observes_a_known_matrix():
    truth = np.arange(12.0).reshape(3, 4)
    entries = Entries.sample(truth, 7, seed=1)
    assert len(set(zip(entries.rows, entries.cols, strict=True))) == 7
    assert np.array_equal(entries.values, truth[entries.rows, entries.cols])
    assert np.array_equal(entries.truth, truth)
    rows, cols = entries.missing
    assert len(rows) == 5
    assert not set(zip(rows, cols, strict=True)) & set(
        zip(entries.rows, entries.cols, strict=True)
    )


def test_to_sparse_and_back():
    entries = Entries(*TRIPLETS, (3, 4))
    same(Entries.from_matrix(entries.to_sparse()), entries)


def test_entries_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Entries(*TRIPLETS).shape = (9, 9)


def test_comparing_entries_does_not_raise():
    entries = Entries(*TRIPLETS)
    assert entries in [entries]
    assert entries != Entries(*TRIPLETS)


BAD = {
    "lengths": (lambda: Entries([0, 1], [0], [1.0]), "same length, got 2, 1, 1"),
    "none": (lambda: Entries([], [], []), "at least one observed entry, got 0"),
    "negative": (
        lambda: Entries([-1], [0], [1.0]),
        "rows must be indices from 0, got -1",
    ),
    "fraction": (
        lambda: Entries([0], [0.5], [1.0]),
        "cols must be an array of whole numbers",
    ),
    "flag": (
        lambda: Entries([True], [0], [1.0]),
        "rows must be an array of whole numbers",
    ),
    "two axes": (
        lambda: Entries([[0]], [0], [1.0]),
        "rows must be a one-dimensional array",
    ),
    "too large": (
        lambda: Entries([0], [1 << 31], [1.0]),
        r"cols must be indices below 2\^31",
    ),
    "identifiers": (
        lambda: Entries([0, 2_000_000_000], [0, 1], [1.0, 2.0]),
        "from_ids",
    ),
    "text values": (
        lambda: Entries([0], [0], ["x"]),
        "values must be a one-dimensional array",
    ),
    "complex values": (lambda: Entries([0], [0], [1j]), "Complex data not supported"),
    "not finite": (
        lambda: Entries([0, 0], [0, 1], [1, np.inf]),
        "finite, got 1 NaN or infinite",
    ),
    "shape too small": (lambda: Entries([4], [0], [1.0], (2, 2)), r"at least \(5, 1\)"),
    "shape of one": (
        lambda: Entries([0], [0], [1.0], 5),
        r"shape must be \(rows, columns\)",
    ),
    "shape of text": (lambda: Entries([0], [0], [1.0], ("a", 2)), "whole number"),
    "identifiers missing": (
        lambda: Entries([0, 1], [0, 0], [1, 2], None, ["a"]),
        r"row_ids must",
    ),
    "identifiers too many": (
        lambda: Entries([0], [0], [1], None, None, "ab"),
        "col_ids must have",
    ),
    "times": (
        lambda: Entries([0], [0], [1.0], times=[1, 2]),
        r"times must have shape \(1,\)",
    ),
    "truth": (
        lambda: Entries(*TRIPLETS, truth=np.ones((2, 2))),
        r"shape \(3, 4\), got \(2, 2\)",
    ),
    "one axis": (lambda: Entries.from_matrix([1.0]), "two-dimensional"),
    "sparse, one axis": (
        lambda: observed(scipy.sparse.coo_array([1.0])),
        "two-dimensional",
    ),
    "all missing": (
        lambda: observed(np.full((2, 2), np.nan)),
        "at least one observed entry",
    ),
    "complex": (lambda: observed(np.ones((2, 2)) * 1j), "Complex"),
    "a path": (lambda: observed("ratings.csv"), "overt.Entries, a scipy sparse matrix"),
    "two columns": (
        lambda: observed(pandas.DataFrame({"a": [1], "b": [2]})),
        "three columns .* got 2: a, b",
    ),
    "pairs of three": (
        lambda: pairs("X", np.ones((2, 3))),
        "X must be an .n, 2. array",
    ),
    "missing name": (
        lambda: Entries.from_ids(["a", None], [1, 2], [1, 2]),
        "1 missing identifier",
    ),
    "missing number": (
        lambda: Entries.from_ids([1, np.nan], [1, 2], [1, 2]),
        "1 missing",
    ),
    "fractions": (
        lambda: Entries.from_ids([1.5], [1], [1]),
        "whole numbers or strings",
    ),
    "names of two axes": (
        lambda: Entries.from_ids([["a"]], [1], [1]),
        "one-dimensional",
    ),
    "too many": (lambda: Entries.sample(np.ones((2, 2)), 5), "count must be at most 4"),
    "all held out": (
        lambda: Entries(*TRIPLETS).split(1.0),
        "leave entries on both sides",
    ),
    "none held out": (
        lambda: Entries(*TRIPLETS).split(0.1),
        "leave entries on both sides",
    ),
    "holdout of 0": (
        lambda: Entries(*TRIPLETS).split(0),
        "holdout must be a finite number above",
    ),
    "nothing taken": (
        lambda: Entries(*TRIPLETS).take([]),
        "at least one observed entry",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_said(case):
    make, message = BAD[case]
    with pytest.raises(InputError, match=message):
        make()


def test_the_estimator_takes_entries():
    entries = datasets.generate_ratings(30, 20, 200, rank=1, seed=0)[0]
    model = DropoutCompletion(2, max_sweeps=3).fit(entries)
    given = (entries.rows, entries.cols, entries.values)
    triplets = DropoutCompletion(2, max_sweeps=3).fit_triplets(
        *given, shape=entries.shape
    )
    assert np.array_equal(model.U_, triplets.U_)
    assert np.array_equal(
        model.predict(entries), model.predict(entries.rows, entries.cols)
    )
    assert model.score(entries) == -np.sqrt(
        np.mean((model.predict(entries) - entries.values) ** 2)
    )


def test_predictions_for_entries_are_found_by_their_own_identifiers():
    fitted = Entries.from_ids(["b", "a", "b"], [7, 7, 3], [1.0, 2.0, 3.0])
    asked = Entries.from_ids(["c", "a"], [3, 9], [0.0, 0.0])
    model = DropoutCompletion(1, max_sweeps=3).fit(fitted)
    with pytest.warns(UserWarning, match="never seen"):
        assert np.array_equal(model.predict(asked), model.predict(["c", "a"], [3, 9]))


def test_frames_whose_columns_have_unknown_names_are_not_taken_for_tables():
    """Entries with gaps in their identifiers, or a fourth column, became wide tables silently."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "who": np.arange(40) % 4,
            "what": np.arange(40),
            "mark": rng.integers(1, 6, 40),
        }
    )
    gaps = frame.assign(who=frame["who"].where(frame["who"] != 2))
    with pytest.raises(InputError, match="identifiers are missing"):
        Entries.from_frame(gaps)
    with pytest.raises(InputError, match="no name says which"):
        Entries.from_frame(frame.assign(when=np.arange(40)))
    named = frame.assign(when=np.arange(40))
    found = Entries.from_frame(named, row="who", col="what", value="mark", time="when")
    assert found.shape == (4, 40)
    survey = pandas.DataFrame(rng.integers(1, 6, (60, 5)), columns=list("abcde"))
    assert Entries.from_frame(survey).shape == (60, 5)


def test_a_frame_with_two_columns_of_one_name_is_refused_in_words():
    """The library that reads frames raised an error of its own."""
    frame = pandas.DataFrame([[0, 1, 2.0]], columns=["z", "z", "value"])
    with pytest.raises(InputError, match="columns must have different names"):
        Entries.from_frame(frame)


@pytest.mark.parametrize("chosen", [[], [False] * 3])
def test_no_entries_cannot_be_taken(chosen):
    entries = Entries([0, 0, 1], [0, 1, 1], [5, 3, 4])
    with pytest.raises(InputError, match="at least one observed entry"):
        entries.take(chosen)
