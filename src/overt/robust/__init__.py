"""Robustness: attacks that do not go blind, robust error, adversarial training, exact answers.

Three nouns: a threat (what is allowed), a loss (what is ascended), an attack (how).

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

from overt.robust.attack.base import Attack
from overt.robust.attack.distance import MinimumDistance, minimum_distance
from overt.robust.attack.ensemble import strongest
from overt.robust.attack.pgd import BIM, FGSM, PGD
from overt.robust.attack.queries import HopSkipJump, Square
from overt.robust.attack.results import AttackResult, RobustnessWarning, Stage
from overt.robust.certify.exact import ExactError, exact_error
from overt.robust.certify.smoothing import Smoothed, smoothed
from overt.robust.evaluate import RobustError, robust_error
from overt.robust.losses import LOSSES, Loss, ReflectedAll
from overt.robust.threats import L1, L2, Linf, Threat
from overt.robust.training import Training, TrainingConfig, adversarial_train

__all__ = [
    "BIM",
    "FGSM",
    "L1",
    "L2",
    "LOSSES",
    "PGD",
    "Attack",
    "AttackResult",
    "ExactError",
    "HopSkipJump",
    "Linf",
    "Loss",
    "MinimumDistance",
    "ReflectedAll",
    "RobustError",
    "RobustnessWarning",
    "Smoothed",
    "Square",
    "Stage",
    "Threat",
    "Training",
    "TrainingConfig",
    "adversarial_train",
    "exact_error",
    "minimum_distance",
    "robust_error",
    "smoothed",
    "strongest",
]
