"""The tour: one self-contained page whose claims held."""

import re
import sys

import pytest

from overt._html import Page
from overt.tour.lines import LINES


def test_page_is_self_contained_and_escaped(tmp_path):
    page = Page("A <title>", "lead & more")
    page.section("First")
    page.text("1 < 2")
    page.table(("name", "value"), [("x<y", 1.5), ("verdict", True), ("missing", None)])
    page.code("a && b")
    text = page.write(tmp_path / "page.html", "foot").read_text()
    assert "A &lt;title&gt;" in text
    assert "x&lt;y" in text
    assert 'class="holds"' in text
    assert not re.search(r'(src|href)="(http|//|/)', text)
    assert not list(tmp_path.glob("*.part"))


def test_figures_are_embedded(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    figure.subplots().plot([1, 2])
    page = Page("t", "l")
    page.figure(figure, "a caption")
    assert 'src="data:image/png;base64,' in page.write(tmp_path / "p.html").read_text()


@pytest.mark.parametrize("name", LINES)
def test_lines_to_copy_run(name):
    if "torch" in LINES[name]:
        pytest.importorskip("torch")
    exec(LINES[name], {"__name__": "lines"})  # noqa: S102


def test_long_tables_are_folded(tmp_path):
    page = Page("t", "l")
    page.table(("x",), [(i,) for i in range(40)])
    assert "<details><summary>40 rows" in page.write(tmp_path / "p.html").read_text()


def test_chapters_say_what_they_need(tmp_path, monkeypatch):
    from overt.tour import robust

    monkeypatch.setattr("sys.meta_path", [Without("torch"), *sys.meta_path])
    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    page = Page("t", "l")
    assert robust.chapter(page, tmp_path, 0)
    assert "PyTorch is not installed" in page.write(tmp_path / "p.html").read_text()


class Without:
    """An import system without one package."""

    def __init__(self, package):
        self._package = package

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_tour_writes_a_report_whose_claims_hold(tmp_path, monkeypatch):
    from overt import papers
    from overt.tour import CHAPTERS, tour

    # All statements are checked in tests/papers; here every fifth.
    known = [item for item in papers.items().values() if item.check][::5]
    monkeypatch.setattr(papers, "items", lambda: {item.id: item for item in known})
    verify = papers.verify
    monkeypatch.setattr(papers, "verify", lambda seed: verify(known, seed=seed))
    path, held = tour(tmp_path)
    assert held
    text = path.read_text()
    assert text.count("<h2") >= len(CHAPTERS)
    assert text.count("data:image/png") >= 8
    for words in ("recommended to row 0", "dropout without sampling"):
        assert words in text
    for name in ("relu-lazy.json", "robust-usual.json"):
        assert (tmp_path / name).exists()
    assert "fails</td>" not in text
    assert not re.search(r'(src|href)="(http|//|/)', text)


def test_a_second_tour_computes_its_rows_again(tmp_path):
    pytest.importorskip("matplotlib")
    from overt._html import Page
    from overt.tour import foundation

    # Rows that another version left in the folder must not be shown as new.
    (tmp_path / "dropout-fig1.jsonl").write_text("not rows of this version\n")
    assert foundation.landscape(Page("t", "l"), tmp_path, 0)
