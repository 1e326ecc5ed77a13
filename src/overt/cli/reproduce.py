"""`overt reproduce`: the papers' figures and tables, run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from overt._check import InputError
from overt.cli.base import (
    AsJson,
    app,
    console,
    fail,
    keeping,
    show_json,
    show_path,
    show_table,
)

if TYPE_CHECKING:
    from overt.papers import Figure
    from overt.papers.figures import Row


@app.command()
def reproduce(
    what: Annotated[
        list[str] | None,
        Argument(
            metavar="ID",
            help="A figure; or all; or page.",
        ),
    ] = None,
    list_all: Annotated[
        bool, Option("--list", help="List figures, their sizes, hours and data.")
    ] = False,
    size: Annotated[
        str,
        Option(
            help="toy (seconds), reduced, or paper (the size in the paper); see --list."
        ),
    ] = "toy",
    n_jobs: Annotated[
        int, Option(min=-1, help="Number of processes (-1: all cores).")
    ] = 1,
    out: Annotated[
        Path, Option(help="Folder for rows, pictures and summaries.")
    ] = Path("overt-results"),
    picture_format: Annotated[
        str, Option("--format", help="Format of the picture: png, pdf or svg.")
    ] = "png",
    download: Annotated[
        bool,
        Option(
            "--download", help="Fetch MNIST or MovieLens into OVERT_DATA if absent."
        ),
    ] = False,
    as_markdown: Annotated[
        bool, Option("--markdown", help="Write the page as index.md with its pictures.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Recompute a figure or table of the papers and compare it with the paper.

    Rows are stored as they are computed; the same command continues after an interruption.
    [bold]all[/bold] runs everything and writes one page, index.html; [bold]page[/bold] writes it
    from what is stored.
    Try: [bold]overt reproduce --list[/bold], then [bold]overt reproduce dropout-fig1[/bold]
    """
    match what or []:
        case _ if list_all or not what:
            _list_figures(as_json)
        case ["all"]:
            _reproduce_all(size, n_jobs, out, as_markdown, as_json)
        case ["page"]:
            _write_page(out, {}, as_markdown, as_json)
        case [name]:
            figure = _figure(name)
            if download:
                _download(figure, size)
            rows = _rows(figure, size, n_jobs, out)
            _report(figure, size, rows, out, picture_format, as_json)
        case _:
            raise InputError(
                f"one figure at a time, or all, or page; got {' '.join(what)}"
            )


def _figures() -> list[Figure]:
    from overt.papers import items
    from overt.papers.overview import figures_of

    return figures_of(items().values())


def _figure(name: str) -> Figure:
    from overt._check import unknown
    from overt.papers import find

    figures = {figure.id: figure for figure in _figures()}
    if name not in figures:
        raise unknown("figure", name, figures)
    figure = find(name).figure
    assert figure is not None  # noqa: S101
    return figure


def _list_figures(as_json: bool) -> None:
    figures = [
        {
            "id": figure.id,
            "sizes": list(figure.sizes),
            "hours": figure.hours,
            "data": figure.data("paper") or None,
            "source": figure.source,
        }
        for figure in _figures()
    ]
    if as_json:
        show_json(figures, indent=1)
        return
    for line, figure in zip(figures, _figures(), strict=True):
        del line["hours"]
        line["sizes"] = ", ".join(_size_and_hours(figure, s) for s in figure.sizes)
    header = ("id", "sizes (hours on one core)", "data", "source")
    show_table(header, [list(line.values()) for line in figures])


def _size_and_hours(figure: Figure, size: str) -> str:
    if size == "toy":
        return "toy (a minute)"
    hours = figure.hours.get(size)
    return f"{size} ({hours:g} h)" if hours else f"{size} (not measured)"


def _download(figure: Figure, size: str) -> None:
    from overt.papers.downloads import fetch

    for name in filter(None, figure.data(size).split(", ")):
        show_path(name, fetch(name))


def _rows(figure: Figure, size: str, n_jobs: int, out: Path) -> list[Row]:
    from overt._running import meter
    from overt.papers import run

    stored = f"rows already computed are in {out / figure.id}.jsonl; the same command resumes"
    with keeping(stored), meter(figure.id, 1) as bar:
        return run(figure, size=size, n_jobs=n_jobs, out=out, on_row=bar.reach)


def _report(
    figure: Figure,
    size: str,
    rows: list[Row],
    out: Path,
    picture_format: str,
    as_json: bool,
) -> None:
    from overt.papers import report

    findings, picture = report(figure, size, rows, out, picture_format)
    header = ("claim", "verdict", "measured", "reported")
    shown = [{name: getattr(f, name) for name in header} for f in findings]
    if as_json:
        show_json(
            {"id": figure.id, "size": size, "findings": shown, "picture": str(picture)}
        )
    else:
        show_table(header, [tuple(line.values()) for line in shown])
        if figure.table:
            show_table(*figure.table(rows))
        if size in figure.differs:
            console.print(
                f"Differs from the paper: {figure.differs[size]}.", soft_wrap=True
            )
        show_path("picture", picture)
    if any(f.verdict == "fails" for f in findings):
        fail(f"{figure.id}: a claim did not hold", 1)


def _reproduce_all(
    size: str, n_jobs: int, out: Path, as_markdown: bool, as_json: bool
) -> None:
    from overt._check import choice
    from overt._running import meter
    from overt.papers.figures import SIZES
    from overt.papers.overview import run_all

    choice("size", size, SIZES)
    stored = f"rows already computed are in {out}; the same command resumes"
    with keeping(stored), meter("all", 1) as bar:

        def show_progress(done: int, total: int, name: str) -> None:
            bar.reach(done, total)
            bar.advance(0, note=name)

        absent = run_all(_figures(), size, out, n_jobs=n_jobs, on_row=show_progress)
    _write_page(out, absent, as_markdown, as_json)


def _write_page(
    out: Path, absent: dict[str, str], as_markdown: bool, as_json: bool
) -> None:
    from overt.papers.overview import measured, write_markdown, write_page

    if as_markdown:
        path = write_markdown(_figures(), out)
    else:
        path = write_page(_figures(), out, absent, "overt reproduce {id} --size {size}")
    found = [(m.figure.id, m.size, m.counts) for m in measured(_figures(), out)]
    header = ("id", "size", "claims")
    if as_json:
        figures = [dict(zip(header, line, strict=True)) for line in found]
        show_json({"page": str(path), "figures": figures, "not_run": absent})
        return
    show_table(header, found)
    for name, reason in absent.items():
        console.print(f"{name} was not run: {reason}", soft_wrap=True)
    show_path("page", path)
