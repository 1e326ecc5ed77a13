"""Ratings files: every line is used or accounted for; killed runs go on to the same result."""

import csv
import gc
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import overt
from overt import datasets
from overt.cli.base import app
from overt.completion import DropoutCompletion, read_ratings
from overt.completion import ratings_file as files
from overt.completion.storage import SweepCheckpoint

import overt.cli  # isort: skip

pytest.importorskip("duckdb")
pytest.importorskip("safetensors")


@pytest.fixture(scope="module")
def ratings():
    return datasets.generate_ratings(40, 30, 500, seed=0)[0]


def lines(ratings, separator=",", quote=False):
    item = '"item, {}"' if quote else "{}"
    return [
        separator.join((str(a), item.format(b), f"{y:g}"))
        for a, b, y in zip(ratings.rows, ratings.cols, ratings.values, strict=True)
    ]


@pytest.mark.parametrize(
    "kind", ["csv", "tsv", "dat", "gz", "parquet", "spaces", "semicolon"]
)
def test_formats_agree(tmp_path, ratings, kind):
    separator = {"tsv": "\t", "dat": "::", "spaces": " ", "semicolon": ";"}.get(
        kind, ","
    )
    text = "\n".join(lines(ratings, separator)) + "\n"
    path = tmp_path / f"ratings.{kind}"
    if kind == "gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif kind == "parquet":
        import duckdb

        plain = tmp_path / "ratings.csv"
        plain.write_text("user,item,rating\n" + text)
        duckdb.sql(f"copy (from '{plain}') to '{path}' (format parquet)")
    else:
        path.write_text(text)
    read = read_ratings(path)
    entries = read.entries
    assert not read.rejected
    assert np.array_equal(entries.row_ids[entries.rows], ratings.rows)
    assert np.array_equal(entries.col_ids[entries.cols], ratings.cols)
    assert np.array_equal(entries.values, ratings.values)


