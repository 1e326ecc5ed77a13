"""Compiled functions, which release the GIL and are kept on disk where a folder takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def njit(**options: Any) -> Callable[[Any], Any]:
    """Return numba's decorator; where nothing can be kept, each process compiles anew."""

    def compiled(function: Any) -> Any:
        try:
            return numba.njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # neither the source's folder nor a user's can be written
            return numba.njit(nogil=True, **options)(function)

    return compiled
