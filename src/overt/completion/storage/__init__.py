"""What is kept on disk: ratings files, models, checkpoints; arrays as safetensors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError, MissingExtraError
from overt._files import write_whole
from overt._types import Array


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
