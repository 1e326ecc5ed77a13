"""What noise adds to a loss, from sampled masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from overt.nn.auditing.measurements import Mean, Seen
from overt.nn.auditing.noises import NoiseSource
from overt.nn.data.batches import Inputs
from overt.nn.data.losses import Loss
from overt.nn.data.models import restore_training


@dataclass(frozen=True)
class Effort:
    """How much is sampled, chosen so that an audit costs about `passes` forward passes."""

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

    `added[i]` is what source i adds with all those behind it on, `total` what all of them add,
    `before_last` what all but the last add to the loss under the last one's noise. Rows come from
    all `batches` of `size` rows, or from the first ones if their number is not known (0).
    A batch that the model takes only as a whole is used as a `whole`.
    """

    def __init__(
        self,
        model: nn.Module,
        sources: Sequence[NoiseSource],
        loss: Loss,
        *,
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
        self.added = [Estimate(shared=shared) for _ in sources]
        self.total = Estimate(shared=shared)
        self.before_last = Estimate(shared=shared)

    def add(self, seen: Seen) -> None:
        """Sample masks for some rows of a batch."""
        if self._sampled >= EFFORT.rows or not self._sources:
            return
        inputs = seen.inputs.first(self._rows)
        clean = seen.losses[: self._rows].expand(self._masks, -1)
        self._sampled += clean.numel()
        # Losses with the sources from each one to the end on; the last is without noise.
        losses = [clean]
        for i in reversed(range(len(self._sources))):
            values = losses[0]
            if not self._sources[i].silent:
                values = self._losses(inputs, seen, self._sources[i:])
            self.added[i].add(values - losses[0])
            losses.insert(0, values)
        self.total.add(losses[0] - clean)
        self.before_last.add(losses[0] - losses[-2])

    def _losses(self, inputs: Inputs, seen: Seen, on: Sequence[NoiseSource]) -> Tensor:
        """Return sampled losses (masks, rows) with some sources on."""
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
