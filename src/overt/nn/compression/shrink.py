"""Building the smaller network: the user's own classes with narrower tensors inside."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError
from overt._types import Floats
from overt.nn.compression.structure import Group, Structure
from overt.nn.compression.units import Ids


@dataclass(frozen=True)
class Refit:
    """What a layer's weight and bias change by."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Cut:
    """Which units stay, and what their readers are corrected by.

    Attributes
    ----------
    kept
        For each group the units that stay; a group that is not there stays whole.
    scaled
        Whether readers multiply a group's survivors by all / kept, as dropout does in training.
    refits
        What readers' weights and biases change by.
    """

    kept: dict[Group, Ids]
    scaled: bool = False
    refits: dict[str, Refit] = field(default_factory=dict)

    def factors(self, structure: Structure) -> Floats:
        """Return each unit's factor at its readers: 0 where it is removed."""
        factor = np.ones(len(structure.state.units))
        for group, kept in self.kept.items():
            factor[group.units] = 0
            factor[kept] = len(group.units) / len(kept) if self.scaled else 1
        return factor[structure.state.units.classes(np.arange(len(factor)))]


def shrink(model: nn.Module, structure: Structure, cut: Cut) -> nn.Module:
    """Return a copy of the model without the units that a cut removes.

    Every parameter along whose axes units lie is replaced, wherever the copy refers to it, so
    that shared layers and tied weights stay shared.
    """
    factor, state = cut.factors(structure), structure.state
    memo: dict[int, Any] = {}
    for key, axes in state.slots.axes.items():
        tensor = _corrected(model, structure, cut, factor, key)
        for axis, ids in axes.items():
            stay = factor[ids] != 0
            if not stay.all():
                index = torch.from_numpy(np.flatnonzero(stay)).to(tensor.device)
                tensor = tensor.index_select(axis, index)
        memo[key] = _like(state.slots.tensors[key], tensor)
    small = duplicate(model, memo)
    for name, sizes in state.sizes.items():
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
    factor, state = cut.factors(structure), structure.state
    memo: dict[int, Any] = {}
    for key in state.slots.axes:
        tensor = _corrected(model, structure, cut, factor, key)
        memo[key] = _like(state.slots.tensors[key], tensor)
    reference = duplicate(model, memo)
    small = shrink(model, structure, cut)
    for name, (axis, ids) in state.mixing.items():
        index = torch.from_numpy(np.flatnonzero(factor[ids]))
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
    original = structure.state.slots.tensors[key]
    tensor = original.detach()
    for read in structure.state.reads:
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
