"""Perturbations of the epoch before, found again by the content of the input."""

from __future__ import annotations

import torch
from torch import Tensor

from overt.robust.draws import keys_of


class Memory:
    """The last perturbation of each input that was stored, in whatever order inputs come."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._deltas: list[Tensor] = []

    def recall(self, x: Tensor) -> Tensor:
        """Return x with the perturbations that are known."""
        moved = x.clone()
        for i, key in enumerate(keys_of(x, 0).tolist()):
            if key in self._rows:
                moved[i] += self._deltas[self._rows[key]].to(x)
        return moved

    def store(self, x: Tensor, moved: Tensor) -> None:
        """Remember moved - x for each input."""
        for key, delta in zip(keys_of(x, 0).tolist(), (moved - x).detach(), strict=True):
            if key in self._rows:
                self._deltas[self._rows[key]] = delta.cpu()
            else:
                self._rows[key] = len(self._deltas)
                self._deltas.append(delta.cpu())

    def tensors(self) -> dict[str, Tensor]:
        """Return the content as tensors to be saved."""
        if not self._rows:
            return {}
        return {
            "keys": torch.tensor(list(self._rows), dtype=torch.int64),
            "deltas": torch.stack(self._deltas),
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over saved content."""
        if tensors:
            self._rows = {key: i for i, key in enumerate(tensors["keys"].tolist())}
            self._deltas = list(tensors["deltas"])
