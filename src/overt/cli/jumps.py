"""`overt jumps`: SGD's one-way jumps to lower rank, and the minima it jumps between."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from rich.markup import escape
from typer import Option

from overt._check import InputError
from overt._running import working
from overt.cli.base import (
    AsJson,
    Seed,
    app,
    awaited,
    console,
    ended,
    show_json,
    show_path,
    show_table,
)

if TYPE_CHECKING:
    from overt.decay import Jumps, Minimum, Schedule

RECORDS = 501
"""Steps at which a run is recorded: survival curves then look continuous."""


@app.command()
def jumps(
    epsilon: Annotated[
        float,
        Option(help="The known small entry of the matrix (1, unknown; epsilon, 1)."),
    ] = 0.25,
    depth: Annotated[int, Option(min=3, help="Number of layers.")] = 3,
    width: Annotated[int, Option(min=1, help="Hidden units per layer.")] = 100,
    seeds: Annotated[int, Option(min=1, help="Number of runs.")] = 40,
    noisy_steps: Annotated[int, Option(min=0, help="Steps of the noisy phase.")] = 5000,
    quiet_steps: Annotated[int, Option(min=0, help="Steps of the quiet phase.")] = 5000,
    learning_rate: Annotated[
        float, Option(help="Learning rate of the noisy phase.")
    ] = 0.2,
    weight_decay: Annotated[
        float, Option(help="Weight decay of the noisy phase.")
    ] = 0.1,
    n_jobs: Annotated[
        int | None, Option(min=-1, help="Threads; all cores by default, or with -1.")
    ] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None, Option(help="Write the runs here (.npz or .json).")
    ] = None,
    plot: Annotated[
        Path | None,
        Option(help="Write a plot of the survival curve to this file (.png)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run SGD on a 2 x 2 matrix with an unknown entry, and report when it jumps to rank 1.

    A run has a warm-up, a noisy phase in which it may jump, and a quiet phase. Ctrl-C ends the
    runs; results so far are shown and written.
    Try: [bold]overt jumps --depth 4 --epsilon 0.1 --seeds 10[/bold]
    """
    from overt import decay

    if out is not None and out.suffix not in (".npz", ".json"):
        raise InputError(f"--out must end in .npz or .json, got {out}")
    awaited(out, picture=plot)
    problem = decay.two_by_two(epsilon)
    noisy = (learning_rate, weight_decay)
    schedule = decay.Schedule.annealing(
        noisy_steps, quiet_steps, noisy=noisy, convention="pytorch"
    )
    runs = decay.simulate(
        problem,
        depth,
        width,
        schedule,
        seeds,
        records=RECORDS,
        seed=seed,
        n_jobs=n_jobs,
        progress=not as_json,
    )
    found = decay.find_jumps(runs)
    lam = decay.effective(*noisy, "pytorch")[1]
    with working("searching minima; the first time, code is compiled for it"):
        lowest = decay.minima(problem, depth, lam, starts=2) if lam > 0 else []
    limits = {rank: decay.existence(problem, depth, rank) for rank in (1, 2)}
    if out is not None:
        runs.save(out)
    if plot is not None:
        _draw(found, plot)
    if as_json:
        show_json(_summary(found, schedule, lowest, limits))
    else:
        console.print(f"minima at weight decay {lam:g} (coefficient of |theta|^2):")
        _show_minima(lowest, limits, epsilon)
        _show_jumps(found)
        for path in filter(None, (out, plot)):
            show_path("written", path)
    ended(found.status, "what is shown and written holds the steps taken")


def _summary(
    found: Jumps, schedule: Schedule, lowest: list[Minimum], limits: dict[int, float]
) -> dict[str, Any]:
    return {
        "status": found.status,
        "schedule": schedule.to_dict(),
        "jump_step": found.jump_step,
        "jumped": found.jumped,
        "median": _median(found),
        "returned": found.returned,
        "diverged": found.runs.diverged.sum(),
        "missing": found.runs.missing[:, -1, 0],
        "test_error": found.runs.test_error[:, -1],
        "minima": lowest,
        "exists_below": limits,
    }


def _show_minima(
    lowest: list[Minimum], limits: dict[int, float], epsilon: float
) -> None:
    show_table(
        ("rank", "kind", "loss", "missing entry", "smallest curvature"),
        [(m.rank, m.kind, m.loss, float(m.matrix[0, 1]), m.curvature) for m in lowest],
    )
    console.print(
        f"rank 1 has a minimum below {limits[1]:.4f}, rank 2 below {limits[2]:.4f}; the rank-1 "
        f"completion is {1 / epsilon:g}.\n"
    )


def _show_jumps(found: Jumps) -> None:
    marks = range(0, len(found.steps), max(1, len(found.steps) // 10))
    shares = 1 - np.stack([found.surviving, found.upper, found.lower], axis=1)
    show_table(
        ("step", "jumped", "95% low", "95% high"),
        [(int(found.steps[k]), *map(float, shares[k])) for k in marks],
    )
    median = _median(found)
    when = "" if median is None else f", median step {median:.0f}"
    console.print(
        f"{found.jumped} of {len(found.jump_step)} runs jumped to rank 1{when}; "
        f"{found.returned} of {found.below} returned."
    )
    if found.status != "finished":
        console.print(f"[bold]{found.status}[/]: {escape(found.status.explanation)}")


def _median(found: Jumps) -> float | None:
    """Return the median jump step if more than half of the runs jumped."""
    return found.median if found.jumped * 2 > len(found.jump_step) else None


def _draw(found: Jumps, path: Path) -> None:
    from overt._figures import canvas, write_figure
    from overt.papers.one_way_jumps.jumps import ratio_panel, summary, survival_panel

    figure, (ratio, share) = canvas(6.4, 5.6, 2, 1, sharex=True)
    row = summary(found, shown=20)
    ratio_panel(ratio, row, found.threshold)
    survival_panel(share, row, "firebrick")
    write_figure(figure, path)
