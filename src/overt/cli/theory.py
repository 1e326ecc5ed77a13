"""`overt tour`, `overt verify`, `overt reproduce`: the papers, run on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from overt.cli.base import app, console, fail, show_table


@app.command()
def tour(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("overt-tour"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random draw.")] = 0,
) -> None:
    """Run overt's main jobs on bundled data and write one HTML report."""
    from overt.tour import tour as run_tour

    path, held = run_tour(out, seed=seed)
    console.print(f"report: [bold]{escape(os.fspath(path))}[/]", soft_wrap=True)
    if not held:
        fail("some claims did not hold; the report says which", 1)


@app.command()
def verify(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Statements to check; all by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random draw.")] = 0,
    size: Annotated[str, typer.Option(help="small, medium or large problems.")] = "small",
) -> None:
    """Check the papers' statements against independent oracles.

    For a corrected statement the printed form is measured too, and must fail. The exit code is 1 if
    any statement does not hold. Try: [bold]overt verify path-norm --json[/bold]
    """
    from overt import theorems
    from overt._progress import meter

    chosen, verdicts = ids or list(theorems.registered()), []
    checks = theorems.verify(chosen, size=size, seed=seed)
    with meter("verify", len(chosen), show=not as_json) as bar:
        for verdict in checks:
            verdicts.append(verdict)
            bar.advance(note=verdict.id)
    failed = [v for v in verdicts if v.verdict not in ("holds", "skipped")]
    skipped = [v for v in verdicts if v.verdict == "skipped"]
    if as_json:
        typer.echo(json.dumps([v.to_dict() for v in verdicts], indent=1))
    else:
        show_table(
            ("statement", "residual", "tolerance", "printed", "verdict", "seconds"),
            [
                (
                    f"{v.id}: {v.claim if v.residual is not None else v.detail}",
                    v.residual,
                    v.tolerance,
                    v.printed_residual,
                    v.verdict,
                    v.seconds,
                )
                for v in verdicts
            ],
        )
        held = len(verdicts) - len(failed) - len(skipped)
        console.print(f"{held} of {len(verdicts)} statements hold.")
        if skipped:
            console.print(f"{len(skipped)} were skipped: {skipped[0].detail}")
        corrected = sum(v.correction is not None for v in verdicts)
        if corrected:
            console.print(
                f"{corrected} are corrected: the form printed in the paper was measured too, and "
                "must not hold."
            )
    if failed:
        fail(f"not confirmed: {', '.join(v.id for v in failed)}", 1)


@app.command()
def reproduce(
    experiment_id: Annotated[str | None, typer.Argument(metavar="ID", help="Which one.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,
    size: Annotated[
        str,
        typer.Option(help="toy (seconds), full (the paper's), or one that --list names."),
    ] = "toy",
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
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
    from overt.experiments import report

    if list_all or experiment_id is None:
        chosen = [experiments.find(name) for name in experiments.IDS]
        lines = [(e.id, ", ".join(e.grids), e.source, e.claim) for e in chosen]
        show_table(("id", "sizes", "source", "claim"), lines)
        return
    experiment = experiments.find(experiment_id)
    with meter(experiment.id, 1) as bar:
        rows = experiments.run(experiment, size=size, workers=workers, out=out, on_row=bar.reach)
    findings, picture = report.write(experiment, size, rows, out)
    show_table(
        ("claim", "verdict", "measured", "reported"),
        [(f.claim, f.holds, f.measured, f.reported) for f in findings],
    )
    console.print(f"picture: [bold]{escape(os.fspath(picture))}[/]", soft_wrap=True)
    if not all(f.holds for f in findings):
        fail(f"{experiment.id}: a claim did not hold", 1)
