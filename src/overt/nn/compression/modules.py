"""What each kind of module does to units: reads and makes them, passes them on, or needs them all.

Each function takes the state, the module with its name and the value it is given, and returns the
value that it gives, or None where it is not known what becomes of the units.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from overt.nn.compression import layers, shapes
from overt.nn.compression.layers import is_a
from overt.nn.compression.state import Read, State, Value
from overt.nn.compression.units import Ids
from overt.nn.layers.covariance import CovarianceDropout
from overt.nn.layers.dropout import Dropout
from overt.nn.layers.recognized import is_silent, is_weight_noise, known_noise, plain_dropout

Shape = tuple[int, ...]


def module_value(
    state: State, name: str, module: nn.Module, x: Value, shape: Shape
) -> Value | None:
    """Return what a module of one input makes of it."""
    if known_noise(module) and not is_weight_noise(module):
        return _noise(state, name, module, x)
    if is_a(module, layers.LINEAR):
        return _linear(state, name, module, x, shape)
    if is_a(module, (*layers.CONVOLUTION, *layers.TRANSPOSED)):
        return _convolution(state, name, module, x, shape)
    if is_a(module, (nn.Embedding,)):
        ids = state.slots.find(module.weight, 1, name)
        state.describe(name, embedding_dim=ids)
        return Value(shape, len(shape) - 1, ids)
    if x.ids is None:
        return Value(shape)
    if is_a(module, layers.ELEMENTWISE):
        return x
    if is_a(module, layers.SPATIAL) and x.axis == 1 and len(shape) > 2:
        return replace(x, shape=shape)
    if is_a(module, (*layers.PER_CHANNEL, *layers.ACROSS, nn.GroupNorm)):
        return _normalized(state, name, module, x, x.ids)
    if is_a(module, (nn.PReLU,)):
        return _prelu(state, name, module, x, x.ids)
    if is_a(module, (nn.Softmax, nn.LogSoftmax)) and module.dim is not None:
        return None if module.dim % len(shape) == x.axis else x
    if is_a(module, (nn.Flatten,)):
        found = shapes.reshaped(x.shape, x.axis, x.ids, shape)
        return None if found is None else replace(x, shape=shape, axis=found[0], ids=found[1])
    return None


def feedforward(state: State, name: str, module: nn.Module, times: int) -> None:
    """Note the hidden units of a transformer's layer, which is called so many times."""
    made = state.slots.find(module.linear1.weight, 0, f"{name}.linear1")
    state.slots.bind(module.linear1.bias, 0, made)
    state.slots.bind(module.linear2.weight, 1, made)
    drops = frozenset({f"{name}.dropout"} if module.dropout.p > 0 else ())
    state.reads.append(Read(f"{name}.linear2", 1, made, drops))
    state.describe(f"{name}.linear1", out_features=made)
    state.describe(f"{name}.linear2", in_features=made)
    for part in ("linear1", "linear2"):
        state.visits[f"{name}.{part}"] = times
        reason = layers.hindrance(getattr(module, part))
        if reason:
            state.units.hold(made, f"{name}.{part}: {reason}")


def _noise(state: State, name: str, module: nn.Module, x: Value) -> Value:
    """Note that dropout acts on whole units, which is what removing one stands for."""
    if x.ids is None:
        return x
    if isinstance(module, CovarianceDropout):
        state.units.hold(x.ids, f"the covariance of {name} belongs to its units")
        return x
    drops = not is_silent(module) and _drops_units(module, x, x.ids)
    return replace(x, drops=x.drops | {name}) if drops else x


def _drops_units(module: nn.Module, x: Value, ids: Ids) -> bool:
    """Whether dropout drops features or whole channels, not single positions of channels."""
    last = len(x.shape) - 1
    if plain_dropout(module) is not None:
        return x.axis == last and len(set(ids)) == len(ids)
    if isinstance(module, Dropout):
        shared = {axis % len(x.shape) for axis in module.shared_axes}
        return shared >= set(range(1, last + 1)) - {x.axis}
    return type(module) in layers.CHANNEL_DROPOUT and x.axis == 1


