"""The dependency graph of a model: which units can be removed together, and what cannot be.

The model runs once on an example, and numbers of units are passed on from operation to operation as
torch dispatches them: entrywise operations tie the units of their arguments, operations that move
entries run on the numbers themselves, and layers make and read units (`layers`). Whatever is not
known needs all its units. The smaller network is compared with the large one in the end, so that
a mistake here keeps units but never changes results.

Where the pass reads values of the data, other inputs may take another way. Then nothing is removed
in that module's own forward pass, only inside the modules that it calls and that read no values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from overt._check import InputError
from overt.nn.compression import layers
from overt.nn.compression.dependencies import DependencyGraph, Ids, Size, group_units
from overt.nn.compression.loader import Attention
from overt.nn.data.batches import Inputs, name_failing_inputs
from overt.nn.data.models import disable_fast_attention

ENTRYWISE = {
    "_to_copy",
    "as_strided",
    "copy",
    "hardswish",
    "log_sigmoid_forward",
    "rrelu_with_noise",
}
"""Operations on single entries that torch does not tag as such."""

MOVES = {"_unsafe_view", "cat", "stack", "repeat", "flip", "roll", "index"}
"""Operations besides views that move entries."""

UNFORESEEN = (RuntimeError, TypeError, ValueError, IndexError)
"""What rules raise on arguments that they do not know: then all units are needed."""

READ = torch.Tag.data_dependent_output


def build_graph(model: nn.Module, inputs: Inputs) -> DependencyGraph:
    """Run a model in evaluation mode on an example, and find its groups of units."""
    reading: set[str] = set()
    while True:
        tracer = _Tracer(model, reading, inputs.tensors)
        with name_failing_inputs(inputs, "example"):
            result, outputs = tracer.run(model, inputs)
        if tracer.reads == reading:
            break
        reading = tracer.reads
    if any(x.is_floating_point() and x.isnan().any() for x in tensors(outputs)):
        raise InputError("example: the model returns NaN")
    tracer.keep(tensors(result), "the model returns its units")
    found = tracer.found
    found.outputs = outputs
    for path in reading:
        found.skipped[path or type(model).__name__] = (
            "its forward pass depends on values: other inputs may take another way through it"
        )
    for name, module in model.named_modules():
        if isinstance(module, layers.SEALED):
            found.skipped[name] = f"{type(module).__name__} keeps its maps inside"
        elif layers.weights_of(module) and id(module.weight) not in found.costs:
            found.keep_layer(name, module.weight, "its forward pass is not called")
    group_units(model, found)
    return found


class Operation(NamedTuple):
    """A call that torch dispatches: the tensors among its arguments, and its results."""

    name: str
    func: Any
    args: Any
    kwargs: dict[str, Any]
    given: list[Tensor]
    made: list[Tensor]

    def axes(self) -> tuple[int, ...]:
        """Return the axes of the first tensor that the argument `dim` names."""
        names = [argument.name for argument in self.func._schema.arguments]
        given = dict(zip(names, self.args, strict=False))
        dims = {**given, **self.kwargs}.get("dim")
        if self.name == "glu" and dims is None:
            dims = -1
        several = dims if isinstance(dims, list) else [dims]
        return tuple(d % self.given[0].ndim for d in several if d is not None)


class DispatchMode(TorchDispatchMode):  # type: ignore[misc]
    """Sees operations as torch dispatches them."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import dynamo at the first use, which takes a second.
        return False


