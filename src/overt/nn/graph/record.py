"""Record one forward pass as a list of functional ATen operations; run it again with new noise.

A dispatch mode below torch's functionalization sees every call of a pass: in-place writes and
views are already functional there, composite operations arrive in parts, arguments by schema. The
recording is made anew for each call, on the inputs that count, so that branches on certain values
are the right ones. Where noise decides what runs, `UnsupportedError` is raised: sample instead.

When a recording runs again, its certain part is as recorded. `torch.func.vmap` runs many samples at
once; each has separate noise because all noise is recorded in terms of the three operations that
vmap repeats for each sample.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from overt._check import InputError
from overt.nn.data.models import (
    Statistics,
    disable_fast_attention,
    python_rng_states,
    set_torch_rng,
    torch_rng_states,
)
from overt.nn.graph.state import (
    Output,
    SavedState,
    call_model,
    copy_inputs,
    select_output,
)

aten = torch.ops.aten
Decompose = Callable[[Any], Callable[..., Any] | None]
Whole = Callable[[nn.Module, Any], bool]

_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operations whose result, or the size of it, depends on values."""

_LEAVING = {
    Tensor.numpy,
    Tensor.tolist,
    Tensor.__array__,
    Tensor.__dlpack__,
    Tensor.data_ptr,
    Tensor.untyped_storage,
}
"""Methods by which numbers leave torch, where no operation sees them."""


class UnsupportedError(Exception):
    """The pass cannot be recorded or propagated, for a reason in words: sample instead."""


class OpInfo(NamedTuple):
    """What torch says of an operation by its tags, name and schema."""

    name: str
    draws: bool
    reads: bool
    pointwise: bool
    shape_only: bool


def op_info(func: Any) -> OpInfo:
    """Return what is known of an operation."""
    # These are not cached: they are equal as tuples, and would keep the module alive.
    if isinstance(func, LayerNoise):
        return OpInfo("mask", True, False, False, False)
    if isinstance(func, WholeModule):
        return OpInfo(type(func.module).__name__, False, False, False, False)
    return _aten_info(func)


@cache
def _aten_info(func: Any) -> OpInfo:
    name = func.overloadpacket.__name__
    tags = set(func.tags)
    return OpInfo(
        name=name,
        draws=torch.Tag.nondeterministic_seeded in tags,
        reads=bool(_READS & tags),
        pointwise=torch.Tag.pointwise in tags,
        shape_only=name.endswith("_like") or name.startswith("new_"),
    )


def op_schema(func: Any) -> Any:
    """Return the names and types of an operation's arguments and results."""
    return func._schema


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return functions by which torch expresses operations in others, by operation."""
    images = (aten._adaptive_avg_pool2d, aten.upsample_bilinear2d)
    # The table's own `get` looks at what was replaced only, so that it never finds anything.
    core = dict(core_aten_decompositions().items())
    return {**core, **get_decompositions(images)}


# -- random operations in terms of bernoulli, rand and randn -----------------------------------
#
# `torch.func.vmap` gives each sample its own numbers for these three. It silently shares the
# numbers of others: uniform and normal ones are therefore recorded in parts.

BASIC_DRAWS = {"bernoulli", "rand", "rand_like", "randn", "randn_like"}
"""Random operations that vmap repeats for each sample; a test shows it for each."""


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = aten.bernoulli(torch.empty_like(x), 1 - p)
    return x * (mask / (1 - p)), mask


def _rrelu(
    x: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[Tensor, Tensor]:
    if not training:
        return functional.leaky_relu(x, (lower + upper) / 2), noise
    slope = lower + (upper - lower) * torch.rand_like(x)
    return torch.relu(x) - slope * torch.relu(-x), noise


def _uniform(x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return low + (high - low) * torch.rand_like(x)


def _normal(x: Tensor, mean: Any = 0.0, sd: Any = 1.0, **_: Any) -> Tensor:
    return mean + sd * torch.randn_like(x)


def _normal_of(mean: Any, sd: Any = 1.0, **_: Any) -> Tensor:
    like = mean if isinstance(mean, Tensor) else sd
    return mean + sd * torch.randn_like(like)


def _normal_of_size(mean: float, sd: float, size: Any, **options: Any) -> Tensor:
    options.pop("generator", None)
    return mean + sd * torch.randn(size, **options)


_PARTS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _native_dropout,
    aten.rrelu_with_noise_functional.default: _rrelu,
    aten.uniform.default: _uniform,
    aten.normal_functional.default: _normal,
    aten.normal.Tensor_float: _normal_of,
    aten.normal.Tensor_Tensor: _normal_of,
    aten.normal.float_Tensor: _normal_of,
    aten.normal.float_float: _normal_of_size,
}


@cache
def decompose_draw(func: Any) -> Callable[..., Any] | None:
    """Return a random operation in terms of the basic ones, None for all others."""
    return _PARTS.get(func)


# -- recordings ----------------------------------------------------------------------------------


class LayerNoise(NamedTuple):
    """Stands for the operations of a noise layer that knows the covariance of its mask."""

    layer: nn.Module

    def __call__(self, x: Tensor) -> Tensor:
        """Apply a random mask."""
        return self.layer(x)


class WholeModule(NamedTuple):
    """Stands for the operations of a module that the caller wants to see as one."""

    module: nn.Module

    def __call__(self, x: Tensor) -> Tensor:
        """Run the module."""
        return self.module(x)


@dataclass(eq=False, slots=True)
class Call:
    """One operation: its arguments, its result in the recorded pass, and whether it is random.

    `inputs` are the tensors among the arguments. `noise` is the name of a random operation, empty
    for others.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[Tensor]
    out: Any
    noisy: bool
    noise: str = ""


