"""Adversarial examples as pictures: the input, what was added, and what the model makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._check import InputError
from overt._figures import canvas
from overt._types import Array


def draw_examples(x: Array, moved: Array, before: Array, after: Array) -> Any:
    """Return a figure: a column for each input, with the classes before and after as titles.

    Inputs are (points, height, width), or with one or three channels before these.
    """
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[1] not in (1, 3)) or not len(x):
        raise InputError(
            f"pictures need images, (points, 1 or 3, height, width), got {x.shape}"
        )
    clean, changed = (np.atleast_3d(_last(a)) for a in (x, moved))
    low, high = float(x.min()), float(x.max())
    figure, axes = canvas(max(1.15 * len(x), 2.5), 3.9, 3, len(x), squeeze=False)
    for k in range(len(x)):
        difference = (changed - clean)[k].astype(float).mean(-1)
        size = float(np.abs(difference).max()) or 1.0
        for row, picture in ((0, clean[k]), (2, changed[k])):
            shown = np.clip((picture - low) / ((high - low) or 1.0), 0, 1)
            axes[row, k].imshow(shown.squeeze(), cmap="gray", vmin=0, vmax=1)
        axes[1, k].imshow(difference, cmap="RdBu_r", vmin=-size, vmax=size)
        axes[0, k].set_title(f"{int(before[k])}", fontsize=11)
        axes[2, k].set_title(f"{int(after[k])}", fontsize=11, color="tab:red")
    for row, label in enumerate(("clean", "added", "perturbed")):
        axes[row, 0].set_ylabel(label)
    for panel in axes.flat:
        panel.set(xticks=[], yticks=[])
    return figure


def _last(x: Array) -> Array:
    """Return images with their channels last."""
    return x[..., None] if x.ndim == 3 else np.moveaxis(x, 1, -1)
