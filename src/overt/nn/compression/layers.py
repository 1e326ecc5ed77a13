"""How each kind of layer reads, makes or passes on units, and which numbers describe its size.

What has no parameters is followed as a function (`shapes`); a layer here is one operation. It takes
the units that it is given, or none, and returns those that it gives, or a reason to keep them all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from overt.nn.compression.units import Carried, Ids, Read, Wiring
from overt.nn.layers.covariance import CovarianceDropout
from overt.nn.layers.dropconnect import DropConnectConv2d, DropConnectLinear
from overt.nn.layers.dropout import Dropout
from overt.nn.layers.recognized import is_silent, is_weight_noise, known_noise, plain_dropout

LINEAR = (nn.Linear, DropConnectLinear)
CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d, DropConnectConv2d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WEIGHTED = (*LINEAR, *CONVOLUTION, *TRANSPOSED)
PER_CHANNEL = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip
EMBEDDING = (nn.Embedding, nn.EmbeddingBag)
ACROSS = (nn.LayerNorm, nn.RMSNorm)
SEALED = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
"""Modules that keep their maps inside."""
CHANNEL_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_NORMS = (*PER_CHANNEL, *ACROSS, nn.GroupNorm)

Shape = tuple[int, ...]
Given = Carried | str | None
"""The units that an operation gives, none, or why it needs all that it takes."""


def is_a(module: nn.Module, kinds: tuple[Any, ...]) -> bool:
    """Whether a module is of one of these kinds, or inherits its forward pass unchanged."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds)


def is_layer(module: nn.Module) -> bool:
    """Whether a call of the module is one operation.

    Normalizations of other libraries, which may add an activation, are taken at their word; that
    the smaller network computes the same is checked in the end.
    """
    kinds = (*WEIGHTED, nn.PReLU, *EMBEDDING)
    whole = isinstance(module, (*SEALED, *_NORMS))
    return known_noise(module) or whole or is_a(module, kinds)


def hindrance(module: nn.Module) -> str | None:
    """Return why a layer's own weights cannot be replaced, None if they can."""
    if nn.utils.parametrize.is_parametrized(module):
        return "its weights are parametrized"
    if module._forward_pre_hooks or module._forward_hooks:
        return "it carries hooks"
    weight = getattr(module, "weight", None)
    if weight is not None and "weight" not in module._parameters:
        return "its weight is computed from other tensors"
    return None


def holders(model: nn.Module) -> Counter[int]:
    """Return how many modules hold each parameter, by its id: more than one where it is tied."""
    return Counter(
        id(tensor)
        for module in model.modules()
        for tensor in module._parameters.values()
        if tensor is not None
    )


def given_by(
    wiring: Wiring, name: str, module: nn.Module, x: Carried | None, before: Shape, after: Shape
) -> Given:
    """Return what a layer makes of the units x of a tensor; shapes are its and the result's."""
    if known_noise(module) and not is_weight_noise(module):
        return _noise(wiring, name, module, x, before)
    if isinstance(module, ACROSS) and x is not None and len(x.axes) > 1:  # within heads
        over = range(len(before) - len(module.normalized_shape), len(before))
        kept = [axis for axis in x.axes if axis not in over]
        return wiring.along(x, kept) if kept else needs_all(name, module)
    if x is not None and len(x.axes) > 1:
        axis = len(before) - 1 if is_a(module, LINEAR) else 1
        if axis not in x.axes:
            return needs_all(name, module)
        x = wiring.along(x, (axis,))
    if is_a(module, LINEAR):
        return _linear(wiring, name, module, x, after)
    if is_a(module, (*CONVOLUTION, *TRANSPOSED)):
        return _convolution(wiring, name, module, x, after)
    if is_a(module, EMBEDDING):
        ids = wiring.slots.find(module.weight, 1, name)
        wiring.describe(name, embedding_dim=ids)
        return Carried((len(after) - 1,), ids)
    if x is None:
        return None
    if isinstance(module, _NORMS):
        return _normalized(wiring, name, module, x, before)
    if is_a(module, (nn.PReLU,)):
        if module.num_parameters > 1 and x.axis != 1:
            return needs_all(name, module)
        if module.num_parameters > 1:
            wiring.slots.bind(module.weight, 0, x.ids)
            wiring.describe(name, num_parameters=x.ids)
        return x
    return needs_all(name, module)


def needs_all(name: str, module: nn.Module) -> str:
    """Return the reason to keep units that a module is not known to do without."""
    return f"{name} ({type(module).__name__}) needs all its units"


def _noise(
    wiring: Wiring, name: str, module: nn.Module, x: Carried | None, shape: Shape
) -> Carried | None:
    """Note that dropout acts on whole units, which is what removing one stands for."""
    if x is None:
        return None
    if isinstance(module, CovarianceDropout):
        wiring.units.hold(x.ids, f"the covariance of {name} belongs to its units")
        return x
    drops = not is_silent(module) and _drops_units(module, x, shape)
    return replace(x, drops=x.drops | {name}) if drops else x


