"""`overt reproduce`: the papers' figures and tables, run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from overt._check import InputError
from overt.cli.base import Engine, app, console, fail, keeping, show_path, show_table

if TYPE_CHECKING:
    from overt.experiments import Experiment


@app.command()
def reproduce(
    what: Annotated[
        list[str] | None, Argument(metavar="ID", help="Which one; all; page; or compare OLD NEW.")
    ] = None,
    list_all: Annotated[bool, Option("--list", help="List what can be reproduced.")] = False,
    size: Annotated[
        str, Option(help="toy (seconds), reduced, or paper (as printed); see --list.")
    ] = "toy",
    n_jobs: Annotated[int, Option(min=-1, help="Number of processes (-1: all cores).")] = 1,
    engine: Engine = "local",
    out: Annotated[Path, Option(help="Folder for rows, pictures and summaries.")] = Path(
        "overt-results"
    ),
    as_markdown: Annotated[
        bool, Option("--markdown", help="The page as index.md with its pictures.")
    ] = False,
) -> None:
    """Recompute a figure or table of the papers and compare it with what was printed.

    Rows are stored as they are computed; the same command continues after an interruption.
    [bold]all[/bold] runs everything and writes one page, index.html; [bold]page[/bold] writes it
    from what is stored; [bold]compare OLD NEW[/bold] shows which claims changed.
    Try: [bold]overt reproduce --list[/bold], then [bold]overt reproduce dropout-fig1[/bold]
    """
    match what or []:
        case _ if list_all or not what:
            lines = [(e.id, ", ".join(e.grids), e.source, e.claim) for e in _known()]
            show_table(("id", "sizes", "source", "claim"), lines)
        case ["all"]:
            _reproduce_all(size, n_jobs, out, engine)
        case ["page"]:
            _write_page(out, {}, as_markdown)
        case ["compare", old, new]:
            from overt.experiments.record import compare

            changed = list(compare(_known(), old, new))
            show_table(("id", "claim", "before", "now"), changed)
            console.print(f"{len(changed)} claims changed.")
        case [name]:
            _reproduce(name, size, n_jobs, out, engine)
        case _:
            raise InputError(
                f"one experiment at a time, or all, page, compare OLD NEW; got {' '.join(what)}"
            )


def _known() -> list[Experiment]:
    from overt import experiments

    return [experiments.find(name) for name in experiments.IDS]


def _reproduce(name: str, size: str, n_jobs: int, out: Path, engine: str) -> None:
    from overt import experiments
    from overt._progress import meter

    experiment = experiments.find(name)
    stored = f"rows that were finished are in {out / experiment.id}.jsonl; the same command goes on"
    with keeping(stored), meter(experiment.id, 1) as bar:
        where: dict[str, Any] = {"n_jobs": n_jobs, "engine": engine}
        rows = experiments.run(experiment, size=size, out=out, on_row=bar.reach, **where)
    findings, picture = experiments.report(experiment, size, rows, out)
    show_table(
        ("claim", "verdict", "measured", "reported"),
        [(f.claim, f.verdict, f.measured, f.reported) for f in findings],
    )
    if size in experiment.differs:
        console.print(f"Differs from print: {experiment.differs[size]}.", soft_wrap=True)
    show_path("picture", picture)
    if any(f.verdict == "fails" for f in findings):
        fail(f"{experiment.id}: a claim did not hold", 1)


def _reproduce_all(size: str, n_jobs: int, out: Path, engine: str) -> None:
    from overt._check import choice
    from overt._progress import meter
    from overt.experiments.base import SIZES
    from overt.experiments.record import run_all

    choice("size", size, SIZES)
    stored = f"rows that were finished are in {out}; the same command goes on"
    with keeping(stored), meter("all", 1) as bar:

        def tell(done: int, total: int, name: str) -> None:
            bar.reach(done, total)
            bar.advance(0, note=name)

        absent = run_all(_known(), size, out, n_jobs=n_jobs, on_row=tell, engine=engine)
    _write_page(out, absent)


def _write_page(out: Path, absent: dict[str, str], as_markdown: bool = False) -> None:
    from overt.experiments.record import entries, write_markdown, write_page

    held = list(entries(_known(), out))
    show_table(("id", "size", "claims"), [(e.experiment.id, e.size, e.counts) for e in held])
    for name, reason in absent.items():
        console.print(f"{name} was not run: {reason}", soft_wrap=True)
    command = "overt reproduce {id} --size {size}"
    if as_markdown:
        path = write_markdown(_known(), out)
    else:
        path = write_page(_known(), out, absent, command)
    show_path("page", path)
