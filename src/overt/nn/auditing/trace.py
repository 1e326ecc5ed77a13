"""What an audit asks of a recorded forward pass: where the network is affine, and what it chains.

Two questions are answered by walking back from the output: through which affine operations, and
which noise layers among them, does the output depend on what came before (the **tail**), and is
what comes before affine in the inputs, or even the inputs themselves (the **trunk**)? A third: is
the whole network one chain of linear layers and activations?
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError
from overt._types import Floats
from overt.nn.data.batches import Batch, Inputs, name_failing_inputs
from overt.nn.layers.recognized import is_weight_noise, known_noise
from overt.nn.recording.recorder import Operation, Recording, Value, record


@dataclass(frozen=True, eq=False)
class Point:
    """A place in the tail: units that noise multiplies, or that the linear operation `op` takes.

    `narrowest` is the fewest units that anything from here to the output passes through, no smaller
    than the rank of the map.
    """

    op: Operation
    noise: str | None  # name of the layer
    shifted: bool  # whether a bias is added anywhere behind it
    narrowest: int


@dataclass(frozen=True, eq=False)
class Tail:
    """What lies between the last features and the output: affine operations, one after another."""

    noises: tuple[Point, ...]  # the one nearest the output first
    linear: Point | None  # the last linear operation, and its weight
    weight: Tensor | None
    stopped: str  # the operation in front of the tail, or "the input"


@dataclass(frozen=True, eq=False)
class Trunk:
    """What lies before the features: "fixed" (the inputs themselves), "affine", or "any".

    `shifted` and `narrowest` are as for a Point, of the way from the inputs to the features.
    """

    kind: str
    shifted: bool
    narrowest: int


@dataclass(frozen=True, eq=False)
class Chain:
    """A network of linear layers with entrywise activations between them, one after another.

    It is `homogeneous` if all activations have f(t x) = t f(x) for t > 0, and slopes of at most 1.
    """

    weights: list[Floats]
    biases: list[Floats]  # zeros where a layer has none
    held: list[Tensor]  # the weights as the model holds them
    homogeneous: bool
    two_layers: bool  # whether it is a ReLU network of two layers


def few_rows(model: nn.Module, batch: Batch) -> Inputs:
    """Return two rows, or all where the model wants their number, as that of a graph's nodes."""
    with name_failing_inputs(batch.inputs, batch.where), torch.no_grad():
        with suppress(Exception):
            few = batch.inputs.first(2)
            few.run(model)
            return few
        batch.inputs.run(model)
    return batch.inputs


