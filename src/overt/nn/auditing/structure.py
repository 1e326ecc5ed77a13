"""What recorded passes show of a network: where it is affine, and what samples in training mode.

Walking back from the output shows through which affine operations, and which noise layers among
them, the output depends on what came before: the **tail** of the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from overt.nn.data.batches import Batch, Inputs, first_line, name_failing_inputs
from overt.nn.data.models import (
    python_rng_states,
    torch_rng_bytes,
)
from overt.nn.graph.record import (
    RERUN_AS,
    Call,
    Recording,
    UnsupportedError,
    WholeModule,
    map_tree,
    op_info,
    record,
    store_results,
    tensors,
)
from overt.nn.graph.state import SavedState, seed_all
from overt.nn.layers.recognized import (
    is_silent,
    is_unit_noise,
    is_weight_noise,
    known_noise,
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOVES = _names(
    "view _unsafe_view t transpose permute squeeze unsqueeze clone alias detach lift_fresh flip "
    "roll pixel_shuffle pixel_unshuffle channel_shuffle _to_copy"
)
"""Operations that give each entry once, in another order, shape or number format."""

SHIFTS = _names(
    "add sub rsub addmm baddbmm "
    "slice select split split_with_sizes unbind index index_select gather diagonal tril triu "
    "unfold constant_pad_nd masked_fill where slice_scatter select_scatter index_put copy cat "
    "stack"
)
"""Operations that add a constant where one argument depends on the inputs, or that leave entries
out or put constants beside them."""

LINEAR = _names(
    "expand repeat mm bmm mv dot convolution mean sum cumsum mul neg div avg_pool2d avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d "
    "upsample_trilinear3d native_batch_norm"
)
"""Other operations that are linear in one argument, all others being fixed."""


@dataclass(frozen=True, eq=False)
class Point:
    """A place on the way back from a tensor: the input `features` of an affine operation.

    `module` is None where that is no noise layer and no torch.nn.Linear. `shifted` says that a bias
    is added behind the place. `narrowest` is the fewest units that anything from here to the tensor
    passes through: no map behind this place has a larger rank.
    """

    call: Call
    module: nn.Module | None
    features: Tensor
    shifted: bool
    narrowest: int


def _is_whole(module: nn.Module, args: Any) -> bool:
    """Whether a module is one operation: nothing but its own code runs on its one input."""
    known = known_noise(module) or type(module).forward is nn.Linear.forward
    changed = "forward" in vars(module) or module._forward_pre_hooks
    return known and not changed and len(args) == 1 and isinstance(args[0], Tensor)


class Structure:
    """A recorded pass of some rows, and which of its tensors depend on the inputs."""

    def __init__(self, recording: Recording, rows: int) -> None:
        self.calls = recording.calls
        self.output = recording.output
        self._rows = rows
        self._dependent = {id(tensor) for tensor, _ in recording.inputs}
        self._makers: dict[int, Call] = {}
        for call in self.calls:
            if self.given(call):
                made = tensors((call.out,))
                self._dependent.update(map(id, made))
                self._makers.update((id(tensor), call) for tensor in made)

    def given(self, call: Call) -> list[Tensor]:
        """Return the arguments of an operation that depend on the inputs."""
        return [t for t in _arguments(call) if id(t) in self._dependent]

    def units(self, tensor: Tensor) -> int:
        """Return the number of entries per sample."""
        return tensor.numel() // self._rows

    def uses(self, module: nn.Module | None) -> list[Call]:
        """Return the calls of a module that is one operation."""
        return [call for call in self.calls if module_of(call) is module]

    def before_log_softmax(self) -> Tensor:
        """Return the output, before a final log_softmax if there is one."""
        maker = self._makers.get(id(self.output))
        if maker is None or op_info(maker.func).name != "_log_softmax":
            return self.output
        (before,) = self.given(maker)
        return before

    def walk_back(self, tensor: Tensor) -> tuple[list[Point], str]:
        """Return the affine operations of one input that lead to a tensor, nearest first.

        The second result names the operation in front of them, "" if that is the input.
        """
        points: list[Point] = []
        shifted = False
        narrowest = self.units(tensor)
        while id(tensor) in self._makers:
            call = self._makers[id(tensor)]
            given = self.given(call)
            if not _is_affine(call, given):
                return points, op_info(call.func).name.lstrip("_")
            (tensor,) = given
            shifted |= _adds_constant(call)
            narrowest = min(narrowest, self.units(tensor))
            points.append(Point(call, module_of(call), tensor, shifted, narrowest))
        return points, ""

    def jacobian(self, features: Tensor, output: Tensor) -> Tensor:
        """Return d output / d features of the first row, outputs x units, in double precision."""

        def first_output(x: Tensor) -> Tensor:
            made: dict[int, Any] = {id(features): x}

            def now(leaf: Any) -> Any:
                return made.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf

            for call in self.calls:
                if any(id(tensor) in made for tensor in _arguments(call)):
                    run = RERUN_AS.get(call.func, call.func)
                    args = map_tree(tuple(call.args), now)
                    result = run(*args, **map_tree(call.kwargs, now))
                    store_results(made, call.out, result)
            return made[id(output)][0].flatten()

        J = torch.autograd.functional.jacobian(first_output, features)
        return J[:, 0].flatten(1).double().cpu()


def _is_affine(call: Call, given: list[Tensor]) -> bool:
    """Return whether an operation is affine in the one tensor that depends on the inputs."""
    if len(given) != 1 or module_of(call) is not None:
        return len(given) == 1
    made = tensors((call.out,))
    if not all(tensor.is_floating_point() for tensor in (*given, made[0])):
        return False
    name = op_info(call.func).name
    if name in ("div", "native_batch_norm") and given[0] is not call.args[0]:
        return False
    if name == "native_batch_norm" and call.args[5]:  # the batch's statistics
        return False
    return name in MOVES or name in SHIFTS or name in LINEAR


def _arguments(call: Call) -> list[Tensor]:
    return tensors((*call.args, *call.kwargs.values()))


def module_of(call: Call) -> Any:
    """Return the module that an operation stands for, None for an operation of torch."""
    return call.func.module if isinstance(call.func, WholeModule) else None


def is_linear_map(call: Call) -> bool:
    """Return whether an operation applies a weight."""
    module = module_of(call)
    if module is not None:
        return not is_unit_noise(module)
    return op_info(call.func).name in ("mm", "addmm", "convolution")


def _adds_constant(call: Call) -> bool:
    """Return whether an affine operation may add a constant."""
    module = module_of(call)
    if module is not None:
        return getattr(module, "bias", None) is not None
    name = op_info(call.func).name
    if name == "convolution":
        return call.args[2] is not None
    return name in SHIFTS or name == "native_batch_norm"


def only_moves(call: Call) -> bool:
    """Return whether an operation only moves entries, or multiplies them by noise in training."""
    module = module_of(call)
    return op_info(call.func).name in MOVES if module is None else is_unit_noise(module)


ENTRYWISE = ("dropout", "alpha_dropout", "scaled_dot_product_attention")
"""Functions that sample separately for every entry, hence for every row."""

REPEATS = 4
"""Passes from the same RNG states. A coin of a private generator is missed one time in eight."""


@dataclass(frozen=True, eq=False)
class NoiseSource:
    """A module that is random in training mode: a known noise layer, or one that samples inside.

    `entrywise` says that all it samples is dropout of single entries of what depends on the inputs.
    The mode of the module switches the noise on and off.
    """

    name: str
    module: nn.Module
    kind: str
    entrywise: bool = False

    @property
    def known(self) -> bool:
        """Whether it is a layer whose moments are known."""
        return known_noise(self.module)

    @property
    def silent(self) -> bool:
        """Whether it is known to sample nothing."""
        return self.known and is_silent(self.module)

    @property
    def shared_by_rows(self) -> bool:
        """Whether the rows of a batch may share what is sampled."""
        if not self.known:
            return not self.entrywise
        if is_weight_noise(self.module):
            return not getattr(self.module, "per_sample", False)
        return 0 in getattr(self.module, "shared_axes", ())


Events = list[tuple[str, bool]]
"""What happens in a pass, in order: a module's path, and whether its own code samples (or it is
called)."""


def _count(events: Events, *, samples: bool) -> Counter[str]:
    """Return how often each module's own code samples, or how often it is called."""
    return Counter(path for path, event in events if event is samples)


