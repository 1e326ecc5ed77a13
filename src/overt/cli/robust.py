"""`overt attack`: how robust is a model, measured with attacks that do not go blind."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from overt._check import InputError, MissingExtraError, choice
from overt.cli.base import app, console, show_table


@app.command()
def attack(
    model: Annotated[
        str, typer.Argument(metavar="FILE.py:FUNCTION", help="A function that builds the model.")
    ],
    data: Annotated[Path, typer.Option(help="npz file with inputs x and classes y.")],
    norm: Annotated[str, typer.Option(help="l1, l2 or linf.")] = "l2",
    radius: Annotated[float, typer.Option(min=0, help="Largest size of a perturbation.")] = 1.0,
    radii: Annotated[str, typer.Option(help="More radii for a curve, separated by commas.")] = "",
    bounds: Annotated[
        str, typer.Option(help="LOW,HIGH of valid inputs, or data, or none.")
    ] = "none",
    weights: Annotated[
        Path | None, typer.Option(help="safetensors file with the model's weights.")
    ] = None,
    loss: Annotated[
        str, typer.Option(help="strongest (an ensemble), or the name of one loss.")
    ] = "strongest",
    budget: Annotated[int, typer.Option(min=24, help="Gradients spent on a point at most.")] = 1000,
    points: Annotated[int, typer.Option(min=0, help="Use the first so many points; 0: all.")] = 0,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the curve of robust error over radii.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the picture and result.json.")] = Path(
        "overt-results"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random draw.")] = 0,
) -> None:
    """Measure a model's robust error under L1, L2 or Linf perturbations.

    Try: [bold]overt attack net.py:build_model --data test.npz --norm l2 --radius 2 --bounds 0,1
    --plot[/bold]
    """
    from overt.robust import L1, L2, LOSSES, PGD, Linf, robust_error

    kinds: dict[str, Any] = {"l1": L1, "l2": L2, "linf": Linf}
    threat = kinds[choice("norm", norm, tuple(kinds))](radius, _bounds(bounds))
    choice("loss", loss, ("strongest", *LOSSES))
    net = _build(model, weights)
    x, y = _read(data, points)
    curve = [_number("radii", part) for part in radii.split(",") if part.strip()]
    if plot and not curve:
        curve = [radius * k / 8 for k in range(1, 8)]
    chosen = None if loss == "strongest" else PGD(threat, steps=budget, loss=loss, seed=seed)
    found = robust_error(net, x, y, threat, radii=curve, attack=chosen, budget=budget, seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    found.save(out / "attack.json")
    if plot:
        try:
            found.plot().savefig(out / "attack.png", dpi=150)
        except ModuleNotFoundError as error:
            if error.name != "matplotlib":
                raise
            raise MissingExtraError("matplotlib", "plots") from None
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
        return
    show_table(
        ("radius", "robust error", f"{found.confidence:.0%} interval"),
        [
            (float(r), float(e), f"{low:.4f} to {high:.4f}")
            for r, e, (low, high) in zip(found.radii, found.errors, found.intervals, strict=True)
        ],
    )
    console.print(
        f"{found.points} points, clean error {found.clean:.4f}; at {norm} radius {radius:g} at "
        f"least {found.value:.4f} can be made to fail ({found.gradients:,} gradients)."
    )
    console.print(f"result: [bold]{escape(str(out / 'attack.json'))}[/]", soft_wrap=True)
    if plot:
        console.print(f"picture: [bold]{escape(str(out / 'attack.png'))}[/]", soft_wrap=True)


def _build(text: str, weights: Path | None) -> Any:
    """Return what the function named by FILE.py:FUNCTION builds, with weights if given."""
    name, _, function = text.rpartition(":")
    path = Path(name)
    if not name or path.suffix != ".py" or not function.isidentifier():
        raise InputError(f"model must be FILE.py:FUNCTION, got {text!r}")
    if not path.exists():
        raise InputError(f"model must name a file that exists, got {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"model must name a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, function, None)):
        raise InputError(f"{path} must define a function {function}, it does not")
    net = getattr(module, function)()
    if weights is not None:
        try:
            from safetensors.torch import load_file
        except ModuleNotFoundError:
            raise MissingExtraError("safetensors", "torch") from None
        try:
            net.load_state_dict(load_file(weights))
        except RuntimeError as error:
            raise InputError(f"weights do not fit the model: {error}") from None
    return net


def _read(path: Path, points: int) -> tuple[Any, Any]:
    """Return x and y of an npz file."""
    import numpy as np

    with np.load(path) as file:
        missing = {"x", "y"} - set(file.files)
        if missing:
            raise InputError(
                f"data must hold arrays x and y, {path} holds {', '.join(file.files) or 'nothing'}"
            )
        x, y = file["x"], file["y"]
    stop = points or len(x)
    return x[:stop], y[:stop]


def _bounds(text: str) -> Any:
    if text == "none":
        return None
    if text == "data":
        return "data"
    parts = text.split(",")
    if len(parts) != 2:
        raise InputError(f"bounds must be LOW,HIGH or data or none, got {text!r}")
    return _number("bounds", parts[0]), _number("bounds", parts[1])


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} must hold numbers, got {text!r}") from None
