"""`overt solve`, `train` and `certify`: two-layer linear networks from matrix files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from overt._check import InputError
from overt.cli.base import Engine, app, awaited, console, ended, fail, show_path, show_table

if TYPE_CHECKING:
    from overt.linear import LinearNetwork

Target = Annotated[
    Path | None, Argument(help="Target matrix: .npy, .npz, .csv, .tsv, .txt or .mtx.")
]
X = Annotated[Path | None, Option("--x", help="Inputs, samples x features, with --y.")]
Y = Annotated[Path | None, Option("--y", help="Outputs, samples x features, with --x.")]
Width = Annotated[int, Option(min=1, help="Number of hidden units.")]
DropProb = Annotated[float, Option(help="Probability of dropping, in [0, 1).")]
NoiseName = Annotated[
    str, Option("--noise", help="dropout, dropblock, dropconnect or keepexactly.")
]
Keep = Annotated[int, Option(min=1, help="Units kept, for keepexactly.")]
WeightDecay = Annotated[float, Option(min=0, help="mu, which adds mu (|U|^2 + |V|^2).")]
BlockSize = Annotated[int, Option(min=1, help="Units per block, for dropblock.")]


@app.command()
def solve(
    target: Target = None,
    width: Width = 20,
    drop_prob: DropProb = 0.5,
    rank: Annotated[
        int | None, Option(min=1, help="Choose the drop probability that gives this rank.")
    ] = None,
    noise: NoiseName = "dropout",
    block_size: BlockSize = 2,
    keep: Keep = 10,
    weight_decay: WeightDecay = 0.0,
    x: X = None,
    y: Y = None,
    out: Annotated[Path | None, Option(help="Write U, V and the rest to .npz or .json.")] = None,
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
        show_path("saved", best.save(out))


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
    steps: Annotated[int, Option(min=1, help="Steps of a batch each.")] = 20_000,
    learning_rate: Annotated[float, Option(help="Step size.")] = 1e-3,
    halving: Annotated[float | None, Option(help="Step by which the step size has halved.")] = None,
    batch_size: Annotated[int, Option(min=1, help="Samples in a step.")] = 1,
    seeds: Annotated[int, Option(min=1, help="Number of runs.")] = 10,
    gradient: Annotated[
        str, Option(help="sampled, or expected: descent on the exact objective.")
    ] = "sampled",
    records: Annotated[int, Option(min=2, help="How often runs are measured.")] = 40,
    n_jobs: Annotated[
        int | None, Option(min=-1, help="Threads; all cores by default, or with -1.")
    ] = None,
    engine: Engine = "local",
    out: Annotated[Path | None, Option(help="Write the traces to .npz or .json.")] = None,
    plot: Annotated[Path | None, Option(help="Draw the objective to this picture.")] = None,
) -> None:
    """Run stochastic gradient descent with noise beside the exact optimum.

    Try: [bold]overt train M.npy --width 20 --seeds 10 --plot runs.png[/bold]
    """
    import numpy as np

    from overt.linear import inverse_decay

    awaited(out, picture=plot)
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
    above = run.optimum > 0
    measured = np.flatnonzero(np.isfinite(run.objective).any(axis=0)).tolist()  # before Ctrl-C
    picked = measured[:1] + measured[1:][:: -max(1, len(measured) // 8)][::-1]
    show_table(
        ("step", "objective, mean", "spread over seeds", "above the bound", "imbalance", "rank"),
        [
            (
                int(run.steps[i]),
                float(np.nanmean(run.objective[:, i])),
                float(np.nanstd(run.objective[:, i])),
                float(np.nanmean(run.objective[:, i]) / run.optimum - 1) if above else None,
                float(np.nanmean(run.imbalance[:, i])),
                float(run.rank[~run.diverged, i].mean()),
            )
            for i in picked
        ],
    )
    console.print(f"{run.status}: {run.status.explanation}", style="dim")
    if out is not None:
        show_path("saved", run.save(out))
    if plot is not None:
        from overt._figures import write_figure

        show_path("picture", write_figure(run.plot(), plot))
    ended(run.status, "what is shown and written holds the steps taken")


@app.command()
def certify(
    files: Annotated[
        list[Path],
        Argument(metavar="[M] U V", help="Target, U and V; U and V alone with --x and --y."),
    ],
    drop_prob: DropProb = 0.5,
    noise: NoiseName = "dropout",
    block_size: BlockSize = 2,
    keep: Keep = 10,
    second_moment: Annotated[
        Path | None, Option(help="E[x x'], inputs x inputs; the identity by default.")
    ] = None,
    x: X = None,
    y: Y = None,
    rigorous: Annotated[bool, Option("--rigorous", help="Prove it, in exact arithmetic.")] = False,
    out: Annotated[
        Path | None, Option(help="Write the certificate, or the proof for the checker.")
    ] = None,
) -> None:
    """Say how far the weights of a two-layer linear network are from the global optimum.

    Try: [bold]overt certify M.npy U.npy V.npy --rigorous --out proof.json[/bold]
    """
    from overt._files import read_matrix

    if len(files) != (3 if x is None and y is None else 2):
        raise InputError("give M, U and V, or U and V with --x and --y")
    awaited(out)
    U, V = (read_matrix(path) for path in files[-2:])
    target = files[0] if len(files) == 3 else None
    C = None if second_moment is None else read_matrix(second_moment)
    net = network(target, x, y, U.shape[1], noise, drop_prob, block_size, keep, second_moment=C)
    if rigorous:
        proof = net.certify(U, V, rigorous=True)
        console.print(proof.statement, highlight=False)
        if out is not None:
            show_path("proof", proof.save(out))
            console.print(f"check it: python -m overt.linear.checker {out}", style="dim")
        return
    certificate = net.certify(U, V)
    show_table(("result", "value"), certificate.to_dict().items())
    if out is not None:
        show_path("saved", certificate.save(out))


def network(
    target: Path | None, x: Path | None, y: Path | None, width: int, noise: str, drop_prob: float,
    block_size: int, keep: int = 0, second_moment: Any = None, weight_decay: float = 0.0,
) -> LinearNetwork:  # fmt: skip
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
