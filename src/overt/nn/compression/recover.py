"""A few steps of training after the cut, with the best state kept."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError
from overt._progress import meter
from overt._types import Floats
from overt.nn.compression.batches import Batches, Loss, mean_loss, score

CHECKS = 8
"""How often the loss is looked at during recovery."""


def recover(
    model: nn.Module,
    train: Batches,
    judge: Batches,
    loss: Loss,
    *,
    steps: int,
    learning_rate: float,
) -> tuple[Floats, bool]:
    """Train in place with Adam; end with the best weights seen, the first ones included.

    Returns the losses on `judge` at each look, and whether Ctrl-C ended it early.
    """
    seen: list[float] = []
    best: dict[str, Tensor] = {}

    def look() -> None:
        model.eval()
        found = score(model, judge, loss)
        value = math.inf if found is None or math.isnan(found.loss) else found.loss
        if not seen or value < min(seen):
            best.update({k: v.detach().clone() for k, v in model.state_dict().items()})
        seen.append(value)
        model.train()

    interrupted = False
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise InputError("recover needs a model with parameters that require gradients")
    optimizer = torch.optim.Adam(trained, lr=learning_rate)
    try:
        with meter("recover", steps) as bar:
            look()
            done = 0
            while done < steps:
                for inputs, y in train:
                    if y is None:
                        raise InputError("recover needs batches (inputs, targets) to train on")
                    optimizer.zero_grad()
                    mean_loss(loss, model(*inputs), y).backward()
                    optimizer.step()
                    done += 1
                    bar.advance()
                    if done % max(1, steps // CHECKS) == 0 or done == steps:
                        look()
                    if done == steps:
                        break
    except KeyboardInterrupt:
        interrupted = True
    if best:
        model.load_state_dict(best)
    model.eval()
    return np.array(seen), interrupted
