"""One walk through a traced graph: which units each tensor carries, and who reads them."""

from __future__ import annotations

import operator
from dataclasses import replace

import numpy as np
from torch import Tensor, fx

from overt.nn.compression import shapes
from overt.nn.compression.modules import module_value
from overt.nn.compression.state import State, Value
from overt.nn.compression.tracing import Region

Values = dict[fx.Node, Value | None]


def walk(state: State, region: Region) -> None:
    """Walk one traced part of the model; its inputs and outputs stay as they are."""
    values: Values = {}
    for node in region.graph.nodes:
        shape = node.meta.get("shape")
        if node.op == "output":
            inside = f"its units leave {region.prefix}, outside of which nothing is traced"
            _hold(state, node, values, inside if region.prefix else "the model returns its units")
        elif node.op == "get_attr":
            source = operator.attrgetter(node.target)(region.module)
            tensor = isinstance(source, Tensor)
            values[node] = Value(tuple(source.shape), source=source) if tensor else None
        elif node.op == "call_module":
            values[node] = _called(state, region, node, values)
        elif shape is None:
            if _name(node) not in shapes.QUESTIONS:
                _hold(state, node, values, f"{_name(node)} reads its units")
        elif node.op == "placeholder":
            values[node] = Value(shape)
        else:
            values[node] = _operation(state, node, values, shape)


def _called(state: State, region: Region, node: fx.Node, values: Values) -> Value | None:
    """Return what a module makes of its input."""
    module = region.module.get_submodule(node.target)
    name = f"{region.prefix}.{node.target}" if region.prefix else node.target
    state.visits[name] += 1
    shape = node.meta["shape"]
    x = values.get(node.args[0]) if _first(node) else None
    if x is not None and shape is not None and len(node.all_input_nodes) == 1:
        known = module_value(state, name, module, x, shape)
        if known is not None:
            return known
    _hold(state, node, values, f"{name} ({type(module).__name__}) needs all its units")
    return None if shape is None else Value(shape)


def _operation(state: State, node: fx.Node, values: Values, shape: tuple[int, ...]) -> Value:
    """Return what a function or method makes of its inputs."""
    name = _name(node)
    given = [values.get(n) for n in node.all_input_nodes]
    carrying = [v for v in given if v is not None and v.ids is not None]
    sources = [v for v in given if v is not None and v.source is not None]
    if not carrying and not sources:
        return Value(shape)
    if name in shapes.BINARY and carrying:
        return _combined(state, node, values, shape, name)
    first = values.get(node.args[0]) if _first(node) else None
    if not sources and len(carrying) == 1 and first is not None and first.ids is not None:
        if name in shapes.DROPOUTS and shapes.functional_dropout(node):
            whole = name != "dropout" or first.axis == len(shape) - 1
            return replace(first, drops=first.drops | {node.name} if whole else first.drops)
        found = shapes.moved(node, name, first.shape, first.axis, first.ids, shape)
        if isinstance(found, str):
            state.units.hold(first.ids, found)
            return Value(shape)
        if found is not None:
            return replace(first, shape=shape, axis=found[0], ids=found[1])
    if name in ("cat", "concat", "concatenate", "stack") and not sources:
        joined = _joined(state, node, values, shape, name)
        if joined is not None:
            return joined
    _hold(state, node, values, f"{name} in the forward pass needs all its units")
    return Value(shape)


def _combined(
    state: State, node: fx.Node, values: Values, shape: tuple[int, ...], name: str
) -> Value:
    """Tie the units of two tensors that are added, multiplied or the like."""
    given = [v for v in map(values.get, node.all_input_nodes) if v is not None]
    main = next(v for v in given if v.ids is not None)
    ids, drops = main.ids, main.drops
    assert ids is not None  # noqa: S101 (for the type checker)
    axis = main.axis + len(shape) - len(main.shape)
    for other in given:
        if other is main:
            continue
        place = axis - (len(shape) - len(other.shape))
        if other.ids is not None and (other.axis != place or len(other.ids) != len(ids)):
            reason = f"{name} in the forward pass brings its units together with others"
            state.units.hold(ids, reason)
            state.units.hold(other.ids, reason)
        elif other.ids is not None:
            state.units.tie(ids, other.ids)
            drops = drops & other.drops
        elif place >= 0 and other.shape[place] > 1:
            if other.source is not None and other.shape[place] == len(ids):
                state.slots.bind(other.source, place, ids)
            else:
                state.units.hold(ids, f"{name} brings its units to a tensor of fixed width")
    return Value(shape, axis, ids, drops)


def _joined(
    state: State, node: fx.Node, values: Values, shape: tuple[int, ...], name: str
) -> Value | None:
    """Concatenate lists of units, or tie them where another axis is joined."""
    parts = node.args[0] if node.args and isinstance(node.args[0], (list, tuple)) else ()
    known = [v for v in map(values.get, parts) if v is not None]
    dim = shapes.argument(node, 1, "dim", 0)
    if not known or len(known) < len(parts) or not isinstance(dim, int):
        return None
    first = next(v for v in known if v.ids is not None)
    dim = dim % len(shape)
    drops = frozenset.intersection(*(v.drops for v in known))
    if name != "stack" and dim == first.axis:
        if any(v.ids is not None and v.axis != dim for v in known):
            return None
        lists = [
            state.units.held(v.shape[dim], "its units are joined with others")
            if v.ids is None
            else v.ids
            for v in known
        ]
        return Value(shape, dim, np.concatenate(lists), drops)
    if any(v.axis != first.axis for v in known):
        return None
    ids = [v.ids for v in known if v.ids is not None]
    for other in ids[1:]:
        state.units.tie(ids[0], other)
    axis = first.axis + (name == "stack" and dim <= first.axis)
    return Value(shape, axis, ids[0], drops)


def _hold(state: State, node: fx.Node, values: Values, reason: str) -> None:
    for source in node.all_input_nodes:
        state.hold(values.get(source), reason)


def _first(node: fx.Node) -> bool:
    """Whether an operation's first argument is the result of another."""
    return bool(node.args) and isinstance(node.args[0], fx.Node)


def _name(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target
    if node.target is operator.getitem:
        return "getitem"
    return str(getattr(node.target, "__name__", node.target))
