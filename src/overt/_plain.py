"""Results as plain values, for JSON and comparison, and back."""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from itertools import count, takewhile
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from overt._types import Floats


def as_numpy(value: Any) -> Any:
    """Return a PyTorch tensor as a NumPy array, and anything else as it is."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def same(one: Any, other: Any) -> bool:
    """Return whether two fields hold the same, NaN included."""
    one, other = as_numpy(one), as_numpy(other)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (np.ndarray, float)):
        inexact = np.asarray(one).dtype.kind in "fc" and np.asarray(other).dtype.kind in "fc"
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
        elif f.name in stored or f.default is MISSING:  # files of older versions lack new fields
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
            _as(kinds[0] if kinds[-1] is ... else kinds[i], v) for i, v in enumerate(value)
        )
    if is_dataclass(hint):
        return restored(hint, value)
    if hint is float:
        return float("nan" if value is None else value)
    return hint(value) if isinstance(hint, type) and issubclass(hint, StrEnum) else value


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
    """Return a field as it is printed: an array by its shape."""
    match value:
        case np.ndarray():
            return "array(" + " x ".join(map(str, value.shape)) + ")"
        case tuple():
            return "(" + ", ".join(map(brief, value)) + ")"
        case float():
            return f"{value:.6g}"
    return f"'{value}'" if isinstance(value, str) else repr(value)
