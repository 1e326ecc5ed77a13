"""The mechanism of recording: each call that a model makes is passed to a function as it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from overt.nn.data.models import disable_checkpointing, disable_fast_attention, unwrap_model
from overt.nn.data.rng import torch_rng_bytes
from overt.nn.layers.base import NoiseLayer
from overt.nn.recording import operations
from overt.nn.recording.operations import Kind

Leaves = Callable[[str, nn.Module], bool]


class Frame(NamedTuple):
    """A forward pass of a module within that of the model: its path, and a number of its own."""

    path: str
    number: int


@dataclass(frozen=True, eq=False)
class Call:
    """One call that a model makes, as `watch` shows it.

    `result` and `drew` are set for whole modules only.
    """

    name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: str
    within: nn.Module
    inplace: bool = False
    leaf: nn.Module | None = None
    result: Any = None
    drew: bool = False  # of a scripted module: whether it drew from torch's generator
    frames: tuple[Frame, ...] = ()

    @property
    def kind(self) -> Kind:
        """The table's row."""
        return operations.kind(self.name)

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument, given by place or by name."""
        return argument(self.args, self.kwargs, place, name, default)

    def named(self) -> dict[str, Any]:
        """Return the arguments by name, as far as the names are known."""
        # A module's own call takes anything; and what is known of functions would hold on to it.
        names = operations.parameters(self.function) if self.leaf is None else ()
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    @property
    def training(self) -> bool | None:
        """What the function was told about its mode."""
        given = self.named()
        told = given.get("training", given.get("train"))
        return told if isinstance(told, bool) else None

    def run(self) -> Any:
        """Do what the model asked for."""
        return self.result if self.leaf is not None else self.function(*self.args, **self.kwargs)


def watch(
    model: nn.Module,
    inputs: Any,
    handle: Callable[[Call], Any],
    *,
    output: Callable[[Any], Any] | None = None,
    leaves: Leaves | None = None,
    extents: bool = False,
) -> Any:
    """Run the model and let `handle` say what comes out of each call; return the model's output.

    `output` picks what counts of it, or makes it: its calls are shown too.
    """
    model = unwrap_model(model)
    watcher = _Watcher(handle, extents)
    with ExitStack() as stack:
        stack.enter_context(disable_fast_attention())
        stack.enter_context(disable_checkpointing())
        model = _shown(model, stack)
        for name, module in model.named_modules():
            leaf = isinstance(module, _Scripted) or (leaves is not None and leaves(name, module))
            watcher.modules[module] = name, leaf
        with hooked(watcher.modules, watcher.enter, watcher.leave, kwargs=True), watcher:
            result = called(model, inputs)
            return result if output is None else output(result)


@contextmanager
def hooked(
    modules: Iterable[nn.Module], before: Any = None, after: Any = None, *, kwargs: bool = False
) -> Iterator[None]:
    """Call before(module, args) and after(module, args, output) at each pass of some modules.

    With `kwargs` the latter is told them, after `args`. Torch's own handles for hooks are slow.
    """
    key, hung = object(), list(modules)
    try:
        for module in hung:
            if before is not None:
                module._forward_pre_hooks[key] = before
            if after is not None:
                module._forward_hooks[key] = after
                if kwargs:
                    module._forward_hooks_with_kwargs[key] = True
        yield
    finally:
        for module in hung:
            module._forward_pre_hooks.pop(key, None)
            module._forward_hooks.pop(key, None)
            module._forward_hooks_with_kwargs.pop(key, None)


class _Scripted(nn.Module):  # type: ignore[misc]
    """Stands for a scripted module: what happens inside is not seen, but its calls are."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        object.__setattr__(self, "inner", inner)  # not as a part

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the scripted module."""
        return self.inner(*args, **kwargs)


def _shown(model: nn.Module, stack: ExitStack) -> nn.Module:
    """Put something that can be watched in the place of scripted modules, until the stack ends."""
    if isinstance(model, torch.jit.ScriptModule):
        return _Scripted(model)
    for module in list(model.modules()):
        if not isinstance(module, torch.jit.ScriptModule):
            for name, part in module._modules.items():
                if isinstance(part, torch.jit.ScriptModule):
                    module._modules[name] = _Scripted(part)
                    stack.callback(module._modules.__setitem__, name, part)
    return model


class NoiseNames:
    """Names for the noises of one pass, in the order in which they are met."""

    def __init__(self) -> None:
        self._met: Counter[str] = Counter()

    def of(self, call: Call, random: bool) -> str | None:
        """Return the name of the noise that a call belongs to, None if it is none.

        `random` says whether it drew anything.
        """
        noisy = random or call.kind.values == "random"
        if is_noise(call.within) and (noisy or call.leaf is not None):
            return call.module
        if not noisy:
            return None
        name = f"{call.module}:{call.name}" if call.module else call.name
        self._met[name] += 1
        return name if self._met[name] == 1 else f"{name}#{self._met[name]}"


def is_noise(module: Any) -> bool:
    """Whether the module is there to be random in training mode: dropout of any kind, RReLU."""
    known = (NoiseLayer, nn.modules.dropout._DropoutNd, nn.RReLU)
    return isinstance(module, known) and not isinstance(module, torch.jit.ScriptModule)


def called(model: nn.Module, inputs: Any) -> Any:
    """Call the model on a tensor, a tuple or a dictionary of inputs."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


