"""What the tour's chapters on PyTorch share: their frame, a network, and digits to learn."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

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


def network(width: int, drop_prob: float) -> Any:
    """Return 64 inputs, one hidden layer of ReLU units with dropout, 10 outputs."""
    from torch.nn import Dropout, Linear, ReLU, Sequential

    return Sequential(Linear(64, width), ReLU(), Dropout(drop_prob), Linear(width, 10))


def digits() -> tuple[Any, Any, Any, Any]:
    """Return scikit-learn's digits: 1200 for training, the others for the test."""
    import torch
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x = torch.tensor(bunch.data[order] / 16, dtype=torch.float32)
    y = torch.tensor(bunch.target[order])
    return x[:1200], y[:1200], x[1200:], y[1200:]
