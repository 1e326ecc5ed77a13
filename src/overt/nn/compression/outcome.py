"""A smaller network on its way to the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from overt._check import InputError
from overt._types import Floats
from overt.nn.compression.batches import Batches
from overt.nn.compression.report import Change
from overt.nn.compression.tracing import Inputs

Keep = float | Mapping[str, float]
"""One share for all layers, or a share for each of those named."""


@dataclass
class Outcome:
    """What a way of compressing returns: the network, what changed, what did not and why."""

    model: nn.Module
    changes: list[Change]
    skipped: dict[str, str]
    losses: Floats = field(default_factory=lambda: np.zeros(0))
    interrupted: bool = False


def inputs_of(batches: Batches | None, inputs: Inputs) -> Iterator[Inputs]:
    """Yield the inputs of all batches, or the example where there are none."""
    if batches is None:
        yield inputs
        return
    for batch, _ in batches:
        yield batch


def has_units(keep: Mapping[str, float], layers: Iterable[str]) -> None:
    """Refuse shares for modules that are not layers with outputs of their own."""
    known = set(layers)
    unknown = [name for name in keep if name not in known]
    if unknown:
        raise InputError(
            f"keep must name layers with units of their own, got {', '.join(unknown)}; there are "
            f"{', '.join(sorted(known))}"
        )
