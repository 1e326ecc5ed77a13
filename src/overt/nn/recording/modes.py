"""Modes of a model, under the names that this package uses; see `overt.nn.data.models`."""

from __future__ import annotations

from torch import nn

from overt.nn.data.models import MODEL_LOCK as ALONE
from overt.nn.data.models import Statistics, is_normalization, modes
from overt.nn.data.models import disable_checkpointing as open_checkpoints
from overt.nn.data.models import disable_fast_attention as slow_attention
from overt.nn.data.models import restore_training as switched
from overt.nn.data.models import unwrap_model as unwrapped

__all__ = [
    "ALONE",
    "Statistics",
    "is_normalization",
    "modes",
    "open_checkpoints",
    "parts",
    "slow_attention",
    "switched",
    "unwrapped",
]


def parts(model: nn.Module) -> list[nn.Module]:
    """Return all modules of a model."""
    return list(model.modules())
