"""Run a model without leaving a trace in it.

A forward pass may change more than it returns: buffers (running statistics, observers, power
iterations), attributes (caches, counters), lists and dictionaries that attributes hold, random
generators. `SavedState` notes all of these and puts them back, so that a call on a user's model
leaves parameters, buffers, attributes, hooks, modes, gradients and generators as they were, also
after an exception or Ctrl-C.
"""

from __future__ import annotations

import copy
import functools
import random
import signal
import sys
import threading
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from overt._check import InputError, InputTypeError
from overt.nn.data.models import (
    MODEL_LOCK,
    Statistics,
    check_model,
    disable_fast_attention,
    is_normalization,
    preserve_rng,
    seed_torch,
)

Output = Callable[[Any], Any] | None
P = ParamSpec("P")
R = TypeVar("R")

MAX_OBJECTS = 20_000
"""Python objects that are searched for state: enough for any model, few enough to take 10 ms."""

_PLAIN = {str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device}
_CONTAINERS = {dict, OrderedDict, list, set, deque}
_ATOMIC = (
    *_PLAIN,
    type,
    ModuleType,
    nn.Module,
    nn.Parameter,
    torch.Size,
    torch.jit.ScriptFunction,
)
_CODE = (FunctionType, MethodType, BuiltinFunctionType)


# -- calling a model ----------------------------------------------------------------------------


def never_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Let compiled code call a function as it is: a compiled pass cannot be recorded.

    torch.compiler.disable as a decorator would import dynamo with overt.nn, which takes a second.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        result: R = torch.compiler.disable(function)(*args, **kwargs)
        return result

    wrapper._torchdynamo_disable = True  # type: ignore[attr-defined]
    return wrapper


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call the model on a tensor, on a tuple or list of arguments, or on a mapping of them."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def select_output(result: Any, output: Output) -> Tensor:
    """Return the output that counts: one floating-point tensor."""
    selected = result if output is None else output(result)
    if isinstance(selected, Tensor) and selected.is_floating_point():
        return selected
    kind = type(selected).__name__
    if isinstance(selected, Tensor):
        kind = f"a tensor of {selected.dtype}"
    raise InputError(
        f"model must return one floating-point tensor, got {kind}; select it with output=, such "
        "as output=lambda o: o.logits"
    )


def check_call(model: Any, x: Any, output: Any = None) -> nn.Module:
    """Return the model without wrappers after checking it and its inputs."""
    if output is not None and not callable(output):
        raise InputTypeError(
            f"output must be a function of the model's result, got {output!r:.60}"
        )
    with MODEL_LOCK:  # another thread may be putting the model back
        model = check_model(model)
        weights = dict(model.named_parameters())
    for name, weight in weights.items():
        if weight.is_complex():
            raise InputTypeError(
                f"model must have real weights, {name} is {weight.dtype}"
            )
    _check_inputs(x)
    return model


def _check_inputs(x: Any) -> None:
    given = input_tensors(x)
    if not given or not isinstance(x, (Tensor, tuple, list, Mapping)):
        raise InputTypeError(
            f"x must be a tensor, or a tuple or mapping of inputs with tensors, got "
            f"{type(x).__name__}; torch.as_tensor makes a tensor of an array"
        )
    for tensor in given:
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested:
            raise InputTypeError(
                f"x must be dense and hold numbers, got {tensor.layout} on {tensor.device}"
            )
    if isinstance(x, Tensor):
        smallest = 2 if x.is_floating_point() else 1
        if x.ndim < smallest or len(x) == 0:
            raise InputError(
                f"x must have a batch axis and at least one row, got {tuple(x.shape)}"
            )


def input_tensors(x: Any) -> list[Tensor]:
    """Return the tensors among the inputs."""
    parts = dict(x) if isinstance(x, Mapping) else x
    return [leaf for leaf in pytree.tree_leaves(parts) if isinstance(leaf, Tensor)]


