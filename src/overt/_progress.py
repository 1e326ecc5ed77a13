"""Progress on a terminal and in notebooks, silence elsewhere; and Ctrl-C that is not swallowed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from importlib.util import find_spec
from types import FrameType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


class Meter:
    """A progress bar of known length with a free text at its end."""

    def __init__(self, update: Callable[..., None]) -> None:
        self._update = update

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Move on by `amount`; `note` replaces the text at the end of the bar."""
        self._update(advance=amount, **({} if note is None else {"note": note}))

    def reach(self, done: float, total: float) -> None:
        """Say how much is done of how much in all."""
        self._update(completed=done, total=total)


@contextmanager
def meter(title: str, total: float, *, show: bool = True) -> Iterator[Meter]:
    """Show a bar on standard error while it is a terminal, and below a notebook's cell."""
    console = _console()
    if not (show and _seen(console)):
        yield Meter(lambda **_: None)
        return
    name, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), note)
    with Progress(*columns, console=console, transient=True) as progress:
        yield Meter(
            partial(progress.update, progress.add_task(title, total=total, note=""))
        )


@cache
def _console() -> Console:
    return Console(
        stderr=True
    )  # which asks where standard error leads whenever it is used


def _seen(console: Console) -> bool:
    """Whether someone looks on: at a terminal, or at a notebook that can show a bar."""
    return console.is_terminal or (
        console.is_jupyter and find_spec("ipywidgets") is not None
    )


@contextmanager
def working(title: str) -> Iterator[None]:
    """Show a title in place of a bar, for work of unknown length."""
    console = _console()
    with console.status(title) if _seen(console) else nullcontext():
        yield


@contextmanager
def reraising_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if Ctrl-C came meanwhile.

    Trainers that are interrupted return what they have; nothing must be concluded from that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt
