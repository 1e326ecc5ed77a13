"""How far carried moments may be off, and what samples do about it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.moments.carry import Carried, Output, plain_output
from overt.nn.moments.control import Control
from overt.nn.moments.result import LEVEL, Moments
from overt.nn.moments.samples import Samples


def judged(
    model: nn.Module, x: Any, output: Output, one: Carried, control: Control | None
) -> Moments:
    """Return what was carried, and how far off it may be; covariances where there is no control.

    The error grows with what non-linear functions do: the part of the variance that linear maps
    leave out, and how far the mean moves from the output without noise, over a row's outputs.
    """
    mean, exact, grad = one.output.mean, one.output.exact, torch.is_grad_enabled()
    noises, linearized = one.noises, tuple(one.tape.linearized)
    with torch.inference_mode(False), torch.set_grad_enabled(grad):
        if control is None:
            return Moments(mean, one.covariances(), exact, noises, (), linearized)
        variance, rest = one.parts(None if exact else control.keep)
        v, rest, m = variance.detach(), rest.detach(), mean.detach()
        sd = v.clamp(min=0).sqrt()
        rounding = 8 * torch.finfo(m.dtype).eps * (m.abs() + sd)
        errors = rounding, rounding
        if not exact:
            moved = (m - plain_output(model, x, output)) ** 2
            tiny = torch.finfo(v.dtype).tiny
            rows = v.reshape(len(v), -1).sum(1).clamp(min=tiny)
            shift = (moved.reshape(len(v), -1).sum(1) / rows).sqrt()
            shift = shift.reshape(-1, *[1] * (m.ndim - 1))
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
    how: Any = {"drawn": drawn, "linearized": tuple(one.tape.linearized)}
    sampled = samples.moments(**how)
    if found is None or found.mean_error is None:
        return sampled
    sd0, sd1 = (r.std.detach().double() for r in (found, sampled))
    tiny = torch.finfo(sd0.dtype).tiny
    sure = (sd0 > 0) & (sd1 > 0)
    sd0, sd1 = (torch.where(sure, sd, sd1.clamp(min=tiny)) for sd in (sd0, sd1))
    doubt = 3.0 if drawn else 1.0
    errors = (doubt * e.double() / sd0 / LEVEL for e in (found.mean_error, found.std_error))
    away = (sampled.mean.double() - found.mean.detach().double()) / sd0
    ratio = torch.log(sd1 / sd0)
    given = zip((away, ratio), errors, samples.errors, strict=True)
    moved, left = zip(*(_moved(*one, 0.25 if drawn else 1.0) for one in given), strict=True)
    mean = found.mean + (moved[0] * sd0).to(found.mean)
    scale = torch.exp(2 * moved[1]).to(mean) * (sampled.std > 0)
    variance = torch.where(sure, found.variance, sampled.variance) * scale
    sd = variance.detach().double().clamp(min=0).sqrt()
    of_mean, of_std = ((LEVEL * e * sd).to(mean) for e in left)
    return Moments(mean, variance, False, one.noises, draws=samples.count,
                   mean_error=of_mean, std_error=of_std, **how)  # fmt: skip


def _moved(d: Tensor, b: Tensor, s: float, least: float) -> tuple[Tensor, Tensor]:
    """Return the part of d to believe, and the error that is left; b^2 shrinks to `least` b^2."""
    rows = len(d) * min(3, max(1, d[0].numel()))  # outputs of a row are not independent
    b2, s2, prior = b * b, s * s, 3
    seen = ((d * d).mean() - s2) / b2.mean()
    scale = torch.ones_like(seen)
    for _ in range(4):  # the more b proves too small, the more d is worth
        worth = rows * (scale * b2 / (scale * b2 + s2)).mean() ** 2
        scale = ((prior + worth * seen) / (prior + worth)).clamp(min=least)
    b2 = scale * b2
    return b2 / (b2 + s2) * d, (b2 * s2 / (b2 + s2)).sqrt()