@dataclass(frozen=True, eq=False)
class Inspection:
    """Everything that samples in training mode, in the order of the pass, and a pass without noise.

    `inputs` are those of the passes, `outputs` the entries of the output per row. `always_on` names
    what samples in evaluation mode too, `skipped` gives reasons for what is left out. `decides`
    says that noise may decide which operations run, as far as that was looked for.
    """

    inputs: Inputs
    outputs: int
    structure: Structure | str  # or why there is no recording
    sources: list[NoiseSource]
    training: Events
    always_on: list[str]
    skipped: list[tuple[str, str]]
    decides: bool

    def calls(self, name: str) -> int:
        """Return how often a pass in training mode calls a module."""
        return _count(self.training, samples=False)[name]

    def unknown_noise_behind(self, name: str) -> bool:
        """Return whether a noise with unknown moments is sampled behind the layer of this name."""
        last = max(i for i, (path, _) in enumerate(self.training) if path == name)
        unknown = {(source.name, True) for source in self.sources if not source.known}
        return not unknown.isdisjoint(self.training[last + 1 :])


def inspect_batch(saved: SavedState, batch: Batch, *, squared: bool) -> Inspection:
    """Inspect passes of two rows, or of the batch where the model fixes their number.

    Whether noise decides which operations run matters for a squared loss.
    """
    try:
        return _inspect(saved, batch.inputs.first(2), squared=squared)
    except Exception:  # as of a graph's nodes; or the model is wrong
        with name_failing_inputs(batch.inputs, batch.where):
            return _inspect(saved, batch.inputs, squared=squared)


