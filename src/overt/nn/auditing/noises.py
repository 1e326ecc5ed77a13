"""The noise of a model: where it is drawn, what masks drawn from layers realize and add."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.auditing.trace import Trace
from overt.nn.data.batches import first_line
from overt.nn.data.models import modes, restore_training
from overt.nn.data.rng import (
    preserve_rng,
    python_rng_fresh,
    python_rng_states,
    repeat_pass,
    torch_rng_bytes,
)
from overt.nn.layers.base import RatedNoise
from overt.nn.layers.recognized import (
    draws_nothing_else,
    is_silent,
    is_weight_noise,
    known_noise,
)
from overt.nn.recording.drawers import noted_draws, undone
from overt.nn.recording.recorder import Operation, record
from overt.nn.recording.watching import is_noise, tensors

MASK_ENTRIES, MASK_ROWS = 2**14, 64
"""How many entries of masks are drawn at most, and rows at least, to measure what is dropped."""

ENTRYWISE = ("dropout", "alpha_dropout", "scaled_dot_product_attention")
"""Functions that draw for each entry apart."""

Skipped = list[tuple[str, str]]
"""(name, reason) of what is left out."""


@dataclass(frozen=True, eq=False)
class Source:
    """Something that is random in training mode: a noise layer, or a module that draws inside.

    `op` is the first call of a layer whose law is known, None where it is not; `kind` how it is
    called in the report, `apart` whether all that it draws is dropout of single entries of what the
    inputs lead to. All are switched on by the mode of their module alone.
    """

    name: str
    module: nn.Module
    op: Operation | None
    kind: str
    apart: bool = False

    @property
    def silent(self) -> bool:
        """Whether it is known to draw nothing."""
        return self.op is not None and is_silent(self.module)

    @property
    def shared(self) -> bool:
        """Whether the rows of a batch may share what is drawn."""
        if self.op is None:
            return not self.apart
        if is_weight_noise(self.module):
            return not getattr(self.module, "per_sample", False)
        return 0 in getattr(self.module, "shared_axes", ())


def find_noises(model: nn.Module, trace: Trace) -> tuple[dict[str, Source], Skipped]:
    """Return everything that draws in training mode, in the order in which it is met.

    What draws in evaluation mode too, or where it cannot be switched on, is left out, with reasons.
    """
    met, parts = trace.noises, dict(model.named_modules())
    skipped = [
        (name, "not reached by the forward pass")
        for name, module in parts.items()
        if known_noise(module) and name not in met
    ]
    on = trace.drawing
    for path, calls in on.items():
        skipped.append(
            (path or "forward", f"{calls} call(s) of functions that draw, such as functional "
             "dropout, are on in evaluation mode too: their noise is in every number here; use "
             "modules")
        )  # fmt: skip
    found = {name: Source(name, op.leaf, op, str(op.leaf)) for name, op in met.items() if op.leaf}
    try:
        drawn, together, moves = _in_training(model, parts, trace)
    except Exception as error:  # whatever the model's code raises in training mode
        why = f"noise of other kinds is not looked for: {first_line(error)}"
        skipped.append(("training mode", why))
        return found, skipped
    if moves:
        skipped.append(
            ("training mode", "something draws from a generator of its own: that noise is left out")
        )
    paths = [path for path in drawn if path in met or path not in on]
    for path in paths:
        if path not in met:
            module = parts[path]
            kind = _kind(module, drawn[path])
            found[path] = Source(path, module, None, kind, path not in together)
    order = list(dict.fromkeys([*paths, *found]))
    return {name: found[name] for name in order}, skipped


def _in_training(
    model: nn.Module, parts: dict[str, nn.Module], trace: Trace
) -> tuple[dict[str, list[str]], set[str], bool]:
    """Return what is drawn, by whom, where rows may share it, and if there is more than is seen.

    Nothing is run if all code is known, and recorded only if something other than layers of known
    noise moves a generator.
    """
    every = nn.modules.module  # where hooks of all modules hang
    hooks = every._global_forward_hooks or every._global_forward_pre_hooks or trace.inputs.output
    trace.known = not hooks and all(map(draws_nothing_else, parts.values()))
    if trace.known:
        return {name: [] for name in trace.noises}, set(), False
    names = {module: name for name, module in parts.items() if known_noise(module)}
    drew: list[bool] = []

    def run() -> list[Tensor]:
        before = torch_rng_bytes()
        outputs = list(tensors(trace.inputs.run(model)))
        drew.append(torch_rng_bytes() != before or not python_rng_fresh())
        return outputs

    with undone(names) as called:
        moves = repeat_pass(model, run, 4)[1]
    if any(drew):
        return *_recorded(model, trace), moves
    return {names[module]: [] for module in called if names[module] in trace.noises}, set(), moves


def _recorded(model: nn.Module, trace: Trace) -> tuple[dict[str, list[str]], set[str]]:
    """Return what is drawn in training mode, by who draws it, and where rows may share it."""
    others: dict[str, None] = {}
    with preserve_rng(), modes(model, noise=True):
        before = python_rng_states()
        trace.training = record(
            model, trace.inputs.given, leaves=lambda _, module: known_noise(module), keep=False
        )
        if python_rng_states() != before:
            with noted_draws(model) as others:
                repeat_pass(model, lambda: list(tensors(trace.inputs.run(model))), 1)
    met, drawn, together = trace.noises, dict[str, list[str]](), set(others)
    for op in trace.training.operations:
        if op.random or op.noise in met:
            path = str(op.noise) if op.noise in met else op.module
            drawn.setdefault(path, []).append(op.name)
            if op.name not in ENTRYWISE or not op.given:
                together.add(path)
    for path in others:
        drawn.setdefault(path, []).append("a generator of Python or NumPy")
    return drawn, together


def decides(model: nn.Module, trace: Trace, noise: str) -> bool:
    """Whether values behind a noise may decide what runs in training mode."""
    if trace.known:
        return False
    if trace.training is None:
        try:
            _recorded(model, trace)
        except Exception:  # whatever the model's code raises in training mode
            return True
    ops = iter(() if trace.training is None else trace.training.operations)
    met = any(op.noise == noise for op in ops)  # which takes those before it away
    return met and any(op.kind.values == "read" and op.given for op in ops)


@contextmanager
def obedient(model: nn.Module, trace: Trace) -> Iterator[Trace]:
    """Let dropout modules that draw in evaluation mode too pass on their inputs there."""
    parts, calls = dict(model.named_modules()), [op.module for op in trace.operations]
    always = [
        parts[op.module]
        for op in trace.operations
        if op.random and op.kind.units == "drop" and is_noise(parts[op.module])
        and calls.count(op.module) == 1
    ]  # fmt: skip
    before = [vars(module).get("forward") for module in always]
    for module in always:
        module.forward = _obeying(module)
    try:
        yield Trace(model, trace.inputs) if always else trace
    finally:
        for module, own in zip(always, before, strict=True):
            del module.forward
            if own is not None:
                module.forward = own


def _obeying(module: Any) -> Any:
    draw = module.forward
    return lambda x: draw(x) if module.training else x


def drawn_behind(trace: Trace, name: str, sources: dict[str, Source]) -> bool:
    """Whether noise of which nothing is known is drawn behind the layer of this name."""
    unknown = {path for path, source in sources.items() if source.op is None}
    ops = () if trace.training is None else trace.training.operations
    last = max((op.at for op in ops if name in (op.module, op.noise)), default=-1)
    return any(op.random and op.module in unknown and op.at > last for op in ops)


def _kind(module: nn.Module, names: list[str]) -> str:
    """Return how a module that draws in its own forward pass is called."""
    kind = type(module).__name__
    if not list(module.children()):
        return str(module)
    calls = ", ".join(dict.fromkeys(names))
    return f"{calls} in {kind}"


def drop_prob(module: Any) -> float | None:
    """Return the nominal drop probability, None for noise that has none."""
    value = getattr(module, "drop_prob", getattr(module, "p", None))
    return float(value) if isinstance(value, (int, float)) else None


def twin(module: Any) -> Any:
    """Return a copy of the noise that stays as it is."""
    plain = type(module).__module__ == nn.Dropout.__module__  # which holds numbers alone
    return copy.copy(module) if plain else copy.deepcopy(module)


def with_drop_prob(module: Any, p: float) -> Any:
    """Return a copy of the noise with another drop probability; None if it has none."""
    rated = isinstance(module, RatedNoise)
    if not rated and type(module).__module__ != nn.Dropout.__module__:
        return None
    other = twin(module)
    setattr(other, "drop_prob" if rated else "p", p)
    return other


def masks(source: Source) -> Callable[[], tuple[float | None, float | None]]:
    """Return what draws masks of a source as it is now: the share of zeros, and its error.

    Neither is known for noise that is no multiplier of units or weights.
    """
    if source.op is None:
        return lambda: (None, None)
    given: Any = source.op.inputs[0]
    return partial(
        _realized, twin(source.module), given.shape[1:], given.tensor.device, source.shared
    )


def _realized(
    module: Any, shape: tuple[int, ...], device: Any, shared: bool
) -> tuple[float, float]:
    """Return the share of zeros among drawn multipliers (or weights), and its standard error."""
    if is_weight_noise(module):
        torch.nn.init.ones_(module.weight)
        rows = max(MASK_ROWS, min(4096, MASK_ENTRIES // module.weight.numel()))
        with torch.no_grad():
            values = (module._noisy_weight(rows) == 0).double().flatten(1).mean(1).cpu()
    else:
        rows = max(MASK_ROWS, min(4096, MASK_ENTRIES // max(math.prod(shape), 1)))
        size = 1 if shared else rows  # a mask that a batch shares is one draw
        ones = torch.ones(size, *shape, device=device)
        with restore_training([module], True):
            dropped = [(module(ones) == 0).flatten(1) for _ in range(0, rows, size)]
        values = torch.cat([part.float().mean(1).double().cpu() for part in dropped])
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))
