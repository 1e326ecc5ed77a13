"""Nested states of optimizers and schedulers as JSON text beside named tensors, and back.

JSON knows only text as keys, and only lists: a Counter of milestones would come back with keys that
no step ever equals. Whatever it does not know is written as {"": kind, ...}.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from torch import Tensor

from overt._check import InputError

_KINDS: dict[str, Any] = {"counter": Counter, "dict": dict, "tuple": tuple, "set": set}


def pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return the value ready for JSON; its tensors go into `tensors`, named by where they are."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"": "tensor", "name": path}
    if isinstance(value, dict):
        items = [
            [pack(key, path, tensors), pack(entry, f"{path}.{key}", tensors)]
            for key, entry in value.items()
        ]
        if type(value) is not Counter and all(isinstance(key, str) and key for key in value):
            return dict(items)
        return {"": "counter" if type(value) is Counter else "dict", "items": items}
    if isinstance(value, (list, tuple, set)):
        entries = [pack(entry, f"{path}.{i}", tensors) for i, entry in enumerate(value)]
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


def unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what was packed."""
    if isinstance(value, list):
        return [unpack(entry, tensors) for entry in value]
    if not isinstance(value, dict):
        return value
    if "" not in value:
        return {key: unpack(entry, tensors) for key, entry in value.items()}
    if value[""] == "tensor":
        return tensors[value["name"]]
    entries = unpack(value["items"], tensors)
    kind = _KINDS[value[""]]
    return kind(dict(entries)) if kind is Counter else kind(entries)