def _drops_units(module: nn.Module, x: Carried, shape: Shape) -> bool:
    """Whether dropout drops features or whole channels, not single positions of channels."""
    last = len(shape) - 1
    if plain_dropout(module) is not None:
        return x.axes == (last,) and len(set(x.ids.tolist())) == len(x.ids)
    if isinstance(module, Dropout):
        shared = {axis % len(shape) for axis in module.shared_axes}
        return shared >= set(range(1, last + 1)) - set(x.axes)
    return type(module) in CHANNEL_DROPOUT and x.axes == (1,)


def _normalized(wiring: Wiring, name: str, module: nn.Module, x: Carried, shape: Shape) -> Given:
    """Shrink a normalization along; those over all units are noted as mixing."""
    affine = (getattr(module, "weight", None), getattr(module, "bias", None))
    statistics: tuple[Any, ...] = ()
    own = is_a(module, _NORMS)
    if isinstance(module, ACROSS):
        sizes = tuple(module.normalized_shape)
        place = x.axis - (len(shape) - len(sizes)) if own else 0  # others may move the channels
        if place < 0:
            return x
        if sizes[place] != len(x.ids):
            return needs_all(name, module)
        for tensor in affine:
            wiring.slots.bind(tensor, place, x.ids)
        wiring.sizes.setdefault(name, {})["normalized_shape"] = (place, x.ids)
        wiring.mixing[name] = (x.axis, x.ids)
        return x
    if x.axis != 1:
        return x if own and not isinstance(module, nn.GroupNorm) else needs_all(name, module)
    if isinstance(module, nn.GroupNorm):
        wiring.describe(name, num_channels=x.ids)
        if module.num_groups == 1:
            wiring.mixing[name] = (1, x.ids)
        else:
            wiring.describe(name, num_groups=_whole_groups(wiring, x.ids, module.num_groups))
    else:
        wiring.describe(name, num_features=x.ids)
        statistics = (module.running_mean, module.running_var)
    for tensor in (*affine, *statistics):
        wiring.slots.bind(tensor, 0, x.ids)
    return x


def _linear(wiring: Wiring, name: str, module: nn.Module, x: Carried | None, shape: Shape) -> Given:
    last = len(shape) - 1
    if x is None or x.axis == last:
        return Carried((last,), _connected(wiring, name, module, x, "in_features", "out_features"))
    reason = "it acts along another axis than the units that it meets"
    wiring.leave_whole(name, module.weight, reason)
    wiring.repeated[name] = x.ids
    return x


def _convolution(
    wiring: Wiring, name: str, module: nn.Module, x: Carried | None, shape: Shape
) -> Carried | None:
    unusual = len(shape) != len(module.kernel_size) + 2 or (x is not None and x.axis != 1)
    grouped = module.groups > 1
    if unusual or (grouped and (x is None or is_a(module, TRANSPOSED) or hindrance(module))):
        reason = (
            f"{name} is used along another axis than the channels'"
            if unusual
            else f"{name} is a convolution in {module.groups} groups"
        )
        wiring.hold(x, reason)
        wiring.leave_whole(name, module.weight, reason)
        return None
    if not grouped or x is None:
        return Carried((1,), _connected(wiring, name, module, x, "in_channels", "out_channels"))
    # A group's inputs and outputs stay or go together; output j of g is in group j // (outputs / g)
    groups = _whole_groups(wiring, x.ids, module.groups)
    ids = groups.repeat(module.out_channels // module.groups)
    wiring.units.tie(ids, wiring.units.fresh(len(ids), name))
    wiring.slots.bind(module.weight, 0, ids)
    wiring.slots.bind(module.bias, 0, ids)
    wiring.describe(name, in_channels=x.ids, out_channels=ids, groups=groups)
    return replace(x, ids=ids)


def _whole_groups(wiring: Wiring, ids: Ids, count: int) -> Ids:
    """Let the units of each of `count` groups stand or fall together; return one of each."""
    group = ids.reshape(count, -1)
    wiring.units.tie(np.repeat(group[:, 0], group.shape[1]), group.ravel())
    return group[:, 0]


def _connected(
    wiring: Wiring, name: str, module: nn.Module, x: Carried | None, inputs: str, outputs: str
) -> Ids:
    """Note the units that a weighted layer reads, and return those it makes."""
    inner, outer = (0, 1) if isinstance(module, TRANSPOSED) else (1, 0)
    reason = hindrance(module)
    if reason is not None:
        wiring.hold(x, f"{name} reads its units, and {reason}")
        wiring.skipped[name] = reason
        return wiring.units.held(module.weight.shape[outer], reason)
    made = wiring.slots.find(module.weight, outer, name)
    wiring.slots.bind(module.bias, 0, made)
    count = module.weight.shape[inner]
    read = wiring.units.held(count, "the model's inputs") if x is None else x.ids
    wiring.slots.bind(module.weight, inner, read)
    wiring.reads.append(Read(name, inner, read, frozenset() if x is None else x.drops))
    wiring.describe(name, **{inputs: read, outputs: made})
    return made