def _normalized(state: State, name: str, module: nn.Module, x: Value, ids: Ids) -> Value | None:
    """Shrink a normalization along; those over all units are noted as mixing."""
    affine = (module.weight, getattr(module, "bias", None))
    if is_a(module, layers.ACROSS):
        place = x.axis - (len(x.shape) - len(module.normalized_shape))
        if place >= 0:
            for tensor in affine:
                state.slots.bind(tensor, place, ids)
            state.sizes.setdefault(name, {})["normalized_shape"] = (place, ids)
            state.mixing[name] = (x.axis, ids)
        return x
    if is_a(module, (nn.GroupNorm,)):
        if x.axis != 1 or module.num_groups not in (1, module.num_channels):
            return None
        state.describe(name, num_channels=ids)
        if module.num_groups == 1:
            state.mixing[name] = (1, ids)
        else:
            state.describe(name, num_groups=ids)
        statistics: tuple[Any, ...] = ()
    elif x.axis != 1:
        return x
    else:
        state.describe(name, num_features=ids)
        statistics = (module.running_mean, module.running_var)
    for tensor in (*affine, *statistics):
        state.slots.bind(tensor, 0, ids)
    return x


def _prelu(state: State, name: str, module: nn.Module, x: Value, ids: Ids) -> Value | None:
    if module.num_parameters > 1:
        if x.axis != 1:
            return None
        state.slots.bind(module.weight, 0, ids)
        state.describe(name, num_parameters=ids)
    return x


def _linear(state: State, name: str, module: nn.Module, x: Value, shape: Shape) -> Value:
    last = len(shape) - 1
    if x.ids is None or x.axis == last:
        made = _connected(state, name, module, x, "in_features", "out_features")
        return Value(shape, last, made)
    state.skipped[name] = "it acts along another axis than the units that it meets"
    state.slots.lock(module.weight, state.skipped[name])
    return replace(x, shape=shape)


def _convolution(state: State, name: str, module: nn.Module, x: Value, shape: Shape) -> Value:
    unusual = len(shape) != len(module.kernel_size) + 2 or (x.ids is not None and x.axis != 1)
    whole_groups = module.groups > 1 and (
        x.ids is None
        or not layers.depthwise(module)
        or is_a(module, layers.TRANSPOSED)
        or layers.hindrance(module) is not None
    )
    if unusual or whole_groups:
        reason = (
            f"{name} is used along another axis than the channels'"
            if unusual
            else f"{name} is a convolution in {module.groups} groups"
        )
        state.hold(x, reason)
        state.slots.lock(module.weight, reason)
        state.skipped[name] = reason
        return Value(shape)
    if module.groups > 1:  # depth-wise: output j stays with input j // multiplier
        assert x.ids is not None  # noqa: S101 (for the type checker)
        ids = x.ids.repeat(module.out_channels // module.in_channels)
        state.slots.bind(module.weight, 0, ids)
        state.slots.bind(module.bias, 0, ids)
        state.describe(name, in_channels=x.ids, out_channels=ids, groups=x.ids)
        return replace(x, shape=shape, ids=ids)
    made = _connected(state, name, module, x, "in_channels", "out_channels")
    return Value(shape, 1, made)


def _connected(
    state: State, name: str, module: nn.Module, x: Value, inputs: str, outputs: str
) -> Ids:
    """Note the units that a weighted layer reads, and return those it makes."""
    inner, outer = layers.axes(module)
    reason = layers.hindrance(module)
    if reason is not None:
        state.hold(x, f"{name} reads its units, and {reason}")
        state.skipped[name] = reason
        return state.units.held(module.weight.shape[outer], reason)
    made = state.slots.find(module.weight, outer, name)
    state.slots.bind(module.bias, 0, made)
    count = module.weight.shape[inner]
    read = state.units.held(count, "the model's inputs") if x.ids is None else x.ids
    state.slots.bind(module.weight, inner, read)
    state.reads.append(Read(name, inner, read, x.drops))
    state.describe(name, **{inputs: read, outputs: made})
    return made
