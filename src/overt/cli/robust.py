"""`overt attack`: how robust is a model, measured with attacks that do not go blind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from overt._check import InputError, choice
from overt.cli.base import AsJson, Seed, app, console, show_path, show_table
from overt.cli.models import Model, Points, Weights, build_model, read_examples


@app.command()
def attack(
    model: Model,
    data: Annotated[Path, typer.Option(help="npz file with inputs x and classes y.")],
    norm: Annotated[str, typer.Option(help="l1, l2 or linf.")] = "l2",
    radius: Annotated[float, typer.Option(min=0, help="Largest size of a perturbation.")] = 1.0,
    radii: Annotated[str, typer.Option(help="More radii for a curve, separated by commas.")] = "",
    bounds: Annotated[
        str, typer.Option(help="LOW,HIGH of valid inputs, or data, or none.")
    ] = "none",
    weights: Weights = None,
    loss: Annotated[
        str, typer.Option(help="strongest (an ensemble), or the name of one loss.")
    ] = "strongest",
    budget: Annotated[int, typer.Option(min=24, help="Gradients spent on a point at most.")] = 1000,
    points: Points = 0,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the curve of robust error over radii.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for attack.json and the picture.")] = Path(
        "overt-results"
    ),
    as_json: AsJson = False,
    seed: Seed = 0,
) -> None:
    """Measure a model's robust error under L1, L2 or Linf perturbations.

    Try: [bold]overt attack net.py:build_model --data test.npz --norm l2 --radius 2 --bounds 0,1
    --plot[/bold]
    """
    from overt.robust import L1, L2, LOSSES, PGD, Linf, robust_error

    kinds: dict[str, Any] = {"l1": L1, "l2": L2, "linf": Linf}
    threat = kinds[choice("norm", norm, tuple(kinds))](radius, _bounds(bounds))
    choice("loss", loss, ("strongest", *LOSSES))
    net = build_model(model, weights)
    x, y = read_examples(data, points)
    curve = [_number("radii", part) for part in radii.split(",") if part.strip()]
    if plot and not curve:
        curve = [radius * k / 8 for k in range(1, 8)]
    out.mkdir(parents=True, exist_ok=True)
    chosen = None if loss == "strongest" else PGD(threat, steps=budget, loss=loss, seed=seed)
    found = robust_error(net, x, y, threat, radii=curve, attack=chosen, budget=budget, seed=seed)
    found.save(out / "attack.json")
    if plot:
        found.plot().savefig(out / "attack.png", dpi=150)
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
    show_path("result", out / "attack.json")
    if plot:
        show_path("picture", out / "attack.png")


def _bounds(text: str) -> Any:
    if text in ("none", "data"):
        return None if text == "none" else text
    parts = text.split(",")
    if len(parts) != 2:
        raise InputError(f"bounds must be LOW,HIGH or data or none, got {text!r}")
    return _number("bounds", parts[0]), _number("bounds", parts[1])


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} must hold numbers, got {text!r}") from None
