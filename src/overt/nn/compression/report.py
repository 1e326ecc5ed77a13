"""What `compress` tells about what it did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from overt._check import InputError
from overt._types import Floats
from overt.results import Result, Status

Keep = float | Mapping[str, float]
"""One share for all layers, or a share for each of those named."""


@dataclass(frozen=True, repr=False, eq=False)
class Size(Result):
    """A network in numbers.

    Attributes
    ----------
    parameters
        Number of parameters, shared ones once.
    multiply_adds
        Of linear and convolutional layers, for one example.
    latency
        Median seconds of a pass of the example, measured in turns with the other network.
    loss, accuracy
        On the batches given; None without them (or without classes).
    """

    parameters: int
    multiply_adds: int
    latency: float
    loss: float | None
    accuracy: float | None


@dataclass(frozen=True, repr=False, eq=False)
class Change(Result):
    """What became of one layer, or of the layers whose outputs are added together.

    Attributes
    ----------
    layers
        Their names.
    kind
        "units": fewer outputs; "rank": two layers in place of one.
    before, after
        Number of units; for a rank the largest rank of the layer, and the new one.
    operator_error, frobenius_error
        Norms of the difference between the old and the new map W; |y' - y| is at most
        operator_error times |x - (mean input)| for every input x (mean 0 without data).
    data_error
        Root of the mean squared difference |y' - y| of the layer's outputs on the batches given,
        when its inputs are unchanged.
    relative_error
        data_error against the outputs' spread, or frobenius_error against |W|.
    """

    layers: tuple[str, ...]
    kind: str
    before: int
    after: int
    operator_error: float | None = None
    frobenius_error: float | None = None
    data_error: float | None = None
    relative_error: float | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Compression(Result):
    """What `compress` did, and what it cost.

    Attributes
    ----------
    by, keep
        The way that was taken, and what was asked for.
    before, after
        Both networks in numbers.
    changes
        What became smaller.
    skipped
        What did not: (layer, reason).
    tried
        With by="auto", the ways compared: (way, loss on the data), or without targets (way,
        relative change of the outputs).
    output_change
        Relative root mean square change of the outputs on the example.
    losses
        Held-out loss of every sub-network that was drawn (by="mask").
    recovery
        Loss before and during recovery training, if there was any.
    recipe
        Plain torch statements that turn the model, as it was built, into the smaller one, so that
        its state can be loaded without overt.
    status
        "finished", or "interrupted": then it is the best found until then.
    """

    by: str
    keep: Any
    before: Size
    after: Size
    changes: tuple[Change, ...]
    skipped: tuple[tuple[str, str], ...]
    tried: tuple[tuple[str, float], ...]
    output_change: float
    losses: Floats
    recovery: Floats
    recipe: tuple[str, ...]
    status: Status

    @property
    def speedup(self) -> float:
        """Latency before / after."""
        return self.before.latency / self.after.latency

    def __str__(self) -> str:
        lines = [f"compressed by {self.by}, status {self.status}"]
        rows: list[tuple[str, Any, Any]] = [
            ("parameters", self.before.parameters, self.after.parameters),
            ("multiply-adds", self.before.multiply_adds, self.after.multiply_adds),
            ("latency, ms", 1e3 * self.before.latency, 1e3 * self.after.latency),
            ("loss", self.before.loss, self.after.loss),
            ("accuracy", self.before.accuracy, self.after.accuracy),
        ]
        lines += [
            f"  {name:<14}{_number(a):>14} -> {_number(b):>14}"
            for name, a, b in rows
            if a is not None and b is not None
        ]
        for change in self.changes:
            error = (
                f", relative error {change.relative_error:.3g}"
                if change.relative_error is not None
                else ""
            )
            lines.append(
                f"  {' + '.join(change.layers)}: {change.kind} {change.before} -> "
                f"{change.after}{error}"
            )
        lines += [f"  left whole: {name}: {reason}" for name, reason in self.skipped]
        return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


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


def check_layers(keep: Mapping[str, float], layers: Iterable[str]) -> None:
    """Refuse shares for modules that are not layers with outputs of their own."""
    known = set(layers)
    unknown = [name for name in keep if name not in known]
    if unknown:
        raise InputError(
            f"keep must name layers with units of their own, got {', '.join(unknown)}; there are "
            f"{', '.join(sorted(known))}"
        )
