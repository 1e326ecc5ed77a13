"""What noise adds to a loss, and what units contribute, from sampled masks and directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._types import Floats
from overt.nn.auditing.noises import Source
from overt.nn.auditing.report import NoiseFindings
from overt.nn.auditing.sums import Mean
from overt.nn.data.batches import Inputs, first_line
from overt.nn.data.losses import Loss, Targets
from overt.nn.data.models import restore_training
from overt.nn.data.rng import torch_rng_from
from overt.nn.layers.recognized import is_weight_noise, mask_covariance_of
from overt.nn.recording.hooks import hooked
from overt.relu.bounds import coadaptation

ROWS, MAX_DRAWS, SHARED_DRAWS = 8192, 16, 8
"""Rows on which masks are sampled, how often at most for each row of small data, and the fewest
passes where the rows of a batch share a mask."""

FEWEST = 4
"""Rows of a batch on which masks are sampled at least, however many layers there are."""

FOLDS = 8
"""Parts of the rows that are left out in turn to tell the error of flows."""


class Estimate:
    """A mean over rows with its standard error.

    Rows that share a mask are not independent: then the spread of passes tells the error, too.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared, self._rows, self._passes = shared, Mean(), Mean()

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
        """Its standard error."""
        return max(self._rows.error, self._passes.error if self._shared else 0.0)

    @property
    def result(self) -> tuple[float, float]:
        """Both."""
        return self.value, self.error


class Flows:
    """psi_j of a layer's units with its error, from sums over parts of the rows."""

    def __init__(self) -> None:
        self._parts: Tensor | None = None
        self._counts = np.zeros(FOLDS)

    def add(self, squared: Tensor) -> bool:
        """Add psi_j^2 of each row; whether the units are those that were there before."""
        squared = squared.double().cpu()
        if self._parts is None:
            self._parts = torch.zeros(FOLDS, squared.shape[1], dtype=torch.float64)
        if self._parts.shape[1:] != squared.shape[1:]:
            return False
        part = (torch.arange(len(squared)) + int(self._counts.sum())) % FOLDS
        self._parts.index_add_(0, part, squared)
        self._counts += np.bincount(part.numpy(), minlength=FOLDS)
        return True

    def value(self) -> tuple[Floats, Floats, float] | None:
        """Return psi, its standard error and that of the co-adaptation (jackknife)."""
        if self._parts is None:
            return None
        sums, n = self._parts.numpy(), self._counts.sum()
        psi = np.sqrt(sums.sum(0) / n)
        used = self._counts > 0
        left = n - self._counts[used]
        if used.sum() < 2 or (left == 0).any():
            return psi, np.full(len(psi), np.nan), math.nan
        others = np.sqrt(np.maximum(sums.sum(0) - sums[used], 0) / left[:, None])
        weight = (used.sum() - 1) / used.sum()
        error = np.sqrt(weight * np.square(others - others.mean(0)).sum(0))
        phi = np.array([coadaptation(part) for part in others], dtype=float)  # None: all are 0
        return psi, error, math.sqrt(weight * float(np.square(phi - phi.mean()).sum()))


