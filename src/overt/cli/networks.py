"""Options that describe a two-layer linear network, shared by solve, train and certify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from overt._check import InputError

if TYPE_CHECKING:
    from overt.linear import LinearNetwork
    from overt.noise import Noise

NOISES: dict[str, dict[str, float]] = {
    "dropout": {"drop_prob": 0.5},
    "dropblock": {"drop_prob": 0.5, "block_size": 2},
    "dropconnect": {"drop_prob": 0.5},
    "keepexactly": {"keep": 10},
}
"""By noise: its options, and what they are where they are not given."""

Target = Annotated[
    Path | None, Argument(help="Target matrix: .npy, .npz, .csv, .tsv, .txt or .mtx.")
]
X = Annotated[Path | None, Option("--x", help="Inputs, samples x features; needs --y.")]
Y = Annotated[
    Path | None, Option("--y", help="Outputs, samples x features; needs --x.")
]
Width = Annotated[int, Option(min=1, help="Number of hidden units.")]
DropProb = Annotated[
    float | None,
    Option(help="Probability of dropping, at least 0 and below 1; 0.5 by default."),
]
NoiseName = Annotated[str, Option("--noise", help="One of: " + ", ".join(NOISES) + ".")]
Keep = Annotated[
    int | None,
    Option(min=1, help="Number of units that survive, for keepexactly; 10 by default."),
]
BlockSize = Annotated[
    int | None, Option(min=1, help="Units per block, for dropblock; 2 by default.")
]


def read_problem(target: Path | None, x: Path | None, y: Path | None) -> dict[str, Any]:
    """Return the matrices that were named, as keyword arguments of LinearNetwork."""
    from overt.cli.matrix_file import read_matrix

    named = {"target": target, "X": x, "Y": y}
    return {name: read_matrix(path) for name, path in named.items() if path is not None}


def make_noise(name: str, **options: float | None) -> Noise:
    """Return the noise that the options describe; one that it does not have is refused."""
    from overt.noise import DropBlock, DropConnect, Dropout, KeepExactly

    if name not in NOISES:
        raise InputError(f"--noise must be one of {', '.join(NOISES)}, got {name!r}")
    given = {key: value for key, value in options.items() if value is not None}
    for key, value in given.items():
        if key not in NOISES[name]:
            owners = " or ".join(noise for noise, own in NOISES.items() if key in own)
            option = "--" + key.replace("_", "-")
            raise InputError(
                f"{option} {value} is for --noise {owners}, and the noise is {name}: "
                f"leave out {option}, or name that noise"
            )
    kinds = {
        "dropout": Dropout,
        "dropblock": DropBlock,
        "dropconnect": DropConnect,
        "keepexactly": KeepExactly,
    }
    settings: dict[str, Any] = NOISES[name] | given
    made: Noise = kinds[name](**settings)
    return made


def make_network(problem: dict[str, Any], noise: Any, **settings: Any) -> LinearNetwork:
    """Return the network of a problem that was read."""
    from overt.linear import LinearNetwork

    return LinearNetwork(noise=noise, **settings, **problem)
