"""Attacks: searches for perturbations that change a model's predictions."""

from __future__ import annotations

from overt.robust.attacks.base import Attack
from overt.robust.attacks.gradient import BIM, FGSM, PGD, Constant, Cosine, Decay, Halving
from overt.robust.attacks.results import AttackResult, RobustnessWarning
from overt.robust.attacks.staged import strongest

__all__ = [
    "BIM",
    "FGSM",
    "PGD",
    "Attack",
    "AttackResult",
    "Constant",
    "Cosine",
    "Decay",
    "Halving",
    "RobustnessWarning",
    "strongest",
]
