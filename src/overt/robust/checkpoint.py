"""Training state in one safetensors file: weights, optimiser, scheduler, generators, history."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from overt._check import InputError, MissingExtraError
from overt.robust.memory import Memory


class Checkpoint:
    """Saves and restores everything that the next weights depend on; never a pickle."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        memory: Memory | None,
    ) -> None:
        self._path = None if path is None else Path(path)
        self._model, self._optimizer = model, optimizer
        self._scheduler, self._memory = scheduler, memory
        self._random: Tensor | None = None
        if self._path is not None:
            _safetensors()

    def save(self, history: list[dict[str, float]], batches: int, sums: list[float] | None) -> None:
        """Write the state, whole or not at all."""
        if self._path is None:
            return
        optimizer = self._optimizer.state_dict()
        tensors, plain = {}, {}
        for index, entries in optimizer["state"].items():
            for name, value in entries.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{index}.{name}"] = value
                else:
                    plain[f"{index}.{name}"] = value
        tensors |= {f"model.{name}": value for name, value in self._model.state_dict().items()}
        tensors["random"] = torch.get_rng_state()
        if self._memory is not None:
            tensors |= {f"memory.{k}": v for k, v in self._memory.tensors().items()}
        header = {
            "optimizer": plain,
            "groups": optimizer["param_groups"],
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "history": history,
            "batches": batches,
            "sums": sums,
        }
        try:
            text = json.dumps(header)
        except TypeError as error:
            raise InputError(
                f"optimizer and scheduler must have a state of numbers and tensors: {error}"
            ) from None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(self._path.name + ".part")
        # Tied weights share memory, which the format does not store; copies are the same values.
        flat = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        _safetensors().save_file(flat, temporary, metadata={"overt": text})
        temporary.replace(self._path)

    def load(self, history: list[dict[str, float]]) -> tuple[int, list[float] | None]:
        """Restore the state if there is one; return batches done in its epoch, and their sums."""
        if self._path is None or not self._path.exists():
            return 0, None
        with _safetensors().safe_open(self._path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        if "overt" not in metadata:
            raise InputError(f"checkpoint must be a file that training wrote, {self._path} is not")
        header = json.loads(metadata["overt"])
        try:
            self._model.load_state_dict(_part(tensors, "model."))
        except RuntimeError as error:
            raise InputError(
                f"checkpoint {self._path} belongs to another model; remove it or choose another "
                f"file ({str(error).splitlines()[0]})"
            ) from None
        entries: dict[int, dict[str, Any]] = {}
        for name, value in (_part(tensors, "optimizer.") | header["optimizer"]).items():
            index, key = name.split(".", 1)
            entries.setdefault(int(index), {})[key] = value
        self._optimizer.load_state_dict({"state": entries, "param_groups": header["groups"]})
        if self._scheduler is not None:
            self._scheduler.load_state_dict(header["scheduler"])
        if self._memory is not None:
            self._memory.load(_part(tensors, "memory."))
        self._random = tensors["random"]
        history.extend(header["history"])
        return int(header["batches"]), header["sums"]

    def restore_random(self) -> None:
        """Set torch's generator to where it was when the state was saved."""
        if self._random is not None:
            torch.set_rng_state(self._random)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ModuleNotFoundError:
        raise MissingExtraError("safetensors", "torch") from None

    class Both:
        save_file = staticmethod(safetensors.torch.save_file)
        safe_open = staticmethod(safetensors.safe_open)

    return Both