def test_header_names_choose_the_columns(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("timestamp,rating,movieId,userId\n1,4.5,m1,u1\n2,3,m2,u1\n")
    entries = read_ratings(path).entries
    assert entries.row_ids.tolist() == ["u1"]
    assert entries.col_ids.tolist() == ["m1", "m2"]
    assert entries.values.tolist() == [4.5, 3.0]


def test_dirty_file_is_accounted_for(tmp_path, ratings):
    good = lines(ratings, quote=True)
    faults = {
        "7,item,abc": "not a number",
        "7": "1 field(s), 3 needed",
        "": "empty line",
        '7,"item': "quote not closed",
        "user,item,rating": "header repeated",
        ",item,3": "row identifier missing",
        "7,,3": "column identifier missing",
        "7,item,nan": "not a finite number",
        "\x00\x01\x02 garbage": "1 field(s), 3 needed",
    }
    rng = np.random.default_rng(0)
    text, expected = ["user,item,rating"], []
    for line in good:
        if rng.random() < 0.1:
            fault = list(faults)[len(expected) % len(faults)]
            text.append(fault)
            expected.append((len(text), faults[fault]))
        text.append(line)
    path = tmp_path / "dirty.csv"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(text).encode() + b"\r\n")
    read = read_ratings(path)
    entries = read.entries
    assert [(number, reason) for number, reason, _ in read.rejected] == expected
    assert len(entries) == len(ratings)
    assert entries.values.tolist() == ratings.values.tolist()
    assert entries.col_ids[entries.cols[0]] == f"item, {ratings.cols[0]}"
    command = ["complete", str(path), "--factors", "2", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    with (tmp_path / "rejected.csv").open(newline="") as file:
        header, *written = csv.reader(file)
    assert header == ["line", "reason", "content"]
    assert [(int(number), reason) for number, reason, _ in written] == expected


HEAD = "user,item,rating\n"


@pytest.mark.parametrize(
    ("content", "used", "rejected"),
    [
        ("# by a tool, 2024\n" + HEAD + "a,x,1\nb,y,2\n", 2, ["2 field(s), 3 needed"]),
        (
            "%%%\n\n" + HEAD + "a,x,1\nb,y,2\n",
            2,
            ["1 field(s), 3 needed", "empty line"],
        ),
        ("1,2,oops\n1,2,3\n4,5,6\n", 2, ["not a number"]),
        (HEAD + "a,x,1\nb,Godfather, 5,4\n", 1, ["4 fields, 3 expected"]),
        (HEAD + "a,x,1,\nb,y,2\n", 2, []),
        (HEAD + 'a,5" screen,1\n"b, c",y,2\n', 2, []),
        (HEAD + 'a,x,1\n"b"c,y,2\n', 1, ["misplaced quote: ',' expected after '\"'"]),
        (
            HEAD + f"a,x,1\n{'b' * 2000},y,2\n",
            1,
            ["row identifier longer than 1000 characters"],
        ),
        (HEAD + "a,x,1\nb\0,y,2\n", 1, ["row identifier with a null character"]),
        ((HEAD + "a,x,1\nb,y,2\n").replace("\n", "\r"), 2, []),
        ((HEAD + "a,x,1\nb,y,2\n").encode("utf-16"), 2, []),
        ((HEAD + "é,x,1\nè,x,2\n").encode("latin-1"), 2, []),
        (gzip.compress((HEAD + "a,x,1\nb,y,2\n").encode(), mtime=0), 2, []),
    ],
)
def test_odd_files(tmp_path, content, used, rejected):
    path = tmp_path / "r.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    read = read_ratings(path)
    assert len(read.entries) == len(read.row_ids) == used
    assert [line.reason for line in read.rejected] == rejected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "r.csv.gz",
            gzip.compress(b"user,item,rating\n" + b"a,x,1\n" * 999, mtime=0)[:-20],
        ),
        ("r.parquet", b"user,item,rating\na,x,1\n"),
        ("r.csv", b"PAR1 and then nothing of the kind"),
        ("r.xlsx", b"PK\x03\x04" + bytes(range(256))),
        ("r.csv", bytes(range(256)) * 9),
    ],
)
def test_damaged_files_are_said(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(overt.InputError, match=name):
        read_ratings(path)
    with pytest.raises(overt.InputError, match=name):
        read_ratings(tmp_path)


def test_a_headers_names_are_known_in_the_pairs_too(tmp_path):
    path, pairs = tmp_path / "r.csv", tmp_path / "p.csv"
    path.write_text("client,dish,taste\na,x,1\n")
    pairs.write_text("client,dish\na,x\n")
    assert read_ratings(path).header == ("client", "dish", "taste")
    assert len(files.read_pairs(pairs).rows) == 2
    assert len(files.read_pairs(pairs, ("client", "dish", "taste")).rows) == 1


def test_duplicates(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("a,x,1\na,y,5\na,x,4\n")
    assert read_ratings(path).entries.values.tolist() == [2.5, 5.0]
    assert read_ratings(path, "last").entries.values.tolist() == [4.0, 5.0]
    assert read_ratings(path).duplicates == 1
    assert (
        repr(read_ratings(path)) == "RatingsFile(2 entries, 0 rejected, 1 duplicates)"
    )
    with pytest.raises(overt.InputError, match="1 duplicate entries") as error:
        read_ratings(path, "error")
    assert "--" not in str(error.value)
    with pytest.raises(
        overt.InputError, match="duplicates must be one of 'mean', 'last', 'error'"
    ):
        read_ratings(path, "first")
    run = CliRunner().invoke(app, ["complete", str(path), "--duplicates", "first"])
    assert "--duplicates must be one of" in str(run.exception)


def test_what_was_read_can_be_fitted(tmp_path, ratings):
    path = tmp_path / "r.csv"
    path.write_text("\n".join(lines(ratings)) + "\n")
    read = read_ratings(path)
    model = DropoutCompletion(2, max_sweeps=3).fit(read.entries)
    expected = DropoutCompletion(2, max_sweeps=3).fit(ratings)
    np.testing.assert_allclose(model.predict(read.entries), expected.predict(ratings))


@pytest.mark.parametrize("text", ["", "hello\n", "a,b,c\nd,e,f\n"])
def test_useless_files_are_said(tmp_path, text):
    path = tmp_path / "r.csv"
    path.write_text(text)
    with pytest.raises(overt.InputError, match=r"r\.csv"):
        read_ratings(path)


def test_command_completes_and_recommends(tmp_path, ratings):
    path, pairs, out = tmp_path / "r.csv", tmp_path / "pairs.csv", tmp_path / "out"
    path.write_text("\n".join([*lines(ratings), "oops"]) + "\n")
    pairs.write_text("user,item\n3,4\n3,999\n999,999\nabc,4\n03,4\n")
    run = CliRunner().invoke(
        app,
        [
            "complete",
            str(path),
            "--factors",
            "4",
            "--predict",
            str(pairs),
            "--out",
            str(out),
        ],
    )
    assert run.exit_code == 0, run.output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rejected"] == 1
    assert summary["holdout"] == 50
    with (out / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    flags = [
        "",
        "unknown column",
        "unknown row and column",
        "unknown row",
        "unknown row",
    ]
    assert [row["flag"] for row in rows] == flags
    assert [row["row"] for row in rows] == ["3", "3", "999", "abc", "03"]
    model = DropoutCompletion.load(out)
    assert float(rows[0]["prediction"]) == pytest.approx(
        model.predict([3], [4])[0], rel=1e-5
    )
    assert not (out / "checkpoint").exists()
    command = ["recommend", str(out), "--user", "3", "-n", "30", "--why", "--json"]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.output
    rated = set(ratings.cols[ratings.rows == 3].tolist())
    assert len(model.entries_) == 500  # fitted again to all after measuring
    best = [col for col in model.recommend(3, 30).cols.tolist() if col not in rated]
    assert [r["column"] for r in json.loads(run.output)] == best
    assert all(set(r["because"]) <= rated for r in json.loads(run.output))


def test_nothing_may_be_held_out(tmp_path, ratings):
    path, out = tmp_path / "r.csv", tmp_path / "out"
    path.write_text("\n".join(lines(ratings)) + "\n")
    command = ["complete", str(path), "--factors", "2", "--out", str(out), "--holdout"]
    for holdout, found in (("0.2", True), ("0", False)):
        run = CliRunner().invoke(app, [*command, holdout])
        assert run.exit_code == 0, run.output
        assert (out / "holdout.csv").exists() == found
        assert (
            "holdout_rmse" in json.loads((out / "summary.json").read_text())
        ) == found
    assert len(DropoutCompletion.load(out).entries_) == len(ratings)


def test_sweeps_can_be_resumed(tmp_path, ratings):
    model = DropoutCompletion(3, 0.2, max_sweeps=6, tol=0.0)

    def stop(form):
        if len(form.history) == 5:
            raise KeyboardInterrupt

    def fit(resume, **how):
        checkpoint = SweepCheckpoint(
            tmp_path, ratings, model.get_params(), resume=resume
        )
        return model.fit_entries(ratings, checkpoint=checkpoint, **how).U_

    whole = fit(False)
    fit(False, on_step=stop)
    assert model.status_ == "interrupted"
    assert np.array_equal(fit(True), whole)


def test_interrupted_command_can_be_resumed(tmp_path, ratings, monkeypatch):
    """Ctrl-C keeps the model so far and the checkpoint; what the user keeps there stays."""
    path, out = tmp_path / "r.csv", tmp_path / "out"
    path.write_text("\n".join(lines(ratings)) + "\n")
    (out / "checkpoint").mkdir(parents=True)
    (out / "checkpoint" / "mine.txt").write_text("x")
    command = ["complete", str(path), "--factors", "3", "--out", str(out)]
    write = SweepCheckpoint.write

    def stop(self, form):
        write(self, form)
        if len(form.history) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SweepCheckpoint, "write", stop)
        run = CliRunner().invoke(app, command)
    assert run.exit_code == 130
    assert DropoutCompletion.load(out).n_sweeps_ == 3
    assert json.loads((out / "summary.json").read_text())["status"] == "interrupted"
    run = CliRunner().invoke(app, [*command, "--resume"])
    assert run.exit_code == 0
    resumed = DropoutCompletion.load(out)
    assert resumed.n_sweeps_ > 3
    assert [p.name for p in (out / "checkpoint").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("option", [[], ["--drop-prob", "0.2"]])
def test_resume_reaches_the_same_factors(tmp_path, ratings, option, monkeypatch):
    """A run stopped after any sweep and resumed ends where an uninterrupted one does."""
    path = tmp_path / "r.csv"
    path.write_text("\n".join(lines(ratings)) + "\n")
    common = ["complete", str(path), "--factors", "3", *option]
    assert (
        CliRunner().invoke(app, [*common, "--out", str(tmp_path / "a")]).exit_code == 0
    )
    whole = DropoutCompletion.load(tmp_path / "a")
    write, count = SweepCheckpoint.write, 0

    def dying(self, form):
        nonlocal count
        count += 1
        write(self, form)
        if count in (2, 5, 30):
            raise MemoryError

    monkeypatch.setattr(SweepCheckpoint, "write", dying)
    out = ["--out", str(tmp_path / "b"), "--resume"]
    for _ in range(4):
        if CliRunner().invoke(app, [*common, *out]).exit_code == 0:
            break
    resumed = DropoutCompletion.load(tmp_path / "b")
    np.testing.assert_allclose(resumed.U_, whole.U_, atol=1e-9)
    rows, cols = (x.ravel() for x in np.indices(whole.complete().shape))
    np.testing.assert_allclose(
        resumed.model_.predict(rows, cols), whole.model_.predict(rows, cols), atol=1e-9
    )


def test_resume_refuses_other_data_and_settings(tmp_path, ratings, monkeypatch):
    path, out = tmp_path / "r.csv", tmp_path / "out"
    path.write_text("\n".join(lines(ratings)) + "\n")
    monkeypatch.setattr(SweepCheckpoint, "clear", lambda self: None)
    assert (
        CliRunner().invoke(app, ["complete", str(path), "--out", str(out)]).exit_code
        == 0
    )
    again = ["complete", str(path), "--out", str(out), "--resume"]
    runs = [CliRunner().invoke(app, [*again, "--drop-prob", "0.3"])]
    path.write_text("\n".join(lines(ratings)[1:]) + "\n")
    runs.append(CliRunner().invoke(app, again))
    for run in runs:
        assert isinstance(run.exception, overt.InputError)
        assert "other data or settings" in str(run.exception)
    assert (out / "checkpoint" / "learned.safetensors").exists()


def test_kill_leaves_nothing_unreadable(tmp_path):
    """Kill -9 during the sweeps, then resume."""
    ratings = datasets.generate_ratings(300, 200, 12_000, seed=0)[0]
    path, out = tmp_path / "r.csv", tmp_path / "out"
    path.write_text("\n".join(lines(ratings)) + "\n")
    code = "import overt.cli; from overt.cli.base import main; main()"
    command = [
        sys.executable,
        "-c",
        code,
        "complete",
        str(path),
        "--out",
        str(out),
        "--n-jobs",
        "1",
    ]
    process = subprocess.Popen(
        [*command, "--drop-prob", "0.3"], stdout=subprocess.DEVNULL
    )
    started = time.monotonic()
    while not (out / "checkpoint" / "fixed.safetensors").exists():
        assert time.monotonic() - started < 120
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = (out / "model.safetensors").exists()
    resumed = [*command, "--drop-prob", "0.3", *([] if finished else ["--resume"])]
    subprocess.run(resumed, check=True, stdout=subprocess.DEVNULL)
    entries = read_ratings(path).entries
    whole = DropoutCompletion(32, 0.3).fit_entries(entries)
    np.testing.assert_allclose(DropoutCompletion.load(out).U_, whole.U_, atol=1e-6)


@pytest.fixture
def folder(tmp_path, ratings):
    """The same ratings in one file and, in another order of files than of names, in a folder."""
    text, path = lines(ratings), tmp_path / "ratings"
    (path / "more").mkdir(parents=True)
    header = "user,item,rating\n"
    (tmp_path / "r.csv").write_text(header + "\n".join(text) + "\n")
    for name, part in (
        ("a.csv", text[:100]),
        ("b.csv", text[100:]),
        ("more/c.csv", []),
    ):
        (path / name).write_text(header + "".join(line + "\n" for line in part))
    (path / "_SUCCESS").write_text("")
    return path


def test_a_folder_is_read_like_one_file(folder, tmp_path):
    whole, parts = (
        read_ratings(tmp_path / "r.csv"),
        read_ratings(folder, memory_limit="200MB"),
    )
    for name in ("rows", "cols", "values", "row_ids", "col_ids"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


@pytest.mark.parametrize("form", [{}, {"drop_prob": 0.2}], ids=["learned", "fixed"])
def test_a_fit_from_disk_is_the_same(folder, tmp_path, form, monkeypatch):
    monkeypatch.setattr("overt.completion.memory.SLICE", 64)
    settings = {"n_factors": 3, "max_sweeps": 3} | form
    here = DropoutCompletion(**settings).fit(tmp_path / "r.csv")
    there = DropoutCompletion(memory_limit="200MB", **settings).fit(folder)
    np.testing.assert_allclose(there.U_, here.U_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(there.objective_, here.objective_, rtol=1e-9)


def test_lines_of_a_folder_are_accounted_for(folder):
    with (folder / "b.csv").open("a") as file:
        file.write("1,2,much\n")
    found = read_ratings(folder).rejected
    count = len((folder / "b.csv").read_text().splitlines())
    assert [(r.line, r.reason, r.content) for r in found] == [
        (count, "b.csv: not a number", "1,2,much")
    ]


def test_folders_that_cannot_be_read_are_named(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(overt.InputError, match="holds no files"):
        read_ratings(tmp_path / "empty")
    with pytest.raises(overt.InputError, match="memory_limit must be"):
        read_ratings(folder, memory_limit="much")
    (folder / "d.csv").write_text("song,listener\n1,2\n")
    with pytest.raises(overt.InputError, match="all files must have the same"):
        read_ratings(folder)


def test_a_limit_too_small_for_the_factors_is_told():
    wide = overt.Entries([0, 1], [0, 1], [1.0, 2.0], shape=(200_000, 10))
    with pytest.raises(overt.InputError, match="memory_limit must be at least"):
        DropoutCompletion(memory_limit="100MB", signals=False).fit(wide)


def test_memory_and_file_handles_stay(ratings, tmp_path):
    status = Path("/proc/self/fd")
    if not status.exists():
        pytest.skip("needs /proc")
    handles, maps = [], []
    for number in range(4):
        how = {"memory_limit": "1GB"} if number % 2 else {}
        model = DropoutCompletion(2, max_sweeps=2, **how).fit(ratings)
        model.save(tmp_path)
        DropoutCompletion.load(tmp_path).predict(ratings)
        del model
        gc.collect()
        handles.append(len(list(status.iterdir())))
        maps.append(Path("/proc/self/maps").read_text().count("(deleted)"))
    assert handles[-1] <= handles[1]
    assert maps[-1] <= maps[1]


@pytest.mark.parametrize("folder", [False, True])
def test_times_of_some_entries_alone_are_named(tmp_path, folder):
    path = tmp_path / "r" if folder else tmp_path / "r.csv"
    place = path / "a.csv" if folder else path
    place.parent.mkdir(exist_ok=True)
    place.write_text("user,item,rating,time\na,x,1,10\nb,y,2,\nc,x,3,12\n")
    with pytest.warns(UserWarning, match="1 of 3 entries .* have no time"):
        assert read_ratings(path).times is None


@pytest.mark.parametrize("header", ["", "user;item;rating\n"])
def test_decimal_commas_are_read_where_they_can_mean_nothing_else(tmp_path, header):
    (tmp_path / "r.csv").write_text(
        header + "a;x;4,5\nb;y;-,5\na;y;2\nb;x;0,234\nc;x;1,234\n"
    )
    read = read_ratings(tmp_path / "r.csv")
    assert read.values.tolist() == [4.5, -0.5, 2.0, 0.234]
    assert [line.reason for line in read.rejected] == [
        "not a number"
    ]  # a thousand, or a decimal


def test_samples_are_taken_anew_on_resume(tmp_path, ratings):
    """A kill while files were removed left a state without its samples, which resume refused."""
    model = DropoutCompletion(3, max_sweeps=3, tol=0, average=2)
    model.fit(ratings, checkpoint=tmp_path)
    assert [path.stem for path in tmp_path.iterdir()] == ["learned"]
    again = DropoutCompletion(3, max_sweeps=3, tol=0, average=2)
    again.fit(ratings, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(again.predict(ratings), model.predict(ratings))
