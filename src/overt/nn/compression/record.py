"""Record a forward pass as calls of functions and layers, with the modules in which they ran.

`overt.nn.graph` records operations of ATen, which have no modules and no sizes written as numbers.
Removing units needs both: the layers that read a unit, and the code that names a width.

A `Value` is a tensor as it was at one moment (one changed in place has several). Sizes that the
model reads from shapes are of the type `Extent`, a whole number that remembers that it was read, so
that a size written into the code can be distinguished from one that was queried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from overt._check import InputError
from overt.nn.data.batches import Inputs
from overt.nn.data.models import disable_checkpointing, disable_fast_attention
from overt.nn.data.rng import torch_rng_bytes

Kind = Literal[
    "pass",  # each entry of the output belongs to the unit that the input's entry belongs to
    "spatial",  # the same, on (batch, units, map), where the map may change
    "tie",  # two tensors entry by entry: their units are one
    "reduce",  # some axes are summed up
    "normalize",  # along one axis: units stay, unless that axis is theirs
    "drop",  # dropout: passes units on, dropping some
    "random",  # samples, in training mode
    "matmul",
    "attention",
    "read",  # takes entries out into Python
    "question",  # asks for shape, type or place, not for entries
    "other",  # needs all units, or is followed by name
]

_KINDS: dict[Kind, str] = {
    "pass": (
        "contiguous clone detach alias to float double half bfloat16 type type_as cpu cuda data "
        "requires_grad positive real neg relu leaky_relu celu elu gelu hardsigmoid hardswish "
        "hardtanh hardshrink logsigmoid mish relu6 selu sigmoid silu softplus softshrink softsign "
        "tanh tanhshrink threshold abs exp expm1 log log1p log2 log10 sqrt rsqrt square sin cos "
        "tan atan asin acos sinh cosh erf erfc reciprocal clamp clamp_min clamp_max pow rpow rdiv "
        "float_power sinc xlogy"
    ),
    "spatial": (
        "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d interpolate upsample max_pool1d max_pool2d max_pool3d "
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool1d_with_indices "
        "max_pool2d_with_indices max_pool3d_with_indices lp_pool1d lp_pool2d"
    ),
    "tie": "add sub rsub mul div maximum minimum",
    "reduce": "mean sum nansum amax amin logsumexp std var norm prod var_mean std_mean",
    "normalize": "normalize softmax log_softmax softmin",
    "drop": "dropout dropout1d dropout2d dropout3d feature_dropout",
    "random": (
        "alpha_dropout feature_alpha_dropout rrelu bernoulli normal uniform exponential rand "
        "rand_like randn randn_like gumbel_softmax multinomial randperm randint"
    ),
    "matmul": "matmul mm bmm mv dot rmatmul einsum tensordot bilinear outer inner",
    "attention": "scaled_dot_product_attention multi_head_attention_forward",
    "read": "item tolist numpy bool_read float_read int_read index repr str format array iter",
    "question": (
        "attribute size dim numel nelement ndimension is_floating_point is_complex is_contiguous "
        "stride storage_offset data_ptr element_size get_device len hash is_inference is_conj "
        "is_neg is_signed is_same_size is_tensor result_type can_cast promote_types is_shared "
        "is_pinned has_names retain_grad register_hook _set_grad_enabled _is_view"
    ),
}
KIND_OF: dict[str, Kind] = {
    name: kind for kind, names in _KINDS.items() for name in names.split()
}

_OPERATORS = frozenset(
    (
        "add",
        "sub",
        "mul",
        "truediv",
        "div",
        "matmul",
        "pow",
        "floordiv",
        "mod",
        "and",
        "or",
        "xor",
    )
)
_ALIASES = {
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "rtruediv": "rdiv",
    "radd": "add",
    "subtract": "sub",
    "rmul": "mul",
    "multiply": "mul",
    "negative": "neg",
    "absolute": "abs",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "moveaxis": "movedim",
    "expit": "sigmoid",
    "log_sigmoid": "logsigmoid",
    "special_expit": "sigmoid",
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "_threshold": "threshold",
}
_PROPERTIES = frozenset(("T", "mT", "H", "mH", "data", "real"))
_READS = {"__bool__": "bool_read", "__float__": "float_read", "__int__": "int_read"}


def _canonical(function: Any) -> tuple[str, bool]:
    """Return one name for all spellings of a function, and whether this one works in place."""
    raw = str(getattr(function, "__name__", function))
    if raw == "__get__":  # a property: x.T is an operation, x.shape a question
        name = str(getattr(getattr(function, "__self__", None), "__name__", raw))
        return (name if name in _PROPERTIES else "attribute"), False
    return _canonical_name(raw)


@cache
def _canonical_name(raw: str) -> tuple[str, bool]:
    if raw in _READS:
        return _READS[raw], False
    name = raw
    inplace = raw == "__setitem__"
    if raw.startswith("__") and raw.endswith("__"):
        name = raw[2:-2]
        if name.startswith("i") and name[1:] in _OPERATORS:
            name = name[1:]
            inplace = True
    elif raw.endswith("_") and not raw.startswith("_"):
        name = raw.rstrip("_")
        inplace = True
    return _ALIASES.get(name, name), inplace


@dataclass(eq=False)
class Value:
    """A tensor as it was at one moment of a pass.

    `tensor` is stored for parameters, constants and inputs only, whose `maker` is None; `depends`
    says whether it depends on the inputs.
    """

    shape: tuple[int, ...]
    tensor: Tensor | None = None
    maker: Operation | None = None
    depends: bool = False


class Frame(NamedTuple):
    """A forward pass of a module within the model's: the module's path, and a running number."""

    path: str
    number: int


@dataclass(frozen=True, eq=False)
class Operation:
    """One call of a function, or of a whole module (`leaf`).

    `args` and `kwargs` have a `Value` in the place of each tensor. `module` is the path of the
    leaf, or of the module in whose forward pass it ran; `frames` are these passes, the model's
    first. `random` says whether it moved torch's generator, `noise` is a name for a function that
    may.
    """

    name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    module: str
    frames: tuple[Frame, ...]
    leaf: nn.Module | None
    random: bool
    noise: str

    @property
    def kind(self) -> Kind:
        """What becomes of units."""
        return KIND_OF.get(self.name, "other")

    @property
    def output(self) -> Value:
        """The first result."""
        return self.outputs[0]

    @property
    def reads_data(self) -> bool:
        """Whether Python gets to see values that depend on the inputs."""
        return self.kind == "read" and any(value.depends for value in self.inputs)

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument, given by place or by name."""
        return (
            self.args[place]
            if len(self.args) > place
            else self.kwargs.get(name, default)
        )


