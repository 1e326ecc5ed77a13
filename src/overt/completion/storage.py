"""Models and checkpoints on disk, written whole or not at all, and readable after a kill.

A model is a folder with model.safetensors (arrays) and model.json (everything else). Both have a
checksum over their meaning, so that neither is believed when it was changed. A checkpoint is a
folder with a file for each kind of fit: its state after the last finished sweep.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError
from overt._io import (
    alone,
    as_path,
    digest,
    plain,
    read_sealed,
    reading,
    ready,
    write_sealed,
    write_whole,
)
from overt._types import Array
from overt.completion.averaged import AveragedModel, SampledFit
from overt.completion.features import Directions, Encoder, FeatureColumn
from overt.completion.implicit import ImplicitModel, PrecisionRule, Strengths
from overt.completion.memory import mark_of
from overt.completion.model import (
    DropoutCovariance,
    FactorModel,
    Fit,
    FullCovariance,
)
from overt.completion.prior import Effects, Prior, RowNoise
from overt.completion.problem import Columns
from overt.entries import Entries
from overt.entries.identifiers import as_identifiers
from overt.results import Status

FORMAT = 6
"""Raised whenever the classes below change: a model of another format is refused."""

KIND = "overt completion model"
ARRAYS = "model.safetensors"
NEW_ARRAYS = "model.new.safetensors"
HEADER = "model.json"

STORED_CLASSES = (
    AveragedModel,
    Columns,
    Directions,
    DropoutCovariance,
    Effects,
    Encoder,
    FactorModel,
    FeatureColumn,
    Fit,
    FullCovariance,
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


def save_model(
    path: str | os.PathLike[str],
    parameters: Mapping[str, Any],
    entries: Entries,
    fit: Fit,
    ranking_model: ImplicitModel | None = None,
) -> None:
    """Write parameters, entries, a fit and the model that ranks beside it, each file in one step.

    New arrays lie beside the old ones until model.json names them: a kill between the steps leaves
    the model before or the new one.
    """
    folder = ready(path)
    arrays: dict[str, Array] = {
        "rows": entries.rows.astype(np.int32),
        "cols": entries.cols.astype(np.int32),
        "values": entries.values,
    }
    if entries.times is not None:
        arrays["times"] = np.asarray(entries.times, dtype=float)
    header = {
        "format": FORMAT,
        "kind": KIND,
        "parameters": plain(dict(parameters)),
        "fit": to_plain(fit, "fit", arrays),
        "ranking_model": to_plain(ranking_model, "ranking", arrays),
        "shape": list(entries.shape),
        "row_ids": None if entries.row_ids is None else entries.row_ids.tolist(),
        "col_ids": None if entries.col_ids is None else entries.col_ids.tolist(),
    }
    with alone(folder):
        if (
            folder / NEW_ARRAYS
        ).exists():  # a kill came before the last step of a former save
            with suppress(Exception):
                named = json.loads((folder / HEADER).read_text(encoding="utf-8"))[
                    "arrays"
                ]
                if read_sealed(folder / NEW_ARRAYS, KIND)[1] == named:
                    (folder / NEW_ARRAYS).replace(folder / ARRAYS)
        header["arrays"] = write_sealed(folder / NEW_ARRAYS, arrays, KIND)
        header["checksum"] = digest(header)
        write_whole(folder / HEADER, json.dumps(header) + "\n")
        (folder / NEW_ARRAYS).replace(folder / ARRAYS)


def load_model(
    path: str | os.PathLike[str],
) -> tuple[dict[str, Any], Entries, Fit, ImplicitModel | None]:
    """Return the parameters, entries, fit and ranking model that `save_model` wrote."""
    folder = as_path("path", path)
    if not (folder / HEADER).exists():
        raise InputError(f"{folder} holds no completion model ({HEADER} is missing)")
    with (
        reading(folder, "holds no readable completion model"),
        alone(folder, reading=True),
    ):
        header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        if header.get("format") != FORMAT:
            raise InputError(
                f"{folder} has format {header.get('format')!r}; this version reads {FORMAT}: fit "
                "the model again, or read it with the version that saved it"
            )
        if header.pop("checksum", None) != digest(header):
            raise InputError(
                f"{folder} holds no readable completion model: {HEADER} was changed or damaged"
            )
        arrays: dict[str, Any] = {}
        checksum = ""
        for name in (ARRAYS, NEW_ARRAYS):
            if header["arrays"] != checksum and (folder / name).exists():
                arrays, checksum = read_sealed(folder / name, KIND)
        if header["arrays"] != checksum:
            raise InputError(
                f"{folder} holds {HEADER} and {ARRAYS} of different models, or damaged ones; save "
                "it again"
            )
        ids = {
            name: None if header[name] is None else as_identifiers(name, header[name])
            for name in ("row_ids", "col_ids")
        }
        entries = Entries(
            arrays["rows"],
            arrays["cols"],
            arrays["values"],
            header["shape"],
            times=arrays.get("times"),
            **ids,
        )
        fit = from_plain(header["fit"], arrays)
        return (
            header["parameters"],
            entries,
            fit,
            from_plain(header["ranking_model"], arrays),
        )


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
            if not path.stem.startswith("sample-"):
                self._read(path.stem)

    def write(self, fit: Any) -> None:
        """Store the state of a fit."""
        if isinstance(fit, SampledFit) and fit.samples:
            self._write(_sample_name(len(fit.samples)), dict(fit.samples[-1]))
        self._write(fit.kind, {name: getattr(fit, name) for name in fit.state})

    def restore(self, fit: Any) -> None:
        """Bring a fresh fit to the stored state, if there is one to resume from."""
        if not (self._resume and self._path(fit.kind).exists()):
            return
        fit.__dict__.update(self._read(fit.kind))
        if isinstance(fit, SampledFit):
            for number in range(1, fit.n_stored + 1):
                fit.samples.append(self._read(_sample_name(number)))

    def clear(self) -> None:
        """Remove everything that was stored."""
        for path in self._folder.glob("*.safetensors*"):
            path.unlink()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"

    def _write(self, name: str, state: dict[str, Any]) -> None:
        arrays: dict[str, Array] = {}
        text = json.dumps(to_plain(state, "state", arrays))
        arrays["header"] = np.frombuffer(text.encode(), np.uint8)
        write_sealed(self._path(name), arrays, f"{name} {self._fingerprint}")

    def _read(self, name: str) -> dict[str, Any]:
        try:
            arrays = read_sealed(self._path(name), f"{name} {self._fingerprint}")[0]
        except InputError as error:
            if "something else" not in str(error):
                raise InputError(f"{error}; start anew without resuming") from None
            raise InputError(
                f"{self._folder} holds a run with other data or settings; give the same ones, or "
                "start anew without resuming"
            ) from None
        found: dict[str, Any] = from_plain(
            json.loads(arrays["header"].tobytes()), arrays
        )
        return found


def _sample_name(number: int) -> str:
    return f"sample-{number:05d}"


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
    found = hashlib.sha256()
    for side, table in enumerate(given):
        if table is not None:
            dense = table.toarray() if hasattr(table, "toarray") else np.asarray(table)
            found.update(f"{side} {dense.shape}".encode())
            found.update(np.ascontiguousarray(dense).tobytes())
    mark = mark_of(entries.rows, entries.cols, entries.values)
    settings = {k: v for k, v in parameters.items() if k not in WITHOUT_EFFECT}
    known = [FORMAT, mark, list(entries.shape), plain(settings)]
    found.update(json.dumps(known, sort_keys=True).encode())
    return found.hexdigest()
