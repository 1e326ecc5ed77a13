"""Who draws: modules whose draws are taken back, or noted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from overt.nn.data.rng import cuda_devices, python_rng_states
from overt.nn.recording.hooks import hooked


@contextmanager
def undone(modules: Iterable[nn.Module]) -> Iterator[list[nn.Module]]:
    """Take back what modules draw from torch's generators; yields them as they are called."""
    met: list[nn.Module] = []
    states: list[Any] = []

    def begin(module: nn.Module, args: Any) -> None:
        met.append(module)
        states.append(torch.random.fork_rng(cuda_devices()))
        states[-1].__enter__()

    def end(module: nn.Module, args: Any, output: Any) -> None:
        states.pop().__exit__(None, None, None)

    with hooked(modules, begin, end):
        yield met


@contextmanager
def noted_draws(model: nn.Module) -> Iterator[dict[str, None]]:
    """Note the modules in whose own forward pass Python's or NumPy's generator moves on."""
    found: dict[str, None] = {}
    before: list[Any] = []

    def begin(module: nn.Module, args: Any) -> None:
        before.append(python_rng_states())

    def end(module: nn.Module, args: Any, output: Any) -> None:
        now = python_rng_states()
        if before.pop() != now:
            found[names[module]] = None
            before[:] = [now] * len(before)  # those around it have not drawn that

    names = {
        module: name
        for name, module in model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)  # takes no hooks, and draws from torch's
    }
    with hooked(names, begin, end):
        yield found