@dataclass(eq=False)
class Recording:
    """The operations that the output depends on, in order.

    Attributes
    ----------
    inputs
        Pairs of tensors: as they occur in the calls, and as the user gave them.
    buffers
        Pairs of tensors: the model's buffers, and what the pass would have made of them.
    state
        Of torch's generators when the pass began.
    fixed
        Whether other inputs of the same shapes lead to the same operations, as far as torch shows:
        no number was read, and no buffer was changed.
    reused
        Whether the inputs are others than those that were recorded.
    values
        Dicts of the model's attributes, and the numbers and words that the pass put there.
    """

    calls: list[Call]
    output: Tensor
    inputs: list[tuple[Tensor, Tensor]]
    buffers: list[tuple[Tensor, Tensor]]
    state: list[Tensor] = field(repr=False)
    fixed: bool = False
    reused: bool = False
    values: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    @property
    def noises(self) -> tuple[str, ...]:
        """The names of all noises that reach the output, in order."""
        return tuple(call.noise for call in self.calls if call.noise)

    @property
    def signature(self) -> tuple[Any, ...]:
        """Operations and shapes: equal for two recordings of the same computation."""
        return tuple(
            (call.func, call.noisy, tuple(t.shape for t in tensors((call.out,))))
            for call in self.calls
        )


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of nested arguments; lists of sizes, which are many, hold none."""
    found = []
    for item in tree:
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple)) and item and type(item[0]) is not int:
            found += tensors(item)
    return found


class _NoiseNames:
    """Names of noises: the path of a dropout module, else path:function, numbered if repeated."""

    def __init__(self, model: nn.Module) -> None:
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.stack: list[tuple[str, bool]] = [("", False)]
        self.functions: list[str] = []
        self.counts: Counter[str] = Counter()

    def enter(self, module: nn.Module) -> None:
        """Note that a module begins to run."""
        path = self.paths.get(id(module), self.stack[-1][0])
        is_layer = isinstance(module, (nn.modules.dropout._DropoutNd, nn.RReLU))
        # Layers of DropPath have the attribute, those of overt the property.
        is_layer = is_layer or "drop_prob" in vars(module)
        for name in ("drop_prob", "mask_covariance"):
            is_layer = is_layer or hasattr(type(module), name)
        self.stack.append((path, is_layer))

    def leave(self) -> None:
        """Note that a module has ended."""
        self.stack.pop()

    def new(self, operation: str) -> str:
        """Return the name of a new random call."""
        path, is_dropout = self.stack[-1]
        name = path
        if not is_dropout or not path:
            function = self.functions[-1] if self.functions else operation
            name = f"{path}:{function}" if path else function
        self.counts[name] += 1
        count = self.counts[name]
        return name if count == 1 else f"{name}#{count}"


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Notes every call below functionalization."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import dynamo at the first use, which takes a second.
        return False

    def __init__(self, saved: SavedState, decompose: Decompose, whole: Whole) -> None:
        super().__init__()
        self.whole = whole
        # The input of the module that is recorded as one operation.
        self.given: Any = None
        self.calls: list[Call] = []
        self.noisy: set[int] = set()
        self.decompose = decompose
        self.note_generator = saved.save_generator
        self.names = _NoiseNames(saved.model)
        self.paused = 0
        self.has_read = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        info = op_info(func)
        self.has_read |= info.reads
        inputs = tensors((*args, *kwargs.values()) if kwargs else args)
        noisy = not info.shape_only and self.is_noisy(inputs)
        if noisy or info.draws:
            parts = self.decompose(func)
            if parts is not None:
                with self:
                    return parts(*args, **kwargs)
            if noisy and info.reads and self._noise_decides(info.name, args):
                raise UnsupportedError(f"{info.name} reads values that are random")
        generator = kwargs.get("generator")
        if generator is not None:
            self.note_generator(generator)
        out = func(*args, **kwargs)
        self.add(Call(func, args, kwargs, inputs, out, noisy or info.draws), info)
        return out

    def add(self, call: Call, info: OpInfo) -> None:
        """Append a call; mark its results if they are random."""
        if call.noisy:
            results = (call.out,)
            if info.name == "_pack_padded_sequence":  # the second result are lengths
                results = call.out[:1]
            self.noisy.update(map(id, tensors(results)))
        if info.draws:
            call.noise = self.names.new(info.name)
        self.calls.append(call)

    def is_noisy(self, inputs: list[Tensor]) -> bool:
        """Whether a random tensor is among these."""
        return not self.noisy.isdisjoint(map(id, inputs))

    def _noise_decides(self, name: str, args: Any) -> bool:
        """Whether noise decides on a size or is read; random entries may be indexed."""
        return self.is_noisy(
            tensors(args[1] if name in ("index", "index_put") else args)
        )


class _FunctionMode(TorchFunctionMode):  # type: ignore[misc]
    """Names the function that runs, and hands out numbers of certain tensors only."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        functions = self.recorder.names.functions
        functions.append(getattr(func, "__name__", "function"))
        try:
            if func in _LEAVING and torch._is_functional_tensor(args[0]):
                self.recorder.has_read = True
                inner = _inner(args[0])
                if id(inner) in self.recorder.noisy:
                    raise UnsupportedError(
                        f"{functions[-1]} reads values that are random"
                    )
                args = (inner, *args[1:])
            return func(*args, **(kwargs or {}))
        finally:
            functions.pop()


