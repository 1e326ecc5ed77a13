"""The theorems and the tour's chapter."""

import overt.theorems.relu
from overt._html import Page
from overt.theorems.base import registered, verify
from overt.tour.relu import chapter


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
