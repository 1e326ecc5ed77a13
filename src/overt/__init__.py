"""overt: the regularizers hidden in training noise, written down, solved and certified.

noise -> penalty -> induced norm -> optimal map -> balanced factors -> certificate
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from overt import equalize, noise, penalty, results, spectral
from overt._check import InputError, MissingExtraError
from overt.entries import Entries
from overt.noise import CovarianceNoise, DropBlock, DropConnect, Dropout, KeepExactly
from overt.results import Certificate, DeepSolution, Solution, Status, Trace

if TYPE_CHECKING:
    from overt.linear import (
        DeepLinearNetwork,
        LinearNetwork,
        TiedAutoencoder,
        drop_prob_for_rank,
        path,
    )

__version__ = "0.1.0"

# Imported on first use: they need scipy or numba, which would double the time of `import overt`.
_LAZY = {
    "DeepLinearNetwork": "overt.linear",
    "LinearNetwork": "overt.linear",
    "TiedAutoencoder": "overt.linear",
    "drop_prob_for_rank": "overt.linear",
    "path": "overt.linear",
}
_ROOMS = ("completion", "datasets", "decay", "experiments", "linear", "nn", "relu", "robust")

__all__ = [
    "Certificate",
    "CovarianceNoise",
    "DeepLinearNetwork",
    "DeepSolution",
    "DropBlock",
    "DropConnect",
    "Dropout",
    "Entries",
    "InputError",
    "KeepExactly",
    "LinearNetwork",
    "MissingExtraError",
    "Solution",
    "Status",
    "TiedAutoencoder",
    "Trace",
    "drop_prob_for_rank",
    "equalize",
    "noise",
    "path",
    "penalty",
    "results",
    "spectral",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"overt.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'overt' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
