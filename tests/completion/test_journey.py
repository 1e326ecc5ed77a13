"""From a dirty file to lists for everyone, with an update in between, by the command line."""

import csv
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from overt import Entries, datasets
from overt.cli import app
from overt.completion import DropoutCompletion

pytest.importorskip("duckdb")


def run(*arguments, code=0):
    done = CliRunner().invoke(app, list(map(str, arguments)), terminal_width=200)
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_journey(tmp_path):
    ratings = datasets.generate_ratings(40, 25, 500, seed=0)[0]
    lines = [
        f"{1000 + i},{y:g},sku {b},{a}.0"
        for i, (a, b, y) in enumerate(
            zip(ratings.rows, ratings.cols, ratings.values, strict=True)
        )
    ]
    file = tmp_path / "orders.csv"
    dirty = ["at,stars,sku,customer", *lines[:-20], "oops", "7,,sku 1,3", lines[0], ""]
    file.write_text("\n".join(dirty) + "\n")
    model = tmp_path / "model"
    told = run("complete", file, "--out", model, "--factors", 3, "--duplicates", "last")
    assert "customer, sku, stars, at" in told
    assert "1 duplicate" in told
    assert "fitted again to all ratings" in told
    assert len(read(model / "rejected.csv")) == 3
    summary = json.loads((model / "summary.json").read_text())
    assert summary["holdout_rmse"] < summary["mean_only_rmse"]
    assert len(DropoutCompletion.load(model).entries_) == 480

    found = json.loads(
        run("evaluate", file, "--split", "last", "--factors", 3, "--json")
    )
    assert {"model", "popularity", "biases", "mean"} <= found["figures"].keys()
    assert "ndcg@10" in run("evaluate", file, "--factors", 3)

    pairs, predictions = tmp_path / "pairs.csv", tmp_path / "predictions.csv"
    pairs.write_text("customer,sku\n3,sku 2\n3.0,sku 2\n999,sku 2\n")
    run("predict", model, pairs, "--out", predictions)
    rows = read(predictions)
    assert rows[0]["prediction"] == rows[1]["prediction"]
    assert rows[2]["flag"] == "unknown row"

    today = tmp_path / "today.csv"
    today.write_text(
        "\n".join(["at,stars,sku,customer", *lines[-20:], "9,5,sku 1,new"]) + "\n"
    )
    assert "1 new rows" in run("update", model, today)
    updated = DropoutCompletion.load(model)
    assert len(updated.entries_) == 501
    assert "new" in updated.row_ids_

    lists = tmp_path / "lists.csv"
    (tmp_path / "sold_out.csv").write_text("sku 3\nsku 4\n")
    run(
        "recommend",
        model,
        "--all",
        lists,
        "-n",
        5,
        "--exclude",
        tmp_path / "sold_out.csv",
    )
    rows = read(lists)
    assert (
        {"new", "0", "1"}
        <= {row["row"] for row in rows}
        <= set(map(str, updated.row_ids_))
    )
    assert not {"sku 3", "sku 4"} & {row["column"] for row in rows}
    seen = {
        (str(updated.row_ids_[a]), updated.col_ids_[b])
        for a, b in zip(updated.entries_.rows, updated.entries_.cols, strict=True)
    }
    assert not seen & {(row["row"], row["column"]) for row in rows}

    for text in ("sku,stars\nsku 1,5\nsku 2,1\n", 'sku;stars\n"sku 1";5\n"sku 2";1\n'):
        (tmp_path / "newcomer.csv").write_text(text)
        best = json.loads(
            run("recommend", model, "--entries", tmp_path / "newcomer.csv", "--json")
        )
        assert not {"sku 1", "sku 2"} & {line["column"] for line in best}
    assert "how likely it is chosen" in run(
        "recommend", model, "--user", "new", "--why"
    )


def test_clicks_are_ranked(tmp_path):
    rng = np.random.default_rng(0)
    pairs = {
        (int(a), int(b)) for a, b in rng.integers(0, 30, (300, 2)) if a % 3 == b % 3
    }
    file, model = tmp_path / "clicks.csv", tmp_path / "model"
    file.write_text(
        "\n".join(["user,item", *(f"{a},{b}" for a, b in sorted(pairs))]) + "\n"
    )
    assert "not chosen" in run("complete", file, "--out", model, "--factors", 3)
    assert "rmse" not in run("evaluate", file, "--factors", 3)
    assert "holdout_ndcg@10" in json.loads((model / "summary.json").read_text())
    best = json.loads(run("recommend", model, "--user", "4.0", "-n", 2, "--json"))
    run("recommend", model, "--all", tmp_path / "new folder" / "lists.csv", "-n", 2)
    assert all(line["column"] % 3 == 1 for line in best)


