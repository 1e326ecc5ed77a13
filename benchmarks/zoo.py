"""Moments of networks that people bring, against thousands of sampled passes.

Needs timm and transformers (`pip install timm transformers`); without them their part is left out,
and said.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from benchmarks._zoo_models import HAND, HUGGING, ROWS, SHARED, TIMM, built

SAMPLES = 2000
COPIES = 16


def available() -> tuple[list[str], list[str]]:
    """Return the names of the networks that can be built here, and reasons for the others."""
    names, notes = list(HAND), []
    for package, group in (("timm", TIMM), ("transformers", HUGGING)):
        if find_spec(package) is None:
            notes.append(
                f"{len(group)} networks of {package}, which is not installed, are left out."
            )
        else:
            names += group
    return names, notes


def call(model: Any, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def repeated(inputs: Any, n: int) -> Any:
    """Return inputs with each row n times."""
    if isinstance(inputs, dict):
        return {key: value.repeat_interleave(n, 0) for key, value in inputs.items()}
    return inputs.repeat_interleave(n, 0)


def noisy(model: Any) -> Any:
    """Return the model with all that is random on; normalization keeps its statistics."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.eval()
    return model


def samples(name: str, n: int = SAMPLES, copies: int = COPIES, seed: int = 1) -> torch.Tensor:
    """Return n sampled outputs (n, rows, outputs) of a network, in double precision."""
    model, inputs, output = built(name)
    copies = 1 if name in SHARED else copies
    found = []
    torch.manual_seed(seed)
    with torch.no_grad():
        given = repeated(inputs, copies)
        noisy(model)
        for _ in range(-(-n // copies)):
            y = call(model, given)
            y = y if output is None else output(y)
            found.append(y.double().reshape(ROWS, copies, -1).transpose(0, 1))
    return torch.cat(found)[:n]
