"""Checkpoints of training in one safetensors file: weights, optimizer, scheduler, history.

Tensors are stored by name, everything else as JSON text beside them; never a pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from overt._check import InputError
from overt._io import as_path, reading, safetensors, write_whole

COUNTER = "Counter"
"""Marks the milestones of MultiStepLR, which pytree takes for one value."""


class TrainingCheckpoint:
    """Saves and restores everything that the next weights depend on.

    `parts` are objects with a state, such as the model and the optimizer. `settings` are what a
    call that resumes training must agree in, in words.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        parts: dict[str, Any],
        settings: dict[str, str],
    ) -> None:
        self._path = None if path is None else as_path("checkpoint", path)
        self._parts = {name: part for name, part in parts.items() if part is not None}
        self._settings = settings
        if self._path is None:
            return
        if self._path.is_dir():
            raise InputError(f"checkpoint must be a file, {self._path} is a folder")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"checkpoint must be a file to write: {error}") from None
        safetensors("torch", "torch")

    def save(self, history: list[dict[str, float]], *, best: int) -> None:
        """Write the checkpoint, and the weights where the best epoch is the last one."""
        if self._path is None:
            return
        state = {name: part.state_dict() for name, part in self._parts.items()}
        named, spec = pytree.tree_flatten_with_path(state)
        tensors: dict[str, Tensor] = {}
        leaves: list[Any] = []
        for keys, leaf in named:
            name = ".".join(str(getattr(key, "key", key)) for key in keys)
            if isinstance(leaf, Tensor):
                # Tied weights share memory, which the format does not store.
                tensors[name] = leaf.detach().cpu().clone().contiguous()
                leaves.append({"tensor": name})
            else:
                leaves.append(_plain(leaf, name))
        record = {
            "settings": self._settings,
            "history": history,
            "spec": pytree.treespec_dumps(spec),
            "leaves": leaves,
        }
        text = json.dumps(record)
        metadata = {"overt": text, "checksum": _checksum(text, tensors)}
        save = safetensors("torch", "torch").torch.save
        write_whole(self._path, save(tensors, metadata=metadata))
        if best == len(history):
            start = "model."
            weights = {
                name.removeprefix(start): value
                for name, value in tensors.items()
                if name.startswith(start)
            }
            write_whole(self._path.with_suffix(".best.safetensors"), save(weights))

    def load(self) -> list[dict[str, float]]:
        """Restore the checkpoint, if any; return the epochs so far."""
        if self._path is None or not self._path.exists():
            return []
        with reading(self._path, "is no checkpoint that training wrote"):
            record, state = self._read()
        for name, given in self._settings.items():
            before = record["settings"][name]
            if before != given:
                raise InputError(
                    f"checkpoint {self._path} was written with {name} {before}, got {given}; "
                    "remove it or choose another file"
                )
        try:
            if set(state) != set(self._parts):
                raise KeyError(", ".join(state))
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"checkpoint {self._path} belongs to another model, optimizer or scheduler; "
                f"remove it or choose another file ({reason})"
            ) from None
        return list(record["history"])

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        files = safetensors("torch", "torch")
        with files.safe_open(self._path, framework="pt") as file:
            # Copies lie in memory as fresh tensors do; else sums are rounded differently.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        text = metadata["overt"]
        if metadata["checksum"] != _checksum(text, tensors):
            raise InputError(
                f"checkpoint {self._path} was changed or damaged: its checksum does not fit; "
                "remove it or choose another file"
            )
        record = json.loads(text)
        leaves = [_restore(leaf, tensors) for leaf in record["leaves"]]
        spec = pytree.treespec_loads(record["spec"])
        return record, pytree.tree_unflatten(leaves, spec)


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """Return a checksum of everything that is restored: a wrong weight would go unnoticed."""
    content = text.encode() + safetensors("torch", "torch").torch.save(tensors)
    return hashlib.sha256(content).hexdigest()


def _plain(value: Any, name: str) -> Any:
    """Return a value that is no tensor ready for JSON."""
    if isinstance(value, Counter):
        return {COUNTER: [[int(key), count] for key, count in value.items()]}
    if hasattr(value, "item"):  # NumPy's numbers
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InputError(
        f"checkpoint holds numbers, text and tensors only, got {type(value).__name__} in the "
        f"state of {name}"
    )


def _restore(leaf: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(leaf, dict):
        return leaf
    if "tensor" in leaf:
        return tensors[leaf["tensor"]]
    return Counter(dict(leaf[COUNTER]))
