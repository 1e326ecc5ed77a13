"""`overt verify`: the papers' statements, run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from typer import Argument, Option

from overt.cli.base import AsJson, Seed, app, console, ended, fail, show_json, show_table

if TYPE_CHECKING:
    from overt.theorems.base import Theorem, Verdict


@app.command()
def verify(
    ids: Annotated[list[str] | None, Argument(help="Statements to check; all by default.")] = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    size: Annotated[str, Option(help="small, medium or large problems.")] = "small",
    list_all: Annotated[bool, Option("--list", help="List the statements.")] = False,
    card: Annotated[bool, Option("--card", help="Show all that is known of each.")] = False,
    as_latex: Annotated[bool, Option("--latex", help="Print them as LaTeX.")] = False,
    as_bibtex: Annotated[bool, Option("--bibtex", help="Print their papers.")] = False,
) -> None:
    """Check the papers' statements against independent oracles.

    For a corrected statement the printed form is measured too, and must fail. The exit code is 1 if
    any statement does not hold, or one that was named could not be run. Try: [bold]overt verify
    --list[/bold], [bold]overt verify path-norm --card[/bold]; --latex and --bibtex print
    and check nothing.
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
    if as_latex or as_bibtex:
        _print_sources([theorems.registered()[name] for name in chosen], as_latex, as_bibtex)
        return
    status = "finished"
    try:
        with meter("verify", len(chosen), show=not as_json) as bar:
            for _ in chosen:
                with reraising_interrupts():
                    verdict = next(checks)
                verdicts.append(verdict)
                bar.advance(note=verdict.id)
    except KeyboardInterrupt:
        status = "interrupted"
    if as_json:
        show_json(verdicts, indent=1)
    elif card:
        for verdict in verdicts:
            _show_card(verdict, theorems.registered()[verdict.id].kind)
    else:
        _show_verdicts(verdicts)
    ended(status, f"{len(verdicts)} of {len(chosen)} were checked")
    # What was named must be confirmed; of all statements those of missing extras may be absent.
    passing = ("holds",) if ids else ("holds", "skipped")
    failed = [v.id for v in verdicts if v.verdict not in passing]
    if failed:
        fail(f"not confirmed: {', '.join(failed)}", 1)


def _print_sources(statements: list[Theorem], as_latex: bool, as_bibtex: bool) -> None:
    from overt.theorems._bibtex import bibtex
    from overt.theorems._latex import latex

    parts = [latex(statement) for statement in statements] if as_latex else []
    typer.echo("\n\n".join([*parts, *([bibtex(statements)] if as_bibtex else [])]))


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
    residual, printed, tolerance = verdict.residual, verdict.printed_residual, verdict.tolerance
    found = None if residual is None else f"residual {residual:.3g}, tolerance {tolerance:g}"
    as_printed = None
    if printed is not None and tolerance is not None:
        held = "holds too" if printed <= tolerance else "does not hold"
        as_printed = f"residual {printed:.3g}: {held}"
    lines = {
        "source": verdict.source,
        "claim": verdict.claim,
        "assumes": verdict.assumes,
        "correction": verdict.correction,
        "as printed": as_printed,
        "oracle": verdict.detail,
        "verdict": f"{verdict.verdict}" + (f" ({found})" if found else ""),
        "checked": kind,
    }
    console.print(f"[bold]{verdict.id}[/]")
    for name, text in lines.items():
        if text is not None:
            console.print(f"  {name:<11}{escape(text)}", soft_wrap=True, highlight=False)
