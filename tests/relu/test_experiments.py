"""The experiments at toy size, the theorems and the tour's chapter."""

import copy

import pytest

import overt.theorems.relu
from overt import experiments
from overt._html import Page
from overt.experiments.runner import run
from overt.theorems.base import registered, verify
from overt.tour.relu import chapter

NAMES = ("thesis-fig4-2", "thesis-fig5-2", "thesis-fig5-3")


@pytest.fixture(scope="module", params=NAMES)
def finished(request):
    experiment = experiments.find(request.param)
    return experiment, run(experiment, size="toy")


def test_claims_hold_at_toy_size(finished):
    experiment, rows = finished
    assert [f.claim for f in experiment.check(rows) if not f.holds] == []
    assert len(experiment.plot(rows).axes) >= 3


def test_claims_can_fail(finished):
    """Rows in which widths or drop probabilities change places do not pass."""
    experiment, rows = finished
    broken = copy.deepcopy(rows)
    axis = "drop_prob" if experiment.id == "thesis-fig4-2" else "width"
    values = sorted({row[axis] for row in rows})
    swap = dict(zip(values, reversed(values), strict=True))
    for row in broken:
        row[axis] = swap[row[axis]]
        if axis == "width":
            row["drop_prob"] = row.get("drop_prob")
            if row["drop_prob"] is not None and row["drop_prob"] != 0.5:
                row[axis] = values[-1]
    assert not all(f.holds for f in experiment.check(broken))


def test_theorems_hold():
    module = overt.theorems.relu.__name__
    names = [name for name, entry in registered().items() if entry.check.__module__ == module]
    assert len(names) == 9
    verdicts = list(verify(names))
    assert [v.id for v in verdicts if v.verdict != "holds"] == []
    assert sum(v.correction is not None for v in verdicts) == 3


def test_chapter_of_the_tour(tmp_path):
    page = Page("t", "l")
    assert chapter(page, tmp_path, 0)
    text = page.write(tmp_path / "page.html").read_text()
    assert text.count("<img") == 2
    assert (tmp_path / "relu-lazy.json").exists()