class Sampled:
    """Running estimates for some sources of noise, in the order in which they are met.

    `added[i]` is what source i adds to the loss with all those behind it on, `total` what all of
    them add, `before_last` what all but the last add to the loss under the last one's noise.

    At most ROWS rows, and as many as `passes` forward passes over all rows allow, are spread over
    the `batches` of `size` rows; the first ones are taken where their number is not known (0), and
    all of a batch that is taken `whole`.
    """

    def __init__(
        self, model: nn.Module, sources: Sequence[Source], batches: int, size: int, passes: float,
        *, whole: bool,
    ) -> None:  # fmt: skip
        self._model, self._sources = model, list(sources)
        self._modules = [source.module for source in sources]
        shared = whole or size < 2 or any(source.shared for source in sources)
        # Drawing costs about as much as two passes, flows as six.
        cost = 3 * sum(not source.silent for source in sources) + 6
        self._most = -(-ROWS // batches) if batches else ROWS
        self._draws = min(max(self._most // size, 1), MAX_DRAWS, max(int(passes / cost), 1))
        if shared:
            room = max(int(size * passes / (cost * FEWEST)), 2)
            self._draws = max(self._draws, min(-(-SHARED_DRAWS // max(batches, 1)), room))
        allowed = int(size * passes / (cost * self._draws))
        self._most = max(min(-(-self._most // self._draws), allowed), min(size, FEWEST))
        self._most = size if whole else self._most
        self.added = [Estimate(shared=shared) for _ in sources]
        self.total, self.before_last = Estimate(shared=shared), Estimate(shared=shared)
        self._flows: list[Flows | None] = [Flows() for _ in sources]
        self.rows = 0
        self.no_flows: str | None = None

    def add(self, inputs: Inputs, targets: Targets, clean: Tensor, loss: Loss) -> None:
        """Sample masks for each row of a batch and each source, `draws` times."""
        if self.rows >= ROWS or not self._modules:
            return
        inputs, clean = inputs.first(self._most), clean[: self._most]
        targets = targets.first(self._most)
        self.rows += len(clean) * self._draws
        last = later = clean = clean.expand(self._draws, -1)
        for i in reversed(range(len(self._modules))):
            values = later
            if not self._sources[i].silent:  # else it adds nothing
                on = [part for module in self._modules[i:] for part in _switches(module)]
                with torch.no_grad(), restore_training(on, True):
                    values = torch.stack(
                        [targets.losses(inputs.run(self._model), loss) for _ in range(self._draws)]
                    )
            self.added[i].add(values - later)
            later = values
            last = values if i == len(self._modules) - 1 else last
        self.total.add(later - clean)
        self.before_last.add(later - last)
        if self.no_flows is None:
            try:
                for _ in range(self._draws if len(clean.T) < 512 else 1):
                    self._add_flows(inputs)
            except RuntimeError as error:  # a forward pass may have no gradient
                self.no_flows = first_line(error)

    def flows(self, i: int) -> Flows:
        """Return psi of source i, or what knows nothing where it has no gradient."""
        found = self._flows[i]
        return Flows() if self.no_flows is not None or found is None else found

    def _add_flows(self, inputs: Inputs) -> None:
        known = [s.module for s in self._sources if s.op is not None]
        if not known:
            return
        with torch.enable_grad(), _steps(known) as met:
            output = inputs.run(self._model)
            signs = torch.randint(0, 2, output.shape, device=output.device).to(output) * 2 - 1
            steps = [step for _, _, step in met]
            if not steps:
                return
            grads = torch.autograd.grad((output * signs).sum(), steps, materialize_grads=True)
        for i, module in enumerate(self._modules):
            uses = [(h, g) for (m, h, _), g in zip(met, grads, strict=True) if m is module]
            if uses:
                self._keep(i, [_squared_flows(module, h, g) for h, g in uses])

    def _keep(self, i: int, uses: list[Tensor | None]) -> None:
        """Add the flows of all uses of a layer, or give up where they do not match."""
        found = self._flows[i]
        known = [flows for flows in uses if flows is not None]
        fits = len(known) == len(uses) and len({flows.shape for flows in known}) == 1
        if found is None or not fits or not found.add(sum(known[1:], known[0])):
            self._flows[i] = None


def all_findings(
    noises: list[Callable[[], NoiseFindings]], states: list[Tensor]
) -> tuple[NoiseFindings, ...]:
    """Return what is found of each noise, masks drawn from generators in these states."""
    with torch_rng_from(states):
        return tuple(find() for find in noises)


def noise_findings(
    told: dict[str, Any],
    masks: Callable[[], tuple[float | None, float | None]],
    flows: Callable[[], tuple[Floats, Floats, float] | None],
) -> NoiseFindings:
    """Return what is told of a noise, with its masks, its flows and their co-adaptation."""
    share, share_error = masks()
    psi, error, phi_error = flows() or (None, None, None)
    return NoiseFindings(
        **told, realized=share, realized_error=share_error, flows=psi, flows_error=error,
        coadaptation_error=phi_error,
        coadaptation=None if psi is None else coadaptation(psi),
    )  # fmt: skip


def _switches(module: nn.Module) -> list[nn.Module]:
    """Return the modules whose mode switches a source on: a scripted one draws in its parts."""
    scripted = isinstance(module, torch.jit.ScriptModule)
    return list(module.modules()) if scripted else [module]


@contextmanager
def _steps(modules: Sequence[nn.Module]) -> Iterator[list[tuple[nn.Module, Tensor, Tensor]]]:
    """Add zeros that ask for gradients to what the modules give out, and note their inputs."""
    met: list[tuple[nn.Module, Tensor, Tensor]] = []

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        step = torch.zeros_like(output, requires_grad=True)
        met.append((module, args[0].detach(), step))
        return output + step

    with hooked(modules, after=hook):
        yield met


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