def _inspect(saved: SavedState, inputs: Inputs, *, squared: bool) -> Inspection:
    model = saved.model
    parts = dict(model.named_modules())
    given = (inputs.given, inputs.output)
    structure: Structure | str
    try:
        evaluation, recording = follow_modules(
            model, lambda: record(saved, *given, noise=False, whole=_is_whole)
        )
        structure = Structure(recording, len(inputs))
        output = structure.output
    except UnsupportedError as error:
        structure = f"the pass cannot be recorded: {error}"
        evaluation, output = follow_modules(
            model, lambda: saved.plain_pass(*given, noise=False)
        )
    always_on = list(_count(evaluation, samples=True))
    why = (
        "something samples in evaluation mode too, as functional dropout does without "
        "training=self.training: this noise is in every number here"
    )
    skipped = [(path or "forward", why) for path in always_on]
    training = evaluation
    functions: dict[str, list[str]] = {}
    decides = True
    try:
        training, first = follow_modules(model, lambda: _seeded_pass(saved, inputs))
        others = [_seeded_pass(saved, inputs) for _ in range(REPEATS - 1)]
        if not all(_same(first, other) for other in others):
            why = "it samples from a private generator: this noise is left out"
            skipped.append(("training mode", why))
        sampling = _count(training, samples=True)
        if squared or not all(known_noise(parts[path]) for path in sampling):
            recording = record(saved, *given)
            functions = _sampling_functions(parts, Structure(recording, len(inputs)))
            decides = False
    except UnsupportedError:  # the noise decides what runs, or is not torch's
        pass
    except Exception as error:  # whatever the model's code raises in training mode
        why = f"noise of other kinds is not looked for: {first_line(error)}"
        skipped.append(("training mode", why))
    called = _count(training, samples=False)
    sources: dict[str, NoiseSource] = {}
    for path, samples in training:
        module = parts[path]
        if path in sources:
            continue
        if known_noise(module):
            sources[path] = NoiseSource(path, module, str(module))
        elif samples and path not in always_on:
            sources[path] = _unknown_source(path, module, functions.get(path, []))
    for path, part in parts.items():
        if known_noise(part) and path not in called:
            skipped.append((path, "not reached by the forward pass"))
    return Inspection(
        inputs=inputs,
        outputs=output.numel() // len(inputs),
        structure=structure,
        sources=list(sources.values()),
        training=training,
        always_on=always_on,
        skipped=skipped,
        decides=decides,
    )