def raise_if_model_fails(
    model: nn.Module, x: Any, output: Output, error: Exception
) -> None:
    """Raise an InputError if the model cannot be run on x at all; else return."""
    try:
        with untouched(model) as saved:
            saved.plain_pass(x, output)
    except InputError:
        raise
    except Exception as reason:
        shapes = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in input_tensors(x))
        first = (str(reason).splitlines() or ["no reason given"])[0]
        raise InputError(
            f"the model cannot be run on x of {shapes}: {type(reason).__name__}: {first}"
        ) from error


def call_key(model: nn.Module, x: Any) -> Any:
    """Return what decides which operations a pass runs, but for the values of tensors.

    Two calls with equal keys differ in inputs and trained weights only. None if an input is an
    object that may decide, too.
    """
    leaves, structure = pytree.tree_flatten(dict(x) if isinstance(x, Mapping) else x)
    places = {id(leaf): i for i, leaf in enumerate(leaves)}
    key: list[Any] = [structure, torch.get_default_dtype()]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            place = places[id(leaf)]
            autocast = torch.is_autocast_enabled(leaf.device.type)
            key += [leaf.shape, leaf.dtype, leaf.device, place, autocast]
        elif type(leaf) in _PLAIN:
            key.append(leaf)
        else:
            return None
    for module in model.modules():
        key.append(id(module))
        key += vars(module)
        key += map(_mark, vars(module).values())
    return key


def _mark(value: Any, *, content: bool = True) -> Any:
    """Return what changes with an attribute of a module, or with the content of a container."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        return id(value), 0 if value.requires_grad else value._version
    if content and isinstance(value, (list, dict, set, deque)):
        items = value.values() if isinstance(value, dict) else value
        return [*map(id, value), *(_mark(item, content=False) for item in items)]
    return id(value)


class _CopyTensors(TorchFunctionMode):  # type: ignore[misc]
    """Let deepcopy convert each tensor, also one that is not a leaf of autograd."""

    def __init__(self, convert: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.convert = convert

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            memo[id(tensor)] = self.convert(tensor)
        return memo[id(tensor)]


def copy_inputs(x: Any, convert: Callable[[Tensor], Tensor] | None = None) -> Any:
    """Return a deep copy of the inputs for one pass, caches and other objects included."""
    convert = convert or _detached_clone
    if isinstance(x, Tensor):
        return convert(x)
    with _CopyTensors(convert):
        return copy.deepcopy(x)


def _detached_clone(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


# -- random generators --------------------------------------------------------------------------


def seed_all(seed: int) -> None:
    """Seed the global generators of torch, Python and NumPy."""
    seed_torch(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


def _generator_state(value: Any) -> Any:
    """Return the state of a random generator, None if the object is none."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return copy.deepcopy(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    if isinstance(value, random.Random):
        return value.getstate()
    return None


def _set_generator_state(value: Any, state: Any) -> None:
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, random.Random):
        value.setstate(state)
    else:
        value.set_state(state)


# -- Ctrl-C -------------------------------------------------------------------------------------


class Interrupts:
    """Holds Ctrl-C back; long loops ask `pending` between passes and stop."""

    def __init__(self) -> None:
        self.pending = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember that Ctrl-C was pressed."""
        self.pending = True


@contextmanager
def hold_interrupts() -> Iterator[Interrupts]:
    """Delay Ctrl-C until the block has ended: a half-restored model would be worse.

    Only the main thread receives signals; in others nothing is to be done.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts.note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupts.pending:
            raise KeyboardInterrupt


# -- the state of a model -----------------------------------------------------------------------


