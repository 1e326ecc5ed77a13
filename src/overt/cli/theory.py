"""`overt tour`, `overt verify`, `overt reproduce`: the papers, run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from overt._check import InputError
from overt.cli.base import (
    INTERRUPTED,
    AsJson,
    Seed,
    app,
    console,
    fail,
    keeping,
    show_json,
    show_path,
    show_table,
)

if TYPE_CHECKING:
    from overt.experiments import Experiment
    from overt.theorems.base import Verdict


@app.command()
def tour(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("overt-tour"),
    seed: Seed = 0,
) -> None:
    """Run overt's main jobs on bundled data and write one HTML report."""
    from overt.tour import tour as run_tour

    with keeping("the report is written at its end, so there is none"):
        path, held = run_tour(out, seed=seed)
    show_path("report", path)
    if not held:
        fail("some claims did not hold; the report says which", 1)


@app.command()
def verify(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Statements to check; all by default.")
    ] = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    size: Annotated[str, typer.Option(help="small, medium or large problems.")] = "small",
    list_all: Annotated[bool, typer.Option("--list", help="List the statements.")] = False,
    card: Annotated[bool, typer.Option("--card", help="Show all that is known of each.")] = False,
) -> None:
    """Check the papers' statements against independent oracles.

    For a corrected statement the printed form is measured too, and must fail. The exit code is 1 if
    any statement does not hold. Try: [bold]overt verify --list[/bold], [bold]overt verify path-norm
    --card[/bold]
    """
    from overt import theorems
    from overt._progress import meter, reraising_interrupts

    if list_all:
        known = theorems.registered().values()
        show_table(("id", "source", "checked", "claim"),
                   [(t.id, t.source, t.kind, t.claim) for t in known])  # fmt: skip
        return
    chosen, verdicts = ids or list(theorems.registered()), []
    checks = theorems.verify(chosen, size=size, seed=seed)
    stopped = False
    try:
        with meter("verify", len(chosen), show=not as_json) as bar:
            for _ in chosen:
                with reraising_interrupts():
                    verdict = next(checks)
                verdicts.append(verdict)
                bar.advance(note=verdict.id)
    except KeyboardInterrupt:
        stopped = True
    if as_json:
        show_json(verdicts, indent=1)
    elif card:
        for verdict in verdicts:
            _show_card(verdict, theorems.registered()[verdict.id].kind)
    else:
        _show_verdicts(verdicts)
    if stopped:
        fail(f"interrupted; {len(verdicts)} of {len(chosen)} were checked", INTERRUPTED)
    failed = [v.id for v in verdicts if v.verdict not in ("holds", "skipped")]
    if failed:
        fail(f"not confirmed: {', '.join(failed)}", 1)


def _show_verdicts(verdicts: list[Verdict]) -> None:
    show_table(
        ("statement", "residual", "tolerance", "printed", "verdict", "seconds"),
        [
            (f"{v.id}: {v.claim if v.residual is not None else v.detail}", v.residual, v.tolerance,
             v.printed_residual, v.verdict, v.seconds)
            for v in verdicts
        ],
    )  # fmt: skip
    held = sum(v.verdict == "holds" for v in verdicts)
    console.print(f"{held} of {len(verdicts)} statements hold.")
    skipped = [v for v in verdicts if v.verdict == "skipped"]
    if skipped:
        console.print(f"{len(skipped)} were skipped: {skipped[0].detail}")
    corrected = sum(v.correction is not None for v in verdicts)
    if corrected:
        from overt.theorems import distinct

        console.print(
            f"{corrected} are corrected, at {distinct(verdicts)} places of the papers: the form "
            "printed there was measured too, and must not hold."
        )


def _show_card(verdict: Verdict, kind: str) -> None:
    """Print a statement: source, claim, assumptions, correction, oracle, verdict."""
    printed = verdict.printed_residual
    found = None if verdict.residual is None else f"{verdict.residual:.3g} <= {verdict.tolerance:g}"
    lines = {
        "source": verdict.source,
        "claim": verdict.claim,
        "assumes": verdict.assumes,
        "correction": verdict.correction,
        "as printed": None if printed is None else f"residual {printed:.3g}: does not hold",
        "oracle": verdict.detail,
        "verdict": f"{verdict.verdict}" + (f" ({found})" if found else ""),
        "checked": kind,
    }
    console.print(f"[bold]{verdict.id}[/]")
    for name, text in lines.items():
        if text is not None:
            console.print(f"  {name:<11}{escape(text)}", soft_wrap=True, highlight=False)


@app.command()
def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Which one; all; page; or compare OLD NEW."),
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,
    size: Annotated[
        str,
        typer.Option(help="toy (seconds), reduced, or paper (as printed); see --list."),
    ] = "toy",
    n_jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for rows, pictures and summaries.")] = Path(
        "overt-results"
    ),
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="The page as index.md with its pictures.")
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
            _reproduce_all(size, n_jobs, out)
        case ["page"]:
            _write_page(out, {}, as_markdown)
        case ["compare", old, new]:
            from overt.experiments.record import compare

            changed = list(compare(_known(), old, new))
            show_table(("id", "claim", "before", "now"), changed)
            console.print(f"{len(changed)} claims changed.")
        case [name]:
            _reproduce(name, size, n_jobs, out)
        case _:
            raise InputError(
                f"one experiment at a time, or all, page, compare OLD NEW; got {' '.join(what)}"
            )


def _known() -> list[Experiment]:
    from overt import experiments

    return [experiments.find(name) for name in experiments.IDS]


def _reproduce(name: str, size: str, n_jobs: int, out: Path) -> None:
    from overt import experiments
    from overt._progress import meter

    experiment = experiments.find(name)
    stored = f"rows that were finished are in {out / experiment.id}.jsonl; the same command goes on"
    with keeping(stored), meter(experiment.id, 1) as bar:
        rows = experiments.run(experiment, size=size, n_jobs=n_jobs, out=out, on_row=bar.reach)
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


def _reproduce_all(size: str, n_jobs: int, out: Path) -> None:
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

        absent = run_all(_known(), size, out, n_jobs=n_jobs, on_row=tell)
    _write_page(out, absent)


def _write_page(out: Path, absent: dict[str, str], as_markdown: bool = False) -> None:
    from overt.experiments.pages import write_markdown, write_page
    from overt.experiments.record import entries

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
