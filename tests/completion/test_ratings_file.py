"""Ratings files: every line is used or reported, and damage is never believed."""

import gzip
import warnings
import zlib

import numpy as np
import pandas
import polars
import pytest
from sklearn.datasets import load_wine

import overt
from overt.completion import DropoutCompletion, read_ratings

pytest.importorskip("duckdb", reason="needs the files extra")


def lines(count=600, seed=0):
    """Return lines user,item,rating of different entries."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(40 * 30, count, replace=False)
    return [f"{cell // 30},{cell % 30},{rng.integers(1, 6)}" for cell in cells]


def write(path, *rows):
    path.write_text("\n".join(["user,item,rating", *rows, ""]))
    return path


def quick(**settings):
    return DropoutCompletion(2, max_sweeps=2, average=0, **settings)


def test_fitting_a_clean_file_says_nothing(tmp_path):
    path = write(tmp_path / "r.csv", *lines())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = quick().fit(path)
    assert len(model.file_report_.entries) == 600
    assert model.file_report_.rejected == []
    assert model.file_report_.duplicates == 0


def test_fitting_a_file_with_broken_lines_names_them(tmp_path):
    broken = ["5,6,many", "7,,3", ",1,2", "8,9,inf", "only two,fields"]
    path = write(tmp_path / "r.csv", *lines(), *broken)
    with pytest.warns(
        UserWarning, match="5 of 605 lines were rejected, the first is line 602"
    ):
        model = quick().fit(path)
    report = model.file_report_
    assert [line.line for line in report.rejected] == [602, 603, 604, 605, 606]
    assert len(report.entries) == 600


def test_contradictory_duplicates_of_a_file_are_reported(tmp_path):
    path = write(
        tmp_path / "r.csv", *lines(), *(line[:-1] + "1" for line in lines()[:50])
    )
    with pytest.warns(UserWarning, match="50 duplicate entries were averaged"):
        model = quick().fit(path)
    assert model.file_report_.duplicates == 50


def test_columns_that_were_guessed_are_reported(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("\n".join(["x,y,z", *lines(), ""]))
    with pytest.warns(UserWarning, match=r"row, col, value were taken by the place"):
        model = quick().fit(path)
    assert model.file_report_.guessed == ("row", "col", "value")


def test_a_model_keeps_no_report_of_an_older_file(tmp_path):
    model = quick().fit(write(tmp_path / "r.csv", *lines()))
    model.fit(np.eye(6))
    assert model.file_report_ is None


def test_values_beside_a_file_are_refused(tmp_path):
    with pytest.raises(overt.InputError, match="leave out y"):
        quick().fit(write(tmp_path / "r.csv", *lines()), np.ones(600))


@pytest.mark.parametrize("library", [pandas, polars])
def test_a_frame_and_a_file_treat_duplicates_alike(tmp_path, library):
    rows = lines()
    again = [line[:-1] + "1" for line in rows[:50]]
    path = write(tmp_path / "r.csv", *rows, *again)
    with pytest.warns(UserWarning, match="50 duplicate entries"):
        of_file = quick().fit(path)
    frame = library.read_csv(path)
    with pytest.warns(UserWarning, match="50 duplicate entries: averaged"):
        of_frame = quick().fit(frame)
    np.testing.assert_allclose(of_frame.complete(), of_file.complete(), rtol=1e-6)
    assert len(of_frame.entries_) == len(of_file.entries_) == 600


@pytest.mark.parametrize("how", ["last", "error"])
def test_duplicates_of_a_frame_are_as_wanted(how):
    frame = pandas.DataFrame(
        {"user": [1, 1, 2], "item": [3, 3, 3], "rating": [5.0, 1.0, 2.0]}
    )
    if how == "error":
        with pytest.raises(overt.InputError, match="1 duplicate"):
            overt.Entries.from_frame(frame, duplicates=how)
        return
    with pytest.warns(UserWarning, match="the last one is used"):
        entries = overt.Entries.from_frame(frame, duplicates=how)
    assert sorted(entries.values.tolist()) == [1.0, 2.0]


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_a_wide_table_is_not_read_as_triplets(tmp_path, ending):
    """Alcohol is no identifier of rows, and ash no rating."""
    table = load_wine(as_frame=True).data
    table = table.mask(np.random.default_rng(0).random(table.shape) < 0.2)
    path = tmp_path / f"wine{ending}"
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
        table.to_parquet(path, index=False)
    else:
        table.to_csv(path, index=False)
    with pytest.raises(overt.InputError, match="decimal numbers for identifiers"):
        quick().fit(path)
    with pytest.raises(overt.InputError, match="decimal numbers for identifiers"):
        read_ratings(path)


def damaged(path, rows):
    """Write a gzip file whose text was changed after its checksum was made."""
    text = "\n".join(["user,item,rating", *rows, ""]).encode()
    whole = bytearray(gzip.compress(text, mtime=0))
    changed = text.replace(b",5\n", b",1\n", 1)
    assert changed != text
    packer = zlib.compressobj(wbits=-15)
    body = packer.compress(changed) + packer.flush()
    path.write_bytes(bytes(whole[:10]) + body + bytes(whole[-8:]))
    return path


@pytest.mark.parametrize("name", ["r.csv.gz", "r.csv", "folder/r.csv.gz"])
def test_a_gzip_file_with_a_failing_checksum_is_refused(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    damaged(path, lines())
    given = path.parent if "folder" in name else path
    with pytest.raises(overt.InputError, match=r"CRC|checksum|damaged"):
        read_ratings(given)


def test_a_gzip_file_that_ends_early_is_refused(tmp_path):
    path = tmp_path / "r.csv.gz"
    path.write_bytes(
        gzip.compress("\n".join(["user,item,rating", *lines(), ""]).encode())[:-6]
    )
    with pytest.raises(overt.InputError):
        read_ratings(path)


def test_a_decimal_comma_is_no_number_where_commas_separate(tmp_path):
    """A quoted "1,5" in a file of decimal points was read as 1.5."""
    path = write(tmp_path / "r.csv", "a,x,1.5", 'b,y,"4,5"', "c,z,2")
    read = read_ratings(path)
    assert [(line, reason) for line, reason, _ in read.rejected] == [
        (3, "not a number")
    ]
    assert read.values.tolist() == [1.5, 2.0]
    path.write_text("user;item;rating\na;x;1,5\nb;y;4,5\n")
    assert read_ratings(path).values.tolist() == [1.5, 4.5]


GOOD = 'user,item,rating\nann,"Alien\n(cut)",5\nbob,"Alien\n(cut)",4\nann,Heat,2\n'
TEXT = 'user,item,rating\nann,"Alien\n(cut), part 2",5\nann,Heat,2\n'


@pytest.mark.parametrize("text", [GOOD, TEXT])
@pytest.mark.parametrize("bad", ["cid,Heat,n/a", 'cid,"Heat,3', "cid,,3", "cid"])
def test_one_bad_line_leaves_quoted_line_breaks_as_they_are(tmp_path, text, bad):
    """It cut the fields with a line break: entries were lost, and one was invented."""
    clean = tmp_path / "clean.csv"
    clean.write_text(text)
    expected = read_ratings(clean)
    dirty = tmp_path / "dirty.csv"
    dirty.write_text(f"{text}{bad}\ndan,Heat,1\n")
    read = read_ratings(dirty)
    number = text.count("\n") + 1
    assert [(line.line, line.content) for line in read.rejected] == [(number, bad)]
    assert read.col_ids.tolist() == expected.col_ids.tolist()
    assert read.row_ids.tolist() == [*expected.row_ids, "dan"]
    assert read.values.tolist() == [*expected.values, 1.0]


def test_rejected_lines_are_kept_as_they_are_written(tmp_path):
    """A quoted comma lost its quotes, so that nobody could mend the line."""
    bad = ['"u,00",,3.0', 'ann, "a ""b""",x', 'bob,"c\nd",many']
    path = write(tmp_path / "r.csv", *lines(), *bad)
    assert [line.content for line in read_ratings(path).rejected] == bad


def test_columns_may_be_numbered(tmp_path):
    """Numbers were refused by "'int' object has no attribute 'lower'"."""
    path = tmp_path / "r.csv"
    path.write_text("5,x,1\n3,y,2\n")
    read = read_ratings(path, row=3, col=2, value=1)
    assert read.row_ids.tolist() == [1, 2]
    assert read.values.tolist() == [5.0, 3.0]
    with pytest.raises(overt.InputError, match="no column 4 for row"):
        read_ratings(path, row=4)
