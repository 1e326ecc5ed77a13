"""Measurements over data that is seen once: losses, units, norms of layers, sampled penalties.

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
from overt.nn.layers.recognized import is_weight_noise


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


def is_layer(module: nn.Module) -> bool:
    """Return whether a module applies weights to its input, linearly."""
    linear = isinstance(module, (nn.Linear, nn.modules.conv._ConvNd))
    return linear or is_weight_noise(module)


class ActiveUnits:
    """Which units were not 0 on every sample, by the names of places."""

    def __init__(self) -> None:
        self._active: dict[str, Tensor] = {}
        self._changing: set[str] = set()

    def add(self, name: str, rows: Tensor) -> None:
        """Add rows of units."""
        active = (rows != 0).any(0).cpu()
        before = self._active.get(name, active)
        if before.shape != active.shape:
            self._changing.add(name)
        else:
            self._active[name] = before | active

    def count(self, name: str) -> tuple[int, int] | None:
        """Return how many units there are and how many were always 0; None if that changes."""
        if name in self._changing or name not in self._active:
            return None
        active = self._active[name]
        return len(active), int((~active).sum())


@dataclass(frozen=True)
class Effort:
    """How much is sampled, at most: what an audit of `passes` forward passes has room for."""

    share: float = 0.3  # of the forward passes that may be spent on sampled masks
    rows: int = (
        8192  # with sampled masks: an error of 1 % of a row's standard deviation
    )
    max_masks: int = 16  # masks per row, where data are small
    min_shared_masks: int = 8  # passes where rows share a mask: they tell the error
    min_rows: int = 4  # rows of a batch, however many layers there are
    source_cost: int = 3  # passes that sampling one source takes
    other_cost: int = 6  # passes that everything else takes


EFFORT = Effort()


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
    Rows come from all `batches` of `size` rows, or from the first ones if their number is not known
    (0). A batch that the model takes only as a whole is used as a `whole`.
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
        passes: float,
        whole: bool,
    ) -> None:
        self._model = model
        self._sources = sources
        self._loss = loss
        shared = whole or size < 2 or any(source.shared_by_rows for source in sources)
        noisy = sum(not source.silent for source in sources)
        cost = EFFORT.source_cost * noisy + EFFORT.other_cost
        affordable = EFFORT.share * passes / cost  # masks per row, over all rows
        rows = -(-EFFORT.rows // batches) if batches else EFFORT.rows
        masks = min(max(rows // size, 1), EFFORT.max_masks, max(int(affordable), 1))
        if shared:
            room = max(int(size * affordable / EFFORT.min_rows), 2)
            least = -(-EFFORT.min_shared_masks // max(batches, 1))
            masks = max(masks, min(least, room))
        self._masks = masks
        rows = min(-(-rows // masks), int(size * affordable / masks))
        self._rows = size if whole else max(rows, min(size, EFFORT.min_rows))
        self._sampled = 0
        self.added = [Estimate(shared=shared) for _ in range(len(sources) - exact)]
        self.total = Estimate(shared=shared)

    def add(self, seen: Seen) -> None:
        """Sample masks for some rows of a batch."""
        others = len(self.added)
        if self._sampled >= EFFORT.rows or not others:
            return
        clean = seen.losses[: self._rows].expand(self._masks, -1)
        self._sampled += clean.numel()
        exact_on = self._losses(seen, self._sources[others:], clean)
        behind = exact_on
        for i in reversed(range(others)):
            losses = behind
            if not self._sources[i].silent:
                losses = self._losses(seen, self._sources[i:], clean)
            self.added[i].add(losses - behind)
            behind = losses
        self.total.add(behind - exact_on)

    def _losses(self, seen: Seen, on: Sequence[NoiseSource], clean: Tensor) -> Tensor:
        """Return sampled losses (masks, rows) with some sources on."""
        if all(source.silent for source in on):
            return clean
        inputs = seen.inputs.first(self._rows)
        targets = seen.targets.first(len(inputs))
        switches: list[nn.Module] = []
        for source in on:  # a scripted module samples in its parts
            scripted = isinstance(source.module, torch.jit.ScriptModule)
            switches += source.module.modules() if scripted else [source.module]
        with torch.no_grad(), restore_training(switches, True):
            sampled = [
                targets.losses(inputs.run(self._model), self._loss)
                for _ in range(self._masks)
            ]
        return torch.stack(sampled)
