"""The record in docs/record: its page is what its rows say, and no item is missing."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from overt import experiments, theorems
from overt.experiments import record

FOLDER = Path(__file__).parent.parent / "docs" / "record"
STATUS = {"holds", "corrected", "open", "definition", "cited", "not checked"}


def items():
    with (FOLDER / "papers.tsv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", restval=""))


def known():
    return [experiments.find(name) for name in experiments.IDS]


def test_every_check_exists_and_every_gap_has_a_reason():
    ids = {**theorems.registered(), **dict.fromkeys(experiments.IDS)}
    for item in items():
        assert item["status"] in STATUS, item
        checks = [name for name in item["checks"].split(",") if name]
        assert set(checks) <= set(ids), item
        if item["status"] in ("holds", "corrected", "open", "definition"):
            assert checks, item
        if item["status"] in ("open", "not checked"):
            assert len(item["note"]) > 10, item
        if item["status"] == "corrected":
            assert item["note"] or any(getattr(ids[c], "correction", None) for c in checks), item


def test_all_numbered_items_of_the_papers_are_listed():
    listed = Counter((item["paper"], item["item"]) for item in items())
    assert set(listed.values()) == {1}
    counts = {"Theorem": 22, "Lemma": 22, "Corollary": 5, "Definition": 7, "Algorithm": 6,
              "Remark": 7, "Assumption": 3}  # fmt: skip
    thesis = {name for paper, name in listed if paper == "Thesis"}
    for kind, count in counts.items():
        wanted = {f"{kind} {i}" for i in range(1, count + 1)}
        # What the thesis calls Proposition 8 counts with the theorems.
        assert wanted - thesis <= {"Theorem 8"}, kind
    assert {f"Proposition {i}" for i in (1, 2, 3, 4, 5, 6, 8)} <= thesis
    for paper, count in (("Implicit bias of dropout", 3), ("Structured dropout", 6),
                         ("One-way jumps", 4)):  # fmt: skip
        assert {(paper, f"Figure {i}") for i in range(1, count + 1)} <= set(listed)


def test_what_is_checked_has_a_place_in_the_papers():
    named = {name for item in items() for name in item["checks"].split(",")}
    own = {
        name
        for name, t in theorems.registered().items()
        if t.source.startswith("overt") or name.startswith("compress-")
    } | {"completion-rows"}
    ours = {"jumps-minima", "nn-realized"}
    assert set(theorems.registered()) - named - own == set()
    assert set(experiments.IDS) - named == ours


def test_the_page_is_what_the_rows_say():
    pytest.importorskip("matplotlib")
    pytest.importorskip("torch")
    assert (FOLDER / "index.md").read_text(encoding="utf-8") == record.markdown(known(), FOLDER)
    held = {entry.experiment.id for entry in record.entries(known(), FOLDER)}
    assert held == set(experiments.IDS)
    assert all((FOLDER / f"{name}.png").exists() for name in held)


def test_rows_name_no_machine_and_are_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_000_000
    for path in FOLDER.glob("*.jsonl"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/(home|work|root|Users|tmp)/", text)
        assert text.count('"date":"20') == text.count('"key":')
