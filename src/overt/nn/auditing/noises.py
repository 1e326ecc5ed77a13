"""The noise of a model: what samples in training mode, and what sampled masks realize."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.auditing.structure import Structure, record_training
from overt.nn.data.batches import first_line
from overt.nn.data.models import modes, restore_training
from overt.nn.data.rng import preserve_rng, python_rng_states, repeat_pass
from overt.nn.layers.base import RatedNoise
from overt.nn.layers.recognized import (
    draws_nothing_else,
    is_silent,
    is_weight_noise,
    known_noise,
)
from overt.nn.recording.recorder import Operation, Recording
from overt.nn.recording.watching import hooked, is_noise, tensors

MASK_ENTRIES = 2**14
"""Entries of masks sampled to measure the share that is dropped: an error below .004."""

MIN_MASKS = 64
"""Masks sampled at least, so that their standard error is known."""

MAX_MASKS = 4096

ENTRYWISE = ("dropout", "alpha_dropout", "scaled_dot_product_attention")
"""Functions that sample separately for every entry, hence for every row."""

REPEATS = 4
"""Passes from the same RNG states. A coin of a generator of its own is missed one time in eight."""

Skipped = list[tuple[str, str]]
"""(name, reason) of what is left out."""


@dataclass(frozen=True, eq=False)
class NoiseSource:
    """A module that is random in training mode: a known noise layer, or one that samples inside.

    `op` is the first call of a layer whose moments are known, None for other modules. `entrywise`
    says that all it samples is dropout of single entries of what depends on the inputs. The mode of
    the module switches the noise on and off.
    """

    name: str
    module: nn.Module
    op: Operation | None
    kind: str
    entrywise: bool = False

    @property
    def silent(self) -> bool:
        """Whether it is known to sample nothing."""
        return self.op is not None and is_silent(self.module)

    @property
    def shared_by_rows(self) -> bool:
        """Whether the rows of a batch may share what is sampled."""
        if self.op is None:
            return not self.entrywise
        if is_weight_noise(self.module):
            return not getattr(self.module, "per_sample", False)
        return 0 in getattr(self.module, "shared_axes", ())


@dataclass(frozen=True, eq=False)
class FoundNoises:
    """Everything that samples in training mode, in the order of the pass.

    `training` is a recorded pass in training mode, None where all modules are known not to sample
    otherwise, or where the pass failed (`failed`).
    """

    sources: dict[str, NoiseSource]
    skipped: Skipped
    training: Recording | None = None
    failed: bool = False

    def steers_control_flow(self, noise: str) -> bool:
        """Return whether values behind a noise may decide which operations run."""
        if self.training is None:
            return self.failed
        operations = iter(self.training.operations)
        reached = any(op.noise == noise for op in operations)  # consumes the operations before it
        return reached and any(op.kind.values == "read" and op.given for op in operations)

    def unknown_noise_behind(self, name: str) -> bool:
        """Return whether a noise with unknown moments is sampled behind the layer of this name."""
        if self.training is None:
            return False
        unknown = {path for path, source in self.sources.items() if source.op is None}
        ops = self.training.operations
        last = max((op.at for op in ops if name in (op.module, op.noise)), default=-1)
        return any(op.random and op.module in unknown and op.at > last for op in ops)


def find_noises(model: nn.Module, structure: Structure) -> FoundNoises:
    """Return everything that samples in training mode, and what is left out, with reasons."""
    known = structure.noises
    parts = dict(model.named_modules())
    skipped: Skipped = []
    for name, module in parts.items():
        if known_noise(module) and name not in known:
            skipped.append((name, "not reached by the forward pass"))
    always = structure.random_in_evaluation
    for path, calls in always.items():
        skipped.append(
            (
                path or "forward",
                f"{calls} call(s) of functions that draw, such as functional dropout, are on in "
                "evaluation mode too: their noise is in every number here; use modules",
            )
        )
    sources = {}
    for name, op in known.items():
        if op.leaf is not None:
            sources[name] = NoiseSource(name, op.leaf, op, str(op.leaf))
    if _only_known_modules(parts, structure):
        return FoundNoises(sources, skipped)
    try:
        training = _record_training(model, structure)
        python_draws = _python_draws(model, structure)
        hidden = _differs_between_passes(model, structure)
    except Exception as error:  # whatever the model's code raises in training mode
        why = f"noise of other kinds is not looked for: {first_line(error)}"
        return FoundNoises(sources, [*skipped, ("training mode", why)], failed=True)
    if hidden:
        why = "something draws from a generator of its own: that noise is left out"
        skipped.append(("training mode", why))
    calls_by_path: dict[str, list[str]] = {}
    shared = set(python_draws)
    for op in training.operations:
        if op.noise in known:
            calls_by_path.setdefault(str(op.noise), [])
        elif op.random:
            calls_by_path.setdefault(op.module, []).append(op.name)
            if op.name not in ENTRYWISE or not op.given:
                shared.add(op.module)
    for path in python_draws:
        calls_by_path.setdefault(path, []).append("a generator of Python or NumPy")
    ordered: dict[str, NoiseSource] = {}
    for path, names in calls_by_path.items():
        if path in sources:
            ordered[path] = sources[path]
        elif path not in always:
            kind = _describe(parts[path], names)
            ordered[path] = NoiseSource(path, parts[path], None, kind, path not in shared)
    return FoundNoises(ordered | sources, skipped, training)


def _only_known_modules(parts: dict[str, nn.Module], structure: Structure) -> bool:
    """Return whether nothing but known noise layers can sample."""
    everywhere = nn.modules.module  # holds the hooks of all modules
    hooks = everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks
    if hooks or structure.inputs.output is not None:
        return False
    return all(map(draws_nothing_else, parts.values()))


def _record_training(model: nn.Module, structure: Structure) -> Recording:
    with preserve_rng(), modes(model, noise=True):
        return record_training(model, structure.inputs)


def _python_draws(model: nn.Module, structure: Structure) -> list[str]:
    """Return the modules that sample from Python's or NumPy's generator."""
    with preserve_rng(), modes(model, noise=True), torch.no_grad():
        before = python_rng_states()
        structure.inputs.run(model)
        if python_rng_states() == before:
            return []
        with _note_python_draws(model) as found:
            structure.inputs.run(model)
    return list(found)


@contextmanager
def _note_python_draws(model: nn.Module) -> Iterator[dict[str, None]]:
    """Collect the modules in whose own forward pass Python or NumPy samples."""
    found: dict[str, None] = {}
    before: list[Any] = []

    def begin(module: nn.Module, args: Any) -> None:
        before.append(python_rng_states())

    def end(module: nn.Module, args: Any, output: Any) -> None:
        now = python_rng_states()
        if before.pop() != now:
            found[names[module]] = None
            before[:] = [now] * len(before)  # the modules around it did not sample that

    names = {
        module: name
        for name, module in model.named_modules()
        if not isinstance(
            module, torch.jit.ScriptModule
        )  # takes no hooks, and samples from torch's
    }
    with hooked(names, begin, end):
        yield found


def _differs_between_passes(model: nn.Module, structure: Structure) -> bool:
    """Return whether passes from the same RNG states differ."""

    def run() -> list[Tensor]:
        return list(tensors(structure.inputs.run(model)))

    return repeat_pass(model, run, REPEATS)[1]


def _describe(module: nn.Module, names: list[str]) -> str:
    """Return how a module that samples in its own forward pass is called in the report."""
    if not list(module.children()):
        return str(module)
    calls = ", ".join(dict.fromkeys(names))
    return f"{calls} in {type(module).__name__}"


@contextmanager
def silence_always_on_dropout(model: nn.Module, structure: Structure) -> Iterator[Structure]:
    """Make dropout modules that sample in evaluation mode too return their inputs there."""
    parts = dict(model.named_modules())
    calls = [op.module for op in structure.operations]
    always = []
    for op in structure.operations:
        module = parts[op.module]
        drops = op.random and op.kind.units == "drop" and is_noise(module)
        if drops and calls.count(op.module) == 1:
            always.append(module)
    before = [vars(module).get("forward") for module in always]
    for module in always:
        module.forward = _identity_in_evaluation(module)
    try:
        yield Structure(model, structure.inputs) if always else structure
    finally:
        for module, forward in zip(always, before, strict=True):
            del module.forward
            if forward is not None:
                module.forward = forward


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
    if source.op is None:
        return None, None
    module: Any = copy.deepcopy(source.module)
    with torch.no_grad():
        if is_weight_noise(module):
            nn.init.ones_(module.weight)
            zeros = module._noisy_weight(_mask_count(module.weight.numel())) == 0
        else:
            zeros = _zeros_of_masks(source, module)
    shares = zeros.flatten(1).double().mean(1).cpu()
    return float(shares.mean()), float(shares.std() / math.sqrt(len(shares)))


def _zeros_of_masks(source: NoiseSource, module: Any) -> Tensor:
    """Return where sampled masks are zero, (masks, ...)."""
    given: Any = source.op.inputs[0] if source.op is not None else None
    shape = given.shape[1:]
    count = _mask_count(max(math.prod(shape), 1))
    rows = 1 if source.shared_by_rows else count  # a mask that a batch shares is one sample
    ones = torch.ones(rows, *shape, device=given.tensor.device)
    with restore_training([module], True):
        return torch.cat([module(ones) == 0 for _ in range(0, count, rows)])


def _mask_count(entries: int) -> int:
    return max(MIN_MASKS, min(MAX_MASKS, MASK_ENTRIES // entries))
