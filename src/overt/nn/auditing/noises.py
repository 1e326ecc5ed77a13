"""The noise of a model: what samples in training mode, and what sampled masks realize."""

from __future__ import annotations

import copy
import math
from collections import Counter
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
from overt.nn.layers.recognized import is_silent, is_weight_noise, known_noise

MASK_ENTRIES = 2**14
"""Entries of masks sampled to measure the share that is dropped: an error below .004."""

MASKS = 64, 4096
"""Masks sampled at least, so that their standard error is known, and at most."""

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
    """What one pass shows of its modules: the calls and samples in order, and the first inputs.

    An event is a module's path, and whether its own code samples (or it is called).
    """

    events: list[tuple[str, bool]] = field(default_factory=list)
    examples: dict[str, Any] = field(default_factory=dict)

    def count(self, *, samples: bool) -> Counter[str]:
        """Return how often each module's own code samples, or how often it is called."""
        return Counter(path for path, event in self.events if event is samples)


@dataclass(frozen=True, eq=False)
class FoundNoises:
    """Everything that samples in training mode, in the order of the pass.

    `decides` says that noise may decide which operations run.
    """

    sources: list[NoiseSource]
    training: ModulePass
    decides: bool

    @property
    def calls(self) -> Counter[str]:
        """How often each module is called."""
        return self.training.count(samples=False)

    def unknown_noise_behind(self, name: str) -> bool:
        """Return whether a noise with unknown moments is sampled behind the layer of this name."""
        events = self.training.events
        last = max(i for i, (path, _) in enumerate(events) if path == name)
        unknown = {s.name for s in self.sources if s.example is None}
        return any(samples and path in unknown for path, samples in events[last + 1 :])


def find_noises(
    model: nn.Module,
    inputs: Inputs,
    evaluation: ModulePass,
    skipped: list[tuple[str, str]],
) -> FoundNoises:
    """Return everything that samples in training mode; add reasons for the rest to `skipped`.

    `evaluation` is a pass in evaluation mode.
    """
    always_on = evaluation.count(samples=True)
    parts = dict(model.named_modules())
    why = (
        "functions that sample, such as functional dropout, are on in evaluation mode too: their "
        "noise is in every number here; use modules"
    )
    skipped += [(path or "forward", why) for path in always_on]
    functions: dict[str, list[str]] = {}
    training = evaluation
    decides = True
    try:
        training = follow_modules(model, inputs, noise=True)
        with untouched(model) as saved:
            if _differ([_pass_from_seed(saved, inputs) for _ in range(REPEATS)]):
                why = (
                    "something samples from a private generator: that noise is left out"
                )
                skipped.append(("training mode", why))
            recording = record(saved, inputs.given, inputs.output)
        functions = _sampling_functions(parts, Structure(recording, len(inputs)))
        decides = False
    except UnsupportedError:  # the noise decides what runs, or is not torch's
        pass
    except Exception as error:  # whatever the model's code raises in training mode
        why = f"noise of other kinds is not looked for: {first_line(error)}"
        skipped.append(("training mode", why))
    called = training.count(samples=False)
    for path, part in parts.items():
        if known_noise(part) and path not in called:
            skipped.append((path, "not reached by the forward pass"))
    sources: dict[str, NoiseSource] = {}
    for path, samples in training.events:
        module = parts[path]
        example = training.examples.get(path)
        if path not in sources and known_noise(module):
            sources[path] = NoiseSource(path, module, example, str(module))
        elif path not in sources and samples and path not in always_on:
            names = functions.get(path, [])
            kind = str(module)
            if list(module.children()):
                calls = ", ".join(dict.fromkeys(names)) or "sampling"
                kind = f"{calls} in {type(module).__name__}"
            entrywise = bool(names) and all(name in ENTRYWISE for name in names)
            sources[path] = NoiseSource(path, module, None, kind, entrywise)
    return FoundNoises(list(sources.values()), training, decides)


def follow_modules(model: nn.Module, inputs: Inputs, *, noise: bool) -> ModulePass:
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
        if module in paths:
            note()
            stack.append(paths[module])
            found.events.append((stack[-1], False))
            if args and isinstance(args[0], Tensor):
                found.examples.setdefault(stack[-1], args[0])

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if module in paths:
            note()
            stack.pop()

    def leave_scripted(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            leave(module, args, output)

    # Scripted modules have no hooks, and a hook of a module may sample: ours come behind it.
    plain = [m for m in paths if not isinstance(m, torch.jit.ScriptModule)]
    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave_scripted),
    ]
    try:
        with preserve_rng(), modes(model, noise=noise):
            with hook_modules(plain, after=leave), torch.no_grad():
                inputs.run(model)
            note()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _pass_from_seed(saved: Any, inputs: Inputs) -> Tensor:
    seed_all(0)
    saved.counters = {}
    return saved.plain_pass(inputs.given, inputs.output)


def _differ(outputs: list[Tensor]) -> bool:
    first = outputs[0]
    return not all(
        first.shape == other.shape and torch.allclose(first, other, equal_nan=True)
        for other in outputs[1:]
    )


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


def silence_always_on(model: nn.Module, inputs: Inputs) -> ModulePass:
    """Make dropout modules that sample in evaluation mode return their inputs; return a pass.

    `untouched` gives the modules their own forward passes back.
    """
    found = follow_modules(model, inputs, noise=False)
    silenced = 0
    for module in map(model.get_submodule, found.count(samples=True)):
        if _only_drops(module):
            module.forward = _identity_in_evaluation(module)
            silenced += 1
    return follow_modules(model, inputs, noise=False) if silenced else found


def _only_drops(module: nn.Module) -> bool:
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


def realized_share(source: NoiseSource) -> tuple[float | None, float | None]:
    """Return the share of zeros among sampled multipliers (or weights), and its standard error.

    Both are None for noise that does not multiply units or weights.
    """
    if source.example is None:
        return None, None
    module: Any = copy.deepcopy(source.module)
    weights = is_weight_noise(module)
    shape = module.weight.shape if weights else source.example.shape[1:]
    least, most = MASKS
    count = max(least, min(most, MASK_ENTRIES // max(math.prod(shape), 1)))
    with torch.no_grad(), restore_training([module], True):
        if weights:
            nn.init.ones_(module.weight)
            zeros = module._noisy_weight(count) == 0
        else:  # a mask that a batch shares is one sample
            rows = 1 if source.shared_by_rows else count
            ones = torch.ones(rows, *shape, device=source.example.device)
            zeros = torch.cat([module(ones) == 0 for _ in range(0, count, rows)])
    shares = zeros.flatten(1).double().mean(1).cpu()
    return float(shares.mean()), float(shares.std() / math.sqrt(len(shares)))
