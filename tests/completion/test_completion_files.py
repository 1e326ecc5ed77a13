"""Ratings files: every line is used or accounted for; killed runs go on to the same result."""

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import overt
from overt import datasets
from overt.cli.base import app
from overt.completion import DropoutCompletion, files

from overt.cli import completion as commands  # isort: skip

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


@pytest.mark.parametrize("kind", ["csv", "tsv", "dat", "gz", "parquet", "spaces", "semicolon"])
def test_formats_agree(tmp_path, ratings, kind):
    separator = {"tsv": "\t", "dat": "::", "spaces": " ", "semicolon": ";"}.get(kind, ",")
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
    entries, table = files.read_ratings(path)
    assert not table.rejected
    assert np.array_equal(entries.row_ids[entries.rows], ratings.rows)
    assert np.array_equal(entries.col_ids[entries.cols], ratings.cols)
    assert np.array_equal(entries.values, ratings.values)


def test_header_names_choose_the_columns(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("timestamp,rating,movieId,userId\n1,4.5,m1,u1\n2,3,m2,u1\n")
    entries, _ = files.read_ratings(path)
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
    entries, table = files.read_ratings(path)
    assert [(number, reason) for number, reason, _ in table.rejected] == expected
    assert len(entries) == len(ratings)
    assert entries.values.tolist() == ratings.values.tolist()
    assert entries.col_ids[entries.cols[0]] == f"item, {ratings.cols[0]}"
    files.write_rejected(tmp_path / "rejected.csv", table)
    with (tmp_path / "rejected.csv").open(newline="") as file:
        assert len(list(csv.reader(file))) == len(expected) + 1


def test_duplicates(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("a,x,1\na,y,5\na,x,4\n")
    assert files.read_ratings(path)[0].values.tolist() == [2.5, 5.0]
    assert files.read_ratings(path, "last")[0].values.tolist() == [4.0, 5.0]
    assert files.read_ratings(path)[1].duplicates == 1
    with pytest.raises(overt.InputError, match=r"1 duplicate entries, such as \(a, x\)"):
        files.read_ratings(path, "error")


@pytest.mark.parametrize("text", ["", "hello\n", "a,b,c\nd,e,f\n"])
def test_useless_files_are_said(tmp_path, text):
    path = tmp_path / "r.csv"
    path.write_text(text)
    with pytest.raises(overt.InputError, match=r"r\.csv"):
        files.read_ratings(path)


def test_command_completes_and_recommends(tmp_path, ratings):
    path, pairs, out = tmp_path / "r.csv", tmp_path / "pairs.csv", tmp_path / "out"
    path.write_text("\n".join([*lines(ratings), "oops"]) + "\n")
    pairs.write_text("user,item\n3,4\n3,999\n999,999\n")
    run = CliRunner().invoke(
        app, ["complete", str(path), "--factors", "4", "--predict", str(pairs), "--out", str(out)]
    )
    assert run.exit_code == 0, run.output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rejected"] == 1
    assert summary["held_out"] == 50
    with (out / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["flag"] for row in rows] == ["", "unknown column", "unknown row and column"]
    model = DropoutCompletion.load(out)
    assert float(rows[0]["prediction"]) == pytest.approx(model.predict([3], [4])[0], rel=1e-5)
    assert not (out / "checkpoint").exists()
    run = CliRunner().invoke(app, ["recommend", str(out), "--user", "3", "-n", "3", "--json"])
    assert run.exit_code == 0, run.output
    assert [r["column"] for r in json.loads(run.output)] == model.recommend(3, 3).cols.tolist()


@pytest.mark.parametrize("option", [[], ["--drop-prob", "0.2"], ["--average", "3"]])
def test_resume_reaches_the_same_factors(tmp_path, ratings, option, monkeypatch):
    """A run stopped after any sweep and resumed ends where an uninterrupted one does."""
    from overt.completion.checkpoint import Checkpoint

    path = tmp_path / "r.csv"
    path.write_text("\n".join(lines(ratings)) + "\n")
    common = ["complete", str(path), "--factors", "3", *option]
    assert CliRunner().invoke(app, [*common, "--out", str(tmp_path / "a")]).exit_code == 0
    whole = DropoutCompletion.load(tmp_path / "a")
    write, count = Checkpoint.write, 0

    def dying(self, kind, form):
        nonlocal count
        count += 1
        write(self, kind, form)
        if count in (2, 5, 30):
            raise MemoryError

    monkeypatch.setattr(Checkpoint, "write", dying)
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


def test_resume_refuses_other_data(tmp_path, ratings, monkeypatch):
    from overt.completion.checkpoint import Checkpoint

    path, out = tmp_path / "r.csv", tmp_path / "out"
    path.write_text("\n".join(lines(ratings)) + "\n")
    monkeypatch.setattr(commands.shutil, "rmtree", lambda folder: None)
    assert CliRunner().invoke(app, ["complete", str(path), "--out", str(out)]).exit_code == 0
    path.write_text("\n".join(lines(ratings)[1:]) + "\n")
    run = CliRunner().invoke(app, ["complete", str(path), "--out", str(out), "--resume"])
    assert isinstance(run.exception, overt.InputError)
    assert "other data or settings" in str(run.exception)
    assert Checkpoint  # the folder is left as it was
    assert (out / "checkpoint" / "learned.safetensors").exists()


def test_kill_leaves_nothing_unreadable(tmp_path):
    """Kill -9 during the sweeps, then resume."""
    ratings = datasets.generate_ratings(300, 200, 12_000, seed=0)[0]
    path, out = tmp_path / "r.csv", tmp_path / "out"
    path.write_text("\n".join(lines(ratings)) + "\n")
    code = "import overt.cli.completion; from overt.cli.base import main; main()"
    command = [sys.executable, "-c", code, "complete", str(path), "--out", str(out), "--jobs", "1"]
    process = subprocess.Popen([*command, "--drop-prob", "0.3"], stdout=subprocess.DEVNULL)
    started = time.monotonic()
    while not (out / "checkpoint" / "fixed.safetensors").exists():
        assert time.monotonic() - started < 120
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = (out / "model.json").exists()
    resumed = [*command, "--drop-prob", "0.3", *([] if finished else ["--resume"])]
    subprocess.run(resumed, check=True, stdout=subprocess.DEVNULL)
    entries, _ = files.read_ratings(path)
    order = np.random.default_rng([0, 2]).permutation(len(entries))
    train = entries.take(np.sort(order[len(entries) // 10 :]))
    whole = DropoutCompletion(32, 0.3).fit_entries(train)
    np.testing.assert_allclose(DropoutCompletion.load(out).U_, whole.U_, atol=1e-6)
