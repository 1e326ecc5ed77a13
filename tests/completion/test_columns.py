"""Columns of files by name, by role, by number; clicks, times, identifiers."""

from datetime import UTC, datetime

import numpy as np
import pytest

import overt
from overt.completion import DropoutCompletion, read_ratings

pytest.importorskip("duckdb")


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_roles_are_found_wherever_they_stand(tmp_path):
    lines = [
        "at,stars,sku,customer",
        *(f"17000000{i},{i % 5},s{i % 7},c{i % 9}" for i in range(40)),
    ]
    read = read_ratings(write(tmp_path / "r.csv", *lines))
    assert read.header == ("customer", "sku", "stars", "at")
    assert read.guessed == ()
    assert len(read.row_ids) == 9
    assert read.entries.times[3] == 170000003


def test_columns_are_said_by_name_or_number(tmp_path):
    path = write(tmp_path / "r.csv", "x,y,z", "1,a,5", "2,b,4")
    read = read_ratings(path, row="y", col="x", value="3")
    assert read.row_ids.tolist() == ["a", "b"]
    assert read_ratings(path).guessed == ("row", "col", "value")
    with pytest.raises(overt.InputError, match="no column 'who'"):
        read_ratings(path, row="who")
    bare = write(tmp_path / "bare.csv", "5,1,a", "4,2,b")
    assert read_ratings(bare, value="1", row="3").row_ids.tolist() == ["a", "b"]
    with pytest.raises(overt.InputError, match="its columns are 1, 2, 3"):
        read_ratings(bare, value="stars")


def test_absurd_guesses_are_refused(tmp_path):
    lines = [f"{1_700_000_000 + 7 * i},{i % 7},{i % 5}" for i in range(40)]
    path = write(tmp_path / "r.csv", "when_it_was,what,how", *lines)
    with pytest.raises(overt.InputError, match="different row on nearly every line"):
        read_ratings(path)
    path = write(
        tmp_path / "s.csv",
        "who,what,when_it_was",
        *(f"{i % 9},{i % 7},{1_700_000_000 + 7 * i}" for i in range(40)),
    )
    with pytest.raises(overt.InputError, match="like times"):
        read_ratings(path)
    assert len(read_ratings(path, value="when_it_was").rows)


def test_two_columns_are_clicks(tmp_path):
    read = read_ratings(
        write(tmp_path / "c.csv", "user,item", "1,a", "1,b", "2,a", "1,a", "oops")
    )
    assert read.clicks
    assert read.values.tolist() == [2, 1, 1]
    assert len(read.rejected) == 1


def test_the_latest_duplicate_is_kept(tmp_path):
    path = write(
        tmp_path / "r.csv",
        "user,item,rating,timestamp",
        "1,a,5,200",
        "1,a,3,100",
        "2,b,1,1",
    )
    assert read_ratings(path, "last").values.tolist() == [5, 1]
    assert read_ratings(path, "last").times.tolist() == [200, 1]
    path = write(
        tmp_path / "d.csv",
        "user,item,rating,date",
        "1,a,5,2024-05-01",
        "1,a,3,2024-04-01",
    )
    assert read_ratings(path, "last").values.tolist() == [5]


def test_whole_numbers_are_the_same_however_written(tmp_path):
    read = read_ratings(
        write(tmp_path / "r.csv", "user,item,rating", "196.0,1,5", "196,2,3", "7,1,2")
    )
    assert read.row_ids.tolist() == [7, 196]
    entries = overt.Entries.from_ids(np.array(["196.0", "b"]), [1.0, 2.0], [1.0, 2.0])
    assert entries.row_ids.tolist() == ["196", "b"]


def test_one_long_identifier_does_not_widen_all(tmp_path):
    names = [f"user {i}" for i in range(50)] + ["x" * 900]
    entries = overt.Entries.from_ids(names, names, np.ones(51))
    assert entries.row_ids.dtype == object
    path = write(tmp_path / "r.csv", *(f"{name},{i},1" for i, name in enumerate(names)))
    assert read_ratings(path).row_ids.dtype == object


class Frame(dict):
    """The part of a data frame that is used."""

    columns = property(list)


