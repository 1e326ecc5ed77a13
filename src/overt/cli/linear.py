"""`overt solve` and `overt train`: a two-layer linear network from a matrix file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from overt._check import InputError, MissingExtraError
from overt.cli.base import app, awaited, console, ended, fail, show_table

if TYPE_CHECKING:
    from overt.linear import LinearNetwork

Target = Annotated[
    Path | None, typer.Argument(help="Target matrix: .npy, .npz, .csv, .tsv, .txt or .mtx.")
]
X = Annotated[Path | None, typer.Option("--x", help="Inputs, samples x features, with --y.")]
Y = Annotated[Path | None, typer.Option("--y", help="Outputs, samples x features, with --x.")]
Width = Annotated[int, typer.Option(min=1, help="Number of hidden units.")]
DropProb = Annotated[float, typer.Option(help="Probability of dropping, in [0, 1).")]
NoiseName = Annotated[
    str, typer.Option("--noise", help="dropout, dropblock, dropconnect or keepexactly.")
]
Keep = Annotated[int, typer.Option(min=1, help="Units kept, for keepexactly.")]
WeightDecay = Annotated[float, typer.Option(min=0, help="mu, which adds mu (|U|^2 + |V|^2).")]
BlockSize = Annotated[int, typer.Option(min=1, help="Units per block, for dropblock.")]


@app.command()
def solve(
    target: Target = None,
    width: Width = 20,
    drop_prob: DropProb = 0.5,
    rank: Annotated[
        int | None, typer.Option(min=1, help="Choose the drop probability that gives this rank.")
    ] = None,
    noise: NoiseName = "dropout",
    block_size: BlockSize = 2,
    keep: Keep = 10,
    weight_decay: WeightDecay = 0.0,
    x: X = None,
    y: Y = None,
    out: Annotated[
        Path | None, typer.Option(help="Write U, V and the rest to .npz or .json.")
    ] = None,
) -> None:
    """Find the exact optimum of a linear network trained with noise.

    Try: [bold]overt solve M.npy --width 20 --drop-prob 0.5 --out best.npz[/bold]
    """
    awaited(out)
    if rank is not None:
        from overt.linear import drop_prob_for_rank

        drop_prob = drop_prob_for_rank(width=width, rank=rank, **_given(target, x, y))
    net = network(
        target, x, y, width, noise, drop_prob, block_size, keep, weight_decay=weight_decay
    )
    best = net.solve()
    certificate = best.certificate
    show_table(
        ("result", "value"),
        [
            ("status", str(best.status)),
            ("noise", repr(net.noise)),
            ("objective", f"{best.objective:.10g}"),
            ("lower bound", f"{certificate.lower_bound:.10g}"),
            ("relative gap", f"{certificate.relative_gap:.2e}"),
            ("rank", f"{best.rank} of at most {width}"),
            ("imbalance", f"{certificate.imbalance:.2e}"),
        ],
    )
    console.print(best.status.explanation, style="dim")
    if out is not None:
        console.print(f"saved: [bold]{escape(os.fspath(best.save(out)))}[/]", soft_wrap=True)


@app.command()
def train(
    target: Target = None,
    width: Width = 20,
    drop_prob: DropProb = 0.5,
    noise: NoiseName = "dropout",
    block_size: BlockSize = 2,
    keep: Keep = 10,
    weight_decay: WeightDecay = 0.0,
    x: X = None,
    y: Y = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a batch each.")] = 20_000,
    learning_rate: Annotated[float, typer.Option(help="Step size.")] = 1e-3,
    halving: Annotated[
        float | None,
        typer.Option(help="Step by which the step size has halved."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a step.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs.")] = 10,
    gradient: Annotated[
        str, typer.Option(help="sampled, or expected: descent on the exact objective.")
    ] = "sampled",
    records: Annotated[int, typer.Option(min=2, help="How often runs are measured.")] = 40,
    n_jobs: Annotated[int | None, typer.Option(min=1, help="Threads; all by default.")] = None,
    engine: Annotated[str, typer.Option(help="local, dask, or a scheduler: tcp://...")] = "local",
    out: Annotated[Path | None, typer.Option(help="Write the traces to .npz or .json.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the objective to this picture.")] = None,
) -> None:
    """Run stochastic gradient descent with noise beside the exact optimum.

    Try: [bold]overt train M.npy --width 20 --seeds 10 --plot runs.png[/bold]
    """
    import numpy as np

    from overt.linear import inverse_decay

    awaited(out, plot)
    net = network(
        target, x, y, width, noise, drop_prob, block_size, keep, weight_decay=weight_decay
    )
    rate: Any = learning_rate if halving is None else inverse_decay(learning_rate, halving)
    run = net.train(
        steps, rate, seeds, batch_size=batch_size, gradient=gradient, records=records,
        n_jobs=n_jobs, engine=engine,
    )  # fmt: skip
    if run.diverged.all():
        fail(run.status.explanation, 1)
    measured = np.flatnonzero(np.isfinite(run.objective).any(axis=0)).tolist()  # before Ctrl-C
    picked = measured[:1] + measured[1:][:: -max(1, len(measured) // 8)][::-1]
    show_table(
        ("step", "objective, mean", "spread over seeds", "above the bound", "imbalance", "rank"),
        [
            (
                int(run.steps[i]),
                float(np.nanmean(run.objective[:, i])),
                float(np.nanstd(run.objective[:, i])),
                float(np.nanmean(run.objective[:, i]) / run.optimum - 1)
                if run.optimum > 0
                else None,
                float(np.nanmean(run.imbalance[:, i])),
                float(run.rank[~run.diverged, i].mean()),
            )
            for i in picked
        ],
    )
    console.print(f"{run.status}: {run.status.explanation}", style="dim")
    if out is not None:
        console.print(f"saved: [bold]{escape(os.fspath(run.save(out)))}[/]", soft_wrap=True)
    if plot is not None:
        try:
            from overt._figures import runs_figure

            figure = runs_figure([("", run)])
        except ModuleNotFoundError:
            raise MissingExtraError("matplotlib", "plots") from None
        figure.savefig(plot, dpi=150, bbox_inches="tight")
        console.print(f"picture: [bold]{escape(os.fspath(plot))}[/]", soft_wrap=True)
    ended(run.status, "what is shown and written holds the steps taken")


def network(
    target: Path | None,
    x: Path | None,
    y: Path | None,
    width: int,
    noise: str,
    drop_prob: float,
    block_size: int,
    keep: int = 0,
    second_moment: Any = None,
    weight_decay: float = 0.0,
) -> LinearNetwork:
    """Return the network that the options describe."""
    from overt.linear import LinearNetwork
    from overt.noise import DropBlock, DropConnect, Dropout, KeepExactly

    match noise:
        case "dropout":
            chosen: Any = Dropout(drop_prob)
        case "dropblock":
            chosen = DropBlock(drop_prob, block_size)
        case "dropconnect":
            chosen = DropConnect(drop_prob)
        case "keepexactly":
            chosen = KeepExactly(keep)
        case _:
            raise InputError(
                f"--noise must be dropout, dropblock, dropconnect or keepexactly, got {noise!r}"
            )
    given = _given(target, x, y)
    if second_moment is not None:
        given["second_moment"] = second_moment
    return LinearNetwork(width=width, noise=chosen, weight_decay=weight_decay, **given)


def _given(target: Path | None, x: Path | None, y: Path | None) -> dict[str, Any]:
    from overt._files import read_matrix

    named = {"target": target, "X": x, "Y": y}
    return {name: read_matrix(path) for name, path in named.items() if path is not None}
