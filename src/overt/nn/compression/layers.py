"""How each kind of layer reads, makes or passes on units, and which attributes count them.

A layer is a module without modules inside that has one of the attributes in `KINDS`, whatever its
class: that the smaller network computes the same is checked in the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from overt.nn.compression.dependencies import DependencyGraph, Ids, Reader, Size

SEALED = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
"""Modules with several maps inside, which are not followed."""


class Weights(NamedTuple):
    """Where a kind of layer has its units.

    Attributes with the numbers of inputs and outputs, the axis of units in the input, and the axes
    of inputs and outputs in the weight.
    """

    inputs: str
    outputs: str
    axis: int
    inner: int
    outer: int


WEIGHTED = (
    Weights("in_features", "out_features", -1, 1, 0),
    Weights("in_channels", "out_channels", 1, 1, 0),
    Weights("nx", "nf", -1, 0, 1),  # Conv1D of transformers
)
PER_CHANNEL = ("num_features", "num_channels", "num_parameters")
"""Attributes of batch, instance and group normalization and of PReLU that count channels."""


def weights_of(module: nn.Module) -> Weights | None:
    """Return where a layer with a weight has its units, None for other modules."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or _has_parts(module):
        return None
    for kind in WEIGHTED:
        if not hasattr(module, kind.outputs) or not hasattr(module, kind.inputs):
            continue
        if getattr(module, "transposed", False):
            kind = kind._replace(inner=kind.outer, outer=kind.inner)
        sizes = (getattr(module, kind.inputs), getattr(module, kind.outputs))
        groups = getattr(module, "groups", 1)
        found = (weight.shape[kind.inner], weight.shape[kind.outer])
        if math.prod(found) * groups == math.prod(sizes):
            return kind
    return None


def _has_parts(module: nn.Module) -> bool:
    """Return whether a module has modules with parameters inside."""
    parts = [part for k, part in module._modules.items() if k != "parametrizations"]
    return any(next(part.parameters(), None) is not None for part in parts if part)


def is_layer(module: nn.Module) -> bool:
    """Return whether a call of the module is one operation."""
    if isinstance(module, SEALED) or weights_of(module) is not None:
        return True
    if _has_parts(module):
        return False
    if "RMSNorm" in type(module).__name__:  # of other libraries, as in Llama
        return True
    if hasattr(module, "embedding_dim"):
        return "weight" in module._parameters
    others = ("normalized_shape", *PER_CHANNEL)
    return any(hasattr(module, name) for name in others)


def why_not_prunable(module: nn.Module) -> str | None:
    """Return why a layer's own weights cannot be replaced, None if they can."""
    if nn.utils.parametrize.is_parametrized(module):
        return "its weights are parametrized"
    if module._forward_pre_hooks or module._forward_hooks:
        return "it has hooks"
    if "weight" not in module._parameters:
        return "its weight is computed from other tensors"
    return None


