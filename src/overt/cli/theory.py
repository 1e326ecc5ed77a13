"""`overt tour`, `overt verify`, `overt reproduce`: the papers, run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
) -> None:
    """Check the papers' statements against independent oracles.

    For a corrected statement the printed form is measured too, and must fail. The exit code is 1 if
    any statement does not hold. Try: [bold]overt verify path-norm --json[/bold]
    """
    from overt import theorems
    from overt._progress import meter, reraising_interrupts

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
        console.print(
            f"{corrected} are corrected: the form printed in the paper was measured too, and "
            "must not hold."
        )


@app.command()
def reproduce(
    experiment_id: Annotated[str | None, typer.Argument(metavar="ID", help="Which one.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,
    size: Annotated[
        str,
        typer.Option(help="toy (seconds), full (the paper's), or one that --list names."),
    ] = "toy",
    n_jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for rows, pictures and summaries.")] = Path(
        "overt-results"
    ),
) -> None:
    """Recompute a figure or table of the papers and compare it with what was printed.

    Rows are stored as they are computed; the same command continues after an interruption.
    Try: [bold]overt reproduce --list[/bold], then [bold]overt reproduce dropout-fig1[/bold]
    """
    from overt import experiments
    from overt._progress import meter

    if list_all or experiment_id is None:
        chosen = [experiments.find(name) for name in experiments.IDS]
        lines = [(e.id, ", ".join(e.grids), e.source, e.claim) for e in chosen]
        show_table(("id", "sizes", "source", "claim"), lines)
        return
    experiment = experiments.find(experiment_id)
    stored = f"rows that were finished are in {out / experiment.id}.jsonl; the same command goes on"
    with keeping(stored), meter(experiment.id, 1) as bar:
        rows = experiments.run(experiment, size=size, n_jobs=n_jobs, out=out, on_row=bar.reach)
    findings, picture = experiments.report(experiment, size, rows, out)
    show_table(
        ("claim", "verdict", "measured", "reported"),
        [(f.claim, f.holds, f.measured, f.reported) for f in findings],
    )
    show_path("picture", picture)
    if not all(f.holds for f in findings):
        fail(f"{experiment.id}: a claim did not hold", 1)
