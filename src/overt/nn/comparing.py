"""What samples say against a penalty that was carried."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.curvature import curvature, divergence
from overt.nn.data.losses import mean_loss
from overt.nn.data.models import is_normalization
from overt.nn.data.rng import preserve_rng
from overt.nn.moments.carry import Output
from overt.nn.moments.samples import Samples
from overt.nn.recording.watching import tensors


def compare(
    model: nn.Module, x: Any, output: Output, value: Tensor, loss: str,
    doubt: float = 0.0, at: tuple[Tensor, Tensor | None] | None = None,
) -> None:  # fmt: skip
    """Warn where samples contradict a penalty that was carried through non-linear functions.

    `doubt` is the value's own standard error, over the value; `at` the outputs' means as carried,
    and targets if there are any.
    """
    if any(is_normalization(module) and module.training for module in model.modules()):
        return  # by statistics of the batch, which samples would move
    rows = max(len(t) if t.ndim else 1 for t in tensors(x))
    samples = Samples(model, x, output, covariance=loss == "cross_entropy")
    with preserve_rng():
        samples.draw(min(128, max(32, 4096 // rows)))
    mean, found = samples.mean, samples.variance
    variance = (
        found.diagonal(dim1=1, dim2=2).reshape(mean.shape) if found.ndim > mean.ndim else found
    )
    diagonal, direction, scale = curvature(mean, loss)
    sampled = (diagonal * variance).reshape(len(mean), -1).sum(1)
    if direction is not None:
        sampled = sampled - (direction[:, None] @ found @ direction[:, :, None]).flatten()
    seen, error = float(scale * sampled.mean()), math.sqrt(max(samples.kurtosis, 3.0) / samples.n)
    error = math.hypot(error / math.sqrt(samples.rows), doubt)
    if seen > 0 and abs(math.log(max(float(value), 1e-30) / seen)) > max(0.2, 3 * error):
        warnings.warn(
            f"the noise adds {float(value):.3g} as carried, but {seen:.3g} over {samples.count} "
            "samples: a linear map follows this model's functions badly; trust "
            "predictive_moments, or train with the noise on",
            stacklevel=3,
        )
        return
    gap, error = (0.0, 0.0) if at is None else _apart(samples, variance, seen, *at, loss)
    if abs(gap) > 0.2 * seen + 2 * error:
        warnings.warn(
            f"the loss differs by {gap:.3g} between the outputs' mean over {samples.count} samples "
            f"and as carried, beside a penalty of {seen:.3g}: a linear map follows this model's "
            "functions badly; trust predictive_moments, or train with the noise on",
            stacklevel=3,
        )


def _apart(
    samples: Samples, variance: Tensor, seen: float, mean: Tensor, y: Tensor | None, loss: str
) -> tuple[float, float]:
    """Return what the loss differs by between sampled and carried means, and its standard error.

    The error is as if outputs of a row went together, at most. Without targets it is what is not
    linear in their distance: what such a deviation would add, were it noise.
    """
    mean, left = mean.detach(), samples.left / samples.n
    if y is None:
        return float(divergence(samples.mean - mean, mean, loss)), seen * left
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(mean_loss(at := mean.requires_grad_(), y, loss), at)
    rows = (slope.abs() * variance.clamp(min=0).sqrt()).reshape(len(mean), -1).sum(1)
    gap = mean_loss(samples.mean, y, loss) - mean_loss(mean.detach(), y, loss)
    return float(gap), math.sqrt(left) * float(rows.norm())
