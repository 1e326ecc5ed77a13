"""Options that describe a two-layer linear network, shared by solve, train and certify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from overt._check import InputError

if TYPE_CHECKING:
    from overt.linear import LinearNetwork

NOISES = ("dropout", "dropblock", "dropconnect", "keepexactly")

Target = Annotated[
    Path | None, Argument(help="Target matrix: .npy, .npz, .csv, .tsv, .txt or .mtx.")
]
X = Annotated[Path | None, Option("--x", help="Inputs, samples x features; needs --y.")]
Y = Annotated[
    Path | None, Option("--y", help="Outputs, samples x features; needs --x.")
]
Width = Annotated[int, Option(min=1, help="Number of hidden units.")]
DropProb = Annotated[
    float, Option(help="Probability of dropping, at least 0 and below 1.")
]
NoiseName = Annotated[str, Option("--noise", help="One of: " + ", ".join(NOISES) + ".")]
Keep = Annotated[
    int, Option(min=1, help="Number of units that survive, for keepexactly.")
]
BlockSize = Annotated[int, Option(min=1, help="Units per block, for dropblock.")]


def read_problem(target: Path | None, x: Path | None, y: Path | None) -> dict[str, Any]:
    """Return the matrices that were named, as keyword arguments of LinearNetwork."""
    from overt.cli.matrix_file import read_matrix

    named = {"target": target, "X": x, "Y": y}
    return {name: read_matrix(path) for name, path in named.items() if path is not None}


def make_noise(name: str, drop_prob: float, block_size: int, keep: int) -> Any:
    """Return the noise that the options describe."""
    from overt.noise import DropBlock, DropConnect, Dropout, KeepExactly

    match name:
        case "dropout":
            return Dropout(drop_prob)
        case "dropblock":
            return DropBlock(drop_prob, block_size)
        case "dropconnect":
            return DropConnect(drop_prob)
        case "keepexactly":
            return KeepExactly(keep)
    raise InputError(f"--noise must be one of {', '.join(NOISES)}, got {name!r}")


def make_network(problem: dict[str, Any], noise: Any, **settings: Any) -> LinearNetwork:
    """Return the network of a problem that was read."""
    from overt.linear import LinearNetwork

    return LinearNetwork(noise=noise, **settings, **problem)
