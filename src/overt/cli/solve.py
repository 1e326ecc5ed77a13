"""`overt solve`: the exact optimum of a linear network trained with noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from overt._check import InputError
from overt.cli import networks
from overt.cli.base import (
    AsJson,
    app,
    awaited,
    console,
    show_json,
    show_path,
    show_table,
)


@app.command()
def solve(
    target: networks.Target = None,
    width: networks.Width = 20,
    drop_prob: networks.DropProb = None,
    rank: Annotated[
        int | None,
        Option(min=1, help="Choose the probability of dropout that gives this rank."),
    ] = None,
    noise: networks.NoiseName = "dropout",
    block_size: networks.BlockSize = None,
    keep: networks.Keep = None,
    x: networks.X = None,
    y: networks.Y = None,
    out: Annotated[
        Path | None,
        Option(help="Write the weights and the certificate to this .npz or .json."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the exact optimum of a two-layer linear network trained with noise.

    Try: [bold]overt solve M.npy --width 20 --drop-prob 0.5 --out best.npz[/bold]
    """
    awaited(out)
    problem = networks.read_problem(target, x, y)
    if rank is not None:
        from overt.linear import drop_prob_for_rank

        if noise != "dropout":
            raise InputError(
                f"--rank chooses the probability of dropout, not of {noise}"
            )
        if drop_prob is not None:
            raise InputError(
                f"--rank chooses the probability of dropout, and --drop-prob {drop_prob} "
                "was given too: leave out one of them"
            )
        drop_prob = drop_prob_for_rank(width=width, rank=rank, **problem)
    chosen = networks.make_noise(
        noise, drop_prob=drop_prob, block_size=block_size, keep=keep
    )
    net = networks.make_network(problem, chosen, width=width)
    best = net.solve()
    certificate = best.certificate
    found = {
        "status": str(best.status),
        "noise": repr(net.noise),
        "objective": best.objective,
        "lower_bound": certificate.lower_bound,
        "relative_gap": certificate.relative_gap,
        "rank": best.rank,
        "imbalance": certificate.imbalance,
    }
    saved = None if out is None else best.save(out)
    if as_json:
        show_json({**found, "saved": saved and str(saved)}, indent=1)
        return
    shown = {
        **found,
        "objective": f"{best.objective:.10g}",
        "lower_bound": f"{certificate.lower_bound:.10g}",
        "rank": f"{best.rank} of at most {width}",
    }
    show_table(
        ("result", "value"), [(k.replace("_", " "), v) for k, v in shown.items()]
    )
    console.print(best.status.explanation, style="dim")
    if saved is not None:
        show_path("saved", saved)