def _inner(tensor: Tensor) -> Tensor:
    """Return the tensor that a functional tensor stands for."""
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor)


def _inner_if_functional(tensor: Tensor) -> Tensor:
    return _inner(tensor) if torch._is_functional_tensor(tensor) else tensor


def knows_its_covariance(module: nn.Module, args: Any) -> bool:
    """Whether a noise layer's mask is correlated, with a covariance that the layer can state."""
    if not hasattr(type(module), "mask_covariance"):
        return False
    if not module.training or module.silent:
        return False
    return module.mask_covariance(tuple(args[0].shape)).matrix is not None


@contextmanager
def _module_hooks(recorder: _Recorder) -> Iterator[None]:
    """Follow which module runs; record some modules as one operation."""

    def enter(module: nn.Module, args: Any) -> None:
        recorder.names.enter(module)
        if recorder.paused:
            recorder.paused += 1
        elif recorder.whole(module, args):
            recorder.paused = 1
            recorder.given = _inner_if_functional(args[0])

    def leave(module: nn.Module, args: Any, result: Any) -> Any:
        if recorder.paused == 1 and isinstance(result, Tensor):
            if _inner_if_functional(result) is recorder.given:  # an identity
                result = result.clone()
            masks = knows_its_covariance(module, args)
            func = LayerNoise(module) if masks else WholeModule(module)
            inputs = [recorder.given]
            noisy = masks or recorder.is_noisy(inputs)
            made = _inner_if_functional(result)
            call = Call(func, tuple(inputs), {}, inputs, made, noisy)
            recorder.add(call, op_info(func))
        recorder.paused = max(0, recorder.paused - 1)
        recorder.names.leave()
        return result

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _recording(recorder: _Recorder) -> Iterator[None]:
    """Run without gradients, fused kernels or compiled code, and without in-place writes."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # the user sees them when he runs the model
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(disable_fast_attention())
        # torch.backends.mkldnn.flags would do the same with a warning about other hardware.
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if torch.cuda.is_initialized():  # cuDNN has recurrent layers as one operation
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        torch._enable_functionalization(reapply_views=True)
        stack.callback(torch._disable_functionalization)
        stack.enter_context(recorder)
        stack.enter_context(_FunctionMode(recorder))
        stack.enter_context(_module_hooks(recorder))
        yield


def _wrap_parameters(saved: SavedState) -> list[tuple[Tensor, Tensor]]:
    """Replace parameters and buffers by functional tensors; return parameters beside theirs."""
    wrappers: dict[int, tuple[Tensor, Tensor]] = {}

    def wrap(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        if id(tensor) not in wrappers:
            wrappers[id(tensor)] = (torch._to_functional_tensor(tensor), tensor)
        return wrappers[id(tensor)][0]

    for module in saved.modules:
        if isinstance(module, torch.jit.ScriptModule):
            continue
        own = vars(module)
        for kind in ("_parameters", "_buffers"):
            own[kind] = {name: wrap(tensor) for name, tensor in own[kind].items()}
        for name, value in own.items():
            if type(value) is Tensor:
                own[name] = wrap(value)
    return [pair for pair in wrappers.values() if isinstance(pair[1], nn.Parameter)]


def record(
    saved: SavedState,
    x: Any,
    output: Output,
    *,
    decompose: Decompose = decompose_draw,
    statistics: Statistics = "running",
    noise: bool = True,
    whole: Whole = knows_its_covariance,
) -> Recording:
    """Run the model once with its noise on or off, and return what its output depends on.

    Must run inside `untouched(model)`, which gives `saved`. `decompose` returns the parts of an
    operation that is to be recorded in parts, None for others. `whole(module, arguments)` says
    which modules of one tensor are recorded as one operation.
    """
    model = saved.model
    recorder = _Recorder(saved, decompose, whole)
    saved.prepare(noise=noise, statistics=statistics)
    outside = python_rng_states()
    state = torch_rng_states()
    with _recording(recorder):
        parameters = _wrap_parameters(saved)
        inputs: list[tuple[Tensor, Tensor]] = []

        def wrap_input(tensor: Tensor) -> Tensor:
            inner = tensor.detach().clone()
            inputs.append((inner, tensor))
            return torch._to_functional_tensor(inner)

        given = copy_inputs(x, wrap_input)
        try:
            result = select_output(call_model(model, given), output)
        except (UnsupportedError, InputError, MemoryError):
            raise
        except Exception as error:
            # Of functionalization or of the model: sampling will show it.
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UnsupportedError(reason[:100]) from error
        written = any(_inner(wrapper) is not tensor for wrapper, tensor in parameters)
        buffers = [
            (old, _inner_if_functional(new)) for old, new in saved.changed_buffers()
        ]
        result = _inner_if_functional(result)
    if python_rng_states() != outside or saved.python_generators_moved():
        raise UnsupportedError("it uses generators of Python or NumPy")
    saved.copy_parameters = written
    needed = _needed(recorder.calls, result)
    kept = all(old.shape == new.shape and torch.equal(old, new) for old, new in buffers)
    fixed = kept and not written and not recorder.has_read
    return Recording(needed, result, inputs, buffers, state, fixed)


def _needed(calls: list[Call], output: Tensor) -> list[Call]:
    """Return the calls that the output depends on."""
    wanted = {id(output)}
    needed = []
    for call in reversed(calls):
        if not wanted.isdisjoint(map(id, tensors((call.out,)))):
            wanted.update(map(id, call.inputs))
            needed.append(call)
    return needed[::-1]


def record_noise(
    saved: SavedState,
    x: Any,
    output: Output,
    *,
    decompose: Decompose = decompose_draw,
    statistics: Statistics = "running",
) -> Recording:
    """Return a recording in which everything random is recorded; else raise UnsupportedError."""
    recording = record(saved, x, output, decompose=decompose, statistics=statistics)
    check_for_hidden_noise(recording, saved, x, output, statistics)
    return recording


def check_for_hidden_noise(
    recording: Recording,
    saved: SavedState,
    x: Any,
    output: Output,
    statistics: Statistics,
) -> Tensor:
    """Raise UnsupportedError if something is random that was not recorded; return a sample.

    A plain pass from the same generator states must give the recorded output. It need not where
    masks have another order in memory; then two plain passes must agree with each other.
    """
    now = torch_rng_states()
    counters = dict(saved.counters)
    passes = []
    for _ in range(2):
        set_torch_rng(recording.state)
        saved.counters = dict(counters)
        passes.append(saved.plain_pass(x, output, statistics=statistics))
        if _close(passes[0], recording.output):
            break
    else:
        if not _close(*passes):
            raise UnsupportedError(
                "it uses a random generator that torch does not know"
            )
    set_torch_rng(now)
    return passes[0]


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    a, b = a.double(), b.double()
    scale = (
        float(b.abs().nan_to_num(posinf=0.0, neginf=0.0).amax()) if b.numel() else 0.0
    )
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)


# -- recordings that run again ---------------------------------------------------------------------

MAX_ENTRIES = 2**25
"""Entries of all random tensors of the samples that run at once: 128 MB in single precision.

