"""Random numbers: whether generators advance, and passes that begin with the same states."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from overt.nn.data.models import modes
from overt.nn.data.rng import cuda_devices as devices
from overt.nn.data.rng import preserve_rng as own_generators
from overt.nn.data.rng import python_rng_states as other_states
from overt.nn.data.rng import seed_torch as torch_seed
from overt.nn.data.rng import seeded
from overt.nn.data.rng import torch_rng_states as torch_states

__all__ = [
    "devices",
    "fresh",
    "from_states",
    "generator_state",
    "other_states",
    "own_generators",
    "repeated",
    "seeded",
    "torch_seed",
    "torch_states",
]


def generator_state() -> bytes:
    """Return the state of torch's generators: it has moved on if anything was drawn."""
    return b"".join(state.numpy().tobytes() for state in torch_states())


@contextmanager
def from_states(states: list[Tensor]) -> Iterator[None]:
    """Run with saved states of torch's generators, then restore the current ones."""
    with torch.random.fork_rng(devices()):
        torch.default_generator.set_state(states[0])
        if states[1:]:
            torch.cuda.set_rng_state_all(states[1:])
        yield


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
