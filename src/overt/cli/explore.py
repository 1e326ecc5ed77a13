"""`overt explore`: the page on which noise is moved and theory answers."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from overt.cli.base import app, console


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
