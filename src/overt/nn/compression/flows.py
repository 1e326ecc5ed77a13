"""Flows: how much of what a layer reads comes through each unit, and making up for the rest.

    psi_i = |u_i| * sqrt(E a_i^2),  u_i the weights that read unit i, a_i its activation

(thesis, section 4.3). A unit that several layers, or several positions of a layer, read has the
root of the sum of squares.

Readers are then refitted. With S the units that stay and R those that go, a_R is predicted from
a_S by least squares, a_R ~ B a_S + c, so that a reader's W_R a_R + W_S a_S + b becomes
(W_S + W_R B) a_S + b + W_R c.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from overt._types import Floats
from overt.nn.compression.layers import TRANSPOSED, is_a
from overt.nn.compression.moments import Moments
from overt.nn.compression.shrink import Refit
from overt.nn.compression.structure import Group, Structure
from overt.nn.compression.units import Ids

SHRINKAGE = 0.01
"""Ridge of the prediction, in units of the mean variance times units / examples."""


def flows(model: nn.Module, structure: Structure, seen: dict[str, Moments]) -> Floats:
    """Return psi for each unit, by the number of its class."""
    units = structure.state.units
    total = np.zeros(len(units))
    for read in {read.name: read for read in structure.state.reads}.values():
        weight = model.get_submodule(read.name).weight.detach().double()
        norms = weight.square().sum([d for d in range(weight.ndim) if d != read.axis])
        flow = (norms * seen[read.name].squares()).cpu().numpy()
        np.add.at(total, units.classes(read.ids), flow)
    return np.sqrt(total)


def greatest(group: Group, psi: Floats, count: int) -> Ids:
    """Return the `count` units of a group with the greatest flow, in their order."""
    order = np.argsort(-psi[group.units], kind="stable")
    return group.units[np.sort(order[:count])]


def refits(
    model: nn.Module, structure: Structure, seen: dict[str, Moments], kept: dict[Group, Ids]
) -> dict[str, Refit]:
    """Return what each reader's weight and bias change by, so that it misses its units least."""
    removed = np.zeros(len(structure.state.units), dtype=bool)
    for group, staying in kept.items():
        if not group.tied:
            removed[group.units] = True
            removed[staying] = False
    found: dict[str, Refit] = {}
    for read in {read.name: read for read in structure.state.reads}.values():
        gone = torch.from_numpy(removed[structure.state.units.classes(read.ids)])
        if bool(gone.any()):
            module = model.get_submodule(read.name)
            found[read.name] = _refit(
                module, read.axis, gone.to(module.weight.device), seen[read.name]
            )
    return found


def _refit(module: nn.Module, axis: int, gone: Tensor, moments: Moments) -> Refit:
    """Return the changes of one reader; a convolution's taps all use the same prediction."""
    weight = module.weight.detach().double().movedim(axis, -1)
    biased = module.bias is not None
    moment = moments.covariance() if biased else moments.second()
    B = _prediction(moment, gone, moments.count)
    change = torch.zeros_like(weight)
    if B is not None:
        change[..., ~gone] = weight[..., gone] @ B
    if not biased:
        return Refit(change.movedim(-1, axis), None)
    mean = moments.mean()
    left = mean[gone] if B is None else mean[gone] - B @ mean[~gone]
    lost = (weight[..., gone] @ left).reshape(len(weight), -1).sum(1)
    if is_a(module, TRANSPOSED):  # an output position meets one tap in prod(stride)
        lost = lost / math.prod(module.stride)
    return Refit(change.movedim(-1, axis), lost)


def _prediction(moment: Tensor | None, gone: Tensor, count: int) -> Tensor | None:
    """Return B of a_R ~ B a_S, shrunk where there are few examples for many units."""
    if moment is None or not bool((~gone).any()):
        return None
    inner = moment[~gone][:, ~gone]
    ridge = float(inner.diagonal().mean()) * max(1e-6, SHRINKAGE * len(inner) / count)
    if ridge <= 0:
        return None
    inner = inner + ridge * torch.eye(len(inner), dtype=inner.dtype, device=inner.device)
    return torch.linalg.solve(inner, moment[~gone][:, gone]).T
