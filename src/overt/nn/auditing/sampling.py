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
from overt.nn.auditing.noises import NoiseSource
from overt.nn.auditing.streaming import Mean, coadaptation
from overt.nn.data.batches import Inputs, first_line
from overt.nn.data.losses import Loss, Targets
from overt.nn.data.models import hook_modules, restore_training
from overt.nn.layers.recognized import is_weight_noise, mask_covariance_of


@dataclass(frozen=True)
class Effort:
    """How much is sampled, chosen so that an audit costs about `passes` forward passes."""

    share: float = 0.3  # of the forward passes that may be spent on sampled masks
    rows: int = (
        8192  # rows with sampled masks: an error of 1 % of a row's standard deviation
    )
    max_masks: int = 16  # masks per row, where data are small
    min_shared_masks: int = (
        8  # passes where the rows of a batch share a mask: they tell the error
    )
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
        if self._shared:
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
        shapes = {tuple(square.shape) for square in known}
        if len(known) < len(squares) or len(shapes) != 1:
            self._given_up = True
            return
        total = sum(known[1:], known[0]).double().cpu().numpy()
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
        sums = self._sums
        n = self._counts.sum()
        psi = np.sqrt(sums.sum(0) / n)
        used = self._counts > 0
        folds = int(used.sum())
        left = n - self._counts[used]
        if folds < 2 or (left == 0).any():
            return Flow(psi, np.full(len(psi), np.nan), math.nan)
        others = np.sqrt(np.maximum(sums.sum(0) - sums[used], 0) / left[:, None])
        phi = np.array(
            [coadaptation(part) for part in others], dtype=float
        )  # None: all are 0
        weight = (folds - 1) / folds
        error = np.sqrt(weight * np.square(others - others.mean(0)).sum(0))
        return Flow(
            psi, error, math.sqrt(weight * float(np.square(phi - phi.mean()).sum()))
        )


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
        *,
        batches: int,
        size: int,
        passes: float,
        whole: bool,
    ) -> None:
        self._model = model
        self._sources = list(sources)
        shared = whole or size < 2 or any(source.shared_by_rows for source in sources)
        noisy = sum(not source.silent for source in sources)
        cost = EFFORT.source_cost * noisy + EFFORT.flow_cost
        affordable = EFFORT.share * passes / cost  # masks per row, over all rows
        rows = -(-EFFORT.rows // batches) if batches else EFFORT.rows
        masks = min(max(rows // size, 1), EFFORT.max_masks, max(int(affordable), 1))
        if shared:
            room = max(int(size * affordable / EFFORT.min_rows), 2)
            masks = max(
                masks, min(-(-EFFORT.min_shared_masks // max(batches, 1)), room)
            )
        self._masks = masks
        rows = min(-(-rows // masks), int(size * affordable / masks))
        self._rows = size if whole else max(rows, min(size, EFFORT.min_rows))
        self._sampled = 0
        self.added = [Estimate(shared=shared) for _ in sources]
        self.total = Estimate(shared=shared)
        self.before_last = Estimate(shared=shared)
        self._flows = [FlowSums() for _ in sources]
        self.no_flows: str | None = None  # why there are none

    def add(self, inputs: Inputs, targets: Targets, clean: Tensor, loss: Loss) -> None:
        """Sample masks for rows of a batch; `clean` are the rows' losses without noise."""
        if self._sampled >= EFFORT.rows or not self._sources:
            return
        inputs = inputs.first(self._rows)
        targets = targets.first(self._rows)
        clean = clean[: self._rows].expand(self._masks, -1)
        self._sampled += clean.numel()
        later = clean  # losses with the sources behind the present one on
        last = clean
        for i in reversed(range(len(self._sources))):
            values = later
            if not self._sources[i].silent:
                values = self._losses(inputs, targets, loss, self._sources[i:])
            self.added[i].add(values - later)
            later = values
            if i == len(self._sources) - 1:
                last = values
        self.total.add(later - clean)
        self.before_last.add(later - last)
        if self.no_flows is None:
            try:
                for _ in range(
                    self._masks if clean.shape[1] < EFFORT.max_flow_rows else 1
                ):
                    self._add_flows(inputs)
            except RuntimeError as error:  # the forward pass may have no gradient
                self.no_flows = first_line(error)

    def flow(self, i: int) -> Flow | None:
        """Return the flow through the units of source i, None if it is not known."""
        return None if self.no_flows is not None else self._flows[i].result()

    def _losses(
        self, inputs: Inputs, targets: Targets, loss: Loss, on: list[NoiseSource]
    ) -> Tensor:
        """Return sampled losses (masks, rows) with some sources on."""
        switches = [part for source in on for part in _switches(source.module)]
        with torch.no_grad(), restore_training(switches, True):
            sampled = [
                targets.losses(inputs.run(self._model), loss)
                for _ in range(self._masks)
            ]
        return torch.stack(sampled)

    def _add_flows(self, inputs: Inputs) -> None:
        """Add (h_j df/dh_j)^2 for one random direction f of the outputs."""
        known = [
            source.module for source in self._sources if source.example is not None
        ]
        if not known:
            return
        with torch.enable_grad(), _add_zeros(known) as uses:
            output = inputs.run(self._model)
            signs = (
                torch.randint(0, 2, output.shape, device=output.device).to(output) * 2
                - 1
            )
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


def _switches(module: nn.Module) -> list[nn.Module]:
    """Return the modules whose mode switches a source on: a scripted one samples in its parts."""
    scripted = isinstance(module, torch.jit.ScriptModule)
    return list(module.modules()) if scripted else [module]


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
