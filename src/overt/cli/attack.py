"""`overt attack`: how robust is a model, measured with attacks that do not go blind."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import overt
from overt._check import InputError, choice
from overt._figures import write_figure
from overt._io import digest, ready, write_whole
from overt.cli.base import (
    AsJson,
    Seed,
    app,
    console,
    ended,
    show_path,
    show_table,
    warn,
)
from overt.cli.models import Points, Weights, load_model, read_examples


@app.command()
def attack(
    model: Annotated[
        str,
        Argument(
            metavar="MODEL",
            help="FILE.py:FUNCTION that builds the model, or a TorchScript or pickled .pt file.",
        ),
    ],
    data: Annotated[
        Path,
        Option(help="npz file with inputs and classes: x and y, or x_test and y_test."),
    ],
    norm: Annotated[str, Option(help="Norm of perturbations: l1, l2 or linf.")] = "l2",
    radius: Annotated[
        str, Option(help="Largest size of a perturbation: 0.5, 8/255.")
    ] = "1",
    radii: Annotated[
        str, Option(help="More radii for a curve, separated by commas.")
    ] = "",
    bounds: Annotated[
        str,
        Option(help="Range of valid inputs: LOW,HIGH; data for the range seen; none."),
    ] = "none",
    weights: Weights = None,
    trust_pickle: Annotated[
        bool,
        Option(
            "--trust-pickle", help="Load a whole model, which runs code of the file."
        ),
    ] = False,
    scale: Annotated[
        float | None,
        Option(
            help="Divide inputs by this number first; 255 for pixels stored as bytes."
        ),
    ] = None,
    mean: Annotated[
        str,
        Option(
            help="The model is called with (x - mean) / std; a number, or one per channel."
        ),
    ] = "",
    std: Annotated[str, Option(help="See --mean.")] = "",
    budget: Annotated[
        int, Option(min=24, help="Largest number of gradients per point.")
    ] = 1000,
    queries: Annotated[
        int,
        Option(
            min=0, help="Number of queries per point for the attack without gradients."
        ),
    ] = 1500,
    target: Annotated[
        int | None,
        Option(help="Count an attack as successful only if it reaches this class."),
    ] = None,
    samples: Annotated[
        int | None,
        Option(min=1, help="Samples per evaluation of a random model; 8 by default."),
    ] = None,
    outputs: Annotated[
        str, Option(help="What the model returns: logits or probabilities.")
    ] = "logits",
    certify: Annotated[
        bool,
        Option(
            "--certify",
            help="Try to prove that points which withstood the attack are robust.",
        ),
    ] = False,
    device: Annotated[str, Option(help="Where the model runs: cpu, cuda.")] = "cpu",
    points: Points = 0,
    plot: Annotated[bool, Option("--plot", help="Plot the curve.")] = False,
    out: Annotated[Path, Option(help="Folder for what is written.")] = Path(
        "overt-results"
    ),
    as_json: AsJson = False,
    per_point: Annotated[
        bool,
        Option(
            "--per-point", help="Print the results of single points in --json, too."
        ),
    ] = False,
    seed: Seed = 0,
) -> None:
    """Measure a model's robust error under L1, L2 or Linf perturbations.

    Writes attack.json, with all that is needed to repeat the run, and adversarial.npz.

    Try: [bold]overt attack net.py:build_model --data test.npz --norm linf --radius 8/255
    --bounds 0,1 --plot[/bold]
    """
    run = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in locals().items()
    }
    from overt.robust import L1, L2, Linf, robust_error

    kinds: dict[str, Any] = {"l1": L1, "l2": L2, "linf": Linf}
    kind = kinds[choice("norm", norm.lower(), tuple(kinds))]
    net = _on(load_model(model, weights, trust_pickle=trust_pickle), device)
    x, y = _scaled(*read_examples(data, points), scale)
    threat = kind(_number("radius", radius), _bounds(bounds, x))
    curve = [_number("radii", part) for part in radii.split(",") if part.strip()]
    if plot and not curve:
        curve = [threat.radius * k / 8 for k in range(1, 8)]
    options: Any = {
        "mean": _list("mean", mean),
        "std": _list("std", std),
        "samples": samples,
        "outputs": outputs,
    }
    ready(out)
    found = robust_error(
        net,
        x,
        y,
        threat,
        radii=curve,
        budget=budget,
        queries=queries,
        target=target,
        certify=certify,
        seed=seed,
        warn=False,
        **options,
    )
    moved = found.x
    after = _save_examples(out / "adversarial.npz", net, options, x, y, moved)
    notes = [*found.warnings, *_untrained(found.clean, after, weights)]
    facts = {
        "overt": overt.__version__,
        "data_sha256": digest("data", {"x": x, "y": y}),
    }
    stored = found.to_dict() | {"warnings": notes, "run": run | facts}
    stored.pop("x")  # adversarial.npz has it
    write_whole(out / "attack.json", json.dumps({**stored, "checksum": digest(stored)}))
    if plot:
        write_figure(found.plot(), out / "attack.png")
    if as_json:
        lists = () if per_point else ("success", "proved")
        typer.echo(
            json.dumps({name: v for name, v in stored.items() if name not in lists})
        )
    else:
        _show(found, notes, certify)
        show_path("result", out / "attack.json")
        show_path("examples", out / "adversarial.npz")
        if plot:
            show_path("picture", out / "attack.png")
    ended(
        found.status,
        f"{out} holds what was found until then: more points may be fooled",
    )


def _show(found: Any, notes: list[str], certify: bool) -> None:
    """Print the curve, the figure at the radius, and what makes them doubtful."""
    show_table(
        ("radius", "robust error", f"{found.confidence:.0%} interval"),
        [
            (float(r), float(e), f"{low:.4f} to {high:.4f}")
            for r, e, (low, high) in zip(
                found.radii, found.errors, found.intervals, strict=True
            )
        ],
    )
    console.print(
        f"{found.points} points, clean error {found.clean:.4f}; at {found.norm} radius "
        f"{found.radius:g} at least {found.value:.4f} can be made to fail"
        + (f", at most {found.upper:.4f}" if certify else "")
        + f" ({found.gradients:,} gradients, {found.queries:,} queries)."
    )
    console.print(found.table(), highlight=False)
    for note in notes:
        warn(note)


def _on(net: Any, device: str) -> Any:
    """Return the model on a device."""
    import torch

    try:
        return net.to(torch.device(device)) if isinstance(net, torch.nn.Module) else net
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device must be one that torch has here, got {device!r}: {error}"
        ) from None


def _scaled(x: Any, y: Any, scale: float | None) -> tuple[Any, Any]:
    """Return inputs as numbers with a fraction, divided by the scale."""
    import numpy as np

    if scale is None and x.dtype.kind in "biu":
        raise InputError(
            f"x holds {x.dtype}; say what to divide it by with --scale, 255 for pixels, and give "
            "the radius in the units after that"
        )
    if scale is not None and scale <= 0:
        raise InputError(f"scale must be positive, got {scale}")
    return (x if scale is None else (x / np.float32(scale)).astype(np.float32)), y


def _untrained(clean: float, logits: Any, weights: Path | None) -> list[str]:
    """Return a sentence if the clean error is what guessing gives."""
    # Guessing errs at 1 - 1 / classes of the points: one half of two classes.
    if clean < 0.95 * (1 - 1 / logits.shape[1]):
        return []
    hint = (
        "no weights were given: --weights names a file"
        if weights is None
        else "do they fit?"
    )
    return [
        f"the clean error of {clean:.2f} is about that of untrained weights; {hint}"
    ]


def _bounds(text: str, x: Any) -> Any:
    if text in ("none", "data"):
        return None if text == "none" else (float(x.min()), float(x.max()))
    parts = text.split(",")
    if len(parts) != 2:
        raise InputError(f"bounds must be LOW,HIGH or data or none, got {text!r}")
    return _number("bounds", parts[0]), _number("bounds", parts[1])


def _list(name: str, text: str) -> list[float] | float | None:
    parts = [_number(name, part) for part in text.split(",") if part.strip()]
    return None if not parts else parts[0] if len(parts) == 1 else parts


def _number(name: str, text: str) -> float:
    """Return a number that may be written as a fraction."""
    try:
        return float(Fraction(text.strip())) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{name} must hold numbers, got {text!r}") from None


def _save_examples(
    path: Path, net: Any, options: Any, x: Any, y: Any, moved: Any
) -> Any:
    """Write clean and perturbed inputs with classes; return the logits of the perturbed ones."""
    import numpy as np

    from overt.robust.models import ModelAdapter, evaluation_mode

    with evaluation_mode(net):
        adapters = [ModelAdapter(net, v, **options) for v in (x, moved)]
        before, after = (a.all_logits(a.x, 256).cpu() for a in adapters)
    arrays = {
        "x": x,
        "y": y,
        "adversarial": moved.cpu().numpy(),
        "clean_class": before.argmax(1).numpy(),
        "adversarial_class": after.argmax(1).numpy(),
    }
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))
    return after
