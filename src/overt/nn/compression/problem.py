"""A network to be made smaller, the data it is judged by, and what comes out."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from overt import _check
from overt._check import InputError
from overt._types import Floats
from overt.nn.compression.dependencies import DependencyGraph
from overt.nn.compression.measure import count_parameters, multiply_adds
from overt.nn.compression.record import KIND_OF, Call, tensors, watch
from overt.nn.compression.report import Change
from overt.nn.data.batches import Batch, Batches, Inputs
from overt.nn.data.losses import Loss

Keep = float | Mapping[str, float]
"""One share for all layers, or a share for each of those named."""

MAX_ROWS = 4096
"""Rows of data that units and methods are chosen on: more would not change the choice."""

TOLERANCE = 1.05
"""A network is small enough up to this factor above `keep`: units are whole."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A network to be made smaller, in evaluation mode, and the data it is judged by."""

    base: nn.Module
    graph: DependencyGraph
    keep: Keep
    of: str
    inputs: Inputs
    judge: list[Batch] | None
    loss: Loss
    draws: int
    rng: np.random.Generator

    @cached_property
    def _multiply_adds(self) -> tuple[int, Mapping[str, int]]:
        return multiply_adds(self.base, self.inputs)

    @property
    def total(self) -> int:
        """The multiply-adds of one example."""
        return self._multiply_adds[0]

    @property
    def layer_costs(self) -> Mapping[str, int]:
        """The multiply-adds of each weighted layer."""
        return self._multiply_adds[1]

    @property
    def of_units(self) -> bool:
        """Whether shares are of the units of single layers, and not of a cost of the whole."""
        return isinstance(self.keep, Mapping) or self.of == "units"

    @property
    def batches(self) -> list[Batch]:
        """What activations are measured on: the data, or else the example."""
        return self.judge or [Batch("example", self.inputs, None)]

    def run_without_noise(self, model: nn.Module) -> Any:
        """Return a network's output on the example, without dropout and with fixed samples."""
        if not self.graph.random_modules:
            return self.inputs.run(model)

        def handle(call: Call) -> Any:
            if KIND_OF.get(call.name) == "drop":
                return call.args[0]
            if call.name == "scaled_dot_product_attention":
                places = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
                named = {**dict(zip(places, call.args, strict=False)), **call.kwargs}
                return call.function(**{**named, "dropout_p": 0.0})
            return call.run()

        with torch.random.fork_rng():
            torch.manual_seed(0)
            return watch(model, self.inputs, handle)

    def share_of(self, model: nn.Module) -> float:
        """Return a network's share of the cost that is to be kept."""
        if self.of == "parameters":
            return count_parameters(model) / max(count_parameters(self.base), 1)
        return multiply_adds(model, self.inputs)[0] / max(self.total, 1)


@dataclass(eq=False)
class Outcome:
    """What a method returns: the network, what changed, what did not and why."""

    by: str
    model: nn.Module
    changes: list[Change]
    skipped: dict[str, str]
    losses: Floats = field(default_factory=lambda: np.zeros(0))
    interrupted: bool = False
    tried: tuple[tuple[str, float], ...] = ()
    recovery: Floats = field(default_factory=lambda: np.zeros(0))


def check_keep(keep: Any) -> Keep:
    """Return a share, or shares by layer, each in (0, 1]."""
    if not isinstance(keep, Mapping):
        return _check_share("keep", keep)
    return {str(name): _check_share(f"keep[{name!r}]", share) for name, share in keep.items()}


def _check_share(name: str, value: Any) -> float:
    share = math.inf if isinstance(value, bool) else _check.number(name, value, exclusive=True)
    if share > 1:
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


def copy_model(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy in which some tensors are replaced: memo has them by the old ones' ids."""
    try:
        return copy.deepcopy(model, {} if memo is None else memo)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise InputError(f"model must be a module that can be copied: {error}") from None


def shortfall(problem: Problem, done: Outcome, reached: float | None) -> str | None:
    """Return why the share is not reached, None if the network is small enough."""
    keep = problem.keep
    if reached is None or isinstance(keep, Mapping) or reached <= TOLERANCE * keep:
        return None
    what = problem.of.replace("_", "-")
    text = f"keep={keep:g} of the {what} is not reached, {reached:.3g} is left"
    if done.skipped:
        return f"{text}; {len(done.skipped)} layers are left whole (report.skipped has the reasons)"
    if not done.changes:
        return f"{text}; nothing could be made smaller"
    return f"{text} with the fewest units or ranks that by={done.by!r} can leave"


def relative_change(old: Any, new: Any) -> float:
    """Return |new - old| / |old| over all outputs: 0 where none has changed, inf from zero."""
    change = 0.0
    size = 0.0
    for a, b in zip(tensors(old), tensors(new), strict=True):
        if a.is_floating_point():
            a = a.detach().double()
            change += float((b.detach().double() - a).square().sum())
            size += float(a.square().sum())
    if change == 0:
        return 0.0
    return math.sqrt(change / size) if size else math.inf


def first_rows(batches: Batches) -> Iterator[Batch]:
    """Yield at most MAX_ROWS rows, spread over all batches where their number is known."""
    per_batch = max(1, MAX_ROWS // batches.count) if batches.count else MAX_ROWS
    left = MAX_ROWS
    for where, inputs, y in batches:
        n = min(per_batch, left, len(inputs))
        yield Batch(where, inputs.first(n), None if y is None else y[:n])
        left -= n
        if not left:
            return
