"""`overt certify`: weights from files against the global optimum, as a proof if asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from overt._check import InputError
from overt.cli.base import app, awaited, console, show_path, show_table
from overt.cli.linear import BlockSize, DropProb, Keep, NoiseName, X, Y, network


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
