"""Which tensors of a pass share memory, and which of them hold what has been overwritten."""

from __future__ import annotations

import torch
from torch import Tensor


class Views:
    """Tensors that stand for random ones, each with what it is a view of.

    By id: tensors that are held here keep theirs. Of a tensor that is not, PyTorch knows.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._stale: dict[int, Tensor] = {}

    def add(self, tensor: Tensor, base: Tensor | None) -> None:
        """Hold a tensor, unless it is held already."""
        self._held.setdefault(id(tensor), (tensor, base))

    def change(self, tensor: Tensor) -> None:
        """Note that a tensor is changed in place: others that share its memory are stale."""
        root = self._root(tensor)
        family = (t for t, _ in self._held.values() if self._root(t) is root)
        self._stale |= {
            id(t): t for t in (root, *family) if t is not tensor and not _apart(t, tensor)
        }

    def stale(self, tensor: Tensor) -> bool:
        """Return whether a tensor's memory was changed in the name of another."""
        base = None if id(tensor) in self._held else tensor._base
        return id(tensor) in self._stale or id(base) in self._stale or id(base) in self._held

    def _root(self, tensor: Tensor) -> Tensor:
        """Return what a tensor is a view of, or a view of a view of."""
        while (base := self._held.get(id(tensor), (tensor, tensor._base))[1]) is not None:
            tensor = base
        return tensor


def _apart(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors lie in the same memory and are seen to share no part of it."""
    memory = a.untyped_storage()
    if memory.data_ptr() != b.untyped_storage().data_ptr() or a.dtype != b.dtype:
        return False
    mark = torch.zeros(memory.nbytes() // a.element_size(), dtype=torch.bool)
    mark.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return not bool(mark.as_strided(b.shape, b.stride(), b.storage_offset()).any())
