"""Robustness: attacks that do not go blind, robust error, adversarial training, exact answers.

Four nouns: a threat (what is allowed), a loss (what is ascended), an attack (how), a criterion
(when it has succeeded).

>>> import torch
>>> from overt.robust import L2, PGD, robust_error
>>> x, y = torch.tensor([[1.0, 0.0], [0.0, 3.0]]), [0, 1]  # classified by their larger coordinate
>>> PGD(L2(2.0), steps=50, loss="reflected")(torch.nn.Identity(), x, y).success
tensor([ True, False])
>>> robust_error(torch.nn.Identity(), x, y, L2(2.0)).value
0.5
"""

from __future__ import annotations

from overt._check import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError:
    raise MissingExtraError("torch", "torch") from None

from overt.robust.attacks.base import Attack
from overt.robust.attacks.closest import Closest, closest
from overt.robust.attacks.criteria import Criterion, Deviates, Effective, Misclassified, Targeted
from overt.robust.attacks.gradient import BIM, FGSM, PGD, Constant, Cosine, Decay, Halving
from overt.robust.attacks.losses import LOSSES, Loss, ReflectedAll
from overt.robust.attacks.queries import Square
from overt.robust.attacks.results import AttackResult, RobustnessWarning
from overt.robust.attacks.staged import strongest
from overt.robust.certificates import exact, guarantees, leaky
from overt.robust.certificates.smoothing import Smoothed, smoothed
from overt.robust.evaluation import RobustError, robust_error
from overt.robust.threats import L0, L1, L2, Linf, Threat
from overt.robust.training import Training, adversarial_train

__all__ = [
    "BIM", "FGSM", "L0", "L1", "L2", "LOSSES", "PGD", "Attack", "AttackResult", "Closest",
    "Constant", "Cosine", "Criterion", "Decay", "Deviates", "Effective", "Halving", "Linf", "Loss",
    "Misclassified", "ReflectedAll", "RobustError", "RobustnessWarning", "Smoothed", "Square",
    "Targeted", "Threat", "Training", "adversarial_train", "closest", "exact", "guarantees",
    "leaky", "robust_error", "smoothed", "strongest",
]  # fmt: skip
