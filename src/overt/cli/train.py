"""`overt train`: stochastic gradient descent with noise, beside the exact optimum."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Option

from overt.cli import networks
from overt.cli.base import (
    AsJson,
    app,
    awaited,
    console,
    ended,
    fail,
    show_json,
    show_path,
    show_table,
)

ROWS = 8
"""Rows of the table, about: enough to see the course of a run on one screen."""


@app.command()
def train(
    target: networks.Target = None,
    width: networks.Width = 20,
    drop_prob: networks.DropProb = None,
    noise: networks.NoiseName = "dropout",
    block_size: networks.BlockSize = None,
    keep: networks.Keep = None,
    x: networks.X = None,
    y: networks.Y = None,
    steps: Annotated[int, Option(min=1, help="Number of steps.")] = 20_000,
    learning_rate: Annotated[float, Option(help="Step size.")] = 1e-3,
    seeds: Annotated[int, Option(min=1, help="Number of runs.")] = 10,
    gradient: Annotated[
        str,
        Option(help="sampled, or expected: gradient descent on the exact objective."),
    ] = "sampled",
    n_jobs: Annotated[int | None, Option(help="Threads; all cores by default.")] = None,
    out: Annotated[
        Path | None, Option(help="Write the runs to this .npz or .json.")
    ] = None,
    plot: Annotated[
        Path | None, Option(help="Write a picture of the objective.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a two-layer linear network with noise, and compare with the exact optimum.

    Ctrl-C ends the training; records so far are shown and written.
    Try: [bold]overt train M.npy --width 20 --seeds 10 --plot runs.png[/bold]
    """
    awaited(out, picture=plot)
    problem = networks.read_problem(target, x, y)
    chosen = networks.make_noise(
        noise, drop_prob=drop_prob, block_size=block_size, keep=keep
    )
    net = networks.make_network(problem, chosen, width=width)
    run = net.train(steps, learning_rate, seeds, gradient=gradient, n_jobs=n_jobs)
    if run.diverged.all():
        fail(run.status.explanation, 1)
    rows = _rows(run)
    written = [] if out is None else [run.save(out)]
    if plot is not None:
        from overt._figures import write_figure

        written.append(write_figure(run.plot(), plot))
    if as_json:
        found = {
            "status": str(run.status),
            "optimum": run.optimum,
            "diverged": int(run.diverged.sum()),
            "records": rows,
            "files": [str(path) for path in written],
        }
        show_json(found, indent=1)
    else:
        header = [name.replace("_", " ") for name in rows[0]]
        show_table(header, [list(row.values()) for row in rows])
        console.print(f"{run.status}: {run.status.explanation}", style="dim")
        for path in written:
            show_path("saved", path)
    ended(run.status, "what is shown and written holds the steps taken")


def _rows(run: Any) -> list[dict[str, Any]]:
    """Return the mean over seeds at the first, the last and some steps between."""
    measured = np.flatnonzero(
        np.isfinite(run.objective).any(axis=0)
    ).tolist()  # before Ctrl-C
    picked = measured[:1] + measured[1:][:: -max(1, len(measured) // ROWS)][::-1]
    rows = []
    for i in picked:
        mean = float(np.nanmean(run.objective[:, i]))
        rows.append(
            {
                "step": int(run.steps[i]),
                "objective": mean,
                "std_over_seeds": float(np.nanstd(run.objective[:, i])),
                "above_the_bound": mean / run.optimum - 1 if run.optimum > 0 else None,
                "imbalance": float(np.nanmean(run.imbalance[:, i])),
                "rank": float(run.rank[~run.diverged, i].mean()),
            }
        )
    return rows
