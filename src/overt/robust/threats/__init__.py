"""What an adversary may do: threats, each a ball with its geometry."""

from __future__ import annotations

from overt.robust.threats.balls import L1, L2, Linf
from overt.robust.threats.base import Region, Threat, check_threat

__all__ = ["L1", "L2", "Linf", "Region", "Threat", "check_threat"]