class Trace:
    """A recorded forward pass of a few rows, noise layers as single operations."""

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        self.inputs = inputs
        self.training: Recording | None = None  # a pass in training mode, once there is one
        self.known = False  # whether all of the model's code is
        results: list[Any] = []

        def pick(result: Any) -> Any:
            results.append(result if inputs.output is None else inputs.output(result))
            return results[-1]

        recording = record(
            model, inputs.given, output=pick, leaves=lambda _, module: known_noise(module)
        )
        if not isinstance(results[-1], Tensor):
            raise InputError(
                f"model must return one tensor of numbers, got a {type(results[-1]).__name__}; say "
                "which output counts, such as output=lambda o: o.logits"
            )
        self.operations, self.output = recording.operations, recording.output
        self.recording = recording

    @property
    def noises(self) -> dict[str, Operation]:
        """The first use of each noise layer, in the order in which they were met."""
        first: dict[str, Operation] = {}
        for op in self.operations:
            if op.noise is not None and _is_layer(op):
                first.setdefault(op.noise, op)
        return first

    @property
    def drawing(self) -> Counter[str]:
        """The modules that draw in evaluation mode too, and how often."""
        return Counter(op.module for op in self.operations if op.random and not _is_layer(op))

    def units(self, value: Value) -> int:
        """Return the number of entries that a sample has, however they are arranged."""
        return math.prod(value.shape) // len(self.inputs)

    def tail(self, *, log_softmax: bool) -> Tail:
        """Walk back from the output through affine operations of one input.

        A final log_softmax is passed over if `log_softmax`, as cross-entropy does not see it.
        """
        noises: list[Point] = []
        linear, weight, stopped = None, None, "the input"
        shifted, narrowest = False, self.units(self.output)
        for op in self.recording.back(self.output):
            if op.name == "log_softmax" and log_softmax and linear is None and not noises:
                continue
            if not is_affine(op):
                stopped = op.name
                break
            shifted |= shifts(op)
            narrowest = min(narrowest, self.units(op.given[0]))
            noise = op.noise if _is_layer(op) else None
            if noise is not None:
                noises.append(Point(op, noise, shifted, narrowest))
            if weight_of(op) is not None and linear is None:
                linear, weight = Point(op, None, shifted, narrowest), weight_of(op)
        return Tail(tuple(noises), linear, weight, stopped)

    def trunk(self, point: Point) -> Trunk:
        """Say what leads from the inputs to a place in the tail."""
        (features,) = point.op.given
        kind, shifted, narrowest = "fixed", False, self.units(features)
        source = features
        for op in self.recording.back(features):
            if not is_affine(op):
                return Trunk("any", shifted, narrowest)
            if _is_layer(op) or not _passes_on(op):
                kind = "affine"
            shifted |= shifts(op)
            (source,) = op.given
            narrowest = min(narrowest, self.units(source))
        return Trunk(kind if source.maker is None else "any", shifted, narrowest)

    def only_weight(self, point: Point) -> Tensor | None:
        """Return the weight of the one linear operation behind a place, None if there is more."""
        ops = list(takewhile(lambda op: op is not point.op, self.recording.back(self.output)))
        ops += [] if _is_layer(point.op) else [point.op]
        ops = [op for op in ops if op.name != "log_softmax"]
        weight = weight_of(ops[0]) if len(ops) == 1 and ops[0].name == "linear" else None
        meets = self.units(point.op.given[0])
        return weight if weight is not None and weight.shape[1:] == (meets,) else None

    def is_last(self, point: Point) -> bool:
        """Whether what acts at a place in the tail acts nowhere after it."""
        here, weight = point.op, weight_of(point.op)
        later = self.operations[here.at + 1 :]
        if point.noise is not None:
            return not any(op.noise == point.noise for op in later)
        return not any(weight_of(op) is weight for op in later)

    def chain(self) -> Chain | None:
        """Return the layers of a chain, None for any other network.

        A layer that acts on several positions of a sample is not one: its matrix is a larger one.
        """
        ops = list(self.recording.back(self.output))[::-1]
        if not ops or len(ops[0].given) != 1 or ops[0].given[0].maker is not None:
            return None
        weights: list[Tensor] = []
        biases, steps, homogeneous = [], [], True
        for op in ops:
            weight, what = weight_of(op), op.kind
            if weight is not None and weight.ndim == 2:
                if self.units(op.output) != len(weight):
                    return None
                bias = _bias_of(op)
                weights.append(weight)
                biases.append(np.zeros(len(weight)) if bias is None else _array(bias))
                steps.append("linear")
            elif what.values == "entrywise" and what.units == "pass":
                homogeneous &= what.homogeneous
                steps.append(op.name)
            elif not (_passes_on(op) or op.name == "log_softmax"):
                return None
        if not weights:
            return None
        two_layers = steps == ["linear", "relu", "linear"]
        return Chain([_array(W) for W in weights], biases, weights, homogeneous, two_layers)


def is_affine(op: Operation) -> bool:
    """Whether it maps one tensor that depends on the data affinely, as noise layers do."""
    if _is_layer(op):
        return True
    if len(op.given) != 1:
        return False
    (given,) = op.given
    if not (given.dtype.is_floating_point and op.output.dtype.is_floating_point):
        return False
    if op.kind.values in ("quotient", "matmul", "linear"):  # in their first argument, and no other
        return given is op.argument(0, "input")
    if _is_dropout(op) or op.name == "batch_norm":
        return op.training is False and not op.random
    return op.kind.affine


def shifts(op: Operation) -> bool:
    """Whether it may add a constant."""
    if op.kind.values == "linear" or op.leaf is not None:
        return _bias_of(op) is not None
    adds = op.kind.constant or op.kind.values in ("join", "select")
    return adds or op.name == "batch_norm"


def weight_of(op: Operation) -> Tensor | None:
    """Return the weight of a linear operation, or of a layer that drops weights."""
    if op.leaf is not None:
        return op.leaf.weight if is_weight_noise(op.leaf) else None
    if op.kind.values != "linear":
        return None
    weight = op.argument(1, "weight")
    return weight.tensor if isinstance(weight, Value) else None


def _bias_of(op: Operation) -> Tensor | None:
    if op.leaf is not None:
        return getattr(op.leaf, "bias", None)
    bias = op.argument(2, "bias")
    return bias.tensor if isinstance(bias, Value) else None


def _is_layer(op: Operation) -> bool:
    """Whether it is a call of a noise layer whose law is known."""
    return op.leaf is not None and known_noise(op.leaf)


def _passes_on(op: Operation) -> bool:
    """Whether entries are only moved, or multiplied by noise in training."""
    unit_noise = _is_layer(op) and not is_weight_noise(op.leaf)
    return unit_noise or _is_dropout(op) or op.kind.values == "move"


def _is_dropout(op: Operation) -> bool:
    """Whether it is a dropout function that no known noise layer has called."""
    return op.kind.values == "random" and "dropout" in op.name


def _array(tensor: Tensor) -> Floats:
    return np.asarray(tensor.detach().to("cpu", torch.float64, copy=True).numpy())