@dataclass(frozen=True, eq=False)
class Recording:
    """The operations of one forward pass in order, and the values that the model returns."""

    operations: tuple[Operation, ...]
    outputs: tuple[Value, ...]


def record(
    model: nn.Module, inputs: Inputs, is_leaf: Callable[[nn.Module], bool]
) -> tuple[Recording, Any]:
    """Run the model as it is; return the recorded pass, and the output that counts.

    Calls of modules for which `is_leaf` holds are one operation, and of scripted ones.
    """
    try:
        return _record(model, inputs, is_leaf, extents=True)
    except (
        TypeError,
        RuntimeError,
    ):  # compiled functions only take sizes that are plain ints
        return _record(model, inputs, is_leaf, extents=False)


def _record(
    model: nn.Module,
    inputs: Inputs,
    is_leaf: Callable[[nn.Module], bool],
    *,
    extents: bool,
) -> tuple[Recording, Any]:
    writer = _Writer(inputs.tensors)
    with torch.no_grad():
        everything = Inputs(inputs.given)
        result = watch(
            model, everything, writer.write, is_leaf=is_leaf, extents=extents
        )
        selected = result if inputs.output is None else inputs.output(result)
    outputs = tuple(writer.value(tensor) for tensor in tensors(result))
    return Recording(tuple(writer.operations), outputs), selected


@dataclass(frozen=True, eq=False)
class Call:
    """One call that a model makes, as `watch` passes it on; `result` and `state` for a leaf."""

    name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inplace: bool
    module: str
    frames: tuple[Frame, ...]
    leaf: nn.Module | None = None
    result: Any = None
    state: bytes = b""  # of torch's generator when the leaf began

    def run(self) -> Any:
        """Do what the model asked for."""
        return (
            self.result
            if self.leaf is not None
            else self.function(*self.args, **self.kwargs)
        )


class _Writer:
    """Writes down calls as operations on values."""

    def __init__(self, inputs: tuple[Tensor, ...]) -> None:
        self._values: Any = WeakTensorKeyDictionary()
        self._names: Counter[str] = Counter()
        self.operations: list[Operation] = []
        for tensor in inputs:
            self._values[tensor] = Value(tuple(tensor.shape), tensor, depends=True)

    def write(self, call: Call) -> Any:
        """Run the call and write it down."""
        kind = KIND_OF.get(call.name, "other")
        inside = torch._C._functorch.peek_interpreter_stack() is not None
        if inside and (call.leaf is not None or kind in ("random", "drop")):
            raise InputError(
                f"the model must not use torch.func's transforms here, got {call.name} inside one "
                "such as vmap: what becomes of rows there is not seen; write it on whole batches"
            )
        args = _map_tensors(call.args, self.value)
        kwargs = _map_tensors(call.kwargs, self.value)
        inputs = tuple(_values_in((args, kwargs)))
        before = call.state or torch_rng_bytes()
        result = call.run()
        unchanged = isinstance(result, Tensor) and any(
            result is t for t in tensors(call.args)
        )
        if (
            unchanged and not call.inplace
        ):  # as of dropout that is off: input and output differ
            result = result.view_as(result)
        made = [call.args[0]] if call.name == "setitem" else list(tensors(result))
        depends = any(value.depends for value in inputs)
        outputs = tuple(Value(tuple(tensor.shape), depends=depends) for tensor in made)
        random = torch_rng_bytes() != before
        noise = self._noise_name(call) if random or kind in ("random", "drop") else ""
        operation = Operation(
            call.name,
            call.function,
            args,
            kwargs,
            inputs,
            outputs,
            call.module,
            call.frames,
            call.leaf,
            random,
            noise,
        )
        for tensor, value in zip(made, outputs, strict=True):
            value.maker = operation
            self._values[tensor] = value
        self.operations.append(operation)
        return result

    def value(self, tensor: Tensor) -> Value:
        """Return what a tensor is now."""
        if tensor not in self._values:
            self._values[tensor] = Value(tuple(tensor.shape), tensor)
        return self._values[tensor]

    def _noise_name(self, call: Call) -> str:
        name = f"{call.module}:{call.name}"
        self._names[name] += 1
        return f"{name}#{self._names[name]}"


