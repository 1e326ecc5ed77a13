"""Checkpoints of training in one safetensors file: weights, optimizer, generators, history.

Tensors are stored by name, everything else as JSON text beside them; never a pickle.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from overt._check import InputError
from overt._io import as_path, digest, reading, safetensors, write_whole

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
        self._kinds = {
            name: type(part).__name__
            for name, part in self._parts.items()
            if name != "model"
        }
        self._settings = settings
        self._random: Tensor | None = None
        if self._path is None:
            return
        if self._path.is_dir():
            raise InputError(f"checkpoint must be a file, {self._path} is a folder")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"checkpoint must be a file to write: {error}") from None
        safetensors("torch", "torch")

    def save(
        self, history: list[dict[str, float]], batches: int, sums: list[float] | None
    ) -> None:
        """Write the checkpoint, whole or not at all."""
        if self._path is None:
            return
        state = {name: part.state_dict() for name, part in self._parts.items()}
        state["random"] = torch.get_rng_state()
        named, spec = pytree.tree_flatten_with_path(state)
        tensors: dict[str, Tensor] = {}
        leaves: list[Any] = []
        for keys, leaf in named:
            name = ".".join(
                str(getattr(key, "key", getattr(key, "idx", key))) for key in keys
            )
            if isinstance(leaf, Tensor):
                tensors[name] = leaf
                leaves.append({"tensor": name})
            else:
                leaves.append(_plain(leaf, name))
        record = {
            "settings": self._settings,
            "kinds": self._kinds,
            "history": history,
            "batches": batches,
            "sums": sums,
            "spec": pytree.treespec_dumps(spec),
            "leaves": leaves,
        }
        text = json.dumps(record)
        _write(
            self._path, tensors, {"overt": text, "checksum": _checksum(text, tensors)}
        )

    def save_best(self) -> None:
        """Write the weights as they are now to the file of the best ones, if there is one."""
        if self._path is not None:
            weights = self._parts["model"].state_dict()
            _write(self._path.with_suffix(".best.safetensors"), weights, {})

    def load(self, history: list[dict[str, float]]) -> tuple[int, list[float] | None]:
        """Restore the checkpoint, if any; return the batches done in its epoch, and their sums."""
        if self._path is None or not self._path.exists():
            return 0, None
        record, state = self._read(self._path)
        if record["kinds"] != self._kinds:
            raise self._foreign(f"written with {record['kinds']}, given {self._kinds}")
        for name, given in self._settings.items():
            before = record["settings"].get(name, given)
            if before != given:
                raise InputError(
                    f"checkpoint {self._path} was written with {name} {before}, got {given}; "
                    "remove it or choose another file"
                )
        try:
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise self._foreign(" ".join(str(error).split())[:200]) from None
        self._random = state["random"]
        history.extend(record["history"])
        return int(record["batches"]), record["sums"]

    def restore_random(self) -> None:
        """Set torch's generator to where it was when the checkpoint was saved."""
        if self._random is not None:
            torch.set_rng_state(self._random)

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        files = safetensors("torch", "torch")
        # Copies lie in memory as fresh tensors do; sums are rounded differently where they do not.
        with reading(path, "is no checkpoint that training wrote"):
            with files.safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
                metadata = file.metadata() or {}
            if "overt" not in metadata:
                raise InputError(
                    f"checkpoint must be a file that training wrote, {path} is not"
                )
            if metadata.get("checksum") != _checksum(metadata["overt"], tensors):
                raise InputError(
                    f"checkpoint {path} was changed or damaged: its checksum does not fit; "
                    "remove it or choose another file"
                )
            record = json.loads(metadata["overt"])
            leaves = [_restore(leaf, tensors) for leaf in record["leaves"]]
            return record, pytree.tree_unflatten(
                leaves, pytree.treespec_loads(record["spec"])
            )

    def _foreign(self, reason: str) -> InputError:
        return InputError(
            f"checkpoint {self._path} belongs to another model, optimizer or scheduler; remove it "
            f"or choose another file ({reason})"
        )


def _plain(value: Any, name: str) -> Any:
    """Return a value that is no tensor ready for JSON."""
    if isinstance(value, Counter):
        return {COUNTER: [[int(key), count] for key, count in value.items()]}
    if isinstance(value, np.generic):
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
    return tensors[leaf["tensor"]] if "tensor" in leaf else Counter(dict(leaf[COUNTER]))


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    # Tied weights share memory, which the format does not store; copies are the same values.
    flat = {
        name: value.detach().cpu().clone().contiguous()
        for name, value in tensors.items()
    }
    write_whole(path, safetensors("torch", "torch").torch.save(flat, metadata=metadata))


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """Return a checksum over everything that a checkpoint means."""
    flat = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    kinds = {
        name: [str(value.dtype), list(value.shape)] for name, value in flat.items()
    }
    # NumPy lacks some of torch's formats; bytes are bytes.
    raw = {
        name: value.reshape(-1).view(torch.uint8).numpy()
        for name, value in flat.items()
    }
    return digest([text, kinds], raw)
