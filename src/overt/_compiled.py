"""Compiled functions, which release the GIL and are cached on disk if a folder can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def njit(**options: Any) -> Callable[[Any], Any]:
    """Return numba's decorator; without a cache folder, each process compiles anew."""

    def compiled(function: Any) -> Any:
        try:
            return numba.njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # neither the source's folder nor a user's can be written
            return numba.njit(nogil=True, **options)(function)

    return compiled
