"""Measurements over data that is seen once: losses, units and the norms of layers.

A measurement has `add(seen)` for each batch; its results do not depend on how rows are batched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._types import Floats
from overt.nn.auditing.report import LayerFindings
from overt.nn.data.batches import Inputs
from overt.nn.data.losses import Targets
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


def coadaptation(flows: Floats | None) -> float | None:
    """Return phi = |psi|_1 / (sqrt(d) |psi|_2) of the flow through d units, None where it is 0."""
    if flows is None or not flows.any():
        return None
    size = math.sqrt(len(flows)) * float(np.linalg.norm(flows))
    return float(np.sum(flows)) / size


class UnitSquares:
    """Sums of h_j^2 over the units at some places."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._rows: dict[str, int] = {}
        self._changing: set[str] = set()

    def add(self, seen: Seen) -> None:
        """Add a batch."""
        for name, h in seen.units.items():
            wide = h if h.dtype == torch.float64 else h.float()
            total = wide.square().sum(0).double().cpu()
            before = self._sums.get(name, torch.zeros_like(total))
            if before.shape != total.shape:
                self._changing.add(name)
                continue
            self._sums[name] = before + total
            self._rows[name] = self._rows.get(name, 0) + len(h)

    def mean(self, name: str) -> Floats | None:
        """Return E h_j^2 at a place, None if the units change or are not known."""
        if name in self._changing or name not in self._sums:
            return None
        return np.asarray((self._sums[name] / self._rows[name]).numpy())


def is_layer(module: nn.Module) -> bool:
    """Return whether a module applies weights to its input, linearly."""
    linear = isinstance(module, (nn.Linear, nn.modules.conv._ConvNd))
    return linear or is_weight_noise(module)


class LayerNorms:
    """The linear and convolutional layers of a model, and which of their inputs were always 0."""

    def __init__(self) -> None:
        self._largest: dict[str, Tensor] = {}
        self._from_data: set[str] = set()

    def add(self, name: str, module: Any, h: Tensor, inputs: Inputs) -> None:
        """Add what a layer was given in a pass."""
        axis = h.ndim - 1 if module.weight.ndim == 2 else 1
        largest = h.abs().movedim(axis, 0).flatten(1).amax(1).cpu()
        before = self._largest.get(name, largest)
        self._largest[name] = torch.maximum(before, largest)
        if any(
            h.data_ptr() == x.data_ptr() and h.numel() == x.numel()
            for x in inputs.tensors
        ):
            self._from_data.add(name)

    def findings(self, model: nn.Module) -> tuple[LayerFindings, ...]:
        """Return the layers that ran."""
        modules = model.named_modules()
        return tuple(
            self._layer(n, module) for n, module in modules if n in self._largest
        )

    def _layer(self, name: str, module: Any) -> LayerFindings:
        W = module.weight.detach().double().cpu().flatten(1).numpy()
        # The smaller Gram matrix takes a tenth of the time of singular values.
        gram = W @ W.T if len(W) <= W.shape[1] else W.T @ W
        spectral = math.sqrt(max(float(np.linalg.eigvalsh(gram)[-1]), 0.0))
        frobenius = float(np.linalg.norm(W))
        return LayerFindings(
            name=name,
            shape=tuple(module.weight.shape),
            spectral=spectral,
            frobenius=frobenius,
            stable_rank=(frobenius / spectral) ** 2 if spectral else 0.0,
            inputs=len(self._largest[name]),
            dead=int((self._largest[name] == 0).sum()),
            from_data=name in self._from_data,
        )
