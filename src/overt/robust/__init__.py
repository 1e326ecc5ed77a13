"""Robustness: attacks that do not go blind, robust error, adversarial training, exact answers.

Four nouns: a threat (what is allowed), a loss (what is ascended), an attack (how), a criterion
(when it has succeeded).

>>> from overt.robust import L2, PGD, robust_error
>>> PGD(L2(2.0), steps=50, loss="reflected")(model, x, y).success  # doctest: +SKIP
>>> robust_error(model, x, y, L2(2.0)).interval  # doctest: +SKIP
"""

from __future__ import annotations

from overt._check import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError:
    raise MissingExtraError("torch", "torch") from None

from overt.robust.attacks import (
    BIM,
    FGSM,
    PGD,
    Attack,
    AttackResult,
    Constant,
    Cosine,
    Decay,
    Halving,
    RobustnessWarning,
    strongest,
)
from overt.robust.certificates import exact, guarantees, leaky
from overt.robust.criteria import Criterion, Effective, Misclassified, Targeted
from overt.robust.evaluation import RobustError, robust_error
from overt.robust.losses import LOSSES, Loss, ReflectedAll
from overt.robust.threats import L1, L2, Linf, Threat
from overt.robust.training import Training, adversarial_train

__all__ = [
    "BIM",
    "FGSM",
    "L1",
    "L2",
    "LOSSES",
    "PGD",
    "Attack",
    "AttackResult",
    "Constant",
    "Cosine",
    "Criterion",
    "Decay",
    "Effective",
    "Halving",
    "Linf",
    "Loss",
    "Misclassified",
    "ReflectedAll",
    "RobustError",
    "RobustnessWarning",
    "Targeted",
    "Threat",
    "Training",
    "adversarial_train",
    "exact",
    "guarantees",
    "leaky",
    "robust_error",
    "strongest",
]
