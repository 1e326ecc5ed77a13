"""Recorded passes of a network: where it is affine, and what samples in training mode.

Walking back from the output shows through which affine operations, and which noise layers among
them, the output depends on what came before: the **tail** of the network.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from overt.nn.data.batches import Batch, Inputs, first_line, name_failing_inputs
from overt.nn.data.models import is_normalization, restore_training, set_torch_rng
from overt.nn.graph.record import (
    RERUN_AS,
    Call,
    Recording,
    UnsupportedError,
    WholeModule,
    check_for_hidden_noise,
    map_tree,
    op_info,
    record,
    store_results,
    tensors,
)
from overt.nn.graph.state import SavedState
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


def _is_whole(module: nn.Module) -> bool:
    """Whether a module is one operation: nothing but its own code runs on its input."""
    known = known_noise(module) or type(module).forward is nn.Linear.forward
    changed = "forward" in vars(module) or module._forward_pre_hooks
    return known and not changed


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

    def samples_by_entry(self, call: Call) -> bool:
        """Return whether a random call surely samples each entry of all rows separately."""
        (made, *_) = tensors((call.out,))
        by_entry = op_info(call.func).name == "bernoulli" and bool(self.given(call))
        return by_entry and made.shape[:1] == (self._rows,)

    def walk_back(self, tensor: Tensor) -> tuple[list[Point], Call | None]:
        """Return the affine operations of one input that lead to a tensor, nearest first.

        The second result is the operation in front of them, None if that is the input.
        """
        points: list[Point] = []
        shifted = False
        narrowest = self.units(tensor)
        while id(tensor) in self._makers:
            call = self._makers[id(tensor)]
            given = self.given(call)
            if not _is_affine(call, given):
                return points, call
            (tensor,) = given
            shifted |= _adds_constant(call)
            narrowest = min(narrowest, self.units(tensor))
            points.append(Point(call, module_of(call), tensor, shifted, narrowest))
        return points, None

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
    module = module_of(call)
    if len(given) != 1 or module is not None:
        return len(given) == 1 and not is_normalization(module)
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


NamedCalls = list[tuple[Call, str | None]]
"""Operations, each with the path of the module that samples there, None if nothing does."""

REPEATS = 3
"""Comparisons of plain passes: a fair coin of a private generator is missed one time in eight."""


@dataclass(frozen=True, eq=False)
class NoiseSource:
    """Something random in training mode: a known noise layer, or a module that samples inside.

    The mode of `modules` switches it on and off. `shared_by_rows` says that the rows of a batch may
    share what is sampled, `known` that it is a layer whose moments are known.
    """

    name: str
    module: nn.Module
    kind: str
    modules: list[nn.Module]
    shared_by_rows: bool
    known: bool = False


@dataclass(frozen=True, eq=False)
class Inspection:
    """Everything that samples in training mode, in the order of the pass, and a pass without noise.

    `inputs` were passed, `outputs` the entries of the output per row, `called` counts
    the calls of modules. `training` are the operations of a recorded pass with noise, each with the
    path of the module that samples there, or None; it is empty if noise may decide what runs.
    `always_on` names what samples in evaluation mode too, `skipped` gives reasons for what is left
    out.
    """

    inputs: Inputs
    outputs: int
    structure: Structure | str  # or why there is no recording
    called: Counter[nn.Module]
    training: NamedCalls
    sources: list[NoiseSource]
    always_on: list[str]
    skipped: list[tuple[str, str]]

    def samples(self, name: str) -> int:
        """Return how often a noise layer samples in the recorded pass with noise."""
        return sum(path == name for _, path in self.training)

    def unknown_noise_behind(self, name: str, module: Any) -> bool:
        """Return whether a noise with unknown moments may be sampled behind a layer."""
        known = {None, *(source.name for source in self.sources if source.known)}
        behind = not self.training
        for call, path in self.training:
            behind |= path not in known
            weight = getattr(module, "weight", None)
            if path == name or any(tensor is weight for tensor in call.inputs):
                behind = False
        return behind


def inspect_batch(saved: SavedState, batch: Batch) -> Inspection:
    """Inspect passes of two rows, or of the batch where the model fixes their number."""
    model = saved.model
    # A model in evaluation mode may be trained in the other.
    moving = {
        module
        for module in model.modules()
        if is_normalization(module) and (module.training or not model.training)
    }
    try:
        return _inspect(saved, batch.inputs.first(2), moving)
    except Exception:  # as of a graph's nodes; or the model is wrong
        with name_failing_inputs(batch.inputs, batch.where):
            return _inspect(saved, batch.inputs, moving)


def _inspect(saved: SavedState, inputs: Inputs, moving: set[nn.Module]) -> Inspection:
    model = saved.model
    given = (inputs.given, inputs.output)
    paths = {module: path for path, module in model.named_modules()}
    called: Counter[nn.Module] = Counter()

    def whole(module: nn.Module, args: Any) -> bool:
        one = len(args) == 1 and isinstance(args[0], Tensor)
        return one and (module in moving or _is_whole(module))

    def count(module: nn.Module, args: Any, output: Any) -> None:
        called[module] += 1

    structure: Structure | str
    with register_module_forward_hook(count):
        try:
            recording = record(saved, *given, noise=False, whole=whole)
            structure = Structure(recording, len(inputs))
            output = recording.output
            always_on = [
                path for _, path in _with_paths(recording, model) if path is not None
            ]
        except UnsupportedError as error:
            structure = f"the pass cannot be recorded: {error}"
            output = saved.plain_pass(*given, noise=False)
            again = saved.plain_pass(*given, noise=False)
            always_on = [] if torch.equal(output, again) else [""]
    why = (
        "something samples in evaluation mode too, as functional dropout does without "
        "training=self.training: this noise is in every number here"
    )
    skipped = [(path or "forward", why) for path in dict.fromkeys(always_on)]
    layers = [
        _known_source(paths[module], module)
        for module in called
        if module in paths and known_noise(module) and not is_silent(module)
    ]
    training: NamedCalls = []
    sources = layers
    try:
        recording = record(saved, *given)
        training = _with_paths(recording, model)
        noisy = Structure(recording, len(inputs))
        sources = _recorded_sources(model, training, always_on, noisy)
        # A layer that drops everything samples nothing.
        blocked = [layer for layer in layers if drop_prob_of(layer.module) == 1]
        if blocked:
            order = list(called)
            sources = sorted(
                blocked + sources, key=lambda source: order.index(source.module)
            )
        for _ in range(REPEATS):
            saved.counters = {}
            plain = check_for_hidden_noise(recording, saved, *given, "running")
        switched = _switched_pass(saved, inputs, recording, sources)
        if not torch.allclose(plain, switched, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise UnsupportedError("its modes do not tell where it samples")
    except UnsupportedError as error:
        training = []
        sources = layers
        try:
            saved.plain_pass(*given)
            sources = [_whole_source(model, str(error)), *layers]
        except (
            Exception
        ) as failure:  # whatever the model's code raises in training mode
            why = f"noise of other kinds is not looked for: {first_line(failure)}"
            skipped.append(("training mode", why))
    return Inspection(
        inputs=inputs,
        outputs=output.numel() // len(inputs),
        structure=structure,
        called=called,
        training=training,
        sources=sources,
        always_on=always_on,
        skipped=skipped,
    )


def _switched_pass(
    saved: SavedState, inputs: Inputs, training: Recording, sources: list[NoiseSource]
) -> Tensor:
    """Return the output with these sources switched on, sampled as in a recorded pass."""
    saved.counters = {}
    saved.prepare(noise=False, copy_parameters=bool(saved.copy_parameters))
    set_torch_rng(training.state)
    modules = [module for source in sources for module in source.modules]
    with torch.no_grad(), restore_training(modules, True):
        output: Tensor = inputs.run(saved.model)
    return output


def _known_source(path: str, module: Any) -> NoiseSource:
    """Return a noise layer whose moments are known."""
    shared = 0 in getattr(module, "shared_axes", ())
    if is_weight_noise(module):
        shared = not getattr(module, "per_sample", False)
    return NoiseSource(path, module, str(module), [module], shared, known=True)


def _whole_source(model: nn.Module, why: str) -> NoiseSource:
    """Return everything that samples in a model whose passes with noise cannot be recorded."""
    modules = [m for m in model.modules() if not is_normalization(m)]
    return NoiseSource("", model, f"all that samples ({why})", modules, True)


def _recorded_sources(
    model: nn.Module,
    training: NamedCalls,
    always_on: list[str],
    structure: Structure,
) -> list[NoiseSource]:
    """Return what a recorded pass samples in training mode only, in its order."""
    parts = dict(model.named_modules())
    calls: dict[str, list[Call]] = {}
    for call, path in training:
        if path is not None and path not in always_on:
            calls.setdefault(path, []).append(call)
    sources = []
    for path, own in calls.items():
        module = parts[path]
        if known_noise(module):
            sources.append(_known_source(path, module))
            continue
        kind = str(module)
        if list(module.children()):
            names = ", ".join(dict.fromkeys(_function(call) for call in own))
            kind = f"{names} in {type(module).__name__}"
        # A scripted module samples in its parts.
        scripted = isinstance(module, torch.jit.ScriptModule)
        modules = list(module.modules()) if scripted else [module]
        shared = not all(map(structure.samples_by_entry, own))
        sources.append(NoiseSource(path, module, kind, modules, shared))
    return sources


def _with_paths(recording: Recording, model: nn.Module) -> NamedCalls:
    """Return the operations of a recorded pass with the paths of what samples there."""
    paths = dict(model.named_modules())
    found: NamedCalls = []
    for call in recording.calls:
        path: str | None = None
        if call.noise:
            path, _, function = call.noise.partition("#")[0].rpartition(":")
            if not path and function in paths:  # a dropout module has its path alone
                path = function
        found.append((call, path))
    return found


def _function(call: Call) -> str:
    """Return the name of the function that samples in a call."""
    return call.noise.partition("#")[0].rpartition(":")[2]


def drop_prob_of(module: Any) -> float | None:
    """Return the nominal drop probability, None for noise that has none."""
    value = getattr(module, "drop_prob", getattr(module, "p", None))
    return float(value) if isinstance(value, (int, float)) else None
