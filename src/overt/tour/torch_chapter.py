"""The frame of the tour's chapters that need PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path

from overt._html import Page

Chapter = Callable[[Page, Path, int], bool]
"""chapter(page, folder, seed): adds a section, may keep files in the folder, and returns whether
all its claims held."""


def torch_chapter(title: str) -> Callable[[Chapter], Chapter]:
    """Open a section, run the chapter on one thread with torch's own seed, or say what is missing.

    One thread is as fast on networks this small, and gives the same numbers everywhere.
    """

    def frame(body: Chapter) -> Chapter:
        @wraps(body)
        def chapter(page: Page, folder: Path, seed: int) -> bool:
            page.section(title)
            try:
                import torch
            except ModuleNotFoundError:
                page.text("PyTorch is not installed; pip install 'overt[torch]' adds this chapter.")
                return True
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                with torch.random.fork_rng():
                    torch.manual_seed(seed)
                    return body(page, folder, seed)
            finally:
                torch.set_num_threads(threads)

        return chapter

    return frame
