"""The best of many sub-networks that dropout draws, judged on held-out examples."""

from __future__ import annotations

import math

import numpy as np
from torch import nn

from overt._progress import meter
from overt._types import Floats
from overt.nn.compression.batches import Batches, Loss, score
from overt.nn.compression.shrink import Cut, shrink
from overt.nn.compression.structure import Group, Structure


def best_of(
    model: nn.Module,
    structure: Structure,
    counts: dict[Group, int],
    judge: Batches,
    loss: Loss,
    *,
    draws: int,
    rng: np.random.Generator,
) -> tuple[Cut, Floats, bool]:
    """Draw masks with `counts` survivors in each group; keep the one with the least loss.

    Returns the cut, the loss of every mask, and whether Ctrl-C ended the search early; it is passed
    on if nothing has been judged yet.
    """
    losses: list[float] = []
    best: Cut | None = None
    interrupted = False
    try:
        with meter("sub-networks", draws) as bar:
            for _ in range(draws):
                kept = {
                    group: np.sort(rng.choice(group.units, count, replace=False))
                    for group, count in counts.items()
                }
                cut = Cut(kept, scaled=True)
                found = score(shrink(model, structure, cut), judge, loss)
                value = math.inf if found is None or math.isnan(found.loss) else found.loss
                if best is None or value < min(losses):
                    best = cut
                losses.append(value)
                bar.advance(note=f"best loss {min(losses):.4g}")
    except KeyboardInterrupt:
        if best is None:
            raise
        interrupted = True
    assert best is not None  # noqa: S101 (draws is at least 1)
    return best, np.array(losses), interrupted
