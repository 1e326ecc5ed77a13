"""The noise of a model: what samples in training mode, and what sampled masks realize."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from overt.nn.auditing.structure import Structure
from overt.nn.data.batches import Inputs, first_line
from overt.nn.data.models import hook_modules, modes, restore_training
from overt.nn.data.rng import preserve_rng, python_rng_states, torch_rng_bytes
from overt.nn.graph.record import UnsupportedError, record
from overt.nn.graph.state import seed_all, untouched
from overt.nn.layers.base import RatedNoise
from overt.nn.layers.recognized import is_silent, is_weight_noise, known_noise

MASK_ENTRIES = 2**14
"""Entries of masks sampled to measure the share that is dropped: an error below .004."""

MIN_MASKS = 64
"""Masks sampled at least, so that their standard error is known."""

MAX_MASKS = 4096

ENTRYWISE = ("dropout", "alpha_dropout", "scaled_dot_product_attention")
"""Functions that sample separately for every entry, hence for every row."""

REPEATS = 4
"""Passes from the same RNG states. A coin of a private generator is missed one time in eight."""


@dataclass(frozen=True, eq=False)
class NoiseSource:
    """A module that is random in training mode: a known noise layer, or one that samples inside.

    `example` is the first input of a layer whose moments are known, None for other modules.
    `entrywise` says that all it samples is dropout of single entries of what depends on the inputs.
    The mode of the module switches the noise on and off.
    """

    name: str
    module: nn.Module
    example: Tensor | None
    kind: str
    entrywise: bool = False

    @property
    def silent(self) -> bool:
        """Whether it is known to sample nothing."""
        return self.example is not None and is_silent(self.module)

    @property
    def shared_by_rows(self) -> bool:
        """Whether the rows of a batch may share what is sampled."""
        if self.example is None:
            return not self.entrywise
        if is_weight_noise(self.module):
            return not getattr(self.module, "per_sample", False)
        return 0 in getattr(self.module, "shared_axes", ())


@dataclass(eq=False)
class ModulePass:
    """What one pass shows of its modules: the calls and samples in order, and the first inputs."""

    events: list[tuple[str, bool]] = field(
        default_factory=list
    )  # (path, whether it samples)
    examples: dict[str, Any] = field(default_factory=dict)

    @property
    def sampling(self) -> Counter[str]:
        """The modules whose own code samples, and how often."""
        return Counter(path for path, samples in self.events if samples)

    @property
    def calls(self) -> Counter[str]:
        """How often each module is called."""
        return Counter(path for path, samples in self.events if not samples)


@dataclass(frozen=True, eq=False)
class FoundNoises:
    """Everything that samples in training mode, in the order of the pass.

    `decides` says that noise may decide which operations run.
    """

    sources: dict[str, NoiseSource]
    skipped: list[tuple[str, str]]
    training: ModulePass
    always_on: bool
    decides: bool

    def unknown_noise_behind(self, name: str) -> bool:
        """Return whether a noise with unknown moments is sampled behind the layer of this name."""
        events = self.training.events
        last = max(
            (i for i, (path, _) in enumerate(events) if path == name), default=-1
        )
        unknown = {
            path for path, source in self.sources.items() if source.example is None
        }
        return any(samples and path in unknown for path, samples in events[last + 1 :])


def find_noises(model: nn.Module, inputs: Inputs) -> FoundNoises:
    """Return everything that samples in training mode, and what is left out, with reasons."""
    parts = dict(model.named_modules())
    quiet = _follow_modules(model, inputs, noise=False)
    skipped = [
        (
            path or "forward",
            "functions that sample, such as functional dropout, are on in evaluation mode too: "
            "their noise is in every number here; use modules",
        )
        for path in quiet.sampling
    ]
    training = quiet
    decides = True
    entrywise: dict[str, list[str]] = {}
    try:
        training = _follow_modules(model, inputs, noise=True)
        if _differs_between_passes(model, inputs):
            why = "something samples from a private generator: that noise is left out"
            skipped.append(("training mode", why))
        entrywise = _sampling_functions(model, inputs)
        decides = False
    except UnsupportedError:  # the noise decides what runs, or is not torch's
        pass
    except Exception as error:  # whatever the model's code raises in training mode
        why = f"noise of other kinds is not looked for: {first_line(error)}"
        skipped.append(("training mode", why))
    unused = [path for path, part in parts.items() if known_noise(part)]
    skipped += [
        (path, "not reached by the forward pass")
        for path in unused
        if path not in training.calls
    ]
    sources = {}
    for path, samples in training.events:
        module = parts[path]
        if path in sources:
            continue
        if known_noise(module):
            sources[path] = NoiseSource(
                path, module, training.examples[path], str(module)
            )
        elif samples and path not in quiet.sampling:
            functions = entrywise.get(path, [])
            kind = _describe(module, functions)
            single = bool(functions) and all(name in ENTRYWISE for name in functions)
            sources[path] = NoiseSource(path, module, None, kind, single)
    return FoundNoises(sources, skipped, training, bool(quiet.sampling), decides)


def _follow_modules(model: nn.Module, inputs: Inputs, *, noise: bool) -> ModulePass:
    """Run a pass; note which modules are called, and which of them move a generator."""
    paths = {module: path for path, module in model.named_modules()}
    found = ModulePass()
    stack = [""]
    state: Any = None

    def note() -> None:
        nonlocal state
        before, state = state, (torch_rng_bytes(), python_rng_states())
        if before is not None and before != state:
            found.events.append((stack[-1], True))

    def enter(module: nn.Module, args: Any) -> None:
        note()
        stack.append(paths[module])
        found.events.append((stack[-1], False))
        if args and isinstance(args[0], Tensor):
            found.examples.setdefault(stack[-1], args[0])

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        note()
        stack.pop()

    def enter_scripted(module: nn.Module, args: Any) -> None:
        if module in scripted:
            enter(module, args)

    def leave_scripted(module: nn.Module, args: Any, output: Any) -> None:
        if module in scripted:
            leave(module, args, output)

    # Scripted modules have no hooks, and a hook of a module may sample: ours come behind it.
    scripted = {
        module for module in paths if isinstance(module, torch.jit.ScriptModule)
    }
    handles = [
        register_module_forward_pre_hook(enter_scripted),
        register_module_forward_hook(leave_scripted),
    ]
    plain = [module for module in paths if module not in scripted]
    try:
        with (
            preserve_rng(),
            modes(model, noise=noise),
            hook_modules(plain, enter, leave),
        ):
            with torch.no_grad():
                inputs.run(model)
            note()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _sampling_functions(model: nn.Module, inputs: Inputs) -> dict[str, list[str]]:
    """Return the functions that each module samples with, as far as its samples are recorded."""
    parts = dict(model.named_modules())
    with untouched(model) as saved:
        structure = Structure(record(saved, inputs.given, inputs.output), len(inputs))
    found: dict[str, list[str]] = {}
    for call in structure.calls:
        if not call.noise:
            continue
        path, _, function = call.noise.partition("#")[0].rpartition(":")
        if (
            not path and function in parts
        ):  # a dropout module is named by its path alone
            path = function
            module = parts[path]
            entrywise = isinstance(module, (nn.Dropout, nn.AlphaDropout))
            function = "dropout" if entrywise else type(module).__name__
        if not structure.given(call):  # what rows share
            function += " of a constant"
        found.setdefault(path, []).append(function)
    return found


def _differs_between_passes(model: nn.Module, inputs: Inputs) -> bool:
    """Return whether passes from the same RNG states differ."""
    outputs = []
    with untouched(model) as saved:
        for _ in range(REPEATS):
            seed_all(0)
            saved.counters = {}
            outputs.append(saved.plain_pass(inputs.given, inputs.output))
    first = outputs[0]
    return not all(
        first.shape == other.shape and torch.allclose(first, other, equal_nan=True)
        for other in outputs[1:]
    )


def _describe(module: nn.Module, functions: list[str]) -> str:
    """Return how a module that samples in its own forward pass is called in the report."""
    if not list(module.children()):
        return str(module)
    calls = ", ".join(dict.fromkeys(functions)) or "sampling"
    return f"{calls} in {type(module).__name__}"


@contextmanager
def silence_always_on_dropout(model: nn.Module, inputs: Inputs) -> Iterator[None]:
    """Make dropout modules that sample in evaluation mode too return their inputs there."""
    sampling = _follow_modules(model, inputs, noise=False).sampling
    always = [m for m in map(model.get_submodule, sampling) if _only_drops(m)]
    before = [vars(module).get("forward") for module in always]
    for module in always:
        module.forward = _identity_in_evaluation(module)
    try:
        yield
    finally:
        for module, forward in zip(always, before, strict=True):
            del module.forward
            if forward is not None:
                module.forward = forward


def _only_drops(module: Any) -> bool:
    """Return whether a dropout module does nothing but drop, seen on ones."""
    if not isinstance(module, nn.modules.dropout._DropoutNd):
        return False
    with preserve_rng(), torch.no_grad():
        values = module(torch.ones(64, 64)).unique()
    return len(values) <= 2 and values[0] == 0


def _identity_in_evaluation(module: Any) -> Any:
    sample = module.forward
    return lambda x: sample(x) if module.training else x


def drop_prob_of(module: Any) -> float | None:
    """Return the nominal drop probability, None for noise that has none."""
    value = getattr(module, "drop_prob", getattr(module, "p", None))
    return float(value) if isinstance(value, (int, float)) else None


def with_drop_prob(module: Any, p: float) -> Any:
    """Return a copy of the noise with another drop probability; None if it has none."""
    rated = isinstance(module, RatedNoise)
    if not rated and type(module).__module__ != nn.Dropout.__module__:
        return None
    other = copy.deepcopy(module)
    setattr(other, "drop_prob" if rated else "p", p)
    return other


def realized_share(source: NoiseSource) -> tuple[float | None, float | None]:
    """Return the share of zeros among sampled multipliers (or weights), and its standard error.

    Both are None for noise that does not multiply units or weights.
    """
    if source.example is None:
        return None, None
    module: Any = copy.deepcopy(source.module)
    with torch.no_grad():
        if is_weight_noise(module):
            nn.init.ones_(module.weight)
            zeros = module._noisy_weight(_mask_count(module.weight.numel())) == 0
        else:
            zeros = _zeros_of_masks(source, module, source.example)
    shares = zeros.flatten(1).double().mean(1).cpu()
    return float(shares.mean()), float(shares.std() / math.sqrt(len(shares)))


def _zeros_of_masks(source: NoiseSource, module: Any, example: Tensor) -> Tensor:
    """Return where sampled masks are zero, (masks, ...)."""
    shape = example.shape[1:]
    count = _mask_count(max(math.prod(shape), 1))
    rows = (
        1 if source.shared_by_rows else count
    )  # a mask that a batch shares is one sample
    ones = torch.ones(rows, *shape, device=example.device)
    with restore_training([module], True):
        return torch.cat([module(ones) == 0 for _ in range(0, count, rows)])


def _mask_count(entries: int) -> int:
    return max(MIN_MASKS, min(MAX_MASKS, MASK_ENTRIES // entries))
