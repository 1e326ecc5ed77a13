"""`overt tour`: four scripts that show what overt does, run into one HTML page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from typer import Option

from overt.cli.base import AsJson, app, console, fail, keeping, show_json, show_path

if TYPE_CHECKING:
    from overt.stories import Chapter


@app.command()
def tour(
    out: Annotated[Path, Option(help="Folder for the page.")] = Path("overt-tour"),
    as_json: AsJson = False,
) -> None:
    """Run four short scripts on bundled data and write one HTML page with code and results.

    The exit code is 1 if a result is not as claimed.
    """
    from overt import stories

    def report(chapter: Chapter) -> None:
        if not as_json:
            console.print(
                f"{chapter.seconds:4.1f} s  {chapter.title}: {chapter.status}",
                soft_wrap=True,
            )

    with keeping("the page is written at the end, so there is none"):
        result = stories.tour(out, report)
    headlines = [chapter.headline for chapter in result.chapters if chapter.headline]
    if as_json:
        show_json(
            {"page": str(result.path), "stories": [asdict(c) for c in result.chapters]},
            indent=1,
        )
    else:
        for headline in headlines:
            console.print(f"- {escape(headline)}", soft_wrap=True)
        show_path("open", result.path)
    failed = [
        chapter.title for chapter in result.chapters if chapter.status == "failed"
    ]
    if failed:
        fail(f"not as claimed: {'; '.join(failed)}", 1)