Fewer at once cost more: transformers of four rows .6 passes a sample at 2^22, .35 at 2^25."""

PLAIN_PASSES = 16
"""Ordinary passes that are handed out together."""


def _expand_source(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(x.dtype).expand(x.shape)


def _batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any
) -> Any:
    # The operation writes to its running statistics, which must stay as recorded.
    mean, var = (None if t is None else t.clone() for t in (mean, var))
    return aten.native_batch_norm.default(x, weight, bias, mean, var, *rest)


def _fill(x: Tensor, value: Any) -> Tensor:
    # Batched gradients of the operation itself print a warning from C++.
    return torch.zeros_like(x) + value


RERUN_AS = {
    aten.fill.Scalar: _fill,
    aten.fill.Tensor: _fill,
    aten.zero.default: torch.zeros_like,
    aten.native_batch_norm.default: _batch_norm,
    aten._embedding_bag_forward_only.default: aten._embedding_bag.default,  # has a gradient
    aten.view.default: torch.reshape,
    aten._unsafe_view.default: torch.reshape,
    aten.copy.default: _expand_source,
    # A detach would cut the gradient of a deviation; noise passes through it all the same.
    aten.detach.default: torch.clone,
    aten.lift_fresh.default: torch.clone,
}
"""Functions in place of operations that need the memory layout of the recorded pass."""


def map_tree(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to all leaves of nested arguments."""
    if isinstance(tree, dict):
        return {name: map_tree(item, function) for name, item in tree.items()}
    if not isinstance(tree, (list, tuple)):
        return function(tree)
    if isinstance(tree, list) and tree and type(tree[0]) is int:  # sizes
        return tree
    mapped = [
        # Most arguments are flat: a call for each would double the time.
        function(item) if isinstance(item, Tensor) else map_tree(item, function)
        for item in tree
    ]
    return type(tree)(mapped)


