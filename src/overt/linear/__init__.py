"""Linear networks: exact optimum, stochastic algorithm, certificate, landscape."""

from __future__ import annotations

from overt.linear.deep import DeepLinearNetwork
from overt.linear.descent import inverse_decay
from overt.linear.regularization import (
    RegularizationPath,
    drop_prob_for_rank,
    path,
    rank_jump,
)
from overt.linear.shallow import LinearNetwork
from overt.linear.tied import TiedAutoencoder

__all__ = [
    "DeepLinearNetwork",
    "LinearNetwork",
    "RegularizationPath",
    "TiedAutoencoder",
    "drop_prob_for_rank",
    "inverse_decay",
    "path",
    "rank_jump",
]
