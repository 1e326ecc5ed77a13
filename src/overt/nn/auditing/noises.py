"""The noise layers of a model: which they are, what they realize, which norms they induce."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt.linear.bounds import Envelope, envelopes
from overt.nn.dropblock import DropBlock1d, DropBlock2d, DropBlock3d
from overt.nn.laws import Law
from overt.nn.sources import is_noise, is_weight_noise, unit_law
from overt.noise import CovarianceNoise
from overt.spectral import KSupport, Schatten, SpectralNorm, SquaredNuclear

MAX_LAW = 2048
"""The most units whose covariances are decomposed."""

MASK_ENTRIES, MASK_ROWS = 2**19, 256
"""How many entries of masks are drawn at most, and rows at least, to measure what is dropped."""


def found(model: nn.Module) -> tuple[dict[str, nn.Module], list[tuple[str, str]]]:
    """Return the noise layers by name, and (name, reason) of noise that is not understood."""
    known: dict[str, nn.Module] = {}
    skipped: list[tuple[str, str]] = []
    for name, module in model.named_modules():
        kind = type(module).__name__
        if is_noise(module):
            known[name] = module
        elif isinstance(module, torch.jit.ScriptModule):
            if not any(name.startswith(f"{above}.") or not above for above, _ in skipped):
                skipped.append((name, f"{kind}: noise inside cannot be seen; it is left out"))
        elif isinstance(module, (nn.AlphaDropout, nn.FeatureAlphaDropout)):
            skipped.append((name, f"{kind}: its mean is not its input; its noise is left out"))
        elif isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
            if module.dropout > 0:
                skipped.append((name, f"{kind}: the dropout inside cannot be seen; it is left out"))
        elif ("drop" in kind.lower() or kind == "StochasticDepth") and not list(module.children()):
            skipped.append((name, f"{kind}: not a noise overt knows; it is left out"))
    return known, skipped


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
        for _ in range(0, rows, 64):  # a mask may be shared by a batch: many small ones
            ones = torch.ones(64, *shape, device=like.device)
            dropped.append((_drawn(module, ones) == 0).double().flatten(1).mean(1).cpu())
        values = torch.cat(dropped)
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def _drawn(module: Any, ones: Tensor) -> Tensor:
    before = module.training
    module.training = True
    try:
        result: Tensor = module(ones)
        return result
    finally:
        module.training = before


def unit_envelopes(module: Any, shape: tuple[int, ...]) -> list[Envelope]:
    """Return pairs (w, N) with <Cbar, U'U o G'G> >= w N(G U') for all U and G.

    Three steps lead from the noises of `overt.linear` to masks over a sample's axes:

    - units that share a mask in groups of s act as one block, G_i U_i' of rank at most s, whose
      cost is |.|_F^2: the squared nuclear norm gives way to the squared s-support norm;
    - c groups of units with independent noise have penalties that add, and convexity of N gives
      sum_g w N(A_g) >= (w / c) N(sum_g A_g);
    - blocks of a grid that the border cuts are smaller, hence of smaller rank, than whole ones.
    """
    law = unit_law(module, (1, *shape))
    units = math.prod(shape)
    copies = math.prod(shape[axis] for axis in law.shared)
    if law.matrix is None:
        return [(law.strength * copies / units, support(copies))]
    if isinstance(module, (DropBlock1d, DropBlock2d, DropBlock3d)) and module.placement == "grid":
        sizes = shape[1:]
        blocks = [min(b, n) for b, n in zip(module.block_size, sizes, strict=True)]
        cells = math.prod(-(-n // b) for n, b in zip(sizes, blocks, strict=True))
        strength = module.drop_prob / (1 - module.drop_prob)
        groups = units // math.prod(sizes) // copies
        return [(strength / (cells * groups), support(math.prod(blocks) * copies))]
    inner = law.matrix.shape[0]
    if inner > MAX_LAW:
        return []
    groups = units // inner // copies
    noise = CovarianceNoise(np.ones(inner), law.matrix.double().cpu().numpy())
    return [(w / groups, _widened(norm, copies)) for w, norm in envelopes(noise, inner)]


def all_dropped(module: Any, shape: tuple[int, ...]) -> float:
    """Return the probability that every unit is dropped, 0 where it is not known."""
    p = drop_prob(module)
    if p is None:
        return 0.0
    if is_weight_noise(module):
        return float(p ** module.weight.numel())
    law: Law = unit_law(module, (1, *shape))
    units = math.prod(shape) // math.prod(shape[axis] for axis in law.shared)
    if law.matrix is None:
        return float(p**units)
    return 0.0


def support(k: int) -> SpectralNorm:
    """Return the squared k-support norm, which for k = 1 is the squared nuclear norm."""
    return SquaredNuclear() if k == 1 else KSupport(k)


def _widened(norm: SpectralNorm, copies: int) -> SpectralNorm:
    if isinstance(norm, Schatten):
        return norm
    return support(copies * (norm.k if isinstance(norm, KSupport) else 1))
