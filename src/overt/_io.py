"""Files: written whole or not at all; arrays, tables and matrices in them.

Sizes that a file announces are checked against its length before memory is allocated. Every error
of a reader on a damaged file becomes one `InputError`.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import math
import os
import stat
import types
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from importlib import import_module
from itertools import count, takewhile
from pathlib import Path
from threading import get_ident
from typing import IO, Any, get_args, get_origin, get_type_hints

import numpy as np

from overt._check import (
    Array,
    Floats,
    InputError,
    InputFileError,
    InputTypeError,
    MissingExtraError,
)

MAX_UNPACKED_BYTES = 2**30
"""What an archive may unpack to, whatever its own size; beyond, 100 times its size."""

LONGEST_LINE = 2**25
"""Most characters of a line of text; longer lines are refused as damaged."""


@contextmanager
def reading(path: str | os.PathLike[str], otherwise: str) -> Iterator[None]:
    """Turn whatever a damaged file makes its reader do into a sentence, PATH OTHERWISE: reason."""
    try:
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            raise InputError(
                f"{path} is no ordinary file: devices and pipes are not read"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (InputError, MissingExtraError):
        raise
    except Exception as error:
        if "Query interrupted" in str(error):  # duckdb's word for Ctrl-C
            raise KeyboardInterrupt from None
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path} {otherwise} ({reason})") from None


def write_whole(
    path: str | os.PathLike[str], content: bytes | str | Callable[[IO[bytes]], Any]
) -> Path:
    """Write a file so that a reader finds the old or the new content, even after a crash.

    `content` is bytes, text, or a function that writes to an open file.
    """
    with replacing(path) as temporary, temporary.open("w+b") as file:
        if callable(content):
            content(file)
        else:
            file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    return Path(path)


def as_path(name: str, value: Any) -> Path:
    """Return a path, or say that a value is none."""
    if not isinstance(value, (str, os.PathLike)) or "\0" in os.fsdecode(value):
        raise InputTypeError(f"{name} must be a path, got {value!r:.60}")
    return Path(os.fsdecode(value))


def ready(folder: str | os.PathLike[str]) -> Path:
    """Make a folder for what will be written, or say before the work that nothing can be."""
    folder = as_path("folder", folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(
            f"{folder} cannot be a folder: it is a file, or lies below one"
        ) from None
    except OSError as error:
        raise InputFileError(error.errno, error.strerror, str(folder)) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"nothing can be written into {folder}: permission denied")
    return folder


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path beside a file, of this process alone, and put what is written there in its place.

    If writing fails, as on a full disk, what was there before stays, and nothing else. Links are
    followed; devices and pipes are refused.
    """
    given = as_path("path", path)
    try:
        path = given.resolve()
        if (
            path.is_symlink()
        ):  # which newer Pythons leave where links go round in a circle
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}.part")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(
                f"{given} is no ordinary file: devices and pipes are not written"
            )
        mode = stat.S_IMODE(path.stat().st_mode) if path.is_file() else None
        try:
            if mode is not None:  # private from its first byte
                temporary.touch(mode=0o600)
            yield temporary
            if mode is not None:
                temporary.chmod(mode)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):  # as below a file
                temporary.unlink()
            raise
    except InputError:
        raise
    except (
        OSError,
        RuntimeError,
    ) as error:  # such links are the second in Python 3.12 and before
        code, reason = (
            getattr(error, "errno", None),
            getattr(error, "strerror", None) or str(error),
        )
        raise InputFileError(code, reason, str(given)) from None


def write_csv(
    path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]
) -> None:
    """Write a header and lines; what has no character in UTF-8 becomes a question mark."""

    def write(file: IO[bytes]) -> None:
        text = io.TextIOWrapper(file, "utf-8", errors="replace", newline="")
        writer = csv.writer(text)
        writer.writerow(header)
        writer.writerows(lines)
        text.detach()

    write_whole(path, write)


def digest(value: Any, arrays: Mapping[str, Array] | None = None) -> str:
    """Return a checksum over a plain value and arrays: their names, formats, shapes and numbers."""
    found = hashlib.sha256(json.dumps(value, sort_keys=True).encode())
    for name, array in sorted((arrays or {}).items()):
        found.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


@contextmanager
def open_npz(
    path: str | os.PathLike[str], otherwise: str = "cannot be read as an npz archive"
) -> Iterator[Any]:
    """Open an npz archive that holds what it announces, and no more than fits into memory."""
    with reading(path, otherwise):
        with zipfile.ZipFile(path) as box:
            members = box.infolist()
            size = sum(member.file_size for member in members)
            if size > max(MAX_UNPACKED_BYTES, 100 * os.path.getsize(path)):
                raise InputError(
                    f"{path} would unpack to {size} bytes; it may be damaged"
                )
            for member in members:
                with box.open(member) as stream:
                    check_announced_size(path, stream, member.file_size)
        with np.load(path, allow_pickle=False) as archive:
            yield archive


