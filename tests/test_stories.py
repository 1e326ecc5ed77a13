"""The four stories, the page that the tour makes of them, and the README that quotes them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from overt import stories
from overt._html import Page
from overt.papers import items

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def toured(tmp_path_factory):
    """Run the command as a user would."""
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("tour")
    command = [
        sys.executable,
        "-m",
        "overt",
        "tour",
        "--out",
        str(folder / "page"),
        "--json",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["page"]
    return json.loads(done.stdout)


def test_all_claims_of_the_stories_hold(toured):
    assert [story["name"] for story in toured["stories"]] == list(stories.STORIES)
    assert {story["status"] for story in toured["stories"]} == {"finished"}


def test_the_page_is_one_file_with_all_results(toured):
    page = Path(toured["page"])
    text = page.read_text(encoding="utf-8")
    assert [path.name for path in page.parent.iterdir()] == ["index.html"]
    assert not re.search(r'(src|href)="(http|//|/)', text)
    assert text.count("data:image/png") >= len(stories.STORIES)
    for story in toured["stories"]:
        assert story["headline"] in text
    assert "accepted: proof.json" in text
    assert text.count("\n  Correction: ") == 4


def test_a_claim_that_does_not_hold_is_reported(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(stories, "STORIES", ("broken",))
    monkeypatch.setattr(
        stories,
        "read_story",
        lambda name: (
            "Title",
            "Introduction.",
            [("Text.", "print('seen')\nassert 1 == 2")],
        ),
    )
    result = stories.tour(tmp_path)
    assert [chapter.status for chapter in result.chapters] == ["failed"]
    assert "seen" in result.path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", stories.STORIES)
def test_a_story_without_its_extra_is_named_and_the_others_run(name, tmp_path):
    """An interpreter without torch runs the stories that do not need it."""
    pytest.importorskip("matplotlib")
    program = (
        "import sys\n"
        "class WithoutTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError('No module named torch', name='torch')\n"
        "sys.meta_path.insert(0, WithoutTorch())\n"
        "from pathlib import Path\n"
        "from overt import stories\n"
        f"stories.STORIES = ({name!r},)\n"
        "print(stories.tour(Path('.')).chapters[0].status)\n"
    )
    if name == "theorist":
        pytest.skip("its corrections run in the tour; nothing in it needs torch")
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    expected = "finished" if name == "matrix" else "not run"
    assert done.stdout.split("\n")[-2] == expected, done.stderr


def test_the_readme_shows_lines_of_the_stories():
    told = "\n".join(
        code for name in stories.STORIES for _, code in stories.read_story(name)[2]
    )
    known = {line.strip() for line in told.splitlines()}
    shown = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert shown
    assert [
        line
        for block in shown
        for line in block.splitlines()
        if line.strip() not in known
    ] == []


def test_the_readme_counts_what_there_is():
    # Statements of a user that other tests have loaded belong to no paper.
    statements = [item for item in items().values() if item.check and item.paper]
    corrected = sum(bool(item.printed) for item in statements)
    assert f"**{len(statements)} statements of the papers**" in README
    assert f"**{corrected} of them had to be corrected**" in README


def test_pages_escape_what_they_show(tmp_path):
    page = Page("A <title>", "lead & more")
    page.section("First")
    page.text("1 < 2")
    page.markup("**bold** and ``a < b``")
    page.table(("name", "value"), [("x<y", 1.5), ("verdict", True), ("missing", None)])
    page.table(("x",), [(i,) for i in range(40)])
    text = page.write(tmp_path / "page.html", "foot").read_text()
    assert "A &lt;title&gt;" in text
    assert "<b>bold</b> and <code>a &lt; b</code>" in text
    assert "x&lt;y" in text
    assert "<details><summary>40 rows" in text
    assert not list(tmp_path.glob("*.part"))
