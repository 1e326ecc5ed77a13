"""Modes of a model's modules for a while: noise on or off, normalization by which statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Literal

import torch
import torch.utils.checkpoint
from torch import nn

Statistics = Literal["running", "batch", "as set"]

ALONE = RLock()
"""Held while modes of a model or functions of torch are not what they were: threads take turns."""


def parts(model: nn.Module) -> list[nn.Module]:
    """Return all modules of a model, each once: `model.modules()` without its generators."""
    found = {model: None}
    for module in (order := [model]):  # which grows
        inner = module.children() if isinstance(module, torch.jit.ScriptModule) else ()
        for part in inner or module._modules.values():
            if part is not None and part not in found:
                found[part] = None
                order.append(part)
    return order


@contextmanager
def slow_attention() -> Iterator[None]:
    """Make torch's transformer layers call their parts; their fast path skips dropout modules."""
    with ALONE:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def open_checkpoints() -> Iterator[None]:
    """Make checkpoints run their parts once: what a second run would do is not seen."""
    place = vars(torch.utils.checkpoint)
    with ALONE:
        before = {name: place[name] for name in _ONCE if name in place}
        try:
            place.update({name: _ONCE[name] for name in before})
            yield
        finally:
            place.update(before)


class _Once:
    @staticmethod
    def apply(function: Any, preserve: bool, *args: Any) -> Any:
        return function(*args)


def _once(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


_PLAIN = "_checkpoint_without_reentrant_generator"
_ONCE: dict[str, Any] = {"CheckpointFunction": _Once, _PLAIN: _once, f"{_PLAIN}_impl": _once}
"""What stands for parts of torch's checkpoints, whose names differ by its version."""


@contextmanager
def modes(
    model: nn.Module,
    *,
    noise: bool,
    statistics: Statistics = "running",
    update: bool = False,
) -> Iterator[None]:
    """Put a model into training mode (`noise`) or evaluation mode, normalization apart.

    Normalization uses its running statistics, those of the batch, or whichever its mode says ("as
    set"). All modes are restored afterwards; so are running statistics and whatever other buffers
    a pass in training mode changes, unless `update` lets them move on.
    """
    with ALONE:
        before = [(module, module.training) for module in parts(model)]
        norms = {module for module, _ in before if is_normalization(module)}
        own = [m for m, _ in before if m._buffers and not isinstance(m, torch.jit.ScriptModule)]
        moved = [m for m in own if not update and (noise or m in norms or "draws" in m._buffers)]
        borrowed = [(module, dict(module._buffers)) for module in moved]
        try:
            for module, buffers in borrowed:  # copies, so that nothing saved for a gradient changes
                copies = {name: b if b is None else b.clone() for name, b in buffers.items()}
                module._buffers.update(copies)
            for module, training in before:
                if module not in norms:
                    if training != noise:
                        _set(module, noise)
                elif statistics != "as set":
                    _set(module, statistics == "batch")
            with slow_attention():
                yield
        finally:
            for module, training in before:
                if module.training != training:
                    _set(module, training)
            for module, buffers in borrowed:
                module._buffers.update(buffers)


@contextmanager
def switched(modules: Iterable[nn.Module], training: bool) -> Iterator[None]:
    """Put these modules into training or evaluation mode for a while."""
    before = [(module, module.training) for module in modules]
    try:
        for module, _ in before:
            _set(module, training)
        yield
    finally:
        for module, old in before:
            _set(module, old)


def _set(module: nn.Module, training: bool) -> None:
    if module.training == training:
        return
    if isinstance(module, torch.jit.ScriptModule):
        module.training = training
    else:  # attributes of modules are slow to set
        module.__dict__["training"] = training


def is_normalization(module: Any) -> bool:
    """Whether the module normalizes by statistics that it keeps from batch to batch."""
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return True
    buffers = module._buffers
    return bool(buffers) and "running_mean" in buffers and "running_var" in buffers


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile's and DataParallel's wrappers."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            return model
