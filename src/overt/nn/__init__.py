"""PyTorch: layers that drop what they say, dropout without sampling, exact uncertainty.

>>> import torch
>>> from overt.nn import predictive_moments
>>> model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
>>> mean, variance = predictive_moments(model, torch.ones(3, 4))
>>> mean.shape, variance.shape
(torch.Size([3, 2]), torch.Size([3, 2]))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from overt._check import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtraError("torch", "torch") from None

if TYPE_CHECKING:
    from overt.nn.auditing import AuditReport, audit
    from overt.nn.compression import (
        Compression,
        compress,
        load_compressed,
        save_compressed,
    )
    from overt.nn.layers.covariance import CovarianceDropout
    from overt.nn.layers.dropblock import DropBlock1d, DropBlock2d, DropBlock3d
    from overt.nn.layers.dropconnect import DropConnectLinear
    from overt.nn.layers.dropout import Dropout
    from overt.nn.moments.monte_carlo import Moments, mc_moments
    from overt.nn.moments.predictive import predictive_moments
    from overt.nn.penalties import Penalty, Term, explicit_penalty
    from overt.nn.predictor import Predictive
    from overt.nn.training import GradientBias, WithoutNoise, without_noise

# Imported on first use: overt.robust shares overt.nn.data, and needs nothing else of this package.
_HOME = {
    "AuditReport": "overt.nn.auditing",
    "Compression": "overt.nn.compression",
    "CovarianceDropout": "overt.nn.layers.covariance",
    "DropBlock1d": "overt.nn.layers.dropblock",
    "DropBlock2d": "overt.nn.layers.dropblock",
    "DropBlock3d": "overt.nn.layers.dropblock",
    "DropConnectLinear": "overt.nn.layers.dropconnect",
    "Dropout": "overt.nn.layers.dropout",
    "GradientBias": "overt.nn.training",
    "Moments": "overt.nn.moments.monte_carlo",
    "Penalty": "overt.nn.penalties",
    "Predictive": "overt.nn.predictor",
    "Term": "overt.nn.penalties",
    "WithoutNoise": "overt.nn.training",
    "audit": "overt.nn.auditing",
    "compress": "overt.nn.compression",
    "explicit_penalty": "overt.nn.penalties",
    "load_compressed": "overt.nn.compression",
    "mc_moments": "overt.nn.moments.monte_carlo",
    "predictive_moments": "overt.nn.moments.predictive",
    "save_compressed": "overt.nn.compression",
    "without_noise": "overt.nn.training",
}

__all__ = [
    "AuditReport",
    "Compression",
    "CovarianceDropout",
    "DropBlock1d",
    "DropBlock2d",
    "DropBlock3d",
    "DropConnectLinear",
    "Dropout",
    "GradientBias",
    "Moments",
    "Penalty",
    "Predictive",
    "Term",
    "WithoutNoise",
    "audit",
    "compress",
    "explicit_penalty",
    "load_compressed",
    "mc_moments",
    "predictive_moments",
    "save_compressed",
    "without_noise",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'overt.nn' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