def test_frames_are_entries_or_tables():
    n = np.arange(6.0)
    by_name = Frame(at=n, stars=n, sku=np.array(list("aabbcc")), customer=n % 3)
    entries = overt.Entries.from_frame(by_name)
    assert (entries.shape, entries.times.tolist()) == ((3, 3), n.tolist())
    said = overt.Entries.from_frame(
        Frame(x=n % 2, y=n % 3, z=n), row="x", col="y", value="z"
    )
    assert said.shape == (2, 3)
    table = overt.Entries.from_frame(Frame(height=n + 0.5, weight=n, age=n, size=n))
    assert table.shape == (6, 4)
    assert table.col_ids.tolist() == ["height", "weight", "age", "size"]
    assert overt.Entries.from_frame(Frame(a=n + 0.5, b=n, c=n)).shape == (6, 3)
    with pytest.warns(UserWarning, match="a, b, c are taken for row, column and value"):
        assert overt.Entries.from_frame(Frame(a=n % 2, b=n % 3, c=n)).shape == (2, 3)
    assert (
        overt.Entries.from_frame(Frame(user=n, item=n % 2)).values.tolist() == [1] * 6
    )
    with pytest.raises(overt.InputError, match="numbers only"):
        overt.Entries.from_frame(Frame(a=n, b=n, c=n, d=np.array(list("aabbcc"))))


def test_relations_of_a_database_are_frames():
    import duckdb

    relation = duckdb.sql(
        "select 'u' || (i % 3) as user, i as item, 1.5 as rating from range(6) t(i)"
    )
    assert overt.Entries.from_frame(relation).shape == (3, 6)


def test_values_that_are_all_the_same_are_told():

    with pytest.warns(UserWarning, match="all 30 values are 1"):
        DropoutCompletion(2).fit(np.ones((5, 6)))
    std = (
        DropoutCompletion(2)
        .fit_triplets([0], [0], [4.0])
        .predict([0], [0], return_std=True)[1]
    )
    assert std > 1


def test_a_model_is_not_saved_onto_a_file(tmp_path):

    path = write(tmp_path / "mine.txt", "x")
    with pytest.raises(overt.InputError, match="is a file"):
        DropoutCompletion(1, max_sweeps=2).fit(np.eye(3)).save(path)


def test_changed_models_and_checkpoints_are_refused(tmp_path):
    """Whatever byte of the text changes, the meaning does not change in silence."""

    DropoutCompletion(1, max_sweeps=2).fit(np.eye(3) + 1).save(tmp_path)
    path = tmp_path / "model.safetensors"
    good, rng = path.read_bytes(), np.random.default_rng(0)
    whole = DropoutCompletion.load(tmp_path)
    for at in rng.choice(len(good), 80, replace=False):
        path.write_bytes(
            good[:at] + bytes([good[at] ^ 1 << int(rng.integers(7))]) + good[at + 1 :]
        )
        try:
            again = DropoutCompletion.load(tmp_path)
        except overt.InputError:
            continue
        assert again.get_params() == whole.get_params()
        assert np.array_equal(again.complete(), whole.complete())


def test_nothing_known_in_a_database_is_not_a_number():
    duckdb = pytest.importorskip("duckdb")
    lines = (
        "(values ('a', 1, 1), (null, 2, 2), ('b', null, 3), ('c', 3, null))"
        " l(user, item, stars)"
    )
    for told, message in (
        ("stars is not null and item is not null", "rows must not be missing, got 1"),
        ("stars is not null and user is not null", "cols must not be missing, got 1"),
        ("user is not null and item is not null", "values must be finite, got 1"),
    ):
        with pytest.raises(overt.InputError, match=message):
            overt.Entries.from_frame(duckdb.sql(f"select * from {lines} where {told}"))  # noqa: S608


@pytest.mark.parametrize(
    "when",
    [
        lambda t: t.astype("datetime64[D]"),
        lambda t: t.astype("datetime64[D]").astype(str),
        lambda t: [datetime.fromtimestamp(86400 * int(x), UTC) for x in t],
    ],
)
def test_times_are_numbers_or_dates(when):
    days = np.array([5, 1, 3])
    entries = overt.Entries([0, 1, 2], [0, 1, 2], [1.0, 2, 3], times=when(days))
    assert np.argsort(entries.times).tolist() == [1, 2, 0]
    with pytest.raises(overt.InputError, match="numbers or dates"):
        overt.Entries([0], [0], [1.0], times=["soon"])
    with pytest.raises(overt.InputError, match="1 missing"):
        overt.Entries([0], [0], [1.0], times=[np.nan])


def test_values_as_text_are_numbers():
    assert overt.Entries([0, 1], [0, 1], ["4", "3.5"]).values.tolist() == [4, 3.5]
    with pytest.raises(overt.InputError, match="such as 'oops'"):
        overt.Entries([0, 1], [0, 1], ["4", "oops"])
