"""Functions that are told of a module's forward passes, for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def hooked(
    modules: Iterable[nn.Module], before: Any = None, after: Any = None, *, kwargs: bool = False
) -> Iterator[None]:
    """Call before(module, args) and after(module, args, output) at each pass of some modules.

    With `kwargs` the latter is told them, after `args`. Torch's own handles for hooks are slow.
    """
    key, hung = object(), list(modules)
    try:
        for module in hung:
            if before is not None:
                module._forward_pre_hooks[key] = before
            if after is not None:
                module._forward_hooks[key] = after
                if kwargs:
                    module._forward_hooks_with_kwargs[key] = True
        yield
    finally:
        for module in hung:
            module._forward_pre_hooks.pop(key, None)
            module._forward_hooks.pop(key, None)
            module._forward_hooks_with_kwargs.pop(key, None)
