"""Models: checked, unwrapped, and put into a mode for a while; states of random generators."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError, InputTypeError

Statistics = Literal["running", "batch", "as set"]

MODEL_LOCK = RLock()
"""Locked while a model's modes or functions of torch are changed: threads take turns."""


def check_model(model: Any) -> nn.Module:
    """Return the model without wrappers; refuse other objects, and models without weights."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}"
        )
    model = unwrap_model(model)
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(weight) or weight.is_meta:
            raise InputError(
                f"model must have its weights: {name} has no values yet; run a lazy module on a "
                "batch, and load weights of a model on the meta device"
            )
    return model


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of torch.compile and DataParallel."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            return model


@contextmanager
def modes(model: nn.Module, *, noise: bool | None) -> Iterator[None]:
    """Put a model into training mode (`noise`) or evaluation mode, but for normalization.

    Normalization uses its running statistics. With noise=None every other layer stays as it is.
    Afterwards all modes are restored, and all buffers that a pass changes.
    """
    with MODEL_LOCK, disable_fast_attention():
        before = [(module, module.training) for module in model.modules()]
        plain = [m for m, _ in before if not isinstance(m, torch.jit.ScriptModule)]
        saved = [(module, dict(module._buffers)) for module in plain]
        try:
            for module, buffers in saved:
                # Copies, so that nothing saved for a gradient changes.
                module._buffers.update(
                    {k: b if b is None else b.clone() for k, b in buffers.items()}
                )
            for module, training in before:
                if is_normalization(module):
                    module.training = False
                else:
                    module.training = training if noise is None else noise
            yield
        finally:
            for module, training in before:
                module.training = training
            for module, buffers in saved:
                module._buffers.update(buffers)


@contextmanager
def restore_training(modules: Iterable[nn.Module], training: bool) -> Iterator[None]:
    """Put these modules, not their children, into training or evaluation mode for a while."""
    before = [(module, module.training) for module in modules]
    try:
        for module, _ in before:
            module.training = training
        yield
    finally:
        for module, old in before:
            module.training = old


@contextmanager
def hook_modules(modules: Iterable[nn.Module], after: Any) -> Iterator[None]:
    """Call after(module, args, output) at each pass of some modules."""
    handles = [module.register_forward_hook(after) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def disable_fast_attention() -> Iterator[None]:
    """Make torch's transformer layers call their parts; their fast path skips dropout modules."""
    with MODEL_LOCK:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)


def is_normalization(module: Any) -> bool:
    """Return whether the module normalizes by statistics that it keeps from batch to batch."""
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return True
    return "running_mean" in module._buffers and "running_var" in module._buffers


# -- random number generators ---------------------------------------------------------------------


def torch_rng_states() -> list[Tensor]:
    """Return the states of torch's generators: the CPU's, then one per CUDA device in use."""
    others = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.default_generator.get_state(), *others]


def torch_rng_bytes() -> bytes:
    """Return the states of torch's generators, to be compared."""
    return b"".join(state.numpy().tobytes() for state in torch_rng_states())


def python_rng_states() -> tuple[object, ...]:
    """Return the states of Python's and NumPy's generators, to be compared."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tobytes(), numpy[2]


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore the states of all generators afterwards."""
    python = random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(cuda_devices()):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def set_torch_rng(states: list[Tensor]) -> None:
    """Put torch's generators into saved states."""
    torch.default_generator.set_state(states[0])
    if states[1:]:
        torch.cuda.set_rng_state_all(states[1:])


def seed_torch(seed: int) -> None:
    """Seed torch's generators; torch.manual_seed also looks for devices that are not there."""
    torch.default_generator.manual_seed(seed)
    if cuda_devices():
        torch.cuda.manual_seed_all(seed)


def cuda_devices() -> list[int]:
    """Return the CUDA devices whose generators may be in use."""
    return list(range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0))