def check_announced_size(
    path: str | os.PathLike[str], stream: IO[bytes], size: int
) -> None:
    """Refuse an array whose header announces more than its file holds."""
    version = np.lib.format.read_magic(stream)
    first = version == (1, 0)
    header = (
        np.lib.format.read_array_header_1_0
        if first
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = header(stream)
    if dtype.hasobject:
        raise InputError(f"{path} holds objects; arrays must be of numbers")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise InputError(
            f"{path} announces an array of shape {shape}, but holds {size} bytes"
        )


def bounded_lines(path: Path, text: IO[str]) -> Iterator[str]:
    """Yield lines with their ends; refuse one that no program wrote, before it fills the memory."""
    for number, line in enumerate(iter(lambda: text.readline(LONGEST_LINE), ""), 1):
        if len(line) == LONGEST_LINE:
            raise InputError(
                f"{path}, line {number} has more than {LONGEST_LINE} characters"
            )
        yield line


def is_number(word: str) -> bool:
    """Whether a word can be read as a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def safetensors(framework: str, extra: str) -> Any:
    """Return the library, with its functions for arrays of "numpy" or "torch"."""
    try:
        import_module(f"safetensors.{framework}")
    except ModuleNotFoundError:
        raise MissingExtraError("safetensors", extra) from None
    return import_module("safetensors")


def as_numpy(value: Any) -> Any:
    """Return a PyTorch tensor as a NumPy array, and anything else as it is."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def same(one: Any, other: Any) -> bool:
    """Return whether two fields hold the same, NaN included."""
    one, other = as_numpy(one), as_numpy(other)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (np.ndarray, float)):
        inexact = (
            np.asarray(one).dtype.kind in "fc" and np.asarray(other).dtype.kind in "fc"
        )
        return np.array_equal(one, other, equal_nan=inexact)
    return bool(one == other)


def restored(cls: Any, stored: dict[str, Any]) -> Any:
    """Build a result from what `save` wrote of its fields."""
    hints = get_type_hints(cls)
    values = {}
    for f in fields(cls):
        if f.name not in stored and f"{f.name}_1" in stored:
            parts = takewhile(stored.__contains__, (f"{f.name}_{i}" for i in count(1)))
            values[f.name] = tuple(stored[part] for part in parts)
        elif (
            f.name in stored or f.default is MISSING
        ):  # files of older versions lack new fields
            values[f.name] = _as(hints[f.name], stored[f.name])
    return cls(**values)


def _as(hint: Any, value: Any) -> Any:
    """Return a stored value as the type that a field announces."""
    origin, kinds = get_origin(hint), get_args(hint)
    if origin is types.UnionType:
        return None if value is None else _as(kinds[0], value)
    tensor = getattr(hint, "__module__", "") == "torch"
    if (tensor or origin is get_origin(Floats)) and not isinstance(value, np.ndarray):
        # null in an array of numbers is NaN, which JSON lacks
        array = np.array(value)
        return np.array(value, dtype=float) if array.dtype == object else array
    if origin is tuple:
        return tuple(
            _as(kinds[0] if kinds[-1] is ... else kinds[i], v)
            for i, v in enumerate(value)
        )
    if is_dataclass(hint):
        return restored(hint, value)
    if hint is float:
        return float("nan" if value is None else value)
    return (
        hint(value) if isinstance(hint, type) and issubclass(hint, StrEnum) else value
    )


def plain(value: Any) -> Any:
    """Return what JSON can hold: lists for arrays, numbers for scalars, None for NaN and inf."""
    value = as_numpy(value)
    match value:
        case np.ndarray():
            return plain(value.tolist())
        case float() if not np.isfinite(value):
            return None
        case np.generic():
            return plain(value.item())
        case StrEnum():
            return str(value)
        case tuple() | list():
            return [plain(v) for v in value]
        case dict():
            return {name: plain(v) for name, v in value.items()}
    return value.to_dict() if hasattr(value, "to_dict") else value


def brief(value: Any) -> str:
    """Return the text of a field: an array by its shape."""
    match value:
        case np.ndarray():
            return "array(" + " x ".join(map(str, value.shape)) + ")"
        case tuple():
            return "(" + ", ".join(map(brief, value)) + ")"
        case float():
            return f"{value:.6g}"
    return f"'{value}'" if isinstance(value, str) else repr(value)
