"""How each kind of layer reads, makes or passes on units, and which attributes count them.

A layer is a module without modules inside that has one of the attributes in `KINDS`, whatever its
class: that the smaller network computes the same is checked in the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from overt.nn.compression.dependencies import Dependencies, Ids, Reader

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
    if not isinstance(weight, Tensor) or set(module._modules) - {"parametrizations"}:
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


def is_layer(module: nn.Module) -> bool:
    """Return whether a call of the module is one operation."""
    if isinstance(module, SEALED) or weights_of(module) is not None:
        return True
    if module._modules:
        return False
    others = ("embedding_dim", "normalized_shape", *PER_CHANNEL)
    return any(hasattr(module, name) for name in others) or is_rms_norm(module)


def is_rms_norm(module: nn.Module) -> bool:
    """Return whether a module of another library is y = g(w) x / rms(x), as in Llama."""
    tensors = {**module._parameters, **module._buffers}
    if "RMSNorm" not in type(module).__name__ or [*tensors] != ["weight"]:
        return False
    weight = tensors["weight"]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, len(weight), generator=generator).to(weight)
    with torch.no_grad():
        y = module.forward(x)
        gain = y / x * x.square().mean(-1, keepdim=True).sqrt()
        scaled = module.forward(4 * x)
    same_gain = torch.allclose(gain, gain[:1].expand_as(gain), rtol=1e-2, atol=1e-3)
    return same_gain and torch.allclose(y, scaled, rtol=1e-2, atol=1e-3)


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

    found: Dependencies
    name: str
    module: Any
    ids: Ids | None
    drops: frozenset[int]
    constant: Ids

    def follow(self, x: Tensor, result: Tensor) -> Ids | str | None:
        """Return the units of the result, none, or why the layer needs all units of its input."""
        kind = weights_of(self.module)
        if kind is not None:
            return self._weighted(kind, x, result)
        if isinstance(self.module, SEALED):
            return needs_all(self.name, self.module)
        if hasattr(self.module, "embedding_dim"):
            made = self.found.find(self.module.weight, 1, self.name)
            self._size("embedding_dim", made)
            return _along(made, result.ndim - 1, result.ndim)
        if self.ids is None:
            return None
        if any(hasattr(self.module, name) for name in PER_CHANNEL):
            return self._per_channel(x)
        return self._norm_across(x)

    def _size(self, attribute: str, ids: Ids, place: int | None = None) -> None:
        self.found.sizes.append((self.name, attribute, place, ids))

    def _vector(self, ids: Ids, axis: int, length: int) -> Ids:
        """Return the units along one axis; those that differ only along others become one."""
        table = np.moveaxis(ids, axis, 0).reshape(ids.shape[axis], -1)
        self.found.units.tie(table, table[:, :1])
        return np.broadcast_to(table[:, 0], (length,))

    def _weighted(self, kind: Weights, x: Tensor, result: Tensor) -> Ids | str:
        module = self.module
        weight = module.weight
        axis = kind.axis % x.ndim
        transposed = getattr(module, "transposed", False)
        met, own = (x, kind.inner) if transposed else (result, kind.outer)
        self.found.costs[self.name] += met.numel() * weight.numel() // weight.shape[own]
        ids = self.ids
        if ids is not None and ids.shape[axis] == 1 < ids.size:
            reason = "it acts along another axis than the units that it meets"
            self.found.keep_layer(self.name, weight, reason)
            self.found.repeated[self.name] = ids.ravel()
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
            reader = Reader(self.name, kind.inner, read, self.drops)
            self.found.readers.append(reader)
        self.found.bind(getattr(module, "bias", None), 0, made)
        self._size(kind.inputs, read)
        self._size(kind.outputs, made)
        return _along(made, axis, result.ndim)

    def _grouped(self, read: Ids, groups: int) -> Ids:
        """Return the outputs of a convolution in groups, which stay or go with their inputs."""
        firsts = self._tie_groups(read, groups)
        outputs = self.module.out_channels // groups
        made = self.found.find(self.module.weight, 0, self.name)
        self.found.units.tie(made, firsts.repeat(outputs))
        self._size("groups", firsts)
        return made

    def _tie_groups(self, ids: Ids, count: int) -> Ids:
        """Let the units of each of `count` groups stay or go together; return one of each."""
        groups = ids.reshape(count, -1)
        self.found.units.tie(groups, groups[:, :1])
        return groups[:, 0]

    def _norm_across(self, x: Tensor) -> Ids | str:
        """Shrink a normalization over all units."""
        module = self.module
        ids = self.ids
        assert ids is not None  # noqa: S101 (for the type checker)
        varying = [axis for axis, n in enumerate(ids.shape) if n > 1]
        sizes = getattr(module, "normalized_shape", (0,))
        plain = isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and (
            type(module).forward in (nn.LayerNorm.forward, nn.RMSNorm.forward)
        )
        moved = hasattr(module, "normalized_shape") and not plain
        normalized = varying if moved else range(x.ndim - len(sizes), x.ndim)
        inside = [axis for axis in varying if axis in normalized]
        if len(inside) < len(varying):  # within heads, which are units
            for axis in inside:
                self.found.units.tie(ids, ids.take([0], axis))
                ids = ids.take([0], axis)
            return ids
        if len(inside) != 1:
            return needs_all(self.name, module)
        (axis,) = inside
        place = 0 if moved else axis - (x.ndim - len(sizes))
        units = ids.ravel()
        for tensor in module._parameters.values():
            self.found.bind(tensor, place, units)
        if hasattr(module, "normalized_shape"):
            self._size("normalized_shape", units, place)
        self.found.mixing[self.name] = (axis, units)
        return ids

    def _per_channel(self, x: Tensor) -> Ids | str:
        """Shrink a batch, instance or group normalization, or a learned slope."""
        module = self.module
        ids = self.ids
        assert ids is not None  # noqa: S101 (for the type checker)
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
            self._size("num_groups", self._tie_groups(units, groups))
        return _along(units, 1, x.ndim)


def _along(ids: Ids, axis: int, ndim: int) -> Ids:
    """Return units that lie along one of `ndim` axes."""
    return ids.reshape([-1 if i == axis else 1 for i in range(ndim)])
