"""Exact robust error, with certificates: the ground truth that attacks are measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from overt._check import Bools, Floats, number
from overt.results import Result, Status
from overt.robust.certify.bounds import decide, read_network
from overt.robust.models import BATCH_SIZE, ModelAdapter, classes, evaluation_mode
from overt.robust.threats import Threat, check_threat


@dataclass(frozen=True, repr=False, eq=False)
class ExactError(Result):
    """Robust error with a proof for each point.

    Attributes
    ----------
    value
        Share of the points that an allowed perturbation makes reach the level.
    fooled
        Which ones, (points,).
    lead
        What a wrong class leads by at `x`, at least the level where fooled, (points,).
    bound
        Proved upper bound on that lead over all allowed perturbations, (points,). The search stops
        when the level is decided: infinity where classes were not searched any more.
    undecided
        Points that are neither fooled nor proved robust: the bound, rounding and the solver's
        tolerance included, is not below the level. Exact ties, which dead units cause, end here,
        and points that were not reached when Ctrl-C was pressed.
    x
        The perturbed inputs that reach `lead`, (points, inputs).
    status
        "optimal" if every point is decided, "finished" if not, or "interrupted".
    """

    value: float
    fooled: Bools
    lead: Floats
    bound: Floats
    undecided: Bools
    x: Floats
    status: Status


def exact_error(
    model: nn.Module, x: Any, y: Any, threat: Threat, *, level: float = 0.0
) -> ExactError:
    """Return the exact robust error of a small network of linear layers and rectifiers.

    A linear model is solved in closed form, others by a mixed-integer program with one binary for
    each hidden unit whose sign the perturbation can change, however long that takes. A Euclidean
    ball enters through tangent planes, added where the program's optimum leaves it.

    Parameters
    ----------
    model
        A module that `robust_error(certify=True)` can read; it is taken in double precision.
    x, y
        Inputs (points, ...) and classes (points,), or -1 and 1 for two.
    threat
        L1, L2 or Linf of a radius.
    level
        Lead of a wrong class that counts as success: beta for beta-effective attacks.
    """
    check_threat(threat)
    level = number("level", level)
    adapter = ModelAdapter(model, x)
    inputs = adapter.x.cpu().double()
    with evaluation_mode(model):
        adapter.clean_logits(BATCH_SIZE)
        network = read_network(adapter, threat.region(adapter.x), BATCH_SIZE)
    y = classes(y, inputs, network.classes)
    found = decide(network, threat.region(inputs), y, np.inf, level=level)
    # Recomputed at the witness. Without a level the prediction decides, as it does for attacks: in
    # an exact tie, which dead units cause, the class of the smaller number wins.
    fooled = found.lead >= level
    if level == 0:
        witnesses = torch.from_numpy(found.x).view_as(inputs)
        predicted = network.logits(witnesses).argmax(1)
        fooled = (predicted != y).numpy()
    undecided = ~fooled & ~found.below(level)
    status = found.status
    if status is Status.FINISHED and not undecided.any():
        status = Status.OPTIMAL
    return ExactError(
        value=float(fooled.mean()),
        fooled=fooled,
        lead=found.lead,
        bound=found.bound,
        undecided=undecided,
        x=found.x,
        status=status,
    )
