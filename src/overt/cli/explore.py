"""`overt tour`, a report of what overt does; `overt explore`, a page on which theory answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from overt.cli.base import Seed, app, console, fail, keeping, show_path


@app.command()
def tour(
    out: Annotated[Path, Option(help="Folder for the report.")] = Path("overt-tour"), seed: Seed = 0
) -> None:
    """Run overt's main jobs on bundled data and write one HTML report."""
    from overt.tour import tour as run_tour

    with keeping("the report is written at its end, so there is none"):
        path, held = run_tour(out, seed=seed)
    show_path("report", path)
    if not held:
        fail("some claims did not hold; the report says which", 1)


@app.command()
def explore(
    port: Annotated[int, Option(min=0, max=65535, help="0 takes a free one.")] = 8050,
    host: Annotated[
        str, Option(help="Address to listen on; others than this machine's are your risk.")
    ] = "127.0.0.1",
    browser: Annotated[bool, Option(" /--no-browser", help="Do not open a browser.")] = True,
) -> None:
    """Open a page on this machine: move the noise and watch theory answer. Ctrl-C ends it."""
    from overt.explorer import explore as serve

    serve(
        host, port, browser=browser,
        ready=lambda address: console.print(f"explorer: [bold]{address}[/]  (Ctrl-C ends it)"),
    )  # fmt: skip
