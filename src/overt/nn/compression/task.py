"""What is to be made smaller, by what it is judged, and what comes out."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from overt import _check
from overt._check import InputError
from overt._types import Floats
from overt.nn.compression.groups import Structure
from overt.nn.compression.measuring import latencies, multiply_adds, parameters
from overt.nn.compression.report import Change
from overt.nn.data.batches import Batch, Batches, Inputs
from overt.nn.data.losses import Loss
from overt.nn.recording.watching import Call, tensors, watch

Keep = float | Mapping[str, float]
"""One share for all layers, or a share for each of those named."""
ROWS = 4096
"""The most rows of data that units and ways are chosen on."""
ATOMS = frozenset((int, bool, float, str, type(None)))
"""What is not copied."""
COPYING = ("__deepcopy__", "__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs_ex__")
"""Ways for a class to say how it is copied."""
MET = 1.05
"""How far above what was to be kept a network may be that counts as small enough."""


@dataclass(frozen=True, eq=False)
class Task:
    """A network to be made smaller, in evaluation mode, and what is judged by what."""

    base: nn.Module
    structure: Structure
    keep: Keep
    of: str
    inputs: Inputs
    judge: list[Batch] | None
    loss: Loss
    draws: int
    rng: np.random.Generator

    @cached_property
    def _counted(self) -> tuple[int, Mapping[str, int]]:
        return multiply_adds(self.base, self.inputs)

    @property
    def total(self) -> int:
        """The multiply-adds of one example."""
        return self._counted[0]

    @property
    def costs(self) -> Mapping[str, int]:
        """The multiply-adds of each weighted layer."""
        return self._counted[1]

    @property
    def of_units(self) -> bool:
        """Whether shares are of the units of single layers, and not of a cost of the whole."""
        return isinstance(self.keep, Mapping) or self.of == "units"

    @property
    def rows(self) -> list[Batch]:
        """What activations are measured on: the data, or else the example."""
        return self.judge or [Batch("example", self.inputs, None)]

    def quiet(self, model: nn.Module) -> Any:
        """Return what a network makes of the example without dropout, and with the same draws."""
        if not self.structure.drawing:
            return self.inputs.run(model)

        def handle(call: Call) -> Any:
            if call.kind.units == "drop":
                return call.args[0]
            if call.kind.values == "attention" and call.leaf is None:
                return call.function(**{**call.named(), "dropout_p": 0.0})
            return call.run()

        with torch.random.fork_rng():
            torch.manual_seed(0)
            return watch(model, self.inputs.given, handle, output=self.inputs.output)

    def within(self, model: nn.Module) -> float:
        """Return a network's share of the cost that is to be kept."""
        if self.of == "parameters":
            return parameters(model) / max(parameters(self.base), 1)
        if self.of == "latency":
            before, after = latencies(self.base, model, inputs=self.inputs, seconds=0.1)
            return after / before
        return multiply_adds(model, self.inputs)[0] / max(self.total, 1)


@dataclass(eq=False)
class Outcome:
    """What a way of compressing returns: the network, what changed, what did not and why."""

    by: str
    model: nn.Module
    changes: list[Change]
    skipped: dict[str, str]
    losses: Floats = field(default_factory=lambda: np.zeros(0))
    interrupted: bool = False
    tried: tuple[tuple[str, float], ...] = ()
    output: Any = None  # of the network on the example, where it is known
    recovery: Floats = field(default_factory=lambda: np.zeros(0))


def checked_keep(keep: Any) -> Keep:
    """Return a share, or shares by layer, each in (0, 1]."""
    if not isinstance(keep, Mapping):
        return _share("keep", keep)
    return {str(name): _share(f"keep[{name!r}]", share) for name, share in keep.items()}


def _share(name: str, value: Any) -> float:
    share = _check.number(name, value, exclusive=True) if not isinstance(value, bool) else None
    if share is None or share > 1:
        raise InputError(f"{name} must be a number in (0, 1], got {value!r}")
    return share


def check_layers(keep: Mapping[str, float], layers: Iterable[str]) -> None:
    """Refuse shares for modules that are not layers with outputs of their own."""
    known = set(layers)
    unknown = [name for name in keep if name not in known]
    if unknown:
        raise InputError(
            f"keep must name layers with units of their own, got {', '.join(unknown)}; there are "
            f"{', '.join(sorted(known))}"
        )


def duplicate(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy in which some tensors are replaced: memo has them by the old ones' ids."""
    try:
        return cast(nn.Module, _copied(model, {} if memo is None else memo))
    except (RuntimeError, TypeError, AttributeError) as error:
        raise InputError(f"model must be a module that can be copied: {error}") from None


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """Return what copy.deepcopy does; it knows what modules are made of, and is faster."""
    kind: Any = type(value)
    known = memo.get(id(value))
    if known is not None:
        return known
    if kind is tuple and ATOMS.issuperset(map(type, value)):
        return value
    if kind in (dict, OrderedDict, set) and not value:
        memo[id(value)] = twin = kind()
    elif kind in (dict, OrderedDict):
        memo[id(value)] = twin = kind()
        for key, part in value.items():
            twin[key] = part if type(part) in ATOMS else _copied(part, memo)
    elif isinstance(value, nn.Module) and all(
        getattr(kind, name, None) is getattr(nn.Module, name, None) for name in COPYING
    ):
        memo[id(value)] = twin = kind.__new__(kind)
        twin.__setstate__(_copied(vars(value), memo))
    else:
        twin = copy.deepcopy(value, memo)
    return twin


def shortfall_of(task: Task, done: Outcome, reached: float | None) -> str | None:
    """Return what could not be met and why, None if the share that is reached is small enough."""
    if reached is None or isinstance(task.keep, Mapping) or reached <= MET * task.keep:
        return None
    what = task.of.replace("_", "-")
    text = f"keep={task.keep:g} of the {what} is not reached, {reached:.3g} is left"
    if done.skipped:
        return f"{text}; {len(done.skipped)} layers are left whole (report.skipped has the reasons)"
    if not done.changes:
        return f"{text}; nothing could be made smaller"
    return f"{text} with the fewest units or ranks that by={done.by!r} can leave"


def relative_change(old: Any, new: Any) -> float:
    """Return |new - old| / |old| over all outputs: 0 where none has changed, inf from zero."""
    pairs = [
        (a.detach().double(), b.detach().double())
        for a, b in zip(tensors(old), tensors(new), strict=True)
        if a.is_floating_point()
    ]
    change = math.sqrt(sum(float((b - a).square().sum()) for a, b in pairs))
    size = math.sqrt(sum(float(a.square().sum()) for a, _ in pairs))
    if change == 0:
        return 0.0
    return change / size if size else math.inf


def some_of(batches: Batches) -> Iterator[Batch]:
    """Yield at most ROWS rows, spread over all batches where their number is known."""
    most = max(1, ROWS // batches.count) if batches.count else ROWS
    left = ROWS
    for where, inputs, y in batches:
        n = min(most, left, len(inputs))
        yield Batch(where, inputs.first(n), None if y is None else y[:n])
        left -= n
        if not left:
            return
