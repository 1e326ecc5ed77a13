"""Rows of figures in a folder: JSON lines that say where, when and by which code they were made."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import overt
from overt._check import InputError
from overt._io import digest, plain, reading
from overt.papers.figures import Figure, Params, Row

Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class Stored:
    """A stored row and its provenance.

    Attributes
    ----------
    key, row
        The name of the setting, and its parameters and measurements.
    machine, date
        Versions and cores of the machine, and the day.
    commit
        The commit of the code; "+" at its end means that files had been changed since.
    code
        A digest of the code that measured it, `code_digest` of the figure.
    data
        Digests of the data files that the row was computed from.
    """

    key: str
    row: Row
    machine: dict[str, Any]
    date: str
    commit: str = ""
    code: str = ""
    data: dict[str, str] = field(default_factory=dict)


def read_rows(figure: Figure, folder: Folder) -> Iterator[Stored]:
    """Yield the stored rows of a figure; a line that a kill cut off is not read.

    A whole line that is no row, or does not fit its checksum, is refused.
    """
    path = _path(figure, folder)
    if not path.exists():
        return
    with reading(path, "cannot be read as rows of a figure"):
        lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        entry = _entry(path, number, line) if line.strip() else None
        if entry is not None:
            entry["row"] = to_numbers(entry["row"])
            yield Stored(**entry)


def append_row(figure: Figure, folder: Folder, key: str, row: Row) -> None:
    """Add a row with its provenance, on a new line even after a cut-off one."""
    entry = {
        "key": key,
        "row": plain(row),
        "machine": machine_facts(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "code": code_digest(figure),
        "data": data_digests(row),
    }
    entry["checksum"] = digest(entry)
    separators = (",", ":")
    line = json.dumps(entry, allow_nan=False, separators=separators)
    with _path(figure, folder).open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else "\n" + line
        file.write(line.encode() + b"\n")


def _path(figure: Figure, folder: Folder) -> Path:
    return Path(folder) / f"{figure.id}.jsonl"


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any] | None:
    """Return what a line holds; None if it was cut off, so that its row is computed again."""
    try:
        entry = json.loads(line)
        if entry.pop("checksum") == digest(entry):
            return {**entry}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        if b'{"key"'.startswith(line[:6]) and line.count(b"{") > line.count(b"}"):
            return None
    raise InputError(
        f"{path}, line {number} is not a row of a figure, or was changed; remove the line, "
        "or choose another folder"
    )


def to_numbers(stored: Any) -> Any:
    """Return parsed JSON with NaN for null, to nine digits; rows hold no other None."""
    match stored:
        case float():
            return float(f"{stored:.9g}")
        case None:
            return float("nan")
        case list():
            return [to_numbers(value) for value in stored]
        case dict():
            return {name: to_numbers(value) for name, value in stored.items()}
    return stored


def machine_facts() -> dict[str, Any]:
    """Return what a stored row says about where it was computed."""
    return {
        "overt": overt.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


@cache
def commit() -> str:
    """Return the commit of this checkout, with "+" if files were changed; "" if there is none."""
    folder = Path(overt.__file__).parent
    parents = folder.parents
    if not any((parent / ".git").exists() for parent in parents):
        return ""
    described = _git(folder, "rev-parse", "HEAD")[:10]
    changed = _git(folder, "status", "-s", str(folder))
    return f"{described}+" if described and changed else described


def _git(folder: Path, *words: str) -> str:
    try:
        found = subprocess.run(
            ["git", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def code_digest(figure: Figure) -> str:
    """Return a digest of the function that measures the figure and what it uses of its module."""
    run = inspect.unwrap(figure.run)
    source = inspect.getsourcefile(run)
    if source is None or not Path(source).exists():
        return ""
    text = Path(source).read_text(encoding="utf-8")
    return source_digest(text, run.__name__)


@cache
def source_digest(source: str, name: str) -> str:
    """Return a digest of a function of a module, and of all that it uses of the module.

    Formatting, comments and docstrings do not change it, nor does the rest of the module.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            del node.body[0]
    defined: dict[str, ast.stmt] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            defined[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            defined |= dict.fromkeys(_names(statement), statement)
    used: dict[str, str] = {}
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name in defined and name not in used:
            used[name] = ast.unparse(defined[name])
            waiting += _names(defined[name])
    text = "\n".join(used[name] for name in sorted(used))
    digest = hashlib.sha256(text.encode())
    return digest.hexdigest()[:12]


def _names(statement: ast.stmt) -> list[str]:
    return [part.id for part in ast.walk(statement) if isinstance(part, ast.Name)]


def data_digests(params: Params) -> dict[str, str]:
    """Return a digest of each file of OVERT_DATA that the setting's data are read from."""
    home = os.environ.get("OVERT_DATA")
    name = params.get("data")
    if not home or not isinstance(name, str):
        return {}
    found = sorted(Path(home).glob(f"{name}.*")) + sorted(
        Path(home).glob(f"ml-{name}.*")
    )
    return {path.name: _file_digest(path) for path in found if path.is_file()}


@cache
def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256")
        return found.hexdigest()[:12]


def of_other_code(figure: Figure, rows: Iterable[Stored]) -> list[Stored]:
    """Return the rows that were computed by another version of the figure's module."""
    now = code_digest(figure)
    return [row for row in rows if row.code != now]
