"""`overt verify`: the papers' statements, checked on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from typer import Argument, Option

from overt.cli.base import (
    AsJson,
    Seed,
    app,
    console,
    ended,
    fail,
    show_json,
    show_path,
    show_table,
)

if TYPE_CHECKING:
    from overt.papers import Item, Verdict


@app.command()
def verify(
    ids: Annotated[
        list[str] | None,
        Argument(
            help="Ids of statements, or Python files with your own; all by default."
        ),
    ] = None,
    as_json: AsJson = False,
    seed: Seed = 0,
    seeds: Annotated[
        int, Option(min=1, help="Number of seeds, counted from --seed.")
    ] = 1,
    list_all: Annotated[bool, Option("--list", help="List the statements.")] = False,
    card: Annotated[
        bool, Option("--card", help="Show all that is known of each.")
    ] = False,
    as_latex: Annotated[
        bool, Option("--latex", help="Print them as LaTeX; check none.")
    ] = False,
    out: Annotated[
        Path | None, Option(help="Folder in which to store the worst verdict of each.")
    ] = None,
) -> None:
    """Check the papers' statements against independent oracles.

    The paper's own form of a corrected statement, and the null of a bound, are measured too and
    must fail. The exit code is 1 if any statement does not hold, or one that was named could not be
    run. Try: [bold]overt verify --list[/bold], [bold]overt verify path-norm --card[/bold],
    [bold]overt verify my_file.py[/bold]
    """
    from overt._running import meter, reraising_interrupts
    from overt.papers import verify as check

    chosen = _chosen(ids or [])
    if list_all:
        _list(chosen, as_json)
        return
    if as_latex:
        typer.echo("\n\n".join(item.to_latex() for item in chosen))
        return
    verdicts: list[Verdict] = []
    status = "finished"
    try:
        with meter("verify", len(chosen) * seeds, show=not as_json) as bar:
            for number in range(seed, seed + seeds):
                checks = check(chosen, seed=number)
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
            _show_card(verdict)
    else:
        _show_verdicts(verdicts)
    ended(status, f"{len(verdicts)} of {len(chosen) * seeds} were checked")
    if out is not None:
        _store(verdicts, out)
    # What was named must be confirmed; else statements that need a missing extra may be absent.
    passing = ("holds",) if ids else ("holds", "not run")
    failed = dict.fromkeys(v.id for v in verdicts if v.verdict not in passing)
    if failed:
        fail(f"not confirmed: {', '.join(failed)}", 1)


def _chosen(ids: list[str]) -> list[Item]:
    """Return the statements with these ids and in these Python files; all if none is named."""
    from overt.papers import find, items
    from overt.papers.verification import deciding, statements_in

    if not ids:
        return [item for item in items().values() if item.check]
    chosen: dict[str, Item] = {}
    for given in ids:
        found = statements_in(given) if given.endswith(".py") else deciding(find(given))
        chosen |= {item.id: item for item in found}
    return list(chosen.values())


def _list(chosen: list[Item], as_json: bool) -> None:
    if as_json:
        names = ("id", "source", "how", "claim")
        show_json(
            [{name: getattr(item, name) for name in names} for item in chosen], indent=1
        )
    else:
        lines = [(item.id, item.source, item.how, item.title) for item in chosen]
        show_table(("id", "source", "how", "title"), lines)


def _store(verdicts: list[Verdict], folder: Path) -> None:
    from overt._io import ready
    from overt.papers.overview import read_verdicts, summarize, write_verdicts

    ready(folder)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    stored = read_verdicts(folder) | summarize(verdicts, date)
    show_path("verdicts", write_verdicts(stored, folder))


def _show_verdicts(verdicts: list[Verdict]) -> None:
    columns = {
        "statement": "id",
        "verdict": "verdict",
        "residual": "residual",
        "tolerance": "tolerance",
        "paper's form": "printed_residual",
        "null": "null_residual",
        "seconds": "seconds",
    }
    rows = [[getattr(v, name) for name in columns.values()] for v in verdicts]
    show_table(tuple(columns), rows)
    for v in verdicts:
        if v.verdict in ("error", "fails", "no power"):
            console.print(
                f"{v.id}: {escape(v.detail)}", soft_wrap=True, highlight=False
            )
    count = sum(v.verdict == "holds" for v in verdicts)
    console.print(f"{count} of {len(verdicts)} statements hold.")
    absent = [v for v in verdicts if v.verdict == "not run"]
    if absent:
        console.print(
            f"{len(absent)} were not run: {absent[0].detail}", highlight=False
        )
    corrected = sum(v.printed_residual is not None for v in verdicts)
    if corrected:
        noun = (
            "statement corrects its" if corrected == 1 else "statements correct their"
        )
        console.print(
            f"{corrected} {noun} paper; the paper's own form was tested too and must fail."
        )


def _show_card(verdict: Verdict) -> None:
    """Print a statement: source, claim, assumptions, correction, oracle, verdict."""
    from overt.papers.records import HOW

    residual, tolerance = verdict.residual, verdict.tolerance
    found = (
        ""
        if residual is None
        else f" (residual {residual:.3g}, tolerance {tolerance:g})"
    )
    lines = {
        "source": verdict.source,
        "claim": verdict.claim,
        "assumes": verdict.assumes,
        "correction": verdict.correction,
        "as printed": _compared(verdict.printed_residual, tolerance),
        "null": _compared(verdict.null_residual, tolerance),
        "oracle": verdict.detail,
        "verdict": verdict.verdict + found,
        "checked": f"{verdict.how}: {HOW[verdict.how]}",
    }
    console.print(f"[bold]{verdict.id}[/]")
    for name, text in lines.items():
        if text:
            console.print(
                f"  {name:<11}{escape(text)}", soft_wrap=True, highlight=False
            )


def _compared(residual: float | None, tolerance: float | None) -> str:
    if residual is None or tolerance is None:
        return ""
    outcome = "holds too" if residual <= tolerance else "does not hold"
    return f"residual {residual:.3g}: {outcome}"
