"""Random numbers: whether torch's, Python's and NumPy's generators move on, and who moves them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt.nn.recording.hooks import hooked
from overt.nn.recording.modes import modes


def generator_state() -> bytes:
    """Return the state of torch's generators: it has moved on if anything was drawn."""
    state = torch.default_generator.get_state().numpy().tobytes()
    if torch.cuda.is_initialized():
        state += b"".join(s.numpy().tobytes() for s in torch.cuda.get_rng_state_all())
    return state


def other_states() -> Any:
    """Return the states of Python's and NumPy's generators."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tobytes(), numpy[2]


@contextmanager
def own_generators() -> Iterator[None]:
    """Give all three kinds of generators their states back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(_devices()):
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
    with torch.random.fork_rng(_devices()):
        torch_seed(seed)
        yield


def torch_seed(seed: int) -> None:
    """Seed torch's generators; torch.manual_seed asks for devices that are not there: slow."""
    torch.default_generator.manual_seed(seed)
    if _devices():
        torch.cuda.manual_seed_all(seed)


def _devices() -> list[int]:
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


@contextmanager
def undone(modules: Iterable[nn.Module]) -> Iterator[list[nn.Module]]:
    """Take back what modules draw from torch's generators; yields them as they are called."""
    met: list[nn.Module] = []
    states: list[Any] = []

    def begin(module: nn.Module, args: Any) -> None:
        met.append(module)
        states.append(torch.random.fork_rng(_devices()))
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
        before.append(other_states())

    def end(module: nn.Module, args: Any, output: Any) -> None:
        now = other_states()
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
