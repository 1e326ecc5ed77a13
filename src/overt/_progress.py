"""Progress on a terminal and in notebooks, silence elsewhere; and Ctrl-C that is not swallowed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)


class Meter:
    """A progress bar of known length with a free text at its end."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Move on by `amount`; `note` replaces the text at the end of the bar."""
        if note is None:
            self._progress.update(self._task, advance=amount)
        else:
            self._progress.update(self._task, advance=amount, note=note)

    def reach(self, done: float, total: float) -> None:
        """Say how much is done of how much in all."""
        self._progress.update(self._task, completed=done, total=total)


@contextmanager
def meter(title: str, total: float, *, show: bool = True) -> Iterator[Meter]:
    """Show a bar on standard error while it is a terminal, and below a notebook's cell."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    disable = not (show and _seen(console))
    with Progress(*columns, console=console, disable=disable, transient=True) as progress:
        yield Meter(progress, progress.add_task(title, total=total, note=""))


def _seen(console: Console) -> bool:
    """Whether someone looks on: at a terminal, or at a notebook that can draw a bar."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


@contextmanager
def working(title: str) -> Iterator[None]:
    """Say what is going on where a bar would be shown, for work of unknown length."""
    console = Console(stderr=True)
    if not _seen(console):
        yield
        return
    with console.status(title):
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
