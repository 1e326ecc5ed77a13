"""`overt certify`: how far given weights are from the global optimum."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

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
def certify(
    files: Annotated[
        list[Path],
        Argument(
            metavar="M U V",
            help="Target, U and V, or target and a file that solve or train wrote; "
            "without the target where --x and --y are given.",
        ),
    ],
    drop_prob: networks.DropProb = None,
    noise: networks.NoiseName = "dropout",
    block_size: networks.BlockSize = None,
    keep: networks.Keep = None,
    second_moment: Annotated[
        Path | None,
        Option(
            help="Second moment of the inputs, inputs x inputs; the identity by default."
        ),
    ] = None,
    x: networks.X = None,
    y: networks.Y = None,
    rigorous: Annotated[
        bool, Option("--rigorous", help="Prove the bounds in exact arithmetic.")
    ] = False,
    out: Annotated[
        Path | None, Option(help="Write the certificate, or the proof with --rigorous.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how far the weights of a two-layer linear network are from the global optimum.

    Of a file with several runs, the one of the lowest objective is taken.
    Try: [bold]overt certify M.npy U.npy V.npy --rigorous --out proof.json[/bold]
    """
    from overt.cli.matrix_file import read_matrix

    has_target = x is None and y is None
    weights = files[1:] if has_target else files
    if len(weights) not in (1, 2):
        raise InputError(
            "give M and the weights, or the weights with --x and --y; the weights are U and V, "
            "or one file that `overt solve` or `overt train` wrote"
        )
    awaited(out)
    U, V = _read_weights(weights)
    problem = networks.read_problem(files[0] if has_target else None, x, y)
    if second_moment is not None:
        problem["second_moment"] = read_matrix(second_moment)
    chosen = networks.make_noise(
        noise, drop_prob=drop_prob, block_size=block_size, keep=keep
    )
    net = networks.make_network(problem, chosen, width=U.shape[1])
    if rigorous:
        proof = net.certify(U, V, rigorous=True)
        saved = None if out is None else proof.save(out)
        if as_json:
            show_json(
                {"statement": proof.statement, "saved": saved and str(saved)}, indent=1
            )
            return
        console.print(proof.statement, highlight=False)
        if saved is not None:
            show_path("proof", saved)
            console.print(
                f"check it: python -m overt.proofs.checker {out}", style="dim"
            )
        return
    certificate = net.certify(U, V)
    saved = None if out is None else certificate.save(out)
    if as_json:
        show_json({**certificate.to_dict(), "saved": saved and str(saved)}, indent=1)
        return
    show_table(("result", "value"), certificate.to_dict().items())
    if saved is not None:
        show_path("saved", saved)


def _read_weights(paths: list[Path]) -> tuple[Any, Any]:
    """Return U and V from two files, or from a result that a command wrote."""
    from overt._io import open_npz
    from overt.cli.matrix_file import read_matrix

    if len(paths) == 2:
        return read_matrix(paths[0]), read_matrix(paths[1])
    if paths[0].suffix.lower() != ".npz":
        raise InputError(
            f"V is missing: after {paths[0]}, taken as U, name the file of V; a single file "
            "of weights must be an .npz that `overt solve` or `overt train` wrote"
        )
    with open_npz(paths[0]) as stored:
        if {"U", "V"} <= set(stored.files):
            return stored["U"], stored["V"]
        if {"weights_1", "weights_2", "objective"} <= set(stored.files):
            best = stored["objective"][:, -1].argmin()
            return stored["weights_1"][best], stored["weights_2"][best]
    raise InputError(f"{paths[0]} must hold U and V of a two-layer network")
