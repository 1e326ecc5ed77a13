"""Linear and convolutional layers: norms of their weights, and inputs that were always zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._types import Floats
from overt.nn.auditing.report import LayerFindings
from overt.nn.layers.dropconnect import DropConnectConv2d, DropConnectLinear

LAYERS = (nn.Linear, nn.modules.conv._ConvNd, DropConnectLinear, DropConnectConv2d)

MAX_DENSE = 512
"""Gram matrices up to this size are decomposed, larger ones have their top eigenvalue iterated."""


class LayerNorms:
    """The linear and convolutional layers of a model, and which of their inputs were always 0."""

    def __init__(self) -> None:
        self._largest: dict[str, Tensor] = {}
        self._from_data: set[str] = set()

    def add(self, name: str, module: Any, h: Tensor, *, from_data: bool) -> None:
        """Add what a layer was given; `from_data` says that it is the model's own input."""
        axis = h.ndim - 1 if module.weight.ndim == 2 else 1
        largest = h.abs().movedim(axis, 0).flatten(1).amax(1).cpu()
        before = self._largest.get(name)
        self._largest[name] = largest if before is None else torch.maximum(before, largest)
        if from_data:
            self._from_data.add(name)

    def findings(self, model: nn.Module) -> tuple[list[LayerFindings], list[tuple[str, str]]]:
        """Return the layers that ran, and other modules with weights, with the reason."""
        found = []
        others: dict[str, list[str]] = {}
        for name, module in model.named_modules():
            if isinstance(module, LAYERS):
                if name in self._largest:
                    found.append(self._layer(name, module))
                continue
            has_weights = next(module.parameters(recurse=False), None) is not None
            if has_weights and not isinstance(module, nn.modules.batchnorm._NormBase):
                path = name or type(model).__name__
                others.setdefault(type(module).__name__, []).append(path)
        skipped = [
            (", ".join(names), f"{kind}: its weights are not among the layers' norms")
            for kind, names in others.items()
        ]
        return found, skipped

    def _layer(self, name: str, module: Any) -> LayerFindings:
        W = module.weight.detach().double().cpu().flatten(1).numpy()
        spectral = spectral_norm(W)
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


def spectral_norm(W: Floats) -> float:
    """Return the largest singular value, from the smaller Gram matrix."""
    gram = W @ W.T if len(W) <= W.shape[1] else W.T @ W
    trace = float(gram.trace())
    if len(gram) > MAX_DENSE and 0 < trace < np.inf:
        from scipy.sparse.linalg import ArpackError, eigsh

        try:
            start = np.diag(gram) + trace
            top = eigsh(gram, 1, v0=start, return_eigenvectors=False, tol=1e-12)
            return math.sqrt(float(top[0]))
        except ArpackError:  # it did not converge
            pass
    return math.sqrt(max(float(np.linalg.eigvalsh(gram)[-1]), 0.0))
