"""`overt tour`: one report that shows what overt does, made on this machine from bundled data."""

from __future__ import annotations

import os
import time
from pathlib import Path

from overt._figures import styled
from overt._files import ready
from overt._html import Page
from overt._progress import meter, reraising_interrupts
from overt.papers.rows import machine_facts
from overt.tour import audit, completion, compress, decay, foundation, nn, relu, robust
from overt.tour.lines import LINES
from overt.tour.torch_chapter import Chapter

CHAPTERS: tuple[Chapter, ...] = (
    foundation.one_matrix, foundation.landscape, foundation.networks, completion.chapter,
    decay.chapter, nn.chapter, audit.chapter, compress.chapter, relu.chapter, robust.chapter,
    foundation.statements,
)  # fmt: skip


def lines_of(chapter: Chapter) -> str:
    """Return the lines to copy that belong to a chapter."""
    name, room = chapter.__name__, chapter.__module__.rpartition(".")[2]
    return LINES[name if name in LINES else room].strip()


def tour(out: str | os.PathLike[str], *, seed: int = 0) -> tuple[Path, bool]:
    """Write the report into the folder `out`; return its path and whether every claim held."""
    look = styled()  # says what is missing before anything is made
    folder = ready(out)
    page = Page(
        "overt: a tour",
        "Training noise is a regularizer that nobody wrote down. This page writes it down, solves "
        "it, and checks it. Every number and picture below was computed when the page was made.",
    )
    start, held = time.perf_counter(), []
    with look, meter("tour", len(CHAPTERS)) as bar:
        for chapter in CHAPTERS:
            with reraising_interrupts():
                held.append(chapter(page, folder, seed))
            page.text("To try it yourself:", note=True)
            page.code(lines_of(chapter))
            bar.advance()
    facts = ", ".join(f"{name} {value}" for name, value in machine_facts().items())
    footer = f"Made in {time.perf_counter() - start:.0f} s with seed {seed}; {facts}."
    return page.write(folder / "report.html", footer), all(held)
