"""Max pooling of random tensors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from overt.nn.moments.local import unknown
from overt.nn.moments.tape import Tape
from overt.nn.recording.watching import Call


def pooled(tape: Tape, call: Call) -> Any:
    """Max pooling: exact right after dropout where windows do not overlap, else as if normal."""
    x = tape.of(call.args[0])
    shape = _window(call, x.mean)
    if shape is None:
        return unknown(tape, call)
    if x.dropped is not None and shape.apart and not any(shape.padding):
        mean, variance = max_of_dropped(shape.cut(x.dropped[0]), x.dropped[1])
        own = tape.later(lambda: tape.source(variance))
        return replace(x, mean=mean, variance=variance, tangent=own, dropped=None)
    m, v = shape.cut(x.mean), shape.cut(x.variance)
    if any(shape.padding):  # lower than all else
        low = -10 * (x.mean.abs().amax() + x.variance.amax().sqrt())
        m = torch.where(shape.cut(torch.ones_like(x.mean)) > 0, m, low)
    mean, slopes, variance = largest_moments(m, v)

    def tangent() -> Tensor:
        w = tape.fixed(slopes)
        rest = (variance - (slopes * slopes * v).sum(-1)).clamp(min=0)
        return (w * shape.cut(x.tangent())).sum(-1) + tape.source(rest, rest=True)

    return replace(x, mean=mean, variance=variance, tangent=tape.later(tangent), exact=False,
                   known=False, dropped=None, law=None)  # fmt: skip


class _Window(NamedTuple):
    """What a pooling's windows are."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def apart(self) -> bool:
        """Whether no entry is in two windows."""
        return all(s >= k for s, k in zip(self.stride, self.kernel, strict=True))

    def cut(self, x: Tensor) -> Tensor:
        """Return x as (batch, channels, *pooled map, window), 0 where it is padded."""
        axes = len(self.kernel)
        if any(self.padding):
            x = functional.pad(x, [n for n in reversed(self.padding) for _ in range(2)])
        for axis in range(axes):
            x = x.unfold(2 + axis, self.kernel[axis], self.stride[axis])
        return x.flatten(2 + axes)


def _window(call: Call, x: Tensor) -> _Window | None:
    """Return the windows of a pooling, None if they are of another kind."""
    axes = {"max_pool1d": 1, "max_pool2d": 2, "max_pool3d": 3}.get(call.name)
    given = call.named()
    if axes is None or x.ndim != 2 + axes or given.get("ceil_mode") or given.get("return_indices"):
        return None
    kernel, stride, padding, dilation = (
        (v,) * axes if isinstance(v, int) else tuple(v)
        for v in (given["kernel_size"], given.get("stride") or given["kernel_size"],
                  given.get("padding", 0), given.get("dilation", 1))
    )  # fmt: skip
    if any(d != 1 for d in dilation) or math.prod(kernel) > 16:
        return None
    return _Window(kernel, stride, padding)


def largest_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return value, slopes and variance of the largest of independent entries on the last axis.

    One after the other, with t^2 the sum of two variances, z their means' difference over t, and
    the larger of the two taken as normal again (Clark): E = b + t (z Phi(z) + phi(z)), the slopes
    are Phi(z) and 1 - Phi(z), the probabilities to be the largest.
    """
    tiny = torch.finfo(v.dtype).tiny
    a, va, first = m[..., 0], v[..., 0], []
    for i in range(1, m.shape[-1]):
        b, vb = m[..., i], v[..., i]
        t = (va + vb).clamp(min=tiny).sqrt()
        z = (a - b) / t
        phi = torch.exp(z * z * -0.5) * (2 * math.pi) ** -0.5
        P = torch.special.ndtr(z)
        over = t * torch.addcmul(phi, z, P)  # E - b
        left, mean, tphi = over - t * z, b + over, t * phi  # E - a
        va = P * (va + left * left) + (1 - P) * (vb + over * over) - (left + over) * tphi
        a, va = mean, va.clamp(min=0)
        first.append(P)
    weights, later = [], torch.ones_like(a)
    for P in reversed(first):
        weights.append(later * (1 - P))
        later = later * P
    return a, torch.stack([later, *reversed(weights)], -1), va


def max_of_dropped(windows: Tensor, drop_prob: float) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the maximum over the last axis under dropout, exactly.

    With v_1 >= ... >= v_k the window and keep = 1 - drop_prob, the maximum is v_j / keep for the
    first kept positive v_j, with probability keep drop_prob^(j-1), and 0 if all of these are
    dropped; a window without positive values gives v_1 / keep if all is kept, else 0.
    """
    keep, k = 1 - drop_prob, windows.shape[-1]
    v = windows.sort(-1, descending=True).values
    all_before_dropped = drop_prob ** torch.arange(k, dtype=v.dtype, device=v.device)
    high, low = v.clamp(min=0), v[..., 0].clamp(max=0)
    mean = (high * all_before_dropped).sum(-1) + low * keep ** (k - 1)
    square = (high**2 * all_before_dropped).sum(-1) / keep + low**2 * keep ** (k - 2)
    return mean, (square - mean**2).clamp(min=0)
