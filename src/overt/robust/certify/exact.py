"""Exact robust error, with certificates: the ground truth that attacks are measured against.

Linear models have a closed form. Two-layer networks are solved as mixed-integer linear programs,
one binary for each hidden unit whose sign the perturbation can change; a Euclidean ball enters
through tangent planes, added where the program's optimum leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from overt._check import Bools, Floats, InputError, doubles, matrix, number
from overt.results import Result, Status
from overt.robust.certify.bounds import decide
from overt.robust.certify.network import ReluNetwork
from overt.robust.models import classes
from overt.robust.threats import Threat, check_threat

ROUNDING = 1e-9
"""Relative size of the leads of linear models that rounding leaves undecided."""


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
        Points that are neither fooled nor proved robust: the bound, the solver's tolerance
        included, is not below the level. Exact ties, which dead units cause, end here, and points
        that were not reached when Ctrl-C was pressed.
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


def linear(weight: Any, bias: Any, x: Any, y: Any, threat: Threat) -> ExactError:
    """Return the exact robust error of x -> W x + b: one closed form for each wrong class.

    max over |d| <= radius of (w_j - w_y).d is radius |w_j - w_y|_dual without bounds; within
    bounds it is taken at the vertex or arc that the threat's geometry gives.
    """
    W = matrix("weight", np.atleast_2d(doubles("weight", weight)))
    X = doubles("x", x, ndim=2)
    if W.shape[1] != X.shape[1]:
        raise InputError(
            "weight (classes, inputs) and x (points, inputs) must have the same number of columns, "
            f"got {W.shape} and {X.shape}"
        )
    W, b = _two_classes(W, _bias("bias", bias, len(W)))
    check_threat(threat)
    inputs = torch.from_numpy(X)
    y = classes(y, inputs, len(W)).numpy()
    region = threat.region(inputs)
    f = X @ W.T + b
    lead, moved, size = np.full(len(X), -np.inf), X.copy(), np.abs(f).max(1)
    for j in range(len(W)):
        direction = W[j] - W[y]  # (points, inputs)
        d = region.linear_argmax(torch.from_numpy(direction)).numpy()
        gained = np.sum(direction * d, 1)
        reached = f[:, j] - f[np.arange(len(X)), y] + gained
        better = (reached > lead) & (y != j)
        lead[better], moved[better] = reached[better], (X + d)[better]
        size = np.maximum(size, gained)
    fooled = lead > 0
    undecided = ~fooled & (lead >= -ROUNDING * size)
    return ExactError(
        float(fooled.mean()),
        fooled,
        lead,
        lead.copy(),
        undecided,
        moved,
        _status(undecided),
    )


def two_layer(
    hidden: Any,
    top: Any,
    x: Any,
    y: Any,
    threat: Threat,
    *,
    hidden_bias: Any = None,
    top_bias: Any = None,
    slope: float = 0.0,
    level: float = 0.0,
) -> ExactError:
    """Return the exact robust error of x -> A max(slope z, z) + c, z = W x + b.

    Parameters
    ----------
    hidden, top
        W (width, inputs) and A (classes, width), or (1, width) for one logit.
    x, y
        Inputs (points, inputs) and classes (points,), or -1 and 1 for two.
    threat
        What is allowed; settled bounds or none.
    hidden_bias, top_bias
        b (width,) and c (classes,), zero if not given.
    slope
        Slope of the activation for negative z: 0 for ReLU, 1 for a linear network.
    level
        Lead of a wrong class that counts as success: beta for beta-effective attacks.
    """
    W, X = (doubles(name, a, ndim=2) for name, a in (("hidden", hidden), ("x", x)))
    A = matrix("top", np.atleast_2d(doubles("top", top)))
    if A.shape[1] != len(W) or W.shape[1] != X.shape[1]:
        raise InputError(
            "hidden (width, inputs), top (classes, width) and x (points, inputs) must fit, got "
            f"{W.shape}, {A.shape} and {X.shape}"
        )
    check_threat(threat)
    slope, level = check_slope(slope), number("level", level)
    A, c = _two_classes(A, _bias("top_bias", top_bias, len(A)))
    inputs = torch.from_numpy(X)
    y = classes(y, inputs, len(A))
    first = _layer(W, _bias("hidden_bias", hidden_bias, len(W)))
    model = nn.Sequential(first, nn.LeakyReLU(slope), _layer(A, c))
    network = ReluNetwork.trace(model, inputs)
    found = decide(network, threat.region(inputs), y, np.inf, level=level)
    # Recomputed at the witness. Without a level the prediction decides, as it does for attacks: in
    # an exact tie, which dead units cause, the class of the smaller number wins.
    predicted = network.logits(torch.from_numpy(found.x)).argmax(1)
    fooled = found.lead >= level if level > 0 else (predicted != y).numpy()
    undecided = ~fooled & (found.bound >= level)
    status = _status(undecided)
    if found.status is Status.INTERRUPTED:
        status = found.status
    return ExactError(
        float(fooled.mean()),
        fooled,
        found.lead,
        found.bound,
        undecided,
        found.x,
        status,
    )


def _layer(weight: Floats, bias: Floats) -> nn.Linear:
    """Return a layer with these weights."""
    layer = nn.Linear(weight.shape[1], len(weight), dtype=torch.float64)
    layer.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    return layer


def check_slope(value: Any) -> float:
    """Return the slope of an activation for negative inputs, 0 to 1."""
    slope = number("slope", value)
    if slope > 1:
        raise InputError(f"slope must lie in [0, 1], got {value!r}")
    return slope


def _status(undecided: Bools) -> Status:
    return Status.FINISHED if bool(undecided.any()) else Status.OPTIMAL


def _two_classes(weight: Floats, bias: Floats) -> tuple[Floats, Floats]:
    """Return a single logit as two, the first of them 0; others as they are."""
    if len(weight) > 1:
        return weight, bias
    return np.vstack([np.zeros_like(weight), weight]), np.array([0.0, bias[0]])


def _bias(name: str, value: Any, size: int) -> Floats:
    if value is None:
        return np.zeros(size)
    bias = np.atleast_1d(doubles(name, value))
    if bias.shape != (size,):
        raise InputError(f"{name} must hold {size} number(s), got shape {bias.shape}")
    return bias