@pytest.mark.parametrize("header", ["sku", "customer,sku", "item;value"])
def test_the_header_of_a_file_of_columns_is_no_column(tmp_path, header):
    """It was warned of as a column that was never seen."""
    ratings = datasets.generate_ratings(20, 9, 120, seed=0)[0]
    rows, cols = (
        [f"{x} {i}" for i in at] for x, at in (("c", ratings.rows), ("s", ratings.cols))
    )
    model = DropoutCompletion(2, max_sweeps=2)
    model.fit(Entries.from_ids(rows, cols, ratings.values)).save(tmp_path / "model")
    delimiter = ";" if ";" in header else ","
    line = ["c 3", "s 4"] if "customer" in header else ["s 4", "5"]
    file = tmp_path / "exclude.csv"
    file.write_text(
        f"{header}\n{delimiter.join(line[: header.count(delimiter) + 1])}\n"
    )
    asked = [
        "recommend",
        tmp_path / "model",
        "--user",
        "c 3",
        "-n",
        9,
        "--seen",
        "--json",
    ]
    if delimiter == ";":
        asked = ["recommend", tmp_path / "model", "--entries", file, "--json"]
    else:
        asked += ["--exclude", file]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        best = [line["column"] for line in json.loads(run(*asked))]
    assert best
    assert "s 4" not in best


def test_mistakes_are_told(tmp_path):
    from overt import InputError

    model = tmp_path / "model"
    DropoutCompletion(2, max_sweeps=2).fit(np.eye(4) + 1).save(model)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "words.csv").write_text("a,b\nc,d\n")
    (tmp_path / "alone.csv").write_text("1\n2\n")
    (tmp_path / "strange.csv").write_text("77,1\n78,2\n")
    by_grade = [f"{i % 5},{i % 7},{i},{i + 100}" for i in range(200)]
    (tmp_path / "grades.csv").write_text("\n".join(["grade,thing,who,when", *by_grade]))
    for arguments, message in (
        (["recommend", model], "--user, --entries and --all"),
        (["recommend", model, "--user", "x"], "whole number"),
        (
            ["recommend", model, "--user", "1", "--exclude", tmp_path / "none"],
            "no file",
        ),
        (["recommend", model, "--entries", tmp_path / "empty.csv"], "empty"),
        (
            ["recommend", model, "--entries", tmp_path / "alone.csv"],
            "has columns alone",
        ),
        (
            ["recommend", model, "--entries", tmp_path / "strange.csv"],
            "names no column",
        ),
        (["update", model, tmp_path / "words.csv"], "no values"),
        (["complete", tmp_path / "grades.csv"], "duplicates of"),
        (
            ["complete", tmp_path / "grades.csv", "--row", "who", "--col", "who"],
            "different",
        ),
        (["recommend", model, "--entries", tmp_path / "words.csv"], "not a number"),
        (
            ["evaluate", tmp_path / "words.csv", "--split", "magic"],
            "split|usable|clicks",
        ),
    ):
        done = CliRunner().invoke(app, list(map(str, arguments)))
        assert isinstance(done.exception, InputError), arguments
        assert any(part in str(done.exception) for part in message.split("|")), (
            done.exception
        )


PAGE = Path(__file__).parents[2] / "docs" / "howto" / "serving.md"


def test_the_page_on_serving_runs_with_its_packages(tmp_path, monkeypatch):
    """All blocks in one process, those that need other packages too."""
    fastapi = pytest.importorskip(
        "fastapi.testclient", reason="the page needs fastapi and httpx"
    )
    pytest.importorskip("hnswlib", reason="the page needs hnswlib")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    blocks = re.findall(
        r"(?:^```python[^\n]*|^<!-- setup)\n(.*?)^(?:```|-->)",
        PAGE.read_text(),
        re.M | re.S,
    )
    assert len(blocks) == 7
    for block in blocks:
        exec(block, names)  # noqa: S102
    client = fastapi.TestClient(names["app"])
    served = client.get("/recommend/7?n=3").json()
    assert served["columns"] == names["served"].recommend(7, 3).cols.tolist()
    assert client.get("/recommend/nobody").status_code == 404
    exact = np.argsort(-(names["items"] @ names["queries"][7]))[:5]
    assert set(exact) <= set(names["columns"][0].tolist())
