"""`overt explore`: panels in the browser that show what noise does to a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from overt.cli.base import app, console, show_path


@app.command()
def explore(
    port: Annotated[
        int, Option(min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 8050,
    host: Annotated[
        str,
        Option(
            help="Interface to listen on. Anything but localhost exposes the page, without a "
            "password, to your network."
        ),
    ] = "127.0.0.1",
    browser: Annotated[
        bool,
        Option(" /--no-browser", show_default=False, help="Do not open a browser."),
    ] = True,
    out: Annotated[
        Path | None,
        Option(help="Write the pages into this folder instead of serving them."),
    ] = None,
) -> None:
    """Open interactive panels in the browser: move the noise and watch the optimum follow.

    The panels compute everything in the browser. Ctrl-C ends the server.
    """
    from overt.explorer import explore as serve
    from overt.explorer import write_pages

    if out is not None:
        for path in write_pages(out):
            show_path("page", path)
        return

    def ready(address: str) -> None:
        console.print(f"explorer: [bold]{address}[/]  (Ctrl-C ends it)")

    serve(host, port, browser=browser, ready=ready)
