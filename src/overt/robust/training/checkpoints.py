"""Checkpoints of training in one safetensors file: weights, optimizer, generators, history.

Nested states of optimizers and schedulers are written as JSON text beside named tensors. JSON knows
only text as keys, and only lists: a Counter of milestones would come back with keys that no step
ever equals. Whatever it does not know is written as {"": kind, ...}.
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

from overt._check import InputError
from overt._io import as_path, digest, reading, safetensors, write_whole
from overt.robust.training.epoch import Recipe

_KINDS: dict[str, Any] = {"counter": Counter, "dict": dict, "tuple": tuple, "set": set}


class TrainingCheckpoint:
    """Saves and restores everything that the next weights depend on; never a pickle."""

    def __init__(
        self, path: str | os.PathLike[str] | None, recipe: Recipe, scheduler: Any,
        settings: dict[str, str],
    ) -> None:  # fmt: skip
        self._path = None if path is None else as_path("checkpoint", path)
        self._model, self._settings = recipe.model, settings
        self._kinds = [type(part).__name__ for part in (recipe.optimizer, scheduler)]
        parts = {
            "model": recipe.model, "optimizer": recipe.optimizer, "scheduler": scheduler,
            "warm_starts": recipe.warm_starts, "scaler": recipe.scaler,
        }  # fmt: skip
        self._stateful: dict[str, Any] = {k: part for k, part in parts.items() if part is not None}
        self._random: Tensor | None = None
        if self._path is not None:
            if self._path.is_dir():
                raise InputError(f"checkpoint must be a file, {self._path} is a folder")
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"checkpoint must be a file to write: {error}") from None
            safetensors("torch", "torch")

    def save(self, history: list[dict[str, float]], batches: int, sums: list[float] | None) -> None:
        """Write the checkpoint, whole or not at all."""
        if self._path is None:
            return
        tensors: dict[str, Tensor] = {"random": torch.get_rng_state()}
        parts = {
            "settings": self._settings, "kinds": self._kinds, "history": history,
            "batches": batches, "sums": sums,
        } | {name: part.state_dict() for name, part in self._stateful.items()}  # fmt: skip
        text = json.dumps({name: _pack(part, name, tensors) for name, part in parts.items()})
        _write(self._path, tensors, {"overt": text, "checksum": _checksum(text, tensors)})

    def keep_best(self) -> None:
        """Write the weights as they are now to the file of the best ones, if there is one."""
        if self._path is not None:
            _write(self._path.with_suffix(".best.safetensors"), self._model.state_dict(), {})

    def load(self, history: list[dict[str, float]]) -> tuple[int, list[float] | None]:
        """Restore the checkpoint, if any; return the batches done in its epoch, and their sums."""
        if self._path is None or not self._path.exists():
            return 0, None
        files = safetensors("torch", "torch")
        # Copies lie in memory as fresh tensors do; sums are rounded differently where they do not.
        with reading(self._path, "is no checkpoint that training wrote"):
            with files.safe_open(self._path, framework="pt") as file:
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
                metadata = file.metadata() or {}
            if "overt" not in metadata:
                raise InputError(
                    f"checkpoint must be a file that training wrote, {self._path} is not"
                )
            if metadata.get("checksum") != _checksum(metadata["overt"], tensors):
                raise InputError(
                    f"checkpoint {self._path} was changed or damaged: its checksum does not fit; "
                    "remove it or choose another file"
                )
            told = json.loads(metadata["overt"])
            parts = {name: _unpack(part, tensors) for name, part in told.items()}
        if parts["kinds"] != self._kinds:
            raise self._foreign(f"written with {parts['kinds']}, given {self._kinds}")
        before = parts.get("settings") or self._settings
        for name, given in self._settings.items():
            if before.get(name, given) != given:
                raise InputError(
                    f"checkpoint {self._path} was written with {name} {before[name]}, got {given}; "
                    "remove it or choose another file"
                )
        try:
            for name, part in self._stateful.items():
                if parts.get(name):
                    part.load_state_dict(parts[name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise self._foreign(" ".join(str(error).split())[:200]) from None
        self._random = tensors["random"]
        history.extend(parts["history"])
        return int(parts["batches"]), parts["sums"]

    def restore_random(self) -> None:
        """Set torch's generator to where it was when the checkpoint was saved."""
        if self._random is not None:
            torch.set_rng_state(self._random)

    def _foreign(self, reason: str) -> InputError:
        return InputError(
            f"checkpoint {self._path} belongs to another model, optimizer or scheduler; remove it "
            f"or choose another file ({reason})"
        )


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    # Tied weights share memory, which the format does not store; copies are the same values.
    flat = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    write_whole(path, safetensors("torch", "torch").torch.save(flat, metadata=metadata))


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """Return a checksum over everything that a checkpoint means."""
    flat = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    kinds = {name: [str(value.dtype), list(value.shape)] for name, value in flat.items()}
    # NumPy lacks some of torch's formats; bytes are bytes.
    raw = {name: value.reshape(-1).view(torch.uint8).numpy() for name, value in flat.items()}
    return digest([text, kinds], raw)


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return the value ready for JSON; its tensors go into `tensors`, named by where they are."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"": "tensor", "name": path}
    if isinstance(value, dict):
        items = [
            [_pack(key, path, tensors), _pack(entry, f"{path}.{key}", tensors)]
            for key, entry in value.items()
        ]
        if type(value) is not Counter and all(isinstance(key, str) and key for key in value):
            return dict(items)
        return {"": "counter" if type(value) is Counter else "dict", "items": items}
    if isinstance(value, (list, tuple, set)):
        entries = [_pack(entry, f"{path}.{i}", tensors) for i, entry in enumerate(value)]
        if isinstance(value, list):
            return entries
        return {"": "tuple" if isinstance(value, tuple) else "set", "items": entries}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InputError(
        "checkpoint holds numbers, text and tensors only, got "
        f"{type(value).__name__} in the state of {path}"
    )


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what was packed."""
    if isinstance(value, list):
        return [_unpack(entry, tensors) for entry in value]
    if not isinstance(value, dict):
        return value
    if "" not in value:
        return {key: _unpack(entry, tensors) for key, entry in value.items()}
    if value[""] == "tensor":
        return tensors[value["name"]]
    entries = _unpack(value["items"], tensors)
    kind = _KINDS[value[""]]
    return kind(dict(entries)) if kind is Counter else kind(entries)
