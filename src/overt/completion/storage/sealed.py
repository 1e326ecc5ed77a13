"""Arrays and plain values with a checksum over what they mean."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError
from overt._files import read_arrays, write_arrays
from overt._types import Array


def digest(value: Any, arrays: Mapping[str, Array] | None = None) -> str:
    """Return a checksum over a plain value and arrays: their names, formats, shapes and numbers."""
    found = hashlib.sha256(json.dumps(value, sort_keys=True).encode())
    for name, array in sorted((arrays or {}).items()):
        found.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def write_sealed(path: Path, arrays: Mapping[str, Array], what: str) -> str:
    """Write arrays whole or not at all; return their checksum, which is written with them."""
    checksum = digest(what, arrays)
    write_arrays(path, arrays, {"what": what, "checksum": checksum})
    return checksum


def read_sealed(path: Path, what: str) -> tuple[dict[str, Array], str]:
    """Return the arrays and their checksum; refuse what was changed, or is something else."""
    try:
        arrays, metadata, _ = read_arrays(path)
        told, checksum = metadata.get("what"), metadata.get("checksum")
    except InputError:
        raise
    except Exception as error:  # whatever a damaged file makes the reader do
        raise InputError(f"{path} cannot be read: {type(error).__name__}: {error}") from None
    if told != what:
        raise InputError(f"{path} holds something else: {told!r} instead of {what!r}")
    if checksum != digest(what, arrays):
        raise InputError(f"{path} was changed or damaged: its checksum does not fit")
    return arrays, checksum
