"""What noise adds to a loss, and what units contribute, from sampled masks and directions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._types import Floats
from overt.nn.auditing.measurements import Mean, Seen, coadaptation
from overt.nn.auditing.noises import NoiseSource
from overt.nn.data.batches import Inputs, first_line
from overt.nn.data.losses import Loss
from overt.nn.data.models import hook_modules, restore_training
from overt.nn.layers.recognized import is_weight_noise, mask_covariance_of


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
    flow_cost: int = 6  # passes that the flows take
    max_flow_rows: int = 512  # from this size on flows are taken once for a batch
    folds: int = 8  # parts of the rows that the jackknife leaves out in turn


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


@dataclass(frozen=True, eq=False)
class Flow:
    """The flow psi through units, its standard errors and that of its co-adaptation."""

    psi: Floats
    error: Floats
    coadaptation_error: float


class FlowSums:
    """Sums of psi_j^2 over parts of the rows, for a jackknife; given up when units change."""

    def __init__(self) -> None:
        self._sums: Floats | None = None
        self._counts = np.zeros(EFFORT.folds)
        self._given_up = False

    def add(self, squares: Sequence[Tensor | None]) -> None:
        """Add psi_j^2 of each row, (rows, units), for every use of a layer in a pass."""
        known = [square for square in squares if square is not None]
        shapes = {square.shape for square in known}
        if len(known) < len(squares) or len(shapes) != 1:
            self._given_up = True
            return
        total = torch.stack(known).sum(0).double().cpu().numpy()
        if self._sums is None:
            self._sums = np.zeros((EFFORT.folds, total.shape[1]))
        if self._sums.shape[1] != total.shape[1]:
            self._given_up = True
            return
        fold = (np.arange(len(total)) + int(self._counts.sum())) % EFFORT.folds
        np.add.at(self._sums, fold, total)
        self._counts += np.bincount(fold, minlength=EFFORT.folds)

    def result(self) -> Flow | None:
        """Return psi with its standard errors, None if it is not known."""
        if self._sums is None or self._given_up:
            return None
        total = self._sums.sum(0)
        n = self._counts.sum()
        psi = np.sqrt(total / n)
        used = self._counts > 0
        folds = int(used.sum())
        if folds < 2:
            return Flow(psi, np.full(len(psi), np.nan), math.nan)
        left = n - self._counts[used]
        others = np.sqrt(np.maximum(total - self._sums[used], 0) / left[:, None])
        phi = np.array([coadaptation(part) for part in others], dtype=float)
        errors = [
            np.sqrt((folds - 1) * np.square(part - part.mean(0)).mean(0))
            for part in (others, phi)
        ]
        return Flow(psi, errors[0], float(errors[1]))


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
        cost = EFFORT.source_cost * noisy + EFFORT.flow_cost
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
        self._flows = [FlowSums() for _ in sources]
        self.no_flows: str | None = None  # why there are none

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
        if self.no_flows is not None:
            return
        repeats = self._masks if clean.shape[1] < EFFORT.max_flow_rows else 1
        try:
            for _ in range(repeats):
                self._add_flows(inputs)
        except RuntimeError as error:  # the forward pass may have no gradient
            self.no_flows = first_line(error)

    def flow(self, i: int) -> Flow | None:
        """Return the flow through the units of source i, None if it is not known."""
        if self.no_flows is not None or not self._sources:
            return None
        return self._flows[i].result()

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

    def _add_flows(self, inputs: Inputs) -> None:
        """Add (h_j df/dh_j)^2 for one random direction f of the outputs."""
        known = [s.module for s in self._sources if s.example is not None]
        if not known:
            return
        with torch.enable_grad(), _add_zeros(known) as uses:
            output = inputs.run(self._model)
            signs = torch.randint(0, 2, output.shape, device=output.device) * 2 - 1
            zeros = [zero for _, _, zero in uses]
            if not zeros:
                return
            grads = torch.autograd.grad(
                (output * signs).sum(), zeros, materialize_grads=True
            )
        for source, flows in zip(self._sources, self._flows, strict=True):
            squares = [
                _squared_flows(module, h, grad)
                for (module, h, _), grad in zip(uses, grads, strict=True)
                if module is source.module
            ]
            if squares:
                flows.add(squares)


@contextmanager
def _add_zeros(
    modules: Sequence[nn.Module],
) -> Iterator[list[tuple[nn.Module, Tensor, Tensor]]]:
    """Add zeros that require gradients to the modules' outputs; yield (module, input, zeros)."""
    uses: list[tuple[nn.Module, Tensor, Tensor]] = []

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        zeros = torch.zeros_like(output, requires_grad=True)
        uses.append((module, args[0].detach(), zeros))
        return output + zeros

    with hook_modules(modules, after=hook):
        yield uses


def _squared_flows(module: Any, h: Tensor, grad: Tensor) -> Tensor | None:
    """Return (h_j df/dh_j)^2 for each row, entries that share a mask added up."""
    if is_weight_noise(module):
        if h.ndim != 2 or module.weight.ndim != 2:
            return None
        return (grad**2) @ (module.weight.detach() ** 2) * h**2
    flow = grad * h
    shared = mask_covariance_of(module, tuple(h.shape)).shared
    if shared:
        flow = flow.sum([1 + axis for axis in shared])
    return flow.square().flatten(1)
