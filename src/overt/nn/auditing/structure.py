"""The structure of a recorded forward pass: where the network is affine, and where noise is.

Walking back from the output answers two questions. Through which affine operations, and which noise
layers among them, does the output depend on what came before (the **tail**)? Is what comes before
affine in the inputs, or even the inputs themselves (the **trunk**)?
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from torch import Tensor, nn

from overt._check import InputError
from overt.nn.data.batches import Inputs
from overt.nn.layers.recognized import is_weight_noise, known_noise
from overt.nn.recording.recorder import Operation, Recording, Value, record


@dataclass(frozen=True, eq=False)
class Point:
    """A place in the tail: the input of the operation `op`, a noise layer or a linear operation.

    `narrowest` is the fewest units that anything from here to the output passes through. No map
    behind this place has a larger rank.
    """

    op: Operation
    noise: str | None  # name of the noise layer
    shifted: bool  # whether a bias is added behind it
    narrowest: int


@dataclass(frozen=True, eq=False)
class Tail:
    """The affine operations at the end of a network, one after another."""

    noises: tuple[Point, ...]  # the one nearest the output first
    linear: Point | None  # the last linear operation, and its weight
    weight: Tensor | None
    stopped: str  # the operation in front of the tail, or "the input"


@dataclass(frozen=True, eq=False)
class Trunk:
    """What lies before a place: "fixed" (the inputs themselves), "affine", or "any".

    `shifted` and `narrowest` are as for a Point, for the way from the inputs to the place.
    """

    kind: str
    shifted: bool
    narrowest: int


class Structure:
    """A recorded forward pass of a few rows, noise layers as single operations."""

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        self.inputs = inputs
        self.recording = record(
            model, inputs.given, output=_one_tensor(inputs.output), leaves=is_noise_leaf
        )
        self.operations = self.recording.operations
        self.output = self.recording.output

    @property
    def noises(self) -> dict[str, Operation]:
        """The first use of each noise layer, in the order of the pass."""
        first: dict[str, Operation] = {}
        for op in self.operations:
            if op.noise is not None and is_noise_layer(op):
                first.setdefault(op.noise, op)
        return first

    @property
    def random_in_evaluation(self) -> Counter[str]:
        """The modules that sample in evaluation mode too, and how often."""
        return Counter(op.module for op in self.operations if op.random and not is_noise_layer(op))

    def units(self, value: Value) -> int:
        """Return the number of entries per sample."""
        return math.prod(value.shape) // len(self.inputs)

    def tail(self, *, log_softmax: bool) -> Tail:
        """Walk back from the output through affine operations of one input.

        With `log_softmax` a final log_softmax is skipped: cross-entropy does not depend on it.
        """
        noises: list[Point] = []
        linear = None
        weight = None
        stopped = "the input"
        shifted = False
        narrowest = self.units(self.output)
        for op in self.recording.back(self.output):
            if op.name == "log_softmax" and log_softmax and linear is None and not noises:
                continue
            if not is_affine(op):
                stopped = op.name
                break
            shifted |= adds_constant(op)
            narrowest = min(narrowest, self.units(op.given[0]))
            if is_noise_layer(op):
                noises.append(Point(op, op.noise, shifted, narrowest))
            if linear is None and weight_of(op) is not None:
                linear = Point(op, None, shifted, narrowest)
                weight = weight_of(op)
        return Tail(tuple(noises), linear, weight, stopped)

    def trunk(self, point: Point) -> Trunk:
        """Return what leads from the inputs to a place in the tail."""
        (features,) = point.op.given
        kind = "fixed"
        shifted = False
        narrowest = self.units(features)
        source = features
        for op in self.recording.back(features):
            if not is_affine(op):
                return Trunk("any", shifted, narrowest)
            if is_noise_layer(op) or not _only_moves(op):
                kind = "affine"
            shifted |= adds_constant(op)
            (source,) = op.given
            narrowest = min(narrowest, self.units(source))
        return Trunk(kind if source.maker is None else "any", shifted, narrowest)

    def only_weight(self, point: Point) -> Tensor | None:
        """Return the weight of the one linear operation behind a place, None if there is more."""
        ops = list(takewhile(lambda op: op is not point.op, self.recording.back(self.output)))
        if not is_noise_layer(point.op):
            ops.append(point.op)
        ops = [op for op in ops if op.name != "log_softmax"]
        if len(ops) != 1 or ops[0].name != "linear":
            return None
        weight = weight_of(ops[0])
        units = self.units(point.op.given[0])
        return weight if weight is not None and weight.shape[1:] == (units,) else None

    def is_last(self, point: Point) -> bool:
        """Return whether the noise or weight at a place is not used again after it."""
        later = self.operations[point.op.at + 1 :]
        if point.noise is not None:
            return not any(op.noise == point.noise for op in later)
        weight = weight_of(point.op)
        return not any(weight_of(op) is weight for op in later)


def record_training(model: nn.Module, inputs: Inputs) -> Recording:
    """Record a pass in the model's current modes, without storing values."""
    return record(model, inputs.given, leaves=is_noise_leaf, keep=False)


def is_noise_leaf(name: str, module: nn.Module) -> bool:
    """Return whether the recorder treats a module as one operation."""
    return known_noise(module)


def is_noise_layer(op: Operation) -> bool:
    """Return whether an operation is a call of a noise layer whose moments are known."""
    return op.leaf is not None and known_noise(op.leaf)


def is_affine(op: Operation) -> bool:
    """Return whether an operation is affine in the one tensor that depends on the data."""
    if is_noise_layer(op):
        return True
    if len(op.given) != 1:
        return False
    (given,) = op.given
    if not (given.dtype.is_floating_point and op.output.dtype.is_floating_point):
        return False
    if op.kind.values in ("quotient", "matmul", "linear"):  # in the first argument only
        return given is op.argument(0, "input")
    if _is_dropout(op) or op.name == "batch_norm":
        return op.training is False and not op.random
    return op.kind.affine


def adds_constant(op: Operation) -> bool:
    """Return whether an affine operation may add a constant."""
    if op.leaf is not None:
        return getattr(op.leaf, "bias", None) is not None
    if op.kind.values == "linear":
        return isinstance(op.argument(2, "bias"), Value)
    return op.kind.constant or op.kind.values in ("join", "select") or op.name == "batch_norm"


def weight_of(op: Operation) -> Tensor | None:
    """Return the weight of a linear operation, or of a layer that drops weights."""
    if op.leaf is not None:
        return op.leaf.weight if is_weight_noise(op.leaf) else None
    if op.kind.values != "linear":
        return None
    weight = op.argument(1, "weight")
    return weight.tensor if isinstance(weight, Value) else None


def _only_moves(op: Operation) -> bool:
    """Return whether an operation only moves entries, or multiplies them by noise in training."""
    unit_noise = is_noise_layer(op) and not is_weight_noise(op.leaf)
    return unit_noise or _is_dropout(op) or op.kind.values == "move"


def _is_dropout(op: Operation) -> bool:
    """Return whether an operation is a dropout function that no known noise layer has called."""
    return op.kind.values == "random" and "dropout" in op.name


def _one_tensor(output: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """Return a function that selects the output, and refuses what is not one tensor."""

    def select(result: Any) -> Tensor:
        value = result if output is None else output(result)
        if not isinstance(value, Tensor):
            raise InputError(
                f"model must return one tensor of numbers, got a {type(value).__name__}; say "
                "which output counts, such as output=lambda o: o.logits"
            )
        return value

    return select
