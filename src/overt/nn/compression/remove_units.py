"""Remove units from a network, and refit the layers that read them.

The smaller network is made of the user's own classes with narrower tensors inside. Which units stay
may be sampled, or be those with the greatest flow,

    psi_i = |u_i| * sqrt(E a_i^2),  u_i the weights that read unit i, a_i its activation

(thesis, section 4.3). A unit that several layers, or several positions of a layer, read has the
root of the sum of squares.

Readers are then refitted. With S the units that stay and R those that go, a_R is predicted from
a_S by least squares, a_R ~ B a_S + c, so that a reader's W_R a_R + W_S a_S + b becomes
(W_S + W_R B) a_S + b + W_R c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._types import Bools, Floats
from overt.nn.compression.activations import Moments
from overt.nn.compression.dependencies import DependencyGraph, Group, Ids, Reader
from overt.nn.compression.layers import TRANSPOSED, is_a
from overt.nn.compression.problem import copy_model

Refit = tuple[Tensor, Tensor | None]
"""A layer's weight, 0 on units that are removed, and its bias, if that has changed."""


@dataclass(frozen=True, eq=False)
class Cut:
    """Which units stay of each group (all, if it is not there), and how readers are corrected.

    With `scaled` they multiply a group's survivors by all / kept, as dropout does in training.
    """

    kept: dict[Group, Ids]
    scaled: bool = False
    refits: dict[str, Refit] = field(default_factory=dict)

    def factors(self, graph: DependencyGraph) -> Floats:
        """Return each unit's factor at its readers: 0 where it is removed."""
        factor = np.ones(len(graph.dependencies.units))
        for group, kept in self.kept.items():
            factor[group.units] = 0
            factor[kept] = len(group.units) / len(kept) if self.scaled else 1
        return factor[graph.classes]


def shrink(
    model: nn.Module, graph: DependencyGraph, cut: Cut, corrected: dict[int, Tensor] | None = None
) -> nn.Module:
    """Return a copy of the model without the units that a cut removes.

    Every parameter along whose axes units lie is replaced, wherever the copy refers to it, so
    that shared layers and tied weights stay shared.
    """
    factor = cut.factors(graph)
    dependencies = graph.dependencies
    memo: dict[int, Any] = {}
    corrected = corrections(model, graph, cut) if corrected is None else corrected
    kept: dict[int, Any] = {}
    for key, axes in dependencies.tensors.axes.items():
        old = dependencies.tensors.tensors[key]
        tensor = corrected.get(key, old.detach())
        for axis, ids in axes.items():
            if id(ids) not in kept:
                kept[id(ids)] = np.flatnonzero(factor[ids])
            if len(kept[id(ids)]) < len(ids):
                index = torch.from_numpy(kept[id(ids)]).to(tensor.device)
                tensor = tensor.index_select(axis, index)
        if tensor.shape != old.shape or key in corrected:
            parameter = isinstance(old, nn.Parameter)
            memo[key] = nn.Parameter(tensor, old.requires_grad) if parameter else tensor
    small = copy_model(model, memo)
    for name, sizes in dependencies.sizes.items():
        own = vars(small.get_submodule(name))
        for attribute, (entry, ids) in sizes.items():
            count: Any = int(np.count_nonzero(factor[ids]))
            if entry is not None:
                shape = own[attribute]
                count = (*shape[:entry], count, *shape[entry + 1 :])
            own[attribute] = count
    return small


def masked(
    model: nn.Module,
    graph: DependencyGraph,
    cut: Cut,
    small: nn.Module,
    corrected: dict[int, Tensor],
) -> nn.Module:
    """Return a full-size copy that ignores the units that a cut removes: what `shrink` must equal.

    Readers' weights are zero on removed units; normalizations over all units run over those
    that stay, as in the smaller network. All other tensors are the model's own.
    """
    factor = cut.factors(graph)
    dependencies = graph.dependencies
    memo: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    for key, tensor in corrected.items():
        old = dependencies.tensors.tensors[key]
        memo[key] = nn.Parameter(tensor, False) if isinstance(old, nn.Parameter) else tensor
    reference = copy_model(model, memo)
    for name, (axis, ids) in dependencies.mixing.items():
        index = torch.from_numpy(np.flatnonzero(factor[ids]))
        if len(index) < len(ids):
            reference.set_submodule(name, NormAmong(small.get_submodule(name), index, axis))
    return reference


def corrections(model: nn.Module, graph: DependencyGraph, cut: Cut) -> dict[int, Tensor]:
    """Return tensors that read units with the units' factors, refitted, and changed biases."""
    found: dict[int, Tensor] = {}
    factor = cut.factors(graph)
    for reader in graph.dependencies.readers:
        module = model.get_submodule(reader.name)
        refit = cut.refits.get(reader.name)
        scale = factor[reader.ids]
        if id(module.weight) in found or (refit is None and (scale == 1).all()):
            continue
        tensor, bias = (module.weight.detach(), None) if refit is None else refit
        if refit is None or cut.scaled:
            shape = [-1 if i == reader.axis else 1 for i in range(tensor.ndim)]
            tensor = tensor * torch.from_numpy(scale).to(tensor).reshape(shape)
        found[id(module.weight)] = tensor
        if bias is not None:
            found[id(module.bias)] = bias
    return found


class NormAmong(nn.Module):  # type: ignore[misc]
    """A normalization among some of the units, zeros for the others."""

    def __init__(self, norm: nn.Module, index: Tensor, axis: int) -> None:
        super().__init__()
        self.norm = norm
        self.index = index
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized units, and zeros."""
        index = self.index.to(x.device)
        return torch.zeros_like(x).index_copy(
            self.axis, index, self.norm(x.index_select(self.axis, index))
        )


def flows(model: nn.Module, graph: DependencyGraph, seen: dict[str, Moments]) -> Floats:
    """Return psi for each unit, by the number of its class."""
    units = graph.dependencies.units
    total = np.zeros(len(units))
    for reader in {reader.name: reader for reader in graph.dependencies.readers}.values():
        weight = model.get_submodule(reader.name).weight.detach()
        others = [d for d in range(weight.ndim) if d != reader.axis]
        norms = torch.linalg.vector_norm(weight, dim=others, dtype=_working(weight)).double()
        norms = norms.square().unflatten(0, (-1, reader.places)).sum(1)
        flow = (norms * seen[reader.name].squares()).cpu().numpy()
        np.add.at(total, units.classes(reader.ids[:: reader.places]), flow)
    return np.sqrt(total)


def _working(weight: Tensor) -> torch.dtype:
    """Return a format in which sums of a weight's entries round little."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def greatest(group: Group, psi: Floats, count: int) -> Ids:
    """Return the `count` units of a group with the greatest flow, in their order."""
    order = np.argsort(-psi[group.units], kind="stable")
    return group.units[np.sort(order[:count])]


def refits(
    model: nn.Module, graph: DependencyGraph, seen: dict[str, Moments], kept: dict[Group, Ids]
) -> dict[str, Refit]:
    """Return each reader's weight and bias changed so that it misses its units least."""
    removed = np.zeros(len(graph.dependencies.units), dtype=bool)
    tied = np.zeros_like(removed)
    for group, staying in kept.items():
        part = tied if group.tied else removed
        part[group.units] = True
        part[staying] = False
    found: dict[str, Refit] = {}
    for reader in {reader.name: reader for reader in graph.dependencies.readers}.values():
        units = graph.dependencies.units.classes(reader.ids[:: reader.places])
        if removed[units].any():
            module = model.get_submodule(reader.name)
            moments = seen[reader.name]
            found[reader.name] = _refit(module, reader, removed[units], tied[units], moments)
    return found


def _refit(module: nn.Module, reader: Reader, gone: Bools, tied: Bools, moments: Moments) -> Refit:
    """Change one reader; all taps of a convolution use the same prediction."""
    old = module.weight.detach()
    bias = module.bias
    weight = old.to(_working(old)).movedim(reader.axis, -1)
    if reader.places > 1:
        weight = weight.unflatten(-1, (-1, reader.places)).mT
    S, R, T = (torch.from_numpy(np.flatnonzero(x)).to(old.device) for x in (~gone, gone, tied))
    B = moments.prediction(S, R, centered=bias is not None)
    lost = weight.index_select(-1, R)
    weight = weight.index_fill(-1, R, 0.0)
    if B:
        replacement = lost
        for factor in B:
            replacement = replacement @ factor.to(weight)
        weight.index_add_(-1, S, replacement)
    weight.index_fill_(-1, T, 0.0)
    if reader.places > 1:
        weight = weight.mT.flatten(-2)
    weight = weight.movedim(-1, reader.axis).to(old)
    if bias is None:
        return weight, None
    mean = moments.mean()
    left = mean[R]
    if B:
        predicted = mean[S]
        for factor in reversed(B):
            predicted = factor @ predicted
        left = left - predicted
    shift = (lost @ left.to(lost)).reshape(len(lost), -1).sum(1)
    if is_a(module, TRANSPOSED):  # an output position meets one tap in prod(stride)
        shift = shift / math.prod(module.stride)
    return weight, bias.detach() + shift.to(bias)
