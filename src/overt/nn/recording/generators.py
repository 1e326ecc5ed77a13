"""Random numbers: the states of torch's, Python's and NumPy's generators, and if they move on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt.nn.recording.modes import modes


def generator_state() -> bytes:
    """Return the state of torch's generators: it has moved on if anything was drawn."""
    return b"".join(state.numpy().tobytes() for state in torch_states())


def torch_states() -> list[Tensor]:
    """Return the states of torch's generators, for `from_states`."""
    others = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.default_generator.get_state(), *others]


@contextmanager
def from_states(states: list[Tensor]) -> Iterator[None]:
    """Go on from former states of torch's generators, and give them those of now back."""
    with torch.random.fork_rng(devices()):
        torch.default_generator.set_state(states[0])
        if states[1:]:
            torch.cuda.set_rng_state_all(states[1:])
        yield


def other_states() -> Any:
    """Return the states of Python's and NumPy's generators."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tobytes(), numpy[2]


@contextmanager
def own_generators() -> Iterator[None]:
    """Give all three kinds of generators their states back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices()):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed torch's generators (None: leave them) and give them their states back afterwards."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices()):
        torch_seed(seed)
        yield


def torch_seed(seed: int) -> None:
    """Seed torch's generators; torch.manual_seed asks for devices that are not there: slow."""
    torch.default_generator.manual_seed(seed)
    if devices():
        torch.cuda.manual_seed_all(seed)


def devices() -> list[int]:
    """Return the CUDA devices whose generators may be in use."""
    return list(range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0))


def repeated(
    model: nn.Module, run: Callable[[], list[Tensor]], passes: int
) -> tuple[list[Tensor], bool]:
    """Return what a noisy pass makes, and whether passes differ that begin with the same states.

    They do if something draws from a generator of its own. Buffers begin the same, too.
    """
    found = []
    with torch.no_grad(), own_generators():
        for _ in range(passes):
            torch_seed(0)
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
            with modes(model, noise=True):
                found.append(run())
    first = found[0]
    return first, not all(
        len(first) == len(other) and all(map(_same, first, other)) for other in found[1:]
    )


def _same(a: Tensor, b: Tensor) -> bool:
    if torch.equal(a, b):
        return True
    close = a.shape == b.shape and a.is_floating_point()
    return close and bool(torch.allclose(a, b, equal_nan=True))


def fresh() -> bool:
    """Whether Python's and NumPy's generators stand where a seed of 0 puts them; moves both on."""
    return (random.random(), np.random.random_sample()) == _FIRST  # noqa: NPY002, S311


_FIRST = (random.Random(0).random(), np.random.RandomState(0).random_sample())  # noqa: S311
