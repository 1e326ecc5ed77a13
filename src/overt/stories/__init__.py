"""Four scripts that show what overt does, and the tour that runs them into one HTML page.

The scripts are plain Python in the notebook form of Sphinx-Gallery: `# %%` starts a cell, and the
comment that follows it is text. The documentation shows the same scripts.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overt._check import MissingExtraError
from overt._figures import simplify_log_ticks, styled
from overt._html import Page
from overt._io import ready

STORIES = ("theorist", "matrix", "network", "attack")
EXTRAS = {"torch": "torch"}
"""Packages that a story may lack, with the extra that installs each."""


@dataclass(frozen=True)
class Chapter:
    """A story as it ran: `status` is finished, failed (an assertion did not hold) or not run."""

    name: str
    title: str
    status: str
    seconds: float
    headline: str


@dataclass(frozen=True)
class Tour:
    """The page that the tour wrote, and what became of each story."""

    path: Path
    chapters: tuple[Chapter, ...]


def tour(
    folder: Path, on_chapter: Callable[[Chapter], None] = lambda chapter: None
) -> Tour:
    """Run the four stories and write `folder`/index.html, one page that needs no other file.

    Parameters
    ----------
    folder
        Where the page is written.
    on_chapter
        Called when a story has ended.
    """
    style = styled(
        backend="agg"
    )  # raises here, before any work, if matplotlib is missing
    ready(folder)
    page = Page(
        "overt: a tour",
        "Dropout, weight decay and adversarial training change the objective that is really "
        "minimized. overt writes that objective down, solves it, and certifies what you trained. "
        "This page is the output of four scripts that ran on this machine.",
    )
    chapters = []
    with style:
        for name in STORIES:
            chapter = _run(name, page)
            on_chapter(chapter)
            chapters.append(chapter)
    headlines = [chapter.headline for chapter in chapters if chapter.headline]
    page.highlights(headlines)
    written = page.write(folder / "index.html")
    return Tour(written, tuple(chapters))


def _run(name: str, page: Page) -> Chapter:
    """Add a story to the page, cell by cell."""
    title, introduction, cells = read_story(name)
    page.section(title)
    page.markup(introduction)
    start = time.perf_counter()
    status, names = "finished", {"__name__": "__main__"}
    try:
        for text, code in cells:
            page.markup(text)
            page.code(code)
            _execute(code, names, page)
    except AssertionError as error:
        status = "failed"
        page.text(
            f"An assertion of this story did not hold: {error or 'see the last lines'}."
        )
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        status = "not run"
        missing = MissingExtraError(error.name, EXTRAS[error.name])
        page.text(str(missing))
    seconds = time.perf_counter() - start
    headline = str(names.get("headline", ""))
    return Chapter(name, title, status, seconds, headline)


def read_story(name: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the title of a story, its introduction, and the text and code of each cell."""
    path = Path(__file__).with_name(f"{name}.py")
    source = path.read_text(encoding="utf-8")
    _, docstring, body = source.split('"""', 2)
    words = docstring.strip().split("\n", 2)
    title, _, introduction = words
    cells = []
    for cell in body.split("# %%\n")[1:]:
        lines = cell.strip().splitlines()
        count = next(
            (i for i, line in enumerate(lines) if not line.startswith("#")), len(lines)
        )
        comments = [line.removeprefix("#").strip() for line in lines[:count]]
        code = "\n".join(lines[count:])
        cells.append((" ".join(comments), code.strip()))
    return title, " ".join(introduction.split()), cells


def _execute(code: str, names: dict[str, Any], page: Page) -> None:
    """Run a cell; add what it printed and the figures that it drew to the page."""
    import matplotlib.pyplot as plt

    plt.close("all")
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            exec(compile(code, "<story>", "exec"), names)  # noqa: S102
    finally:
        if printed.getvalue().strip():
            page.output(printed.getvalue().rstrip())
    for number in plt.get_fignums():
        figure = plt.figure(number)
        labels = [
            axes.get_ylabel() + " against " + axes.get_xlabel() for axes in figure.axes
        ]
        simplify_log_ticks(figure)
        page.picture(figure, "; ".join(labels))
    plt.close("all")
