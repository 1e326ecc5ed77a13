"""`overt compress`: a smaller network, its weights, and a program that loads them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer import Option

from overt._check import InputError
from overt._io import ready, write_whole
from overt.cli.base import AsJson, app, console, show_path
from overt.cli.models import Model, Points, Weights, build_model, read_examples

EXAMPLE = 256
"""Rows of the example on which the network is checked and timed."""


@app.command()
def compress(
    model: Model,
    data: Annotated[
        Path, Option(help="npz file with x and y that training has not seen.")
    ],
    weights: Weights = None,
    keep: Annotated[
        str, Option(help="Share to keep, in (0, 1]; or LAYER=SHARE,LAYER=SHARE.")
    ] = "0.5",
    of: Annotated[
        str, Option(help="What the share counts: parameters, multiply_adds or units.")
    ] = "parameters",
    by: Annotated[
        str,
        Option(
            help="Method: flow (units with the least flow go), spectrum (low rank), auto."
        ),
    ] = "auto",
    loss: Annotated[
        str,
        Option(
            help="Loss: cross_entropy, logistic, mse, squared; auto chooses by the targets."
        ),
    ] = "auto",
    holdout: Annotated[
        Path | None,
        Option(help="npz file with x and y to report on; half of data by default."),
    ] = None,
    points: Points = 0,
    out: Annotated[Path, Option(help="Folder for the results.")] = Path(
        "overt-results"
    ),
    as_json: AsJson = False,
) -> None:
    """Make a trained network smaller by removing units or by low rank.

    Half of the points choose the network, the other half give the numbers in the report. Writes
    compressed.safetensors, compress.json and load.py, which needs torch and safetensors only.

    Try: [bold]overt compress net.py:build_model --data unseen.npz --weights w.pt --keep .5[/bold]
    """
    from overt.nn.compression import compress as run
    from overt.nn.compression import save_compressed

    net = build_model(model, weights)
    choosing, testing = _halves(*read_examples(data, points))
    if holdout is not None:
        choosing, testing = read_examples(data, points), read_examples(holdout)
    ready(out)
    small, report = run(
        net,
        _keep(keep),
        choosing[0][:EXAMPLE],
        choosing,
        by,
        of=of,
        loss=loss,
        holdout=testing,
    )
    save_compressed(small, out / "compressed.safetensors")
    report.save(out / "compress.json")
    source, _, function = model.rpartition(":")
    write_whole(out / "load.py", _loading_program(Path(source).resolve(), function))
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        console.print(escape(str(report)), highlight=False, soft_wrap=True)
        show_path("weights", out / "compressed.safetensors")
        program = escape(str(out / "load.py"))
        console.print(
            f"load them with [bold]{program}[/]: from load import load; load()",
            soft_wrap=True,
        )


def _halves(x: Any, y: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return points to choose with and points to report on, all for both where there is one."""
    if len(x) < 2:
        return (x, y), (x, y)
    return (x[::2], y[::2]), (x[1::2], y[1::2])


def _keep(text: str) -> Any:
    try:
        if "=" not in text:
            return float(text)
        parts = (part.rpartition("=") for part in text.split(","))
        return {name.strip(): float(share) for name, _, share in parts}
    except ValueError:
        raise InputError(
            f"keep must be a number in (0, 1] or LAYER=SHARE,LAYER=SHARE, got {text!r}"
        ) from None


def _loading_program(path: Path, function: str) -> str:
    """Return a program with a function load() that returns the smaller network, without overt."""
    from overt.nn.compression import loader

    return f'''{inspect.getsource(loader)}

def load():
    """Return the smaller network, in evaluation mode."""
    import sys
    from pathlib import Path

    sys.path.append({str(path.parent)!r})
    from {path.stem} import {function} as build

    return load_into(build(), *read_file(Path(__file__).with_name("compressed.safetensors")))
'''
