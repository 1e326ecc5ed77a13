"""How each kind of layer reads, makes or passes on units, and which attributes count them.

Modules without parameters are followed as functions (`graph`); a layer here is one operation. It
takes the units of its input, or none, and returns the units of its output, or why all must stay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from overt.nn.compression.dependencies import Dependencies, Ids, Reader, UnitAxes
from overt.nn.layers.base import RatedNoise, UnitNoise
from overt.nn.layers.dropconnect import DropConnectConv2d, DropConnectLinear
from overt.nn.layers.dropout import Dropout
from overt.nn.layers.recognized import (
    is_silent,
    is_weight_noise,
    known_noise,
    plain_dropout,
)

LINEAR = (nn.Linear, DropConnectLinear)
CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d, DropConnectConv2d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WEIGHTED = (*LINEAR, *CONVOLUTION, *TRANSPOSED)
PER_CHANNEL = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
EMBEDDING = (nn.Embedding, nn.EmbeddingBag)
ACROSS = (nn.LayerNorm, nn.RMSNorm)
NORMS = (*PER_CHANNEL, *ACROSS, nn.GroupNorm)
SEALED = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
"""Modules with several maps inside, which are not followed."""
CHANNEL_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)

Shape = tuple[int, ...]
Found = UnitAxes | str | None
"""The units of an output, none, or why the layer needs all units of its input."""


def is_a(module: nn.Module, kinds: tuple[Any, ...]) -> bool:
    """Return whether a module is of one of these kinds, its forward pass not overridden."""
    return any(
        isinstance(module, kind) and type(module).forward is kind.forward
        for kind in kinds
    )


def is_layer(module: nn.Module) -> bool:
    """Return whether a call of the module is one operation.

    Normalizations of other libraries, which may add an activation, count by their class. That the
    smaller network computes the same is checked in the end.
    """
    kinds = (*WEIGHTED, nn.PReLU, *EMBEDDING)
    whole = isinstance(module, (*SEALED, *NORMS)) or is_rms_norm(module)
    return known_noise(module) or whole or is_a(module, kinds)


def is_rms_norm(module: nn.Module) -> bool:
    """Return whether a module of another library is y = g(w) x / rms(x), as in Llama."""
    if isinstance(module, nn.RMSNorm) or "RMSNorm" not in type(module).__name__:
        return False
    tensors = {**module._parameters, **module._buffers}
    weight = module._parameters.get("weight")
    if (
        [*tensors] != ["weight"]
        or weight is None
        or weight.ndim != 1
        or [*module.children()]
    ):
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, len(weight), generator=generator).to(weight)
    with torch.no_grad():
        y = module(x)
        gain = y / x * x.square().mean(-1, keepdim=True).sqrt()
        scaled = module(4 * x)
    same_gain = torch.allclose(gain, gain[:1].expand_as(gain), rtol=1e-2, atol=1e-3)
    return same_gain and torch.allclose(y, scaled, rtol=1e-2, atol=1e-3)


def why_not_prunable(module: nn.Module) -> str | None:
    """Return why a layer's own weights cannot be replaced, None if they can."""
    if nn.utils.parametrize.is_parametrized(module):
        return "its weights are parametrized"
    if module._forward_pre_hooks or module._forward_hooks:
        return "it has hooks"
    weight = getattr(module, "weight", None)
    if weight is not None and "weight" not in module._parameters:
        return "its weight is computed from other tensors"
    return None


def follow_layer(
    found: Dependencies,
    name: str,
    module: nn.Module,
    x: UnitAxes | None,
    before: Shape,
    after: Shape,
) -> Found:
    """Return the units of a layer's output; x are its input's units."""
    if known_noise(module) and not is_weight_noise(module):
        return _noise(found, name, module, x, before)
    across = isinstance(module, ACROSS) or is_rms_norm(module)
    if across and x is not None and len(x.axes) > 1:  # within heads
        size = len(module.normalized_shape) if isinstance(module, ACROSS) else 1
        others = [axis for axis in x.axes if axis < len(before) - size]
        return found.reduce_to(x, others) if others else needs_all(name, module)
    if x is not None and len(x.axes) > 1:
        axis = len(before) - 1 if is_a(module, LINEAR) else 1
        if axis not in x.axes:
            return needs_all(name, module)
        x = found.reduce_to(x, (axis,))
    if is_a(module, LINEAR):
        return _linear(found, name, module, x, after)
    if is_a(module, (*CONVOLUTION, *TRANSPOSED)):
        return _convolution(found, name, module, x, after)
    if is_a(module, EMBEDDING):
        ids = found.tensors.find(module.weight, 1, name)
        found.describe(name, embedding_dim=ids)
        return UnitAxes((len(after) - 1,), ids)
    if x is None:
        return None
    if across:
        return _norm_across(found, name, module, x, before)
    if isinstance(module, NORMS):
        return _norm_per_channel(found, name, module, x)
    if is_a(module, (nn.PReLU,)):
        return _prelu(found, name, module, x)
    return needs_all(name, module)


def needs_all(name: str, module: nn.Module) -> str:
    """Return the reason to keep units that a module is not known to do without."""
    return f"{name} ({type(module).__name__}) needs all its units"


def _noise(
    found: Dependencies, name: str, module: nn.Module, x: UnitAxes | None, shape: Shape
) -> UnitAxes | None:
    """Note whether dropout acts on whole units: removing a unit is what it samples."""
    if x is None:
        return None
    if isinstance(module, UnitNoise) and not isinstance(module, RatedNoise):
        found.units.keep(x.ids, f"the covariance of {name} belongs to its units")
        return x
    drops = not is_silent(module) and _drops_units(module, x, shape)
    return replace(x, drops=x.drops | {name}) if drops else x