def needs_all(name: str, module: nn.Module) -> str:
    """Return the reason to keep units that a module is not known to do without."""
    return f"{name} ({type(module).__name__}) needs all its units"


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer that is called, and the units of its input (None if it has none)."""

    found: DependencyGraph
    name: str
    module: Any
    ids: Ids | None
    constant: Ids

    def follow(self, x: Tensor, result: Tensor) -> Ids | str | None:
        """Return the units of the result, none, or why the layer needs all units of its input."""
        kind = weights_of(self.module)
        if isinstance(self.module, SEALED):
            return needs_all(self.name, self.module)
        if kind is not None:
            return self._weighted(kind, x, result)
        if hasattr(self.module, "embedding_dim"):
            made = self.found.find(self.module.weight, 1, self.name)
            self._size("embedding_dim", made)
            return _along(made, result.ndim - 1, result.ndim)
        if self.ids is None:
            return None
        if any(hasattr(self.module, name) for name in PER_CHANNEL):
            return self._per_channel(self.ids, x)
        return self._norm_across(self.ids, x)

    def _size(self, attribute: str, ids: Ids) -> None:
        self.found.sizes.append(Size(self.name, attribute, ids[:, None]))

    def _vector(self, ids: Ids, axis: int, length: int) -> Ids:
        """Return the units along one axis; those that differ only along others become one."""
        others = [a for a in range(ids.ndim) if a != axis]
        merged = self.found.units.merge(ids, others)
        return np.broadcast_to(merged.ravel(), (length,))

    def _weighted(self, kind: Weights, x: Tensor, result: Tensor) -> Ids | str:
        module = self.module
        weight = module.weight
        axis = kind.axis % x.ndim
        transposed = getattr(module, "transposed", False)
        met, own = (x, kind.inner) if transposed else (result, kind.outer)
        cost = met.numel() * weight.numel() // weight.shape[own]
        self.found.costs[id(weight)] += cost
        ids = self.ids
        if ids is not None and ids.shape[axis] == 1 < ids.size:
            along = "it acts along another axis than the units that it meets"
            self.found.keep_layer(self.name, weight, along)
            self.found.products.append((cost, ids.ravel()))
            return ids
        read = np.broadcast_to(self.constant, (x.shape[axis],))
        if ids is not None:
            read = self._vector(ids, axis, x.shape[axis])
        groups = getattr(module, "groups", 1)
        reason = why_not_prunable(module)
        if reason is None and x.ndim < weight.ndim:
            reason = f"{self.name} runs on a single example"
        if reason is None and groups > 1 and (ids is None or transposed):
            reason = f"{self.name} is a convolution in {groups} groups"
        if reason is not None:
            self.found.units.keep(read, f"{self.name} reads its units, and {reason}")
            self.found.keep_layer(self.name, weight, reason)
            return _along(self.constant, axis, result.ndim)
        if groups > 1:
            made = self._grouped(read, groups)
        else:
            made = self.found.find(weight, kind.outer, self.name)
            self.found.bind(weight, kind.inner, read)
            self.found.readers[self.name] = Reader(self.name, kind.inner, read)
        self.found.bind(getattr(module, "bias", None), 0, made)
        self._size(kind.inputs, read)
        self._size(kind.outputs, made)
        return _along(made, axis, result.ndim)

    def _grouped(self, read: Ids, groups: int) -> Ids:
        """Return the outputs of a convolution in groups, which stay or go with their inputs."""
        firsts = self._first_of_each(read, groups)
        outputs = self.module.out_channels // groups
        made = self.found.find(self.module.weight, 0, self.name)
        self.found.units.tie(made, firsts.repeat(outputs))
        self._size("groups", firsts)
        return made

    def _first_of_each(self, ids: Ids, groups: int) -> Ids:
        """Let the units of each group stay or go together; return one of each."""
        by_group = ids.reshape(groups, -1)
        return self.found.units.merge(by_group, [1]).ravel()

    def _norm_across(self, ids: Ids, x: Tensor) -> Ids | str:
        """Shrink a normalization over all units."""
        module = self.module
        varying = [axis for axis, n in enumerate(ids.shape) if n > 1]
        sizes = getattr(module, "normalized_shape", (0,))
        inside = [axis for axis in varying if axis >= x.ndim - len(sizes)]
        own_forward = type(module).forward is not nn.LayerNorm.forward
        if isinstance(module, nn.LayerNorm) and own_forward:  # may move the channels
            inside = varying
        if len(inside) < len(varying):  # within heads, which are units
            return self.found.units.merge(ids, inside)
        if len(inside) != 1 or len(sizes) != 1:
            return needs_all(self.name, module)
        units = ids.ravel()
        for tensor in module._parameters.values():
            self.found.bind(tensor, 0, units)
        if hasattr(module, "normalized_shape"):
            self._size("normalized_shape", units)
        self.found.mixing[self.name] = (inside[0], units)
        return ids

    def _per_channel(self, ids: Ids, x: Tensor) -> Ids | str:
        """Shrink a batch, instance or group normalization, or a learned slope."""
        module = self.module
        groups = getattr(module, "num_groups", 0)
        if getattr(module, "num_parameters", 0) == 1:
            return ids
        if ids.shape[1] == 1 < ids.size:
            return needs_all(self.name, module) if groups else ids
        units = self._vector(ids, 1, x.shape[1])
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and tensor.ndim == 1:
                self.found.bind(tensor, 0, units)
        for attribute in PER_CHANNEL:
            if hasattr(module, attribute):
                self._size(attribute, units)
        if groups == 1:
            self.found.mixing[self.name] = (1, units)
        elif groups:
            self._size("num_groups", self._first_of_each(units, groups))
        return _along(units, 1, x.ndim)


def _along(ids: Ids, axis: int, ndim: int) -> Ids:
    """Return units that lie along one of `ndim` axes."""
    return ids.reshape([-1 if i == axis else 1 for i in range(ndim)])