def store_results(made: dict[int, Any], recorded: Any, out: Any) -> None:
    """Note new values of a call's results; results without one are None."""
    before = tensors((recorded,))
    after = list(out) if isinstance(out, (list, tuple)) else [out]
    after += [None] * (len(before) - len(after))
    made.update(zip(map(id, before), after, strict=True))


def replay(recording: Recording) -> Tensor:
    """Return the output with new noise."""
    made: dict[int, Any] = {}

    def now(leaf: Any) -> Any:
        return made.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf

    for call in recording.calls:
        if call.noisy:
            function = RERUN_AS.get(call.func, call.func)
            kwargs = map_tree(call.kwargs, now)
            if "generator" in kwargs:  # the model's own, which must not move
                kwargs["generator"] = None
            out = function(*map_tree(tuple(call.args), now), **kwargs)
            store_results(made, call.out, out)
    output: Tensor = now(recording.output)
    return output


def sample(
    saved: SavedState,
    recording: Recording | None,
    x: Any,
    output: Output,
    count: int,
    statistics: Statistics = "running",
) -> Iterator[Tensor]:
    """Yield `count` sampled outputs in parts of shape (samples, *output).

    Many at once over a recording, else one ordinary pass after the other.
    """
    done = 0
    if recording is not None and all(
        _differs_by_sample(call.func) for call in recording.calls
    ):
        saved.prepare(statistics=statistics)
        entries = sum(
            t.numel() for c in recording.calls if c.noisy for t in tensors((c.out,))
        )
        chunk = max(1, MAX_ENTRIES // max(entries, 1))
        while done < count and not saved.interrupts.pending:
            size = min(chunk, count - done)
            try:
                part = _replay_many(recording, size)
            except UnsupportedError:
                break
            done += size
            yield part
    while done < count and not saved.interrupts.pending:
        size = min(PLAIN_PASSES, count - done)
        passes = [
            saved.plain_pass(x, output, statistics=statistics) for _ in range(size)
        ]
        if len({part.shape for part in passes}) > 1:
            raise UnsupportedError("the shape of the output is random")
        done += size
        yield torch.stack(passes)


def _differs_by_sample(func: Any) -> bool:
    """Whether vmap samples anew each time: not the mask of a layer with a seed."""
    if isinstance(func, LayerNoise):
        return getattr(func.layer, "seed", None) is None
    info = op_info(func)
    return not info.draws or info.name in BASIC_DRAWS


def _replay_many(recording: Recording, count: int) -> Tensor:
    def one(_: Tensor) -> Tensor:
        return replay(recording)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operations that vmap runs one by one
        try:
            found = torch.func.vmap(one, randomness="different")(torch.zeros(count))
        except (RuntimeError, NotImplementedError, ValueError) as error:
            raise UnsupportedError(str(error).splitlines()[0][:100]) from error
    return found
