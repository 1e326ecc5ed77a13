"""Models and checkpoints on disk, written whole or not at all, and readable after a kill.

A model is a folder with model.safetensors: arrays, of which one is everything else as JSON. It has
a checksum over its meaning, so that it is not believed when it was changed. A checkpoint is a
folder with such a file for each kind of fit: its state after the last finished sweep.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import Array, InputError
from overt._io import (
    as_path,
    digest,
    plain,
    reading,
    ready,
    safetensors,
    write_whole,
)
from overt.completion.averaged import AveragedModel
from overt.completion.features import Directions, Encoder
from overt.completion.implicit import ImplicitModel, PrecisionRule, Strengths
from overt.completion.model import (
    FactorModel,
    Fit,
)
from overt.completion.prior import Effects, Prior, RowNoise
from overt.completion.problem import Columns
from overt.entries import Entries
from overt.entries.identifiers import as_identifiers
from overt.results import Status

FORMAT = 11
"""Raised whenever the classes below change: a model of another format is refused."""

KIND = f"overt completion model, format {FORMAT}"
FILE = "model.safetensors"

STORED_CLASSES = (
    AveragedModel,
    Columns,
    Directions,
    Effects,
    Encoder,
    FactorModel,
    Fit,
    ImplicitModel,
    PrecisionRule,
    Prior,
    RowNoise,
    Status,
    Strengths,
)
CLASSES: dict[str, Any] = {cls.__name__: cls for cls in STORED_CLASSES}

WITHOUT_EFFECT = ("n_jobs", "engine", "memory_limit")
"""Parameters that do not change results: a run may be resumed with others."""


def to_plain(value: Any, name: str, arrays: dict[str, Array]) -> Any:
    """Return a value as JSON; add its arrays to `arrays` under names that start with `name`."""
    match value:
        case np.ndarray():
            arrays[name] = value
            return {"array": name}
        case np.generic():
            return value.item()
        case Status():
            return {"class": "Status", "fields": {"value": str(value)}}
        case tuple() | list():
            items = [
                to_plain(item, f"{name}.{i}", arrays) for i, item in enumerate(value)
            ]
            return {type(value).__name__: items}
        case dict():
            return {
                "dict": {
                    k: to_plain(v, f"{name}.{k}", arrays) for k, v in value.items()
                }
            }
    if not is_dataclass(value):
        return value
    found = {
        f.name: to_plain(getattr(value, f.name), f"{name}.{f.name}", arrays)
        for f in fields(value)
    }
    return {"class": type(value).__name__, "fields": found}


def from_plain(stored: Any, arrays: Mapping[str, Array]) -> Any:
    """Rebuild what `to_plain` returned; only the classes of this file are built."""
    match stored:
        case {"array": name}:
            return arrays[name]
        case {"tuple": items}:
            return tuple(from_plain(item, arrays) for item in items)
        case {"list": items}:
            return [from_plain(item, arrays) for item in items]
        case {"dict": items}:
            return {name: from_plain(item, arrays) for name, item in items.items()}
        case {"class": name, "fields": items}:
            return CLASSES[name](**{k: from_plain(v, arrays) for k, v in items.items()})
    return stored


def write_state(path: Path, state: dict[str, Any], what: str) -> None:
    """Write what `to_plain` takes into one file, whole or not at all."""
    save = safetensors("numpy", "files").numpy.save
    arrays: dict[str, Array] = {}
    text = json.dumps(to_plain(state, "state", arrays))
    arrays["header"] = np.frombuffer(text.encode(), np.uint8)
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    checksum = digest(what, arrays)
    write_whole(path, save(arrays, {"what": what, "checksum": checksum}))


def read_state(path: Path, what: str, otherwise: str) -> dict[str, Any]:
    """Return what `write_state` wrote; `otherwise` is said of a file that is something else."""
    load = safetensors("numpy", "files").numpy.load
    with reading(path, "cannot be read as safetensors"):
        data = path.read_bytes()
        arrays: dict[str, Array] = load(data)
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        if metadata.get("what") != what:
            raise InputError(otherwise)
        if metadata.get("checksum") != digest(what, arrays):
            raise InputError(
                f"{path} was changed or damaged: its checksum does not fit"
            )
        header = json.loads(arrays["header"].tobytes())
        found: dict[str, Any] = from_plain(header, arrays)
        return found


def save_model(
    path: str | os.PathLike[str],
    parameters: Mapping[str, Any],
    entries: Entries,
    fit: Fit,
    ranking_model: ImplicitModel | None = None,
) -> None:
    """Write parameters, entries, a fit and the model that ranks beside it."""
    stored: dict[str, Any] = {
        "rows": entries.rows.astype(np.int32),
        "cols": entries.cols.astype(np.int32),
        "values": entries.values,
        "shape": entries.shape,
        "times": None,
    }
    if entries.times is not None:
        stored["times"] = np.asarray(entries.times, dtype=float)
    for name in ("row_ids", "col_ids"):
        ids = getattr(entries, name)
        stored[name] = None if ids is None else ids.tolist()
    state = {
        "parameters": plain(dict(parameters)),
        "entries": stored,
        "fit": fit,
        "ranking_model": ranking_model,
    }
    write_state(ready(path) / FILE, state, KIND)


def load_model(
    path: str | os.PathLike[str],
) -> tuple[dict[str, Any], Entries, Fit, ImplicitModel | None]:
    """Return the parameters, entries, fit and ranking model that `save_model` wrote."""
    folder = as_path("path", path)
    if not (folder / FILE).exists():
        raise InputError(f"{folder} holds no completion model ({FILE} is missing)")
    otherwise = (
        f"{folder} holds a model of another format; this version reads format {FORMAT}: fit the "
        "model again, or read it with the version that saved it"
    )
    state = read_state(folder / FILE, KIND, otherwise)
    with reading(folder, "holds no readable completion model"):
        stored = state["entries"]
        for name in ("row_ids", "col_ids"):
            if stored[name] is not None:
                stored[name] = as_identifiers(name, stored[name])
        entries = Entries(**stored)
    return state["parameters"], entries, state["fit"], state["ranking_model"]


class SweepCheckpoint:
    """A folder that stores a fit as it was after its last finished sweep.

    A checkpoint of other entries or parameters is refused, unless the run starts anew.
    """

    def __init__(
        self,
        folder: Any,
        entries: Entries,
        parameters: Mapping[str, Any],
        *,
        resume: bool,
        given: Sequence[Any] = (),
    ) -> None:
        self._folder = as_path("checkpoint", folder)
        self._resume = resume
        self._fingerprint = _fingerprint(entries, parameters, given)
        ready(self._folder)
        if not resume:
            self.clear()
        for path in self._folder.glob("*.safetensors"):
            self._read(path.stem)

    def write(self, fit: Any) -> None:
        """Store the state of a fit."""
        state = {name: getattr(fit, name) for name in fit.state}
        write_state(self._path(fit.kind), state, f"{fit.kind} {self._fingerprint}")

    def restore(self, fit: Any) -> None:
        """Bring a fresh fit to the stored state, if there is one to resume from."""
        if self._resume and self._path(fit.kind).exists():
            fit.__dict__.update(self._read(fit.kind))

    def clear(self) -> None:
        """Remove everything that was stored."""
        for path in self._folder.glob("*.safetensors*"):
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"

    def _read(self, name: str) -> dict[str, Any]:
        otherwise = (
            f"{self._folder} holds a run with other data or settings; give the same ones, or start "
            "anew without resuming"
        )
        return read_state(self._path(name), f"{name} {self._fingerprint}", otherwise)


def _fingerprint(
    entries: Entries, parameters: Mapping[str, Any], given: Sequence[Any]
) -> str:
    """Return a name for data, given features and settings."""
    seed = parameters.get("random_state")
    if seed is None:
        seed = parameters.get("seed", 0)
    if not isinstance(seed, (int, np.integer)):
        raise InputError(
            "a checkpoint needs a whole number as seed, so that a run can be resumed"
        )
    arrays = {"rows": entries.rows, "cols": entries.cols, "values": entries.values}
    for side, table in enumerate(given):
        if table is not None:
            arrays[f"features {side}"] = np.asarray(table.numbers)
            arrays[f"known {side}"] = np.asarray(table.known)
    settings = {k: v for k, v in parameters.items() if k not in WITHOUT_EFFECT}
    return digest([FORMAT, list(entries.shape), plain(settings)], arrays)
