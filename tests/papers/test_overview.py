"""Labels and pages: what they say is what the stored rows and verdicts support."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from overt import InputError
from overt.papers import Finding, Item, items, run
from overt.papers import overview as record
from overt.papers.overview import StoredVerdict, labels, summarize, write_verdicts
from overt.papers.verification import Verdict

from .test_runner import counting_figure

FOLDER = Path(__file__).parents[2] / "docs" / "record"
FIGURES = record.figures_of(items().values())


def drawn(rows):
    from matplotlib.figure import Figure

    return Figure()


def as_item(name, **parts):
    known = {
        "paper": "",
        "label": "",
        "section": "",
        "title": "",
        "claim": "",
        "how": "sampled",
    }
    return Item(**{"id": name, **known, **parts})


def stored(verdict):
    return StoredVerdict(verdict, 3, "2026-01-02", "", 0.0, 1.0, None, None, "")


def test_a_label_is_computed_from_what_is_stored(tmp_path):
    def no_check(rng):
        raise AssertionError("labels run nothing")

    figure = counting_figure([])
    known = {
        item.id: item
        for item in (
            as_item("counting", figure=figure),
            as_item("good", check=no_check),
            as_item("bad", check=no_check),
            as_item("weak", check=no_check),
            as_item("never", check=no_check),
            as_item("both", by=("good", "bad")),
            as_item("drawn", by=("good", "counting")),
            as_item("word", how="definition", by=("good",)),
        )
    }
    verdicts = {
        "good": stored("holds"),
        "bad": stored("fails"),
        "weak": stored("no power"),
    }
    write_verdicts(verdicts, tmp_path)

    def found():
        return {name: label.verdict for name, label in labels(known, tmp_path).items()}

    assert found() == {
        "counting": "not run",
        "good": "holds",
        "bad": "fails",
        "weak": "no power",
        "never": "not run",
        "both": "fails",
        "drawn": "not run",
        "word": "definition",
    }
    run(figure, size="toy", out=tmp_path)
    assert found()["counting"] == "not run at this size"
    assert found()["drawn"] == "not run at this size"
    run(figure, size="paper", out=tmp_path)
    assert found()["counting"] == "holds"
    assert found()["drawn"] == "holds"
    wrong = replace(
        figure, check=lambda rows: [Finding("squares are negative", False, "")]
    )
    known["counting"] = as_item("counting", figure=wrong)
    assert found()["counting"] == "fails"
    assert str(labels(known, tmp_path)["good"]) == "holds (3 seeds, 2026-01-02)"


def test_the_worst_of_several_seeds_is_stored():
    def verdict(word, residual, null):
        return Verdict(
            "x", "", "", "", "", "sampled", residual, 1.0, None, null, word, word, 0.0
        )

    found = summarize(
        [
            verdict("holds", 0.1, 9.0),
            verdict("fails", 2.0, 8.0),
            verdict("holds", 0.2, 7.0),
        ],
        "2026-01-02",
    )["x"]
    assert (found.verdict, found.seeds, found.residual, found.null) == (
        "fails",
        3,
        2.0,
        7.0,
    )


def test_verdicts_survive_storing(tmp_path):
    write_verdicts({"good": stored("holds")}, tmp_path)
    assert record.read_verdicts(tmp_path) == {"good": stored("holds")}
    assert record.read_verdicts(tmp_path / "none") == {}
    (tmp_path / "verdicts.json").write_text("[1, 2")
    with pytest.raises(InputError, match="cannot be read as verdicts"):
        record.read_verdicts(tmp_path)


def test_all_is_resumed_and_what_is_absent_is_listed(tmp_path):
    pytest.importorskip("matplotlib")
    calls = []
    good = replace(counting_figure(calls), plot=drawn)

    def lacks(params, seed):
        raise InputError("OVERT_DATA must hold moon.npz")

    bad = replace(good, id="lacking", run=lacks)
    seen = []
    absent = record.run_all(
        [good, bad], "reduced", tmp_path, on_row=lambda *row: seen.append(row)
    )
    assert absent == {"lacking": "lacking: OVERT_DATA must hold moon.npz"}
    assert seen[-1][:2] == (6, 6)
    (found,) = record.measured([good], tmp_path)
    assert found.where.endswith("Of the paper size 3 of 4 rows are stored.")
    record.run_all([good], "paper", tmp_path)
    assert calls == [1, 2, 3, 4]
    (found,) = record.measured([good, bad], tmp_path)
    assert (found.size, found.counts) == ("paper", "1 holds")
    text = record.write_page([good, bad], tmp_path, absent).read_text()
    assert all(
        part in text for part in ("moon.npz", "counting", "data:image/png;base64")
    )


def test_the_page_is_what_the_rows_say():
    pytest.importorskip("matplotlib")
    pytest.importorskip("torch")
    assert (FOLDER / "index.md").read_text(encoding="utf-8") == record.markdown(
        FIGURES, FOLDER
    )
    held = {found.figure.id for found in record.measured(FIGURES, FOLDER)}
    assert held == {figure.id for figure in FIGURES}
    assert all((FOLDER / f"{name}.png").exists() for name in held)


def test_every_statement_has_a_stored_verdict_and_no_label_is_better_than_its_numbers():
    pytest.importorskip("torch")
    verdicts = record.read_verdicts(FOLDER)
    known = {name: item for name, item in items().items() if item.paper}
    found = labels(known, FOLDER)
    for name, item in known.items():
        if item.check:
            assert name in verdicts, "overt verify --seeds 12 --out docs/record"
            assert verdicts[name].seeds >= 12
        if found[name].verdict == "holds" and name in verdicts:
            one = verdicts[name]
            assert one.residual <= one.tolerance
            assert one.null is None or one.null > one.tolerance
            assert one.printed is None or one.printed > one.tolerance


def test_rows_name_no_machine_and_are_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 5_000_000
    for path in FOLDER.glob("*.jsonl"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/(home|work|root|Users|tmp)/", text)
        assert text.count('"date":"20') == text.count('"key":')
    json.loads((FOLDER / "verdicts.json").read_text(encoding="utf-8"))
