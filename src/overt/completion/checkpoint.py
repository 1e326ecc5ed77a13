"""Checkpoints of a running fit: written whole or not at all, readable after a kill."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError, MissingExtraError
from overt._files import write_whole
from overt._types import Array
from overt.completion.fixed import Fixed
from overt.completion.learned import Learned, Prior
from overt.completion.sampled import Sampled

KINDS = ("learned", "fixed", "sampled")


class Checkpoint:
    """A folder that keeps the state after the last finished sweep.

    `fingerprint` identifies data and settings: a state of other data or settings is refused.
    """

    def __init__(self, folder: Path, fingerprint: str, *, resume: bool) -> None:
        self._folder, self._fingerprint, self._resume = folder, fingerprint, resume
        folder.mkdir(parents=True, exist_ok=True)
        if not resume:
            self.clear()
        for kind in KINDS:
            if (folder / f"{kind}.safetensors").exists():
                self._get(folder / f"{kind}.safetensors")

    def write(self, kind: str, form: Learned | Fixed | Sampled) -> None:
        """Keep the state of a form."""
        if isinstance(form, Sampled):
            if form.draws:
                U, V = form.draws[-1]
                self._put(f"draw-{len(form.draws):05d}", {"U": U, "V": V})
            arrays = {"U": form.means[0], "V": form.means[1], "noise": np.array([form.noise])}
            arrays["steps"] = np.array([form.steps])
        else:
            arrays = {"U": form.means[0], "V": form.means[1], "history": np.array(form.history)}
        if isinstance(form, Learned):
            arrays |= {f"table_{s}": table for s, table in enumerate(form.tables)}
            arrays |= {f"prior_mean_{s}": p.mean for s, p in enumerate(form.priors)}
            arrays |= {f"prior_precision_{s}": p.precision for s, p in enumerate(form.priors)}
            arrays["noise"] = np.array([form.noise])
            arrays["evidence"] = np.array(form.evidence)
        self._put(kind, arrays)

    def restore(self, kind: str, form: Learned | Fixed | Sampled) -> None:
        """Bring a fresh form to the kept state, if there is one to resume from."""
        path = self._folder / f"{kind}.safetensors"
        if not (self._resume and path.exists()):
            return
        arrays = self._get(path)
        form.means[:] = [arrays["U"], arrays["V"]]
        if isinstance(form, Sampled):
            form.noise, form.steps = float(arrays["noise"][0]), int(arrays["steps"][0])
            for number in range(1, form.steps - form.burn_in + 1):
                draw = self._get(self._folder / f"draw-{number:05d}.safetensors")
                form.draws.append((draw["U"], draw["V"]))
            return
        form.history[:] = arrays["history"].tolist()
        if isinstance(form, Learned):
            form.tables[:] = [arrays["table_0"], arrays["table_1"]]
            form.noise = float(arrays["noise"][0])
            form.evidence[:] = arrays["evidence"].tolist()
            form.priors[:] = [
                Prior(arrays[f"prior_mean_{s}"], arrays[f"prior_precision_{s}"]) for s in (0, 1)
            ]

    def clear(self) -> None:
        """Remove every state."""
        for path in self._folder.glob("*.safetensors*"):
            path.unlink()

    def _put(self, name: str, arrays: dict[str, Array]) -> None:
        write_arrays(
            self._folder / f"{name}.safetensors", arrays, {"fingerprint": self._fingerprint}
        )

    def _get(self, path: Path) -> dict[str, Array]:
        arrays, metadata, _ = read_arrays(path)
        if metadata.get("fingerprint") != self._fingerprint:
            raise InputError(
                f"{path.parent} holds a run with other data or settings; give the same ones, or "
                "start anew without resuming"
            )
        return arrays


def write_arrays(path: Path, arrays: dict[str, Array], metadata: dict[str, str]) -> str:
    """Write arrays as safetensors, whole or not at all; return the file's checksum."""
    save = _safetensors().numpy.save
    data = save({name: np.ascontiguousarray(a) for name, a in arrays.items()}, metadata)
    write_whole(path, data)
    return _checksum(data)


def read_arrays(path: Path) -> tuple[dict[str, Array], dict[str, str], str]:
    """Return the arrays, the metadata and the checksum of a safetensors file."""
    library = _safetensors()
    try:
        data = path.read_bytes()
        arrays: dict[str, Array] = library.numpy.load(data)
    except (OSError, library.SafetensorError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return arrays, metadata, _checksum(data)


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ModuleNotFoundError:
        raise MissingExtraError("safetensors", "files") from None
    return safetensors
