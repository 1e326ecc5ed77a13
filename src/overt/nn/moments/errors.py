"""How far carried moments may be off, and what samples do about it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.moments.carry import Carried, Output, plain_output
from overt.nn.moments.result import LEVEL, Moments
from overt.nn.moments.samples import Samples


def judged(model: nn.Module, x: Any, output: Output, one: Carried, covariance: bool) -> Moments:
    """Return what was carried, and how far off it may be.

    The error grows with what non-linear functions do: the part of the variance that linear maps
    leave out, and how far the mean moves from the output without noise, over a row's outputs.
    """
    mean, exact, grad = one.output.mean, one.output.exact, torch.is_grad_enabled()
    noises, linearized = one.noises, tuple(one.tape.linearized)
    with torch.inference_mode(False), torch.set_grad_enabled(grad):
        if covariance:
            return Moments(mean, one.covariances(), exact, noises, (), linearized)
        variance, rest = one.parts()
        v, rest, m = variance.detach(), rest.detach(), mean.detach()
        sd = v.clamp(min=0).sqrt()
        rounding = 8 * torch.finfo(m.dtype).eps * (m.abs() + sd)
        errors = rounding, rounding
        if not exact:
            moved = (m - plain_output(model, x, output)) ** 2
            tiny = torch.finfo(v.dtype).tiny
            rows = v.flatten(1).sum(1).clamp(min=tiny)
            shift = (moved.flatten(1).sum(1) / rows).sqrt().reshape(-1, *[1] * (m.ndim - 1))
            bent = 0.2 * rest / v.clamp(min=tiny) + 0.25 * shift
            scale = sd * (3 if linearized else 1)
            errors = (0.05 + bent) * scale + rounding, (0.03 + bent) * scale + rounding
    return Moments(mean, variance, exact, noises, (), linearized, 0, *errors)


def corrected(
    found: Moments | None, samples: Samples, one: Carried, drawn: tuple[str, ...]
) -> Moments:
    """Weigh what was carried and what was sampled by their errors.

    In units of the standard deviation, with d what was sampled minus what was carried, s the
    sampled standard error and b the carried one, d moves the result by the share b^2 / (b^2 + s^2),
    whose error is b s / sqrt(b^2 + s^2). The d of all outputs together say whether b was too small.
    """
    how = {"drawn": drawn, "linearized": tuple(one.tape.linearized)}
    if found is None or found.mean_error is None:
        return samples.moments(**how)
    sampled = samples.moments(**how)
    sd0, sd1 = (r.std.detach().double() for r in (found, sampled))
    tiny = torch.finfo(sd0.dtype).tiny
    sure = (sd0 > 0) & (sd1 > 0)
    sd0, sd1 = (torch.where(sure, sd, sd1.clamp(min=tiny)) for sd in (sd0, sd1))
    doubt = 3.0 if drawn else 1.0
    errors = (doubt * e.double() / sd0 / LEVEL for e in (found.mean_error, found.std_error))
    away, s = (sampled.mean.double() - found.mean.detach().double()) / sd0, samples.n**-0.5
    share, mean_error = _share(away, next(errors), torch.full_like(away, s))
    mean = found.mean.detach() + (share * away * sd0).to(found.mean)
    away = torch.log(sd1 / sd0)
    s = s * ((samples.kurtosis - 1) / 4) ** 0.5
    share, std_error = _share(away, next(errors), torch.full_like(away, s))
    sd = sd0 * torch.exp(share * away) * (sampled.std > 0)
    errors_ = tuple((LEVEL * e * sd).to(mean) for e in (mean_error, std_error))
    return Moments(mean, (sd * sd).to(mean), False, one.noises, draws=samples.count,
                   mean_error=errors_[0], std_error=errors_[1], **how)  # fmt: skip


def _share(d: Tensor, b: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much of d to believe, and the error that is left."""
    rows = len(d) * min(3, max(1, d[0].numel()))  # outputs of a row are not independent
    worth = rows * (b * b / (b * b + s * s)).mean() ** 2
    seen = (d * d - s * s).mean() / (b * b).mean()
    scale = ((3 + worth * seen) / (3 + worth)).clamp(min=0.25)
    b2, s2 = scale * b * b, s * s
    return b2 / (b2 + s2), (b2 * s2 / (b2 + s2)).sqrt()
