"""The command line's frame: the application, its errors, Ctrl-C, and how it prints."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Option
from typer.core import TyperGroup

import overt
from overt._check import InputError, MissingExtraError
from overt._figures import figure_format
from overt._io import plain, ready

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it


@contextmanager
def keeping(what: str) -> Iterator[None]:
    """Report what was saved if Ctrl-C comes meanwhile, and end with exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        fail(f"interrupted; {what}", INTERRUPTED)


class _Commands(TyperGroup):
    """All commands; Ctrl-C is seen here, before the command-line library ends in silence."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with keeping("nothing was started"):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with keeping("files already written are complete"):
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    help="The regularizers hidden in training noise, written down, solved and certified.\n\n"
    "Start with [bold]overt tour[/bold], which writes a page that shows what overt does.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
console, errors = Console(), Console(stderr=True, highlight=False, soft_wrap=True)

AsJson = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
Seed = Annotated[int, Option(min=0, help="Seed for everything random.")]
Engine = Annotated[
    str,
    Option(
        help="local; dask for the current Dask client; or a scheduler, tcp://host:port."
    ),
]


def main() -> None:
    """Run the command line; mistakes in the input end with one clear sentence and exit code 2."""
    warnings.showwarning = lambda text, *_, **__: warn(str(text))
    try:
        with keeping("nothing was started"):
            app()
    except (InputError, MissingExtraError) as error:
        fail(str(error), 2)
    except OSError as error:
        fail(
            f"{error.strerror or error}"
            + (f": {error.filename}" if error.filename else ""),
            2,
        )


def awaited(*paths: Path | None, picture: Path | None = None) -> None:
    """Make the folders of files that the work will end in, or refuse them before it begins."""
    for path in filter(None, (*paths, picture)):
        if path.is_dir():
            raise InputError(f"{path} is a folder; name a file to write")
        ready(path.parent)
    if picture is not None:
        figure_format(picture)


def ended(status: str, saved: str) -> None:
    """End with a sentence and exit code 130 if work was interrupted, which was shown before."""
    if status == "interrupted":
        fail(f"interrupted; {saved}", INTERRUPTED)


def fail(message: str, code: int) -> NoReturn:
    """Print one sentence on standard error and end with the exit code."""
    sys.stdout.flush()
    errors.print(f"[bold red]error:[/] {escape(message)}")
    raise SystemExit(code)


def warn(text: str) -> None:
    """Print a warning on standard error, where it is in no program's way."""
    errors.print(f"[yellow]warning:[/] {escape(text)}")


def show_path(what: str, path: str | os.PathLike[str]) -> None:
    """Print where something was written, on one line that can be copied."""
    console.print(f"{what}: [bold]{escape(os.fspath(path))}[/]", soft_wrap=True)


def show_json(value: Any, *, indent: int | None = None) -> None:
    """Print numbers, arrays and results as JSON that any reader takes: null for NaN."""
    typer.echo(json.dumps(plain(value), indent=indent, allow_nan=False))


def show_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: numbers to the right, verdicts colored, everything else as it is."""
    lines, table = (
        list(map(list, rows)),
        Table(box=None, header_style="bold", pad_edge=False),
    )
    for i, name in enumerate(header):
        cells = [row[i] for row in lines]
        numeric = all(
            isinstance(v, (int, float)) and not isinstance(v, bool) for v in cells if v
        )
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
        bool,
        Option(
            "--version", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass
