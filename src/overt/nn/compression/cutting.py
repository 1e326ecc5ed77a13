"""Cutting units out of a network, and making up for them.

The smaller network is made of the user's own classes with narrower tensors inside. Which units stay
may be drawn, or be those with the greatest flow,

    psi_i = |u_i| * sqrt(E a_i^2),  u_i the weights that read unit i, a_i its activation

(thesis, section 4.3). A unit that several layers, or several positions of a layer, read has the
root of the sum of squares.

Readers are then refitted. With S the units that stay and R those that go, a_R is predicted from
a_S by least squares, a_R ~ B a_S + c, so that a reader's W_R a_R + W_S a_S + b becomes
(W_S + W_R B) a_S + b + W_R c.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError
from overt._types import Floats
from overt.nn.compression.layers import TRANSPOSED, is_a
from overt.nn.compression.measuring import Moments
from overt.nn.compression.report import Change
from overt.nn.compression.structure import Group, Structure
from overt.nn.compression.units import Ids
from overt.nn.given.batches import Batches, Inputs
from overt.nn.given.losses import Loss

Keep = float | Mapping[str, float]
"""One share for all layers, or a share for each of those named."""
SHRINKAGE = 0.01
"""Ridge of the prediction, in units of the mean variance times units / examples."""


@dataclass(frozen=True, eq=False)
class Task:
    """A network to be made smaller, in evaluation mode, and what is judged by what."""

    base: nn.Module
    keep: Keep
    inputs: Inputs
    judge: Batches | None
    loss: Loss
    draws: int
    rng: np.random.Generator


@dataclass(eq=False)
class Outcome:
    """What a way of compressing returns: the network, what changed, what did not and why."""

    by: str
    model: nn.Module
    changes: list[Change]
    skipped: dict[str, str]
    losses: Floats = field(default_factory=lambda: np.zeros(0))
    interrupted: bool = False
    tried: tuple[tuple[str, float], ...] = ()


def check_layers(keep: Mapping[str, float], layers: Iterable[str]) -> None:
    """Refuse shares for modules that are not layers with outputs of their own."""
    known = set(layers)
    unknown = [name for name in keep if name not in known]
    if unknown:
        raise InputError(
            f"keep must name layers with units of their own, got {', '.join(unknown)}; there are "
            f"{', '.join(sorted(known))}"
        )


@dataclass(frozen=True, eq=False)
class Refit:
    """What a layer's weight and bias change by."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class Cut:
    """Which units stay of each group (all, if it is not there), and how readers are corrected.

    With `scaled` they multiply a group's survivors by all / kept, as dropout does in training.
    """

    kept: dict[Group, Ids]
    scaled: bool = False
    refits: dict[str, Refit] = field(default_factory=dict)

    def factors(self, structure: Structure) -> Floats:
        """Return each unit's factor at its readers: 0 where it is removed."""
        factor = np.ones(len(structure.wiring.units))
        for group, kept in self.kept.items():
            factor[group.units] = 0
            factor[kept] = len(group.units) / len(kept) if self.scaled else 1
        return factor[structure.wiring.units.classes(np.arange(len(factor)))]


def shrink(model: nn.Module, structure: Structure, cut: Cut) -> nn.Module:
    """Return a copy of the model without the units that a cut removes.

    Every parameter along whose axes units lie is replaced, wherever the copy refers to it, so
    that shared layers and tied weights stay shared.
    """
    factor, wiring = cut.factors(structure), structure.wiring
    memo: dict[int, Any] = {}
    for key, axes in wiring.slots.axes.items():
        tensor = _corrected(model, structure, cut, factor, key)
        for axis, ids in axes.items():
            stay = factor[ids] != 0
            if not stay.all():
                index = torch.from_numpy(np.flatnonzero(stay)).to(tensor.device)
                tensor = tensor.index_select(axis, index)
        memo[key] = _like(wiring.slots.tensors[key], tensor)
    small = duplicate(model, memo)
    for name, sizes in wiring.sizes.items():
        module = small.get_submodule(name)
        for attribute, (entry, ids) in sizes.items():
            count = int(np.count_nonzero(factor[ids]))
            if entry is None:
                setattr(module, attribute, count)
            else:
                shape = list(getattr(module, attribute))
                shape[entry] = count
                setattr(module, attribute, tuple(shape))
    return small


def masked(model: nn.Module, structure: Structure, cut: Cut) -> nn.Module:
    """Return a full-size copy that ignores the units that a cut removes: what `shrink` must equal.

    Readers' weights are zero on removed units; normalizations over all units run over those
    that stay.
    """
    factor, wiring = cut.factors(structure), structure.wiring
    memo: dict[int, Any] = {}
    for key in wiring.slots.axes:
        tensor = _corrected(model, structure, cut, factor, key)
        memo[key] = _like(wiring.slots.tensors[key], tensor)
    reference = duplicate(model, memo)
    small = shrink(model, structure, cut)
    for name, (axis, ids) in wiring.mixing.items():
        index = torch.from_numpy(np.flatnonzero(factor[ids]))
        if len(index) < len(ids):
            reference.set_submodule(name, _Among(small.get_submodule(name), index, axis))
    return reference


def duplicate(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy in which some tensors are replaced."""
    try:
        return copy.deepcopy(model, memo or {})
    except (RuntimeError, TypeError, AttributeError) as error:
        raise InputError(f"model must be a module that can be copied: {error}") from None


def _corrected(
    model: nn.Module, structure: Structure, cut: Cut, factor: Floats, key: int
) -> Tensor:
    """Return a tensor with the factors of the units that it reads, and refitted."""
    original = structure.wiring.slots.tensors[key]
    tensor = original.detach()
    for read in structure.wiring.reads:
        module, refit = model.get_submodule(read.name), cut.refits.get(read.name)
        if module.weight is original:
            shape = [-1 if i == read.axis else 1 for i in range(tensor.ndim)]
            scale = torch.from_numpy(factor[read.ids]).to(tensor).reshape(shape)
            return scale * (tensor if refit is None else tensor + refit.weight.to(tensor))
        if module.bias is original and refit is not None and refit.bias is not None:
            return tensor + refit.bias.to(tensor)
    return tensor


def _like(old: Tensor, new: Tensor) -> Tensor:
    if isinstance(old, nn.Parameter):
        return nn.Parameter(new.detach().clone(), requires_grad=old.requires_grad)
    return new.detach().clone()


class _Among(nn.Module):  # type: ignore[misc]
    """A normalization among some of the units, zeros for the others."""

    def __init__(self, norm: nn.Module, index: Tensor, axis: int) -> None:
        super().__init__()
        self.norm, self.index, self.axis = norm, index, axis

    def forward(self, x: Tensor) -> Tensor:
        index = self.index.to(x.device)
        return torch.zeros_like(x).index_copy(
            self.axis, index, self.norm(x.index_select(self.axis, index))
        )


def flows(model: nn.Module, structure: Structure, seen: dict[str, Moments]) -> Floats:
    """Return psi for each unit, by the number of its class."""
    units = structure.wiring.units
    total = np.zeros(len(units))
    for read in {read.name: read for read in structure.wiring.reads}.values():
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
    removed = np.zeros(len(structure.wiring.units), dtype=bool)
    for group, staying in kept.items():
        if not group.tied:
            removed[group.units] = True
            removed[staying] = False
    found: dict[str, Refit] = {}
    for read in {read.name: read for read in structure.wiring.reads}.values():
        gone = torch.from_numpy(removed[structure.wiring.units.classes(read.ids)])
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
