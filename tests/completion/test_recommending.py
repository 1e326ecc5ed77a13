"""New rows and what they like: values of another scale, dislikes and columns alone."""

import csv
import json
import warnings

import numpy as np
import pytest
import scipy.sparse
from typer.testing import CliRunner

import overt
from overt.cli.base import app
from overt.completion import DropoutCompletion


def stars(seed=0):
    """Return entries of 1 to 5 stars, 40 x 30, named u0... and i0...."""
    rng = np.random.default_rng(seed)
    seen = rng.random((40, 30)) < 0.4
    rows, cols = np.nonzero(seen)
    values = np.clip(
        np.round(3 + np.sin(rows) + np.cos(cols) + rng.normal(size=len(rows))), 1, 5
    )
    return overt.Entries.from_ids(
        [f"u{a}" for a in rows], [f"i{b}" for b in cols], values
    )


@pytest.fixture(scope="module")
def rated():
    return DropoutCompletion(2, max_sweeps=3, average=0).fit(stars())


@pytest.fixture(scope="module")
def clicked():
    entries = stars()
    ones = np.ones(len(entries))
    clicks = overt.Entries(
        entries.rows,
        entries.cols,
        ones,
        entries.shape,
        entries.row_ids,
        entries.col_ids,
    )
    return DropoutCompletion(2, missing="negative").fit(clicks)


@pytest.mark.parametrize("value", [500.0, 0.0, -1.0])
def test_a_new_row_in_other_units_is_reported(rated, value):
    with pytest.warns(
        UserWarning, match=rf"the value {value:g} lies outside .* from 1 to 5"
    ):
        rated.fold_in({"i1": 4.0, "i2": value})


def test_a_new_row_on_the_scale_is_taken_as_it_is(rated):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rated.fold_in({"i1": 1.0, "i2": 5.0})


def dislikes():
    rng = np.random.default_rng(0)
    likes = scipy.sparse.random_array((30, 20), density=0.2, rng=rng, format="coo")
    likes.data = rng.choice([-1.0, 1.0], likes.nnz)
    return likes.tocsr()


def test_a_dislike_is_no_weak_like(clicked):
    with pytest.raises(overt.InputError, match=r"from 0.* got -1"):
        DropoutCompletion(2, missing="negative").fit(dislikes())
    with pytest.raises(overt.InputError, match="got -1"):
        clicked.fold_in({"i1": 1.0, "i2": -1.0})
    again = DropoutCompletion(2, missing="negative").fit(abs(dislikes()))
    with pytest.raises(overt.InputError, match="got -1"):
        again.partial_fit(dislikes())


def test_ratings_below_zero_are_ranked():
    """Only missing="negative" takes values as strengths; here -1 is a rating like any other."""
    model = DropoutCompletion(2, max_sweeps=3, average=0).fit(dislikes())
    assert len(model.recommend(0, 3).cols) == 3


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_columns_alone_are_not_read_as_one_star(rated, clicked, tmp_path):
    alone = tmp_path / "alone.csv"
    alone.write_text("i1\ni2\n")
    rated.save(tmp_path / "rated")
    done = run("recommend", tmp_path / "rated", "--entries", alone)
    assert isinstance(done.exception, overt.InputError)
    assert "add the value of each column" in str(done.exception)
    clicked.save(tmp_path / "clicked")
    done = run("recommend", tmp_path / "clicked", "--entries", alone, "--json")
    assert done.exit_code == 0, done.output
    best = clicked.fold_in({"i1": 1.0, "i2": 1.0}).recommend().cols
    assert all(str(col) in done.output for col in best)


def test_a_line_without_its_value_is_named(rated, tmp_path):
    mixed = tmp_path / "mixed.csv"
    mixed.write_text("i1,4\ni2\n")
    rated.save(tmp_path / "rated")
    done = run("recommend", tmp_path / "rated", "--entries", mixed)
    assert isinstance(done.exception, overt.InputError)
    assert "line 2" in str(done.exception)


@pytest.mark.parametrize("name", ["lists.csv", "it's.parquet"])
def test_lists_for_everyone_are_files_that_stay_private(name, rated, tmp_path):
    rated.save(tmp_path / "rated")
    path = tmp_path / name
    path.touch(mode=0o600)
    done = run("recommend", tmp_path / "rated", "--all", path, "-n", 3)
    assert done.exit_code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    expected = rated.recommend_all(3)
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
        found = {key: [line[key] for line in lines] for key in ("column", "rank")}
    else:
        relation = pytest.importorskip("duckdb").read_parquet(str(path))
        found = relation.fetchnumpy()
    assert list(map(str, found["column"])) == list(map(str, expected.cols))
    assert list(map(int, found["rank"])) == expected.ranks.tolist()
    wrong = run("recommend", tmp_path / "rated", "--all", tmp_path / "lists.txt")
    assert "csv" in str(wrong.exception)


@pytest.mark.parametrize("header", ["user,item", "item,user", "when,item,user"])
def test_pairs_to_exclude_leave_the_lists_of_their_rows(header, rated, tmp_path):
    """Lists for everyone refused pairs, and `item,user` excluded nothing without a word."""
    best = rated.recommend_all(1)
    pairs = {"user": best.rows[3], "item": best.cols[3], "when": "today"}
    line = ",".join(str(pairs[name]) for name in header.split(","))
    (tmp_path / "pairs.csv").write_text(f"{header}\n{line}\n")
    rated.save(tmp_path / "rated")
    asked = ["recommend", tmp_path / "rated", "-n", 1]
    asked += ["--exclude", tmp_path / "pairs.csv"]
    done = run(*asked, "--all", tmp_path / "lists.csv")
    assert done.exit_code == 0, done.exception
    with (tmp_path / "lists.csv").open(newline="") as file:
        lists = {line["row"]: line["column"] for line in csv.DictReader(file)}
    second = rated.recommend(pairs["user"], 2).cols[1]
    expected = dict(zip(map(str, best.rows), map(str, best.cols), strict=True))
    expected[str(pairs["user"])] = str(second)
    assert lists == expected
    of_one = run(*asked, "--user", pairs["user"], "--json")
    assert [line["column"] for line in json.loads(of_one.output)] == [second]


def test_a_newcomer_is_read_by_the_header(rated, tmp_path):
    """`rating,item` gave "line 2: 'i4' is not a number"."""
    rated.save(tmp_path / "rated")
    found = []
    for text in ("item,rating\ni3,5\ni4,1\n", "rating,item\n5,i3\n1,i4\n"):
        (tmp_path / "new.csv").write_text(text)
        asked = ("recommend", tmp_path / "rated", "--entries", tmp_path / "new.csv")
        found.append(json.loads(run(*asked, "--json").output))
    assert found[0] == found[1]
    (tmp_path / "new.csv").write_text("rating,item\n5,i3\n\nbad,i4\n")
    assert "line 4: 'bad' is not a number" in str(run(*asked).exception)
