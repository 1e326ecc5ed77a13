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
from numpy.typing import NDArray

from overt._check import InputError, matrix
from overt._progress import meter
from overt.results import Floats, Result, Status
from overt.robust.threat import L1, L2, Linf, Threat

Bools = NDArray[np.bool_]

DECIDED = 1e-9
"""How far below the level a bound must be to count as a proof, given the solver's rounding."""


@dataclass(frozen=True, repr=False)
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
        when the level is decided.
    undecided
        Points that are neither fooled nor proved robust: the bound is not below the level by more
        than the solver's tolerance. Exact ties, which dead units cause, end here.
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
    W, X, y = (
        matrix("weight", np.asarray(weight, float)),
        matrix("x", np.asarray(x, float)),
        _int(y),
    )
    b = np.asarray(bias, float).reshape(len(W))
    if len(W) == 1:
        W, b = np.vstack([np.zeros_like(W), W]), np.array([0.0, b[0]])
    inputs = torch.from_numpy(X)
    region = threat.within(inputs).region(inputs)
    f = X @ W.T + b
    lead, moved = np.full(len(X), -np.inf), X.copy()
    for j in range(len(W)):
        direction = W[j] - W[y]  # (points, inputs)
        d = farthest(torch.from_numpy(direction), threat, region.box).numpy()
        reached = f[:, j] - f[np.arange(len(X)), y] + np.sum(direction * d, 1)
        better = (reached > lead) & (y != j)
        lead[better], moved[better] = reached[better], (X + d)[better]
    fooled = lead > 0
    undecided = ~fooled & (lead >= -DECIDED)
    return ExactError(
        float(fooled.mean()), fooled, lead, lead.copy(), undecided, moved, _status(undecided)
    )


def farthest(gradient: torch.Tensor, threat: Threat, box: Any) -> torch.Tensor:
    """Return argmax <g, d> over the allowed perturbations d of each row."""
    match threat:
        case Linf():
            return threat.project(gradient.sign() * threat.radius, box)
        case L2():
            # Far out along g the projection is the point whose normal cone holds g.
            reach = 1e8 * max(threat.radius, 1.0)
            return threat.project(threat.ascent(gradient.clone(), box) * reach, box)
    return threat.ascent(gradient.clone(), box) * threat.radius


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
    from overt.robust.milp import Network, best_lead

    W, A = matrix("hidden", np.asarray(hidden, float)), np.atleast_2d(np.asarray(top, float))
    X, y = matrix("x", np.asarray(x, float)), _int(y)
    if A.shape[1] != len(W) or W.shape[1] != X.shape[1]:
        raise InputError(
            "hidden (width, inputs), top (classes, width) and x (points, inputs) must fit, got "
            f"{W.shape}, {A.shape} and {X.shape}"
        )
    if not 0 <= slope <= 1:
        raise InputError(f"slope must lie in [0, 1], got {slope!r}")
    b = np.zeros(len(W)) if hidden_bias is None else np.asarray(hidden_bias, float)
    c = np.zeros(len(A)) if top_bias is None else np.atleast_1d(np.asarray(top_bias, float))
    if len(A) == 1:
        A, c = np.vstack([np.zeros_like(A), A]), np.array([0.0, c[0]])
    net = Network(W, b, A, c, slope)
    lead, bound, moved = np.full(len(X), -np.inf), np.full(len(X), -np.inf), X.copy()
    settled = threat.within(torch.from_numpy(X))
    status = Status.OPTIMAL
    try:
        with meter("exact", len(X)) as bar:
            for i, (point, own) in enumerate(zip(X, y, strict=True)):
                lead[i], bound[i], moved[i] = best_lead(net, point, int(own), settled, level)
                bar.advance()
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    # Recomputed at the witness. Without a level the prediction decides, as it does for attacks: in
    # an exact tie, which dead units cause, the class of the smaller number wins.
    predicted = np.array([int(np.argmax(net.logits(point))) for point in moved])
    fooled = lead >= level if level > 0 else predicted != y
    undecided = ~fooled & (bound >= level - DECIDED)
    if status is not Status.INTERRUPTED:
        status = _status(undecided)
    return ExactError(float(fooled.mean()), fooled, lead, bound, undecided, moved, status)


def _status(undecided: Bools) -> Status:
    return Status.FINISHED if bool(undecided.any()) else Status.OPTIMAL


def _int(y: Any) -> NDArray[np.int64]:
    labels = np.asarray(y).astype(np.int64)
    return (labels + 1) // 2 if labels.min() < 0 else labels


__all__ = ["L1", "ExactError", "farthest", "linear", "two_layer"]
