"""`overt audit`: what dropout does to a model, and what theory promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from typer import Option

from overt.cli.base import app, console, ended
from overt.cli.models import Model, Points, Weights, build_model, read_examples


@app.command()
def audit(
    model: Model,
    data: Annotated[Path, Option(help="npz file with inputs x and targets y.")],
    loss: Annotated[
        str, Option(help="Training loss: cross_entropy, logistic, mse or squared.")
    ] = "cross_entropy",
    weights: Weights = None,
    points: Points = 0,
    batch: Annotated[int, Option(min=1, help="Number of points in a batch.")] = 256,
    as_json: Annotated[
        bool, Option("--json", help="Print JSON instead of text.")
    ] = False,
    seed: Annotated[int, Option(min=0, help="Seed for the sampled masks.")] = 0,
) -> None:
    """Measure what dropout does to a trained model: penalties, bounds, dead units.

    The report compares the training loss with and without noise, lists the penalty that each
    dropout layer adds, and gives the bounds that the theory proves for the model.

    Try: [bold]overt audit net.py:build_model --data train.npz --loss squared[/bold]
    """
    from overt.nn.auditing import audit as audited

    net = build_model(model, weights)
    x, y = read_examples(data, points)
    batches = [(x[i : i + batch], y[i : i + batch]) for i in range(0, len(x), batch)]
    report = audited(net, batches, loss, seed=seed)
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        console.print(escape(str(report)), highlight=False, soft_wrap=True)
    ended(report.status, "the findings are those on the rows seen until then")
