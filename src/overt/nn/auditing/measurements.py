"""Measurements over data that is seen once: losses, units, sampled penalties.

A measurement has `add(seen)` for each batch; its results do not depend on how rows are batched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from overt.nn.auditing.structure import NoiseSource
from overt.nn.data.batches import Inputs
from overt.nn.data.losses import Loss, Targets
from overt.nn.data.models import restore_training


@dataclass(frozen=True, eq=False)
class Seen:
    """A batch in the model: outputs (n, outputs), checked targets, losses without noise (n,).

    `units` are the inputs of the noise layers and of the last layer, by name.
    """

    inputs: Inputs
    output: Tensor
    targets: Targets
    losses: Tensor
    units: dict[str, Tensor]


class Mean:
    """A mean and its standard error."""

    def __init__(self) -> None:
        self.count = 0
        self._total = 0.0
        self._squares = 0.0

    def add(self, values: Tensor) -> None:
        """Add one number per sample."""
        x = values.detach().double()
        self.count += len(x)
        self._total += float(x.sum())
        self._squares += float(x.square().sum())

    @property
    def value(self) -> float:
        """The mean of all samples so far."""
        return self._total / max(self.count, 1)

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        variance = self._squares / max(self.count, 1) - self.value**2
        return math.sqrt(max(variance, 0.0) / max(self.count - 1, 1))


class ActiveUnits:
    """Which units were not 0 on every sample, by the names of places."""

    def __init__(self) -> None:
        self._active: dict[str, Tensor | None] = {}  # None: their number changes

    def add(self, name: str, rows: Tensor) -> None:
        """Add rows of units."""
        active = (rows != 0).any(0).cpu()
        before = self._active.get(name, active)
        same = before is not None and before.shape == active.shape
        self._active[name] = before | active if same else None

    def count(self, name: str) -> tuple[int, int] | None:
        """Return how many units there are and how many were always 0; None if that changes."""
        active = self._active.get(name)
        return None if active is None else (len(active), int((~active).sum()))


PASSES = 3
"""Forward passes over the data that are spent on sampled masks by default: one for each noise."""

MAX_ROWS = 8192
"""Rows with a sampled mask for each noise by default: an error of 1 % of a row's deviation."""

MIN_SHARED_MASKS = 8
"""Masks that are sampled where rows share them: fewer do not tell the error."""

MIN_ROWS = 4
"""Rows of a batch on which masks are sampled, however many noises there are."""


class Estimate:
    """A mean over rows with its standard error.

    Rows that share a mask are not independent: then the variance between passes counts, too.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._rows = Mean()
        self._passes = Mean()

    def add(self, values: Tensor) -> None:
        """Add numbers (passes, rows)."""
        self._rows.add(values.mean(0))
        self._passes.add(values.mean(1))

    @property
    def value(self) -> float:
        """The mean."""
        return self._rows.value

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return max(self._rows.error, self._passes.error if self._shared else 0.0)


class SampledPenalties:
    """Running estimates of what sources of noise add to the loss, in the order of the pass.

    What the last `exact` of them add is known. `added[i]` is what another source adds with all
    those behind it on, `total` what all others add to the loss under the noise of the exact ones.
    By default rows come from all `batches` of `size` rows, or from the first ones if their number
    is not known (0). A batch that the model takes only as a whole is used as a `whole`.
    """

    def __init__(
        self,
        model: nn.Module,
        sources: Sequence[NoiseSource],
        loss: Loss,
        *,
        exact: int,
        batches: int,
        size: int,
        passes: float | None,
        whole: bool,
    ) -> None:
        self._model = model
        self._sources = sources
        self._loss = loss
        shared = whole or size < 2 or any(source.shared_by_rows for source in sources)
        others = len(sources) - exact
        spent = min(PASSES, others) if passes is None else passes
        rows = size * spent / max(others, 1)
        self._limit = math.inf
        if passes is None:
            rows = min(rows, MAX_ROWS / max(batches, 1))
            self._limit = math.inf if batches else MAX_ROWS
        least = MIN_SHARED_MASKS / max(batches, 1) if shared else 1
        self._masks = math.ceil(max(rows / size, least))
        self._rows = min(size, max(math.ceil(rows / self._masks), MIN_ROWS))
        if whole:
            self._rows = size
        self._sampled = 0
        self.added = [Estimate(shared=shared) for _ in range(others)]
        self.total = Estimate(shared=shared)

    def add(self, seen: Seen) -> None:
        """Sample masks for some rows of a batch."""
        others = len(self.added)
        if self._sampled >= self._limit or not others:
            return
        exact_on = seen.losses[: self._rows].expand(self._masks, -1)
        self._sampled += exact_on.numel()
        if others < len(self._sources):
            exact_on = self._losses(seen, self._sources[others:])
        behind = exact_on
        for i in reversed(range(others)):
            losses = self._losses(seen, self._sources[i:])
            self.added[i].add(losses - behind)
            behind = losses
        self.total.add(behind - exact_on)

    def _losses(self, seen: Seen, on: Sequence[NoiseSource]) -> Tensor:
        """Return sampled losses (masks, rows) with some sources on."""
        inputs = seen.inputs.first(self._rows)
        modules = [module for source in on for module in source.modules]
        with torch.no_grad(), restore_training(modules, True):
            sampled = [
                seen.targets.losses(inputs.run(self._model), self._loss)
                for _ in range(self._masks)
            ]
        return torch.stack(sampled)
