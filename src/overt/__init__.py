"""overt: the regularizers hidden in training noise, written down, solved and certified.

noise -> penalty -> induced norm -> optimal map -> balanced factors -> certificate
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from overt import equalize, noise, penalty, results, spectral
from overt._check import InputError, InternalError, MissingExtraError
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

# Imported on first use: they need scipy, numba or an extra, which would take longer than the rest.
_LAZY = {
    "DeepLinearNetwork": "overt.linear",
    "LinearNetwork": "overt.linear",
    "TiedAutoencoder": "overt.linear",
    "drop_prob_for_rank": "overt.linear",
    "completion": "overt.completion",
    "datasets": "overt.datasets",
    "decay": "overt.decay",
    "linear": "overt.linear",
    "nn": "overt.nn",
    "path": "overt.linear",
    "relu": "overt.relu",
    "robust": "overt.robust",
}

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
    "InternalError",
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
    if name not in _LAZY:
        raise AttributeError(f"module 'overt' has no attribute {name!r}")
    home = import_module(_LAZY[name])
    return home if home.__name__ == f"overt.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