PLAIN = frozenset((int, float, str, bool, type(None), torch.dtype, torch.device))


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a tree of tuples, lists, dictionaries and dataclasses."""
    found: list[Tensor] = []
    _gather((value,), found)
    return iter(found)


def _gather(parts: Iterable[Any], found: list[Tensor]) -> None:
    for part in parts:
        kind = type(part)  # asking whether something else is a tensor is slow
        if kind in PLAIN:
            continue
        if kind is Tensor or (kind is not tuple and kind is not dict and isinstance(part, Tensor)):
            found.append(part)
        elif isinstance(part, (tuple, list, set)):
            _gather(part, found)
        elif isinstance(part, dict):
            _gather(part.values(), found)
        elif is_dataclass(part) and not isinstance(part, type):
            _gather(vars(part).values(), found)


def mapped(value: Any, change: Callable[[Any], Any], kind: type = Tensor) -> Any:
    """Return a tree of tuples, lists, dictionaries and slices with its tensors changed.

    Or with whatever else of some kind is in it.
    """
    if type(value) in PLAIN:
        return value
    if type(value) is not tuple and isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(part, change, kind) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [mapped(part, change, kind) for part in value]
        return getattr(type(value), "_make", type(value))(parts)
    if isinstance(value, slice):
        ends = (value.start, value.stop, value.step)
        return slice(*(mapped(part, change, kind) for part in ends))
    return value


class Extent(int):
    """A size that the model read from a shape, or computed from such."""

    def _derived(self, result: Any) -> Any:
        return Extent(result) if type(result) in (int, Extent) else result


def _arithmetic(name: str) -> Any:
    plain = getattr(int, name)
    return lambda self, *others: self._derived(plain(self, *others))


for _name in ("add", "sub", "mul", "floordiv", "mod", "neg", "pow"):
    for _form in (f"__{_name}__", f"__r{_name}__"):
        if hasattr(int, _form):
            setattr(Extent, _form, _arithmetic(_form))


class _Watcher(TorchFunctionMode):  # type: ignore[misc]
    """Sees torch's functions and methods as they are called, and modules as they begin and end."""

    def __init__(self, handle: Callable[[Call], Any], extents: bool) -> None:
        super().__init__()
        self._handle, self._extents = handle, extents
        self.modules: dict[nn.Module, tuple[str, bool]] = {}  # names, and which are leaves
        self._within: list[tuple[Frame, Any]] = []
        self._frames: tuple[Frame, ...] = ()
        self._entered = 0
        self._leaf = 0
        self._state = b""  # of the generators, as a whole module begins

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._leaf:
            return func(*args, **kwargs)
        name, inplace = operations.canonical(func)
        if operations.kind(name).values == "question":
            result = func(*args, **kwargs)
            return _as_extents(result) if self._extents else result
        inplace = inplace or bool(kwargs.get("inplace"))
        frame, module = self._within[-1] if self._within else (Frame("", 0), None)
        call = Call(name, func, args, kwargs, frame.path, module, inplace, frames=self._frames)
        return self._handle(call)

    def enter(self, module: nn.Module, args: Any) -> None:
        name, leaf = self.modules[module]
        self._entered += 1
        self._within.append((Frame(name, self._entered), module))
        self._frames += (self._within[-1][0],)
        if isinstance(module, _Scripted):
            with torch._C.DisableTorchFunction():
                self._state = torch_rng_bytes()
        self._leaf += leaf

    def leave(self, module: nn.Module, args: Any, kwargs: dict[str, Any], result: Any) -> Any:
        name, leaf = self.modules[module]
        self._within.pop()
        self._frames = self._frames[:-1]
        self._leaf -= leaf
        if not leaf or self._leaf:
            return None
        label = getattr(module, "original_name", type(module).__name__)
        with torch._C.DisableTorchFunction():
            drew = isinstance(module, _Scripted) and torch_rng_bytes() != self._state
            call = Call(
                label,
                module,
                args,
                kwargs,
                name,
                module,
                leaf=module,
                result=result,
                drew=drew,
                frames=self._frames,
            )
            return self._handle(call)


def argument(args: Any, kwargs: Any, place: int, name: str, default: Any) -> Any:
    """Return an argument, given by place or by name."""
    return args[place] if len(args) > place else kwargs.get(name, default)


def _as_extents(result: Any) -> Any:
    if type(result) is int:
        return Extent(result)
    return torch.Size(map(Extent, result)) if isinstance(result, torch.Size) else result