def watch(
    model: nn.Module,
    inputs: Inputs,
    handle: Callable[[Call], Any],
    *,
    is_leaf: Callable[[nn.Module], bool] | None = None,
    extents: bool = False,
) -> Any:
    """Run the model and let `handle` return the result of each call; return the model's result."""
    paths = {module: path for path, module in model.named_modules()}
    leaves = {
        module
        for module in paths
        if isinstance(module, torch.jit.ScriptModule)
        or (is_leaf is not None and is_leaf(module))
    }
    watcher = _Watcher(handle, paths, leaves, extents)
    with ExitStack() as stack:
        stack.enter_context(disable_fast_attention())
        stack.enter_context(disable_checkpointing())
        before = register_module_forward_pre_hook(watcher.enter)
        stack.callback(before.remove)
        after = register_module_forward_hook(watcher.leave, with_kwargs=True)
        stack.callback(after.remove)
        stack.enter_context(watcher)
        return inputs.run(model)


class _Watcher(TorchFunctionMode):  # type: ignore[misc]
    """Sees torch's functions and methods as they are called, and modules as they begin and end."""

    def __init__(
        self,
        handle: Callable[[Call], Any],
        paths: dict[nn.Module, str],
        leaves: set[nn.Module],
        extents: bool,
    ) -> None:
        super().__init__()
        self._handle = handle
        self._paths = paths
        self._leaves = leaves
        self._extents = extents
        self._frames: tuple[Frame, ...] = ()
        self._entered = 0
        self._leaf: nn.Module | None = None  # inside it, nothing is seen
        self._state = b""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._leaf is not None:
            return func(*args, **kwargs)
        name, inplace = _canonical(func)
        if KIND_OF.get(name) == "question":
            result = func(*args, **kwargs)
            return _as_extents(result) if self._extents else result
        inplace = inplace or bool(kwargs.get("inplace"))
        path = self._frames[-1].path if self._frames else ""
        return self._handle(Call(name, func, args, kwargs, inplace, path, self._frames))

    def enter(self, module: nn.Module, args: Any) -> None:
        """Note that a module begins to run."""
        if module not in self._paths or self._leaf is not None:
            return
        self._entered += 1
        self._frames += (Frame(self._paths[module], self._entered),)
        if module in self._leaves:
            self._leaf = module
            with torch._C.DisableTorchFunction():
                self._state = torch_rng_bytes()

    def leave(
        self, module: nn.Module, args: Any, kwargs: dict[str, Any], result: Any
    ) -> Any:
        """Note that a module has ended; return what a leaf gives."""
        if module not in self._paths or self._leaf not in (None, module):
            return None
        path = self._frames[-1].path
        self._frames = self._frames[:-1]
        if self._leaf is None:
            return None
        self._leaf = None
        name = getattr(module, "original_name", type(module).__name__)
        call = Call(
            name,
            module,
            args,
            kwargs,
            False,
            path,
            self._frames,
            module,
            result,
            self._state,
        )
        with torch._C.DisableTorchFunction():
            return self._handle(call)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a tree of tuples, lists, dictionaries and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, set)):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from tensors(list(vars(value).values()))


def _map_tensors(tree: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return a tree of tuples, lists, dictionaries and slices with its tensors changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _map_tensors(part, change) for key, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        parts = [_map_tensors(part, change) for part in tree]
        return getattr(type(tree), "_make", type(tree))(parts)
    if isinstance(tree, slice):
        return slice(*_map_tensors((tree.start, tree.stop, tree.step), change))
    return tree


def _values_in(tree: Any) -> Iterator[Value]:
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, dict):
        yield from _values_in(list(tree.values()))
    elif isinstance(tree, slice):
        yield from _values_in((tree.start, tree.stop, tree.step))
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            yield from _values_in(part)


class Extent(int):
    """A size that the model read from a shape, or computed from such."""


def _arithmetic(name: str) -> Any:
    plain = getattr(int, name)

    def method(self: Any, *others: Any) -> Any:
        result = plain(self, *others)
        return Extent(result) if type(result) is int else result

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod", "neg", "pow"):
    for _form in (f"__{_name}__", f"__r{_name}__"):
        if hasattr(int, _form):
            setattr(Extent, _form, _arithmetic(_form))


def _as_extents(result: Any) -> Any:
    if type(result) is int:
        return Extent(result)
    return torch.Size(map(Extent, result)) if isinstance(result, torch.Size) else result