class _Tracer(DispatchMode):
    """Passes units on from operation to operation, and from layer to layer."""

    def __init__(
        self, model: nn.Module, reading: set[str], inputs: tuple[Tensor, ...]
    ) -> None:
        super().__init__()
        self.found = DependencyGraph()
        self.reading = reading  # modules known to read values
        self.reads = set(reading)
        self._constant = self.found.units.new(1)
        self.found.units.keep(self._constant, "its units are joined with others")
        self._paths = {module: path for path, module in model.named_modules()}
        self._layers = {module for module in self._paths if layers.is_layer(module)}
        own = (*model.parameters(), *model.buffers())
        self._own = set(map(id, own))
        self._stack: list[nn.Module] = []
        self._leaf: nn.Module | None = None  # inside it, nothing is followed
        # The units of tensors: ids with as many axes, of length 1 where they do not vary.
        self._known: Any = WeakTensorKeyDictionary()
        self._data: Any = WeakTensorKeyDictionary()  # tensors that depend on the inputs
        for tensor in inputs:
            self._data[tensor] = True

    def run(self, model: nn.Module, inputs: Inputs) -> tuple[Any, Any]:
        """Return the model's result, and the output that counts."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(disable_fast_attention())
            # Attention arrives as products of matrices.
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            before = register_module_forward_pre_hook(self._enter)
            stack.callback(before.remove)
            after = register_module_forward_hook(self._leave, with_kwargs=True)
            stack.callback(after.remove)
            stack.enter_context(self)
            result = Inputs(inputs.given).run(model)
            return result, result if inputs.output is None else inputs.output(result)

    def keep(self, values: Any, reason: str) -> None:
        """Keep the units of tensors, and the parameters that they are."""
        for tensor in values:
            if tensor in self._known:
                self.found.units.keep(self._known[tensor], reason)
            if id(tensor) in self._own:
                self.found.locked[id(tensor)] = reason

    def _enter(self, module: nn.Module, args: Any) -> None:
        if module in self._paths and self._leaf is None:
            self._stack.append(module)
            if module in self._layers:
                self._leaf = module

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if module not in self._paths or self._leaf not in (None, module):
            return
        self._stack.pop()
        path = self._paths[module]
        if self._leaf is module:
            self._leaf = None
            self._layer(path, module, list(tensors((args, kwargs))), result)
        if path not in self.reading and self._path() in self.reading:
            made = list(tensors(result))
            self.keep(made, "its units go where the forward pass depends on values")
            for tensor in made:
                self._known.pop(tensor, None)

    def _path(self) -> str:
        return self._paths[self._stack[-1]] if self._stack else ""

    def _layer(self, name: str, module: nn.Module, given: Any, result: Any) -> None:
        after: Ids | str | None = layers.needs_all(name, module)
        if len(given) == 1 and isinstance(result, Tensor):
            ids = self._known.get(given[0])
            layer = layers.Layer(self.found, name, module, ids, self._constant)
            with suppress(*UNFORESEEN):
                after = layer.follow(given[0], result)
        elif layers.weights_of(module) is not None:
            self.found.keep_layer(name, module.weight, str(after))
        if isinstance(after, str):
            self.keep(given, after)
        elif after is not None:
            self._known[result] = after

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__.rstrip("_")
        given = list(tensors((args, kwargs)))
        made = list(tensors(result))
        depends = any(tensor in self._data for tensor in given)
        if depends and self._leaf is None and READ in func.tags:
            # Python gets to see values; the modules that run now depend on them.
            self.reads.add("")
            self.reads.update(self._paths[module] for module in self._stack)
        if depends:
            for tensor in made:
                self._data[tensor] = True
        if self._leaf is None:
            if torch.Tag.nondeterministic_seeded in func.tags:
                self.found.random_modules[self._path()] = None
            self._follow(Operation(name, func, args, kwargs, given, made))
        return result

    def _follow(self, op: Operation) -> None:
        """Follow the units through one operation."""
        if self._path() in self.reading:
            self.keep(op.given, "it is used where the forward pass depends on values")
            return
        after = None
        if any(tensor in self._known for tensor in op.given):
            with suppress(*UNFORESEEN):
                after = self._rule(op)
        if after is None:
            why = f"{op.name} in the forward pass needs all its units"
            inside = bool(self._stack) and isinstance(self._stack[-1], Attention)
            if inside and op.name == "mean":
                why = (
                    "weights of all heads are returned: call it with need_weights=False"
                )
            self.keep(op.given, why)
            return
        for tensor, ids in zip(op.made, after, strict=True):
            try:
                np.broadcast_to(ids, tensor.shape)
            except ValueError:  # a result of another shape, such as indices
                continue
            self._known[tensor] = ids

    def _rule(self, op: Operation) -> list[Ids] | None:
        """Return the units of each result, None where they are not known."""
        tags = op.func.tags
        shape_only = op.name.endswith("_like") or op.name.startswith("new_")
        same_shape = op.made[0].shape == op.given[0].shape
        entrywise = torch.Tag.pointwise in tags or (op.name in ENTRYWISE and same_shape)
        if shape_only or entrywise or torch.Tag.nondeterministic_seeded in tags:
            return [self._tie(op)] * len(op.made)
        if any(id(tensor) in self._own for tensor in op.given):
            return None
        if (op.func.is_view and op.name != "as_strided") or op.name in MOVES:
            return self._move(op)
        if op.name == "bmm":
            return self._multiply(*op.given)
        if len(op.given) > 1:
            return None
        ids = self._known[op.given[0]]
        axes = op.axes()
        if op.name == "glu":
            if ids.shape[axes[0]] > 1:
                ids, gate = np.split(ids, 2, axes[0])
                self.found.units.tie(ids, gate)
            return [ids]
        if any(word in op.name for word in ("pool", "upsample", "pad")):
            # Pooling mixes all axes but the first two.
            free = ids.ndim if "pad" in op.name else 2
            mixed = ids[(0,) * free]
            return [ids] * len(op.made) if mixed.size == 1 else None
        # Sums, softmax and other operations along axes.
        along = [axis for axis in axes if ids.shape[axis] > 1]
        if not axes or ids.size == math.prod(ids.shape[axis] for axis in axes) > 1:
            return None
        ids = self.found.units.merge(ids, along)
        if op.made[0].ndim < ids.ndim:
            ids = ids.squeeze(axes)
        return [ids] * len(op.made)

    def _tie(self, op: Operation) -> Ids:
        """Tie the units of tensors that are added, multiplied or the like."""
        units = self.found.units
        ndim = op.made[0].ndim
        parts = []
        for tensor in op.given:
            if tensor in self._known:
                ids = self._known[tensor]
                missing = (1,) * (ndim - ids.ndim)
                parts.append(ids.reshape(missing + ids.shape))
        main = max(parts, key=np.size)
        for part in parts:
            if part.size == 1 < main.size:
                # A single unit that is broadcast is not one of those that it meets.
                units.keep(part, f"{op.name} in the forward pass needs all its units")
            else:
                units.tie(main, part)
        shape = np.broadcast_shapes(*(part.shape for part in parts))
        main = np.broadcast_to(main, shape)
        for tensor in op.given:
            if tensor in self._known:
                continue
            shift = ndim - tensor.ndim
            for axis in range(shift, ndim):
                main = _shorten(units.classes(main))
                if tensor.shape[axis - shift] == 1 or main.shape[axis] == 1:
                    continue
                if main.size > main.shape[axis]:
                    main = units.merge(main, [axis])
                elif id(tensor) in self._own:
                    self.found.bind(tensor, axis - shift, main.ravel())
                else:
                    why = f"{op.name} brings its units to a tensor of fixed width"
                    units.keep(main, why)
        return _shorten(units.classes(main))

    def _move(self, op: Operation) -> list[Ids]:
        """Run an operation that moves entries on the numbers of their units."""

        def number(tree: Any) -> Any:
            if isinstance(tree, (list, tuple)):
                return type(tree)(map(number, tree))
            if not isinstance(tree, Tensor):
                return tree
            if tree in self._known:
                return torch.tensor(self._known[tree]).expand(tree.shape)
            if op.name in ("cat", "stack"):
                return torch.full(tree.shape, int(self._constant[0]))
            return tree.cpu()

        func = op.func
        if op.name in ("view", "_unsafe_view"):
            func = torch.ops.aten.reshape.default
        moved = func(*number(op.args), **op.kwargs)
        after = [_shorten(ids.numpy()) for ids in tensors(moved)]
        for ids in after:
            self._guess(ids)
        return after

    def _guess(self, ids: Ids) -> None:
        """Note attributes of the running module that may be the length of an axis of units."""
        if not self._stack:
            return
        module = self._stack[-1]
        for axis, length in enumerate(ids.shape):
            for key, value in vars(module).items():
                if type(value) is int and value == length > 1:
                    table = np.moveaxis(ids, axis, 0).reshape(length, -1)
                    size = Size(self._paths[module], key, table, guessed=True)
                    self.found.sizes.append(size)

    def _multiply(self, a: Tensor, b: Tensor) -> list[Ids] | None:
        """Tie the heads of tensors that are multiplied head by head, as attention does."""
        if a not in self._known or b not in self._known:
            return None
        units = self.found.units
        heads = [units.merge(self._known[x], [1, 2]) for x in (a, b)]
        if any(ids.size == 1 for ids in heads):
            return None
        units.tie(*heads)
        cost = a.numel() * b.shape[2]
        self.found.products.append((cost, heads[0].ravel()))
        return heads[:1]


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a tree of tuples, lists, dictionaries and dataclasses."""
    if isinstance(value, Tensor):
        yield value
        return
    if is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list, set)):
        for part in value:
            yield from tensors(part)


def _shorten(ids: Ids) -> Ids:
    """Return numbers of units with length 1 along axes where they do not vary."""
    for axis, length in enumerate(ids.shape):
        first = ids.take([0], axis) if length else ids
        if length > 1 and (ids.strides[axis] == 0 or (ids == first).all()):
            ids = first
    return ids
