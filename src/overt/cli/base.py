"""The command line's frame: the application, its errors, and how it prints."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import overt
from overt._check import InputError, MissingExtraError

app = typer.Typer(
    help=(
        "The regularizers hidden in training noise, written down, solved and certified.\n\n"
        "Start with [bold]overt tour[/bold], which writes a report of what overt can do."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()


def main() -> None:
    """Run the command line; mistakes in the input end with one clear sentence and exit code 2."""
    try:
        app()
    except (InputError, MissingExtraError) as error:
        fail(str(error), 2)
    except OSError as error:
        fail(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""), 2)
    except KeyboardInterrupt:
        fail("interrupted; what was computed is kept", 130)


def fail(message: str, code: int) -> NoReturn:
    """Print one sentence on standard error and end with the exit code."""
    sys.stdout.flush()
    Console(stderr=True).print(
        f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True
    )
    raise SystemExit(code)


def show_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: numbers to the right, verdicts colored, everything else as it is."""
    lines = [list(row) for row in rows]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for i, name in enumerate(header):
        cells = [row[i] for row in lines]
        numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in cells if v)
        short = all(len(_cell(v)) < 24 for v in cells)
        table.add_column(name, justify="right" if numeric else "left", no_wrap=short)
    for row in lines:
        table.add_row(*(_cell(value) for value in row))
    console.print(table)


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case True | "holds":
            return "[green]holds[/]"
        case False | "fails" | "error":
            return f"[red]{value or 'fails'}[/]"
        case float():
            return f"{value:.3g}"
    return escape(str(value))


def _version(show: bool) -> None:
    if show:
        typer.echo(f"overt {overt.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
