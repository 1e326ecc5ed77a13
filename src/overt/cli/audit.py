"""`overt audit`: what dropout does to a model, and what theory promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer import Option

from overt.cli.base import app, awaited, console, ended, show_path
from overt.cli.models import Model, Points, Weights, build_model, read_examples


@app.command()
def audit(
    model: Model,
    data: Annotated[Path, Option(help="npz file with inputs x and targets y.")],
    loss: Annotated[
        str, Option(help="Training loss: cross_entropy, logistic, mse or squared.")
    ] = "cross_entropy",
    holdout: Annotated[
        Path | None,
        Option(help="npz file with x and y that the model was not trained on."),
    ] = None,
    weights: Weights = None,
    points: Points = 0,
    batch: Annotated[int, Option(min=1, help="Number of points in a batch.")] = 256,
    html: Annotated[
        Path | None, Option(help="Write the report with pictures to this HTML file.")
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print JSON instead of text.")
    ] = False,
    seed: Annotated[int, Option(min=0, help="Seed for the sampled masks.")] = 0,
) -> None:
    """Measure what dropout does to a trained model: penalties, bounds, dead units.

    The report compares the training loss with and without noise, lists the penalty that each
    dropout layer adds, and gives the bounds that the theory proves for the model.

    Try: [bold]overt audit net.py:build_model --data train.npz --holdout test.npz
    --html audit.html[/bold]
    """
    from overt.nn.auditing import audit as audited

    net = build_model(model, weights)
    training = _batches(data, points, batch)
    others = None if holdout is None else _batches(holdout, points, batch)
    awaited(html)
    report = audited(net, training, loss, holdout=others, seed=seed)
    if html is not None:
        report.to_html(html)
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        console.print(escape(str(report)), highlight=False, soft_wrap=True)
        if html is not None:
            show_path("\nreport", html)
    ended(report.status, "the findings are those on the rows seen until then")


def _batches(path: Path, points: int, size: int) -> list[tuple[Any, Any]]:
    x, y = read_examples(path, points)
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
