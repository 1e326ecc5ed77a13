"""Checkpoints of a running fit: written whole or not at all, readable after a kill."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from overt._check import InputError
from overt._io import as_path, plain, read_sealed, ready, write_sealed
from overt._types import Array
from overt.completion.forms.averaged import SampledForm
from overt.completion.memory import mark_of

if TYPE_CHECKING:
    from overt.completion.forms import Form

KINDS = ("fixed", "learned", "negative", "sampled", "sgd")

WITHOUT_EFFECT = ("n_jobs", "engine", "memory_limit")
"""Parameters that do not change results: a run may be resumed with others."""


class SweepCheckpoint:
    """A folder that stores a form as it was after its last finished sweep.

    A checkpoint of other entries or parameters is refused, unless the run starts anew.
    """

    def __init__(
        self,
        folder: Path,
        entries: Any,
        parameters: Mapping[str, Any],
        *,
        resume: bool,
        given: Sequence[Any] = (),
    ) -> None:
        self._folder = folder
        self._resume = resume
        self._fingerprint = _fingerprint(entries, parameters, given)
        ready(folder)
        if not resume:
            self.clear()
        for kind in KINDS:
            if self._path(kind).exists():
                self._get(kind)

    def write(self, form: Form) -> None:
        """Keep a form."""
        if isinstance(form, SampledForm) and form.draws:
            self._put(_draw(len(form.draws)), form.draws[-1])
        U, V = form.means
        self._put(form.kind, {"U": U, "V": V, "history": np.array(form.history), **form.arrays()})

    def restore(self, form: Form) -> None:
        """Bring a fresh form to the stored one, if there is one to resume from."""
        if not (self._resume and self._path(form.kind).exists()):
            return
        arrays = self._get(form.kind)
        form.means[:] = [arrays["U"], arrays["V"]]
        form.history[:] = arrays["history"].tolist()
        form.restore(arrays)
        if isinstance(form, SampledForm):
            for number in range(1, form.n_kept + 1):
                form.draws.append(self._get(_draw(number)))

    def clear(self) -> None:
        """Remove everything that was stored."""
        for name in (*KINDS, "draw-*"):
            for path in self._folder.glob(f"{name}.safetensors*"):
                path.unlink()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"

    def _put(self, name: str, arrays: dict[str, Array]) -> None:
        write_sealed(self._path(name), arrays, f"{name} {self._fingerprint}")

    def _get(self, name: str) -> dict[str, Array]:
        try:
            return read_sealed(self._path(name), f"{name} {self._fingerprint}")[0]
        except InputError as error:
            if "something else" not in str(error):
                raise InputError(f"{error}; start anew without resuming") from None
            raise InputError(
                f"{self._folder} holds a run with other data or settings; give the same ones, or "
                "start anew without resuming"
            ) from None


def opened(
    checkpoint: Any,
    entries: Any,
    parameters: Mapping[str, Any],
    given: Sequence[Any],
    resume: bool,
) -> SweepCheckpoint | None:
    """Return the checkpoint in a folder, or the one that is given; None where there is none."""
    if checkpoint is None and resume:
        raise InputError("resume needs the folder of a checkpoint")
    if checkpoint is None or isinstance(checkpoint, SweepCheckpoint):
        return checkpoint
    return SweepCheckpoint(
        as_path("checkpoint", checkpoint), entries, parameters, resume=resume, given=given
    )


def _draw(number: int) -> str:
    return f"draw-{number:05d}"


def _fingerprint(entries: Any, parameters: Mapping[str, Any], given: Sequence[Any]) -> str:
    """Return a name for data, given features and settings."""
    state = parameters.get("random_state")
    if not isinstance(parameters.get("seed", 0) if state is None else state, (int, np.integer)):
        raise InputError("a checkpoint needs a whole number as seed, so that a run can go on")
    digest = hashlib.sha256()
    for table in given:
        if table is not None:
            dense = table.toarray() if hasattr(table, "toarray") else np.asarray(table)
            digest.update(np.ascontiguousarray(dense).tobytes())
    mark = mark_of(entries.rows, entries.cols, entries.values)
    settings = {k: v for k, v in parameters.items() if k not in WITHOUT_EFFECT}
    digest.update(json.dumps([mark, list(entries.shape), plain(settings)], sort_keys=True).encode())
    return digest.hexdigest()