def _unknown_source(path: str, module: nn.Module, names: list[str]) -> NoiseSource:
    """Return a module that samples with functions of these names."""
    kind = str(module)
    if list(module.children()):
        calls = ", ".join(dict.fromkeys(names)) or "sampling"
        kind = f"{calls} in {type(module).__name__}"
    entrywise = bool(names) and all(name in ENTRYWISE for name in names)
    return NoiseSource(path, module, kind, entrywise)


def follow_modules(
    model: nn.Module,
    run: Callable[[], Any],
    states: Callable[[], Any] = torch_rng_bytes,
) -> tuple[Events, Any]:
    """Run a pass; note which modules are called, and which of them move a generator.

    Generators of Python and NumPy, which take long to read, are followed only if they move.
    """
    paths = {module: path for path, module in model.named_modules()}
    found: Events = []
    stack = [""]
    state: Any = None
    hooks: list[Any] = []
    python = python_rng_states()

    def note() -> None:
        nonlocal state
        before, state = state, states()
        if before is not None and before != state:
            found.append((stack[-1], True))

    def enter(module: nn.Module, args: Any) -> None:
        if module not in paths:
            return
        note()
        stack.append(paths[module])
        found.append((stack[-1], False))
        # Scripted modules have no hooks. A module's hook may sample: ours comes behind it.
        if not isinstance(module, torch.jit.ScriptModule):
            hooks.append(module.register_forward_hook(leave))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        note()
        stack.pop()
        hooks.pop().remove()

    def leave_scripted(module: nn.Module, args: Any, output: Any) -> None:
        if module in paths and isinstance(module, torch.jit.ScriptModule):
            note()
            stack.pop()

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave_scripted),
    ]
    try:
        result = run()
        note()
    finally:
        for handle in (*handles, *hooks):
            handle.remove()
    if states is torch_rng_bytes and python_rng_states() != python:
        return follow_modules(model, run, _all_rng_states)
    return found, result


def _all_rng_states() -> Any:
    return torch_rng_bytes(), python_rng_states()


def _seeded_pass(saved: SavedState, inputs: Inputs) -> Tensor:
    """Return the output under noise from fixed states of all known generators."""
    seed_all(0)
    saved.counters = {}
    return saved.plain_pass(inputs.given, inputs.output)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, equal_nan=True)


def _sampling_functions(
    parts: dict[str, nn.Module], structure: Structure
) -> dict[str, list[str]]:
    """Return the functions that each module samples with in a recorded pass."""
    found: dict[str, list[str]] = {}
    for call in structure.calls:
        if not call.noise:
            continue
        path, _, function = call.noise.partition("#")[0].rpartition(":")
        if not path and function in parts:  # a dropout module has its path alone
            path = function
            module = parts[path]
            entrywise = isinstance(module, (nn.Dropout, nn.AlphaDropout))
            function = "dropout" if entrywise else type(module).__name__
        if not structure.given(call):  # what rows share
            function += " of a constant"
        found.setdefault(path, []).append(function)
    return found


def drop_prob_of(module: Any) -> float | None:
    """Return the nominal drop probability, None for noise that has none."""
    value = getattr(module, "drop_prob", getattr(module, "p", None))
    return float(value) if isinstance(value, (int, float)) else None
