"""`overt cite`: BibTeX entries of overt and of the papers that it runs."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument

from overt.cli.base import AsJson, app, show_json


@app.command()
def cite(
    ids: Annotated[
        list[str] | None,
        Argument(help="Statements or figures whose papers to cite; all by default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print BibTeX entries of overt and of the papers that it runs.

    Try: [bold]overt cite[/bold], or [bold]overt cite path-norm[/bold] for the paper of one item.
    """
    from overt.papers import bibtex, find

    entries = bibtex({find(name).paper for name in ids} if ids else None)
    if as_json:
        show_json({"bibtex": entries})
    else:
        typer.echo(entries)
