"""Max pooling right after dropout, exactly: the largest value of a window that was kept.

With the window sorted, v_1 >= ... >= v_k, and keep = 1 - drop_prob, the maximum is v_j / keep for
the first kept positive v_j, with probability keep drop_prob^(j-1), and 0 if all of these are
dropped; a window without positive values gives v_1 / keep if all is kept, else 0. Windows that do
not overlap are independent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_AXES = {nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3}


def pool_windows(module: Any, x: Tensor) -> Tensor | None:
    """Return x as (batch, channels, *pooled map, window), None if windows overlap or are padded."""
    axes = _AXES.get(type(module))
    if axes is None or x.ndim != 2 + axes or module.ceil_mode or module.return_indices:
        return None
    kernel, stride, padding, dilation = (
        (v,) * axes if isinstance(v, int) else tuple(v)
        for v in (module.kernel_size, module.stride, module.padding, module.dilation)
    )
    apart = all(s >= k for s, k in zip(stride, kernel, strict=True))
    if not apart or any(padding) or any(d != 1 for d in dilation):
        return None
    for axis in range(axes):
        x = x.unfold(2 + axis, kernel[axis], stride[axis])
    return x.flatten(2 + axes)


def max_of_dropped(windows: Tensor, drop_prob: float) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the maximum over the last axis under dropout."""
    keep, k = 1 - drop_prob, windows.shape[-1]
    v = windows.sort(-1, descending=True).values
    all_before_dropped = drop_prob ** torch.arange(k, dtype=v.dtype, device=v.device)
    high, low = v.clamp(min=0), v[..., 0].clamp(max=0)
    mean = (high * all_before_dropped).sum(-1) + low * keep ** (k - 1)
    square = (high**2 * all_before_dropped).sum(-1) / keep + low**2 * keep ** (k - 2)
    return mean, (square - mean**2).clamp(min=0)