class SavedState:
    """State of a model that a pass may change.

    `isolate` hands the model copies of its buffers and tensor attributes, so that the originals
    are never written to; `restore` puts everything back. Random generators and the counters of
    seeded noise layers move on from pass to pass, and are put back at the end.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.interrupts = Interrupts()
        self.copy_parameters: bool | None = None
        """Whether passes write to parameters; None: not known yet, copies are made to find out."""
        self._copies: list[Tensor] = []
        self.modules = list(model.modules())
        self._vars: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._empty: list[Any] = []
        self._tensors: list[tuple[Tensor, Tensor, int]] = []
        self._generators: list[tuple[Any, Any]] = []
        self._scripted: list[tuple[nn.Module, bool]] = []
        self._grads = [(p, p.grad) for p in model.parameters()]
        self.counters: dict[int, Tensor] = {}
        """Counters of seeded noise layers as the last pass left them, by id of the original."""
        self._seen: set[int] = set()
        for module in self.modules:
            self._save_module(module)

    def _save_module(self, module: nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            self._scripted.append((module, module.training))
            for buffer in module.buffers(recurse=False):
                self._tensors.append((buffer, buffer.clone(), buffer._version))
            return
        own = vars(module)
        self._vars.append((own, dict(own)))
        self._containers.append((own["_modules"], dict(own["_modules"])))
        todo = deque(value for name, value in own.items() if name != "_modules")
        while todo and len(self._seen) < MAX_OBJECTS:
            value = todo.popleft()
            if type(value) in _PLAIN:  # most attributes: this is fast
                continue
            if type(value) in _CONTAINERS and not value:
                # Most containers of a module are hooks that nobody uses.
                self._empty.append(value)
            elif id(value) not in self._seen and not isinstance(value, _ATOMIC):
                self._seen.add(id(value))
                todo.extend(self._save_object(value))

    def _save_object(self, value: Any) -> Any:
        """Save one object; return the objects that it holds."""
        if isinstance(value, Tensor):
            self._tensors.append((value, value.detach().clone(), value._version))
            return ()
        if isinstance(value, (list, deque, set)):
            self._containers.append((value, copy.copy(value)))
            return value
        if isinstance(value, tuple):
            return value
        if isinstance(value, dict):
            self._containers.append((value, dict(value)))
            return value.values()
        if self.save_generator(value):
            return ()
        inner = getattr(value, "__dict__", None)
        if isinstance(inner, dict) and not isinstance(value, _CODE):
            self._containers.append((inner, dict(inner)))
            return inner.values()
        return ()

    def save_generator(self, value: Any) -> bool:
        """Note the state of a random generator that is not yet known; return if it is one."""
        state = _generator_state(value)
        if state is not None and not any(
            value is known for known, _ in self._generators
        ):
            self._generators.append((value, state))
        return state is not None

    def isolate(self, *, copy_parameters: bool = False) -> None:
        """Give the model copies of all tensors that a pass could write to."""
        copies: dict[int, Tensor] = {}

        def fresh(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            if id(tensor) not in copies:  # tied tensors stay tied
                copy = self.counters.get(id(tensor), tensor).detach().clone()
                if isinstance(tensor, nn.Parameter):
                    copy = nn.Parameter(copy, tensor.requires_grad)
                copies[id(tensor)] = copy
            return copies[id(tensor)]

        kinds = ("_buffers", "_parameters") if copy_parameters else ("_buffers",)
        for own, _ in self._vars:
            for kind in kinds:
                own[kind] = {name: fresh(tensor) for name, tensor in own[kind].items()}
            for name, value in own.items():
                if type(value) is Tensor:
                    own[name] = fresh(value)
        found = copies.values()
        self._copies = [copy for copy in found if isinstance(copy, nn.Parameter)]

    def set_modes(self, *, noise: bool, statistics: Statistics = "running") -> None:
        """Switch noise on or off; normalization uses running or batch statistics, or its mode."""
        for module in self.modules:
            training = noise
            if is_normalization(module):
                if statistics == "as set":
                    continue
                training = statistics == "batch"
            if isinstance(module, torch.jit.ScriptModule):
                module.training = training
            else:
                vars(module)["training"] = training

    def restore(self, *, final: bool = True) -> None:
        """Put everything back; generators and counters of noise layers only if `final`."""
        for own, saved in self._vars:
            own.clear()
            own.update(saved)
        for value in self._empty:
            if value:
                value.clear()
        for value, saved in self._containers:
            _restore_container(value, saved)
        for tensor, saved, version in self._tensors:
            if tensor._version != version:
                tensor.detach().copy_(saved)
        for module, training in self._scripted:
            module.training = training
        for parameter, grad in self._grads:
            if parameter.grad is not grad:
                parameter.grad = grad
        if final:
            for value, state in self._generators:
                _set_generator_state(value, state)

    def changed_buffers(self) -> list[tuple[Tensor, Tensor]]:
        """Return the model's own buffers beside what they are in the running pass."""
        pairs = []
        for own, saved in self._vars:
            for name, original in saved["_buffers"].items():
                current = own["_buffers"].get(name)
                if original is not None and current is not None:
                    pairs.append((original, current))
        return pairs

    def changed_values(self) -> list[tuple[Any, dict[str, Any]]]:
        """Return attributes, and dicts that they hold, with their new plain values."""
        found = []
        for own, before in (*self._vars, *self._containers):
            if isinstance(own, dict):
                values = {
                    name: value
                    for name, value in own.items()
                    if type(value) in _PLAIN and value is not before.get(name, own)
                }
                values.pop("training", None)
                found.append((own, values))
        return found

    def python_generators_moved(self) -> bool:
        """Whether a NumPy or Python generator of the model has moved."""
        for value, state in self._generators:
            if isinstance(value, torch.Generator):
                continue
            if repr(_generator_state(value)) != repr(state):
                return True
        return False

    def prepare(
        self,
        *,
        noise: bool = True,
        statistics: Statistics = "running",
        copy_parameters: bool = False,
    ) -> None:
        """Put the model into the state that a pass starts from."""
        self.restore(final=False)
        self.isolate(copy_parameters=copy_parameters)
        self.set_modes(noise=noise, statistics=statistics)

    def plain_pass(
        self,
        x: Any,
        output: Output,
        *,
        noise: bool = True,
        statistics: Statistics = "running",
        grad: bool = False,
    ) -> Tensor:
        """Return the output of one ordinary pass from the model's own state."""
        unknown = self.copy_parameters is None
        if unknown and grad:  # a pass on copies has no gradients at the parameters
            self.plain_pass(x, output, noise=noise, statistics=statistics)
            unknown = False
        copied = unknown or bool(self.copy_parameters)
        self.prepare(noise=noise, statistics=statistics, copy_parameters=copied)
        convert = Tensor.clone if grad else None
        with (
            torch.set_grad_enabled(grad),
            disable_fast_attention(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # the user sees them when he runs the model
            result = call_model(self.model, copy_inputs(x, convert))
            found = select_output(result, output)
        if unknown:
            self.copy_parameters = any(copy._version for copy in self._copies)
        for own, saved in self._vars:
            original = saved["_buffers"].get("draws")
            if original is not None and "draws" in own["_buffers"]:
                self.counters[id(original)] = own["_buffers"]["draws"]
        return found.clone() if grad else found.detach().clone()


def _restore_container(value: Any, saved: Any) -> None:
    """Give a container its former content, if that has changed."""
    if isinstance(value, dict):
        same = len(value) == len(saved) and all(
            name in value and value[name] is item for name, item in saved.items()
        )
        if not same:
            value.clear()
            value.update(saved)
    elif isinstance(value, set):
        if value != saved:
            value.clear()
            value.update(saved)
    elif len(value) != len(saved) or any(
        a is not b for a, b in zip(value, saved, strict=True)
    ):
        value.clear()
        value.extend(saved)


@contextmanager
def untouched(model: nn.Module) -> Iterator[SavedState]:
    """Let passes of a model do what they do; afterwards everything is as it was."""
    with MODEL_LOCK, hold_interrupts() as interrupts, preserve_rng():
        saved = SavedState(model)
        saved.interrupts = interrupts
        try:
            saved.isolate()
            yield saved
        finally:
            saved.restore()
