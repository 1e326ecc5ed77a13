"""States of the random number generators of torch, NumPy and Python: read, set, restored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


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


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed torch's generators (None: leave them), and restore their states afterwards."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(cuda_devices()):
        seed_torch(seed)
        yield


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