def _drops_units(module: nn.Module, x: UnitAxes, shape: Shape) -> bool:
    """Return whether dropout drops features or whole channels, not single positions of them."""
    last = len(shape) - 1
    if plain_dropout(module) is not None:
        return x.axes == (last,) and len(set(x.ids.tolist())) == len(x.ids)
    if isinstance(module, Dropout):
        shared = {axis % len(shape) for axis in module.shared_axes}
        return shared >= set(range(1, last + 1)) - set(x.axes)
    return type(module) in CHANNEL_DROPOUT and x.axes == (1,)


def _norm_across(
    found: Dependencies, name: str, module: nn.Module, x: UnitAxes, shape: Shape
) -> Found:
    """Shrink a normalization over all units."""
    place = 0
    if isinstance(module, ACROSS):
        sizes = tuple(module.normalized_shape)
        if is_a(module, NORMS):  # others may move the channels
            place = x.axis - (len(shape) - len(sizes))
        if place < 0:
            return x
        if sizes[place] != len(x.ids):
            return needs_all(name, module)
        found.sizes.setdefault(name, {})["normalized_shape"] = (place, x.ids)
    elif x.axis != len(shape) - 1:
        return x
    found.tensors.bind(getattr(module, "weight", None), place, x.ids)
    found.tensors.bind(getattr(module, "bias", None), place, x.ids)
    found.mixing[name] = (x.axis, x.ids)
    return x


def _norm_per_channel(
    found: Dependencies, name: str, module: nn.Module, x: UnitAxes
) -> Found:
    """Shrink a batch, instance or group normalization."""
    if x.axis != 1:
        followed = is_a(module, NORMS) and not isinstance(module, nn.GroupNorm)
        return x if followed else needs_all(name, module)
    tensors = [module.weight, module.bias]
    if isinstance(module, nn.GroupNorm):
        found.describe(name, num_channels=x.ids)
        if module.num_groups == 1:
            found.mixing[name] = (1, x.ids)
        else:
            found.describe(
                name, num_groups=_tie_groups(found, x.ids, module.num_groups)
            )
    else:
        found.describe(name, num_features=x.ids)
        tensors += [module.running_mean, module.running_var]
    for tensor in tensors:
        found.tensors.bind(tensor, 0, x.ids)
    return x


def _prelu(found: Dependencies, name: str, module: nn.Module, x: UnitAxes) -> Found:
    if module.num_parameters == 1:
        return x
    if x.axis != 1:
        return needs_all(name, module)
    found.tensors.bind(module.weight, 0, x.ids)
    found.describe(name, num_parameters=x.ids)
    return x


def _linear(
    found: Dependencies, name: str, module: nn.Module, x: UnitAxes | None, shape: Shape
) -> Found:
    last = len(shape) - 1
    if x is None or x.axis == last:
        made = _connect(found, name, module, x, "in_features", "out_features")
        return UnitAxes((last,), made)
    reason = "it acts along another axis than the units that it meets"
    found.keep_layer(name, module.weight, reason)
    found.repeated[name] = x.ids
    return x


def _convolution(
    found: Dependencies, name: str, module: nn.Module, x: UnitAxes | None, shape: Shape
) -> UnitAxes | None:
    unusual = len(shape) != len(module.kernel_size) + 2 or (
        x is not None and x.axis != 1
    )
    grouped = module.groups > 1
    unknown = (
        x is None or is_a(module, TRANSPOSED) or why_not_prunable(module) is not None
    )
    if unusual or (grouped and unknown):
        reason = f"{name} is a convolution in {module.groups} groups"
        if unusual:
            reason = f"{name} is used along another axis than the channels'"
        found.keep(x, reason)
        found.keep_layer(name, module.weight, reason)
        return None
    if not grouped or x is None:
        return UnitAxes(
            (1,), _connect(found, name, module, x, "in_channels", "out_channels")
        )
    # A group's inputs and outputs stay or go together; output j of g is in group j // (outputs / g)
    groups = _tie_groups(found, x.ids, module.groups)
    ids = groups.repeat(module.out_channels // module.groups)
    found.units.tie(ids, found.units.new(len(ids), name))
    found.tensors.bind(module.weight, 0, ids)
    found.tensors.bind(module.bias, 0, ids)
    found.describe(name, in_channels=x.ids, out_channels=ids, groups=groups)
    return replace(x, ids=ids)


def _tie_groups(found: Dependencies, ids: Ids, count: int) -> Ids:
    """Let the units of each of `count` groups stay or go together; return one of each."""
    group = ids.reshape(count, -1)
    found.units.tie(np.repeat(group[:, 0], group.shape[1]), group.ravel())
    return group[:, 0]


def _connect(
    found: Dependencies,
    name: str,
    module: nn.Module,
    x: UnitAxes | None,
    inputs: str,
    outputs: str,
) -> Ids:
    """Note the units that a weighted layer reads, and return those it makes."""
    inner, outer = (0, 1) if isinstance(module, TRANSPOSED) else (1, 0)
    reason = why_not_prunable(module)
    if reason is not None:
        found.keep(x, f"{name} reads its units, and {reason}")
        found.skipped[name] = reason
        return found.units.new_kept(module.weight.shape[outer], reason)
    made = found.tensors.find(module.weight, outer, name)
    found.tensors.bind(module.bias, 0, made)
    drops: frozenset[str] = frozenset()
    if x is None:
        read = found.units.new_kept(module.weight.shape[inner], "the model's inputs")
    else:
        read = x.ids
        drops = x.drops
    found.tensors.bind(module.weight, inner, read)
    found.readers.append(Reader(name, inner, read, drops))
    found.describe(name, **{inputs: read, outputs: made})
    return made
