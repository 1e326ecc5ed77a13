"""The noise of a model: which layers it is in, what masks drawn from them realize, what they do."""

from __future__ import annotations

import copy
import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.auditing.trace import Trace
from overt.nn.layers.recognized import is_weight_noise, known_noise
from overt.nn.recording.modes import modes, switched_on
from overt.nn.recording.recorder import Operation, record

MASK_ENTRIES, MASK_ROWS = 2**19, 256
"""How many entries of masks are drawn at most, and rows at least, to measure what is dropped."""

Skipped = list[tuple[str, str]]
"""(name, reason) of what is left out."""


def find_noises(model: nn.Module, trace: Trace) -> tuple[dict[str, Operation], Skipped]:
    """Return the first use of each noise layer that is known, and what is left out, with reasons.

    A pass in training mode shows what else draws random numbers there.
    """
    met = trace.noises
    skipped = [
        (name, "not reached by the forward pass")
        for name, module in model.named_modules()
        if known_noise(module) and name not in met
    ]
    on = Counter(op.module for op in trace.operations if op.random and op.noise not in met)
    for path, calls in on.items():
        skipped.append(
            (path or "forward", f"{calls} call(s) of functions that draw, such as functional "
             "dropout, are on in evaluation mode too: their noise is in every number here; use "
             "modules")
        )  # fmt: skip
    try:
        with torch.random.fork_rng(), modes(model, noise=True):
            training = record(
                model, trace.inputs.given, leaves=lambda _, module: known_noise(module), keep=False
            )
    except Exception as error:  # whatever the model's code raises in training mode
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        skipped.append(("training mode", f"noise of other kinds is not looked for: {reason}"))
        return met, skipped
    drawn = [op for op in training.operations if op.random and op.noise not in met]
    for path, calls in Counter(op.module for op in drawn if op.module not in on).items():
        skipped.append((path or "forward", _left_out(model.get_submodule(path), path, calls)))
    return met, skipped


def _left_out(module: nn.Module, path: str, calls: int) -> str:
    """Return why noise that is drawn in a module's forward pass is left out."""
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        return f"{kind}: noise inside cannot be seen; it is left out"
    if isinstance(module, (nn.AlphaDropout, nn.FeatureAlphaDropout)):
        return f"{kind}: its mean is not its input; its noise is left out"
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        return f"{kind}: the dropout inside cannot be seen; it is left out"
    if not path or list(module.children()):
        return (
            f"{calls} call(s) of functions that draw in training mode, such as functional dropout, "
            "which stay off; use modules"
        )
    return f"{kind}: not a noise overt knows; it is left out"


def drop_prob(module: Any) -> float | None:
    """Return the nominal drop probability, None for noise that has none."""
    value = getattr(module, "drop_prob", getattr(module, "p", None))
    return None if value is None else float(value)


def with_drop_prob(module: Any, p: float) -> Any:
    """Return a copy of the noise with another drop probability; None if it has none."""
    twin = copy.deepcopy(module)
    if hasattr(twin, "drop_prob"):
        twin.drop_prob = p
    elif hasattr(twin, "p"):
        twin.p = p
    else:
        return None
    return twin


def realized(module: Any, shape: tuple[int, ...], like: Tensor) -> tuple[float, float]:
    """Return the share of zeros among drawn multipliers (or weights), and its standard error.

    `shape` is that of a sample at the layer's input.
    """
    if is_weight_noise(module):
        twin = copy.deepcopy(module)
        torch.nn.init.ones_(twin.weight)
        rows = max(MASK_ROWS, min(4096, MASK_ENTRIES // twin.weight.numel()))
        with torch.no_grad():
            values = (twin._noisy_weight(rows) == 0).double().flatten(1).mean(1).cpu()
    else:
        rows = max(MASK_ROWS, min(4096, MASK_ENTRIES // max(math.prod(shape), 1)))
        dropped = []
        with switched_on([module]):
            for _ in range(0, rows, 64):  # a mask may be shared by a batch: many small ones
                ones = torch.ones(64, *shape, device=like.device)
                dropped.append((module(ones) == 0).double().flatten(1).mean(1).cpu())
        values = torch.cat(dropped)
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))
